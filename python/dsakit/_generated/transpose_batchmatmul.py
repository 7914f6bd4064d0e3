# SPDX-License-Identifier: Apache-2.0
# Written by scripts/generate_python.py from include/dsakit/*.hpp: change those, then run it.
"""One product per batch entry, whose rows come out with the batch behind them."""

from __future__ import annotations

from ..calling import (
    Array,
    Axes,
    Result,
    Weight,
    only_none,
    operator,
    run,
)

__all__ = [
    "transpose_batchmatmul",
    "npu_transpose_batchmatmul",
]


@operator
def transpose_batchmatmul(
    input: Array,
    weight: Weight,
    *,
    bias: None = None,
    scale: None = None,
    perm_x1: Axes = (0, 1, 2),
    perm_x2: Axes = (0, 1, 2),
    perm_y: Axes = (1, 0, 2),
    batch_split_factor: int = 1,
    level: str = "portable",
    y: Array | None = None,
) -> Result:
    """One product per batch entry, whose rows come out with the batch behind them.

        y[i, h] = input[h, i] weight[h], sums in float32, one rounding
        f = batch_split_factor > 1: column c of row i of the [m, b*n] is y[c / w, i, c % w], w = b*n
            / f

    Parameters:
        input               [b, m, k] after perm_x1 (bfloat16, float16, float32): rows
        weight              [b, k, n] after perm_x2; strict: k and n multiples of 16, below 65536
                            (dtype of input): a matrix per b
        perm_x1             list of int, default (0, 1, 2) ((0, 1, 2), (1, 0, 2), None): axes of
                            input that are b, m, k
        perm_x2             list of int, default (0, 1, 2) ((0, 1, 2), None; portable: (0, 2, 1)):
                            axes of weight that are b, k, n
        perm_y              list of int, default (1, 0, 2) ((1, 0, 2), None): axes of the product
                            that are those of y
        batch_split_factor  int, default 1 (>= 1, divides b*n): slabs of columns of y
        level               str, default "portable" (portable, strict): strict also refuses what
                            Atlas A2/A3 refuses

    Reserved, only None: bias, scale

    Results, or by keyword the memory for them:
        y                   [m, b, n]; batch_split_factor f > 1: [f, m, b*n/f] (dtype of input):
                            products

    Errors:
        INVALID_ARGUMENT: a tensor is missing, an order of axes is not offered, batch_split_factor
            does not divide
        INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed
        UNSUPPORTED: bias, scale; strict: sizes and orders of axes beyond the chip
        INVALID_STRIDE, MISALIGNED, INVALID_DEVICE, ALIASED: memory that cannot be read, written or
            shared like this
        INVALID_VALUE: value checking (off by default) finds a number that is not finite, or a scale
            that makes no sense

    Source: torch_npu.npu_transpose_batchmatmul. More: docs/operators/transpose_batchmatmul.md
    """
    if not (
        bias is scale is None
    ):  # fmt: skip
        only_none("transpose_batchmatmul",
            bias=bias, scale=scale)
    values = (
        input, weight, perm_x1, perm_x2, perm_y, batch_split_factor, level, y,
    )  # fmt: skip
    return run("transpose_batchmatmul", values, "transpose_batchmatmul")


@operator
def npu_transpose_batchmatmul(
    input: Array,
    weight: Weight,
    *,
    bias: None = None,
    scale: None = None,
    perm_x1: Axes = (0, 1, 2),
    perm_x2: Axes = (0, 1, 2),
    perm_y: Axes = (1, 0, 2),
    batch_split_factor: int = 1,
    level: str = "portable",
    y: Array | None = None,
) -> Result:
    """One product per batch entry, whose rows come out with the batch behind them.

        y[i, h] = input[h, i] weight[h], sums in float32, one rounding
        f = batch_split_factor > 1: column c of row i of the [m, b*n] is y[c / w, i, c % w], w = b*n
            / f

    Parameters:
        input               [b, m, k] after perm_x1 (bfloat16, float16, float32): rows
        weight              [b, k, n] after perm_x2; strict: k and n multiples of 16, below 65536
                            (dtype of input): a matrix per b
        perm_x1             list of int, default (0, 1, 2) ((0, 1, 2), (1, 0, 2), None): axes of
                            input that are b, m, k
        perm_x2             list of int, default (0, 1, 2) ((0, 1, 2), None; portable: (0, 2, 1)):
                            axes of weight that are b, k, n
        perm_y              list of int, default (1, 0, 2) ((1, 0, 2), None): axes of the product
                            that are those of y
        batch_split_factor  int, default 1 (>= 1, divides b*n): slabs of columns of y
        level               str, default "portable" (portable, strict): strict also refuses what
                            Atlas A2/A3 refuses

    Reserved, only None: bias, scale

    Results, or by keyword the memory for them:
        y                   [m, b, n]; batch_split_factor f > 1: [f, m, b*n/f] (dtype of input):
                            products

    Errors:
        INVALID_ARGUMENT: a tensor is missing, an order of axes is not offered, batch_split_factor
            does not divide
        INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed
        UNSUPPORTED: bias, scale; strict: sizes and orders of axes beyond the chip
        INVALID_STRIDE, MISALIGNED, INVALID_DEVICE, ALIASED: memory that cannot be read, written or
            shared like this
        INVALID_VALUE: value checking (off by default) finds a number that is not finite, or a scale
            that makes no sense

    Source: torch_npu.npu_transpose_batchmatmul. More: docs/operators/transpose_batchmatmul.md
    """
    if not (
        bias is scale is None
    ):  # fmt: skip
        only_none("npu_transpose_batchmatmul",
            bias=bias, scale=scale)
    values = (
        input, weight, perm_x1, perm_x2, perm_y, batch_split_factor, level, y,
    )  # fmt: skip
    return run("transpose_batchmatmul", values, "npu_transpose_batchmatmul")
