# SPDX-License-Identifier: Apache-2.0
# Written by scripts/generate_python.py from include/dsakit/*.hpp: change those, then run it.
"""The readable twins of scatter_nd_update_."""

from __future__ import annotations

from ... import _core
from .. import scatter_nd_update_ as fast
from ...calling import (
    Array,
    Result,
    documented_by,
    operator,
)

__all__ = [
    "scatter_nd_update_",
    "npu_scatter_nd_update_",
]


@operator
@documented_by(fast.scatter_nd_update_)
def scatter_nd_update_(
    self: Array,
    indices: Array,
    updates: Array,
    *,
    level: str = "portable",
) -> Result:
    """The readable twin of dsakit.scatter_nd_update_."""
    values = (
        self, indices, updates, level,
    )  # fmt: skip
    _core.scatter_nd_update__reference(values, "scatter_nd_update_")
    return self


@operator
@documented_by(fast.npu_scatter_nd_update_)
def npu_scatter_nd_update_(
    self: Array,
    indices: Array,
    updates: Array,
    *,
    level: str = "portable",
) -> Result:
    """The readable twin of dsakit.npu_scatter_nd_update_."""
    values = (
        self, indices, updates, level,
    )  # fmt: skip
    _core.scatter_nd_update__reference(values, "npu_scatter_nd_update_")
    return self
