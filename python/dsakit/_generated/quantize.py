# SPDX-License-Identifier: Apache-2.0
# Written by scripts/generate_python.py from include/dsakit/*.hpp: change those, then run it.
"""Quantise with given scales, per tensor or along one axis."""

from __future__ import annotations

from ..calling import (
    Array,
    DType,
    Result,
    operator,
    run,
)

__all__ = [
    "quantize",
    "npu_quantize",
]


@operator
def quantize(
    input: Array,
    scales: Array,
    zero_points: Array | None,
    dtype: DType,
    axis: int = 1,
    div_mode: bool = True,
    *,
    level: str = "portable",
    y: Array | None = None,
) -> Result:
    """Quantise with given scales, per tensor or along one axis.

        div_mode:     y = sat(rint(fp32(input / scale)) + zero_point)
        not div_mode: y = sat(rint(fp32(fp32(input * scale) + zero_point)))
        rint rounds half to even; sat clamps to the range of y; NaN becomes 0

    Parameters:
        input        rank >= 1 (float32, float16, bfloat16): values to quantise, any strides with
                     the last 1
        scales       [n] or [1], n the length of axis; not div_mode: also rank of input, the other
                     axes 1 (float32, or bfloat16 with bfloat16 input; portable: float16 and
                     bfloat16 with float32 input; not div_mode: dtype of input): what input is
                     divided by, or not div_mode multiplied by
        zero_points  shape of scales (int8, uint8, int32, bfloat16 (rounded to an integer); not
                     div_mode: dtype of scales), or None: added after scaling
        dtype        dtype, required (qint8 int8, quint8 uint8, qint32 int32; not div_mode: qint8,
                     quint4x2): type of the codes
        axis         int, default 1 (an axis of input, negative from the end; not div_mode: -2, or
                     any other for the last): the axis along which scales differ
        div_mode     bool, default True: divide by the scales; otherwise multiply by them
        level        str, default "portable" (portable, strict): strict also refuses what Atlas
                     A2/A3 refuses

    Results, or by keyword the memory for them:
        y            shape of input; quint4x2: last axis / 8 (int8, uint8 or int32 as dtype says;
                     quint4x2: int32): the codes; quint4x2: eight in an int32, the first in the
                     lowest bits

    Errors:
        INVALID_ARGUMENT: input, scales or dtype is missing, dtype is unknown or not of this
            div_mode, axis is none of input
        UNSUPPORTED: dtype is an 8-bit float; strict: bfloat16 zero points with another input
        INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed, the last axis is no multiple of 8
            for quint4x2
        INVALID_STRIDE, MISALIGNED, INVALID_DEVICE, ALIASED: memory that cannot be read, written or
            shared like this
        INVALID_VALUE: value checking (off by default) finds a number that is not finite, or a scale
            that makes no sense

    Source: torch_npu.npu_quantize. More: docs/operators/quantize.md
    """
    values = (
        input, scales, zero_points, dtype, axis, div_mode, level, y,
    )  # fmt: skip
    return run("quantize", values, "quantize")


@operator
def npu_quantize(
    input: Array,
    scales: Array,
    zero_points: Array | None,
    dtype: DType,
    axis: int = 1,
    div_mode: bool = True,
    *,
    level: str = "portable",
    y: Array | None = None,
) -> Result:
    """Quantise with given scales, per tensor or along one axis.

        div_mode:     y = sat(rint(fp32(input / scale)) + zero_point)
        not div_mode: y = sat(rint(fp32(fp32(input * scale) + zero_point)))
        rint rounds half to even; sat clamps to the range of y; NaN becomes 0

    Parameters:
        input        rank >= 1 (float32, float16, bfloat16): values to quantise, any strides with
                     the last 1
        scales       [n] or [1], n the length of axis; not div_mode: also rank of input, the other
                     axes 1 (float32, or bfloat16 with bfloat16 input; portable: float16 and
                     bfloat16 with float32 input; not div_mode: dtype of input): what input is
                     divided by, or not div_mode multiplied by
        zero_points  shape of scales (int8, uint8, int32, bfloat16 (rounded to an integer); not
                     div_mode: dtype of scales), or None: added after scaling
        dtype        dtype, required (qint8 int8, quint8 uint8, qint32 int32; not div_mode: qint8,
                     quint4x2): type of the codes
        axis         int, default 1 (an axis of input, negative from the end; not div_mode: -2, or
                     any other for the last): the axis along which scales differ
        div_mode     bool, default True: divide by the scales; otherwise multiply by them
        level        str, default "portable" (portable, strict): strict also refuses what Atlas
                     A2/A3 refuses

    Results, or by keyword the memory for them:
        y            shape of input; quint4x2: last axis / 8 (int8, uint8 or int32 as dtype says;
                     quint4x2: int32): the codes; quint4x2: eight in an int32, the first in the
                     lowest bits

    Errors:
        INVALID_ARGUMENT: input, scales or dtype is missing, dtype is unknown or not of this
            div_mode, axis is none of input
        UNSUPPORTED: dtype is an 8-bit float; strict: bfloat16 zero points with another input
        INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed, the last axis is no multiple of 8
            for quint4x2
        INVALID_STRIDE, MISALIGNED, INVALID_DEVICE, ALIASED: memory that cannot be read, written or
            shared like this
        INVALID_VALUE: value checking (off by default) finds a number that is not finite, or a scale
            that makes no sense

    Source: torch_npu.npu_quantize. More: docs/operators/quantize.md
    """
    values = (
        input, scales, zero_points, dtype, axis, div_mode, level, y,
    )  # fmt: skip
    return run("quantize", values, "npu_quantize")
