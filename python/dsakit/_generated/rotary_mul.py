# SPDX-License-Identifier: Apache-2.0
# Written by scripts/generate_python.py from include/dsakit/*.hpp: change those, then run it.
"""Rotate rows by position, each element where it was."""

from __future__ import annotations

from ..calling import (
    Array,
    Result,
    operator,
    run,
)

__all__ = [
    "rotary_mul",
    "npu_rotary_mul",
]


@operator
def rotary_mul(
    x: Array,
    r1: Array,
    r2: Array,
    rotary_mode: str = "half",
    rotate: Array | None = None,
    *,
    level: str = "portable",
    y: Array | None = None,
) -> Result:
    """Rotate rows by position, each element where it was.

        y = x * r1 + rot(x) * r2
        half:       rot(x) = [-x[D/2 ..], x[.. D/2]]
        interleave: pairs (x[2i], x[2i+1]) become (-x[2i+1], x[2i])
        with rotate: rot(x) = x @ rotate in fp32; rotary_mode has no effect

    Parameters:
        x            rank 3 or 4, last axis D even; strict: D < 896, axes 0 and 1 < 1000 (bfloat16,
                     float16, float32): rows to rotate
        r1           rank of x, every axis that of x, or 1 but for the last (dtype of x): cosines
        r2           like r1, on its own (dtype of x): sines
        rotary_mode  str, default "half" (half, interleave): which elements turn together: j and j +
                     D/2, or 2j and 2j + 1
        rotate       [D, D]; strict: absent (dtype of x), optional: what turns a row in place of
                     rotary_mode, from the right
        level        str, default "portable" (portable, strict): strict also refuses what Atlas
                     A2/A3 refuses

    Results, or by keyword the memory for them:
        y            shape of x (dtype of x): rotated rows, in the order of x

    Errors:
        INVALID_ARGUMENT: a tensor is missing, rotary_mode is unknown
        UNSUPPORTED: strict: rotate is given, D or a leading axis beyond the chip
        INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed
        INVALID_STRIDE, MISALIGNED, INVALID_DEVICE, ALIASED: memory that cannot be read, written or
            shared like this
        INVALID_VALUE: value checking (off by default) finds a number that is not finite, or a scale
            that makes no sense

    Source: torch_npu.npu_rotary_mul. More: docs/operators/rope.md
    """
    values = (
        x, r1, r2, rotary_mode, rotate, level, y,
    )  # fmt: skip
    return run("rotary_mul", values, "rotary_mul")


@operator
def npu_rotary_mul(
    x: Array,
    r1: Array,
    r2: Array,
    rotary_mode: str = "half",
    rotate: Array | None = None,
    *,
    level: str = "portable",
    y: Array | None = None,
) -> Result:
    """Rotate rows by position, each element where it was.

        y = x * r1 + rot(x) * r2
        half:       rot(x) = [-x[D/2 ..], x[.. D/2]]
        interleave: pairs (x[2i], x[2i+1]) become (-x[2i+1], x[2i])
        with rotate: rot(x) = x @ rotate in fp32; rotary_mode has no effect

    Parameters:
        x            rank 3 or 4, last axis D even; strict: D < 896, axes 0 and 1 < 1000 (bfloat16,
                     float16, float32): rows to rotate
        r1           rank of x, every axis that of x, or 1 but for the last (dtype of x): cosines
        r2           like r1, on its own (dtype of x): sines
        rotary_mode  str, default "half" (half, interleave): which elements turn together: j and j +
                     D/2, or 2j and 2j + 1
        rotate       [D, D]; strict: absent (dtype of x), optional: what turns a row in place of
                     rotary_mode, from the right
        level        str, default "portable" (portable, strict): strict also refuses what Atlas
                     A2/A3 refuses

    Results, or by keyword the memory for them:
        y            shape of x (dtype of x): rotated rows, in the order of x

    Errors:
        INVALID_ARGUMENT: a tensor is missing, rotary_mode is unknown
        UNSUPPORTED: strict: rotate is given, D or a leading axis beyond the chip
        INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed
        INVALID_STRIDE, MISALIGNED, INVALID_DEVICE, ALIASED: memory that cannot be read, written or
            shared like this
        INVALID_VALUE: value checking (off by default) finds a number that is not finite, or a scale
            that makes no sense

    Source: torch_npu.npu_rotary_mul. More: docs/operators/rope.md
    """
    values = (
        x, r1, r2, rotary_mode, rotate, level, y,
    )  # fmt: skip
    return run("rotary_mul", values, "npu_rotary_mul")
