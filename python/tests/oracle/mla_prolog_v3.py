# SPDX-License-Identifier: Apache-2.0
"""The mode table of mla_prolog_v3, where its rows are stored, and a judge of what it returned: stage by stage, each from
the actual output of the stage before."""

import dataclasses

import ml_dtypes
import numpy as np

from .arbiter import MOST_FLIPS_HIDDEN, Ration, bounds, dot, search
from .mla_prolog import as_numbers, judge_rope, same_bytes
from .rounding import bf16, i8, i8_away
from .rows import F, deq, multiplier, root, rope, tile_rule

BF16 = ml_dtypes.bfloat16
RESULTS = ("query", "query_rope", "dequant_scale_q_nope", "query_norm", "dequant_scale_q_norm")
MODES = ("weight_quant_mode", "kv_cache_quant_mode", "query_quant_mode", "ckvkr_repo_mode", "quant_scale_repo_mode")
ALL6 = ("PA_BSND", "PA_NZ", "PA_BLK_BSND", "PA_BLK_NZ", "BSND", "TND")
TILE3 = ("PA_BSND", "BSND", "TND")


@dataclasses.dataclass(frozen=True)
class Row:
    number: int
    modes: tuple
    kv: type = BF16
    kr: type = BF16

    weights_int8 = property(lambda self: self.modes[0] >= 1)
    int8_tokens = property(lambda self: self.modes[0] == 2)
    packed = property(lambda self: self.modes[1] == 3)
    static_rows = property(lambda self: self.modes[1] == 2)
    int8_query = property(lambda self: self.modes[1] == 1)
    cache_modes = property(lambda self: TILE3 if self.packed else ALL6)
    arguments = property(lambda self: dict(zip(MODES, self.modes)))


ROWS = {
    row.number: row
    for row in (
        Row(1, (0, 0, 0, 0, 0)),
        Row(2, (1, 0, 0, 0, 0)),
        Row(3, (1, 2, 0, 0, 0), np.int8, np.int8),
        Row(4, (1, 3, 0, 1, 1), np.int8),
        Row(5, (2, 0, 0, 0, 0)),
        Row(6, (2, 1, 1, 0, 0), np.int8),
        Row(7, (2, 3, 0, 1, 1), np.int8),
    )
}
RESERVED = {(w, *rest) for w in (3, 4, 5) for rest in ((0, 0, 0, 0), (1, 1, 0, 0), (3, 0, 1, 1))}


def packed_width(latent, dr, tile):
    return latent + 2 * dr + 4 * (latent // tile)


def split_rows(rows, latent, dr):
    """Packed rows [r, width] int8 -> codes, rope (bf16), scales (fp32)."""
    rows = np.ascontiguousarray(rows)
    part = lambda first, last, kind: np.ascontiguousarray(rows[:, first:last]).view(kind)
    return rows[:, :latent], part(latent, latent + 2 * dr, BF16), part(latent + 2 * dr, None, F)


def join_rows(codes, rope_rows, scales):
    parts = (codes.astype(np.int8), rope_rows, scales.astype(F))
    return np.concatenate([np.ascontiguousarray(p).view(np.int8) for p in parts], axis=1)


def nz_block_to_rows(cache):
    """[blocks, size, 1, H] whose blocks are in NZ order -> the same rows one after the other."""
    blocks, size, _, h = cache.shape
    c0 = 32 // cache.dtype.itemsize
    inside = np.ascontiguousarray(cache).reshape(blocks, h // c0, size, c0)
    return np.ascontiguousarray(inside.transpose(0, 2, 1, 3)).reshape(blocks * size, h)


def logical_rows(cache, cache_mode):
    if cache_mode.endswith("NZ"):
        return nz_block_to_rows(cache)
    return np.ascontiguousarray(cache).reshape(-1, cache.shape[-1])


def sequence_lengths(given):
    shape = given["token_x"].shape
    if len(shape) == 3:
        return [shape[1]] * shape[0]
    ends = given.get("actual_seq_len")
    return [shape[0]] if ends is None else np.diff([0, *(int(v) for v in np.asarray(ends))]).tolist()


def destinations(given, block_size):
    """slot -> token. A negative entry stores nothing, the last token of a slot wins."""
    mode, lengths = given["cache_mode"], sequence_lengths(given)
    if mode in ("BSND", "TND"):
        return {t: t for t in range(sum(lengths))}
    index = np.asarray(given["cache_index"]).reshape(-1)
    slots, token, entry = {}, 0, 0
    for length in lengths:
        for p in range(length):
            if mode.startswith("PA_BLK"):
                page = int(index[entry + p // block_size])
                slot = page if page < 0 else page * block_size + p % block_size
            else:
                slot = int(index[token])
            if slot >= 0:
                slots[slot] = token
            token += 1
        entry += -(-length // block_size)
    return slots


def compare(y, step, base, low, high, axis):
    """(unexplained, licensed) elements of y == step(base), counted over `axis`."""
    want, ends = step(base), (step(low), step(high))
    flips = y != want
    wrong = flips & ((y < np.minimum(*ends)) | (y > np.maximum(*ends)))
    return wrong.sum(axis=axis), flips.sum(axis=axis)


class NormedRow:
    """norm of a hidden row near x, times a factor unless that is 1; judged by what `finish` makes of it."""

    def __init__(self, x, e, hide, gamma, eps, factor, what, ration):
        self.x, self.e, self.hide, self.gamma, self.eps = x, e, hide, np.asarray(gamma, F), eps
        self.factor = None if abs(F(factor) - F(1)) < 2.0**-23 else F(factor)
        self.what, self.ration = what, ration

    def judge(self, finish, seen):
        _, low, high = bounds(self.x, self.e, self.hide)

        def normed(rows, r):
            with np.errstate(over="ignore", under="ignore", invalid="ignore"):
                z = (rows.astype(F) / r[:, None]) * self.gamma
                return z if self.factor is None else z * self.factor

        def mismatches(rows):
            r = root(rows, self.eps)
            return (*finish(normed(rows, r), normed(low[None], r), normed(high[None], r)), seen)

        search(self.x, self.e, self.hide, mismatches, self.what, self.ration)

    def is_float(self, y):
        self.judge(lambda *z: compare(y, bf16, *z, 1), y.size)

    def is_static_codes(self, y, scale):
        def step(z):
            with np.errstate(over="ignore"):
                return i8(z * scale).astype(int)

        self.judge(lambda *z: compare(y.astype(int), step, *z, 1), y.size)

    def is_token_codes(self, y, scale, smooth):
        """rowq of the row, times smooth if given."""

        def finish(*z):
            if smooth is not None:
                z = [v * smooth for v in z]
            a = np.max(np.abs(z[0]), axis=1)
            m, tiny = multiplier(a)
            m = np.where(tiny, F(0), m)[:, None]
            wrong, flips = compare(y.astype(int), lambda v: i8(v * m).astype(int), *z, 1)
            return wrong + (np.where(tiny, F(0), a / F(127)) != scale), flips

        self.judge(finish, y.size)

    def is_tiles(self, y, scales, alpha):
        groups = len(scales)
        y = y.astype(int).reshape(1, groups, -1)

        def finish(*z):
            z = [v.reshape(v.shape[0], groups, -1) for v in z]
            codes, wanted = tile_rule(z[0], alpha)
            wrong, flips = compare(y, lambda v: codes(v).astype(int), *z, (1, 2))
            return wrong + (wanted != scales).sum(axis=1), flips

        self.judge(finish, y.size)


def head_codes(value, e, codes, scale):
    """Per row: codes, scale == the int8 query of bf16(value). Returns unexplained, licensed."""
    base, low, high = bounds(value, e, bf16)
    least = np.where((low < 0) & (high > 0), 0, np.minimum(np.abs(low), np.abs(high))).max(axis=1)
    most, best = np.abs(base).max(axis=1), None
    for a in (most, least, np.maximum(np.abs(low), np.abs(high)).max(axis=1)):
        m, tiny = multiplier(a)
        m = np.where(tiny, F(0), m)[:, None]
        wrong, flips = compare(codes.astype(int), lambda v: i8_away(v.astype(F) * m).astype(int), base, low, high, 1)
        wrong = wrong + (np.where(tiny, F(0), a.astype(F) / F(127)) != scale)
        flips = flips + (a != most)
        best = (
            (wrong, flips)
            if best is None
            else tuple(np.where(wrong < best[0], v, b) for v, b in zip((wrong, flips), best))
        )
    return best


def check_shapes(row, given, got, t, heads, latent, dr):
    lead, flag = given["token_x"].shape[:-1], given.get("query_norm_flag", False)
    hcq = given["rmsnorm_gamma_cq"].shape[0]
    kind = np.int8 if row.weights_int8 else BF16
    wanted = dict(
        query=((*lead, heads, latent), np.int8 if row.int8_query else BF16),
        query_rope=((*lead, heads, dr), BF16),
        dequant_scale_q_nope=((t, heads, 1) if row.int8_query else (0,), F),
        query_norm=((*lead, hcq) if flag else (0,), kind),
        dequant_scale_q_norm=((t, 1) if flag and row.weights_int8 else (0,), F),
    )
    for name, (shape, dtype) in wanted.items():
        y = got[name]
        assert y.shape == shape and y.dtype == dtype, f"{name}: {y.dtype}{y.shape}, wanted {np.dtype(dtype)}{shape}"


def judge_mla_prolog_v3(row, given, got, before, exact=False, rationed=True):
    """given: arguments by name, weights row-major, query_norm_flag True; got: the results and caches by name; before: the
    caches as they were. exact: bf16 products of token_x are small integers, whose sums no order can change. Not rationed:
    data so small that bf16 instructions may flush it."""
    w_uk = as_numbers(given["weight_uk"])
    heads, d, latent = w_uk.shape
    x = as_numbers(given["token_x"]).reshape(-1, given["token_x"].shape[-1])
    t, dr = len(x), given["rope_cos"].shape[-1]
    cos, sin = (as_numbers(given[n]).reshape(t, dr) for n in ("rope_cos", "rope_sin"))
    check_shapes(row, given, got, t, heads, latent, dr)
    vector = lambda name: None if given.get(name) is None else np.asarray(given[name], F).reshape(-1)
    ration, sums = Ration(MOST_FLIPS_HIDDEN), Ration(MOST_FLIPS_HIDDEN)

    def project(name, scale):
        """x times a weight -> (x, E, rounding behind which it is hidden)."""
        if row.int8_tokens:
            value = deq(x @ as_numbers(given[name]), vector("dequant_scale_x")[:, None], vector(scale))
            return value.astype(np.float64), np.zeros(value.shape), lambda v: v
        return (*dot(x, as_numbers(given[name]), exact), bf16)

    # 1-3: the normed query
    c, c_e, hide = project("weight_dq", "dequant_scale_w_dq")
    query_norm = got["query_norm"].reshape(t, given["rmsnorm_gamma_cq"].shape[0])
    for i in range(t):
        normed = NormedRow(
            c[i], c_e[i], hide, as_numbers(given["rmsnorm_gamma_cq"]), given.get("rmsnorm_epsilon_cq", 1e-5),
            given.get("qc_qr_scale", 1.0), f"query_norm[{i}]", ration,
        )  # fmt: skip
        if row.weights_int8:
            normed.is_token_codes(query_norm[i], got["dequant_scale_q_norm"][i, 0], vector("smooth_scales_cq"))
        else:
            normed.is_float(as_numbers(query_norm[i]))

    # 4: its heads
    if row.weights_int8:
        acc = as_numbers(query_norm) @ as_numbers(given["weight_uq_qr"])
        m2 = deq(acc, got["dequant_scale_q_norm"], vector("dequant_scale_w_uq_qr")).astype(np.float64)
        m2_e = np.zeros_like(m2)
    else:
        m2, m2_e = dot(as_numbers(query_norm), as_numbers(given["weight_uq_qr"]))
    m2, m2_e = (v.reshape(t, heads, d + dr) for v in (m2, m2_e))

    # 5: absorbed
    query = as_numbers(got["query"]).reshape(t, heads, latent)
    for h in range(heads):
        base = bf16(m2[:, h, :d])
        value, e = dot(base, w_uk[h])
        if row.int8_query:
            scale = got["dequant_scale_q_nope"].reshape(t, heads)[:, h]
            wrong, flips = head_codes(value, e, query[:, h], scale)
            assert not wrong.any(), f"query[{np.flatnonzero(wrong)[0]}][{h}]: {wrong.max()} of {latent} unexplained"
            sums.count(flips.sum(), t * latent)
            continue
        for i in range(t):

            def mismatches(rows, y=query[i, h], e=e[i], h=h):
                v = rows @ w_uk[h]
                wrong, flips = compare(y, bf16, v, v - e, v + e, 1)
                return wrong, flips, y.size

            search(m2[i, h, :d], m2_e[i, h, :d], bf16, mismatches, f"query[{i}][{h}]", sums)

    # 6: rotated
    as_is = lambda v: v
    rescale = bf16
    if row.int8_query:
        dq = got["dequant_scale_q_nope"].reshape(t, heads, 1)
        with np.errstate(divide="ignore", invalid="ignore"):
            factor = np.where(dq == 0, F(0), vector("quant_scale_ckv")[0] / dq).astype(F)
        rescale = lambda v: bf16(bf16(v).astype(F) * factor)
    judge_rope(
        as_numbers(got["query_rope"]).reshape(t, heads, dr), m2[..., d:], m2_e[..., d:], cos[:, None], sin[:, None],
        "interleaved_to_half", "query_rope", ration, as_is if row.weights_int8 else bf16, rescale,
    )  # fmt: skip

    # 7-10: the cache rows
    mode = given["cache_mode"]
    slots = destinations(given, before["kv_cache"].shape[1] if mode.startswith("PA") else 0)
    if mode.startswith("PA") and before["kv_cache"].size == 0:
        slots = {}
    after = {name: logical_rows(got[name], mode) for name in before if got[name] is not None and before[name].size}
    for name, rows in after.items():
        kept = [r for r in range(len(rows)) if r not in slots]
        old = logical_rows(before[name], mode)
        assert same_bytes(rows[kept], old[kept]), f"{name}: a row that no index names has changed"
    taken, tokens = list(slots), list(slots.values())
    if not taken:
        return
    kv, kv_e, hide = project("weight_dkv_kr", "dequant_scale_w_dkv_kr")
    kv_rows = after["kv_cache"][taken]
    if row.packed:
        codes, kr_rows, scales = split_rows(kv_rows, latent, dr)
    else:
        kr_rows = after["kr_cache"][taken]
    stored = bf16
    if row.static_rows:
        stored = lambda v: i8(bf16(v).astype(F) * vector("quant_scale_ckr")).astype(np.float64)
    judge_rope(
        as_numbers(kr_rows), kv[tokens, latent:], kv_e[tokens, latent:], cos[tokens], sin[tokens],
        "interleaved_to_half", "rotated key", ration, hide, stored,
    )  # fmt: skip
    for k, i in enumerate(tokens):
        normed = NormedRow(
            kv[i, :latent], kv_e[i, :latent], hide, as_numbers(given["rmsnorm_gamma_ckv"]),
            given.get("rmsnorm_epsilon_ckv", 1e-5), given.get("kc_scale", 1.0), f"kv_cache of token {i}", ration,
        )  # fmt: skip
        if row.packed:
            alpha = vector("k_nope_clip_alpha")
            normed.is_tiles(codes[k], scales[k], 1.0 if alpha is None else alpha[0])
        elif row.static_rows or row.int8_query:
            scale = vector("quant_scale_ckv")
            normed.is_static_codes(kv_rows[k], scale if row.static_rows else scale[0])
        else:
            normed.is_float(as_numbers(kv_rows[k]))
    if rationed:
        ration.check("codes and rotated rows")
        sums.check("query")
