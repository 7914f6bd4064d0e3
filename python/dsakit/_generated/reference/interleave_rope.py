# SPDX-License-Identifier: Apache-2.0
# Written by scripts/generate_python.py from include/dsakit/*.hpp: change those, then run it.
"""The readable twins of interleave_rope."""

from __future__ import annotations

from ... import _core
from .. import interleave_rope as fast
from ...calling import (
    Array,
    Result,
    documented_by,
    operator,
)

__all__ = [
    "interleave_rope",
    "npu_interleave_rope",
]


@operator
@documented_by(fast.interleave_rope)
def interleave_rope(
    x: Array,
    cos: Array,
    sin: Array,
    *,
    level: str = "portable",
    y: Array | None = None,
) -> Result:
    """The readable twin of dsakit.interleave_rope."""
    values = (
        x, cos, sin, level, y,
    )  # fmt: skip
    return _core.interleave_rope_reference(values, "interleave_rope")


@operator
@documented_by(fast.npu_interleave_rope)
def npu_interleave_rope(
    x: Array,
    cos: Array,
    sin: Array,
    *,
    level: str = "portable",
    y: Array | None = None,
) -> Result:
    """The readable twin of dsakit.npu_interleave_rope."""
    values = (
        x, cos, sin, level, y,
    )  # fmt: skip
    return _core.interleave_rope_reference(values, "npu_interleave_rope")
