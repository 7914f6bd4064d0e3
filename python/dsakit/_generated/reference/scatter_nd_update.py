# SPDX-License-Identifier: Apache-2.0
# Written by scripts/generate_python.py from include/dsakit/*.hpp: change those, then run it.
"""The readable twins of scatter_nd_update."""

from __future__ import annotations

from ... import _core
from .. import scatter_nd_update as fast
from ...calling import (
    Array,
    Result,
    documented_by,
    operator,
)

__all__ = [
    "scatter_nd_update",
    "npu_scatter_nd_update",
]


@operator
@documented_by(fast.scatter_nd_update)
def scatter_nd_update(
    self: Array,
    indices: Array,
    updates: Array,
    *,
    level: str = "portable",
    out: Array | None = None,
) -> Result:
    """The readable twin of dsakit.scatter_nd_update."""
    values = (
        self, indices, updates, level, out,
    )  # fmt: skip
    return _core.scatter_nd_update_reference(values, "scatter_nd_update")


@operator
@documented_by(fast.npu_scatter_nd_update)
def npu_scatter_nd_update(
    self: Array,
    indices: Array,
    updates: Array,
    *,
    level: str = "portable",
    out: Array | None = None,
) -> Result:
    """The readable twin of dsakit.npu_scatter_nd_update."""
    values = (
        self, indices, updates, level, out,
    )  # fmt: skip
    return _core.scatter_nd_update_reference(values, "npu_scatter_nd_update")
