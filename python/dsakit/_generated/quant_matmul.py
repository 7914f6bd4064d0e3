# SPDX-License-Identifier: Apache-2.0
# Written by scripts/generate_python.py from include/dsakit/*.hpp: change those, then run it.
"""Product of int8 matrices, exact in int32, then scaled, or quantised again."""

from __future__ import annotations

from ..calling import (
    Array,
    DType,
    Result,
    Weight,
    only_none,
    operator,
    run,
)

__all__ = [
    "quant_matmul",
    "npu_quant_matmul",
]


@operator
def quant_matmul(
    x1: Array,
    x2: Weight,
    scale: Array | None,
    *,
    offset: Array | None = None,
    pertoken_scale: Array | None = None,
    bias: Array | None = None,
    output_dtype: DType | None = None,
    x1_dtype: None = None,
    x2_dtype: None = None,
    pertoken_scale_dtype: None = None,
    scale_dtype: None = None,
    group_sizes: None = None,
    y_scale: None = None,
    level: str = "portable",
    y: Array | None = None,
) -> Result:
    """Product of int8 matrices, exact in int32, then scaled, or quantised again.

        s = x1 x2 in int32, every operation behind it rounded to float32:
        pertoken_scale: y = s * pertoken_scale[m] * scale[n] + bias[n]
        without it:     y = (s + bias[n]) * scale[n]; int8: y = sat8(rint((s + bias[n]) * scale[n] +
            offset[n]))
        int32:          y = s

    Parameters:
        x1                    [.., m, k], k <= 131071 (int8): codes of rows
        x2                    [.., k, n], leading axes as those of x1, or 1, or fewer (int8): codes
                              of a weight
        scale                 [n] or [1]; int32 output: may be None, has no effect (float32,
                              bfloat16), or None: what a column is worth
        offset                [n] or [1], int8 output only (float32), optional: added before
                              rounding to int8
        pertoken_scale        [m], bfloat16 and float16 output only (float32), optional: what a row
                              is worth
        bias                  [n], not with int32 output (int32; beside pertoken_scale float32),
                              optional: added to the sums; beside pertoken_scale to the scaled
                              values
        output_dtype          dtype, default None (int8 (None), float16, bfloat16, int32): type of y
        level                 str, default "portable" (portable, strict): strict also refuses what
                              Atlas A2/A3 refuses

    Reserved, only None: x1_dtype, x2_dtype, pertoken_scale_dtype, scale_dtype, group_sizes, y_scale

    Results, or by keyword the memory for them:
        y                     [.., m, n] (output_dtype): product

    Errors:
        INVALID_ARGUMENT: a tensor is missing or does not belong to the output, output_dtype is
            unknown
        UNSUPPORTED: int64 scales, int4 codes in int32
        INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed
        INVALID_STRIDE, MISALIGNED, INVALID_DEVICE, ALIASED: memory that cannot be read, written or
            shared like this
        INVALID_VALUE: value checking (off by default) finds a number that is not finite, or a scale
            that makes no sense

    Source: torch_npu.npu_quant_matmul. More: docs/operators/quant_matmul.md
    """
    if not (
        x1_dtype is x2_dtype is pertoken_scale_dtype is scale_dtype is group_sizes is y_scale is None
    ):  # fmt: skip
        only_none("quant_matmul",
            x1_dtype=x1_dtype, x2_dtype=x2_dtype, pertoken_scale_dtype=pertoken_scale_dtype,
            scale_dtype=scale_dtype, group_sizes=group_sizes, y_scale=y_scale)
    values = (
        x1, x2, scale, offset, pertoken_scale, bias, output_dtype, level, y,
    )  # fmt: skip
    return run("quant_matmul", values, "quant_matmul")


@operator
def npu_quant_matmul(
    x1: Array,
    x2: Weight,
    scale: Array | None,
    *,
    offset: Array | None = None,
    pertoken_scale: Array | None = None,
    bias: Array | None = None,
    output_dtype: DType | None = None,
    x1_dtype: None = None,
    x2_dtype: None = None,
    pertoken_scale_dtype: None = None,
    scale_dtype: None = None,
    group_sizes: None = None,
    y_scale: None = None,
    level: str = "portable",
    y: Array | None = None,
) -> Result:
    """Product of int8 matrices, exact in int32, then scaled, or quantised again.

        s = x1 x2 in int32, every operation behind it rounded to float32:
        pertoken_scale: y = s * pertoken_scale[m] * scale[n] + bias[n]
        without it:     y = (s + bias[n]) * scale[n]; int8: y = sat8(rint((s + bias[n]) * scale[n] +
            offset[n]))
        int32:          y = s

    Parameters:
        x1                    [.., m, k], k <= 131071 (int8): codes of rows
        x2                    [.., k, n], leading axes as those of x1, or 1, or fewer (int8): codes
                              of a weight
        scale                 [n] or [1]; int32 output: may be None, has no effect (float32,
                              bfloat16), or None: what a column is worth
        offset                [n] or [1], int8 output only (float32), optional: added before
                              rounding to int8
        pertoken_scale        [m], bfloat16 and float16 output only (float32), optional: what a row
                              is worth
        bias                  [n], not with int32 output (int32; beside pertoken_scale float32),
                              optional: added to the sums; beside pertoken_scale to the scaled
                              values
        output_dtype          dtype, default None (int8 (None), float16, bfloat16, int32): type of y
        level                 str, default "portable" (portable, strict): strict also refuses what
                              Atlas A2/A3 refuses

    Reserved, only None: x1_dtype, x2_dtype, pertoken_scale_dtype, scale_dtype, group_sizes, y_scale

    Results, or by keyword the memory for them:
        y                     [.., m, n] (output_dtype): product

    Errors:
        INVALID_ARGUMENT: a tensor is missing or does not belong to the output, output_dtype is
            unknown
        UNSUPPORTED: int64 scales, int4 codes in int32
        INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed
        INVALID_STRIDE, MISALIGNED, INVALID_DEVICE, ALIASED: memory that cannot be read, written or
            shared like this
        INVALID_VALUE: value checking (off by default) finds a number that is not finite, or a scale
            that makes no sense

    Source: torch_npu.npu_quant_matmul. More: docs/operators/quant_matmul.md
    """
    if not (
        x1_dtype is x2_dtype is pertoken_scale_dtype is scale_dtype is group_sizes is y_scale is None
    ):  # fmt: skip
        only_none("npu_quant_matmul",
            x1_dtype=x1_dtype, x2_dtype=x2_dtype, pertoken_scale_dtype=pertoken_scale_dtype,
            scale_dtype=scale_dtype, group_sizes=group_sizes, y_scale=y_scale)
    values = (
        x1, x2, scale, offset, pertoken_scale, bias, output_dtype, level, y,
    )  # fmt: skip
    return run("quant_matmul", values, "npu_quant_matmul")
