# SPDX-License-Identifier: Apache-2.0
"""Judges what lightning_indexer_prolog_quant returned, from its actual inputs."""

import numpy as np

from .arbiter import MOST_FLIPS_HIDDEN, Ration, bounds, dot, judge, search
from .mla_prolog import as_numbers, check_untouched, stored_tokens
from .rounding import U, bf16, f16, i8
from .rows import F, deq, layer_norm, multiplier, rope_first


def quantised(h, e, codes, scale, to_stored):
    """Does codes, scale == Quant(bf16(h)) hold for each row of h [C, n]?

    Only the group maximum couples the elements: its possible values are tried.
    Returns (unexplained, licensed) per row."""
    base, low, high = bounds(h, e, bf16)
    magnitude_low = np.where((low < 0) & (high > 0), 0, np.minimum(np.abs(low), np.abs(high)))
    a_low, a_high = magnitude_low.max(axis=1), np.maximum(np.abs(low), np.abs(high)).max(axis=1)
    maxima = np.abs(base).max(axis=1)
    best = None
    for a in (maxima, a_low, a_high):
        m, tiny = multiplier(a.astype(F))
        m = np.where(tiny, F(0), m)[:, None]
        stored = to_stored(np.where(tiny, F(0), F(1) / np.where(tiny, F(1), m[:, 0])))
        ends = [i8(v.astype(F) * m).astype(int) for v in (base, low, high)]
        flips = codes != ends[0]
        wrong = (flips & ((codes < ends[1]) | (codes > ends[2]))).sum(axis=1) + (stored != scale)
        count = flips.sum(axis=1) + (a != maxima)
        if best is None:
            best = wrong, count
        else:
            better = wrong < best[0]
            best = np.where(better, wrong, best[0]), np.where(better, count, best[1])
    return best


def rotate(rows, matrix):
    """(x, E) of rows times the Hadamard matrix, or the rows themselves without one."""
    if matrix is None:
        return rows.astype(np.float64), np.zeros(rows.shape)
    return dot(rows, matrix)


def judge_indexer_prolog(given, got, before, exact=False):
    """given: arguments by name, weights row-major; got: the five results by name; before: the two caches as they were.
    exact: the products of x are small integers, whose sums no order can change."""
    layout = given.get("rope_layout", "half")
    x, cos, sin = as_numbers(given["x"]), as_numbers(given["cos"]), as_numbers(given["sin"])
    q_int8, q_scale = np.asarray(got["q_int8"]), np.asarray(got["q_scale"])
    weights = np.asarray(got["weights"])
    gamma, beta = as_numbers(given["ln_gamma_k"]), as_numbers(given["ln_beta_k"])
    t, di, heads = x.shape[0], gamma.shape[0], np.shape(given["w_proj"])[1]
    matrices = [None if given[n] is None else as_numbers(given[n]) for n in ("hadamard_q", "hadamard_k")]
    hidden = Ration(MOST_FLIPS_HIDDEN)
    assert q_int8.shape == (t, heads, di) and q_int8.dtype == np.int8
    assert q_scale.shape == (t, heads, 1) and q_scale.dtype == np.float16
    assert weights.shape == (t, heads) and weights.dtype == np.float16

    acc = as_numbers(given["q_norm"]) @ as_numbers(given["w_qb"])
    q = bf16(
        deq(acc, np.asarray(given["q_norm_scale"], F).reshape(-1, 1), np.asarray(given["w_qb_scale"], F).reshape(1, -1))
    )
    q = rope_first(q.reshape(t, heads, di), cos[:, None], sin[:, None], layout).reshape(-1, di)
    value, e = rotate(q, matrices[0])
    wrong, flips = quantised(value, e, q_int8.reshape(-1, di).astype(int), as_numbers(q_scale).reshape(-1), f16)
    assert not wrong.any(), (
        f"q_int8, q_scale: row {np.flatnonzero(wrong)[0]} (token * heads + head) has {wrong.max()} unexplained values"
    )
    hidden.count(flips.sum(), q_int8.size)

    # The key: its LayerNorm sees fp32 sums, whose E travels through mean, variance and quotient.
    k, k_e = dot(x, as_numbers(given["wk"]), exact)
    eps = given.get("layernorm_epsilon_k", 1e-6)
    y = layer_norm(k.astype(F), gamma, beta, eps).astype(np.float64)
    if exact:
        y_e = np.zeros_like(y)
    else:
        mean = k.mean(axis=1, keepdims=True)
        d = k - mean
        d_e = k_e + k_e.mean(axis=1, keepdims=True) + U * np.abs(d)
        root = np.sqrt((d * d).mean(axis=1, keepdims=True) + eps)
        root_e = (2 * np.abs(d) * d_e).mean(axis=1, keepdims=True) / (2 * root) + U * root
        quotient = d / root
        y_e = np.abs(gamma) * ((d_e + np.abs(quotient) * root_e) / root + U * np.abs(quotient))
        y_e = y_e + U * (np.abs(gamma * quotient) + np.abs(y))
    slots = stored_tokens(given["k_cache_index"])
    k_cache, k_scale = np.asarray(got["k_cache"]), np.asarray(got["k_scale_cache"])
    check_untouched(k_cache, before["k_cache"], slots, "k_cache")
    check_untouched(k_scale, before["k_scale_cache"], slots, "k_scale_cache")
    to_stored = f16 if k_scale.dtype == np.float16 else (lambda v: v.astype(np.float64))
    codes, scales = k_cache.reshape(-1, di).astype(int), as_numbers(k_scale).reshape(-1)
    for slot, token in slots.items():
        base = rope_first(bf16(y[token])[None], cos[token], sin[token], layout)
        _, h_e = rotate(base, matrices[1])

        def mismatches(rows, token=token, slot=slot, h_e=h_e):
            rows = rope_first(rows, cos[token], sin[token], layout).astype(np.float64)
            value = rows if matrices[1] is None else rows @ matrices[1]
            wrong, flips = quantised(value, h_e, codes[slot], scales[slot], to_stored)
            return wrong, flips, di

        search(y[token], y_e[token], bf16, mismatches, f"k_cache of token {token}", hidden)
    hidden.check("codes")

    factor = F(1.0 / (np.sqrt(float(heads)) * np.sqrt(float(di))))
    w, w_e = dot(x, as_numbers(given["w_proj"]), exact)
    judge(weights, w, w_e, lambda v: f16(bf16(v).astype(F) * factor), "weights", Ration(MOST_FLIPS_HIDDEN))
