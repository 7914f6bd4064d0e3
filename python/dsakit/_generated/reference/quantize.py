# SPDX-License-Identifier: Apache-2.0
# Written by scripts/generate_python.py from include/dsakit/*.hpp: change those, then run it.
"""The readable twins of quantize."""

from __future__ import annotations

from ... import _core
from .. import quantize as fast
from ...calling import (
    Array,
    DType,
    Result,
    documented_by,
    operator,
)

__all__ = [
    "quantize",
    "npu_quantize",
]


@operator
@documented_by(fast.quantize)
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
    """The readable twin of dsakit.quantize."""
    values = (
        input, scales, zero_points, dtype, axis, div_mode, level, y,
    )  # fmt: skip
    return _core.quantize_reference(values, "quantize")


@operator
@documented_by(fast.npu_quantize)
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
    """The readable twin of dsakit.npu_quantize."""
    values = (
        input, scales, zero_points, dtype, axis, div_mode, level, y,
    )  # fmt: skip
    return _core.quantize_reference(values, "npu_quantize")
