# SPDX-License-Identifier: Apache-2.0
# Written by scripts/generate_python.py from include/dsakit/*.hpp: change those, then run it.
"""The readable twins of attention_update."""

from __future__ import annotations

from ... import _core
from .. import attention_update as fast
from ...calling import (
    Array,
    ArrayList,
    Result,
    documented_by,
    operator,
)

__all__ = [
    "attention_update",
    "npu_attention_update",
]


@operator
@documented_by(fast.attention_update)
def attention_update(
    lse: ArrayList,
    local_out: ArrayList,
    update_type: int,
    *,
    level: str = "portable",
    out: Array | None = None,
    lse_out: Array | None = None,
) -> tuple[Result, Result]:
    """The readable twin of dsakit.attention_update."""
    values = (
        lse, local_out, update_type, level, out, lse_out,
    )  # fmt: skip
    return _core.attention_update_reference(values, "attention_update")


@operator
@documented_by(fast.npu_attention_update)
def npu_attention_update(
    lse: ArrayList,
    local_out: ArrayList,
    update_type: int,
    *,
    level: str = "portable",
    out: Array | None = None,
    lse_out: Array | None = None,
) -> tuple[Result, Result]:
    """The readable twin of dsakit.npu_attention_update."""
    values = (
        lse, local_out, update_type, level, out, lse_out,
    )  # fmt: skip
    return _core.attention_update_reference(values, "npu_attention_update")
