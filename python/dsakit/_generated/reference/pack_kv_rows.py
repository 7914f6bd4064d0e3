# SPDX-License-Identifier: Apache-2.0
# Written by scripts/generate_python.py from include/dsakit/*.hpp: change those, then run it.
"""The readable twins of pack_kv_rows."""

from __future__ import annotations

from ... import _core
from .. import pack_kv_rows as fast
from ...calling import (
    Array,
    Result,
    documented_by,
    operator,
)

__all__ = [
    "pack_kv_rows",
]


@operator
@documented_by(fast.pack_kv_rows)
def pack_kv_rows(
    codes: Array,
    rope: Array,
    scales: Array,
    *,
    level: str = "portable",
    rows: Array | None = None,
) -> Result:
    """The readable twin of dsakit.pack_kv_rows."""
    values = (
        codes, rope, scales, level, rows,
    )  # fmt: skip
    return _core.pack_kv_rows_reference(values, "pack_kv_rows")
