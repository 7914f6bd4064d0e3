# SPDX-License-Identifier: Apache-2.0
# Written by scripts/generate_python.py from include/dsakit/*.hpp: change those, then run it.
"""Multiply one half of the values by SiLU of the other."""

from __future__ import annotations

from ..calling import (
    Array,
    Result,
    operator,
    run,
)

__all__ = [
    "swiglu",
    "npu_swiglu",
]


@operator
def swiglu(
    self: Array,
    dim: int = -1,
    *,
    level: str = "portable",
    y: Array | None = None,
) -> Result:
    """Multiply one half of the values by SiLU of the other.

        a, b = the halves of self along dim
        y = a / (1 + exp(-a)) * b

    Parameters:
        self   rank >= 1, axis dim even (bfloat16, float16, float32): gates, and behind them along
               dim as many values, any strides with the last 1
        dim    int, default -1 (an axis of self, negative from the end): the axis that holds both
               halves
        level  str, default "portable" (portable, strict): strict also refuses what Atlas A2/A3
               refuses

    Results, or by keyword the memory for them:
        y      shape of self, half of it along dim (dtype of self): gated values

    Errors:
        INVALID_ARGUMENT: self is missing, dim is none of its axes
        INVALID_SHAPE, INVALID_DTYPE: self is not as listed
        INVALID_STRIDE, MISALIGNED, INVALID_DEVICE, ALIASED: memory that cannot be read, written or
            shared like this
        INVALID_VALUE: value checking (off by default) finds a number that is not finite, or a scale
            that makes no sense

    Source: torch_npu.npu_swiglu. More: docs/operators/swiglu.md
    """
    values = (
        self, dim, level, y,
    )  # fmt: skip
    return run("swiglu", values, "swiglu")


@operator
def npu_swiglu(
    self: Array,
    dim: int = -1,
    *,
    level: str = "portable",
    y: Array | None = None,
) -> Result:
    """Multiply one half of the values by SiLU of the other.

        a, b = the halves of self along dim
        y = a / (1 + exp(-a)) * b

    Parameters:
        self   rank >= 1, axis dim even (bfloat16, float16, float32): gates, and behind them along
               dim as many values, any strides with the last 1
        dim    int, default -1 (an axis of self, negative from the end): the axis that holds both
               halves
        level  str, default "portable" (portable, strict): strict also refuses what Atlas A2/A3
               refuses

    Results, or by keyword the memory for them:
        y      shape of self, half of it along dim (dtype of self): gated values

    Errors:
        INVALID_ARGUMENT: self is missing, dim is none of its axes
        INVALID_SHAPE, INVALID_DTYPE: self is not as listed
        INVALID_STRIDE, MISALIGNED, INVALID_DEVICE, ALIASED: memory that cannot be read, written or
            shared like this
        INVALID_VALUE: value checking (off by default) finds a number that is not finite, or a scale
            that makes no sense

    Source: torch_npu.npu_swiglu. More: docs/operators/swiglu.md
    """
    values = (
        self, dim, level, y,
    )  # fmt: skip
    return run("swiglu", values, "npu_swiglu")
