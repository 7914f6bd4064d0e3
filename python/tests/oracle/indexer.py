# SPDX-License-Identifier: Apache-2.0
"""Scores and selection of lightning_indexer and quant_lightning_indexer: one query row against its visible keys."""

import numpy as np

from .rounding import f16, fma32
from .rows import F


def visible(sparse_mode, lq, lk, i):
    return lk if sparse_mode == 0 else min(max(lk - lq + i + 1, 0), lk)


def head_sum(weights, r):
    """Canonical head sum: weights [H], r [H, n] -> fp32 [n]."""
    h = len(weights)
    lanes = np.zeros((16, r.shape[1]), F)
    for first in range(0, h, 16):
        count = min(16, h - first)
        lanes[:count] = fma32(
            np.asarray(weights[first : first + count], F)[:, None], r[first : first + count], lanes[:count]
        )
    with np.errstate(invalid="ignore", over="ignore"):
        for half in (8, 4, 2, 1):
            lanes = lanes[:half] + lanes[half : 2 * half]
    return lanes[0]


def quant_scores(q, k, w, qs, ks, numerics="fp32"):
    """q [H, D] int8, k [n, D] int8, w, qs [H], ks [n]."""
    a = q.astype(np.float64) @ k.astype(np.float64).T
    r = np.maximum(a, 0)
    with np.errstate(invalid="ignore", over="ignore"):
        if numerics == "fp32":
            m = head_sum(w.astype(F) * qs.astype(F), r.astype(F))
        else:
            half = f16(r.astype(F).astype(np.float64) * 2.0**-10).astype(F)
            product = f16(w.astype(np.float64) * qs.astype(np.float64)).astype(F)
            m = np.zeros(k.shape[0], F)
            for h in range(q.shape[0]):
                m = m + product[h] * half[h]
        return m * ks.astype(F)


def float_scores(q, k, w):
    """q [H, D], k [n, D] bf16 or fp16; fp32 chain over the columns, ReLU, canonical head sum."""
    q, k = q.astype(F), k.astype(F)
    dot = np.zeros((q.shape[0], k.shape[0]), F)
    with np.errstate(invalid="ignore", over="ignore"):
        for c in range(q.shape[1]):  # products are exact: fp32 holds all but subnormal ones
            a, b = q[:, c : c + 1], k[None, :, c]
            product = a * b
            tiny = ((np.abs(product) < 2.0**-126) & (a != 0) & (b != 0)).any()
            dot = fma32(a, b, dot) if tiny else dot + product
        return head_sum(w.astype(F), np.where(dot < 0, F(0), dot))


def select(scores, count):
    """Score descending, position ascending, -0 == +0, NaN last; -1 behind the visible keys."""
    s = np.where(scores == 0, F(0), scores).astype(F)
    bits = s.view(np.uint32).astype(np.int64)
    key = np.where(bits >> 31, (1 << 32) - 1 - bits, bits | (1 << 31))
    key = np.where(np.isnan(s), 0, key)
    best = np.argsort(-key, kind="stable")[:count]
    return np.concatenate([best, np.full(count - len(best), -1)]).astype(np.int32)
