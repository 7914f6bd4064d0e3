# SPDX-License-Identifier: Apache-2.0
# Written by scripts/generate_python.py from include/dsakit/*.hpp: change those, then run it.
"""The readable twins of transpose_batchmatmul."""

from __future__ import annotations

from ... import _core
from .. import transpose_batchmatmul as fast
from ...calling import (
    Array,
    Axes,
    Result,
    Weight,
    documented_by,
    only_none,
    operator,
)

__all__ = [
    "transpose_batchmatmul",
    "npu_transpose_batchmatmul",
]


@operator
@documented_by(fast.transpose_batchmatmul)
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
    """The readable twin of dsakit.transpose_batchmatmul."""
    if not (
        bias is scale is None
    ):  # fmt: skip
        only_none("transpose_batchmatmul",
            bias=bias, scale=scale)
    values = (
        input, weight, perm_x1, perm_x2, perm_y, batch_split_factor, level, y,
    )  # fmt: skip
    return _core.transpose_batchmatmul_reference(values, "transpose_batchmatmul")


@operator
@documented_by(fast.npu_transpose_batchmatmul)
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
    """The readable twin of dsakit.npu_transpose_batchmatmul."""
    if not (
        bias is scale is None
    ):  # fmt: skip
        only_none("npu_transpose_batchmatmul",
            bias=bias, scale=scale)
    values = (
        input, weight, perm_x1, perm_x2, perm_y, batch_split_factor, level, y,
    )  # fmt: skip
    return _core.transpose_batchmatmul_reference(values, "npu_transpose_batchmatmul")
