# SPDX-License-Identifier: Apache-2.0
# Written by scripts/generate_python.py from include/dsakit/*.hpp: change those, then run it.
"""Rotate rows by position: pairs in, halves out."""

from __future__ import annotations

from ..calling import (
    Array,
    Result,
    operator,
    run,
)

__all__ = [
    "interleave_rope",
    "npu_interleave_rope",
]


@operator
def interleave_rope(
    x: Array,
    cos: Array,
    sin: Array,
    *,
    level: str = "portable",
    y: Array | None = None,
) -> Result:
    """Rotate rows by position: pairs in, halves out.

        with m = Dr/2 and j < m:
        y[j]     = x[2j] * cos[j] - x[2j+1] * sin[j]
        y[m + j] = x[2j+1] * cos[m + j] + x[2j] * sin[m + j]

    Parameters:
        x      [B, N, S, Dr], Dr even; strict: Dr = 64 (bfloat16, float16): rows to rotate
        cos    [B, 1, S or 1, Dr] (dtype of x): cosines, both halves used as given
        sin    [B, 1, S or 1, Dr] (dtype of x): sines, likewise
        level  str, default "portable" (portable, strict): strict also refuses what Atlas A2/A3
               refuses

    Results, or by keyword the memory for them:
        y      shape of x (dtype of x): rotated rows, in halves

    Errors:
        INVALID_ARGUMENT: a tensor is missing
        INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed
        UNSUPPORTED: strict: Dr is not 64
        INVALID_STRIDE, MISALIGNED, INVALID_DEVICE, ALIASED: memory that cannot be read, written or
            shared like this
        INVALID_VALUE: value checking (off by default) finds a number that is not finite, or a scale
            that makes no sense

    Source: torch_npu.npu_interleave_rope. More: docs/operators/rope.md
    """
    values = (
        x, cos, sin, level, y,
    )  # fmt: skip
    return run("interleave_rope", values, "interleave_rope")


@operator
def npu_interleave_rope(
    x: Array,
    cos: Array,
    sin: Array,
    *,
    level: str = "portable",
    y: Array | None = None,
) -> Result:
    """Rotate rows by position: pairs in, halves out.

        with m = Dr/2 and j < m:
        y[j]     = x[2j] * cos[j] - x[2j+1] * sin[j]
        y[m + j] = x[2j+1] * cos[m + j] + x[2j] * sin[m + j]

    Parameters:
        x      [B, N, S, Dr], Dr even; strict: Dr = 64 (bfloat16, float16): rows to rotate
        cos    [B, 1, S or 1, Dr] (dtype of x): cosines, both halves used as given
        sin    [B, 1, S or 1, Dr] (dtype of x): sines, likewise
        level  str, default "portable" (portable, strict): strict also refuses what Atlas A2/A3
               refuses

    Results, or by keyword the memory for them:
        y      shape of x (dtype of x): rotated rows, in halves

    Errors:
        INVALID_ARGUMENT: a tensor is missing
        INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed
        UNSUPPORTED: strict: Dr is not 64
        INVALID_STRIDE, MISALIGNED, INVALID_DEVICE, ALIASED: memory that cannot be read, written or
            shared like this
        INVALID_VALUE: value checking (off by default) finds a number that is not finite, or a scale
            that makes no sense

    Source: torch_npu.npu_interleave_rope. More: docs/operators/rope.md
    """
    values = (
        x, cos, sin, level, y,
    )  # fmt: skip
    return run("interleave_rope", values, "npu_interleave_rope")
