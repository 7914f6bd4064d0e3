# SPDX-License-Identifier: Apache-2.0
"""Random arguments of sparse_flash_attention and kv_quant_sparse_flash_attention by seed."""

import dataclasses

import numpy as np

from .cases import BF16, F, codes, generator, lay_out, uniform
from .indexer import visible
from .mla_prolog_v3 import join_rows
from .rounding import U
from .sparse_attention import ROUNDING, attend_plain, attended, check_output, check_sums, softmax

LAYOUTS = [("BSND", "BSND"), ("TND", "TND"), ("BSND", "PA_BSND"), ("TND", "PA_BSND")]
GARBAGE = np.array([np.iinfo(np.int32).min, -7, np.iinfo(np.int32).max, 0], np.int32)


@dataclasses.dataclass
class Case:
    """Keyword arguments, and per query row (sequence, row in it, attended positions)."""

    args: dict
    rows: list
    query: list
    keys: list  # per sequence: latent [Lk, Dv] and rope [Lk, Dr] in float64
    sinks: np.ndarray | None


def expand(c):
    """Per query row: q, q_rope, latent, k_rope of what it attends to."""
    dv = c.keys[0][0].shape[1]
    for b, i, positions in c.rows:
        q = c.query[b][i].astype(np.float64)
        latent, rope = (part[positions] for part in c.keys[b])
        yield q[:, :dv], q[:, dv:], latent, rope


def lists(rng, kind, count, length, seen, block):
    """One index row: distinct visible entries first, sometimes masked ones between them, -1, then garbage."""
    blocks_seen, blocks = -(-seen // block), -(-length // block)
    row = np.full(count, -1, np.int32)
    if seen == 0:
        return rng.choice(GARBAGE, count)
    if kind == "repeats":
        chosen = rng.integers(0, blocks_seen, int(rng.integers(0, count + 1)))
    elif kind == "masked":
        chosen = rng.permutation(blocks)[:count]
    else:
        chosen = rng.permutation(blocks_seen)[:count]
        if kind == "last" and len(chosen):
            chosen[rng.integers(len(chosen))] = blocks_seen - 1
            chosen = np.array(list(dict.fromkeys(chosen.tolist())))
        if kind == "short":
            chosen = chosen[: int(rng.integers(len(chosen) + 1))]
    row[: len(chosen)] = chosen
    if len(chosen) + 1 < count:
        row[len(chosen) + 1 :] = rng.choice(GARBAGE, count - len(chosen) - 1)
    return row


def sparse_case(
    seed,
    *,
    quantised,
    layout=None,
    heads=None,
    dv=None,
    dr=None,
    tile=None,
    count=None,
    longest=90,
    queries=4,
    block_size=None,
    page_seed=0,
    data=None,
    half=None,
    mode=None,
    block=None,
    kind=None,
    sinks=None,
    poison=True,
    pad=None,
):
    rng = generator(seed)
    pick = lambda given, options: (
        (rng.integers(len(options)), given)[1] if given is not None else options[rng.integers(len(options))]
    )
    layout_query, layout_kv = pick(layout, LAYOUTS)
    heads, dr = int(pick(heads, [1, 3, 8, 17, 64])), int(pick(dr, [0, 2, 16, 64]))
    tile = int(pick(tile, [1, 2, 16, 33, 128]))
    dv = int(pick(dv, [tile * n for n in (1, 2, 4)]))
    count, half = int(pick(count, [1, 7, 40, 64, longest + 3])), bool(pick(half, [False, True]))
    dtype, mode, pad = (np.float16 if half else BF16), int(pick(mode, [0, 3])), bool(pick(pad, [False, True]))
    block, data = int(pick(block, [1, 1, 1, 2, 8])), pick(data, ["uniform", "peaked", "flat", "large"])
    kind = pick(kind, ["plain", "repeats", "masked", "last", "short"])
    batch = int(rng.integers(1, 5))
    lk = rng.integers(0, longest + 1, batch)
    lq = rng.integers(0, queries + 1, batch)
    if batch > 1:
        lk[rng.integers(batch)] = rng.integers(0, 3)
    if layout_query == "BSND":
        lq[rng.integers(batch)] = queries
    size = int(pick(block_size, [1, 4, 16, 128])) * block
    keep_sinks = bool(rng.integers(4) == 0) if sinks is None else sinks
    sinks = uniform(rng, heads, 4, F) if keep_sinks else None
    if keep_sinks and heads > 2:
        sinks[1] = -np.inf

    query = [uniform(rng, (n, heads, dv + dr), 1, dtype) for n in lq]
    ropes = [uniform(rng, (n, dr), 1, dtype) for n in lk]
    if quantised:
        latents = [codes(rng, (n, dv)) for n in lk]
        steps = [
            (rng.random((n, dv // tile)) * 2.0 ** -rng.integers(6, 8, (n, dv // tile)) * (rng.random((n, dv // tile)) > 0.1)).astype(F)
            for n in lk
        ]  # fmt: skip
        exact = [v.astype(np.float64) * np.repeat(s.astype(np.float64), tile, axis=1) for v, s in zip(latents, steps)]
    else:
        latents = [uniform(rng, (n, dv), 1, dtype) for n in lk]
        exact = [v.astype(np.float64) for v in latents]
    keys = [(v, r.astype(np.float64)) for v, r in zip(exact, ropes)]

    rows, index_rows, used = [], [], [set() for _ in lk]
    for b in range(batch):
        part = np.zeros((lq[b], count), np.int32)
        for i in range(lq[b]):
            seen = visible(mode, int(lq[b]), int(lk[b]), i)
            part[i] = lists(rng, kind, count, int(lk[b]), seen, block)
            positions = attended(part[i], int(lk[b]), seen, block)
            used[b].update(positions)
            rows.append((b, i, positions))
        index_rows.append(part)
    if poison:  # what no row attends to must not matter, inside the sequences too
        for b in range(batch):
            rest = [j for j in range(lk[b]) if j not in used[b]]
            ropes[b][rest] = np.nan
            if quantised:
                steps[b][rest] = np.nan
            else:
                latents[b][rest] = np.nan
    nan = dtype(np.nan)
    if quantised:
        stored = [join_rows(v, r, s) for v, r, s in zip(latents, ropes, steps)]
        key_side = dict(key=(stored, -1))
        query_side = dict(query=(query, nan))
    else:
        key_side = dict(key=(latents, nan), key_rope=(ropes, nan))
        query_side = dict(query=([v[..., :dv] for v in query], nan), query_rope=([v[..., dv:] for v in query], nan))
    query_side["sparse_indices"] = (index_rows, -9)
    args = lay_out(
        layout_query, layout_kv, lq, lk, query_side, key_side,
        page_rng=generator(seed + 1000 * page_seed), block_size=size, longest=int(lk.max()), pad=pad,
    )  # fmt: skip
    args["layout_kv"], args["actual_seq_lengths_kv"] = args.pop("layout_key"), args.pop("actual_seq_lengths_key")
    args["sparse_indices"] = args["sparse_indices"][..., None, :]
    if layout_kv == "PA_BSND" and poison:  # a page without an attended row may be gone
        for b, keep in enumerate(used):
            for page in range(-(-int(lk[b]) // size)):
                if not any(page * size <= j < (page + 1) * size for j in keep):
                    args["block_table"][b, page] = -1
    scale = {"flat": 0.0, "peaked": 3.0, "large": 40.0}.get(data, float((dv + dr) ** -0.5))
    args.update(value=args["key"], scale_value=scale, sparse_block_size=block, sparse_mode=mode, attention_mode=2)
    if sinks is not None:
        args["sinks"] = sinks
    if quantised:
        args.update(key_quant_mode=2, value_quant_mode=2, tile_size=tile, rope_head_dim=dr)
    return Case(args, rows, query, keys, sinks)


def place(c, per_row, shape):
    """Values of the real query rows in the layout of the query, 0 where it has padding."""
    out = np.zeros(shape)
    for r, (value, (b, i, _)) in enumerate(zip(per_row, c.rows)):
        out[r if c.args["layout_query"] == "TND" else (b, i)] = value
    return out


def check_case(c, out, softmax_max=None, softmax_sum=None):
    query, dtype = c.args["query"], c.args["query"].dtype
    dv, heads = c.keys[0][0].shape[1], query.shape[-2]
    shape = (*query.shape[:-1], dv)
    assert out.shape == shape and out.dtype == dtype, f"{out.dtype}{out.shape}, wanted {dtype}{shape}"
    rounding = ROUNDING[dtype.name]
    expanded = list(expand(c))
    exact = [softmax(*row, c.args["scale_value"], c.sinks) for row in expanded]
    plain = [attend_plain(*row, c.args["scale_value"], c.sinks, rounding) for row in expanded]
    got = np.asarray(out, np.float64)
    want = place(c, [e[0] for e in exact], shape)
    check_output(got, want, place(c, plain, shape), "attention_out", dtype == np.float16)
    keys = place(c, [len(positions) for _, _, positions in c.rows], shape[:-2])
    assert not got[keys == 0].any(), "attention_out: a row without a key is not 0"
    for value, (_, _, latent, _) in zip(got[keys == 1], (row for row in expanded if len(row[2]) == 1)):
        if c.sinks is None:  # the token itself, rounded
            low, high = (rounding(latent * (1 + u * np.sign(latent))) for u in (-U, U))
            assert ((value >= low) & (value <= high)).all(), "attention_out: one token is not itself"
    if softmax_max is None:
        return
    lead = query.shape[:-2]
    parts = []
    for part in (softmax_max, softmax_sum):
        wanted = (1, *lead, heads) if len(lead) == 1 else (lead[0], 1, lead[1], heads)
        assert part.shape == wanted and part.dtype == np.float32, f"{part.dtype}{part.shape}, wanted {wanted}"
        parts.append(part.reshape(*lead, heads))
    wanted = [place(c, [e[k] for e in exact], (*lead, heads)) for k in (1, 2, 3)]
    check_sums(*parts, *wanted, abs(c.args["scale_value"]) * query.shape[-1] ** 0.5)
    for part, want in zip(parts, wanted):
        assert (part[wanted[1] == 0] == 0).all(), "a row without a key or sink has a maximum or a sum"
