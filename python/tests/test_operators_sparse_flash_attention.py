# SPDX-License-Identifier: Apache-2.0
"""sparse_flash_attention and kv_quant_sparse_flash_attention: one meaning, two kinds of keys."""

import functools

import numpy as np
import pytest

from oracle.cases import BF16, F, codes, generator, uniform
from oracle.harness import ALL_TOKENS, assert_same, both, operator, per_thread_count, refused, seeds, to_numpy, to_torch
from oracle.mla_prolog_v3 import join_rows, packed_width
from oracle.rounding import bf16
from oracle.sparse_cases import check_case, sparse_case

SFA, KVSFA = "sparse_flash_attention", "kv_quant_sparse_flash_attention"
each = pytest.mark.parametrize("name", [SFA, KVSFA])
case = functools.lru_cache(None)(sparse_case)


def make(name, seed, **more):
    return case(seed, quantised=name == KVSFA, **more)


def triple(name, args, impl="fast", **more):
    out, softmax_max, softmax_sum = operator(name, impl)(**dict(args, return_softmax_lse=True, **more))
    return out, softmax_max, softmax_sum


def alone(name, args, impl="fast", **more):
    result = operator(name, impl)(**dict(args, **more))
    if name == SFA:
        out, softmax_max, softmax_sum = result
        assert softmax_max.shape == softmax_sum.shape == (0,) and softmax_max.dtype == softmax_sum.dtype == F
        return out
    return result


@both
@each
@seeds(70)
def test_random(seed, name, impl):
    c = make(name, seed)
    out, softmax_max, softmax_sum = triple(name, c.args, impl)
    check_case(c, out, softmax_max, softmax_sum)
    if seed % 7 == 0:
        assert_same(alone(name, c.args, impl), out)


@both
@each
@pytest.mark.parametrize("heads", [128, 64])
def test_model_sizes(heads, name, impl):
    c = make(name, 900 + heads, heads=heads, dv=512, dr=64, tile=128, count=384, longest=600, queries=2, block_size=128,
             data="uniform", layout=("TND", "PA_BSND"), block=1, sinks=False, half=heads == 64)  # fmt: skip
    check_case(c, *triple(name, c.args, impl))


@each
@seeds(4, 100)
def test_threads_pages_and_batches_do_not_matter(seed, name):
    fixed = dict(heads=8, dv=256, dr=64, tile=128, count=300, longest=400, queries=3, pad=False, block=1 + seed % 2)
    c = make(name, seed, layout=("TND", "PA_BSND"), block_size=16, **fixed)
    want = triple(name, c.args)
    check_case(c, *want)
    for got in per_thread_count(lambda: triple(name, c.args)):
        for g, w in zip(got, want):
            assert_same(g, w)
    more = dict(fixed, layout=("TND", "PA_BSND"))
    others = [make(name, seed, block_size=b, page_seed=p, **more) for b, p in ((16, 1), (1, 0), (128, 0))]
    others += [
        make(name, seed, block_size=16, poison=False, **more),
        make(name, seed, **dict(fixed, layout=("TND", "TND"))),
    ]
    for other in others:
        for g, w in zip(triple(name, other.args), want):
            assert_same(g, w)
    ends = np.concatenate([[0], c.args["actual_seq_lengths_query"]])
    for b in range(len(ends) - 1):
        rows = slice(ends[b], ends[b + 1])
        one = dict(c.args, actual_seq_lengths_query=[ends[b + 1] - ends[b]])
        one["actual_seq_lengths_kv"] = c.args["actual_seq_lengths_kv"][b : b + 1]
        one["block_table"] = c.args["block_table"][b : b + 1]
        for part in ("query", "query_rope", "sparse_indices"):
            if part in one:
                one[part] = c.args[part][rows]
        got = triple(name, one)
        assert_same(got[0], want[0][rows])
        for g, w in zip(got[1:], want[1:]):
            assert_same(g, w[:, rows])


@both
@seeds(6, 200)
def test_packed_rows_are_their_dequantised_latents(seed, impl):
    """KVSFA = SFA where scales are powers of two, so that 16 bits hold each dequantised number."""
    rng = generator(seed)
    heads, dv, dr, tile, n, k = 5, 64, 16, 16, 70, 33
    dtype = [BF16, np.float16][seed % 2]
    latent, steps = codes(rng, (n, dv)), 2.0 ** -rng.integers(5, 9, (n, dv // tile))
    rope = uniform(rng, (n, dr), 1, dtype)
    exact = (latent * np.repeat(steps, tile, axis=1)).astype(dtype)
    query, q_rope = uniform(rng, (3, heads, dv), 1, dtype), uniform(rng, (3, heads, dr), 1, dtype)
    lists = np.array([rng.permutation(n)[:k] for _ in range(3)], np.int32)[:, None]
    shared = dict(sparse_indices=lists, scale_value=0.2, layout_query="TND", actual_seq_lengths_query=[3],
                  actual_seq_lengths_kv=[n], attention_mode=2, sparse_mode=0, layout_kv="TND")  # fmt: skip
    key = exact[:, None]
    want = triple(SFA, dict(shared, query=query, key=key, value=key, query_rope=q_rope, key_rope=rope[:, None]), impl)
    rows = join_rows(latent, rope, steps)[:, None]
    joined = np.concatenate([query, q_rope], axis=2)
    got = triple(KVSFA, dict(shared, query=joined, key=rows, value=rows, key_quant_mode=2, value_quant_mode=2, tile_size=tile,
                             rope_head_dim=dr), impl)  # fmt: skip
    spacing = 2.0**-7 if dtype == BF16 else 2.0**-10
    assert np.allclose(got[0].astype(F), want[0].astype(F), rtol=2 * spacing, atol=1e-6)
    for g, w in zip(got[1:], want[1:]):
        assert np.allclose(g, w, rtol=1e-5, atol=1e-6)


def toy(
    name, latent, lists, *, scores=None, lq=None, lk=None, mode=0, block=1, scale=1.0, dtype=BF16, scales=None, **more
):
    """One head; scores: one number per token through a rope part of width 1 (packed rows: times 1)."""
    latent, lists = np.array(latent), np.array(lists, np.int32)
    n, dv = latent.shape
    rope = np.zeros((n, 1), dtype)
    if scores is not None:
        rope[:, 0] = scores
    query, q_rope = np.zeros((len(lists), 1, dv), dtype), np.ones((len(lists), 1, 1), dtype)
    args = dict(sparse_indices=lists[:, None], scale_value=scale, layout_query="TND", layout_kv="TND", sparse_mode=mode,
                actual_seq_lengths_query=[lq or len(lists)], actual_seq_lengths_kv=[lk or n], sparse_block_size=block,
                attention_mode=2, **more)  # fmt: skip
    if name == SFA:
        key = latent.astype(dtype)[:, None]
        return dict(args, query=query, key=key, value=key, query_rope=q_rope, key_rope=rope[:, None])
    scales = np.ones((n, 1), F) if scales is None else np.array(scales, F)
    key = join_rows(latent, rope, scales)[:, None]
    return dict(args, query=np.concatenate([query, q_rope], axis=2), key=key, value=key, key_quant_mode=2, value_quant_mode=2,
                tile_size=dv // scales.shape[1], rope_head_dim=1)  # fmt: skip


V = [[1, 2], [3, 4], [5, 6]]


@both
@each
def test_worked_examples(name, impl):
    def see(*args, **more):
        out, softmax_max, softmax_sum = triple(name, toy(name, *args, **more), impl)
        return out.astype(np.float64)[:, 0].tolist(), softmax_max.reshape(-1).tolist(), softmax_sum.reshape(-1).tolist()

    assert see(V, [[2, 0, -1, 1]]) == ([[3, 4]], [0], [2])  # E1
    out, m, total = see(V, [[2, 0, -1, 1]], sinks=np.zeros(1, F))
    assert out == [bf16([2, 8 / 3]).tolist()] and m == [0] and total == [3]
    out, m, total = see(V, [[2, 0]], scores=[0, 0, 1], scale=float(np.log(2)))  # E2
    assert out == [[3.671875, 4.65625]] and abs(m[0] - np.log(2)) < 1e-6 and abs(total[0] - 1.5) < 1e-5
    out, _, total = see(V, [[2, 0, -1, 9], [2, 0, -1, -9]], mode=3)  # E3
    assert out == [[1, 2], [3, 4]] and total == [1, 2]
    assert see(V, [[3, 0, -1], [0, -1, 3]], mode=3, index_check="mask")[0] == [[1, 2], [1, 2]]
    # E4, seen through powers of two
    powers = [[2.0**i] for i in range(5)]
    assert see(powers, [[2, 0]], mode=3, block=2) == ([[float(bf16(19 / 3))]], [0], [3])
    assert see(powers, [[2, 0], [2, 0]], mode=3, block=2)[0] == [[1.5], [float(bf16(19 / 3))]]
    assert see(V[:2], [[1, 1, 0]])[0] == [bf16([7 / 3, 10 / 3]).tolist()]  # E5: counted per occurrence
    refused(lambda: alone(name, toy(name, V[:2], [[1, 1, 0]], mode=3), impl, level="strict"), name,
            {"UNSUPPORTED", "INVALID_INDEX"}, None or set(toy(name, V, [[0]])) | {"query", "level"})  # fmt: skip


@both
def test_dequantised_example(impl):
    """E7."""
    out = alone(KVSFA, toy(KVSFA, [[10, -3, 127, 0]], [[0]], scales=[[0.5, 0.01]]), impl)
    assert out.astype(F).reshape(-1).tolist() == [5, -1.5, 1.2734375, 0]


def merge(parts):
    """Partial results by maximum and sum."""
    m = np.max([m for m, total, _ in parts if total > 0], initial=-np.inf)
    weights = [total * np.exp(m_i - m) if total > 0 else 0 for m_i, total, _ in parts]
    return sum(w * o for w, (_, _, o) in zip(weights, parts)) / sum(weights)


@both
@each
@seeds(3, 300)
def test_halves_of_a_list_merge(seed, name, impl):
    """E8: the triple is enough to put shards together; an empty one weighs nothing."""
    assert merge([(0, 2, np.array([3, 4])), (np.log(2), 1, np.array([9, 0])), (0, 0, np.zeros(2))]).tolist() == [6, 2]
    rng = generator(seed)
    latent, scores = rng.integers(-9, 10, (64, 8)), rng.integers(-20, 21, 64) / 8
    order = rng.permutation(64)
    args = [
        toy(name, latent, [part.tolist() + [-1]], scores=scores) for part in (order, order[:20], order[20:], order[:0])
    ]
    whole, *parts = (triple(name, a, impl) for a in args)
    flat = [(float(m.ravel()[0]), float(t.ravel()[0]), o.astype(np.float64).ravel()) for o, m, t in parts]
    assert flat[2][:2] == (0, 0) and not flat[2][2].any()
    assert np.allclose(merge(flat), whole[0].astype(np.float64).ravel(), rtol=2.0**-7, atol=2.0**-6)


@both
@each
def test_peaks_and_floors(name, impl):
    out = lambda *args, **more: alone(name, toy(name, *args, **more), impl).astype(F).reshape(-1).tolist()
    assert out(V[:2], [[0, 1]], scores=[1e4, -1e4]) == [1, 2]
    assert out(V[:2], [[0, 1]], scores=[-1e4, -1e4]) == [2, 3]
    latent = [[i % 7 + 1, -1 - i % 5] for i in range(700)]
    for best in (0, 255, 256, 400, 699):
        for low in (-1e4, -90):
            scores = np.full(700, low)
            scores[best] = 1
            assert out(latent, [list(range(700))], scores=scores) == latent[best]


@both
@each
def test_chunks_without_a_key(name, impl):
    """Masked entries fill whole chunks of 256 list positions, first, middle and last."""
    n = 1100
    latent = [[i % 7 + 1, -1 - i % 5] for i in range(n)]
    for first in (0, 300, 900):
        lists = np.full((1000, 1000), 1099, np.int32)  # row 0 of 1000 sees 101 tokens
        lists[0, first : first + 3] = [4, 5, 100]
        lists[1:, :] = -1
        out = alone(name, toy(name, latent, lists, mode=3), impl).astype(F)
        assert out[0, 0].tolist() == bf16(np.mean([latent[j] for j in (4, 5, 100)], axis=0)).tolist()
        assert not out[1:].any()


@both
@each
@pytest.mark.parametrize("sinks", [False, True])
def test_no_key(sinks, name, impl):
    """Empty sequences, rows before the first key, padding, empty lists."""
    c = make(
        name, 400, layout=("BSND", "BSND"), heads=3, mode=3, sinks=sinks, dv=16, tile=4, dr=4, pad=True, kind="plain"
    )
    args = dict(c.args)
    lk, lq = args["actual_seq_lengths_kv"].copy(), args["actual_seq_lengths_query"]
    lk[:] = np.minimum(lq // 2, lk)
    args["actual_seq_lengths_kv"] = lk
    indices = np.full_like(args["sparse_indices"], -77)
    for b in range(len(lq)):
        for i in range(lq[b]):
            if lk[b] - lq[b] + i + 1 > 0:
                indices[b, i] = -1
    out, m, total = triple(name, dict(args, sparse_indices=indices), impl)
    assert not out.astype(F).any()
    for b in range(len(lq)):
        if not sinks:
            assert not m.any() and not total.any()
            continue
        real = np.where(np.isfinite(c.sinks), c.sinks, 0)
        assert (m[b, 0, : lq[b]] == real).all() and not m[b, 0, lq[b] :].any()
        assert (total[b, 0, : lq[b]] == np.isfinite(c.sinks)).all() and not total[b, 0, lq[b] :].any()


@both
@each
def test_zero_sizes(name, impl):
    c = make(name, 401, layout=("TND", "PA_BSND"), heads=3, dv=16, tile=4, dr=4, sinks=False, pad=False)
    none = {k: c.args[k][:0] for k in ("query", "query_rope", "sparse_indices", "block_table") if k in c.args}
    lengths = dict(actual_seq_lengths_query=np.zeros(0, np.int32), actual_seq_lengths_kv=np.zeros(0, np.int32))
    assert alone(name, dict(c.args, **none, **lengths), impl).shape == (0, 3, 16)
    empty = dict(c.args, actual_seq_lengths_kv=np.zeros_like(c.args["actual_seq_lengths_kv"]))
    for part in ("key", "key_rope", "value"):
        if part in empty:
            empty[part] = empty[part][:0]
    assert not alone(name, empty, impl).astype(F).any()


@both
@each
def test_pages_behind_2_to_the_31(name, impl):
    c = make(name, 402, layout=("TND", "PA_BSND"), heads=2, dv=256, tile=64, dr=16, half=False, block_size=16, block=1)
    want = alone(name, c.args, impl)
    key = c.args["key"]
    pages = 2**31 // key[0].size + len(key) + 2
    far, shift = dict(c.args), pages - len(key)
    for part in ("key", "key_rope"):
        if part in far:
            far[part] = np.zeros((pages, *c.args[part].shape[1:]), c.args[part].dtype)
            far[part][shift:] = c.args[part]
    far["value"] = far["key"]
    table = c.args["block_table"]
    far["block_table"] = np.where((table >= 0) & (table < len(key)), table + shift, table).astype(np.int32)
    assert_same(alone(name, far, impl), want)


@both
@each
def test_forms(name, impl):
    """By position; lengths as lists or not at all; a cloned value; torch; strided keys."""
    c = make(
        name, 403, layout=("BSND", "BSND"), heads=3, dv=32, tile=8, dr=4, half=False, pad=False, mode=3, poison=False
    )
    args, want = c.args, alone(name, c.args, impl)
    order = ["query", "key", "value", "sparse_indices", "scale_value"] + ["key_quant_mode", "value_quant_mode"] * (
        name == KVSFA
    )
    rest = {k: v for k, v in args.items() if k not in order}
    result = operator(name, impl)(*(args[k] for k in order), **rest)
    assert_same(result[0] if name == SFA else result, want)
    lists = {k: args[k].tolist() for k in ("actual_seq_lengths_query", "actual_seq_lengths_kv")}
    assert_same(alone(name, dict(args, **lists), impl), want)
    assert_same(alone(name, dict(args, pre_tokens=ALL_TOKENS, next_tokens=ALL_TOKENS, level="portable"), impl), want)
    assert_same(alone(name, dict(args, value=args["key"].copy()), impl), want)
    torch_args = {k: to_torch(v) for k, v in args.items()}
    assert_same(to_numpy(alone_torch(name, torch_args, impl)), want)
    wide = np.zeros((*args["key"].shape[:-1], args["key"].shape[-1] + 6), args["key"].dtype)[..., 3:-3]
    wide[...] = args["key"]
    assert_same(alone(name, dict(args, key=wide, value=wide), impl), want)
    full = dict(args, actual_seq_lengths_query=np.full_like(args["actual_seq_lengths_query"], args["query"].shape[1]),
                actual_seq_lengths_kv=np.full_like(args["actual_seq_lengths_kv"], args["key"].shape[1]))  # fmt: skip
    full["sparse_indices"] = np.zeros_like(args["sparse_indices"])
    given = alone(name, full, impl)
    for k in ("actual_seq_lengths_query", "actual_seq_lengths_kv"):
        del full[k]
    assert_same(alone(name, full, impl), given)


def alone_torch(name, args, impl):
    result = operator(name, impl)(**args)
    return result[0] if name == SFA else result


def base(name, layout="PA_BSND", **more):
    """Two sequences of 5 and 9 tokens in pages of 4, two query rows each, lists of three."""
    rng = generator(77)
    width, query = packed_width(16, 4, 8), uniform(rng, (4, 3, 20))
    args = dict(
        sparse_indices=np.array([[0, 1, 2], [4, 3, 0], [7, 0, 1], [8, 2, 5]], np.int32)[:, None],
        scale_value=0.25,
        block_table=np.array([[0, 1, -1], [4, 3, 2]], np.int32),
        actual_seq_lengths_query=np.array([2, 4], np.int32),
        actual_seq_lengths_kv=np.array([5, 9], np.int32),
        layout_query="TND",
        layout_kv="PA_BSND",
        attention_mode=2,
    )
    if name == SFA:
        args.update(query=query[..., :16].copy(), query_rope=query[..., 16:].copy(), key=uniform(rng, (5, 4, 1, 16)))
        args["key_rope"] = uniform(rng, (5, 4, 1, 4))
    else:
        rows = join_rows(codes(rng, (20, 16)), uniform(rng, (20, 4)), rng.random((20, 2)))
        args.update(
            query=query,
            key=rows.reshape(5, 4, 1, width),
            key_quant_mode=2,
            value_quant_mode=2,
            tile_size=8,
            rope_head_dim=4,
        )
    args["value"] = args["key"].copy()
    return args


def entry(name, at, value):
    def change(a):
        a[name][at] = value
        return "".join(f"[{i}]" for i in (at if isinstance(at, tuple) else (at,)))

    return change


def put(**changes):
    return lambda a: a.update({k: v(a[k]) if callable(v) else v for k, v in changes.items()})


def dense(change):
    """Keys of two equal sequences without pages."""

    def wrapped(a):
        for k in ("key", "value", "key_rope"):
            if k in a:
                a[k] = np.concatenate([a[k].reshape(20, 1, -1)[:9]] * 2)
        a.update(layout_kv="TND", block_table=None, actual_seq_lengths_kv=np.array([9, 18], np.int32))
        return change(a)

    return wrapped


def one_byte(row, column):
    """value differs from key in one byte of one row."""

    def change(a):
        a["value"].view(np.uint8).reshape(20, -1)[row, column] ^= 1

    return change


SHAPE, QUERY = {"INVALID_SHAPE", "INVALID_ARGUMENT"}, {"query", "query_rope", "key", "key_rope"}
REFUSED = {
    "index at the length": (entry("sparse_indices", (3, 0, 0), 9), "INVALID_INDEX", "sparse_indices"),
    "index far away": (entry("sparse_indices", (0, 0, 2), 2**31 - 1), "INVALID_INDEX", "sparse_indices"),
    "index -2": (entry("sparse_indices", (1, 0, 1), -2), "INVALID_INDEX", "sparse_indices"),
    "block beyond 2^31": (lambda a: (a.update(sparse_block_size=4), entry("sparse_indices", (0, 0, 0), 2**30)(a))[1], "INVALID_INDEX", "sparse_indices"),
    "page -1": (entry("block_table", (1, 2), -1), "INVALID_BLOCK", "block_table"),
    "page past the end": (entry("block_table", (0, 1), 5), "INVALID_BLOCK", "block_table"),
    "attention_mode 0": (put(attention_mode=0), {"INVALID_ARGUMENT", "UNSUPPORTED"}, "attention_mode"),
    "attention_mode left out": (lambda a: a.pop("attention_mode") and None, {"INVALID_ARGUMENT", "UNSUPPORTED"}, "attention_mode"),
    "attention_mode 1": (put(attention_mode=1), {"INVALID_ARGUMENT", "UNSUPPORTED"}, "attention_mode"),
    "value differs": (one_byte(15, 3), {"INVALID_ARGUMENT", "INVALID_VALUE"}, "value"),
    "value shape": (put(value=lambda v: v[:4].copy()), "INVALID_SHAPE", "value"),
    "value dtype": (put(value=lambda v: v.astype(np.float32)), "INVALID_DTYPE", "value"),
    "value missing": (put(value=None), "INVALID_ARGUMENT", "value"),
    "totals decrease": (entry("actual_seq_lengths_query", 0, 5), "INVALID_SEQLEN", "actual_seq_lengths_query"),
    "totals past the rows": (entry("actual_seq_lengths_query", 1, 5), "INVALID_SEQLEN", "actual_seq_lengths_query"),
    "length past the pages": (entry("actual_seq_lengths_kv", 0, 13), "INVALID_SEQLEN", {"actual_seq_lengths_kv", "block_table"}),
    "length negative": (entry("actual_seq_lengths_kv", 1, -1), "INVALID_SEQLEN", "actual_seq_lengths_kv"),
    "lengths one more": (put(actual_seq_lengths_kv=np.array([0, 5, 9], np.int32)), {"INVALID_SEQLEN", "INVALID_SHAPE"}, {"actual_seq_lengths_kv", "block_table"}),
    "lengths fp32": (put(actual_seq_lengths_kv=np.array([5, 9], F)), "INVALID_DTYPE", "actual_seq_lengths_kv"),
    "lengths absent": (put(actual_seq_lengths_kv=None), "INVALID_ARGUMENT", "actual_seq_lengths_kv"),
    "query lengths absent": (put(actual_seq_lengths_query=None), "INVALID_ARGUMENT", "actual_seq_lengths_query"),
    "table missing": (put(block_table=None), "INVALID_ARGUMENT", "block_table"),
    "table without pages": (dense(put(block_table=np.zeros((2, 3), np.int32))), "INVALID_ARGUMENT", "block_table"),
    "table rows": (put(block_table=lambda v: v[:1].copy()), "INVALID_SHAPE", "block_table"),
    "table int64": (put(block_table=lambda v: v.astype(np.int64)), "INVALID_DTYPE", "block_table"),
    "indices int64": (put(sparse_indices=lambda v: v.astype(np.int64)), "INVALID_DTYPE", "sparse_indices"),
    "indices rows": (put(sparse_indices=lambda v: v[:3].copy()), "INVALID_SHAPE", "sparse_indices"),
    "indices of no width": (put(sparse_indices=np.zeros((4, 1, 0), np.int32), level="strict"), SHAPE, "sparse_indices"),
    "indices of two key heads": (put(sparse_indices=np.zeros((4, 2, 3), np.int32)), "INVALID_SHAPE", "sparse_indices"),
    "two key heads": (put(key=lambda v: v.repeat(2, axis=2), value=lambda v: v.repeat(2, axis=2)), "INVALID_SHAPE", {"key", "value"}),
    "layouts differ": (put(layout_kv="BSND", block_table=None), {"INVALID_ARGUMENT", "INVALID_SHAPE"}, {"layout_kv", "layout_query", "key"}),
    "layout unknown": (put(layout_kv="PA_NZ", block_table=None), "INVALID_ARGUMENT", "layout_kv"),
    "paged query": (put(layout_query="PA_BSND"), "INVALID_ARGUMENT", "layout_query"),
    "sparse_block_size 0": (put(sparse_block_size=0), "INVALID_ARGUMENT", "sparse_block_size"),
    "sparse_block_size 3": (put(sparse_block_size=3), "INVALID_ARGUMENT", {"sparse_block_size", "key"}),
    "sparse_mode 2": (put(sparse_mode=2), "INVALID_ARGUMENT", "sparse_mode"),
    "next_tokens 0": (put(next_tokens=0), {"INVALID_ARGUMENT", "UNSUPPORTED"}, "next_tokens"),
    "pre_tokens 5": (put(pre_tokens=5), {"INVALID_ARGUMENT", "UNSUPPORTED"}, "pre_tokens"),
    "scale nan": (put(scale_value=float("nan")), "INVALID_ARGUMENT", "scale_value"),
    "scale inf": (put(scale_value=float("inf")), "INVALID_ARGUMENT", "scale_value"),
    "scale beyond fp32": (put(scale_value=1e39), "INVALID_ARGUMENT", "scale_value"),
    "sinks shape": (put(sinks=np.zeros(2, F)), "INVALID_SHAPE", "sinks"),
    "sinks nan": (put(sinks=np.full(3, np.nan, F)), {"INVALID_ARGUMENT", "INVALID_VALUE"}, "sinks"),
    "sinks bf16": (put(sinks=np.zeros(3, BF16)), "INVALID_DTYPE", "sinks"),
    "index_check unknown": (put(index_check="ignore"), "INVALID_ARGUMENT", "index_check"),
    "query fp32": (put(query=lambda v: v.astype(F)), "INVALID_DTYPE", "query"),
    "strict sizes": (put(level="strict"), "UNSUPPORTED", None),
}  # fmt: skip
ONLY = {
    SFA: {
        "query_rope missing": (put(query_rope=None), "INVALID_ARGUMENT", "query_rope"),
        "key_rope missing": (put(key_rope=None), "INVALID_ARGUMENT", "key_rope"),
        "key_rope width": (put(key_rope=lambda v: v[..., :3].copy()), "INVALID_SHAPE", QUERY),
        "key_rope rows": (put(key_rope=lambda v: v[:4].copy()), "INVALID_SHAPE", QUERY),
        "key width": (put(key=lambda v: v[..., :8].copy(), value=lambda v: v[..., :8].copy()), "INVALID_SHAPE", QUERY),
        "key fp16": (put(key=lambda v: v.astype(np.float16), value=lambda v: v.astype(np.float16)), "INVALID_DTYPE", QUERY),
        "rope fp16": (put(key_rope=lambda v: v.astype(np.float16)), "INVALID_DTYPE", QUERY),
        "key int8": (put(key=lambda v: v.astype(np.int8), value=lambda v: v.astype(np.int8)), "INVALID_DTYPE", "key"),
        "lse with strict pages": (put(return_softmax_lse=True, level="strict"), "UNSUPPORTED", None),
    },
    KVSFA: {
        "key_quant_mode 1": (put(key_quant_mode=1), {"INVALID_ARGUMENT", "UNSUPPORTED"}, "key_quant_mode"),
        "value_quant_mode 0": (put(value_quant_mode=0), {"INVALID_ARGUMENT", "UNSUPPORTED"}, "value_quant_mode"),
        "modes left out": (lambda a: (a.pop("key_quant_mode"), a.pop("value_quant_mode"))[2:], "INVALID_ARGUMENT", {"key_quant_mode", "value_quant_mode"}),
        "repo mode 0": (put(quant_scale_repo_mode=0), {"INVALID_ARGUMENT", "UNSUPPORTED"}, "quant_scale_repo_mode"),
        "scale tensor": (put(key_dequant_scale=np.ones(4, F)), {"INVALID_ARGUMENT", "UNSUPPORTED"}, "key_dequant_scale"),
        "value scale tensor": (put(value_dequant_scale=np.ones(4, F)), {"INVALID_ARGUMENT", "UNSUPPORTED"}, "value_dequant_scale"),
        "key_dtype": (put(key_dtype=1), "UNSUPPORTED", "key_dtype"),
        "value_dtype": (put(value_dtype=1), "UNSUPPORTED", "value_dtype"),
        "row one longer": (put(key=lambda v: longer(v), value=lambda v: longer(v)), "INVALID_SHAPE", {"key", "query", "tile_size"}),
        "rows of another tile": (put(tile_size=4), SHAPE, {"key", "tile_size"}),
        "tile that does not divide": (put(tile_size=5), SHAPE, {"key", "tile_size"}),
        "tile 0": (put(tile_size=0), SHAPE, "tile_size"),
        "rope of another width": (put(rope_head_dim=3), SHAPE, {"key", "rope_head_dim", "query", "tile_size"}),
        "rope negative": (put(rope_head_dim=-1), SHAPE, "rope_head_dim"),
        "key bf16": (put(key=lambda v: v.astype(BF16), value=lambda v: v.astype(BF16)), "INVALID_DTYPE", "key"),
        "value rope byte differs": (one_byte(15, 18), {"INVALID_ARGUMENT", "INVALID_VALUE"}, "value"),
        "value scale byte differs": (one_byte(15, 25), {"INVALID_ARGUMENT", "INVALID_VALUE"}, "value"),
    },
}  # fmt: skip


def longer(v):
    return np.concatenate([v, v[..., :1]], axis=-1)


@both
@pytest.mark.parametrize("name, what", [(n, what) for n in (SFA, KVSFA) for what in REFUSED | ONLY[n]])
def test_refused(name, what, impl):
    change, status, parameter = (REFUSED | ONLY[name])[what]
    args = base(name)
    alone(name, args, impl)  # good as it is
    position = change(args)
    guards = [v for v in args.values() if isinstance(v, np.ndarray)]
    refused(lambda: operator(name, impl)(**args), name, status, parameter or set(args), position or None, guards)


@both
@each
def test_what_is_not_refused(name, impl):
    """A byte of value that no list names; a page nobody needs; entries behind the end of the list."""
    args = base(name)
    want = alone(name, args, impl)
    one_byte(19, 0)(args)
    assert_same(alone(name, args, impl), want)
    args["sparse_indices"][0, 0, 2] = args["sparse_indices"][1, 0, :] = -1
    args["sparse_indices"][1, 0, 0] = 0
    args["block_table"][0, 1] = 99
    args["sparse_indices"][1, 0, 2] = -5
    alone(name, args, impl)


def strict_base(name, **more):
    """The sizes of the devices."""
    rng = generator(78)
    args = base(name)
    query = uniform(rng, (4, 2, 576))
    if name == SFA:
        args.update(
            query=query[..., :512].copy(), query_rope=query[..., 512:].copy(), key=uniform(rng, (5, 16, 1, 512))
        )
        args["key_rope"] = uniform(rng, (5, 16, 1, 64))
    else:
        rows = join_rows(codes(rng, (80, 512)), uniform(rng, (80, 64)), rng.random((80, 4)))
        args.update(query=query, key=rows.reshape(5, 16, 1, 656), tile_size=128, rope_head_dim=64)
    return args | dict(value=args["key"], level="strict") | more


@both
@each
def test_strict(name, impl):
    args = strict_base(name)
    args["sparse_indices"][2, 0] = [0, 7, 7]
    want = alone(name, args | dict(level="portable"), impl)
    assert_same(alone(name, args, impl), want)
    refuse = lambda changes, statuses, parameters: refused(
        lambda: operator(name, impl)(**{**strict_base(name), **changes}), name, statuses, parameters
    )
    refuse(dict(sinks=np.zeros(2, F)), "UNSUPPORTED", "sinks")
    refuse(
        dict(sparse_block_size=32 if name == KVSFA else 256),
        {"UNSUPPORTED", "INVALID_ARGUMENT"},
        {"sparse_block_size", "key"},
    )
    late = strict_base(name)["sparse_indices"]
    late[0, 0] = [3, 3, 3]
    late[1, 0] = [3, 4, 4]
    assert_same(alone(name, strict_base(name) | dict(sparse_indices=late), impl),
                alone(name, strict_base(name) | dict(sparse_indices=late, level="portable"), impl))  # fmt: skip
    short = np.array([1, 9], np.int32)  # row 1 sees one token, and two entries attend to it
    late = np.array([[0, 0, -1], [0, 0, -1], [7, 0, 1], [8, 2, 5]], np.int32)[:, None]
    changes = dict(sparse_indices=late, actual_seq_lengths_kv=short)
    alone(name, strict_base(name) | changes | dict(level="portable"), impl)
    refuse(changes, {"UNSUPPORTED", "INVALID_INDEX"}, "sparse_indices")
    refuse(dict(index_check="mask"), {"UNSUPPORTED", "INVALID_ARGUMENT"}, "index_check")
    three = {k: np.concatenate([v, v[:, :1]], axis=1) for k, v in strict_base(name).items() if k.startswith("query")}
    refuse(three, "UNSUPPORTED", {"query", "N1"})
    pages = {k: v[:, :8].copy() for k, v in strict_base(name).items() if k in ("key", "key_rope")}
    refuse(
        pages | dict(value=pages["key"], block_table=np.array([[0, 1, 2], [4, 3, 2]], np.int32)),
        "UNSUPPORTED",
        {"key", "block_size"},
    )
