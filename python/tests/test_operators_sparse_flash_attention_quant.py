# SPDX-License-Identifier: Apache-2.0
import functools

import numpy as np
import pytest

from oracle.cases import BF16, F, codes, generator, page_table, paged, uniform
from oracle.harness import assert_same, both, operator, per_thread_count, refused, seeds, to_numpy, to_torch
from oracle.rounding import U, bf16
from oracle.sparse_attention import attend, attend_plain, check_output

NAME = "sparse_flash_attention_quant"
GARBAGE = np.array([np.iinfo(np.int32).min, -1, np.iinfo(np.int32).max, 0], np.int32)


@functools.lru_cache(None)
def case(
    seed,
    *,
    int8=True,
    nq=None,
    dv=None,
    dr=None,
    s1=None,
    topk=None,
    longest=90,
    block_size=None,
    page_seed=0,
    data=None,
    poison=True,
):
    """Keyword arguments and, per row, (q, q_rope, latent, k_rope) of what it attends to in float64."""
    rng = generator(seed)
    pick = lambda given, options: int(
        (rng.integers(len(options)), given)[1] if given is not None else options[rng.integers(len(options))]
    )
    nq, dr, s1 = pick(nq, [1, 3, 8, 17, 64]), pick(dr, [0, 2, 16, 64]), pick(s1, [1, 2, 4])
    group, tiles = int(rng.choice([1, 2, 16, 33, 128])), int(rng.integers(1, 5))
    if dv is not None:
        group, tiles = 128, dv // 128
    dv = group * tiles
    topk = pick(topk, [1, 7, 40, 64, longest + 3])
    data = data or ["uniform", "peaked", "flat", "duplicates", "large"][rng.integers(5)]
    b = int(rng.integers(1, 5))
    act = rng.integers(0, longest + 1, b).astype(np.int32)
    if b > 1:
        act[rng.integers(b)] = rng.integers(0, 2)
    size = pick(None, [1, 4, 16, 128])
    size = size if block_size is None else block_size
    latents = [codes(rng, (n, dv)) if int8 else uniform(rng, (n, dv)) for n in act]
    scales = [
        (rng.random((n, tiles)) * 2.0 ** -rng.integers(5, 8, (n, tiles)) * (rng.random((n, tiles)) > 0.1)).astype(F)
        for n in act
    ]
    ropes = [uniform(rng, (n, dr)) for n in act]
    rows = b * s1
    q, q_rope = uniform(rng, (rows, nq, dv)), uniform(rng, (rows, nq, dr))
    scale = {"flat": 0.0, "peaked": 3.0, "large": 40.0}.get(data, float((dv + dr) ** -0.5))
    indices = rng.choice(GARBAGE, (rows, topk + int(rng.integers(3)))).astype(np.int32)
    attended, used = [], [set() for _ in act]
    for r in range(rows):
        n = int(act[r // s1])
        count = min(max(n - s1 + 1 + r % s1, 0), topk)
        chosen = rng.integers(0, n, count) if data == "duplicates" and n else rng.permutation(n)[:count]
        indices[r, :count] = chosen
        used[r // s1].update(chosen.tolist())
        latent = latents[r // s1][chosen].astype(np.float64)
        if int8:
            latent = latent * np.repeat(scales[r // s1][chosen].astype(np.float64), group, axis=1)
        attended.append(
            (q[r].astype(np.float64), q_rope[r].astype(np.float64), latent, ropes[r // s1][chosen].astype(np.float64))
        )
    if poison:  # what no row attends to must not matter, inside the sequences too
        for seq, keep in enumerate(used):
            rest = [j for j in range(act[seq]) if j not in keep]
            ropes[seq][rest] = np.nan
            scales[seq][rest] = np.nan
            if not int8:
                latents[seq][rest] = np.nan
    table, pages = page_table(generator(seed + 1000 * page_seed), act, size)
    for seq, keep in enumerate(used):  # a page without an attended row may be gone
        for page in range(-(-int(act[seq]) // size)):
            if poison and not any(page * size <= j < (page + 1) * size for j in keep):
                table[seq, page] = -1
    fill = lambda parts, value: paged(table, pages, parts, size, value)
    flat = lambda cache: cache.reshape(-1, cache.shape[-1])
    args = dict(
        query_nope=q.reshape(-1, dv),
        query_rope=q_rope.reshape(rows * nq, dr),
        key_nope_2d=flat(fill(latents, 127 if int8 else np.nan)),
        key_rope_2d=fill(ropes, np.nan).reshape(pages * size, dr),
        k_nope_scales=flat(fill(scales, np.nan)) if int8 else None,
        topk_indices=indices,
        block_table=table,
        kv_act_seqs=act,
        b=b,
        s1=s1,
        nq=nq,
        softmax_scale=scale,
        topk=topk,
        block_size=size,
    )
    return args, attended


def check(out, args, attended):
    shape = (args["b"], args["s1"], args["nq"], args["query_nope"].shape[1])
    assert out.shape == shape and out.dtype == BF16
    exact = np.array([attend(*row, args["softmax_scale"]) for row in attended])
    plain = np.array([attend_plain(*row, args["softmax_scale"]) for row in attended])
    out = out.astype(np.float64).reshape(exact.shape)
    check_output(out, exact, plain, "attention_out")
    for r, (_, _, latent, _) in enumerate(attended):
        if len(latent) == 0:
            assert not out[r].any()
        if len(latent) == 1:  # the token itself, rounded
            low, high = bf16(latent * (1 - U * np.sign(latent))), bf16(latent * (1 + U * np.sign(latent)))
            assert ((out[r] >= low) & (out[r] <= high)).all(), f"row {r} attends to one token"


@both
@pytest.mark.parametrize("int8", [True, False], ids=["int8", "bf16"])
@seeds(30)
def test_random(seed, int8, impl):
    args, attended = case(seed, int8=int8)
    check(operator(NAME, impl)(**args), args, attended)


@both
@pytest.mark.parametrize("nq", [128, 64])
def test_model_sizes(nq, impl):
    args, attended = case(900 + nq, nq=nq, dv=512, dr=64, s1=2, topk=512, longest=700, block_size=128, data="uniform")
    check(operator(NAME, impl)(**args), args, attended)


@both
@pytest.mark.parametrize("seed", [84, 107])
def test_scales_keep_their_precision_in_a_flat_softmax(seed, impl):
    """All heads are the same row then, so errors that scales rounded to bf16 would bring do not average out."""
    args, attended = case(seed, nq=32, dv=128, dr=16, s1=1, topk=32, longest=200, block_size=16, data="flat")
    check(operator(NAME, impl)(**args), args, attended)


@seeds(4, 100)
def test_threads_pages_and_batches_do_not_matter(seed):
    op = operator(NAME)
    fixed = dict(nq=8, dv=256, dr=64, s1=2, topk=300, longest=400, int8=seed % 2 == 0)
    args, attended = case(seed, block_size=16, **fixed)
    want = op(**args)
    check(want, args, attended)
    for out in per_thread_count(lambda: op(**args)):
        assert_same(out, want)
    for block_size, page_seed in ((16, 1), (1, 0), (128, 0)):
        other, _ = case(seed, block_size=block_size, page_seed=page_seed, **fixed)
        assert_same(op(**other), want, f"pages of {block_size}")
    clean, _ = case(seed, block_size=16, poison=False, **fixed)
    assert_same(op(**clean), want, "with numbers where NaN stood")
    rows, nq = args["s1"], args["nq"]
    for seq in range(args["b"]):
        one = dict(
            args,
            b=1,
            block_table=args["block_table"][seq : seq + 1],
            kv_act_seqs=args["kv_act_seqs"][seq : seq + 1],
            topk_indices=args["topk_indices"][seq * rows : (seq + 1) * rows],
        )
        for name in ("query_nope", "query_rope"):
            one[name] = args[name][seq * rows * nq : (seq + 1) * rows * nq]
        assert_same(op(**one), want[seq : seq + 1], f"sequence {seq} alone")


@both
def test_unfolded_shapes(impl):
    """Outputs of the other operators fit without a reshape."""
    args, _ = case(200, nq=8, dv=128, dr=16, s1=2, block_size=16)
    want = operator(NAME, impl)(**args)
    t, nq, pages = args["b"] * args["s1"], args["nq"], len(args["key_nope_2d"]) // 16
    more = dict(
        args,
        query_nope=args["query_nope"].reshape(t, nq, -1),
        query_rope=args["query_rope"].reshape(t, nq, -1),
        topk_indices=np.ascontiguousarray(args["topk_indices"])[:, None],
        n_kv=1,
        level="portable",
    )
    for name in ("key_nope_2d", "key_rope_2d", "k_nope_scales"):
        more[name] = args[name].reshape(pages, 16, 1, -1)
    assert_same(operator(NAME, impl)(**more), want)
    order = "query_nope query_rope key_nope_2d key_rope_2d k_nope_scales topk_indices block_table kv_act_seqs".split()
    rest = {k: v for k, v in args.items() if k not in order}
    assert_same(operator(NAME, impl)(*(args[n] for n in order), **rest), want)


@both
def test_torch_in_torch_out(impl):
    pytest.importorskip("torch")
    args, _ = case(201, nq=8)
    want = operator(NAME, impl)(**args)
    assert_same(to_numpy(operator(NAME, impl)(**{k: to_torch(v) for k, v in args.items()})), want)


def flat_attention(impl, latent, act, s1, topk, lists, scores=None, scales=None, **more):
    """One head, pages of 2 in order; scores: one number per token through a rope part of width 1."""
    latent = np.array(latent)
    rows, dv = len(lists), latent.shape[1]
    key = np.concatenate([latent, np.zeros((len(latent) % 2, dv), latent.dtype)])
    key = key.astype(np.int8) if scales is not None else key.astype(BF16)
    rope = np.zeros((len(key), 1), BF16)
    if scores is not None:
        rope[: len(scores), 0] = scores
    if scales is not None:
        scales = np.concatenate([np.array(scales, F), np.zeros((len(key) - len(scales), len(scales[0])), F)])
    table = np.arange(len(key) // 2, dtype=np.int32)[None]
    out = operator(NAME, impl)(
        np.zeros((rows, dv), BF16),
        np.ones((rows, 1), BF16),
        key,
        rope,
        scales,
        np.array(lists, np.int32),
        table,
        np.array([act], np.int32),
        b=1,
        s1=s1,
        nq=1,
        softmax_scale=more.get("scale", 1.0),
        topk=topk,
        block_size=2,
    )
    return out.astype(np.float64)[0, :, 0].tolist()


@both
def test_worked_examples(impl):
    v = [[1, 2], [3, 4], [5, 6]]
    assert flat_attention(impl, v, 3, 1, 2, [[2, 0]]) == [[3, 4]]  # E1
    assert flat_attention(impl, v, 3, 1, 2, [[2, 0]], scores=[0, 0, 1], scale=float(np.log(2))) == [
        [3.671875, 4.65625]
    ]  # E2
    # E6: how many entries count, seen through flat attention over powers of two
    powers = [[2.0**i] for i in range(5)]
    lists = [[0, 1, 2, -1], [0, 1, 2, 3], [0, 1, 2, 3]]
    assert flat_attention(impl, powers, 5, 3, 4, lists) == [[float(bf16(7 / 3))], [3.75], [3.75]]
    assert flat_attention(impl, powers, 1, 3, 4, [[9, 9, 9, 9], [-1, 0, 0, 0], [0, 7, 7, 7]]) == [[0], [0], [1]]
    # E7
    assert flat_attention(impl, [[10, -3, 127, 0]], 1, 1, 1, [[0]], scales=[[0.5, 0.01]]) == [[5, -1.5, 1.2734375, 0]]
    assert (
        flat_attention(impl, v, 3, 1, 4, [[0, 0, 1, 7]])[0] == bf16([5 / 3, 8 / 3]).tolist()
    )  # counted per occurrence


@both
def test_large_scores_do_not_overflow(impl):
    assert flat_attention(impl, [[1, 2], [3, 4]], 2, 1, 2, [[0, 1]], scores=[1e4, -1e4]) == [[1, 2]]
    assert flat_attention(impl, [[1, 2], [3, 4]], 2, 1, 2, [[0, 1]], scores=[-1e4, -1e4]) == [[2, 3]]


@both
@pytest.mark.parametrize("best", [0, 255, 256, 400, 699])
def test_one_winner_among_many(best, impl):
    """Whole chunks of the list lie far below the maximum, wherever it is."""
    latent = [[i % 7 + 1, -1 - i % 5] for i in range(700)]
    for low in (-1e4, -90):
        scores = np.full(700, low)
        scores[best] = 1
        assert flat_attention(impl, latent, 700, 1, 700, [list(range(700))], scores=scores) == [latent[best]]


@both
def test_empty(impl):
    args, _ = case(202, nq=3, dv=128, dr=2, block_size=4)
    none = dict(
        args,
        b=0,
        query_nope=args["query_nope"][:0],
        query_rope=args["query_rope"][:0],
        topk_indices=args["topk_indices"][:0],
        block_table=args["block_table"][:0],
        kv_act_seqs=args["kv_act_seqs"][:0],
    )
    assert operator(NAME, impl)(**none).shape == (0, args["s1"], 3, 128)
    zero = dict(
        args, kv_act_seqs=np.zeros_like(args["kv_act_seqs"]), topk_indices=np.full_like(args["topk_indices"], -7)
    )
    assert not operator(NAME, impl)(**zero).astype(F).any()


def base(int8=True):
    rng = generator(77)
    return dict(
        query_nope=uniform(rng, (2 * 2 * 3, 16)),
        query_rope=uniform(rng, (12, 4)),
        key_nope_2d=codes(rng, (20, 16)) if int8 else uniform(rng, (20, 16)),
        key_rope_2d=uniform(rng, (20, 4)),
        k_nope_scales=np.ones((20, 4), F) if int8 else None,
        topk_indices=np.array([[0, 1, 2], [4, 3, 0], [7, 0, 1], [8, 2, 5]], np.int32),
        block_table=np.array([[0, 1, -1], [4, 3, 2]], np.int32),
        kv_act_seqs=np.array([5, 9], np.int32),
        b=2,
        s1=2,
        nq=3,
        softmax_scale=0.25,
        topk=3,
        block_size=4,
    )


def entry(name, at, value):
    def change(a):
        a[name][at] = value
        return "".join(f"[{i}]" for i in (at if isinstance(at, tuple) else (at,)))

    return change


def put(**changes):
    return lambda a: a.update({k: v(a[k]) if callable(v) else v for k, v in changes.items()})


REFUSED = {
    "-1 among the used": (entry("topk_indices", (1, 1), -1), "INVALID_INDEX", "topk_indices"),
    "position act": (entry("topk_indices", (3, 0), 9), "INVALID_INDEX", "topk_indices"),
    "position far away": (entry("topk_indices", (0, 2), 2**31 - 1), "INVALID_INDEX", "topk_indices"),
    "page -1": (entry("block_table", (1, 2), -1), "INVALID_BLOCK", "block_table"),
    "page past the end": (entry("block_table", (0, 1), 5), "INVALID_BLOCK", "block_table"),
    "length past the table": (entry("kv_act_seqs", 0, 13), "INVALID_SEQLEN", {"kv_act_seqs", "block_table"}),
    "length negative": (entry("kv_act_seqs", 1, -1), "INVALID_SEQLEN", "kv_act_seqs"),
    "rows": (put(query_nope=lambda v: v[:-1].copy()), "INVALID_SHAPE", {"query_nope", "query_rope"}),
    "rope rows": (put(query_rope=lambda v: v[:-1].copy()), "INVALID_SHAPE", "query_rope"),
    "rope width": (put(key_rope_2d=lambda v: v[:, :3].copy()), "INVALID_SHAPE", {"key_rope_2d", "query_rope"}),
    "latent width": (put(key_nope_2d=lambda v: v[:, :8].copy()), "INVALID_SHAPE", {"key_nope_2d", "query_nope"}),
    "cache rows": (put(key_rope_2d=lambda v: v[:16].copy()), "INVALID_SHAPE", {"key_rope_2d", "key_nope_2d"}),
    "scale columns": (put(k_nope_scales=np.ones((20, 5), F)), "INVALID_SHAPE", {"k_nope_scales", "key_nope_2d"}),
    "scales missing": (put(k_nope_scales=None), "INVALID_ARGUMENT", "k_nope_scales"),
    "scales dtype": (put(k_nope_scales=np.ones((20, 4), np.float16)), "INVALID_DTYPE", "k_nope_scales"),
    "scales beside a bf16 latent": (
        put(key_nope_2d=np.zeros((20, 16), BF16)),
        {"INVALID_ARGUMENT", "INVALID_SHAPE"},
        "k_nope_scales",
    ),
    "query dtype": (put(query_nope=lambda v: v.astype(np.float16)), "INVALID_DTYPE", "query_nope"),
    "latent dtype": (put(key_nope_2d=lambda v: v.astype(np.float16)), "INVALID_DTYPE", "key_nope_2d"),
    "indices int64": (put(topk_indices=lambda v: v.astype(np.int64)), "INVALID_DTYPE", "topk_indices"),
    "table int64": (put(block_table=lambda v: v.astype(np.int64)), "INVALID_DTYPE", "block_table"),
    "table rows": (put(block_table=lambda v: v[:1].copy()), "INVALID_SHAPE", "block_table"),
    "table missing": (put(block_table=None), "INVALID_ARGUMENT", "block_table"),
    "lengths count": (put(kv_act_seqs=np.array([5], np.int32)), {"INVALID_SHAPE", "INVALID_SEQLEN"}, "kv_act_seqs"),
    "topk wider than the list": (put(topk=4), {"INVALID_SHAPE", "INVALID_ARGUMENT"}, {"topk", "topk_indices"}),
    "topk 0": (put(topk=0), {"INVALID_SHAPE", "INVALID_ARGUMENT"}, {"topk", "topk_indices"}),
    "two key heads": (put(n_kv=2), {"INVALID_SHAPE", "INVALID_ARGUMENT"}, "n_kv"),
    "scale nan": (put(softmax_scale=float("nan")), "INVALID_ARGUMENT", "softmax_scale"),
    "scale inf": (put(softmax_scale=float("inf")), "INVALID_ARGUMENT", "softmax_scale"),
    "block_size 0": (put(block_size=0), {"INVALID_SHAPE", "INVALID_ARGUMENT"}, "block_size"),
    "block_size does not divide": (
        put(block_size=3),
        {"INVALID_SHAPE", "INVALID_ARGUMENT"},
        {"block_size", "key_nope_2d"},
    ),
    "nq bool": (put(nq=True), "INVALID_DTYPE", "nq"),
    "strict": (put(level="strict"), "UNSUPPORTED", None),
}


@both
@pytest.mark.parametrize("name", REFUSED)
def test_refused(name, impl):
    change, status, parameter = REFUSED[name]
    args = base()
    position = change(args)
    refused(lambda: operator(NAME, impl)(**args), NAME, status, parameter or set(args), position)


@both
def test_what_is_not_refused(impl):
    """The base call; unused entries of any kind; a bf16 latent with scales that have no elements."""
    args = base()
    want = operator(NAME, impl)(**args)
    args["topk_indices"] = np.concatenate([args["topk_indices"], np.full((4, 1), -5, np.int32)], axis=1)
    assert_same(operator(NAME, impl)(**args), want)
    plain = base(int8=False)
    out = operator(NAME, impl)(**plain)
    for empty in (np.zeros((0, 4), F), np.zeros(0, F)):
        assert_same(operator(NAME, impl)(**dict(plain, k_nope_scales=empty)), out)
