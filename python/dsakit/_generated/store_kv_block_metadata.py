# SPDX-License-Identifier: Apache-2.0
# Written by scripts/generate_python.py from include/dsakit/*.hpp: change those, then run it.
"""Runs of rows whose slots follow each other within a page."""

from __future__ import annotations

from ..calling import (
    Array,
    operator,
    run,
)

__all__ = [
    "store_kv_block_metadata",
]


@operator
def store_kv_block_metadata(
    slot_mapping: Array,
    group_len: Array,
    group_key_idx: Array,
    group_key_cache_idx: Array,
    block_size: int = 0,
    *,
    level: str = "portable",
) -> None:
    """Runs of rows whose slots follow each other within a page.

        a run = as many neighbouring rows as possible, each slot one more than that before it, in
            one page
        group_len, group_key_idx, group_key_cache_idx = its rows, its first row, its first slot

    Parameters:
        slot_mapping         [T] (int32): slot of each row; negative: not stored
        group_len            [T] (int32), updated in place: rows of each run, then 0
        group_key_idx        [T] (int32), updated in place: first row of each run, then 0
        group_key_cache_idx  [T] (int32), updated in place: first slot of each run, then 0
        block_size           int, default 0 (>= 0): slots of a page, which no run leaves; 0: no
                             pages
        level                str, default "portable" (portable, strict): strict also refuses what
                             Atlas A2/A3 refuses

    Errors:
        INVALID_ARGUMENT: a tensor is missing, block_size is negative
        INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed
        INVALID_STRIDE, MISALIGNED, INVALID_DEVICE, ALIASED: memory that cannot be read, written or
            shared like this
        INVALID_VALUE: value checking (off by default) finds a number that is not finite, or a scale
            that makes no sense

    Source: torch.ops._C_ascend.store_kv_block_metadata. More: docs/operators/store_kv_block.md
    """
    values = (
        slot_mapping, group_len, group_key_idx, group_key_cache_idx, block_size, level,
    )  # fmt: skip
    run("store_kv_block_metadata", values, "store_kv_block_metadata")
