# SPDX-License-Identifier: Apache-2.0
# Written by scripts/generate_python.py from include/dsakit/*.hpp: change those, then run it.
"""The readable twins of rotary_mul."""

from __future__ import annotations

from ... import _core
from .. import rotary_mul as fast
from ...calling import (
    Array,
    Result,
    documented_by,
    operator,
)

__all__ = [
    "rotary_mul",
    "npu_rotary_mul",
]


@operator
@documented_by(fast.rotary_mul)
def rotary_mul(
    x: Array,
    r1: Array,
    r2: Array,
    rotary_mode: str = "half",
    rotate: Array | None = None,
    *,
    level: str = "portable",
    y: Array | None = None,
) -> Result:
    """The readable twin of dsakit.rotary_mul."""
    values = (
        x, r1, r2, rotary_mode, rotate, level, y,
    )  # fmt: skip
    return _core.rotary_mul_reference(values, "rotary_mul")


@operator
@documented_by(fast.npu_rotary_mul)
def npu_rotary_mul(
    x: Array,
    r1: Array,
    r2: Array,
    rotary_mode: str = "half",
    rotate: Array | None = None,
    *,
    level: str = "portable",
    y: Array | None = None,
) -> Result:
    """The readable twin of dsakit.npu_rotary_mul."""
    values = (
        x, r1, r2, rotary_mode, rotate, level, y,
    )  # fmt: skip
    return _core.rotary_mul_reference(values, "npu_rotary_mul")
