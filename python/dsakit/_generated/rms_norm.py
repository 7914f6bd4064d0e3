# SPDX-License-Identifier: Apache-2.0
# Written by scripts/generate_python.py from include/dsakit/*.hpp: change those, then run it.
"""Divide each row by its root mean square and multiply it by weights."""

from __future__ import annotations

from ..calling import (
    Array,
    Result,
    operator,
    run,
)

__all__ = [
    "rms_norm",
    "npu_rms_norm",
]


@operator
def rms_norm(
    self: Array,
    gamma: Array,
    epsilon: float = 1e-06,
    *,
    level: str = "portable",
    y: Array | None = None,
    rstd: Array | None = None,
) -> tuple[Result, Result]:
    """Divide each row by its root mean square and multiply it by weights.

        rstd = 1 / sqrt(mean(self^2) + epsilon)
        y = self * rstd * gamma

    Parameters:
        self     [..., row], row the shape of gamma (bfloat16, float16, float32): rows to normalise,
                 any strides with the last 1
        gamma    the last axes of self, one or more (dtype of self, or float32): weights of the norm
        epsilon  float, default 1e-06 (> 0): added to the mean of the squares
        level    str, default "portable" (portable, strict): strict also refuses what Atlas A2/A3
                 refuses

    Results, or by keyword the memory for them:
        y        shape of self (dtype of self): normalised rows
        rstd     shape of self, 1 on the axes of gamma (float32): what each row was multiplied by

    Errors:
        INVALID_ARGUMENT: a tensor is missing, epsilon is not finite or not above 0
        INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed, a row has no elements
        INVALID_STRIDE, MISALIGNED, INVALID_DEVICE, ALIASED: memory that cannot be read, written or
            shared like this
        INVALID_VALUE: value checking (off by default) finds a number that is not finite, or a scale
            that makes no sense

    Source: torch_npu.npu_rms_norm. More: docs/operators/rms_norm.md
    """
    values = (
        self, gamma, epsilon, level, y, rstd,
    )  # fmt: skip
    return run("rms_norm", values, "rms_norm")


@operator
def npu_rms_norm(
    self: Array,
    gamma: Array,
    epsilon: float = 1e-06,
    *,
    level: str = "portable",
    y: Array | None = None,
    rstd: Array | None = None,
) -> tuple[Result, Result]:
    """Divide each row by its root mean square and multiply it by weights.

        rstd = 1 / sqrt(mean(self^2) + epsilon)
        y = self * rstd * gamma

    Parameters:
        self     [..., row], row the shape of gamma (bfloat16, float16, float32): rows to normalise,
                 any strides with the last 1
        gamma    the last axes of self, one or more (dtype of self, or float32): weights of the norm
        epsilon  float, default 1e-06 (> 0): added to the mean of the squares
        level    str, default "portable" (portable, strict): strict also refuses what Atlas A2/A3
                 refuses

    Results, or by keyword the memory for them:
        y        shape of self (dtype of self): normalised rows
        rstd     shape of self, 1 on the axes of gamma (float32): what each row was multiplied by

    Errors:
        INVALID_ARGUMENT: a tensor is missing, epsilon is not finite or not above 0
        INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed, a row has no elements
        INVALID_STRIDE, MISALIGNED, INVALID_DEVICE, ALIASED: memory that cannot be read, written or
            shared like this
        INVALID_VALUE: value checking (off by default) finds a number that is not finite, or a scale
            that makes no sense

    Source: torch_npu.npu_rms_norm. More: docs/operators/rms_norm.md
    """
    values = (
        self, gamma, epsilon, level, y, rstd,
    )  # fmt: skip
    return run("rms_norm", values, "npu_rms_norm")
