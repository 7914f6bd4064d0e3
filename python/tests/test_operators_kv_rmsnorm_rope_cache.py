# SPDX-License-Identifier: Apache-2.0
"""kv_rmsnorm_rope_cache and its two other forms."""

import numpy as np
import pytest

from oracle.cases import BF16, F, generator, uniform
from oracle.harness import both, operator, refused, seeds, to_numpy, to_torch
from oracle.rounding import bf16, f16, i8
from oracle.rows import norm, rope

NAME = "kv_rmsnorm_rope_cache"
MODES = ["Norm", "PA", "PA_BNSD", "PA_NZ", "PA_BLK_BNSD", "PA_BLK_NZ"]
FORMS = [NAME, NAME + "_v2", NAME + "_v2_functional"]


def case(seed, **more):
    rng = generator(seed)
    mode, dtype = MODES[seed % 6], [BF16, np.float16][seed // 6 % 2]
    b, s, size, latent, dr = (int(rng.integers(*r)) for r in ((1, 4), (1, 9), (1, 6), (1, 4), (1, 3)))
    latent, dr, pages = latent * 32, dr * 32, 40
    lead = (b, 1, size) if mode == "Norm" else (pages, size, 1)
    kinds = [np.int8 if rng.integers(2) else dtype for _ in range(2)]
    if mode == "Norm":
        index = rng.integers(-1, size, (b, s))
    elif "BLK" in mode:
        index = rng.permutation(pages)[: b * -(-s // size)] * size
        index[rng.random(index.shape) < 0.2] = -1
    else:
        index = rng.integers(-2, min(pages * size, 9), b * s)  # some slots twice
    args = dict(
        kv=uniform(rng, (b, 1, s, latent + dr), 2, dtype),
        gamma=uniform(rng, latent, 2, dtype),
        cos=uniform(rng, (b, 1, s, dr), 1, dtype),
        sin=uniform(rng, (b, 1, s, dr), 1, dtype),
        index=index.astype(np.int64),
        k_cache=rng.integers(-99, 99, (*lead, dr)).astype(kinds[0]),
        ckv_cache=rng.integers(-99, 99, (*lead, latent)).astype(kinds[1]),
        epsilon=[1e-5, 1e-2][int(rng.integers(2))],
        cache_mode=mode,
        is_output_kv=bool(rng.integers(2)),
    )
    if kinds[0] == np.int8:
        args["k_rope_scale"] = (rng.random(dr) * 60).astype(F)
    if kinds[1] == np.int8:
        args["c_kv_scale"] = (rng.random(latent) * 60).astype(F)
    return args | more


def place(cache, mode, index, b, s, t):
    """The elements of the cache's memory that hold the row of a token, or None."""
    width = cache.shape[-1]
    if mode == "Norm":
        row = index[b, s]
        return None if row < 0 else (b * cache.shape[2] + row) * width + np.arange(width)
    size = cache.shape[1]
    if "BLK" in mode:
        per = len(index) // t[0]
        first = index[b * per + s // size]
        slot = first + s % size if first >= 0 else -1
    else:
        slot = index[b * t[1] + s]
    if slot < 0:
        return None
    page, row, h = slot // size * size * width, slot % size, np.arange(width)
    c0 = 32 // cache.itemsize
    return page + ((h // c0 * size + row) * c0 + h % c0 if mode.endswith("NZ") else row * width + h)


def expected(args):
    """(k_cache, ckv_cache, k_rope, c_kv)"""
    kv, latent = args["kv"].astype(F), len(args["gamma"])
    dtype = args["kv"].dtype
    round_ = lambda v: (bf16 if dtype == BF16 else f16)(v).astype(dtype)
    c_kv = norm(kv[..., :latent], args["gamma"], args["epsilon"])
    k_rope = rope(kv[..., latent:], args["cos"], args["sin"], "interleaved_to_half")
    caches = []
    for cache, rows, scale in (("k_cache", k_rope, "k_rope_scale"), ("ckv_cache", c_kv, "c_kv_scale")):
        new = args[cache].copy()
        stored = i8(rows * args[scale]) if new.dtype == np.int8 else round_(rows)
        for b in range(kv.shape[0]):
            for s in range(kv.shape[2]):
                at = place(new, args["cache_mode"], args["index"], b, s, (kv.shape[0], kv.shape[2]))
                if at is not None:
                    new.reshape(-1)[at] = stored[b, 0, s]
        caches.append(new)
    return *caches, *(round_(v) if args["is_output_kv"] else np.empty(0, dtype) for v in (k_rope, c_kv))


def same(got, want):
    """Equal; the sign of a zero is nobody's."""
    assert got.shape == want.shape and got.dtype == want.dtype
    assert np.array_equal(np.asarray(got).astype(F), want.astype(F))


@both
@pytest.mark.parametrize("form", FORMS)
@seeds(24)
def test_random(seed, form, impl):
    args = case(seed)
    want, before = expected(args), {name: args[name].copy() for name in ("k_cache", "ckv_cache")}
    got = operator(form, impl)(**args)
    if form == NAME:
        assert got[0] is args["k_cache"] and got[1] is args["ckv_cache"]
    if form == FORMS[1]:
        got = (args["k_cache"], args["ckv_cache"], *got)
    if form == FORMS[2]:
        for name, cache in before.items():
            assert args[name].tobytes() == cache.tobytes()
    for g, w in zip(got, want, strict=True):
        same(g, w)


@both
def test_slices_of_a_projection_in_torch(impl):
    torch = pytest.importorskip("torch")
    args = case(1, is_output_kv=True)
    wide = np.concatenate([args["kv"], args["kv"]], axis=-1)
    want = expected(args)
    given = {name: to_torch(value) for name, value in args.items()}
    given["kv"] = to_torch(wide)[..., : args["kv"].shape[-1]]
    got = operator("npu_" + NAME, impl)(**given)
    assert isinstance(got[2], torch.Tensor) and got[0] is given["k_cache"]
    for g, w in zip(got, want, strict=True):
        same(to_numpy(g), w)


@both
def test_worked_example(impl):
    row = lambda *v: np.array(v, BF16).reshape(1, 1, 1, -1)
    k_cache, ckv_cache = np.zeros((2, 2, 1, 4), BF16), np.zeros((2, 2, 1, 4), BF16)
    operator(NAME, impl)(
        row(1, -2, 2, 4, 1, 2, 3, 4),
        np.array([1, 0.5, 1, 2], BF16),
        row(0.5, 0.25, 1, 2),
        row(1, 0.5, 0.125, 0.75),
        np.array([3]),
        k_cache,
        ckv_cache,
        cache_mode="PA",
    )
    assert ckv_cache[1, 1, 0].view(np.uint16).tolist() == [0x3ECD, 0xBECD, 0x3F4D, 0x404D]
    assert k_cache[1, 1, 0].astype(F).tolist() == [-1.5, -1.25, 2.125, 10.25]
    assert not ckv_cache.reshape(4, 4)[:3].any() and not k_cache.reshape(4, 4)[:3].any()


REFUSED = {
    "offset": (dict(k_rope_offset=np.zeros(32, F)), "UNSUPPORTED", "k_rope_offset"),
    "v": (dict(v=np.zeros((1, 1), BF16)), "UNSUPPORTED", "v"),
    "mode": (dict(cache_mode="PA_BSND"), "INVALID_ARGUMENT", "cache_mode"),
    "past the end": (dict(index=np.full(6, 24)), "INVALID_SLOT", "index"),
    "inside a page": (dict(index=np.array([0, 5]), cache_mode="PA_BLK_BNSD"), "INVALID_SLOT", "index"),
    "no scale": (dict(ckv_cache=np.zeros((6, 4, 1, 32), np.int8)), "INVALID_ARGUMENT", "c_kv_scale"),
    "scale": (dict(k_rope_scale=np.ones(32, F)), "INVALID_ARGUMENT", "k_rope_scale"),
    "batch of cos": (dict(cos=np.ones((1, 1, 3, 32), BF16)), "INVALID_SHAPE", "cos"),
    "sizes in strict": (dict(level="strict"), "UNSUPPORTED", "gamma"),
}


@both
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("what", REFUSED)
def test_refused(what, form, impl):
    change, status, parameter = REFUSED[what]
    ones = lambda *shape: np.ones(shape, BF16)
    good = dict(kv=ones(2, 1, 3, 64), gamma=ones(32), cos=ones(2, 1, 3, 32), sin=ones(2, 1, 3, 32), index=np.arange(6))
    good |= dict(k_cache=ones(6, 4, 1, 32), ckv_cache=ones(6, 4, 1, 32), cache_mode="PA")
    guards = (good["k_cache"], good["ckv_cache"])
    refused(lambda: operator(form, impl)(**good | change), form, status, parameter, guards=guards)
