# SPDX-License-Identifier: Apache-2.0
import functools

import numpy as np
import pytest

import dsakit
from oracle import cases
from oracle.cases import BF16, F
from oracle.harness import assert_same, both, operator, per_thread_count, refused, seeds, to_numpy, to_torch
from oracle.indexer_prolog import judge_indexer_prolog
from oracle.layouts import to_nz

NAME = "lightning_indexer_prolog_quant"
RESULTS = ("q_int8", "q_scale", "k_cache", "k_scale_cache", "weights")
ORDER = (
    "x q_norm q_norm_scale w_qb w_qb_scale wk w_proj ln_gamma_k ln_beta_k cos sin hadamard_q hadamard_k "
    "k_cache k_scale_cache k_cache_index"
).split()
WEIGHTS = ("w_qb", "wk", "w_proj")
LAYOUTS = ("half", "interleaved", "interleaved_to_half")
SMALL = [
    dict(t=6, he=64, hcq=48, n=3, di=32, dr=8),
    dict(t=4, he=257, hcq=96, n=16, di=128, dr=64),
    dict(t=1, he=9, hcq=5, n=1, di=2, dr=2, blocks=1, block_size=1),
    dict(t=11, he=192, hcq=130, n=5, di=48, dr=48, block_size=4),
]
case = functools.lru_cache(None)(cases.indexer_prolog)


def run(given, before, impl="fast", convert=lambda v: v, **more):
    args = {k: convert(v.copy() if isinstance(v, np.ndarray) else v) for k, v in dict(given, **before).items()}
    results = operator(NAME, impl)(**dict(args, **more))
    assert len(results) == 5 and results[2] is args["k_cache"] and results[3] is args["k_scale_cache"]
    return {name: to_numpy(v) for name, v in zip(RESULTS, results)}


@both
@pytest.mark.parametrize("layout", LAYOUTS)
@seeds(12)
def test_random(seed, layout, impl):
    given, before = case(
        seed,
        **SMALL[seed % len(SMALL)],
        rope_layout=layout,
        random_rope=seed % 2 == 0,
        exact=seed % 3 == 0,
        hadamard=["random", "none"][seed // 4 % 2],
        scale_dtype=[np.float16, F][seed // 3 % 2],
        gamma_dtype=[BF16, F][seed // 2 % 2],
    )
    judge_indexer_prolog(given, run(given, before, impl), before, exact=seed % 3 == 0)


@both
@pytest.mark.parametrize("heads, layout", [(64, "half"), (32, "interleaved")])
def test_model_sizes(heads, layout, impl):
    for hadamard in ("sylvester", "random"):
        given, before = case(
            60 + heads, t=5, he=512, hcq=256, n=heads, di=128, dr=64, rope_layout=layout, hadamard=hadamard
        )
        judge_indexer_prolog(given, run(given, before, impl), before)


def test_rope_layouts_differ():
    given, before = case(61, **SMALL[1])
    results = [run(dict(given, rope_layout=layout), before)["q_int8"].tobytes() for layout in LAYOUTS]
    assert len(set(results)) == 3


@both
@seeds(3, 20)
def test_weight_formats_give_the_same_bits(seed, impl):
    given, before = case(seed, **SMALL[seed % len(SMALL)])
    want = run(given, before, impl)
    nz = {n: to_nz(given[n], padding=99) for n in WEIGHTS}
    for form, weights in dict(
        nz=nz,
        packed={n: dsakit.pack_weight(given[n]) for n in WEIGHTS},
        one=dict(wk=nz["wk"]),
        packed_nz={n: dsakit.pack_weight(nz[n], format="NZ", shape=given[n].shape) for n in WEIGHTS},
    ).items():
        got = run(given, before, impl, **weights)
        for name in RESULTS:
            assert_same(got[name], want[name], f"{form}: {name}")


@seeds(3, 30)
def test_threads_and_token_splits_give_the_same_bits(seed):
    given, before = case(seed, **dict(SMALL[seed % len(SMALL)], t=8, blocks=9))
    first, *others = per_thread_count(lambda: run(given, before))
    for other in others:
        for name in RESULTS:
            assert_same(other[name], first[name], name)
    caches, parts = {k: v.copy() for k, v in before.items()}, []
    for cut in (slice(0, 1), slice(1, 4), slice(4, 8)):
        got = run(
            dict(given, **{n: given[n][cut] for n in ("x", "q_norm", "q_norm_scale", "cos", "sin", "k_cache_index")}),
            caches,
        )
        caches = {k: got[k] for k in caches}
        parts.append(got)
    for name in ("q_int8", "q_scale", "weights"):
        assert_same(np.concatenate([p[name] for p in parts]), first[name], name)
    for name in caches:
        assert_same(caches[name], first[name], name)


@both
def test_positional_order_and_scale_as_a_row(impl):
    given, before = case(40, **SMALL[0], rope_layout="half")
    want = run(given, before, impl)
    args = {**given, **{k: v.copy() for k, v in before.items()}, "w_qb_scale": given["w_qb_scale"].reshape(1, -1)}
    got = operator(NAME, impl)(
        *(args[n] for n in ORDER), layernorm_epsilon_k=1e-6, layout_query="TND", layout_key="PA_BSND"
    )
    for name, value in zip(RESULTS, got):
        assert_same(value, want[name], name)


@both
def test_torch_in_torch_out(impl):
    pytest.importorskip("torch")
    given, before = case(41, **SMALL[0])
    want, got = run(given, before, impl), run(given, before, impl, convert=to_torch)
    for name in RESULTS:
        assert_same(got[name], want[name], name)


@both
def test_cache_rows(impl):
    """M8: pages of 16, index -1, 17, 17: the last token is in block 1 slot 1; a zero key row stores zeros."""
    given, before = case(42, t=3, he=32, hcq=16, n=2, di=16, dr=4, blocks=2, block_size=16)
    given = dict(
        given, k_cache_index=np.array([-1, 17, 17]), x=given["x"].copy(), ln_beta_k=np.zeros_like(given["ln_beta_k"])
    )
    given["x"][2] = 0
    got = run(given, before, impl)
    judge_indexer_prolog(given, got, before)
    assert not got["k_cache"][1, 1].any() and got["k_scale_cache"][1, 1, 0, 0] == 0


@both
def test_nothing_to_do(impl):
    given, before = case(43, **SMALL[0])
    none = dict(given, **{n: given[n][:0] for n in ("x", "q_norm", "q_norm_scale", "cos", "sin", "k_cache_index")})
    got = run(none, before, impl)
    assert got["q_int8"].shape == (0, 3, 32) and got["q_scale"].shape == (0, 3, 1) and got["weights"].shape == (0, 3)
    for name in before:
        assert_same(got[name], before[name], name)


@both
def test_worked_quantisation(impl):
    """M6 and M7: one head of four columns, identity matrices away (None), query path and its rope."""
    eye = np.eye(4, dtype=np.int8)
    for layout, rotated in (
        ("half", [-0.25, -4, 1.75, 2]),
        ("interleaved_to_half", [0, -4, 1.25, 3]),
        ("interleaved", [0, 1.25, -4, 3]),
    ):
        given = dict(
            x=np.zeros((1, 4), BF16),
            q_norm=np.array([[1, 2, 3, 4]], np.int8),
            q_norm_scale=np.ones((1, 1), F),
            w_qb=eye,
            w_qb_scale=np.ones((4, 1), F),
            wk=np.zeros((4, 4), BF16),
            w_proj=np.zeros((4, 1), BF16),
            ln_gamma_k=np.ones(4, BF16),
            ln_beta_k=np.zeros(4, BF16),
            cos=np.array([[0.5, 0, 0.5, 0]], BF16),
            sin=np.array([[0.25, 1, 0.25, 1]], BF16),
            hadamard_q=None,
            hadamard_k=None,
            k_cache_index=np.array([0]),
            rope_layout=layout,
        )
        got = run(
            given, dict(k_cache=np.ones((1, 1, 1, 4), np.int8), k_scale_cache=np.ones((1, 1, 1, 1), np.float16)), impl
        )
        largest = np.abs(rotated).max()
        assert got["q_int8"][0, 0].tolist() == np.rint(np.array(rotated) * (127 / largest)).tolist()
        assert got["q_scale"][0, 0, 0] == np.float16(1 / (F(127) / F(largest)))
        assert not got["k_cache"].any() and not got["k_scale_cache"].any() and not got["weights"].any()
    plain = dict(
        given,
        q_norm=np.array([[2, -4, 1, 8]], np.int8),
        q_norm_scale=np.full((1, 1), 0.25, F),
        cos=np.ones((1, 4), BF16),
        sin=np.zeros((1, 4), BF16),
        rope_layout="half",
    )
    got = run(
        plain, dict(k_cache=np.ones((1, 1, 1, 4), np.int8), k_scale_cache=np.ones((1, 1, 1, 1), np.float16)), impl
    )
    assert got["q_int8"][0, 0].tolist() == [32, -64, 16, 127] and got["q_scale"][0, 0, 0] == np.float16(0.01574707)


def put(**changes):
    return lambda a: a.update({k: v(a[k]) if callable(v) else v for k, v in changes.items()})


def index(at, value):
    def change(a):
        a["k_cache_index"][at] = value
        return f"[{at}]"

    return change


def longer(array, axis):
    return np.concatenate([array, array.take([0], axis=axis)], axis=axis)


SHAPES = dict(
    q_norm=0,
    q_norm_scale=0,
    w_qb=1,
    w_qb_scale=0,
    wk=1,
    w_proj=0,
    ln_gamma_k=0,
    ln_beta_k=0,
    cos=0,
    sin=1,
    hadamard_q=0,
    hadamard_k=1,
    k_cache=3,
    k_scale_cache=1,
    k_cache_index=0,
)
REFUSED = {
    "slot past the end": (index(5, 15), "INVALID_SLOT", "k_cache_index"),
    "index int32": (put(k_cache_index=lambda v: v.astype(np.int32)), "INVALID_DTYPE", "k_cache_index"),
    "one matrix missing": (put(hadamard_k=None), "INVALID_ARGUMENT", {"hadamard_k", "hadamard_q"}),
    "the other missing": (put(hadamard_q=None), "INVALID_ARGUMENT", {"hadamard_k", "hadamard_q"}),
    "epsilon 0": (put(layernorm_epsilon_k=0.0), "INVALID_ARGUMENT", "layernorm_epsilon_k"),
    "epsilon nan": (put(layernorm_epsilon_k=float("nan")), "INVALID_ARGUMENT", "layernorm_epsilon_k"),
    "rope_layout": (put(rope_layout="neox"), "INVALID_ARGUMENT", "rope_layout"),
    "layout_query": (put(layout_query="BSND"), "INVALID_ARGUMENT", "layout_query"),
    "layout_key": (put(layout_key="TND"), "INVALID_ARGUMENT", "layout_key"),
    "x dtype": (put(x=lambda v: v.astype(np.float16)), "INVALID_DTYPE", "x"),
    "q_norm dtype": (put(q_norm=lambda v: v.astype(BF16)), "INVALID_DTYPE", "q_norm"),
    "w_qb dtype": (put(w_qb=lambda v: v.astype(BF16)), "INVALID_DTYPE", "w_qb"),
    "cache dtype": (put(k_cache=lambda v: v.astype(np.int16)), "INVALID_DTYPE", "k_cache"),
    "scale cache dtype": (put(k_scale_cache=np.zeros((3, 5, 1, 1), BF16)), "INVALID_DTYPE", "k_scale_cache"),
    "wk missing": (put(wk=None), "INVALID_ARGUMENT", "wk"),
    "read-only cache": (lambda a: a["k_cache"].setflags(write=False), "INVALID_DEVICE", "k_cache"),
    "strict layout": (put(level="strict", rope_layout="interleaved"), "UNSUPPORTED", None),
    **{
        f"{name} one longer": (put(**{name: functools.partial(longer, axis=axis)}), "INVALID_SHAPE", None)
        for name, axis in SHAPES.items()
    },
}


@both
@pytest.mark.parametrize("name", REFUSED)
def test_refused(name, impl):
    change, status, parameter = REFUSED[name]
    given, before = case(50, **SMALL[0])
    args = {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in dict(given, **before).items()}
    position = change(args)
    guards = [v for v in args.values() if isinstance(v, np.ndarray)]
    refused(lambda: operator(NAME, impl)(**args), NAME, status, parameter or set(args), position, guards)
