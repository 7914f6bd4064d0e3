# SPDX-License-Identifier: Apache-2.0
"""What a process can do to the operators: environment, memory limits, value checking, threads and fork()."""

import os
import pathlib
import subprocess
import sys
import threading

import pytest

import dsakit
from oracle.calls import CALLS
from oracle.cases import generator
from oracle.harness import operator


def results(op, args, written):
    dsakit_op = operator(op)
    dsakit_op(**args)
    return {name: args[name].copy() for name in written}


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
    try:
        timer.start()  # on a loaded machine it may be over before this is
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
