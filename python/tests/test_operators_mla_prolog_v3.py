# SPDX-License-Identifier: Apache-2.0
import functools
import itertools
import warnings

import numpy as np
import pytest

import dsakit
from oracle.cases import BF16, F, generator, uniform
from oracle.harness import assert_same, both, operator, per_thread_count, refused, seeds, to_numpy, to_torch
from oracle.layouts import to_nz
from oracle.mla_prolog_v3 import (
    MODES,
    RESERVED,
    RESULTS,
    ROWS,
    judge_mla_prolog_v3,
    logical_rows,
    split_rows,
)
from oracle.mla_prolog_v3_cases import mla_prolog_v3
from oracle.rounding import bf16

NAME = "mla_prolog_v3"
WEIGHTS = ("weight_dq", "weight_uq_qr", "weight_dkv_kr")
ORDER = (
    "token_x weight_dq weight_uq_qr weight_uk weight_dkv_kr rmsnorm_gamma_cq rmsnorm_gamma_ckv rope_sin rope_cos "
    "kv_cache kr_cache"
).split()
every_row = pytest.mark.parametrize("row", ROWS)
TINY = dict(he=24, hcq=20, n=2, d=6, dr=32, latent=32, tile=16)
case = functools.lru_cache(None)(mla_prolog_v3)


def copy(args, convert=lambda v: v):
    return {k: convert(v.copy()) if isinstance(v, np.ndarray) else v for k, v in args.items()}


def run(given, before, impl="fast", convert=lambda v: v, **more):
    """Results and caches by name as numpy arrays; the caches of `before` are not touched."""
    args = copy({**given, **before}, convert) | more
    results = operator(NAME, impl)(**args)
    assert len(results) == 5
    got = dict(zip(RESULTS, results)) | {name: args[name] for name in before}
    return {name: to_numpy(v) for name, v in got.items()}


def assert_results(got, want, names=(*RESULTS, "kv_cache", "kr_cache"), what=""):
    for name in names:
        assert_same(got[name], want[name], f"{what} {name}")


def random_size(rng):
    c = lambda *options: int(rng.choice(options))
    tile = c(16, 32, 48)
    return dict(
        lengths=tuple(int(v) for v in rng.integers(0, 8, c(1, 2, 4))),
        he=c(1, 7, 63, 64, 130, 257),
        hcq=c(1, 5, 33, 64, 100),
        n=c(1, 2, 5),
        d=c(1, 3, 16, 33),
        dr=c(32, 64),
        latent=tile * 2 * c(1, 2, 3),
        tile=tile,
        block_size=c(1, 3, 4, 16),
        spare=c(0, 1, 3),
    )


def random_options(rng, row):
    """Correction factors, smoothing, clipping, epsilons."""
    pick = lambda *options: options[rng.integers(len(options))]
    more = dict(
        smooth=ROWS[row].weights_int8 and bool(rng.integers(2)),
        random_rope=bool(rng.integers(2)),
        qc_qr_scale=pick(1.0, 1, 10.0, -0.37, 1 + 2.0**-24),
        kc_scale=pick(1.0, 10.0, 0.011, 1 - 2.0**-24),
        rmsnorm_epsilon_cq=pick(1e-5, 1e-6, 0.25),
        rmsnorm_epsilon_ckv=pick(1e-5, 1),
    )
    if ROWS[row].packed:
        more["k_nope_clip_alpha"] = np.array([pick(1, 0.5, 0.93, 1.7)], F)
    return more


def random_case(seed):
    rng = generator(seed + 10**6)
    row = seed % 7 + 1
    mode = ROWS[row].cache_modes[rng.integers(len(ROWS[row].cache_modes))]
    batched = mode == "BSND" or (mode != "TND" and bool(rng.integers(2)))
    exact = bool(rng.integers(2))
    return row, exact, mla_prolog_v3(
        seed, row, cache_mode=mode, batched=batched, exact=exact, **random_size(rng), **random_options(rng, row)
    )  # fmt: skip


FORMS = [
    (row, mode, batched)
    for row in ROWS
    for mode in ROWS[row].cache_modes
    for batched in ((True,) if mode == "BSND" else (False,) if mode == "TND" else (False, True))
]


@both
@pytest.mark.parametrize("row, mode, batched", FORMS)
def test_rows_and_cache_modes(row, mode, batched, impl):
    given, before = case(100 * row + batched, row, cache_mode=mode, batched=batched)
    judge_mla_prolog_v3(ROWS[row], given, run(given, before, impl), before)


@both
@seeds(56, 1000)
def test_random(seed, impl):
    row, exact, (given, before) = random_case(seed)
    judge_mla_prolog_v3(ROWS[row], given, run(given, before, impl), before, exact)


@both
@pytest.mark.parametrize("size, row", [("v32", 1), ("v32", 6), ("v32", 7), ("glm", 2), ("glm", 4), ("glm", 5)])
def test_model_heads(size, row, impl):
    sizes = dict(v32=dict(n=128, d=128), glm=dict(n=64, d=192))[size]
    given, before = case(70 + row, row, lengths=(1,), he=128, hcq=64, dr=64, latent=512, tile=128, **sizes)
    judge_mla_prolog_v3(ROWS[row], given, run(given, before, impl), before)


@both
@every_row
def test_query_norm_flag_changes_nothing_else(row, impl):
    given, before = case(row, row, **TINY)
    want, got = run(given, before, impl), run(dict(given, query_norm_flag=False), before, impl)
    assert_results(got, want, ("query", "query_rope", "dequant_scale_q_nope", "kv_cache", "kr_cache"))
    for name in RESULTS[3:]:
        assert got[name].shape == (0,) and got[name].dtype == want[name].dtype


@both
@every_row
def test_paths_give_the_same_bits(row, impl):
    """NZ blocks hold the rows that plain blocks hold; folded and unfolded tokens, and every way to name a slot, agree."""
    given, before = case(row, row, lengths=(6, 6), batched=True, **TINY)
    want = run(given, before, impl)
    rows = {name: logical_rows(want[name], "PA_BSND") for name in before if before[name].size}
    flat = lambda v: v.reshape(12, *v.shape[2:])
    folded = {k: flat(v) if k.startswith(("token_x", "rope")) else v for k, v in given.items()}
    got = run(dict(folded, cache_index=given["cache_index"].reshape(-1)), before, impl)
    for name in RESULTS:
        assert got[name].tobytes() == want[name].tobytes(), name
    assert_results(got, want, tuple(before))
    if not ROWS[row].packed:
        got = run(dict(given, cache_mode="PA_NZ"), before, impl)
        assert_results(got, want, RESULTS)
        named = [s for s in given["cache_index"].reshape(-1) if s >= 0]
        for name in rows:
            assert_same(logical_rows(got[name], "PA_NZ")[named], rows[name][named], name)
    index = np.arange(12)[::-1].reshape(2, 6).copy()  # reversed, then one row per token without an index
    want = run(dict(given, cache_index=index), before, impl)
    del (plain := dict(given, cache_mode="BSND"))["cache_index"]
    alone = {k: np.zeros((2, 6, *v.shape[2:]), v.dtype) if v.size else v for k, v in before.items()}
    got = run(plain, alone, impl)
    assert_results(got, want, RESULTS)
    for name in rows:
        assert_same(logical_rows(got[name], "BSND"), logical_rows(want[name], "PA_BSND")[index.reshape(-1)], name)


@both
@every_row
def test_weight_formats_give_the_same_bits(row, impl):
    given, before = case(10 + row, row, lengths=(4,), **TINY)
    want = run(given, before, impl)
    nz = {n: to_nz(given[n], padding=77) for n in WEIGHTS}
    forms = dict(
        nz=nz,
        packed={n: dsakit.pack_weight(given[n]) for n in WEIGHTS},
        packed_nz={n: dsakit.pack_weight(nz[n], format="NZ", shape=given[n].shape) for n in WEIGHTS},
        packed_uk=dict(weight_uk=dsakit.pack_weight(given["weight_uk"])),
        tagged={n: dsakit.format_cast(given[n], 29) for n in WEIGHTS},
        mixed=dict(weight_dq=nz["weight_dq"], weight_uq_qr=dsakit.pack_weight(given["weight_uq_qr"])),
    )
    for form, weights in forms.items():
        assert_results(run(given, before, impl, **weights), want, what=form)


@every_row
def test_threads_and_token_splits_give_the_same_bits(row):
    given, before = case(20 + row, row, lengths=(9,), he=130, hcq=64, n=5, d=17, dr=16, latent=64, tile=16, spare=3)
    first, *others = per_thread_count(lambda: run(given, before), (1, 2, 7, 16))
    for other in others:
        assert_results(other, first)
    for cuts in ((slice(0, 1), slice(1, 4), slice(4, 9)), [slice(t, t + 1) for t in range(9)]):
        caches, parts = before, []
        for cut in cuts:
            names = ("token_x", "rope_sin", "rope_cos", "cache_index", "dequant_scale_x")
            part = {k: v[cut] if k in names else v for k, v in given.items()}
            got = run(part, caches)
            caches = {k: got[k] for k in caches}
            parts.append(got)
        for name in RESULTS:
            if first[name].size:
                assert_same(np.concatenate([p[name] for p in parts]), first[name], name)
        assert_results(caches, first, tuple(before))


@both
@every_row
def test_functional(row, impl):
    given, before = case(30 + row, row, **TINY)
    want, args = run(given, before, impl), copy({**given, **before})
    results = operator("mla_prolog_v3_functional", impl)(**args)
    assert len(results) == 7
    assert_results(dict(zip((*RESULTS, "kv_cache", "kr_cache"), results)), want)
    for name, value in {**given, **before}.items():
        if isinstance(value, np.ndarray):
            assert_same(args[name], value, name)


def v2_arguments(row, given, before):
    """The same call in the older form."""
    drop = (*MODES, "query_norm_flag", "tile_size", "qc_qr_scale", "kc_scale")
    args = {k: v for k, v in copy({**given, **before}).items() if k not in drop}
    if row == 6:
        args["quant_scale_ckv"] = np.full((1, given["rmsnorm_gamma_ckv"].shape[0]), given["quant_scale_ckv"][0], F)
    return args


@both
@pytest.mark.parametrize("row", [1, 2, 3, 5, 6])
@pytest.mark.parametrize("mode", ["PA_BSND", "PA_NZ"])
def test_v2(mode, row, impl):
    for batched in (False, True):
        given, before = case(40 + row, row, lengths=(4, 4), batched=batched, cache_mode=mode, **TINY)
        want, args = run(given, before, impl), v2_arguments(row, given, before)
        order = [*ORDER[:9], "cache_index", *ORDER[9:]]
        query, query_rope, kv, kr, scale = operator("mla_prolog_v2", impl)(
            *(args[n] for n in order), **{k: v for k, v in args.items() if k not in order}
        )
        assert kv is args["kv_cache"] and kr is args["kr_cache"]
        got = dict(query=query, query_rope=query_rope, kv_cache=kv, kr_cache=kr, dequant_scale_q_nope=scale)
        if row != 6:
            assert_same(scale, np.zeros(1, F), "dequant_scale_q_nope")
            del got["dequant_scale_q_nope"]
        assert_results(got, want, tuple(got))


@both
def test_v2_refused(impl):
    given, before = case(46, 6, lengths=(4,), **TINY)
    refuse = lambda args, status, parameter: refused(
        lambda: operator("mla_prolog_v2", impl)(**args), "mla_prolog_v2", status, parameter,
        guards=[v for v in args.values() if isinstance(v, np.ndarray)],
    )  # fmt: skip
    args = v2_arguments(6, given, before)
    args["quant_scale_ckv"][0, 5] *= 2
    refuse(args, {"INVALID_ARGUMENT", "INVALID_VALUE"}, "quant_scale_ckv")
    args = v2_arguments(6, given, before)
    refuse(dict(args, cache_mode="TND"), "INVALID_ARGUMENT", "cache_mode")
    refuse(dict(args, cache_index=None), "INVALID_ARGUMENT", "cache_index")
    refuse(dict(args, token_x=args["token_x"].astype(BF16)), {"INVALID_DTYPE", "INVALID_ARGUMENT"}, set(args))
    assert_same(operator("mla_prolog_v2", impl)(**dict(args, quant_scale_ckv=given["quant_scale_ckv"]))[0],
                run(given, before, impl)["query"])  # fmt: skip


@both
@every_row
def test_views_of_one_buffer(row, impl):
    """Interleaved rows that share no element, slots and pages further apart than they are long."""
    given, before = case(50 + row, row, **TINY)
    want = run(given, before, impl)
    blocks, size = before["kv_cache"].shape[:2]
    widths = [v.shape[-1] if v.size else 0 for v in before.values()]
    bytes_each = [w * v.itemsize for w, v in zip(widths, before.values())]
    buffer = np.full((blocks, size + 2, 1, sum(bytes_each) + 32), 85, np.int8)
    views, first = {}, 0
    for (name, value), width in zip(before.items(), bytes_each):
        views[name] = buffer[:, :size, :, first : first + width].view(value.dtype) if width else value.copy()
        views[name][...] = value
        first += width
    operator(NAME, impl)(**given, **views)
    for name, view in views.items():
        assert_same(np.ascontiguousarray(view), want[name], name)
    assert (buffer[:, size:] == 85).all() and (buffer[..., first:] == 85).all()


@both
@pytest.mark.parametrize("row", [1, 3, 6])
def test_nz_pages_apart(row, impl):
    given, before = case(60 + row, row, cache_mode="PA_NZ", **TINY)
    want, views = run(given, before, impl), {}
    for name, value in before.items():
        views[name] = np.zeros((2 * len(value), *value.shape[1:]), value.dtype)[::2]
        views[name][...] = value
    operator(NAME, impl)(**given, **views)
    for name, view in views.items():
        assert_same(np.ascontiguousarray(view), want[name], name)


@both
@pytest.mark.parametrize("row", [1, 4])
def test_slots_behind_2_to_the_31(row, impl):
    given, before = case(65 + row, row, lengths=(2,), **TINY)
    want = run(dict(given, cache_index=np.array([6, 3])), before, impl)
    size, width = before["kv_cache"].shape[1], before["kv_cache"].shape[-1]
    blocks = 2**31 // (size * width) + 2
    far = {"kv_cache": np.zeros((blocks, size, 1, width), before["kv_cache"].dtype), "kr_cache": before["kr_cache"]}
    if row == 1:
        far["kr_cache"] = np.zeros((blocks, size, 1, before["kr_cache"].shape[-1]), BF16)
    last = blocks * size
    args = copy(given) | dict(cache_index=np.array([last - 1, 3])) | far
    operator(NAME, impl)(**args)
    for name, cache in far.items():
        if cache.size:
            assert_same(cache[-1, -1, 0], want[name].reshape(-1, cache.shape[-1])[6], name)
            assert_same(cache[0, 3, 0], want[name].reshape(-1, cache.shape[-1])[3], name)


@both
@every_row
def test_positional_order_and_torch(row, impl):
    torch = pytest.importorskip("torch")
    given, before = case(70 + row, row, **TINY)
    want, args = run(given, before, impl), copy({**given, **before})
    first = [args.pop(n) for n in ORDER]
    results = operator(NAME, impl)(*first, **args)
    assert_results(dict(zip(RESULTS, results)), want, RESULTS)
    assert_results(run(given, before, impl, convert=to_torch), want)
    args = {k: to_torch(v) if isinstance(v, np.ndarray) else v for k, v in {**given, **before}.items()}
    args["rmsnorm_gamma_cq"] = torch.nn.Parameter(args["rmsnorm_gamma_cq"])
    query = operator(NAME, impl)(**args)[0]
    assert isinstance(query, torch.Tensor) and not query.requires_grad
    assert_same(to_numpy(query), want["query"])
    if "actual_seq_len" in given:
        assert_results(run(given, before, impl, actual_seq_len=given["actual_seq_len"].tolist()), want)


@both
@every_row
def test_corner_rows(row, impl):
    """Zero, tiny, huge and one-hot tokens; zero, negative and tiny gammas; a whole zero tile; a zero head."""
    given, before = case(80 + row, row, lengths=(6,), **TINY)
    given, r = copy(given), ROWS[row]
    given["cache_index"] = np.arange(6)[::-1].copy()
    x = given["token_x"]
    if r.int8_tokens:
        x[0], x[3] = 0, 0
        given["dequant_scale_x"][1], given["dequant_scale_x"][2] = 1e-30, 1e15
    else:
        x[0], x[1], x[2], x[3] = 0, x[1] * BF16(1e-30), x[2] * BF16(1e15), x[3] * BF16(0)
    x[3, 5] = 1
    given["rmsnorm_gamma_ckv"][:16], given["rmsnorm_gamma_ckv"][16] = 0, -2
    given["weight_uk"][1] = 0
    got = run(given, before, impl)
    judge_mla_prolog_v3(r, given, got, before)
    zero = lambda v: not v.astype(F).any()
    if r.packed:  # as numbers: a zero of the rope may have a sign
        parts = split_rows(logical_rows(got["kv_cache"], "PA_BSND"), 32, 32)
        got["kv_cache"] = np.concatenate([v.astype(F) for v in parts], axis=1)[:, None]
    assert zero(got["query"][0]) and zero(got["query_rope"][0]) and zero(got["query_norm"][0])
    assert zero(logical_rows(got["kv_cache"], "PA_BSND")[5]) and zero(got["query"][:, 1])
    if r.weights_int8:
        assert got["dequant_scale_q_norm"][0] == 0
    if r.int8_query:
        assert zero(got["dequant_scale_q_nope"][:, 1]) and zero(got["query_rope"][:, 1])


@both
@every_row
@pytest.mark.parametrize("size", [1e-39, 1e-37, 1e-30, 1e30])
def test_magnitudes(size, row, impl):
    """Groups whose maximum is near the ends of fp32; products of what stays finite."""
    given, before = case(90 + row, row, lengths=(4,), **TINY)
    given = copy(given)
    for gamma in ("rmsnorm_gamma_cq", "rmsnorm_gamma_ckv"):
        given[gamma] = (given[gamma].astype(F) * F(size)).astype(BF16)
    if not ROWS[row].weights_int8 and size < 1e-30:
        return  # products of such bf16 numbers are the arithmetic's own
    got = run(given, before, impl)
    judge_mla_prolog_v3(ROWS[row], given, got, before, rationed=size > 1e-30)
    if ROWS[row].weights_int8 and size == 1e-39:
        assert not got["query_norm"].any() and not got["dequant_scale_q_norm"].any()


@both
@every_row
def test_nan_stays_in_its_token(row, impl):
    given, before = case(100 + row, row, lengths=(6,), **TINY)
    want, spoilt = run(given, before, impl), copy(given)
    spoilt["dequant_scale_x" if ROWS[row].int8_tokens else "token_x"][2, 0] = np.nan
    got, again = run(spoilt, before, impl), run(spoilt, before, impl)
    others = [t for t in range(6) if t != 2]
    for name in RESULTS:
        if want[name].size:
            assert_same(got[name][others], want[name][others], name)
        assert got[name].tobytes() == again[name].tobytes()
    if ROWS[row].weights_int8:
        assert not got["query_norm"][2].any()


@both
@every_row
def test_nothing_to_do(row, impl):
    given, before = case(110 + row, row, lengths=(6,), **TINY)
    want, r = run(given, before, impl), ROWS[row]
    names = ("token_x", "rope_sin", "rope_cos", "cache_index", "dequant_scale_x")
    got = run({k: v[:0] if k in names else v for k, v in given.items()}, before, impl)
    assert got["query"].shape == (0, 2, 32) and got["query_rope"].shape == (0, 2, 32)
    assert got["query_norm"].shape == (0, 20)
    assert got["dequant_scale_q_nope"].shape == ((0, 2, 1) if r.int8_query else (0,))
    assert_results(got, before, tuple(before))
    empty = {k: v[:0] for k, v in before.items()}  # no pages: nothing is stored, the index is not looked at
    got = run(dict(given, cache_index=np.full(6, 2**62)), empty, impl)
    assert_results(got, want, RESULTS)
    got = run(dict(given, cache_index=np.full(6, -5)), before, impl)
    assert_results(got, want, RESULTS)
    assert_results(got, before, tuple(before))


@both
@pytest.mark.parametrize("mode", ["TND", "BSND"])
def test_caches_without_rows(mode, impl):
    """Only the query is wanted: fine unless strict."""
    batched = mode == "BSND"
    given, before = case(118, 2, lengths=(3, 3), batched=batched, cache_mode=mode, **TINY)
    want = run(given, before, impl)
    empty = {k: np.zeros((0, *v.shape[1:]), v.dtype) for k, v in before.items()}
    assert_results(run(given, empty, impl), want, RESULTS)
    none = {k: v[:0] if k in ("token_x", "rope_sin", "rope_cos") else v for k, v in given.items()}
    assert run(none, empty, impl)["query"].shape == ((0, 3, 2, 32) if batched else (0, 2, 32))


@both
def test_pages_that_no_sequence_needs(impl):
    """Entries behind the needed ones are not looked at; a page named twice belongs to the later tokens."""
    given, before = case(119, 1, cache_mode="PA_BLK_BSND", lengths=(7, 0, 5), **TINY)
    want = run(given, before, impl)
    more = np.concatenate([given["cache_index"], [2**62, -1, 0]])
    assert_results(run(dict(given, cache_index=more), before, impl), want)
    for index in ([1, 2, 1], [2, 2, 0], [-1, 4, 4]):
        again = dict(given, cache_index=np.array(index))
        judge_mla_prolog_v3(ROWS[1], again, run(again, before, impl), before)


@both
def test_worked_examples(impl):
    """E3, E4, E7 and E8 through identity weights: cache rows of one token."""
    eye = np.eye(4, dtype=BF16)
    given = dict(
        token_x=np.array([[1, -2, 2, 4]], BF16),
        weight_dq=eye,
        weight_uq_qr=np.zeros((4, 5), BF16),
        weight_uk=np.zeros((1, 1, 4), BF16),
        weight_dkv_kr=np.concatenate([eye, np.array([[1, 2, 3, 4]] + [[0] * 4] * 3, BF16)], axis=1),
        rmsnorm_gamma_cq=np.array([1, 0.5, 1, 2], BF16),
        rmsnorm_gamma_ckv=np.array([1, 0.5, 1, 2], BF16),
        rope_cos=np.array([[0.5, 0.25, 1, 2]], BF16),
        rope_sin=np.array([[1, 0.5, 0.125, 0.75]], BF16),
        cache_index=np.array([1]),
        query_norm_flag=True,
    )
    before = dict(kv_cache=np.zeros((1, 2, 1, 4), BF16), kr_cache=np.zeros((1, 2, 1, 4), BF16))
    bits = lambda v: v.view(np.uint16).reshape(-1, 4).tolist()
    normed, rotated = [0x3ECD, 0xBECD, 0x3F4D, 0x404D], [0xBFC0, 0xBFA0, 0x4008, 0x4124]
    got = run(given, before, impl)
    assert bits(got["query_norm"]) == [normed] and bits(got["kv_cache"]) == [[0] * 4, normed]
    assert bits(got["kr_cache"])[1] == rotated
    # E3: eps so that r = 4 and gamma 16 give the latent 4, -1.5, 0.75, -2
    tiles = dict(
        given | ROWS[4].arguments,
        token_x=np.array([[1, -0.375, 0.1875, -0.5]], BF16),
        weight_uq_qr=np.zeros((4, 5), np.int8),
        dequant_scale_w_uq_qr=np.zeros((1, 5), F),
        rmsnorm_gamma_ckv=np.full(4, 16, BF16),
        rmsnorm_epsilon_ckv=16 - (1 + 0.375**2 + 0.1875**2 + 0.25) / 4,
        k_nope_clip_alpha=np.array([0.5], F),
        tile_size=4,
    )
    row = run(tiles, dict(kv_cache=np.zeros((1, 2, 1, 16), np.int8), kr_cache=np.zeros(0, BF16)), impl)["kv_cache"][
        0, 1, 0
    ]
    assert row[:4].tolist() == [127, -95, 48, -127] and row[12:].view(np.uint32).tolist() == [0x3C810204]
    assert row[4:12].view(np.uint16).tolist() == rotated  # E4, from the same first column


@both
def test_static_codes_saturate(impl):
    """E9 and R6: full scales reach -128, scale 0 gives 0, the query's rope is rescaled (E10)."""
    given, before = case(121, 6, lengths=(5,), **TINY)
    for scale in (1e6, 0.0, -3.0):
        more = copy(given) | dict(quant_scale_ckv=np.array([scale], F), cache_index=np.arange(5))
        got = run(more, before, impl)
        judge_mla_prolog_v3(ROWS[6], more, got, before)
        stored = got["kv_cache"].reshape(-1, 32)[:5]
        if scale == 1e6:
            assert set(np.unique(stored)) == {-128, 127}
        if scale == 0:
            assert not stored.any() and not got["query_rope"].astype(F).any()


DEVICE = dict(lengths=(3,), he=1024, hcq=1536, n=1, d=128, dr=64, latent=512, tile=128, block_size=16)


def strict_call(row, **more):
    """The smallest sizes of the devices, weights in their format."""
    given, before = case(200 + row, row, **DEVICE)
    given = copy(given) | dict(level="strict") | more
    return given | {n: dsakit.format_cast(given[n], 29) for n in WEIGHTS}, before


@both
@every_row
def test_strict_gives_the_same_bits(row, impl):
    given, before = strict_call(row)
    want = run(given, before, impl)
    plain, _ = case(200 + row, row, **DEVICE)
    assert_results(run(plain, before, impl), want)
    if row in (4, 6):
        judge_mla_prolog_v3(ROWS[row], plain, want, before)


@both
def test_the_documented_call(impl):
    """The published per-tile call: no clip factor, the channel scales of the key as an unused scale, one buffer as both
    caches, a keyword of another version."""
    strict, before = strict_call(7)
    want = run(strict, before, impl)
    given = {k: v for k, v in strict.items() if k not in ("level", "k_nope_clip_alpha")}
    cache = before["kv_cache"].copy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = operator(NAME, impl)(
            **given,
            kv_cache=cache,
            kr_cache=cache,
            quant_scale_ckv=given["dequant_scale_w_dkv_kr"][:, :512].copy(),
            quant_scale_ckr=None,
            actual_seq_len=None,
            k_nope_clip_alpha=None,
            k_pe_clip_alpha=None,
            qc_qr_scale=1.0,
            kc_scale=1.0,
        )
    assert_results(dict(zip(RESULTS, results), kv_cache=cache), want, (*RESULTS, "kv_cache"))
    before = dict(before, kv_cache=np.zeros((2, 16, 1, 576), BF16))
    error = refused(lambda: run(given, before, impl), NAME, {"INVALID_DTYPE", "INVALID_SHAPE"}, "kv_cache")
    assert "pack_kv_rows" in str(error)
    tokens = dict(given, token_x=np.zeros((3, 1024), BF16))
    error = refused(
        lambda: run(tokens, strict_call(7)[1], impl), NAME, {"INVALID_DTYPE", "INVALID_ARGUMENT"}, "token_x"
    )
    assert "dynamic_quant" in str(error)


TOLERATED = {
    "T1": (7, dict(k_nope_clip_alpha=None)),
    "T2": (7, dict(quant_scale_ckv=np.ones((1, 32), F))),
    "T3 none": (4, dict(kr_cache=None)),
    "T3 int8": (4, dict(kr_cache=np.zeros((0, 5), np.int8))),
    "T3 the same": (7, dict(kr_cache=lambda a: a["kv_cache"])),
    "T4": (1, dict(k_pe_clip_alpha=None)),
    "T5 scale": (1, dict(dequant_scale_x=np.zeros((0, 1), F))),
    "T5 smooth": (1, dict(smooth_scales_cq=np.zeros(0, F))),
    "T5 index": (2, dict(quant_scale_ckv=np.zeros((1, 0), F))),
    "T6 [X]": (5, {n: lambda a, n=n: a[n].reshape(-1) for n in ("dequant_scale_w_dq", "dequant_scale_w_uq_qr")}),
    "T6 [X,1]": (3, {n: lambda a, n=n: a[n].reshape(-1, 1) for n in ("quant_scale_ckv", "quant_scale_ckr")}),
    "T6 [T]": (6, dict(dequant_scale_x=lambda a: a["dequant_scale_x"].reshape(-1))),
    "T6 [1,1]": (6, dict(quant_scale_ckv=lambda a: a["quant_scale_ckv"].reshape(1, 1))),
    "T6 alpha": (7, dict(k_nope_clip_alpha=lambda a: a["k_nope_clip_alpha"].reshape(1, 1))),
}


def strict_blocks():
    return dict(cache_mode="PA_BLK_BSND", actual_seq_len=np.array([3], np.int32), cache_index=np.array([1, 0]))


def put(changes):
    if callable(changes):
        return changes
    return lambda a: a.update({k: v(a) if callable(v) else v for k, v in changes.items()})


@both
@pytest.mark.parametrize("name", TOLERATED)
def test_tolerated(name, impl):
    row, changes = TOLERATED[name]
    given, before = case(130 + row, row, lengths=(5,), **TINY)
    want, args = run(given, before, impl), copy({**given, **before})
    put(changes)(args)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = operator(NAME, impl)(**args)
    names = [n for n in before if before[n].size]
    assert_results(dict(zip(RESULTS, results)) | {n: args[n] for n in names}, want, (*RESULTS, *names))


STRICT_REFUSED = {
    **{name: (row, changes) for name, (row, changes) in TOLERATED.items() if not name.startswith("T5")},
    "T2": (7, dict(quant_scale_ckv=np.ones((1, 512), F))),
    "T5 scale": TOLERATED["T5 scale"],
    "T7": (1, dict(weight_dq=lambda a: np.asarray(a["weight_dq"]))),
    "heads": (1, dict(weight_uk=np.zeros((3, 128, 512), BF16), weight_uq_qr=lambda a: nz(1536, 3 * 192))),
    "hidden": (1, dict(token_x=np.zeros((3, 7000), BF16), weight_dq=lambda a: nz(7000, 1536), weight_dkv_kr=lambda a: nz(7000, 576))),
    "rank": (1, dict(weight_dq=lambda a: nz(1024, 1024), rmsnorm_gamma_cq=np.ones(1024, BF16), weight_uq_qr=lambda a: nz(1024, 192))),
    "pages": (1, dict(kv_cache=np.zeros((3, 20, 1, 512), BF16), kr_cache=np.zeros((3, 20, 1, 64), BF16))),
    "tile": (7, dict(tile_size=64, kv_cache=np.zeros((3, 16, 1, 672), np.int8))),
    "more pages than needed": (1, lambda a: a.update(strict_blocks())),
    "caches without rows": (1, dict(cache_mode="TND", cache_index=None, kv_cache=np.zeros((0, 1, 512), BF16), kr_cache=np.zeros((0, 1, 64), BF16))),
    "slots apart": (1, dict(kv_cache=lambda a: np.zeros((3, 32, 1, 512), BF16)[:, ::2])),
}  # fmt: skip


@functools.cache
def nz(k, n):
    return dsakit.format_cast(np.zeros((k, n), BF16), 29)


@both
@pytest.mark.parametrize("name", STRICT_REFUSED)
def test_strict_refuses(name, impl):
    row, changes = STRICT_REFUSED[name]
    given, before = strict_call(row)
    args = copy({**given, **before})
    put(changes)(args)
    guards = [v for v in args.values() if isinstance(v, np.ndarray) and v.nbytes < 2**20]
    refused(lambda: operator(NAME, impl)(**args), NAME,
            {"UNSUPPORTED", "INVALID_ARGUMENT", "INVALID_SHAPE", "INVALID_STRIDE", "ALIASED", "INVALID_DTYPE"},
            {*args, "k_pe_clip_alpha"}, guards=guards)  # fmt: skip


@both
def test_every_combination_of_modes(impl):
    """N1: what is no row is refused, reserved rows by name."""
    legal = {row.modes: number for number, row in ROWS.items()}
    for modes in itertools.product(range(6), range(4), range(2), range(2), range(2)):
        if modes in legal:
            continue
        number = next((n for m, n in legal.items() if m[:2] == modes[:2]), legal.get((min(modes[0], 2), 0, 0, 0, 0)))
        given, before = case(140, number, lengths=(2,), **TINY)
        args = copy({**given, **before}) | dict(zip(MODES, modes))
        status = "UNSUPPORTED" if modes in RESERVED else "INVALID_ARGUMENT"
        status = {status, "UNSUPPORTED"} if modes[0] >= 3 else status
        error = refused(lambda: operator(NAME, impl)(**args), NAME, status, set(MODES),
                        guards=[args["kv_cache"], args["kr_cache"]])  # fmt: skip
        if modes in RESERVED:
            assert "reserved" in str(error)


REQUIRED = {
    1: (),
    2: ("dequant_scale_w_uq_qr",),
    3: ("dequant_scale_w_uq_qr", "quant_scale_ckv", "quant_scale_ckr"),
    4: ("dequant_scale_w_uq_qr",),
    5: ("dequant_scale_x", "dequant_scale_w_dq", "dequant_scale_w_uq_qr", "dequant_scale_w_dkv_kr"),
    6: ("dequant_scale_x", "dequant_scale_w_dq", "dequant_scale_w_uq_qr", "dequant_scale_w_dkv_kr", "quant_scale_ckv"),
    7: ("dequant_scale_x", "dequant_scale_w_dq", "dequant_scale_w_uq_qr", "dequant_scale_w_dkv_kr"),
}


@both
@every_row
def test_scales_present_exactly_where_the_row_says(row, impl):
    """N2: each required one left out, each unused one given."""
    given, before = case(150 + row, row, lengths=(3,), **TINY)
    shapes = dict(
        dequant_scale_x=(3, 1),
        dequant_scale_w_dq=(1, 20),
        dequant_scale_w_uq_qr=(1, 76),
        dequant_scale_w_dkv_kr=(1, 64),
        quant_scale_ckv=(1, 32),
        quant_scale_ckr=(1, 32),
        smooth_scales_cq=(1, 20),
        k_nope_clip_alpha=(1,),
    )
    tolerated = {"smooth_scales_cq"} if row > 1 else set()
    tolerated |= {"quant_scale_ckv", "k_nope_clip_alpha"} if ROWS[row].packed else set()
    for name, shape in shapes.items():
        if name in tolerated:
            continue
        args = copy({**given, **before})
        args[name] = None if name in REQUIRED[row] else np.ones(shape, F)
        guards = [v for v in args.values() if isinstance(v, np.ndarray)]
        refused(lambda: operator(NAME, impl)(**args), NAME, "INVALID_ARGUMENT", name, guards=guards)


@both
@every_row
def test_each_tensor_counts(row, impl):
    """N4: another dtype, another rank, one size off by one; absent."""
    given, before = case(160 + row, row, lengths=(4,), **TINY)
    skip = {"kr_cache"} if ROWS[row].packed else set()
    for name, value in {**given, **before}.items():
        if not isinstance(value, np.ndarray) or name in skip:
            continue
        wrong = np.full(value.shape, 1, np.float64 if value.dtype != np.int64 else np.int32)
        changes = [("INVALID_DTYPE", wrong)]
        if name != "cache_index" and "scale" not in name:  # those may have axes of length 1
            changes.append(("INVALID_SHAPE", value[None, None, None, None]))
        for axis in range(value.ndim):
            if name in before and axis < 2:
                continue  # another number of pages or slots may be right
            changes.append(("INVALID_SHAPE", np.concatenate([value, value.take([0], axis)], axis)))
        if name not in ("smooth_scales_cq", "k_nope_clip_alpha"):
            changes.append(("INVALID_ARGUMENT", None))
        for status, change in changes:
            args = copy({**given, **before})
            args[name] = change
            guards = [v for v in args.values() if isinstance(v, np.ndarray)]
            parameter = name if status != "INVALID_SHAPE" else set(args)
            refused(lambda: operator(NAME, impl)(**args), NAME, status, parameter, guards=guards)


def at(name, position, value):
    def change(a):
        a[name][position] = value
        return f"[{position}]"

    return change


def share(first, second):
    """Two arguments whose memory overlaps by an element."""

    def change(a):
        size = a[first].nbytes // 64 * 64 - 64
        buffer = np.zeros(size + a[second].nbytes + a[first].nbytes, np.uint8)
        for name, start in ((first, 0), (second, size)):
            view = buffer[start : start + a[name].nbytes].view(a[name].dtype).reshape(a[name].shape)
            view[...] = a[name]
            a[name] = view

    return change


def frozen(a):
    a["kv_cache"].setflags(write=False)


def blocks(change):
    """A call with whole-block pages instead."""

    def wrapped(a):
        given, before = case(171, 1, cache_mode="PA_BLK_BSND", lengths=(7, 5), **TINY)
        a.clear()
        a.update(copy({**given, **before}))
        return change(a)

    return wrapped


def mode(name, **more):
    return put(dict(cache_mode=name, **more))


SHAPE = {"INVALID_SHAPE", "INVALID_ARGUMENT"}
PLACES = {"token_x", "kv_cache", "kr_cache", "cache_mode", "cache_index"}
REFUSED = {
    "slot past the end": (1, at("cache_index", 2, 15), "INVALID_SLOT", "cache_index"),
    "slot far past the end": (7, at("cache_index", 4, 2**62), "INVALID_SLOT", "cache_index"),
    "page past the end": (1, blocks(at("cache_index", 1, 5)), "INVALID_SLOT", "cache_index"),
    "running total decreases": (1, blocks(put(dict(actual_seq_len=np.array([13, 12], np.int32)))), "INVALID_SEQLEN", "actual_seq_len"),
    "running total ends early": (1, blocks(at("actual_seq_len", 1, 11)), "INVALID_SEQLEN", "actual_seq_len"),
    "running total negative": (1, blocks(at("actual_seq_len", 0, -1)), "INVALID_SEQLEN", "actual_seq_len"),
    "running totals fp32": (1, blocks(put(dict(actual_seq_len=np.array([7, 12], F)))), "INVALID_DTYPE", "actual_seq_len"),
    "running totals absent": (1, blocks(put(dict(actual_seq_len=None))), "INVALID_ARGUMENT", "actual_seq_len"),
    "running totals empty": (1, blocks(put(dict(actual_seq_len=np.zeros(0, np.int32)))), {"INVALID_SEQLEN", *SHAPE}, "actual_seq_len"),
    "too few pages named": (1, blocks(put(dict(cache_index=np.zeros(2, np.int64)))), "INVALID_SHAPE", "cache_index"),
    "running totals unused": (1, put(dict(actual_seq_len=np.array([5], np.int32))), "INVALID_ARGUMENT", "actual_seq_len"),
    "tiles in NZ": (7, mode("PA_NZ"), "INVALID_ARGUMENT", "cache_mode"),
    "tiles in blocks": (4, mode("PA_BLK_BSND"), "INVALID_ARGUMENT", "cache_mode"),
    "tiles in NZ blocks": (4, mode("PA_BLK_NZ"), "INVALID_ARGUMENT", "cache_mode"),
    "cache 32 wide for tiles": (7, put(dict(kv_cache=np.zeros((3, 5, 1, 32), np.int8))), "INVALID_SHAPE", "kv_cache"),
    "cache 64 wide for tiles": (4, put(dict(kv_cache=np.zeros((3, 5, 1, 64), np.int8))), "INVALID_SHAPE", "kv_cache"),
    "rope cache beside tiles": (7, put(dict(kr_cache=np.zeros((3, 5, 1, 32), BF16))), SHAPE, "kr_cache"),
    "TND of batched tokens": (1, lambda a: (a.update(batched()), a.update(cache_mode="TND", cache_index=None))[0], SHAPE, PLACES),
    "BSND of folded tokens": (1, mode("BSND", cache_index=None), SHAPE, PLACES),
    "index without pages": (1, mode("TND", kv_cache=np.zeros((5, 1, 32), BF16), kr_cache=np.zeros((5, 1, 32), BF16)), "INVALID_ARGUMENT", "cache_index"),
    "pages without index": (1, put(dict(cache_index=None)), "INVALID_ARGUMENT", "cache_index"),
    "TND cache of rank 4": (1, mode("TND", cache_index=None), SHAPE, PLACES),
    "cache mode unknown": (1, mode("PA"), "INVALID_ARGUMENT", "cache_mode"),
    "two key heads": (1, put(dict(kv_cache=np.zeros((3, 5, 2, 32), BF16))), "INVALID_SHAPE", "kv_cache"),
    "NZ row of 40": (1, lambda a: narrow(a, 40, "PA_NZ"), "INVALID_SHAPE", {"kv_cache", "cache_mode"}),
    "clip 0": (7, put(dict(k_nope_clip_alpha=np.zeros(1, F))), "INVALID_ARGUMENT", "k_nope_clip_alpha"),
    "clip -1": (4, put(dict(k_nope_clip_alpha=-np.ones(1, F))), "INVALID_ARGUMENT", "k_nope_clip_alpha"),
    "clip nan": (7, put(dict(k_nope_clip_alpha=np.array([np.nan], F))), "INVALID_ARGUMENT", "k_nope_clip_alpha"),
    "epsilon 0": (1, put(dict(rmsnorm_epsilon_cq=0.0)), "INVALID_ARGUMENT", "rmsnorm_epsilon_cq"),
    "epsilon -1": (2, put(dict(rmsnorm_epsilon_ckv=-1.0)), "INVALID_ARGUMENT", "rmsnorm_epsilon_ckv"),
    "epsilon below fp32": (2, put(dict(rmsnorm_epsilon_ckv=1e-60)), "INVALID_ARGUMENT", "rmsnorm_epsilon_ckv"),
    "factor nan": (1, put(dict(qc_qr_scale=float("nan"))), "INVALID_ARGUMENT", "qc_qr_scale"),
    "factor inf": (5, put(dict(kc_scale=float("inf"))), "INVALID_ARGUMENT", "kc_scale"),
    "factor beyond fp32": (5, put(dict(kc_scale=1e39)), "INVALID_ARGUMENT", "kc_scale"),
    "tile that does not divide": (7, put(dict(tile_size=24)), SHAPE, {"tile_size", "kv_cache"}),
    "tile 0": (7, put(dict(tile_size=0)), SHAPE, "tile_size"),
    "tile without tiles": (1, put(dict(tile_size=64)), "INVALID_ARGUMENT", "tile_size"),
    "caches overlap": (1, share("kv_cache", "kr_cache"), "ALIASED", {"kv_cache", "kr_cache"}),
    "tokens in the cache": (1, share("kv_cache", "token_x"), "ALIASED", {"kv_cache", "token_x"}),
    "index in the cache": (6, share("kr_cache", "cache_index"), "ALIASED", {"kr_cache", "cache_index"}),
    "read-only cache": (5, frozen, "INVALID_DEVICE", "kv_cache"),
    "reserved dtype": (1, put(dict(token_x_dtype=1)), "UNSUPPORTED", "token_x_dtype"),
    "reserved cache dtype": (7, put(dict(kv_cache_dtype=290)), "UNSUPPORTED", "kv_cache_dtype"),
    "clip of the rope": (7, put(dict(k_pe_clip_alpha=np.ones(1, F))), {"INVALID_ARGUMENT", "UNSUPPORTED"}, "k_pe_clip_alpha"),
    "mode number": (1, put(dict(weight_quant_mode=6)), "INVALID_ARGUMENT", "weight_quant_mode"),
    "mode as bool": (1, put(dict(query_quant_mode=False)), "INVALID_DTYPE", "query_quant_mode"),
    "level": (1, put(dict(level="loose")), "INVALID_ARGUMENT", "level"),
    "odd rope": (1, lambda a: odd_rope(a), "INVALID_SHAPE", {"rope_sin", "rope_cos", "kr_cache"}),
    "no heads": (1, put(dict(weight_uk=np.zeros((0, 6, 32), BF16), weight_uq_qr=np.zeros((20, 0), BF16))), "INVALID_SHAPE", {"weight_uk", "weight_uq_qr"}),
    "no hidden": (1, put(dict(token_x=np.zeros((5, 0), BF16), weight_dq=np.zeros((0, 20), BF16), weight_dkv_kr=np.zeros((0, 64), BF16))), "INVALID_SHAPE", {"token_x", "weight_dq"}),
    "no rank": (1, put(dict(rmsnorm_gamma_cq=np.zeros(0, BF16), weight_dq=np.zeros((24, 0), BF16), weight_uq_qr=np.zeros((0, 76), BF16))), "INVALID_SHAPE", {"rmsnorm_gamma_cq", "weight_dq", "weight_uq_qr"}),
    "inner dimension": (5, lambda a: long_sums(a), {"UNSUPPORTED", *SHAPE}, {"token_x", "weight_dq", "weight_dkv_kr"}),
}  # fmt: skip


def batched():
    given, before = case(172, 1, lengths=(5,), batched=True, **TINY)
    return copy({**given, **before})


def narrow(a, latent, cache_mode):
    given, before = case(173, 1, lengths=(5,), **(TINY | dict(latent=latent, tile=latent)))
    a.update(copy({**given, **before}), cache_mode=cache_mode)


def odd_rope(a):
    rng = generator(174)
    a.update(rope_sin=uniform(rng, (5, 31)), rope_cos=uniform(rng, (5, 31)), weight_uq_qr=uniform(rng, (20, 74)))
    a.update(weight_dkv_kr=uniform(rng, (24, 63)), kr_cache=np.zeros((3, 5, 1, 31), BF16))


def long_sums(a):
    he = 131072
    a.update(token_x=np.zeros((5, he), np.int8), weight_dq=np.zeros((he, 20), np.int8))
    a.update(weight_dkv_kr=np.zeros((he, 64), np.int8))


@both
@pytest.mark.parametrize("name", REFUSED)
def test_refused(name, impl):
    row, change, status, parameter = REFUSED[name]
    given, before = case(170, row, lengths=(5,), spare=2, **TINY)
    args = copy({**given, **before})
    position = change(args)
    guards = [v for v in args.values() if isinstance(v, np.ndarray) and v.nbytes < 2**20]
    refused(lambda: operator(NAME, impl)(**args), NAME, status, parameter, position if isinstance(position, str) else None,
            guards)  # fmt: skip


@both
def test_functional_speaks_for_itself(impl):
    given, before = case(170, 1, lengths=(5,), **TINY)
    args = copy({**given, **before}) | dict(rmsnorm_epsilon_cq=0.0)
    refused(lambda: operator("mla_prolog_v3_functional", impl)(**args), "mla_prolog_v3_functional", "INVALID_ARGUMENT",
            "rmsnorm_epsilon_cq")  # fmt: skip
