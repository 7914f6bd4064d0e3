# SPDX-License-Identifier: Apache-2.0
# Written by scripts/generate_python.py from include/dsakit/*.hpp: change those, then run it.
"""The readable twins of swiglu."""

from __future__ import annotations

from ... import _core
from .. import swiglu as fast
from ...calling import (
    Array,
    Result,
    documented_by,
    operator,
)

__all__ = [
    "swiglu",
    "npu_swiglu",
]


@operator
@documented_by(fast.swiglu)
def swiglu(
    self: Array,
    dim: int = -1,
    *,
    level: str = "portable",
    y: Array | None = None,
) -> Result:
    """The readable twin of dsakit.swiglu."""
    values = (
        self, dim, level, y,
    )  # fmt: skip
    return _core.swiglu_reference(values, "swiglu")


@operator
@documented_by(fast.npu_swiglu)
def npu_swiglu(
    self: Array,
    dim: int = -1,
    *,
    level: str = "portable",
    y: Array | None = None,
) -> Result:
    """The readable twin of dsakit.npu_swiglu."""
    values = (
        self, dim, level, y,
    )  # fmt: skip
    return _core.swiglu_reference(values, "npu_swiglu")
