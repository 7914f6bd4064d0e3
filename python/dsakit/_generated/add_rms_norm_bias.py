# SPDX-License-Identifier: Apache-2.0
# Written by scripts/generate_python.py from include/dsakit/*.hpp: change those, then run it.
"""Add rows, divide each sum by its root mean square, multiply it by weights and add a bias."""

from __future__ import annotations

from ..calling import (
    Array,
    Result,
    operator,
    run,
)

__all__ = [
    "add_rms_norm_bias",
    "npu_add_rms_norm_bias",
]


@operator
def add_rms_norm_bias(
    x1: Array,
    x2: Array,
    gamma: Array,
    beta: Array | None = None,
    epsilon: float = 1e-06,
    *,
    level: str = "portable",
    y: Array | None = None,
    rstd: Array | None = None,
    x: Array | None = None,
) -> tuple[Result, Result, Result]:
    """Add rows, divide each sum by its root mean square, multiply it by weights and add a bias.

        x = round(x1 + x2), to the dtype of x1
        rstd = 1 / sqrt(mean(x^2) + epsilon)
        y = round(x * rstd) * gamma + beta; float16: round(round(x * rstd) * gamma) + beta

    Parameters:
        x1       [..., row], row the shape of gamma (bfloat16, float16, float32): rows to normalise,
                 any strides with the last 1
        x2       shape of x1 (dtype of x1): what is added to them
        gamma    the last axes of x1, one or more (dtype of x1): weights of the norm
        beta     shape of gamma (dtype of x1), optional: added to the normalised rows
        epsilon  float, default 1e-06 (> 0): added to the mean of the squares
        level    str, default "portable" (portable, strict): strict also refuses what Atlas A2/A3
                 refuses

    Results, or by keyword the memory for them:
        y        shape of x1 (dtype of x1): normalised rows
        rstd     shape of x1, 1 on the axes of gamma (float32): what each row of x was multiplied by
        x        shape of x1 (dtype of x1): the sums x1 + x2

    Errors:
        INVALID_ARGUMENT: a tensor is missing, epsilon is not finite or not above 0
        INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed, a row has no elements
        INVALID_STRIDE, MISALIGNED, INVALID_DEVICE, ALIASED: memory that cannot be read, written or
            shared like this
        INVALID_VALUE: value checking (off by default) finds a number that is not finite, or a scale
            that makes no sense

    Source: torch.ops._C_ascend.npu_add_rms_norm_bias. More: docs/operators/rms_norm.md
    """
    values = (
        x1, x2, gamma, beta, epsilon, level, y, rstd, x,
    )  # fmt: skip
    return run("add_rms_norm_bias", values, "add_rms_norm_bias")


@operator
def npu_add_rms_norm_bias(
    x1: Array,
    x2: Array,
    gamma: Array,
    beta: Array | None = None,
    epsilon: float = 1e-06,
    *,
    level: str = "portable",
    y: Array | None = None,
    rstd: Array | None = None,
    x: Array | None = None,
) -> tuple[Result, Result, Result]:
    """Add rows, divide each sum by its root mean square, multiply it by weights and add a bias.

        x = round(x1 + x2), to the dtype of x1
        rstd = 1 / sqrt(mean(x^2) + epsilon)
        y = round(x * rstd) * gamma + beta; float16: round(round(x * rstd) * gamma) + beta

    Parameters:
        x1       [..., row], row the shape of gamma (bfloat16, float16, float32): rows to normalise,
                 any strides with the last 1
        x2       shape of x1 (dtype of x1): what is added to them
        gamma    the last axes of x1, one or more (dtype of x1): weights of the norm
        beta     shape of gamma (dtype of x1), optional: added to the normalised rows
        epsilon  float, default 1e-06 (> 0): added to the mean of the squares
        level    str, default "portable" (portable, strict): strict also refuses what Atlas A2/A3
                 refuses

    Results, or by keyword the memory for them:
        y        shape of x1 (dtype of x1): normalised rows
        rstd     shape of x1, 1 on the axes of gamma (float32): what each row of x was multiplied by
        x        shape of x1 (dtype of x1): the sums x1 + x2

    Errors:
        INVALID_ARGUMENT: a tensor is missing, epsilon is not finite or not above 0
        INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed, a row has no elements
        INVALID_STRIDE, MISALIGNED, INVALID_DEVICE, ALIASED: memory that cannot be read, written or
            shared like this
        INVALID_VALUE: value checking (off by default) finds a number that is not finite, or a scale
            that makes no sense

    Source: torch.ops._C_ascend.npu_add_rms_norm_bias. More: docs/operators/rms_norm.md
    """
    values = (
        x1, x2, gamma, beta, epsilon, level, y, rstd, x,
    )  # fmt: skip
    return run("add_rms_norm_bias", values, "npu_add_rms_norm_bias")
