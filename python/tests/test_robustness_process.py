# SPDX-License-Identifier: Apache-2.0
"""What a process can do to the operators: unmapped pages beside every tensor, addresses above 2^32, environment, memory
limits, value checking, threads and fork()."""

import ctypes
import mmap
import os
import pathlib
import subprocess
import sys
import threading

import numpy as np
import pytest

import dsakit
from oracle import cases
from oracle.calls import CALLS
from oracle.cases import BF16, F, codes, generator, uniform
from oracle.harness import assert_same, operator
from oracle.mla_prolog_v3 import join_rows
from oracle.mla_prolog_v3_cases import mla_prolog_v3

PAGE = mmap.PAGESIZE
_mprotect = ctypes.CDLL(None, use_errno=True).mprotect
_mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def at_the_edge(array, end):
    """A copy that ends (begins) exactly where an unmapped page begins (ends)."""
    inside = -(-max(array.nbytes, 1) // PAGE) * PAGE
    memory = mmap.mmap(-1, inside + 2 * PAGE)
    raw = np.frombuffer(memory, np.uint8)
    for page in (0, PAGE + inside):
        assert _mprotect(raw.ctypes.data + page, PAGE, mmap.PROT_NONE if hasattr(mmap, "PROT_NONE") else 0) == 0
    first = PAGE + (inside - array.nbytes if end else 0)
    view = raw[first : first + array.nbytes].view(array.dtype).reshape(array.shape)
    view[...] = array
    return view


def results(op, args, written):
    dsakit_op = operator(op)
    dsakit_op(**args)
    return {name: args[name].copy() for name in written}


def sized(width):
    """(operator, arguments, what is written), rows of this width wherever a row can have it."""
    rng = generator(width)
    even = width + width % 2
    lengths = dict(
        actual_seq_lengths_query=[1, 3], actual_seq_lengths_key=[width, 5], layout_query="TND", layout_key="PA_BSND"
    )
    pages = -(-width // 4) + 2
    table = np.full((2, pages), -1, np.int32)
    order = rng.permutation(pages).astype(np.int32)
    table[0, : pages - 2], table[1, :2] = order[:-2], order[-2:]
    heads = 1 + width % 19
    for quantised in (True, False):
        kind = (lambda s: codes(rng, s)) if quantised else (lambda s: uniform(rng, s))
        args = dict(
            query=kind((3, heads, width)),
            key=kind((pages, 4, 1, width)),
            weights=rng.random((3, heads)).astype(np.float16 if quantised else BF16),
            block_table=table,
            sparse_count=width,
            sparse_indices=np.zeros((3, 1, width), np.int32),
            **lengths,
        )
        if quantised:
            args |= dict(
                query_dequant_scale=rng.random((3, heads)).astype(np.float16),
                key_dequant_scale=rng.random((pages, 4, 1)).astype(np.float16),
            )
        yield "quant_lightning_indexer" if quantised else "lightning_indexer", args, ["sparse_indices"]
        attention = dict(
            query_nope=uniform(rng, (heads, width)),
            query_rope=uniform(rng, (heads, width % 70)),
            key_nope_2d=codes(rng, (8, width)) if quantised else uniform(rng, (8, width)),
            key_rope_2d=uniform(rng, (8, width % 70)),
            k_nope_scales=rng.random((8, 1)).astype(F) if quantised else None,
            topk_indices=np.resize(np.arange(8, dtype=np.int32), (1, width)),
            block_table=np.array([[1, 0]], np.int32),
            kv_act_seqs=np.array([8], np.int32),
            b=1,
            s1=1,
            nq=heads,
            softmax_scale=0.1,
            topk=width,
            block_size=4,
            attention_out=np.zeros((1, 1, heads, width), BF16),
        )
        attention["kv_act_seqs"], attention["topk"] = np.array([8], np.int32), min(width, 8)
        yield "sparse_flash_attention_quant", attention, ["attention_out"]
        given, caches = cases.mla_prolog(
            width,
            t=2,
            he=width,
            hcq=width,
            n=2,
            d=width % 67 + 1,
            dr=even % 66 + 2,
            latent=width,
            groups=1,
            quantised=quantised,
        )
        yield (
            "mla_prolog_quant",
            given
            | caches
            | dict(
                q_norm_out=np.zeros((2, width), np.int8 if quantised else BF16),
                query_nope_out=np.zeros((2, 2, width), BF16),
                query_rope_out=np.zeros((2, 2, even % 66 + 2), BF16),
            ),
            [*caches, "q_norm_out", "query_nope_out", "query_rope_out"],
        )
    di = max(width, 2)
    given, caches = cases.indexer_prolog(width, t=2, he=width, hcq=width, n=heads, di=di, dr=min(di // 2 * 2, 64))
    yield (
        "lightning_indexer_prolog_quant",
        given
        | caches
        | dict(
            q_int8=np.zeros((2, heads, di), np.int8),
            q_scale=np.zeros((2, heads, 1), np.float16),
            weights=np.zeros((2, heads), np.float16),
        ),
        [*caches, "q_int8", "q_scale", "weights"],
    )
    yield (
        "dynamic_quant",
        dict(
            input=uniform(rng, (3, width)),
            smooth_scales=uniform(rng, width),
            y=np.zeros((3, width), np.int8),
            scale=np.zeros(3, F),
        ),
        ["y", "scale"],
    )


def sized_torch_npu(width):
    """The same for the torch_npu family and the row operators."""
    rng = generator(1000 + width)
    even, heads, rope = width + width % 2, 1 + width % 19, width % 70
    out = lambda shape, dtype=BF16: np.zeros(shape, dtype)
    for row in (1, 4, 6, 7):
        given, before = mla_prolog_v3(
            width, row, lengths=(2,), he=width, hcq=width, n=2, d=width % 67 + 1, dr=even % 66 + 2, latent=width,
            tile=width, smooth=row > 1,
        )  # fmt: skip
        outs = dict(query=out((2, 2, width), np.int8 if row == 6 else BF16), query_rope=out((2, 2, even % 66 + 2)))
        outs["query_norm"] = out((2, width), np.int8 if row > 1 else BF16)
        if row > 1:
            outs["dequant_scale_q_norm"] = out((2, 1), F)
        if row == 6:
            outs["dequant_scale_q_nope"] = out((2, 2, 1), F)
        yield "mla_prolog_v3", given | before | outs, [*before, *outs]
    pages = dict(
        block_table=np.array([[1, 0, -1], [4, 3, 2]], np.int32),
        actual_seq_lengths_query=np.array([1, 3], np.int32),
        actual_seq_lengths_kv=np.array([5, 9], np.int32),
        sparse_indices=np.resize(np.arange(5, dtype=np.int32), (3, 1, width)),
        layout_query="TND",
        layout_kv="PA_BSND",
        attention_mode=2,
        scale_value=0.1,
        sinks=uniform(rng, heads, 1, F),
        return_softmax_lse=True,
        attention_out=out((3, heads, width)),
        softmax_max=out((1, 3, heads), F),
        softmax_sum=out((1, 3, heads), F),
    )
    written = ["attention_out", "softmax_max", "softmax_sum"]
    parts = dict(query=(3, heads, width), query_rope=(3, heads, rope), key=(5, 4, 1, width), key_rope=(5, 4, 1, rope))
    parts = {name: uniform(rng, shape) for name, shape in parts.items()}
    yield "sparse_flash_attention", pages | parts | dict(value=parts["key"].copy()), written
    rows = join_rows(codes(rng, (20, width)), uniform(rng, (20, rope)), rng.random((20, 1))).reshape(5, 4, 1, -1)
    packed = dict(query=uniform(rng, (3, heads, width + rope)), key=rows, value=rows.copy(), key_quant_mode=2)
    packed |= dict(value_quant_mode=2, tile_size=width, rope_head_dim=rope)
    yield "kv_quant_sparse_flash_attention", pages | packed, written
    dense = dict(
        query=uniform(rng, (2, 3, heads, width)),
        key=uniform(rng, (2, width, heads, width)),
        value=uniform(rng, (2, width, heads, width)),
        pse_shift=uniform(rng, (1, heads, 3, width)),
        atten_mask=rng.integers(0, 2, (2, 1, 3, width)).astype(np.uint8),
        num_query_heads=heads,
        input_layout="BSND",
        return_softmax_lse=True,
        attention_out=out((2, 3, heads, width)),
        softmax_lse=out((2, heads, 3, 1), F),
    )
    yield "fused_infer_attention_score_v2", dense, ["attention_out", "softmax_lse"]
    scales = ("dequant_scale_key", "dequant_scale_value", "dequant_offset_key", "dequant_offset_value")
    paged = dict(
        query=uniform(rng, (3, heads, width)),
        key=codes(rng, (5, 4, heads * width)),
        value=codes(rng, (5, 4, heads * width)),
        block_table=pages["block_table"],
        actual_seq_qlen=[1, 3],
        actual_seq_kvlen=[5, 9],
        block_size=4,
        num_query_heads=heads,
        input_layout="TND",
        quant_scale_out=rng.random((heads, width)).astype(F),
        attention_out=out((3, heads, width), np.int8),
    )
    paged |= {name: rng.random((heads, width)).astype(F) for name in scales}
    yield "fused_infer_attention_score_v2", paged, ["attention_out"]
    x, y = uniform(rng, (3, width)), out((3, width), np.int8)
    given = dict(scales=rng.random(width).astype(F) + F(1), zero_points=codes(rng, width), dtype="qint8")
    yield "quantize", dict(input=x, y=y) | given, ["y"]
    nibbles = dict(input=uniform(rng, (3, 8 * width)), scales=uniform(rng, 8 * width), zero_points=None)
    yield "quantize", nibbles | dict(dtype="quint4x2", div_mode=False, y=out((3, width), np.int32)), ["y"]
    blocks = dict(x=x, col_block_size=5, y=y, scale=out((3, -(-width // 5)), F))
    yield "dynamic_block_quant", blocks, ["y", "scale"]
    turned = dict(x=uniform(rng, (1, 2, 3, even)), y=out((1, 2, 3, even)))
    cos, sin = (uniform(rng, (1, 1, 3, even)) for _ in range(2))
    yield "interleave_rope", turned | dict(cos=cos, sin=sin), ["y"]
    for mode in ("half", "interleave"):
        yield "rotary_mul", turned | dict(r1=cos, r2=sin, rotary_mode=mode), ["y"]
    rows, gamma, rstd = uniform(rng, (3, width)), uniform(rng, width), out((3, 1), F)
    yield "rms_norm", dict(self=rows, gamma=gamma, y=out((3, width)), rstd=rstd), ["y", "rstd"]
    both = dict(x1=rows, x2=uniform(rng, (3, width)), gamma=gamma, beta=uniform(rng, width))
    yield "add_rms_norm_bias", both | dict(y=out((3, width)), rstd=rstd, x=out((3, width))), ["y", "rstd", "x"]
    for mode in ("PA", "PA_NZ") if width % 32 == 0 else ("PA",):
        sines = (uniform(rng, (2, 1, 3, even)) for _ in range(2))
        yield (
            "kv_rmsnorm_rope_cache",
            dict(zip(("cos", "sin"), sines))
            | dict(kv=uniform(rng, (2, 1, 3, width + even)), gamma=uniform(rng, width), c_kv_scale=rng.random(width).astype(F))
            | dict(index=np.array([3, 0, -1, 5, 4, 1]), k_cache=out((3, 2, 1, even)), ckv_cache=out((3, 2, 1, width), np.int8))
            | dict(cache_mode=mode, is_output_kv=True, k_rope=out((2, 1, 3, even)), c_kv=out((2, 1, 3, width))),
            ["k_cache", "ckv_cache", "k_rope", "c_kv"],
        )
    yield "swiglu", dict(self=uniform(rng, (3, 2 * width)), y=out((3, width))), ["y"]
    parts = dict(codes=codes(rng, (3, width)), rope=uniform(rng, (3, rope)), scales=rng.random((3, 1)).astype(F))
    yield "pack_kv_rows", parts | dict(rows=out((3, width + 2 * rope + 4), np.int8)), ["rows"]
    parts = {name: np.zeros_like(part) for name, part in parts.items()}
    whole = dict(rows=codes(rng, (3, width + 2 * rope + 4)), rope_head_dim=rope, tile_size=width)
    yield "unpack_kv_rows", whole | parts, [*parts]


WIDTHS = [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 47, 63, 64, 65, 100, 127, 128, 129, 191, 255, 256, 257]


@pytest.mark.parametrize("end", [True, False], ids=["end", "begin"])
@pytest.mark.parametrize("width", WIDTHS)
def test_guard_pages(width, end):
    """M03: nothing beside a tensor is read or written; the same bits as in ordinary memory."""
    for op, args, written in (*sized(width), *sized_torch_npu(width)):
        want = results(op, {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in args.items()}, written)
        args = {k: at_the_edge(v, end) if isinstance(v, np.ndarray) else v for k, v in args.items()}
        for name, value in results(op, args, written).items():
            assert_same(value, want[name], f"{op}: {name}")


@pytest.mark.parametrize("isa", dsakit.info()["isas"][:-1])
def test_guard_pages_of_the_other_instruction_sets(isa):
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-x",
            "-p",
            "no:cacheprovider",
            __file__,
            "-k",
            "test_guard_pages and not other",
        ],
        env=os.environ | {"DSAKIT_ISA": isa},
        capture_output=True,
        text=True,
        cwd=pathlib.Path(__file__).parent,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def mapped(shape, dtype):
    """Zeros that take no memory until they are written."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)  # MAP_NORESERVE
    return np.frombuffer(memory, dtype).reshape(shape)


@pytest.mark.parametrize("name", ["mla", "mla bf16", "lip", "fused", "v3", "v3 tiles", "v2"])
def test_caches_above_four_gib(name):
    """B06, C02: slots whose offsets exceed 2^32 elements in sparse mappings."""
    call = CALLS[name]
    index = "k_cache_index" if name == "lip" else "cache_index"
    args = call.make()
    args[index] = np.array([0, 1, 2, 3])
    operator(call.operator)(**args)
    big = call.make()
    pages = 2**32 // (5 * 16) + 9 if name == "lip" else 2**32 // (5 * 32) + 9
    caches = [w for w in call.written if "cache" in w]
    for cache in caches:
        big[cache] = mapped((pages, *big[cache].shape[1:]), big[cache].dtype)
    last = pages * 5 - 4
    big[index] = last + np.arange(4)
    operator(call.operator)(**big)
    for w in call.written:
        if w in caches:
            row = lambda cache, first: cache.reshape(-1, cache.shape[-1])[first : first + 4]
            assert_same(row(big[w], last), row(args[w], 0), w)
        else:
            assert_same(big[w], args[w], w)


@pytest.mark.parametrize("name", ["sfa", "kvsfa", "fia pages"])
def test_pages_above_four_gib(name):
    """B06: the pages of a call at the end of a pool of more than 2^32 elements."""
    call = CALLS[name]
    want = results(call.operator, call.make(), call.written)
    args = call.make()
    pages = 2**32 // (4 * args["key"].shape[-1]) + 9
    for cache in ("key", "value", "key_rope"):
        if cache in args:
            far = mapped((pages, *args[cache].shape[1:]), args[cache].dtype)
            far[-5:] = args[cache]
            args[cache] = far
    if name != "fia pages":
        args["value"] = args["key"]
    args["block_table"] += np.int32(pages - 5) * (args["block_table"] >= 0)
    for written, value in results(call.operator, args, call.written).items():
        assert_same(value, want[written], written)


def python(code, *, status=0, **environment):
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=1800,  # against hangs
        cwd=pathlib.Path(__file__).parent,
    )
    assert done.returncode == status and not done.stderr, done.stdout + done.stderr
    return done.stdout


START = """
import numpy as np, dsakit
from oracle.calls import CALLS
def refusal(name, module=dsakit, **changes):
    args = CALLS[name].make() | changes
    before = {k: v.tobytes() for k, v in args.items() if isinstance(v, np.ndarray)}
    try:
        getattr(module, CALLS[name].operator)(**args)
    except dsakit.Error as e:
        assert all(args[k].tobytes() == v for k, v in before.items()), "written"
        return e
    return None
"""


@pytest.mark.parametrize("value", ["0", "-1", "abc", "100000", "", "1e3", "9" * 40])
def test_threads_of_the_environment(value):
    """R01"""
    for name in ("DSAKIT_NUM_THREADS", "OMP_NUM_THREADS"):
        code = START + "assert refusal('qli') is None; print(dsakit.get_num_threads())"
        clean = {k: "" for k in ("DSAKIT_NUM_THREADS", "OMP_NUM_THREADS")}
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | clean | {name: value},
            capture_output=True,
            text=True,
            cwd=pathlib.Path(__file__).parent,
        )
        assert done.returncode == 0 and 1 <= int(done.stdout) <= os.cpu_count()


def test_instruction_set_of_the_environment():
    """R02: the import works, the first use says what is wrong, and so does the next."""
    code = (
        START
        + """
for module in (dsakit, dsakit):
    e = refusal("dynamic", module)
    assert isinstance(e, NotImplementedError), e
    print(e.status, e.parameter, e.got, "one of generic" in e.wanted)
assert refusal("dynamic", dsakit.reference) is None
"""
    )
    assert python(code, DSAKIT_ISA="mmx") == "UNSUPPORTED DSAKIT_ISA is mmx True\n" * 2
    for isa in dsakit.info()["isas"]:
        assert python("import dsakit; print(dsakit.info()['isa'])", DSAKIT_ISA=isa) == isa + "\n"


def test_memory_limit():
    """M01"""
    code = (
        START
        + """
row_by_row = {"quantize", "dynamic_block_quant", "swiglu", "interleave_rope", "rotary_mul", "pack_kv_rows", "unpack_kv_rows",
              *(c.operator for c in CALLS.values() if c.operator.startswith(("scatter_", "gather_", "store_")))}
for name in CALLS:
    e = refusal(name)
    if e is None and CALLS[name].operator in row_by_row:  # no workspace
        continue
    assert e is not None and isinstance(e, MemoryError), name
    assert (e.status, e.parameter, e.operator) == ("OUT_OF_MEMORY", "workspace", CALLS[name].operator), e
    assert "DSAKIT_MEM_LIMIT" in str(e) and "wanted at most 8" in str(e), e
    assert refusal(name, dsakit.reference) is None
"""
    )
    python(code, DSAKIT_MEM_LIMIT="8")
    for garbage in ("0", "-5", "much", ""):
        python(START + "assert refusal('qli') is None", DSAKIT_MEM_LIMIT=garbage)


def test_value_checking():
    """DSAKIT_CHECK=1: a number that is none is found in every floating-point input, before anything is written."""
    code = (
        START
        + """
from oracle.cases import BF16, F
found = 0
for name, call in CALLS.items():
    good = call.make()
    if "q_norm_scale" in good:
        good["q_norm_scale"] = abs(good["q_norm_scale"])
    assert refusal(name, **good) is None, refusal(name, **good)
    for tensor in call.tensors():
        if tensor in call.written or good[tensor].dtype not in (BF16, np.float16, F):
            continue
        twin = call.operator.endswith("sparse_flash_attention")  # value must be key
        always = tensor in ("k_nope_clip_alpha", "sinks") or (twin and tensor == "value")  # refused without it too
        copied = call.operator.startswith(("pack_", "scatter_", "gather_", "store_"))
        if always or copied or tensor in ("kv_cache", "kr_cache", "k_cache", "ckv_cache"):
            continue
        bad = [np.nan, np.inf, -np.inf] + [-1.0] * ("scale" in tensor and call.operator != "dynamic_quant")
        for value in bad:
            fresh = call.make()
            if "q_norm_scale" in fresh:
                fresh["q_norm_scale"] = abs(fresh["q_norm_scale"])
            broken = fresh[tensor].copy()
            broken.flat[0] = value
            changes = {tensor: broken} | ({"value": broken} if twin and tensor == "key" else {})
            for module in (dsakit,):
                e = refusal(name, module, **fresh | changes)
                assert isinstance(e, ValueError) and e.status == "INVALID_VALUE", (name, tensor, value, e)
                assert e.parameter == tensor and e.position == "[0]" * broken.ndim, (name, tensor, e)
                found += 1
print(found)
assert dsakit.info()["check_values"] is True
e = refusal("qli", numerics="device", weights=np.full((5, 4), 60000, np.float16), query_dequant_scale=np.full((5, 4), 9, np.float16))
assert e.status == "INVALID_VALUE" and e.parameter == "weights"
"""
    )
    assert int(python(code, DSAKIT_CHECK="1")) > 100
    for off in ("0", "", "yes"):
        python("import dsakit; assert dsakit.info()['check_values'] is False", DSAKIT_CHECK=off)


def test_one_context_two_threads():
    """R03"""
    wants = {name: results(call.operator, call.make(), call.written) for name, call in CALLS.items()}
    wrong = []

    def work(seed):
        order = list(CALLS) * 5
        generator(seed).shuffle(order)
        for name in order:
            got = results(CALLS[name].operator, CALLS[name].make(), CALLS[name].written)
            wrong.extend(name for w in got if got[w].tobytes() != wants[name][w].tobytes())
            dsakit.set_num_threads(1 + seed % 3)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    dsakit.set_num_threads(2)
    assert not wrong


def test_after_fork():
    """R04: a child of a process whose threads have run, and a child of that."""
    code = (
        START
        + """
import multiprocessing, os
dsakit.set_num_threads(3)
def big():
    rng = np.random.default_rng(3)
    q = rng.integers(-9, 9, (1, 64, 8, 32), np.int8)
    return dsakit.quant_lightning_indexer(q, rng.integers(-9, 9, (1, 4096, 1, 32), np.int8), np.ones((1, 64, 8), np.float32),
        np.ones((1, 64, 8), np.float32), np.ones((1, 4096, 1), np.float32), sparse_count=64).tobytes()
def child(_):
    return big(), all(refusal(name) is None for name in ("mla", "v3", "kvsfa", "fia", "quantize"))
want = big()
with multiprocessing.get_context("fork").Pool(2) as pool:
    assert all(got == want and fine for got, fine in pool.map(child, range(4)))
assert big() == want
if os.fork() == 0:
    pid = os.fork()
    if pid == 0:
        os._exit(0 if big() == want else 1)
    os._exit(os.waitpid(pid, 0)[1] != 0 or big() != want)
assert os.wait()[1] == 0
"""
    )
    python(code)


def test_beside_another_openmp_runtime():
    """R04: torch brings its own."""
    pytest.importorskip("torch")
    code = (
        START
        + """
import torch
torch.set_num_threads(2)
a = torch.randn(300, 300)
want = a @ a
for _ in range(3):
    assert all(refusal(name) is None for name in ("fused", "attention", "v3", "sfa", "fia", "rotary"))
    assert torch.equal(a @ a, want)
"""
    )
    python(code)


@pytest.mark.parametrize("row, mode", [(7, "PA_BSND"), (6, "PA_BSND"), (3, "PA_NZ")])
def test_interrupted_rows_are_old_or_new(row, mode):
    """R05: whatever the moment, every cache row is the old one or the complete new one, and the context works on."""
    code = f"""
import os, signal, threading, time
import numpy as np, dsakit
from oracle.mla_prolog_v3 import logical_rows
from oracle.mla_prolog_v3_cases import mla_prolog_v3
sizes = dict(he=512, hcq=256, n=8, d=128, dr=64, latent=512, tile=128, block_size=128)
given, before = mla_prolog_v3(5, {row}, cache_mode="{mode}", lengths=(2048,), **sizes)
def call(caches):
    dsakit.mla_prolog_v3(**given, **caches)
copy = lambda: {{name: cache.copy() for name, cache in before.items()}}
rows = lambda cache: logical_rows(cache, "{mode}").view(np.uint8)
new = copy()
start = time.monotonic()
call(new)
whole = time.monotonic() - start
for part in (0.1, 0.5, 0.9):
    caches = copy()
    timer = threading.Timer(whole * part, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        call(caches)
        timer.join()
        time.sleep(0.1)
    except KeyboardInterrupt:
        pass
    for name, cache in caches.items():
        if cache.size:
            same = lambda other: (rows(cache) == rows(other)).all(axis=1)
            assert (same(before[name]) | same(new[name])).all(), name
caches = copy()
call(caches)
assert all(caches[name].tobytes() == new[name].tobytes() for name in caches)
"""
    python(code)


def test_any_number_of_rows_without_elements():
    """T02: no loop over an axis of 2^40 where another one is 0."""
    code = """
import numpy as np, dsakit
from oracle.cases import BF16, F
many = 2**40
x = lambda *shape, dtype=BF16: np.zeros(shape, dtype)
one = np.ones(1, F)
calls = [
    ("quantize", dict(input=x(3, many, 0), scales=one, zero_points=None, dtype="qint8")),
    ("dynamic_quant", dict(input=x(many, 0, 16))),
    ("dynamic_block_quant", dict(x=x(many, 0))),
    ("interleave_rope", dict(x=x(many, 2, 2, 0), cos=x(many, 1, 2, 0), sin=x(many, 1, 2, 0))),
    ("rms_norm", dict(self=x(many, 0, 16), gamma=x(16))),
    ("swiglu", dict(self=x(many, 2, 0))),
    ("rotary_mul", dict(x=x(many, 2, 2, 0), r1=x(1, 1, 2, 0), r2=x(1, 1, 2, 0))),
    ("pack_kv_rows", dict(codes=x(many, 0, 16, dtype=np.int8), rope=x(many, 0, 4), scales=x(many, 0, 2, dtype=F))),
]
for lead, width in (((many, 0), 16), ((0, many), 16), ((2, many // 16), 0)):
    key = x(lead[0], 0, 4, width)
    heads = dict(query=x(*lead, 4, width), key=key, value=key, num_query_heads=4)
    calls.append(("fused_infer_attention_score_v2", heads | dict(input_layout="BSND", return_softmax_lse=width > 0)))
latent = dict(query=x(many, 0, 3, 16), query_rope=x(many, 0, 3, 4), key=x(many, 0, 1, 16), key_rope=x(many, 0, 1, 4))
lists = dict(value=latent["key"], sparse_indices=x(many, 0, 1, 3, dtype=np.int32), scale_value=1.0, attention_mode=2)
calls.append(("sparse_flash_attention", latent | lists))
for module in (dsakit, dsakit.reference):
    for name, args in calls:
        result = getattr(module, name)(**args)
        assert (result[0] if isinstance(result, tuple) else result).size == 0
"""
    python(code)
