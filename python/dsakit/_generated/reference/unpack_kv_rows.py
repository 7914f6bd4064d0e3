# SPDX-License-Identifier: Apache-2.0
# Written by scripts/generate_python.py from include/dsakit/*.hpp: change those, then run it.
"""The readable twins of unpack_kv_rows."""

from __future__ import annotations

from ... import _core
from .. import unpack_kv_rows as fast
from ...calling import (
    Array,
    DType,
    Result,
    documented_by,
    operator,
)

__all__ = [
    "unpack_kv_rows",
]


@operator
@documented_by(fast.unpack_kv_rows)
def unpack_kv_rows(
    rows: Array,
    *,
    rope_head_dim: int = 64,
    tile_size: int = 128,
    rope_dtype: DType = "bfloat16",
    level: str = "portable",
    codes: Array | None = None,
    rope: Array | None = None,
    scales: Array | None = None,
) -> tuple[Result, Result, Result]:
    """The readable twin of dsakit.unpack_kv_rows."""
    values = (
        rows, rope_head_dim, tile_size, rope_dtype, level, codes, rope, scales,
    )  # fmt: skip
    return _core.unpack_kv_rows_reference(values, "unpack_kv_rows")
