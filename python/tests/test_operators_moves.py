# SPDX-License-Identifier: Apache-2.0
"""Rows into caches and out of them: scatter_nd_update, scatter_pa_kv_cache, gather_pa_kv_cache, store_kv_block."""

import numpy as np
import pytest

import dsakit
from oracle.cases import BF16, generator, uniform
from oracle.harness import assert_same, both, operator, refused, to_numpy, to_torch

I32 = lambda *v: np.array(v, np.int32)


@both
def test_scatter_into_views(impl):
    """Also the latent part of wider rows, in pages with room between them."""
    rng = generator(1)
    pages, rows = uniform(rng, (6, 5, 4, 24)), uniform(rng, (9, 16))
    cache = pages[:, 0, :, :16]
    slots = np.stack([rng.integers(0, 6, 9), rng.integers(0, 4, 9)], axis=1)
    want = pages.copy()
    for (page, place), row in zip(slots, rows):
        want[page, 0, place, :16] = row
    got = operator("scatter_nd_update_", impl)(cache, slots, rows)
    assert got is cache
    assert_same(pages, want)


@both
@pytest.mark.parametrize("dtype", [np.float32, np.float16, BF16, np.int64, np.int8, np.bool_])
def test_scatter_by_slots(impl, dtype):
    rng = generator(2)
    cache, rows = (rng.integers(0, 2, shape).astype(dtype) for shape in ((7, 3), (5, 3)))
    slots = np.array([6, -1, 0, 6, 2])
    want = cache.copy()
    want[[0, 2, 6]] = rows[[2, 4, 3]]
    for index in (np.int64, np.int32):
        out = operator("scatter_nd_update", impl)(cache, slots[:, None].astype(index), rows)
        assert_same(out, want)
    assert operator("npu_scatter_nd_update_", impl)(cache, slots[:, None], rows) is cache
    assert_same(cache, want)


def test_torch_tensors():
    torch = pytest.importorskip("torch")
    cache, rows = torch.zeros(4, 2, dtype=torch.bfloat16), torch.ones(3, 2, dtype=torch.bfloat16)
    assert dsakit.npu_scatter_nd_update_(cache, torch.tensor([[2], [-1], [0]]), rows) is cache
    assert cache[:, 0].tolist() == [1, 0, 1, 0]
    out = dsakit.npu_scatter_nd_update(cache, torch.tensor([[1]]), rows[:1])
    assert isinstance(out, torch.Tensor) and out[:, 0].tolist() == [1, 1, 1, 0] and cache[1, 0] == 0


def paged(rng, nz=False, tokens=7):
    c0, d = 16, 32
    cache = lambda h: uniform(rng, (3, h * d // c0, 4, c0) if nz else (3, 4, h, d))
    rows = lambda: uniform(rng, (tokens, 2, d))
    return dict(key=rows(), value=rows(), key_cache=cache(2), value_cache=cache(2))


def as_norm(cache, heads):
    """Pages [blocks, slots, h * d] of a cache in NZ."""
    blocks, panels, slots, c0 = cache.shape
    return cache.transpose(0, 2, 1, 3).reshape(blocks, slots, panels * c0)


@both
@pytest.mark.parametrize("mode", ["PA_NZ", "Norm", None])
def test_scatter_pa(impl, mode):
    rng = generator(3)
    given = paged(rng, mode == "PA_NZ")
    slots = I32(3, -1, 11, 0, 3, 6, 5)
    want = {}
    for name, rows in (("key_cache", given["key"]), ("value_cache", given["value"])):
        pages = as_norm(given[name], 2) if mode == "PA_NZ" else given[name].reshape(3, 4, 64)
        want[name] = pages.reshape(12, 64).copy()
        for slot, row in zip(slots, rows):
            if slot >= 0:
                want[name][slot] = row.reshape(-1)
    flat = lambda cache: (as_norm(cache, 2) if mode == "PA_NZ" else cache).reshape(12, 64)
    before = {n: v.copy() for n, v in given.items()}
    outs = operator("npu_scatter_pa_kv_cache_functional", impl)(**given, slot_mapping=slots, cache_mode=mode)
    for out, name in zip(outs, want):
        assert_same(flat(out), want[name], name)
        assert_same(given[name], before[name], name)
    assert operator("npu_scatter_pa_kv_cache", impl)(**given, slot_mapping=slots.astype(np.int64), cache_mode=mode) is None
    for name in want:
        assert_same(flat(given[name]), want[name], name)


@both
def test_gather_pa(impl):
    """The documented example, then back what scatter_pa_kv_cache stored; lengths as lists too."""
    cache = np.arange(6, dtype=np.float32).reshape(3, 2, 1, 1)
    key, value = (np.full((4, 1, 1), -1, np.float32) for _ in range(2))
    gather = operator("npu_gather_pa_kv_cache", impl)
    table = I32([2, 0])
    assert gather(cache, cache + 10, table, [3], key=key, value=value, seq_offset=I32(1)) is None
    assert key.ravel().tolist() == [5, 0, 1, -1] and value.ravel().tolist() == [15, 10, 11, -1]
    totals = operator("gather_pa_kv_cache_functional", impl)(
        cache, cache, I32([1, -1], [2, 0]), I32(0, 1, 4), key, value, is_seq_lens_cumsum=True
    )
    assert totals[0].ravel().tolist() == [2, 4, 5, 0] and key.ravel().tolist() == [5, 0, 1, -1]
    rng = generator(4)
    given = paged(rng)
    operator("scatter_pa_kv_cache", impl)(**given, slot_mapping=I32(8, 9, 10, 11, 0, 1, 2), cache_mode="Norm")
    back = {n: np.zeros_like(given[n]) for n in ("key", "value")}
    gather(given["key_cache"], given["value_cache"], I32([2, 0]), [7], **back)
    for name, rows in back.items():
        assert_same(rows, given[name], name)


@both
def test_store_kv_block(impl):
    """The documented example, and that storing is scattering by slot."""
    slots, runs = I32(2, 3, 4, 5, -1, 9), [np.full(6, 7, np.int32) for _ in range(3)]
    space = dsakit.ops._C_ascend if impl == "fast" else dsakit.reference
    assert space.store_kv_block_metadata(slots, *runs, 4) is None
    assert [r.tolist() for r in runs] == [[2, 2, 1, 0, 0, 0], [0, 2, 5, 0, 0, 0], [2, 4, 9, 0, 0, 0]]
    rng = generator(5)
    for row in ((24,), (3, 8)):
        rows, cache = uniform(rng, (6, *row)), uniform(rng, (12, *row))
        want = dsakit.scatter_nd_update(cache, slots[:, None], rows)
        assert space.store_kv_block(rows, cache, *runs, block_size=4) is None
        assert_same(cache, want)
        folded = [to_torch(v) for v in (rows, cache.reshape(3, 4, *row), *runs)]
        folded[1].zero_()
        space.store_kv_block(*folded)
        assert_same(to_numpy(folded[1]).reshape(cache.shape)[slots[slots >= 0]], rows[slots >= 0])


def test_refusals():
    rng = generator(6)
    cache, rows, given = uniform(rng, (4, 3)), uniform(rng, (2, 3)), paged(rng)
    past = lambda: dsakit.npu_scatter_nd_update_(cache, np.array([[0], [4]]), rows)
    refused(past, "npu_scatter_nd_update_", "INVALID_INDEX", "indices", "[1][0]", [cache])
    name, caches = "scatter_pa_kv_cache", [given["key_cache"], given["value_cache"]]
    for reserved in ("compress_lens", "compress_seq_offsets", "seq_lens"):
        call = lambda: dsakit.scatter_pa_kv_cache(**given, slot_mapping=I32(*range(7)), **{reserved: rows})
        refused(call, name, "UNSUPPORTED", reserved, guards=caches)
    past = lambda: dsakit.scatter_pa_kv_cache(**given, slot_mapping=I32(*range(6, 13)), cache_mode="Norm")
    refused(past, name, "INVALID_SLOT", "slot_mapping", "[6]", caches)
