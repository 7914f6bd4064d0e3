# SPDX-License-Identifier: Apache-2.0
# Written by scripts/generate_python.py from include/dsakit/*.hpp: change those, then run it.
"""The readable twins of store_kv_block."""

from __future__ import annotations

from ... import _core
from .. import store_kv_block as fast
from ...calling import (
    Array,
    documented_by,
    operator,
)

__all__ = [
    "store_kv_block",
]


@operator
@documented_by(fast.store_kv_block)
def store_kv_block(
    key_in: Array,
    key_cache_in: Array,
    group_len: Array,
    group_key_idx: Array,
    group_key_cache_idx: Array,
    block_size: int = 0,
    *,
    level: str = "portable",
) -> None:
    """The readable twin of dsakit.store_kv_block."""
    values = (
        key_in, key_cache_in, group_len, group_key_idx, group_key_cache_idx, block_size, level,
    )  # fmt: skip
    _core.store_kv_block_reference(values, "store_kv_block")
