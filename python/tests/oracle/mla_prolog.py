# SPDX-License-Identifier: Apache-2.0
"""Judges what mla_prolog_quant returned, stage by stage, each from the actual output of the stage before."""

import numpy as np

from .arbiter import MOST_FLIPS_HIDDEN, Ration, bounds, dot, search
from .rounding import U, bf16, i8
from .rows import F, deq, inverse_rms, multiplier, rope


def as_numbers(array):
    with np.errstate(invalid="ignore"):  # a NaN may signal
        return np.asarray(array).astype(np.float64)


def same_bytes(a, b):
    a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


def stored_tokens(cache_index):
    """slot -> token: a negative entry stores nothing, the last token of a slot wins."""
    return {int(slot): token for token, slot in enumerate(np.asarray(cache_index).reshape(-1)) if slot >= 0}


def check_untouched(cache, before, slots, what):
    after, old = (np.ascontiguousarray(c).reshape(c.shape[0] * c.shape[1], -1) for c in (cache, before))
    kept = [r for r in range(after.shape[0]) if r not in slots]
    assert same_bytes(after[kept], old[kept]), f"{what}: a row that no index names has changed"


def normed_row(x, e, gamma, eps, y, what, hidden):
    """y == bf16(norm_p(bf16(x)))."""

    def mismatches(rows):
        r = inverse_rms(rows, eps)[:, None]
        ends = [bf16(gamma * (v.astype(F) * r)) for v in (rows, low[None], high[None])]
        wrong = (y != ends[0]) & ((y < np.minimum(*ends[1:])) | (y > np.maximum(*ends[1:])))
        return wrong.sum(axis=1), (y != ends[0]).sum(axis=1), y.size

    _, low, high = bounds(x, e, bf16)
    gamma = gamma.astype(F)
    search(x, e, bf16, mismatches, what, hidden)


def quantised_row(x, e, gamma, eps, codes, scales, what, hidden):
    """codes, scales == rowq_p of the groups of bf16(norm_p(bf16(x))); len(scales) groups of equal width."""

    def mismatches(rows):
        r = inverse_rms(rows, eps)[:, None]
        z = [
            bf16(gamma * (v.astype(F) * r)).astype(F).reshape(len(rows), len(scales), -1)
            for v in (rows, low[None] + 0 * rows, high[None] + 0 * rows)
        ]
        m, tiny = multiplier(np.max(np.abs(z[0]), axis=2))
        safe = np.where(tiny, F(1), m)
        wanted = np.where(tiny, F(0), F(1) / safe)
        ends = [i8(v * np.where(tiny, F(0), m)[..., None]).astype(int) for v in z]
        flips = want != ends[0]
        wrong = flips & ((want < np.minimum(*ends[1:])) | (want > np.maximum(*ends[1:])))
        return wrong.sum(axis=(1, 2)) + (wanted != scales).sum(axis=1), flips.sum(axis=(1, 2)), codes.size

    _, low, high = bounds(x, e, bf16)
    gamma = gamma.astype(F)
    want = codes.astype(int).reshape(1, len(scales), -1)
    search(x, e, bf16, mismatches, what, hidden)


def judge_rope(y, x, e, cos, sin, layout, what, hidden, before=bf16, after=bf16):
    """y == after(rope(before(x))): monotone in each of an output's two hidden numbers, so their four corners bound it."""
    base, low, high = bounds(x, e, before)
    want = after(rope(base, cos, sin, layout))
    m = x.shape[-1] // 2
    parity = np.zeros(x.shape[-1], bool)
    if layout == "half":
        parity[m:] = True
    else:
        parity[1::2] = True
    corners = []
    for first in (low, high):
        for second in (low, high):
            corners.append(after(rope(np.where(parity, second, first), cos, sin, layout)))
    wrong = (y != want) & ((y < np.min(corners, axis=0)) | (y > np.max(corners, axis=0)))
    assert not wrong.any(), f"{what}: {int(wrong.sum())} of {y.size} wrong, first at {np.argwhere(wrong)[0].tolist()}"
    hidden.count((y != want).sum(), y.size)


def judge_mla_prolog(given, got, before, exact=False):
    """given: arguments by name, weights row-major; got: the seven results by name; before: the caches as they were.
    exact: the products of token_x are small integers, whose sums no order can change."""
    x = as_numbers(given["token_x"])
    w_dq, w_dkv_kr, w_uk = (as_numbers(given[n]) for n in ("w_dq", "w_dkv_kr", "w_uk"))
    gamma_cq, gamma_ckv = as_numbers(given["gamma_cq"]), as_numbers(given["gamma_ckv"])
    cos, sin = as_numbers(given["cos"]), as_numbers(given["sin"])
    eps_cq, eps_ckv = given.get("epsilon_cq", 1e-5), given.get("epsilon_ckv", 1e-5)
    scale_w = given.get("dequant_scale")
    quantised = scale_w is not None and np.size(scale_w) > 0
    t, heads, d, latent = x.shape[0], *w_uk.shape
    dr = cos.shape[-1]
    hidden = Ration(MOST_FLIPS_HIDDEN)

    half = x.shape[1] // 2
    first, second = dot(x[:, :half], w_dq[:half], exact), dot(x[:, half:], w_dq[half:], exact)
    c = first[0] + second[0]
    c_e = np.zeros_like(c) if exact else first[1] + second[1] + U * np.abs(c)
    q_norm = np.asarray(got["q_norm"])
    assert q_norm.shape == (t, w_dq.shape[1])
    query_nope, query_rope = as_numbers(got["query_nope"]), as_numbers(got["query_rope"])
    assert query_nope.shape == (t, heads, latent) and query_rope.shape == (t, heads, dr)
    if quantised:
        q_scale = np.asarray(got["q_norm_scale"])
        assert q_norm.dtype == np.int8 and q_scale.shape == (t, 1) and q_scale.dtype == F
        for row in range(t):
            quantised_row(c[row], c_e[row], gamma_cq, eps_cq, q_norm[row], q_scale[row], f"q_norm[{row}]", hidden)
        acc = as_numbers(q_norm) @ as_numbers(given["w_uq_qr"])
        q = deq(acc, q_scale, np.asarray(scale_w, F).reshape(1, -1)).astype(np.float64)
        q_e = np.zeros_like(q)
    else:
        for row in range(t):
            normed_row(c[row], c_e[row], gamma_cq, eps_cq, as_numbers(q_norm[row]), f"q_norm[{row}]", hidden)
        q, q_e = dot(as_numbers(q_norm), as_numbers(given["w_uq_qr"]))
    q, q_e = (v.reshape(t, heads, d + dr) for v in (q, q_e))

    # The no-rope query: one more product behind the hidden bf16 of q, if that was not exact.
    nope = Ration(MOST_FLIPS_HIDDEN)
    for h in range(heads):
        base = bf16(q[:, h, :d])
        _, sum_e = dot(base, w_uk[h])
        for row in range(t):
            y, e = query_nope[row, h], sum_e[row]

            def mismatches(rows, y=y, e=e, h=h):
                value = rows @ w_uk[h]
                flips = y != bf16(value)
                wrong = flips & ((y < bf16(value - e)) | (y > bf16(value + e)))
                return wrong.sum(axis=1), flips.sum(axis=1), y.size

            search(q[row, h, :d], q_e[row, h, :d], bf16, mismatches, f"query_nope[{row}][{h}]", nope)
    judge_rope(
        query_rope, q[..., d:], q_e[..., d:], cos[:, None], sin[:, None], "interleaved_to_half", "query_rope", hidden
    )

    kv, kv_e = dot(x, w_dkv_kr, exact)
    slots = stored_tokens(given["cache_index"])
    rows = list(slots)
    tokens = [slots[s] for s in rows]
    kr_cache, kv_cache = np.asarray(got["kr_cache"]), np.asarray(got["kv_cache"])
    check_untouched(kr_cache, before["kr_cache"], slots, "kr_cache")
    check_untouched(kv_cache, before["kv_cache"], slots, "kv_cache")
    kr_rows, kv_rows = as_numbers(kr_cache).reshape(-1, dr), kv_cache.reshape(-1, latent)
    if rows:
        judge_rope(
            kr_rows[rows],
            kv[tokens, latent:],
            kv_e[tokens, latent:],
            cos[tokens],
            sin[tokens],
            "interleaved_to_half",
            "kr_cache",
            hidden,
        )
    if quantised:
        scale_cache = np.asarray(got["k_scale_cache"])
        check_untouched(scale_cache, before["k_scale_cache"], slots, "k_scale_cache")
        scale_rows = scale_cache.reshape(-1, scale_cache.shape[-1])
    for slot, token in slots.items():
        arguments = (kv[token, :latent], kv_e[token, :latent], gamma_ckv, eps_ckv)
        if quantised:
            quantised_row(*arguments, kv_rows[slot], scale_rows[slot], f"kv_cache of token {token}", hidden)
        else:
            normed_row(*arguments, as_numbers(kv_rows[slot]), f"kv_cache of token {token}", hidden)
    hidden.check("codes and rotated rows")
    nope.check("query_nope")
