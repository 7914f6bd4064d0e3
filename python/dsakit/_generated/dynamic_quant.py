# SPDX-License-Identifier: Apache-2.0
# Written by scripts/generate_python.py from include/dsakit/*.hpp: change those, then run it.
"""Quantise symmetrically to int8 or int4, with the scale of each row, each column or the whole tensor."""

from __future__ import annotations

from ..calling import (
    Array,
    DType,
    Result,
    operator,
    run,
)

__all__ = [
    "dynamic_quant",
    "npu_dynamic_quant",
]


@operator
def dynamic_quant(
    input: Array,
    *,
    smooth_scales: Array | None = None,
    group_index: Array | None = None,
    dst_type: DType | None = None,
    quant_mode: str = "pertoken",
    dst_type_max: float = 0.0,
    level: str = "portable",
    y: Array | None = None,
    scale: Array | None = None,
) -> tuple[Result, Result]:
    """Quantise symmetrically to int8 or int4, with the scale of each row, each column or the whole
    tensor.

        z = input * smooth, a = max |z| of what has a scale of its own
        y = rint(z * fp32(127/a)), scale = fp32(a/127); int4: 7 in place of 127

    Parameters:
        input          [..., n], rank >= 2 (bfloat16, float16; portable: float32): rows to quantise,
                       any strides with the last 1
        smooth_scales  [n]; with group_index [G, n]; perchannel: [axis -2] (dtype of input),
                       optional: factors of the columns (perchannel: of the rows), applied first
        group_index    [G] (int32), optional: where the rows of each group end, not decreasing, the
                       last the number of rows
        dst_type       dtype, default None (None, int8, qint8: int8; quint4x2: int4): type of the
                       codes
        quant_mode     str, default "pertoken" (pertoken; portable: perchannel, pertensor): what has
                       a scale of its own: a row, a column of the last two axes, everything
        dst_type_max   float, default 0.0 (0): reserved
        level          str, default "portable" (portable, strict): strict also refuses what Atlas
                       A2/A3 refuses

    Results, or by keyword the memory for them:
        y              shape of input; int4: last axis / 8 (int8; int4: int32): the codes; int4:
                       eight in an int32, the first in the lowest bits
        scale          shape of input without its last axis; perchannel: without axis -2; pertensor:
                       [1] (float32): what a code of the row, column or tensor is worth

    Errors:
        INVALID_ARGUMENT: input is missing, quant_mode or dst_type is unknown, group_index without
            smooth_scales or with another mode than pertoken
        UNSUPPORTED: an 8-bit float, dst_type_max other than 0; strict: float32, quant_mode
            perchannel or pertensor
        INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed
        INVALID_SEQLEN: group_index decreases or does not end at the number of rows
        INVALID_STRIDE, MISALIGNED, INVALID_DEVICE, ALIASED: memory that cannot be read, written or
            shared like this
        INVALID_VALUE: value checking (off by default) finds a number that is not finite, or a scale
            that makes no sense

    Source: torch_npu.npu_dynamic_quant. More: docs/operators/dynamic_quant.md
    """
    values = (
        input, smooth_scales, group_index, dst_type, quant_mode, dst_type_max, level, y, scale,
    )  # fmt: skip
    return run("dynamic_quant", values, "dynamic_quant")


@operator
def npu_dynamic_quant(
    input: Array,
    *,
    smooth_scales: Array | None = None,
    group_index: Array | None = None,
    dst_type: DType | None = None,
    quant_mode: str = "pertoken",
    dst_type_max: float = 0.0,
    level: str = "portable",
    y: Array | None = None,
    scale: Array | None = None,
) -> tuple[Result, Result]:
    """Quantise symmetrically to int8 or int4, with the scale of each row, each column or the whole
    tensor.

        z = input * smooth, a = max |z| of what has a scale of its own
        y = rint(z * fp32(127/a)), scale = fp32(a/127); int4: 7 in place of 127

    Parameters:
        input          [..., n], rank >= 2 (bfloat16, float16; portable: float32): rows to quantise,
                       any strides with the last 1
        smooth_scales  [n]; with group_index [G, n]; perchannel: [axis -2] (dtype of input),
                       optional: factors of the columns (perchannel: of the rows), applied first
        group_index    [G] (int32), optional: where the rows of each group end, not decreasing, the
                       last the number of rows
        dst_type       dtype, default None (None, int8, qint8: int8; quint4x2: int4): type of the
                       codes
        quant_mode     str, default "pertoken" (pertoken; portable: perchannel, pertensor): what has
                       a scale of its own: a row, a column of the last two axes, everything
        dst_type_max   float, default 0.0 (0): reserved
        level          str, default "portable" (portable, strict): strict also refuses what Atlas
                       A2/A3 refuses

    Results, or by keyword the memory for them:
        y              shape of input; int4: last axis / 8 (int8; int4: int32): the codes; int4:
                       eight in an int32, the first in the lowest bits
        scale          shape of input without its last axis; perchannel: without axis -2; pertensor:
                       [1] (float32): what a code of the row, column or tensor is worth

    Errors:
        INVALID_ARGUMENT: input is missing, quant_mode or dst_type is unknown, group_index without
            smooth_scales or with another mode than pertoken
        UNSUPPORTED: an 8-bit float, dst_type_max other than 0; strict: float32, quant_mode
            perchannel or pertensor
        INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed
        INVALID_SEQLEN: group_index decreases or does not end at the number of rows
        INVALID_STRIDE, MISALIGNED, INVALID_DEVICE, ALIASED: memory that cannot be read, written or
            shared like this
        INVALID_VALUE: value checking (off by default) finds a number that is not finite, or a scale
            that makes no sense

    Source: torch_npu.npu_dynamic_quant. More: docs/operators/dynamic_quant.md
    """
    values = (
        input, smooth_scales, group_index, dst_type, quant_mode, dst_type_max, level, y, scale,
    )  # fmt: skip
    return run("dynamic_quant", values, "npu_dynamic_quant")
