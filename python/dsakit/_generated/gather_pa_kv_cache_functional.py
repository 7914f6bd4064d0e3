# SPDX-License-Identifier: Apache-2.0
# Written by scripts/generate_python.py from include/dsakit/*.hpp: change those, then run it.
"""gather_pa_kv_cache on copies of key and value, which are left alone."""

from __future__ import annotations

from ..calling import (
    Array,
    Lengths,
    Result,
    operator,
    run,
)

__all__ = [
    "gather_pa_kv_cache_functional",
    "npu_gather_pa_kv_cache_functional",
]


@operator
def gather_pa_kv_cache_functional(
    key_cache: Array,
    value_cache: Array,
    block_tables: Array,
    seq_lens: Lengths,
    key: Array,
    value: Array,
    *,
    seq_offset: Lengths | None = None,
    is_seq_lens_cumsum: bool = False,
    level: str = "portable",
    key_out: Array | None = None,
    value_out: Array | None = None,
) -> tuple[Result, Result]:
    """gather_pa_kv_cache on copies of key and value, which are left alone.

        for each sequence b and i < seq_lens[b], p = seq_offset[b] + i, the next rows of key_out and
            value_out are
        key_cache[block_tables[b, p / block_size], p % block_size] and that of value_cache

    Parameters:
        key_cache           [block_num, block_size, h, dk] (bfloat16, float16, float32, int8 or any
                            other): pages of keys
        value_cache         [block_num, block_size, h, dv] (dtype of key_cache): pages of values
        block_tables        [B, pages per sequence] (int32): pages of each sequence
        seq_lens            [B]; running totals: also [B+1], the first 0 (int32): rows to copy of
                            each sequence
        key                 [T, h, dk], T at least the sum of seq_lens (dtype of key_cache): rows of
                            all sequences; what lies behind them stays
        value               [T, h, dv] (dtype of key_cache): likewise
        seq_offset          [B] (int32), optional: position of the first row of each sequence, else
                            0
        is_seq_lens_cumsum  bool, default False: seq_lens are running totals
        level               str, default "portable" (portable, strict): strict also refuses what
                            Atlas A2/A3 refuses

    Results, or by keyword the memory for them:
        key_out             shape of key (dtype of key_cache): key with the rows
        value_out           shape of value (dtype of key_cache): value with the rows

    Errors:
        INVALID_ARGUMENT: a tensor is missing
        INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed
        INVALID_SEQLEN: a length or offset below 0, totals that decrease, more rows than key or
            block_tables has
        INVALID_BLOCK: a page that the caches do not have
        INVALID_STRIDE, MISALIGNED, INVALID_DEVICE, ALIASED: memory that cannot be read, written or
            shared like this
        INVALID_VALUE: value checking (off by default) finds a number that is not finite, or a scale
            that makes no sense

    Source: torch_npu.npu_gather_pa_kv_cache_functional. More: docs/operators/gather_pa_kv_cache.md
    """
    values = (
        key_cache, value_cache, block_tables, seq_lens, key, value, seq_offset, is_seq_lens_cumsum, level, key_out,
        value_out,
    )  # fmt: skip
    return run("gather_pa_kv_cache_functional", values, "gather_pa_kv_cache_functional")


@operator
def npu_gather_pa_kv_cache_functional(
    key_cache: Array,
    value_cache: Array,
    block_tables: Array,
    seq_lens: Lengths,
    key: Array,
    value: Array,
    *,
    seq_offset: Lengths | None = None,
    is_seq_lens_cumsum: bool = False,
    level: str = "portable",
    key_out: Array | None = None,
    value_out: Array | None = None,
) -> tuple[Result, Result]:
    """gather_pa_kv_cache on copies of key and value, which are left alone.

        for each sequence b and i < seq_lens[b], p = seq_offset[b] + i, the next rows of key_out and
            value_out are
        key_cache[block_tables[b, p / block_size], p % block_size] and that of value_cache

    Parameters:
        key_cache           [block_num, block_size, h, dk] (bfloat16, float16, float32, int8 or any
                            other): pages of keys
        value_cache         [block_num, block_size, h, dv] (dtype of key_cache): pages of values
        block_tables        [B, pages per sequence] (int32): pages of each sequence
        seq_lens            [B]; running totals: also [B+1], the first 0 (int32): rows to copy of
                            each sequence
        key                 [T, h, dk], T at least the sum of seq_lens (dtype of key_cache): rows of
                            all sequences; what lies behind them stays
        value               [T, h, dv] (dtype of key_cache): likewise
        seq_offset          [B] (int32), optional: position of the first row of each sequence, else
                            0
        is_seq_lens_cumsum  bool, default False: seq_lens are running totals
        level               str, default "portable" (portable, strict): strict also refuses what
                            Atlas A2/A3 refuses

    Results, or by keyword the memory for them:
        key_out             shape of key (dtype of key_cache): key with the rows
        value_out           shape of value (dtype of key_cache): value with the rows

    Errors:
        INVALID_ARGUMENT: a tensor is missing
        INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed
        INVALID_SEQLEN: a length or offset below 0, totals that decrease, more rows than key or
            block_tables has
        INVALID_BLOCK: a page that the caches do not have
        INVALID_STRIDE, MISALIGNED, INVALID_DEVICE, ALIASED: memory that cannot be read, written or
            shared like this
        INVALID_VALUE: value checking (off by default) finds a number that is not finite, or a scale
            that makes no sense

    Source: torch_npu.npu_gather_pa_kv_cache_functional. More: docs/operators/gather_pa_kv_cache.md
    """
    values = (
        key_cache, value_cache, block_tables, seq_lens, key, value, seq_offset, is_seq_lens_cumsum, level, key_out,
        value_out,
    )  # fmt: skip
    return run("gather_pa_kv_cache_functional", values, "npu_gather_pa_kv_cache_functional")
