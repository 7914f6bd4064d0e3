# SPDX-License-Identifier: Apache-2.0
# Written by scripts/generate_python.py from include/dsakit/*.hpp: change those, then run it.
"""Store rows in a paged cache by runs of neighbouring slots, in place."""

from __future__ import annotations

from ..calling import (
    Array,
    operator,
    run,
)

__all__ = [
    "store_kv_block",
]


@operator
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
    """Store rows in a paged cache by runs of neighbouring slots, in place.

        key_cache_in[group_key_cache_idx[g] + i] = key_in[group_key_idx[g] + i], i < group_len[g]

    Parameters:
        key_in               [T, ..] (bfloat16, float16, float32, int8 or any other): rows: what
                             follows axis 0
        key_cache_in         [slots, ..] or [block_num, block_size, ..] (dtype of key_in), updated
                             in place: cache of such rows
        group_len            [G] (int32): rows of each run; below 1: none
        group_key_idx        [G] (int32): first row of each run
        group_key_cache_idx  [G] (int32): first slot of each run
        block_size           int, default 0 (>= 0): slots of a page, which no run leaves; 0: that of
                             key_cache_in, or no pages
        level                str, default "portable" (portable, strict): strict also refuses what
                             Atlas A2/A3 refuses

    Errors:
        INVALID_ARGUMENT: a tensor is missing, block_size is negative or not that of the cache
        INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed
        INVALID_INDEX: a run leaves key_in
        INVALID_SLOT: a run leaves its page or the cache
        INVALID_STRIDE, MISALIGNED, INVALID_DEVICE, ALIASED: memory that cannot be read, written or
            shared like this
        INVALID_VALUE: value checking (off by default) finds a number that is not finite, or a scale
            that makes no sense

    Source: torch.ops._C_ascend.store_kv_block. More: docs/operators/store_kv_block.md
    """
    values = (
        key_in, key_cache_in, group_len, group_key_idx, group_key_cache_idx, block_size, level,
    )  # fmt: skip
    run("store_kv_block", values, "store_kv_block")
