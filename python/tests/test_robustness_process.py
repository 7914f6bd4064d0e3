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


WIDTHS = [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 47, 63, 64, 65, 100, 127, 128, 129, 191, 255, 256, 257]


@pytest.mark.parametrize("end", [True, False], ids=["end", "begin"])
@pytest.mark.parametrize("width", WIDTHS)
def test_guard_pages(width, end):
    """M03: nothing beside a tensor is read or written; the same bits as in ordinary memory."""
    for op, args, written in sized(width):
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


@pytest.mark.parametrize("name", ["mla", "mla bf16", "lip", "fused"])
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
    memory = []
    for cache in caches:
        shape = (pages, *big[cache].shape[1:])
        size = int(np.prod(shape)) * big[cache].itemsize
        memory.append(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000))  # MAP_NORESERVE
        big[cache] = np.frombuffer(memory[-1], big[cache].dtype, int(np.prod(shape))).reshape(shape)
    last = pages * 5 - 4
    big[index] = last + np.arange(4)
    operator(call.operator)(**big)
    for w in call.written:
        if w in caches:
            row = lambda cache, first: cache.reshape(-1, cache.shape[-1])[first : first + 4]
            assert_same(row(big[w], last), row(args[w], 0), w)
        else:
            assert_same(big[w], args[w], w)


def python(code, *, status=0, **environment):
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
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
for name in CALLS:
    e = refusal(name)
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
        bad = [np.nan, np.inf, -np.inf] + [-1.0] * ("scale" in tensor and call.operator != "dynamic_quant")
        for value in bad:
            fresh = call.make()
            if "q_norm_scale" in fresh:
                fresh["q_norm_scale"] = abs(fresh["q_norm_scale"])
            broken = fresh[tensor].copy()
            broken.flat[0] = value
            for module in (dsakit,):
                e = refusal(name, module, **fresh | {tensor: broken})
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
    return big(), refusal("mla") is None
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
    assert refusal("fused") is None and refusal("attention") is None
    assert torch.equal(a @ a, want)
"""
    )
    python(code)
