# SPDX-License-Identifier: Apache-2.0
import functools

import numpy as np
import pytest

from oracle import indexer
from oracle.cases import BF16, F, generator, lay_out, small_integers, uniform
from oracle.harness import assert_same, both, operator, per_thread_count, refused, seeds, to_numpy, to_torch
from oracle.rounding import U

NAME = "lightning_indexer"
LAYOUTS = [("BSND", "BSND"), ("TND", "TND"), ("BSND", "PA_BSND"), ("TND", "PA_BSND")]


@functools.lru_cache(None)
def case(
    seed,
    *,
    layouts=None,
    heads=None,
    width=None,
    data=None,
    dtype=None,
    longest=70,
    block_size=None,
    page_seed=0,
    count=None,
):
    """Keyword arguments, wanted indices and values, and the scores of every row."""
    rng = generator(seed)
    pick = lambda given, options: (
        options[rng.integers(len(options))] if given is None else (rng.integers(len(options)), given)[1]
    )
    layout_query, layout_key = pick(layouts, LAYOUTS)
    mode = int(pick(None, [0, 3]))
    heads, width = int(pick(heads, [1, 3, 16, 17, 32, 64])), int(pick(width, [1, 16, 33, 128]))
    data = pick(data, ["uniform", "integers", "cancelling", "negative", "huge"])
    dtype = pick(dtype, [BF16, np.float16])
    count = int(pick(count, [1, 7, 16, 64, longest + 5]))
    weight_type = dtype if rng.integers(2) else F
    batch = int(rng.integers(1, 5))
    lq, lk = rng.integers(0, 5, batch), rng.integers(0, longest + 1, batch)
    if batch > 1:
        lk[rng.integers(batch)] = 0

    def values(shape, sign=1):
        if data == "integers":
            return small_integers(rng, shape, 2, 1, dtype)
        if data == "negative":
            return (sign * (rng.random(shape) + 0.1)).astype(dtype)
        if data == "huge" and shape[0]:
            v = uniform(rng, shape, 1, dtype)
            v[..., rng.integers(shape[-1])] *= dtype(2.0**7)
            return v
        v = uniform(rng, shape, 1, dtype)
        if data == "cancelling" and shape[-1] > 1:
            half = shape[-1] // 2
            v[..., half : 2 * half] = sign * v[..., :half]
        return v

    q = [values((n, heads, width)) for n in lq]
    k = [values((n, width), -1) for n in lk]
    w = [
        uniform(rng, (n, heads), 1, weight_type)
        if data != "integers"
        else small_integers(rng, (n, heads), 1, 1, weight_type)
        for n in lq
    ]
    if layout_key == "PA_BSND" and block_size is None:
        block_size = int(rng.choice([1, 5, 16]))
    args = lay_out(
        layout_query,
        layout_key,
        lq,
        lk,
        dict(query=(q, np.nan), weights=(w, np.nan)),
        dict(key=(k, np.nan)),
        page_rng=generator(seed + 1000 * page_seed),
        block_size=block_size,
        longest=longest,
        pad=True,
    )
    args.update(sparse_count=count, sparse_mode=mode)
    wanted = np.full(args["query"].shape[:-2] + (1, count), -1, np.int32)
    best = np.full(wanted.shape, -np.inf, dtype)
    rows, row = [], 0
    for b in range(batch):
        for i in range(lq[b]):
            at = (b, i) if layout_query == "BSND" else (row,)
            n = indexer.visible(mode, int(lq[b]), int(lk[b]), i)
            scores = indexer.float_scores(q[b][i], k[b][:n], w[b][i])
            chosen = indexer.select(scores, count)
            wanted[at + (0,)] = chosen
            with np.errstate(over="ignore"):
                best[at + (0,)][: min(n, count)] = scores[chosen[: min(n, count)]].astype(dtype)
            rows.append((at, q[b][i], k[b][:n], w[b][i]))
            row += 1
    return args, wanted, best, rows


def assert_values(got, wanted):
    """-0 equals +0."""
    assert got.dtype == wanted.dtype and got.shape == wanted.shape
    assert (got.astype(np.float64) == wanted.astype(np.float64)).all()


@both
@seeds(50)
def test_random(seed, impl):
    args, wanted, best, _ = case(seed)
    indices, values = operator(NAME, impl)(**args, return_value=True)
    assert_same(indices, wanted, "indices")
    assert_values(values, best)
    indices, values = operator(NAME, impl)(**args)
    assert_same(indices, wanted, "indices")
    assert values.shape == (0,) and values.dtype == best.dtype


@both
@pytest.mark.parametrize("heads", [32, 64])
def test_model_sizes(heads, impl):
    args, wanted, best, _ = case(
        900 + heads,
        layouts=("TND", "PA_BSND"),
        heads=heads,
        width=128,
        data="uniform",
        longest=400,
        block_size=128,
        count=256,
    )
    indices, values = operator(NAME, impl)(**args, return_value=True)
    assert_same(indices, wanted, "indices")
    assert_values(values, best)


@seeds(3, 200)
def test_threads_and_pages_do_not_matter(seed):
    op = operator(NAME)
    fixed = dict(layouts=("TND", "PA_BSND"), heads=16, width=64, data="uniform", longest=300, count=64)
    args, wanted, best, _ = case(seed, block_size=16, **fixed)
    for indices, values in per_thread_count(lambda: op(**args, return_value=True)):
        assert_same(indices, wanted, "indices")
        assert_values(values, best)
    for block_size, page_seed in ((16, 1), (1, 0), (128, 0)):
        other, same, _, _ = case(seed, block_size=block_size, page_seed=page_seed, **fixed)
        assert_same(same, wanted)
        assert_same(op(**other)[0], wanted, "indices")


@seeds(6, 300)
def test_fast_numerics_select_within_the_error_bound(seed):
    args, wanted, _, rows = case(seed, data="uniform", heads=16, width=128, longest=200)
    indices, _ = operator(NAME)(**args, numerics="fast")
    assert indices.shape == wanted.shape
    for at, q, k, w in rows:
        chosen = indices[at + (0,)]
        valid = chosen[chosen >= 0]
        q, k, w = (np.asarray(v, np.float64) for v in (q, k, w))
        n = min(len(k), len(chosen))
        assert (
            (chosen[:n] >= 0).all()
            and (chosen[n:] == -1).all()
            and len(set(valid.tolist())) == n
            and (valid < len(k)).all()
        )
        terms = q[:, None, :] * k[None]
        dot = np.maximum(terms.sum(axis=2), 0)
        dot_e = 2 * U * np.sqrt(q.shape[1]) * np.abs(np.cumsum(terms, axis=2)).max(axis=2, initial=0) + 2 * U * np.abs(
            terms
        ).sum(axis=2)
        score = w @ dot
        e = np.abs(w) @ (dot_e + 6 * U * dot)
        rest = np.setdiff1d(np.arange(len(k)), valid)
        if len(rest) and n:
            assert (score + e)[valid].min() >= (score - e)[rest].max()


@both
@seeds(3, 400)
def test_torch_in_torch_out(seed, impl):
    torch = pytest.importorskip("torch")
    args, wanted, best, _ = case(seed, dtype=BF16)
    indices, values = operator(NAME, impl)(**{k: to_torch(v) for k, v in args.items()}, return_value=True)
    assert isinstance(indices, torch.Tensor) and values.dtype == torch.bfloat16
    assert_same(to_numpy(indices), wanted, "indices")
    assert_values(to_numpy(values), best)


@both
def test_worked_examples(impl):
    """M1, M4 and M5."""
    op = operator(NAME, impl)
    q = np.array([[[1, 2, 0, -1], [0, 1, 1, 2]]], BF16)
    k = np.array([[2, 1, 0, 0], [3, 1, 2, 0], [0, 2, 0, 2], [3, 0, -1, -1]], BF16)[None, :, None]
    w = np.array([[1, -0.5]], BF16)
    for count, want in ((2, [3, 0]), (4, [3, 0, 1, 2]), (6, [3, 0, 1, 2, -1, -1])):
        indices, values = op(q[None], k, w[None], sparse_count=count, sparse_mode=0, return_value=True)
        assert indices.tolist() == [[[want]]]
        assert values.astype(F).tolist() == [[[[4, 3.5, 3.5, -1, -np.inf, -np.inf][:count]]]]
    two, weights = np.concatenate([q, q])[None], np.concatenate([w, w])[None]
    for count, want in ((2, [0, 1]), (4, [0, 1, 2, -1])):
        assert op(two, k, weights, sparse_count=count, sparse_mode=3)[0][0, 0].tolist() == [want]
    ones = np.ones((1, 3, 1, 1), BF16)
    got = op(ones, -ones[:, :2], ones[..., 0], sparse_count=3)[0]
    assert got.tolist() == [[[[-1, -1, -1]], [[0, -1, -1]], [[0, 1, -1]]]]


@both
def test_special_values(impl):
    one = np.ones((1, 1, 1, 1), np.float16)
    keys = np.array([np.nan, 60000, -np.inf, np.inf, 0.0], np.float16).reshape(1, 5, 1, 1)
    indices, values = operator(NAME, impl)(
        one, keys, one[..., 0] * np.float16(2), sparse_count=6, sparse_mode=0, return_value=True
    )
    assert indices[0, 0, 0].tolist() == [3, 1, 2, 4, 0, -1]
    assert (
        values[0, 0, 0, :4].tolist() == [np.inf, np.inf, 0, 0]
        and np.isnan(values[0, 0, 0, 4])
        and values[0, 0, 0, 5] == -np.inf
    )


def base():
    rng = generator(3)
    return dict(
        query=uniform(rng, (3, 4, 16)),
        key=uniform(rng, (4, 16, 1, 16)),
        weights=uniform(rng, (3, 4)),
        actual_seq_lengths_query=np.array([1, 3], np.int32),
        actual_seq_lengths_key=np.array([20, 33], np.int32),
        block_table=np.array([[0, 1, -1], [3, 2, 0]], np.int32),
        layout_query="TND",
        layout_key="PA_BSND",
        sparse_count=5,
    )


REFUSED = {
    "page -1": (
        dict(block_table=np.array([[0, 1, -1], [3, -1, 0]], np.int32)),
        "INVALID_BLOCK",
        "block_table",
        "[1][1]",
    ),
    "page past the end": (
        dict(block_table=np.array([[4, 1, -1], [3, 2, 0]], np.int32)),
        "INVALID_BLOCK",
        "block_table",
        "[0][0]",
    ),
    "two bad pages": (
        dict(block_table=np.array([[0, 7, -1], [-1, 2, 0]], np.int32)),
        "INVALID_BLOCK",
        "block_table",
        "[0][1]",
    ),
    "table columns": (
        dict(block_table=np.array([[0, 1], [3, 2]], np.int32)),
        "INVALID_SEQLEN",
        {"block_table", "actual_seq_lengths_key"},
        None,
    ),
    "table dtype": (
        dict(block_table=np.array([[0, 1, -1], [3, 2, 0]], np.int64)),
        "INVALID_DTYPE",
        "block_table",
        None,
    ),
    "table missing": (dict(block_table=None), "INVALID_ARGUMENT", "block_table", None),
    "lengths decrease": (
        dict(actual_seq_lengths_query=np.array([3, 2], np.int32)),
        "INVALID_SEQLEN",
        "actual_seq_lengths_query",
        "[1]",
    ),
    "lengths past T": (
        dict(actual_seq_lengths_query=np.array([1, 4], np.int32)),
        "INVALID_SEQLEN",
        "actual_seq_lengths_query",
        "[1]",
    ),
    "lengths negative": (
        dict(actual_seq_lengths_key=np.array([20, -1], np.int32)),
        "INVALID_SEQLEN",
        "actual_seq_lengths_key",
        "[1]",
    ),
    "lengths missing": (dict(actual_seq_lengths_query=None), "INVALID_ARGUMENT", "actual_seq_lengths_query", None),
    "one length too many": (
        dict(actual_seq_lengths_key=np.array([0, 20, 33], np.int32)),
        "INVALID_SEQLEN",
        {"actual_seq_lengths_key", "actual_seq_lengths_query"},
        None,
    ),
    "mixed dtypes": (dict(key=np.zeros((4, 16, 1, 16), np.float16)), "INVALID_DTYPE", {"key", "query"}, None),
    "weights dtype": (dict(weights=np.zeros((3, 4), np.float16)), "INVALID_DTYPE", "weights", None),
    "weights shape": (dict(weights=np.zeros((3, 5), BF16)), "INVALID_SHAPE", "weights", None),
    "key heads": (dict(key=np.zeros((4, 16, 2, 16), BF16)), "INVALID_SHAPE", "key", None),
    "count": (dict(sparse_count=0), "INVALID_ARGUMENT", "sparse_count", None),
    "mode": (dict(sparse_mode=2), "INVALID_ARGUMENT", "sparse_mode", None),
    "window": (dict(pre_tokens=100), "INVALID_ARGUMENT", "pre_tokens", None),
    "numerics": (dict(numerics="device"), "INVALID_ARGUMENT", "numerics", None),
    "layout": (dict(layout_key="TND"), "INVALID_ARGUMENT", {"block_table", "layout_key"}, None),
    "strict": (dict(level="strict"), "UNSUPPORTED", {"query", "key"}, None),
}


@both
@pytest.mark.parametrize("name", REFUSED)
def test_refused(name, impl):
    change, status, parameter, position = REFUSED[name]
    refused(lambda: operator(NAME, impl)(**dict(base(), **change)), NAME, status, parameter, position)


@both
def test_strict_limits(impl):
    op = operator(NAME, impl)
    args = base()
    args.update(query=np.zeros((3, 4, 128), BF16), key=np.zeros((4, 16, 1, 128), BF16), level="strict")
    assert op(**args)[0].shape == (3, 1, 5)
    refused(lambda: op(**dict(args, sparse_count=3000)), NAME, "UNSUPPORTED", "sparse_count")
    assert op(**dict(args, sparse_count=3072))[0].shape == (3, 1, 3072)
    refused(lambda: op(**args, return_value=True), NAME, "UNSUPPORTED", "return_value")
