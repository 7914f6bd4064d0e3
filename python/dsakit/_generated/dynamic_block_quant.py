# SPDX-License-Identifier: Apache-2.0
# Written by scripts/generate_python.py from include/dsakit/*.hpp: change those, then run it.
"""Quantise blocks of each row symmetrically to int8, with a scale each."""

from __future__ import annotations

from ..calling import (
    Array,
    DType,
    Result,
    dtype_integer,
    operator,
    run,
)

__all__ = [
    "dynamic_block_quant",
    "npu_dynamic_block_quant",
]


@operator
def dynamic_block_quant(
    x: Array,
    *,
    min_scale: float = 0.0,
    round_mode: str = "rint",
    dst_type: DType = 1,
    row_block_size: int = 1,
    col_block_size: int = 128,
    dst_type_max: float = 0.0,
    level: str = "portable",
    y: Array | None = None,
    scale: Array | None = None,
) -> tuple[Result, Result]:
    """Quantise blocks of each row symmetrically to int8, with a scale each.

        a = max |x| of the block, m = fp32(fp32(1/a) * 127)
        y = sat8(rint(fp32(x * m))), scale = fp32(a * fp32(1/127))
        min_scale > 0: m is at least min_scale, scale at most fp32(1/min_scale)

    Parameters:
        x               [rows, n] or [b, rows, n] (bfloat16, float16): rows to quantise, any strides
                        with the last 1
        min_scale       float, default 0.0 (finite, >= 0): above 0: the lowest factor of a block,
                        and its reciprocal the largest scale
        round_mode      str, default "rint" (rint): half to even
        dst_type        int, default 1 (1: int8): type of the codes; others are reserved
        row_block_size  int, default 1 (1): rows of a block; others are reserved
        col_block_size  int, default 128 (>= 1; strict: 128): columns of a block, the last of a row
                        may be shorter
        dst_type_max    float, default 0.0 (0): reserved
        level           str, default "portable" (portable, strict): strict also refuses what Atlas
                        A2/A3 refuses

    Results, or by keyword the memory for them:
        y               shape of x (int8): the codes
        scale           shape of x, last axis ceil(n / col_block_size) (float32): what a code of the
                        block is worth

    Errors:
        INVALID_ARGUMENT: x is missing, min_scale is negative or not finite, round_mode is not rint,
            a block size is below 1
        UNSUPPORTED: dst_type other than int8, row_block_size other than 1, dst_type_max other than
            0; strict: col_block_size other than 128
        INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed
        INVALID_STRIDE, MISALIGNED, INVALID_DEVICE, ALIASED: memory that cannot be read, written or
            shared like this
        INVALID_VALUE: value checking (off by default) finds a number that is not finite, or a scale
            that makes no sense

    Source: torch_npu.npu_dynamic_block_quant. More: docs/operators/dynamic_block_quant.md
    """
    dst_type = dtype_integer("dynamic_block_quant", dst_type=dst_type)
    values = (
        x, min_scale, round_mode, dst_type, row_block_size, col_block_size, dst_type_max, level, y, scale,
    )  # fmt: skip
    return run("dynamic_block_quant", values, "dynamic_block_quant")


@operator
def npu_dynamic_block_quant(
    x: Array,
    *,
    min_scale: float = 0.0,
    round_mode: str = "rint",
    dst_type: DType = 1,
    row_block_size: int = 1,
    col_block_size: int = 128,
    dst_type_max: float = 0.0,
    level: str = "portable",
    y: Array | None = None,
    scale: Array | None = None,
) -> tuple[Result, Result]:
    """Quantise blocks of each row symmetrically to int8, with a scale each.

        a = max |x| of the block, m = fp32(fp32(1/a) * 127)
        y = sat8(rint(fp32(x * m))), scale = fp32(a * fp32(1/127))
        min_scale > 0: m is at least min_scale, scale at most fp32(1/min_scale)

    Parameters:
        x               [rows, n] or [b, rows, n] (bfloat16, float16): rows to quantise, any strides
                        with the last 1
        min_scale       float, default 0.0 (finite, >= 0): above 0: the lowest factor of a block,
                        and its reciprocal the largest scale
        round_mode      str, default "rint" (rint): half to even
        dst_type        int, default 1 (1: int8): type of the codes; others are reserved
        row_block_size  int, default 1 (1): rows of a block; others are reserved
        col_block_size  int, default 128 (>= 1; strict: 128): columns of a block, the last of a row
                        may be shorter
        dst_type_max    float, default 0.0 (0): reserved
        level           str, default "portable" (portable, strict): strict also refuses what Atlas
                        A2/A3 refuses

    Results, or by keyword the memory for them:
        y               shape of x (int8): the codes
        scale           shape of x, last axis ceil(n / col_block_size) (float32): what a code of the
                        block is worth

    Errors:
        INVALID_ARGUMENT: x is missing, min_scale is negative or not finite, round_mode is not rint,
            a block size is below 1
        UNSUPPORTED: dst_type other than int8, row_block_size other than 1, dst_type_max other than
            0; strict: col_block_size other than 128
        INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed
        INVALID_STRIDE, MISALIGNED, INVALID_DEVICE, ALIASED: memory that cannot be read, written or
            shared like this
        INVALID_VALUE: value checking (off by default) finds a number that is not finite, or a scale
            that makes no sense

    Source: torch_npu.npu_dynamic_block_quant. More: docs/operators/dynamic_block_quant.md
    """
    dst_type = dtype_integer("npu_dynamic_block_quant", dst_type=dst_type)
    values = (
        x, min_scale, round_mode, dst_type, row_block_size, col_block_size, dst_type_max, level, y, scale,
    )  # fmt: skip
    return run("dynamic_block_quant", values, "npu_dynamic_block_quant")
