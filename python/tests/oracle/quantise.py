# SPDX-License-Identifier: Apache-2.0
"""Quantisation of given rows: every rounding is fixed, so equal results are required."""

import numpy as np

from .rounding import i8
from .rows import F, multiplier

RANGES = dict(
    qint8=(np.int8, -128, 127), quint8=(np.uint8, 0, 255), qint32=(np.int32, -(2**31), 2**31 - 1), quint4x2=(None, -8, 7)
)  # fmt: skip


def pack_int4(codes):
    """Eight codes of the last axis in one int32, the first in the lowest bits."""
    nibbles = (np.asarray(codes).astype(np.int64) & 15).reshape(*np.shape(codes)[:-1], -1, 8).astype(np.uint32)
    packed = np.zeros(nibbles.shape[:-1], np.uint32)
    for i in range(8):
        packed |= nibbles[..., i] << np.uint32(4 * i)
    return packed.view(np.int32)


def quantize(x, scales, zero_points, dtype, axis=1, div_mode=True):
    x = np.asarray(x)
    if not div_mode:
        axis = -2 if axis == -2 else -1
    shape = [1] * x.ndim
    shape[axis] = -1
    vector = lambda v: np.asarray(v, F).reshape(shape)
    kind, low, high = RANGES[dtype if dtype.startswith("q") else "q" + dtype]
    with np.errstate(all="ignore"):
        if div_mode:
            v = np.rint(x.astype(F) / vector(scales)).astype(np.float64)
            if zero_points is not None:
                v = v + np.rint(np.asarray(zero_points).astype(np.float64)).reshape(shape)
        else:
            v = x.astype(F) * vector(scales)
            v = np.rint(v if zero_points is None else v + vector(zero_points)).astype(np.float64)
    codes = np.where(np.isnan(v), 0, np.clip(v, low, high)).astype(np.int64)
    return pack_int4(codes) if kind is None else codes.astype(kind)


def dynamic_block_quant(x, min_scale=0.0, col_block_size=128):
    x = np.asarray(x, F)
    n = x.shape[-1]
    y, scales = np.zeros(x.shape, np.int8), []
    for first in range(0, n, col_block_size):
        block = x[..., first : first + col_block_size]
        a = np.max(np.abs(block), axis=-1)
        with np.errstate(divide="ignore", over="ignore"):
            m = (F(1) / a) * F(127)
        tiny = ~np.isfinite(m)
        s = a * (F(1) / F(127))
        if min_scale > 0:
            m, s = np.maximum(m, F(min_scale)), np.minimum(s, F(1) / F(min_scale))
        y[..., first : first + col_block_size] = i8(block * np.where(tiny, F(0), m)[..., None])
        scales.append(np.where(tiny, F(0), s))
    return y, np.stack(scales, axis=-1).astype(F) if scales else np.zeros((*x.shape[:-1], 0), F)


def dynamic_quant(x, smooth=None, group_index=None, int4=False):
    """Per token: codes by fp32(127/a), scale fp32(a/127). int4: 7 in place of 127, eight codes to an int32."""
    z = np.asarray(x, F)
    flat = z.reshape(-1, z.shape[-1])
    if smooth is not None:
        s = np.asarray(smooth, F)
        if group_index is not None:
            s = s[[int(np.flatnonzero(np.asarray(group_index) > r)[0]) for r in range(flat.shape[0])]]
        flat = flat * s
    top, low, high = (7, -8, 7) if int4 else (127, -128, 127)
    a = np.max(np.abs(flat), axis=-1)
    m, tiny = multiplier(a, top)
    v = flat * np.where(tiny, F(0), m)[:, None]
    codes = np.clip(np.rint(v), low, high).astype(np.int64)
    scale = np.where(tiny, F(0), a / F(top)).astype(F)
    y = pack_int4(codes) if int4 else codes.astype(np.int8)
    return y.reshape(z.shape[:-1] + (y.shape[-1],)), scale.reshape(z.shape[:-1])
