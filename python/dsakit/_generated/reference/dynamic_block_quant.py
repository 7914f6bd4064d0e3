# SPDX-License-Identifier: Apache-2.0
# Written by scripts/generate_python.py from include/dsakit/*.hpp: change those, then run it.
"""The readable twins of dynamic_block_quant."""

from __future__ import annotations

from ... import _core
from .. import dynamic_block_quant as fast
from ...calling import (
    Array,
    DType,
    Result,
    documented_by,
    dtype_integer,
    operator,
)

__all__ = [
    "dynamic_block_quant",
    "npu_dynamic_block_quant",
]


@operator
@documented_by(fast.dynamic_block_quant)
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
    """The readable twin of dsakit.dynamic_block_quant."""
    dst_type = dtype_integer("dynamic_block_quant", dst_type=dst_type)
    values = (
        x, min_scale, round_mode, dst_type, row_block_size, col_block_size, dst_type_max, level, y, scale,
    )  # fmt: skip
    return _core.dynamic_block_quant_reference(values, "dynamic_block_quant")


@operator
@documented_by(fast.npu_dynamic_block_quant)
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
    """The readable twin of dsakit.npu_dynamic_block_quant."""
    dst_type = dtype_integer("npu_dynamic_block_quant", dst_type=dst_type)
    values = (
        x, min_scale, round_mode, dst_type, row_block_size, col_block_size, dst_type_max, level, y, scale,
    )  # fmt: skip
    return _core.dynamic_block_quant_reference(values, "npu_dynamic_block_quant")
