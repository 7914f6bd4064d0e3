# SPDX-License-Identifier: Apache-2.0
"""One rounding each, straight from float64: going through float32 first would round twice."""

import numpy as np

U = 2.0**-24


def _nearest_even(x, precision, smallest_exponent, largest):
    x = np.asarray(x, np.float64)
    finite = np.where(np.isfinite(x), x, 0.0)
    exponent = np.maximum(np.frexp(finite)[1] - 1, smallest_exponent)
    quantum = np.ldexp(1.0, exponent - precision + 1)
    y = np.rint(finite / quantum) * quantum
    y = np.where(np.abs(y) > largest, np.copysign(np.inf, y), y)
    return np.where(np.isfinite(x), y, x)


def bf16(x):
    return _nearest_even(x, 8, -126, (2 - 2.0**-7) * 2.0**127)


def f16(x):
    return _nearest_even(x, 11, -14, 65504.0)


def f32(x):
    with np.errstate(over="ignore"):
        return np.asarray(x, np.float64).astype(np.float32)


def i8(v):
    v = np.asarray(v)
    return np.where(np.isnan(v), 0, np.clip(np.rint(v), -128, 127)).astype(np.int8)


def i8_away(v):
    """Through fp16, both times with ties away from zero."""
    v = np.asarray(v, np.float64)
    magnitude = np.abs(v)
    quantum = np.ldexp(1.0, np.maximum(np.frexp(magnitude)[1] - 1, -14) - 10)
    half = np.floor(magnitude / quantum + 0.5) * quantum
    return np.clip(np.copysign(np.floor(half + 0.5), v), -128, 127).astype(np.int8)


def fma32(a, b, c):
    """fp32 fma. The product of two fp32 numbers is exact in float64; the sum is rounded to odd there, so that the
    second rounding cannot land on a tie that the first one made."""
    with np.errstate(invalid="ignore", over="ignore"):
        p = np.asarray(a, np.float64) * np.asarray(b, np.float64)
        c = np.asarray(c, np.float64)
        s = p + c
        part = s - p
        error = (p - (s - part)) + (c - part)
        even = (np.ascontiguousarray(s).view(np.int64) & 1) == 0
        adjust = np.isfinite(s) & (error != 0) & ~np.isnan(error) & even
        s = np.where(adjust, np.nextafter(s, np.where(error > 0, np.inf, -np.inf)), s)
        return s.astype(np.float32)
