# SPDX-License-Identifier: Apache-2.0
# Written by scripts/generate_python.py from include/dsakit/*.hpp: change those, then run it.
"""The readable twins of store_kv_block_metadata."""

from __future__ import annotations

from ... import _core
from .. import store_kv_block_metadata as fast
from ...calling import (
    Array,
    documented_by,
    operator,
)

__all__ = [
    "store_kv_block_metadata",
]


@operator
@documented_by(fast.store_kv_block_metadata)
def store_kv_block_metadata(
    slot_mapping: Array,
    group_len: Array,
    group_key_idx: Array,
    group_key_cache_idx: Array,
    block_size: int = 0,
    *,
    level: str = "portable",
) -> None:
    """The readable twin of dsakit.store_kv_block_metadata."""
    values = (
        slot_mapping, group_len, group_key_idx, group_key_cache_idx, block_size, level,
    )  # fmt: skip
    _core.store_kv_block_metadata_reference(values, "store_kv_block_metadata")
