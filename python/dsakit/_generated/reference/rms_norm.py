# SPDX-License-Identifier: Apache-2.0
# Written by scripts/generate_python.py from include/dsakit/*.hpp: change those, then run it.
"""The readable twins of rms_norm."""

from __future__ import annotations

from ... import _core
from .. import rms_norm as fast
from ...calling import (
    Array,
    Result,
    documented_by,
    operator,
)

__all__ = [
    "rms_norm",
    "npu_rms_norm",
]


@operator
@documented_by(fast.rms_norm)
def rms_norm(
    self: Array,
    gamma: Array,
    epsilon: float = 1e-06,
    *,
    level: str = "portable",
    y: Array | None = None,
    rstd: Array | None = None,
) -> tuple[Result, Result]:
    """The readable twin of dsakit.rms_norm."""
    values = (
        self, gamma, epsilon, level, y, rstd,
    )  # fmt: skip
    return _core.rms_norm_reference(values, "rms_norm")


@operator
@documented_by(fast.npu_rms_norm)
def npu_rms_norm(
    self: Array,
    gamma: Array,
    epsilon: float = 1e-06,
    *,
    level: str = "portable",
    y: Array | None = None,
    rstd: Array | None = None,
) -> tuple[Result, Result]:
    """The readable twin of dsakit.npu_rms_norm."""
    values = (
        self, gamma, epsilon, level, y, rstd,
    )  # fmt: skip
    return _core.rms_norm_reference(values, "npu_rms_norm")
