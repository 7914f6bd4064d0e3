# SPDX-License-Identifier: Apache-2.0
import functools

import ml_dtypes
import numpy as np
import pytest

from oracle import indexer
from oracle.cases import BF16, F, codes, generator, lay_out
from oracle.harness import ALL_TOKENS, assert_same, both, operator, per_thread_count, refused, seeds, to_numpy, to_torch

NAME = "quant_lightning_indexer"
LAYOUTS = [("BSND", "BSND"), ("TND", "TND"), ("BSND", "PA_BSND"), ("TND", "PA_BSND")]


def make(
    seed,
    *,
    layouts=None,
    mode=None,
    heads=None,
    width=None,
    count=None,
    data=None,
    numerics="fp32",
    longest=90,
    block_size=None,
    page_seed=0,
    pad=True,
):
    """Keyword arguments and the wanted indices. `page_seed` and `block_size` change the pages, nothing else."""
    rng = generator(seed)
    pick = lambda given, options: (
        options[rng.integers(len(options))] if given is None else (rng.integers(len(options)), given)[1]
    )
    layout_query, layout_key = pick(layouts, LAYOUTS)
    mode = pick(mode, [0, 3])
    heads = pick(heads, [1, 3, 8, 16, 17, 32, 64])
    width = pick(width, [1, 16, 33, 64, 128])
    data = pick(data, ["full", "ties", "negative", "scales", "minimum"])
    batch = int(rng.integers(1, 5))
    lq = rng.integers(0, 5, batch)
    lk = rng.integers(0, longest + 1, batch)
    if batch > 1:
        lk[rng.integers(batch)] = 0
        lq[rng.integers(batch)] = 0
    count = pick(count, [1, 7, 16, 64, longest + 5])
    low = dict(ties=(-2, 3), minimum=(-128, -127), negative=(1, 5)).get(data, (-128, 128))
    make_codes = lambda shape, sign=1: (sign * rng.integers(*low, shape)).astype(np.int8)
    half = numerics == "device"
    weight_type = np.float16 if half else [np.float16, BF16, F][rng.integers(3)]
    scale_type = np.float16 if half else [np.float16, F][rng.integers(2)]
    spread = (lambda shape: 2.0 ** rng.integers(-10, 11, shape)) if data == "scales" else (lambda shape: 1.0)
    q = [make_codes((n, heads, width)) for n in lq]
    k = [make_codes((n, width), -1 if data == "negative" else 1) for n in lk]
    w = [((rng.random((n, heads)) * 2 - 1) * spread((n, heads))).astype(weight_type) for n in lq]
    qs = [(rng.random((n, heads)) * spread((n, heads)) * 0.01).astype(scale_type) for n in lq]
    ks = [(rng.random(n) * spread(n) * (rng.random(n) > 0.1) * 0.01).astype(scale_type) for n in lk]
    if data == "ties":
        w, qs, ks = ([np.ones_like(v) for v in part] for part in (w, qs, ks))
    if layout_key == "PA_BSND" and block_size is None:
        block_size = int(rng.choice([1, 5, 16, 32]))
    args = lay_out(
        layout_query,
        layout_key,
        lq,
        lk,
        dict(query=(q, 99), weights=(w, np.nan), query_dequant_scale=(qs, np.nan)),
        dict(key=(k, 127), key_dequant_scale=(ks, np.nan)),
        page_rng=generator(seed + 1000 * page_seed),
        block_size=block_size,
        longest=longest,
        pad=pad,
    )
    args.update(sparse_count=count, sparse_mode=mode)
    if numerics != "fp32":
        args["numerics"] = numerics

    wanted = np.full(args["query"].shape[:-2] + (1, count), -1, np.int32)
    row = 0
    for b in range(batch):
        for i in range(lq[b]):
            n = indexer.visible(mode, int(lq[b]), int(lk[b]), i)
            scores = indexer.quant_scores(q[b][i], k[b][:n], w[b][i], qs[b][i], ks[b][:n], numerics)
            target = wanted[b, i] if layout_query == "BSND" else wanted[row]
            target[0] = indexer.select(scores, count)
            row += 1
    return args, wanted


case = functools.lru_cache(None)(make)


@both
@seeds(60)
def test_random(seed, impl):
    args, wanted = case(seed)
    assert_same(operator(NAME, impl)(**args), wanted, "indices")


@both
@pytest.mark.parametrize("heads", [8, 32, 64])
@pytest.mark.parametrize("data", ["full", "ties", "scales"])
def test_model_sizes(heads, data, impl):
    args, wanted = case(
        650 + heads,
        layouts=("TND", "PA_BSND"),
        heads=heads,
        width=128,
        count=2048,
        data=data,
        longest=5000,
        block_size=128,
    )
    assert_same(operator(NAME, impl)(**args), wanted, "indices")


@both
@seeds(10, 100)
def test_device_numerics(seed, impl):
    args, wanted = case(seed, numerics="device")
    assert_same(operator(NAME, impl)(**args), wanted, "indices")


@seeds(4, 200)
def test_threads_pages_and_containers_do_not_matter(seed):
    op = operator(NAME)
    args, wanted = case(seed, layouts=("TND", "PA_BSND"), longest=400, heads=64, width=128, count=64, block_size=16)
    for result in per_thread_count(lambda: op(**args)):
        assert_same(result, wanted, "indices")
    for block_size, page_seed in ((16, 1), (1, 0), (128, 0)):
        other, same = case(
            seed,
            layouts=("TND", "PA_BSND"),
            longest=400,
            heads=64,
            width=128,
            count=64,
            block_size=block_size,
            page_seed=page_seed,
        )
        assert_same(same, wanted)
        assert_same(op(**other), wanted, "indices")
    listed = dict(
        args,
        actual_seq_lengths_query=args["actual_seq_lengths_query"].tolist(),
        actual_seq_lengths_key=tuple(args["actual_seq_lengths_key"].tolist()),
    )
    assert_same(op(**listed), wanted, "indices")


@both
@seeds(3, 300)
def test_torch_in_torch_out(seed, impl):
    torch = pytest.importorskip("torch")
    args, wanted = case(seed)
    got = operator(NAME, impl)(**{k: to_torch(v) for k, v in args.items()})
    assert isinstance(got, torch.Tensor)
    assert_same(to_numpy(got), wanted, "indices")


@both
def test_accepted_forms(impl):
    op = operator(NAME, impl)
    args, wanted = case(8, layouts=("TND", "PA_BSND"), mode=3, heads=8, width=16, data="full", block_size=16)
    four = dict(args, key_dequant_scale=args["key_dequant_scale"][..., None])
    assert_same(op(**four), wanted, "key scale as [pages, block_size, 1, 1]")
    backwards = dict(args, query=np.ascontiguousarray(args["query"][::-1])[::-1])
    assert_same(op(**backwards), wanted, "negative stride")
    wide = np.zeros(args["key"].shape[:3] + (20,), np.int8)
    wide[..., :16] = args["key"]
    assert_same(op(**dict(args, key=wide[..., :16])), wanted, "strided rows")
    frozen = {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in args.items()}
    for v in frozen.values():
        if isinstance(v, np.ndarray):
            v.setflags(write=False)
    assert_same(op(**frozen), wanted, "read-only arrays")
    positional = [args[n] for n in ("query", "key", "weights", "query_dequant_scale", "key_dequant_scale")]
    rest = {
        k: v
        for k, v in args.items()
        if k not in ("query", "key", "weights", "query_dequant_scale", "key_dequant_scale")
    }
    assert_same(
        op(*positional, 0, 0, **rest, pre_tokens=ALL_TOKENS, next_tokens=ALL_TOKENS, level="portable"),
        wanted,
        "positional",
    )


@both
def test_lengths_default_to_the_whole_in_bsnd(impl):
    rng = generator(1)
    q, k = codes(rng, (2, 3, 4, 16)), codes(rng, (2, 9, 1, 16))
    w, qs, ks = np.ones((2, 3, 4), np.float16), np.ones((2, 3, 4), np.float16), np.ones((2, 9, 1), np.float16)
    got = operator(NAME, impl)(q, k, w, qs, ks, sparse_count=5)
    for b in range(2):
        for i in range(3):
            n = 9 - 3 + i + 1
            scores = indexer.quant_scores(q[b, i], k[b, :n, 0], w[b, i], qs[b, i], ks[b, :n, 0])
            assert got[b, i, 0].tolist() == indexer.select(scores, 5).tolist()


def tiny(q, k, ks=None, **kw):
    q, k = np.array(q, np.int8), np.array(k, np.int8)
    one = np.ones((1, len(q), 1), np.float16)
    ks = np.ones(len(k), np.float16) if ks is None else np.array(ks, np.float16)
    return (q[None, :, None], k[None, :, None], one, one, ks[None, :, None]), dict(dict(sparse_mode=0), **kw)


@both
def test_worked_examples(impl):
    op = operator(NAME, impl)
    m2 = ([[64, 1, 0, 0]], [[64, 0, 0, 0], [64, 1, 0, 0]])
    for numerics, best in (("fp32", 1), ("device", 0)):
        args, kw = tiny(*m2, sparse_count=1, numerics=numerics)
        assert op(*args, **kw).tolist() == [[[[best]]]]
    args, kw = tiny([[1]], [[3], [6]], [0.5, 0.25], sparse_count=2)
    assert op(*args, **kw).tolist() == [[[[0, 1]]]]
    for length, want in ((5, [0, 1, 2]), (2, [0, 1, -1])):
        args, kw = tiny([[1, 1]], [[-1, -2]] * length, sparse_count=3)
        assert op(*args, **kw).tolist() == [[[want]]]
    args, kw = tiny([[1]] * 3, [[1], [2]], sparse_count=3, sparse_mode=3)
    assert op(*args, **kw).tolist() == [[[[-1, -1, -1]], [[0, -1, -1]], [[1, 0, -1]]]]
    args, kw = tiny([[-128] * 128], [[-127] * 128, [-128] * 128], sparse_count=1)
    assert op(*args, **kw).tolist() == [[[[1]]]]


@both
def test_special_scores(impl):
    """NaN ranks last but before padding; -inf like any other; negative weights put zeros first; ks = 0 ties."""
    q, k = np.full((1, 1, 1, 1), 1, np.int8), np.array([3, 2, 1, 4, 0], np.int8).reshape(1, 5, 1, 1)
    one = np.ones((1, 1, 1), F)
    ks = np.array([np.nan, -np.inf, 1, np.inf, -1], F).reshape(1, 5, 1)
    run = lambda w, ks: operator(NAME, impl)(q, k, one * F(w), one, ks, sparse_count=6, sparse_mode=0)[0, 0, 0].tolist()
    assert run(1, ks) == [3, 2, 4, 1, 0, -1]
    assert run(-1, np.ones((1, 5, 1), F)) == [4, 2, 1, 0, 3, -1]
    assert run(1, np.zeros((1, 5, 1), F)) == [0, 1, 2, 3, 4, -1]
    assert run(np.nan, np.ones((1, 5, 1), F)) == [0, 1, 2, 3, 4, -1]


@both
def test_empty_inputs(impl):
    op = operator(NAME, impl)
    half = np.float16
    got = op(
        np.zeros((0, 4, 8), np.int8),
        np.zeros((2, 4, 1, 8), np.int8),
        np.zeros((0, 4), half),
        np.zeros((0, 4), half),
        np.zeros((2, 4, 1), half),
        actual_seq_lengths_query=[0],
        actual_seq_lengths_key=[3],
        block_table=np.zeros((1, 1), np.int32),
        layout_query="TND",
        layout_key="PA_BSND",
        sparse_count=3,
    )
    assert got.shape == (0, 1, 3) and got.dtype == np.int32
    got = op(
        np.zeros((1, 2, 4, 8), np.int8),
        np.zeros((1, 0, 1, 8), np.int8),
        np.zeros((1, 2, 4), half),
        np.zeros((1, 2, 4), half),
        np.zeros((1, 0, 1), half),
        sparse_count=3,
    )
    assert got.tolist() == [[[[-1] * 3]] * 2]


def call_to_refuse():
    args, _ = case(8, layouts=("TND", "PA_BSND"), mode=3, heads=8, width=16, data="full", block_size=16)
    args = {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in args.items()}
    return args


def one_used_entry(args):
    """A sequence with keys, and its last used table entry."""
    b = int(np.argmax(args["actual_seq_lengths_key"]))
    return b, int(args["actual_seq_lengths_key"][b] - 1) // 16


def table_entry(value):
    def change(args):
        b, column = one_used_entry(args)
        args["block_table"][b, column] = value
        return f"[{b}][{column}]"

    return change


def put(**changes):
    return lambda args: args.update({k: v(args[k]) if callable(v) else v for k, v in changes.items()})


def lengths(name, index, value):
    def change(args):
        at = index % len(args[name])
        args[name][at] = value(args) if callable(value) else value
        return f"[{at}]"

    return change


REFUSED = {
    "page -1": (table_entry(-1), "INVALID_BLOCK", "block_table"),
    "page past the end": (lambda a: table_entry(len(a["key"]))(a), "INVALID_BLOCK", "block_table"),
    "too few table columns": (
        put(block_table=lambda t: np.ascontiguousarray(t[:, :1])),
        "INVALID_SEQLEN",
        {"block_table", "actual_seq_lengths_key"},
    ),
    "table of rank 1": (put(block_table=lambda t: t[0].copy()), "INVALID_SHAPE", "block_table"),
    "table int64": (put(block_table=lambda t: t.astype(np.int64)), "INVALID_DTYPE", "block_table"),
    "table missing": (put(block_table=None), "INVALID_ARGUMENT", "block_table"),
    "table rows": (put(block_table=lambda t: np.concatenate([t, t])), "INVALID_SHAPE", "block_table"),
    "query lengths negative": (
        lengths("actual_seq_lengths_query", 0, -1),
        "INVALID_SEQLEN",
        "actual_seq_lengths_query",
    ),
    "query lengths past T": (
        lengths("actual_seq_lengths_query", -1, lambda a: len(a["query"]) + 1),
        "INVALID_SEQLEN",
        "actual_seq_lengths_query",
    ),
    "query lengths decrease": (
        put(actual_seq_lengths_query=lambda v: np.append(v[:-1] * 0 + 2, 1).astype(np.int32)),
        "INVALID_SEQLEN",
        "actual_seq_lengths_query",
    ),
    "key length negative": (lengths("actual_seq_lengths_key", 0, -1), "INVALID_SEQLEN", "actual_seq_lengths_key"),
    "key length past the table": (
        lengths("actual_seq_lengths_key", 0, 100000),
        "INVALID_SEQLEN",
        {"actual_seq_lengths_key", "block_table"},
    ),
    "one length too many": (
        put(actual_seq_lengths_key=lambda v: np.append(v, 1).astype(np.int32)),
        "INVALID_SEQLEN",
        {"actual_seq_lengths_key", "actual_seq_lengths_query"},
    ),
    "query lengths missing": (put(actual_seq_lengths_query=None), "INVALID_ARGUMENT", "actual_seq_lengths_query"),
    "key lengths missing": (put(actual_seq_lengths_key=None), "INVALID_ARGUMENT", "actual_seq_lengths_key"),
    "query dtype": (put(query=lambda v: v.astype(F)), "INVALID_DTYPE", "query"),
    "key dtype": (put(key=lambda v: v.astype(np.uint8)), "INVALID_DTYPE", "key"),
    "weights dtype": (put(weights=lambda v: v.astype(np.float64)), "INVALID_DTYPE", "weights"),
    "float8 key": (
        put(
            key=lambda v: np.zeros(v.shape, ml_dtypes.float8_e4m3fn),
            query=lambda v: np.zeros(v.shape, ml_dtypes.float8_e4m3fn),
        ),
        {"UNSUPPORTED", "INVALID_DTYPE"},
        {"query", "key"},
    ),
    "key scale with two columns": (
        put(key_dequant_scale=lambda v: np.repeat(v, 2, axis=2)),
        "INVALID_SHAPE",
        "key_dequant_scale",
    ),
    "query scale heads": (put(query_dequant_scale=lambda v: v[:, :-1].copy()), "INVALID_SHAPE", "query_dequant_scale"),
    "weights rows": (put(weights=lambda v: v[:-1].copy()), "INVALID_SHAPE", "weights"),
    "query rank": (put(query=lambda v: v[None]), "INVALID_SHAPE", "query"),
    "key width": (put(key=lambda v: v[..., :-1].copy()), "INVALID_SHAPE", {"key", "query"}),
    "two key heads": (put(key=lambda v: np.repeat(v, 2, axis=2)), "INVALID_SHAPE", "key"),
    "key missing": (put(key=None), "INVALID_ARGUMENT", "key"),
    "count 0": (put(sparse_count=0), "INVALID_ARGUMENT", "sparse_count"),
    "count -1": (put(sparse_count=-1), "INVALID_ARGUMENT", "sparse_count"),
    "count bool": (put(sparse_count=True), "INVALID_DTYPE", "sparse_count"),
    "count float": (put(sparse_count=2.5), "INVALID_DTYPE", "sparse_count"),
    "query mode": (put(query_quant_mode=2), "INVALID_ARGUMENT", "query_quant_mode"),
    "key mode": (put(key_quant_mode=2), "INVALID_ARGUMENT", "key_quant_mode"),
    "sparse mode": (put(sparse_mode=1), "INVALID_ARGUMENT", "sparse_mode"),
    "window": (put(next_tokens=0), "INVALID_ARGUMENT", "next_tokens"),
    "window before": (put(pre_tokens=5), "INVALID_ARGUMENT", "pre_tokens"),
    "query_dtype": (put(query_dtype=290), {"INVALID_ARGUMENT", "UNSUPPORTED"}, "query_dtype"),
    "layout pair": (put(layout_key="BSND"), "INVALID_ARGUMENT", {"layout_key", "layout_query"}),
    "layout unknown": (put(layout_query="BNSD"), "INVALID_ARGUMENT", "layout_query"),
    "numerics unknown": (put(numerics="exact"), "INVALID_ARGUMENT", "numerics"),
    "level unknown": (put(level="lenient"), "INVALID_ARGUMENT", "level"),
    "device numerics of fp32": (put(numerics="device", weights=lambda v: v.astype(F)), "INVALID_DTYPE", "weights"),
    "innermost stride": (put(query=lambda v: np.repeat(v, 2, axis=2)[:, :, ::2]), "INVALID_STRIDE", "query"),
    "strict width": (put(level="strict", query_quant_mode=0, key_quant_mode=0), "UNSUPPORTED", {"query", "key"}),
}


@both
@pytest.mark.parametrize("name", REFUSED)
def test_refused(name, impl):
    change, status, parameter = REFUSED[name]
    args = call_to_refuse()
    position = change(args)
    if name == "strict width":
        for scale in ("weights", "query_dequant_scale", "key_dequant_scale"):
            args[scale] = args[scale].astype(np.float16)
    refused(lambda: operator(NAME, impl)(**args), NAME, status, parameter, position)


@both
def test_refused_in_bsnd(impl):
    args, _ = case(11, layouts=("BSND", "BSND"), heads=8, width=16)
    op = operator(NAME, impl)
    s1, s2 = args["query"].shape[1], args["key"].shape[1]
    change = lambda name, at, value: dict(
        args, **{name: np.concatenate([args[name][:at], [value], args[name][at + 1 :]]).astype(np.int32)}
    )
    refused(
        lambda: op(**change("actual_seq_lengths_query", 0, s1 + 1)),
        NAME,
        "INVALID_SEQLEN",
        "actual_seq_lengths_query",
        "[0]",
    )
    refused(
        lambda: op(**change("actual_seq_lengths_key", 0, s2 + 1)),
        NAME,
        "INVALID_SEQLEN",
        "actual_seq_lengths_key",
        "[0]",
    )
    refused(
        lambda: op(**dict(args, block_table=np.zeros((len(args["query"]), 9), np.int32))),
        NAME,
        "INVALID_ARGUMENT",
        "block_table",
    )


@both
def test_strict_limits(impl):
    rng = generator(5)
    half = np.float16
    args = dict(
        query=codes(rng, (2, 64, 128)),
        key=codes(rng, (3, 16, 1, 128)),
        weights=np.ones((2, 64), half),
        query_dequant_scale=np.ones((2, 64), half),
        key_dequant_scale=np.ones((3, 16, 1), half),
        query_quant_mode=0,
        key_quant_mode=0,
        actual_seq_lengths_query=np.array([2], np.int32),
        actual_seq_lengths_key=np.array([40], np.int32),
        block_table=np.array([[2, 0, 1]], np.int32),
        layout_query="TND",
        layout_key="PA_BSND",
        sparse_count=8,
        level="strict",
    )
    op = operator(NAME, impl)
    assert op(**args).shape == (2, 1, 8)
    refused(lambda: op(**dict(args, sparse_count=2049)), NAME, "UNSUPPORTED", "sparse_count")
    refused(
        lambda: op(
            **dict(
                args,
                key=args["key"][:, :8].copy(),
                key_dequant_scale=args["key_dequant_scale"][:, :8].copy(),
                actual_seq_lengths_key=np.array([20], np.int32),
            )
        ),
        NAME,
        "UNSUPPORTED",
        {"key", "block_table"},
    )
    assert op(**dict(args, sparse_count=2049, level="portable")).shape == (2, 1, 2049)
