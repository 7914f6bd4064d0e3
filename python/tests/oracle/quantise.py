# SPDX-License-Identifier: Apache-2.0
import numpy as np

from .rows import F, multiplier


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
    if int4:
        nibbles = (codes & 15).reshape(codes.shape[0], -1, 8).astype(np.uint32)
        packed = np.zeros(nibbles.shape[:2], np.uint32)
        for i in range(8):
            packed |= nibbles[..., i] << np.uint32(4 * i)
        y = packed.view(np.int32)
    else:
        y = codes.astype(np.int8)
    return y.reshape(z.shape[:-1] + (y.shape[-1],)), scale.reshape(z.shape[:-1])
