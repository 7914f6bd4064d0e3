# SPDX-License-Identifier: Apache-2.0
# Written by scripts/generate_python.py from include/dsakit/*.hpp: change those, then run it.
"""The readable twins of quant_matmul."""

from __future__ import annotations

from ... import _core
from .. import quant_matmul as fast
from ...calling import (
    Array,
    DType,
    Result,
    Weight,
    documented_by,
    only_none,
    operator,
)

__all__ = [
    "quant_matmul",
    "npu_quant_matmul",
]


@operator
@documented_by(fast.quant_matmul)
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
    """The readable twin of dsakit.quant_matmul."""
    if not (
        x1_dtype is x2_dtype is pertoken_scale_dtype is scale_dtype is group_sizes is y_scale is None
    ):  # fmt: skip
        only_none("quant_matmul",
            x1_dtype=x1_dtype, x2_dtype=x2_dtype, pertoken_scale_dtype=pertoken_scale_dtype,
            scale_dtype=scale_dtype, group_sizes=group_sizes, y_scale=y_scale)
    values = (
        x1, x2, scale, offset, pertoken_scale, bias, output_dtype, level, y,
    )  # fmt: skip
    return _core.quant_matmul_reference(values, "quant_matmul")


@operator
@documented_by(fast.npu_quant_matmul)
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
    """The readable twin of dsakit.npu_quant_matmul."""
    if not (
        x1_dtype is x2_dtype is pertoken_scale_dtype is scale_dtype is group_sizes is y_scale is None
    ):  # fmt: skip
        only_none("npu_quant_matmul",
            x1_dtype=x1_dtype, x2_dtype=x2_dtype, pertoken_scale_dtype=pertoken_scale_dtype,
            scale_dtype=scale_dtype, group_sizes=group_sizes, y_scale=y_scale)
    values = (
        x1, x2, scale, offset, pertoken_scale, bias, output_dtype, level, y,
    )  # fmt: skip
    return _core.quant_matmul_reference(values, "npu_quant_matmul")
