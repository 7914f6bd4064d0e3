# SPDX-License-Identifier: Apache-2.0
"""Row operations whose every fp32 rounding is fixed: equal results are required of them."""

import numpy as np

from .rounding import bf16, i8

F = np.float32


def canonical_sum(terms):
    """Sixteen fp32 lanes from +0, element i to lane i mod 16, folded in halves. Over the last axis."""
    terms = np.asarray(terms, F)
    n = terms.shape[-1]
    padded = np.zeros(terms.shape[:-1] + (-(-n // 16) * 16,), F)
    padded[..., :n] = terms
    lanes = np.zeros(terms.shape[:-1] + (16,), F)
    for i in range(0, n, 16):
        lanes = lanes + padded[..., i : i + 16]
    for half in (8, 4, 2, 1):
        lanes = lanes[..., :half] + lanes[..., half : 2 * half]
    return lanes[..., 0]


def inverse_rms(x, eps):
    """The r of norm_p, one per row."""
    x = np.asarray(x, F)
    terms = (x * x) * F(1 / x.shape[-1])
    return F(1) / np.sqrt(canonical_sum(terms) + F(eps))


def norm_p(x, gamma, eps):
    x = np.asarray(x, F)
    return np.asarray(gamma, F) * (x * inverse_rms(x, eps)[..., None])


def root(x, eps):
    """The r of norm, one per row: what the elements are divided by."""
    x = np.asarray(x, F)
    with np.errstate(over="ignore", under="ignore"):
        return np.sqrt(canonical_sum(x * x) * (F(1) / F(x.shape[-1])) + F(eps))


def norm(x, gamma, eps):
    x = np.asarray(x, F)
    return (x / root(x, eps)[..., None]) * np.asarray(gamma, F)


def layer_norm(k, gamma, beta, eps):
    """fp32, before its rounding to bf16."""
    k = np.asarray(k, F)
    inverse = F(1 / k.shape[-1])
    d = k - canonical_sum(k * inverse)[..., None]
    variance = canonical_sum((d * d) * inverse)
    return (d / np.sqrt(variance + F(eps))[..., None]) * np.asarray(gamma, F) + np.asarray(beta, F)


def multiplier(a, top=127):
    """fp32(127/a) and whether the group is tiny: all codes and the scale 0."""
    with np.errstate(divide="ignore", over="ignore"):
        m = F(top) / np.asarray(a, F)
    return m, ~np.isfinite(m)


def rowq_p(x):
    """Codes and scale over the last axis, scale = 1 / (127/a)."""
    x = np.asarray(x, F)
    m, tiny = multiplier(np.max(np.abs(x), axis=-1))
    m = np.where(tiny, F(0), m)
    codes = i8(x * m[..., None])
    with np.errstate(divide="ignore"):
        scale = np.where(tiny, F(0), F(1) / m)
    return codes, scale.astype(F)


def rowq(z):
    """Codes and scale over the last axis, scale = a/127."""
    z = np.asarray(z, F)
    a = np.max(np.abs(z), axis=-1)
    m, tiny = multiplier(a)
    return i8(z * np.where(tiny, F(0), m)[..., None]), np.where(tiny, F(0), a / F(127)).astype(F)


def tile_rule(z, alpha):
    """One scale over the last axis: (elements -> codes of elements of the same group, scale)."""
    with np.errstate(over="ignore", divide="ignore", under="ignore"):
        limit = np.max(np.abs(np.asarray(z, F)), axis=-1) * F(alpha)
        scale = limit * (F(1) / F(127))
        inverse = F(1) / scale
    usable = np.isfinite(inverse) & np.isfinite(limit)
    limit, inverse = (np.where(usable, v, F(0))[..., None] for v in (limit, inverse))
    return lambda v: i8(np.clip(v, -limit, limit) * inverse), np.where(usable, scale, F(0))


def deq(acc, token, channel):
    return (np.asarray(acc).astype(F) * np.asarray(token, F)) * np.asarray(channel, F)


def rope(x, cos, sin, layout):
    """fp32 over the last axis; half, interleaved, interleaved_to_half. Not yet rounded to bf16."""
    x, cos, sin = (np.asarray(v, F) for v in (x, cos, sin))
    m = x.shape[-1] // 2
    e, f = (x[..., :m], x[..., m:]) if layout == "half" else (x[..., 0::2], x[..., 1::2])
    low = e * cos[..., :m] - f * sin[..., :m]
    high = f * cos[..., m:] + e * sin[..., m:]
    if layout == "interleaved":
        return np.stack([low, high], axis=-1).reshape(low.shape[:-1] + (2 * m,))
    return np.concatenate([low, high], axis=-1)


def rope_first(x, cos, sin, layout):
    """The indexer's form: bf16 rope of the leading columns, the others as they are."""
    x = np.asarray(x, F)
    dr = np.shape(cos)[-1]
    return np.concatenate([bf16(rope(x[..., :dr], cos, sin, layout)).astype(F), x[..., dr:]], axis=-1)


def sylvester(n, scale=1.0):
    h = np.ones((1, 1))
    while h.shape[0] < n:
        h = np.block([[h, h], [h, -h]])
    return h * scale
