# SPDX-License-Identifier: Apache-2.0
# Written by scripts/generate_python.py from include/dsakit/*.hpp: change those, then run it.
"""The readable twins of add_rms_norm."""

from __future__ import annotations

from ... import _core
from .. import add_rms_norm as fast
from ...calling import (
    Array,
    Result,
    documented_by,
    operator,
)

__all__ = [
    "add_rms_norm",
    "npu_add_rms_norm",
]


@operator
@documented_by(fast.add_rms_norm)
def add_rms_norm(
    x1: Array,
    x2: Array,
    gamma: Array,
    epsilon: float = 1e-06,
    *,
    level: str = "portable",
    y: Array | None = None,
    rstd: Array | None = None,
    x: Array | None = None,
) -> tuple[Result, Result, Result]:
    """The readable twin of dsakit.add_rms_norm."""
    values = (
        x1, x2, gamma, epsilon, level, y, rstd, x,
    )  # fmt: skip
    return _core.add_rms_norm_reference(values, "add_rms_norm")


@operator
@documented_by(fast.npu_add_rms_norm)
def npu_add_rms_norm(
    x1: Array,
    x2: Array,
    gamma: Array,
    epsilon: float = 1e-06,
    *,
    level: str = "portable",
    y: Array | None = None,
    rstd: Array | None = None,
    x: Array | None = None,
) -> tuple[Result, Result, Result]:
    """The readable twin of dsakit.npu_add_rms_norm."""
    values = (
        x1, x2, gamma, epsilon, level, y, rstd, x,
    )  # fmt: skip
    return _core.add_rms_norm_reference(values, "npu_add_rms_norm")
