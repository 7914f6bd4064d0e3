# SPDX-License-Identifier: Apache-2.0
import functools

import numpy as np
import pytest

import dsakit
from oracle import cases
from oracle.cases import BF16, F
from oracle.harness import assert_same, both, operator, per_thread_count, refused, seeds, to_numpy, to_torch
from oracle.layouts import to_nz
from oracle.mla_prolog import judge_mla_prolog

NAME = "mla_prolog_quant"
RESULTS = ("q_norm", "q_norm_scale", "query_nope", "query_rope", "kv_cache", "kr_cache", "k_scale_cache")
SMALL = [
    dict(t=6, he=64, hcq=48, n=3, d=20, dr=8, latent=32, groups=4),
    dict(t=4, he=257, hcq=96, n=2, d=48, dr=32, latent=128, groups=4),
    dict(t=1, he=7, hcq=5, n=1, d=3, dr=2, latent=6, groups=3, blocks=1, block_size=1),
    dict(t=9, he=192, hcq=130, n=5, d=17, dr=16, latent=66, groups=2, block_size=4),
    dict(t=17, he=128, hcq=64, n=2, d=16, dr=16, latent=64, groups=1, blocks=5),
]
LARGE = dict(
    v32=dict(t=2, he=512, hcq=256, n=128, d=128, dr=64, latent=512, groups=4, block_size=16),
    glm=dict(t=2, he=384, hcq=320, n=64, d=192, dr=64, latent=512, groups=4, block_size=16),
)
case = functools.lru_cache(None)(cases.mla_prolog)


def run(given, before, impl="fast", convert=lambda v: v, **more):
    """Results by name as numpy arrays; the caches of `before` are not touched."""
    args = {k: convert(v.copy() if isinstance(v, np.ndarray) else v) for k, v in dict(given, **before).items()}
    results = operator(NAME, impl)(**dict(args, **more))
    assert len(results) == 7
    for name, result in zip(RESULTS, results):
        if name in before and name + "_out" not in more:
            assert result is args[name], f"{name} is not the tensor that was passed"
    return {name: to_numpy(v) for name, v in zip(RESULTS, results)}


@both
@pytest.mark.parametrize("quantised", [True, False], ids=["int8", "bf16"])
@pytest.mark.parametrize("exact", [False, True], ids=["uniform", "integers"])
@seeds(10)
def test_random(seed, exact, quantised, impl):
    given, before = case(seed, **SMALL[seed % len(SMALL)], quantised=quantised, exact=exact, random_rope=seed % 2 == 1)
    got = run(given, before, impl)
    judge_mla_prolog(given, got, before, exact)
    if not quantised:
        assert got["q_norm_scale"].shape == (0,) and got["q_norm_scale"].dtype == F and got["k_scale_cache"] is None


@both
@pytest.mark.parametrize("quantised", [True, False], ids=["int8", "bf16"])
@pytest.mark.parametrize("size", LARGE)
def test_model_heads(size, quantised, impl):
    given, before = case(70, **LARGE[size], quantised=quantised)
    judge_mla_prolog(given, run(given, before, impl), before)


@both
@seeds(4, 20)
def test_weight_formats_give_the_same_bits(seed, impl):
    given, before = case(seed, **SMALL[seed % len(SMALL)], quantised=seed % 2 == 0)
    want = run(given, before, impl)
    three = ("w_dq", "w_uq_qr", "w_dkv_kr")
    nz = {n: to_nz(given[n], padding=77) for n in three}
    forms = dict(
        nz=nz,
        packed={n: dsakit.pack_weight(given[n]) for n in three},
        packed_nz={n: dsakit.pack_weight(nz[n], format="NZ", shape=given[n].shape) for n in three},
        packed_all={n: dsakit.pack_weight(given[n]) for n in three + ("w_uk",)},
        tagged={n: dsakit.format_cast(given[n], 29) for n in three},
        mixed=dict(w_dq=nz["w_dq"], w_uq_qr=dsakit.pack_weight(given["w_uq_qr"])),
    )
    for form, weights in forms.items():
        got = run(given, before, impl, **weights)
        for name in RESULTS:
            if want[name] is not None:
                assert_same(got[name], want[name], f"{form}: {name}")


@seeds(4, 30)
def test_threads_and_token_splits_give_the_same_bits(seed):
    size = dict(SMALL[seed % len(SMALL)], t=8, blocks=9)
    given, before = case(seed, **size, quantised=seed % 2 == 0)
    first, *others = per_thread_count(lambda: run(given, before))
    for other in others:
        for name in RESULTS:
            if first[name] is not None:
                assert_same(other[name], first[name], name)
    caches, parts = {k: v.copy() for k, v in before.items()}, []
    for cut in (slice(0, 1), slice(1, 4), slice(4, 8)):
        part = dict(given, **{n: given[n][cut] for n in ("token_x", "cos", "sin", "cache_index")})
        got = run(part, caches)
        caches = {k: got[k] for k in caches}
        parts.append(got)
    for name in RESULTS[:4]:
        if first[name] is not None and first[name].size:
            assert_same(np.concatenate([p[name] for p in parts]), first[name], name)
    for name in caches:
        assert_same(caches[name], first[name], name)


@both
@pytest.mark.parametrize("quantised", [True, False], ids=["int8", "bf16"])
def test_output_tensors(quantised, impl):
    given, before = case(40, **SMALL[0], quantised=quantised)
    want = run(given, before, impl)
    kept = {k: v.copy() for k, v in before.items()}
    outs = {f"{n}_out": np.full_like(want[n], 3) for n in RESULTS if want[n] is not None and want[n].size}
    if quantised:
        assert len(outs) == 7
    assert operator(NAME, impl)(**given, **kept, **outs) is None  # the published form
    for name in RESULTS:
        if f"{name}_out" in outs:
            assert_same(outs[f"{name}_out"], want[name], name)
    some = {"q_norm_out": np.full_like(want["q_norm"], 3)}
    results = operator(NAME, impl)(**given, **{k: v.copy() for k, v in before.items()}, **some)
    assert results[0] is some["q_norm_out"]
    for name, result in zip(RESULTS, results):
        if result is not None:
            assert_same(result, want[name], name)
    for name in kept:
        assert_same(kept[name], before[name], f"{name} beside a separate {name}_out")
    inplace = {k: v.copy() for k, v in before.items()}
    operator(NAME, impl)(**given, **inplace, **{f"{n}_out": v for n, v in inplace.items()})
    for name in inplace:
        assert_same(inplace[name], want[name], f"{name} with itself as output")


@both
def test_caches_as_views_of_one_buffer(impl):
    """Interleaved rows that share no element, and pages further apart than they are long."""
    given, before = case(41, **SMALL[0], quantised=False)
    want = run(given, before, impl)
    latent, dr = before["kv_cache"].shape[-1], before["kr_cache"].shape[-1]
    blocks, size = before["kv_cache"].shape[:2]
    buffer = np.zeros((blocks, size + 2, 1, latent + dr), BF16)
    views = dict(kv_cache=buffer[:, :size, :, :latent], kr_cache=buffer[:, :size, :, latent:])
    for name, view in views.items():
        view[...] = before[name]
    operator(NAME, impl)(**given, **views)
    for name, view in views.items():
        assert_same(np.ascontiguousarray(view), want[name], name)
    assert not buffer[:, size:].astype(F).any()


@both
def test_positional_order(impl):
    given, before = case(42, **SMALL[0])
    want = run(given, before, impl)
    order = (
        "token_x w_dq w_uq_qr dequant_scale w_uk w_dkv_kr gamma_cq gamma_ckv cos sin cache_index "
        "kv_cache kr_cache k_scale_cache"
    ).split()
    args = {**given, **{k: v.copy() for k, v in before.items()}}
    got = operator(NAME, impl)(
        *(args[n] for n in order),
        epsilon_cq=1e-5,
        epsilon_ckv=1e-5,
        cache_mode="PA_BSND",
        tile_config=None,
        rope_cfg=None,
        level="portable",
    )
    for name, value in zip(RESULTS, got):
        assert_same(value, want[name], name)
    args.update({k: v.copy() for k, v in before.items()}, dequant_scale=given["dequant_scale"].reshape(1, -1))
    for name, value in zip(RESULTS, operator(NAME, impl)(**args)):
        assert_same(value, want[name], f"{name} with the scale as a row")


@both
def test_epsilon_counts(impl):
    given, before = case(43, **SMALL[1])
    given = dict(given, epsilon_cq=0.5, epsilon_ckv=2)
    judge_mla_prolog(given, run(given, before, impl), before)


@both
def test_torch_in_torch_out(impl):
    torch = pytest.importorskip("torch")
    for quantised in (True, False):
        given, before = case(44, **SMALL[0], quantised=quantised)
        want, got = run(given, before, impl), run(given, before, impl, convert=to_torch)
        for name in RESULTS:
            if want[name] is not None:
                assert_same(got[name], want[name], name)
    parameters = {
        k: torch.nn.Parameter(to_torch(v)) if k.startswith("gamma") else to_torch(v) for k, v in given.items()
    }
    nope = operator(NAME, impl)(**parameters, **{k: to_torch(v) for k, v in before.items()})[2]
    assert isinstance(nope, torch.Tensor) and not nope.requires_grad
    assert_same(to_numpy(nope), want["query_nope"])


@both
@pytest.mark.parametrize("quantised", [True, False], ids=["int8", "bf16"])
def test_corner_rows(quantised, impl):
    """A zero token, tiny and huge tokens, zero and negative gammas, a whole zero tile."""
    given, before = case(45, **dict(SMALL[0], blocks=4), quantised=quantised)
    given = {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in given.items()}
    given["cache_index"] = np.arange(6, dtype=np.int64)[::-1].copy()
    x = given["token_x"]
    x[0], x[1], x[2], x[3] = 0, x[1] * BF16(1e-30), x[2] * BF16(1e15), x[3] * BF16(0)
    x[3, 5] = 1
    given["gamma_ckv"][:8], given["gamma_ckv"][8] = 0, -2
    got = run(given, before, impl)
    judge_mla_prolog(given, got, before)
    assert (
        not got["query_nope"][0].astype(F).any()
        and not got["q_norm"][0].astype(F).any()
        and not got["kv_cache"].reshape(-1, 32)[5].astype(F).any()
    )
    if quantised:
        assert got["q_norm_scale"][0] == 0 and not got["k_scale_cache"].reshape(-1, 4)[5].any()
        assert not got["k_scale_cache"].reshape(-1, 4)[:6, 0].any()


@both
def test_nan_stays_in_its_token(impl):
    given, before = case(46, **SMALL[0])
    want = run(given, before, impl)
    spoilt = dict(given, token_x=given["token_x"].copy())
    spoilt["token_x"][2, 7] = np.nan
    got, again = run(spoilt, before, impl), run(spoilt, before, impl)
    others = [r for r in range(6) if r != 2]
    for name in RESULTS[:4]:
        assert_same(got[name][others], want[name][others], name)
        assert got[name].tobytes() == again[name].tobytes()


@both
def test_nothing_to_do(impl):
    given, before = case(47, **SMALL[0])
    none = dict(given, **{n: given[n][:0] for n in ("token_x", "cos", "sin", "cache_index")})
    got = run(none, before, impl)
    assert (
        got["q_norm"].shape == (0, 48)
        and got["query_nope"].shape == (0, 3, 32)
        and got["query_rope"].shape == (0, 3, 8)
    )
    for name in before:
        assert_same(got[name], before[name], name)
    empty = {k: v[:0].copy() for k, v in before.items()}
    want, got = run(given, before, impl), run(given, empty, impl)
    for name in RESULTS[:4]:
        assert_same(got[name], want[name], name)


@both
def test_static_micro_examples(impl):
    """E8 through identity weights, E4 on the key: cache row and rotated row of one token."""
    eye = np.eye(4, dtype=BF16)
    given = dict(
        token_x=np.array([[1, -2, 2, 4]], BF16),
        w_dq=eye,
        w_uq_qr=np.zeros((4, 5), BF16),
        dequant_scale=None,
        w_uk=np.zeros((1, 1, 4), BF16),
        w_dkv_kr=np.concatenate([eye, np.array([[1, 2, 3, 4]] + [[0] * 4] * 3, BF16)], axis=1),
        gamma_cq=np.array([1, 0.5, 1, 2], BF16),
        gamma_ckv=np.array([1, 0.5, 1, 2], BF16),
        cos=np.array([[0.5, 0.25, 1, 2]], BF16),
        sin=np.array([[1, 0.5, 0.125, 0.75]], BF16),
        cache_index=np.array([1]),
    )
    before = dict(kv_cache=np.zeros((1, 2, 1, 4), BF16), kr_cache=np.zeros((1, 2, 1, 4), BF16))
    got = run(given, before, impl)
    assert got["q_norm"].view(np.uint16).tolist() == [[0x3ECD, 0xBECD, 0x3F4D, 0x404D]]
    assert got["kv_cache"].view(np.uint16)[0, :, 0].tolist() == [[0] * 4, [0x3ECD, 0xBECD, 0x3F4D, 0x404D]]
    assert got["kr_cache"].view(np.uint16)[0, 1, 0].tolist() == [0xBFC0, 0xBFA0, 0x4008, 0x4124]


def longer(array, axis):
    return np.concatenate([array, array.take([0], axis=axis)], axis=axis)


def put(**changes):
    return lambda a: a.update({k: v(a[k]) if callable(v) else v for k, v in changes.items()})


def index(at, value):
    def change(a):
        a["cache_index"][at] = value
        return f"[{at}]"

    return change


def overlap(a):
    buffer = np.zeros((3, 5, 1, 8 + 32), BF16)
    a.update(kv_cache=buffer[..., :32], kr_cache=buffer[..., 28:36])


def partly(a):
    buffer = np.zeros(3 * 5 * 32 + 32, a["kv_cache"].dtype)
    shape = a["kv_cache"].shape
    a.update(kv_cache=buffer[:-32].reshape(shape), kv_cache_out=buffer[32:].reshape(shape))


def frozen(a):
    a["kv_cache"].setflags(write=False)


def out_over_input(a):
    a["q_norm_out"] = a["w_uq_qr"].reshape(-1)[: 6 * 48].reshape(6, 48)


SHAPES = {
    "w_dq": 1,
    "w_uq_qr": 1,
    "w_uk": 0,
    "w_dkv_kr": 0,
    "gamma_cq": 0,
    "gamma_ckv": 0,
    "cos": 0,
    "sin": 1,
    "cache_index": 0,
    "kv_cache": 3,
    "kr_cache": 1,
    "k_scale_cache": 1,
    "dequant_scale": 0,
}
REFUSED = {
    "slot past the end": (index(4, 15), "INVALID_SLOT", "cache_index"),
    "slot far past the end": (index(2, 2**62), "INVALID_SLOT", "cache_index"),
    "index int32": (put(cache_index=lambda v: v.astype(np.int32)), "INVALID_DTYPE", "cache_index"),
    "cache_mode PA_NZ": (put(cache_mode="PA_NZ"), {"UNSUPPORTED", "INVALID_ARGUMENT"}, "cache_mode"),
    "cache_mode unknown": (put(cache_mode="PA"), "INVALID_ARGUMENT", "cache_mode"),
    "groups do not divide": (
        put(k_scale_cache=np.zeros((3, 5, 1, 5), F)),
        "INVALID_SHAPE",
        {"k_scale_cache", "kv_cache"},
    ),
    "scale cache missing": (put(k_scale_cache=None), "INVALID_ARGUMENT", "k_scale_cache"),
    "kv_cache bf16": (put(kv_cache=np.zeros((3, 5, 1, 32), BF16)), "INVALID_DTYPE", "kv_cache"),
    "kr_cache int8": (put(kr_cache=np.zeros((3, 5, 1, 8), np.int8)), "INVALID_DTYPE", "kr_cache"),
    "w_uq_qr bf16": (put(w_uq_qr=lambda v: v.astype(BF16)), "INVALID_DTYPE", "w_uq_qr"),
    "token_x fp32": (put(token_x=lambda v: v.astype(F)), "INVALID_DTYPE", "token_x"),
    "gamma fp16": (put(gamma_cq=lambda v: v.astype(np.float16)), "INVALID_DTYPE", "gamma_cq"),
    "scale bf16": (put(dequant_scale=lambda v: v.astype(BF16)), "INVALID_DTYPE", "dequant_scale"),
    "token_x missing": (put(token_x=None), "INVALID_ARGUMENT", "token_x"),
    "gamma missing": (put(gamma_ckv=None), "INVALID_ARGUMENT", "gamma_ckv"),
    "epsilon 0": (put(epsilon_cq=0.0), "INVALID_ARGUMENT", "epsilon_cq"),
    "epsilon nan": (put(epsilon_ckv=float("nan")), "INVALID_ARGUMENT", "epsilon_ckv"),
    "epsilon inf": (put(epsilon_ckv=float("inf")), "INVALID_ARGUMENT", "epsilon_ckv"),
    "rank-4 weight that is no NZ": (put(w_dq=np.zeros((3, 5, 16, 16), BF16)), "INVALID_SHAPE", "w_dq"),
    "read-only cache": (frozen, "INVALID_DEVICE", "kv_cache"),
    "output over an input": (out_over_input, "ALIASED", {"q_norm_out", "w_uq_qr", "q_norm"}),
    "kv_cache_out partly over kv_cache": (partly, "ALIASED", {"kv_cache_out", "kv_cache"}),
    "strict sizes": (put(level="strict"), "UNSUPPORTED", None),
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
    outs = dict(q_norm_out=np.zeros((6, 48), np.int8), query_nope_out=np.zeros((6, 3, 32), BF16))
    args.update(outs)
    position = change(args)
    guards = [v for v in args.values() if isinstance(v, np.ndarray)]
    refused(lambda: operator(NAME, impl)(**args), NAME, status, parameter or set(args), position, guards)


@both
def test_refused_in_bf16_mode(impl):
    given, before = case(51, **SMALL[0], quantised=False)
    args = {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in dict(given, **before).items()}
    overlap(args)
    guards = [args["kv_cache"], args["kr_cache"]]
    refused(lambda: operator(NAME, impl)(**args), NAME, "ALIASED", {"kv_cache", "kr_cache"}, guards=guards)
    args = {**given, **before, "w_uq_qr": given["w_uq_qr"].astype(np.int8)}
    refused(
        lambda: operator(NAME, impl)(**args), NAME, {"INVALID_DTYPE", "INVALID_ARGUMENT"}, {"w_uq_qr", "dequant_scale"}
    )
