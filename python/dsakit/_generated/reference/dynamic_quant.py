# SPDX-License-Identifier: Apache-2.0
# Written by scripts/generate_python.py from include/dsakit/*.hpp: change those, then run it.
"""The readable twins of dynamic_quant."""

from __future__ import annotations

from ... import _core
from .. import dynamic_quant as fast
from ...calling import (
    Array,
    DType,
    Result,
    documented_by,
    operator,
)

__all__ = [
    "dynamic_quant",
    "npu_dynamic_quant",
]


@operator
@documented_by(fast.dynamic_quant)
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
    """The readable twin of dsakit.dynamic_quant."""
    values = (
        input, smooth_scales, group_index, dst_type, quant_mode, dst_type_max, level, y, scale,
    )  # fmt: skip
    return _core.dynamic_quant_reference(values, "dynamic_quant")


@operator
@documented_by(fast.npu_dynamic_quant)
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
    """The readable twin of dsakit.npu_dynamic_quant."""
    values = (
        input, smooth_scales, group_index, dst_type, quant_mode, dst_type_max, level, y, scale,
    )  # fmt: skip
    return _core.dynamic_quant_reference(values, "npu_dynamic_quant")
