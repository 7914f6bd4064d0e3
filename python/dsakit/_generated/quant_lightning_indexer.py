# SPDX-License-Identifier: Apache-2.0
# Written by scripts/generate_python.py from include/dsakit/*.hpp: change those, then run it.
"""For every query token the positions of the sparse_count keys that score highest, from int8."""

from __future__ import annotations

from ..calling import (
    ABSENT,
    Array,
    Lengths,
    Result,
    only_none,
    operator,
    run,
    zero_in_portable,
)

__all__ = [
    "quant_lightning_indexer",
    "npu_quant_lightning_indexer",
    "npu_lightning_indexer_quant",
]


@operator
def quant_lightning_indexer(
    query: Array,
    key: Array,
    weights: Array,
    query_dequant_scale: Array,
    key_dequant_scale: Array,
    query_quant_mode: int = 0,
    key_quant_mode: int = 0,
    *,
    actual_seq_lengths_query: Lengths | None = None,
    actual_seq_lengths_key: Lengths | None = None,
    block_table: Array | None = None,
    layout_query: str = "BSND",
    layout_key: str = "BSND",
    sparse_count: int = 2048,
    sparse_mode: int = 3,
    pre_tokens: int = 9223372036854775807,
    next_tokens: int = 9223372036854775807,
    numerics: str = "fp32",
    level: str = "portable",
    sparse_indices: Array | None = None,
    query_dtype: None = None,
    key_dtype: None = None,
) -> Result:
    """For every query token the positions of the sparse_count keys that score highest, from int8.

        score[s] = key_scale[s] * sum_h weights[h] * query_scale[h] * relu(dot(query[h], key[s]))

    Parameters:
        query                     [B, S1, N1, D] or [T1, N1, D], D <= 131071 (int8): index queries
        key                       [B, S2, 1, D], [T2, 1, D] or pages [block_num, block_size, 1, D]
                                  (int8): index keys, one head
        weights                   [B, S1, N1] or [T1, N1] (float16, bfloat16, float32): weight of
                                  each head, may be negative
        query_dequant_scale       like weights (float16, float32): what a code of query is worth
        key_dequant_scale         key without its last axis (float16, float32): what a code of key
                                  is worth
        query_quant_mode          int, default 0 (0): 0: a scale per token and head
        key_quant_mode            int, default 0 (0): 0: a scale per token and head
        actual_seq_lengths_query  [B] (int32), optional: lengths of the sequences of query: counts
                                  (BSND, may be absent), running totals (TND)
        actual_seq_lengths_key    [B] (int32), optional: lengths of the sequences of key: counts
                                  (BSND, may be absent; PA_BSND), running totals (TND)
        block_table               [B, pages per sequence] (int32), optional: pages of each sequence,
                                  with PA_BSND only
        layout_query              str, default "BSND" (BSND, TND): axes of query
        layout_key                str, default "BSND" (BSND, TND, PA_BSND): axes of key: as query,
                                  or pages
        sparse_count              int, default 2048 (>= 1; strict: <= 2048): keys to select
        sparse_mode               int, default 3 (0, 3): 0: all keys are visible; 3: causal, aligned
                                  at the bottom right
        pre_tokens                int, default 9223372036854775807 (9223372036854775807): keys
                                  before the diagonal: all of them
        next_tokens               int, default 9223372036854775807 (9223372036854775807): keys
                                  behind the diagonal: all of them
        numerics                  str, default "fp32" (fp32, device): device: float16 intermediates,
                                  to reproduce an NPU's selection
        level                     str, default "portable" (portable, strict): strict also refuses
                                  what Atlas A2/A3 refuses

    Reserved, only None: query_dtype, key_dtype

    Results, or by keyword the memory for them:
        sparse_indices            [B, S1, 1, sparse_count] or [T1, 1, sparse_count] (int32):
                                  positions, best first, then -1

    Errors:
        INVALID_ARGUMENT: a tensor that the layouts need is missing, one they do not need is given,
            an attribute is unknown
        INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed
        UNSUPPORTED: float8 operands; strict: what Atlas A2/A3 does not take
        INVALID_SEQLEN: lengths are negative, decrease or exceed their tensor or table
        INVALID_BLOCK: a block_table entry in use names no page of key
        INVALID_STRIDE, MISALIGNED, INVALID_DEVICE, ALIASED: memory that cannot be read, written or
            shared like this
        INVALID_VALUE: value checking (off by default) finds a number that is not finite, or a scale
            that makes no sense

    Source: torch_npu.npu_quant_lightning_indexer. More: docs/operators/lightning_indexer.md
    """
    if not (
        query_dtype is key_dtype is None
    ):  # fmt: skip
        only_none("quant_lightning_indexer",
            query_dtype=query_dtype, key_dtype=key_dtype)
    values = (
        query, key, weights, query_dequant_scale, key_dequant_scale, query_quant_mode, key_quant_mode,
        actual_seq_lengths_query, actual_seq_lengths_key, block_table, layout_query, layout_key, sparse_count,
        sparse_mode, pre_tokens, next_tokens, numerics, level, sparse_indices,
    )  # fmt: skip
    return run("quant_lightning_indexer", values, "quant_lightning_indexer")


@operator
def npu_quant_lightning_indexer(
    query: Array,
    key: Array,
    weights: Array,
    query_dequant_scale: Array,
    key_dequant_scale: Array,
    query_quant_mode: int = ABSENT,
    key_quant_mode: int = ABSENT,
    *,
    actual_seq_lengths_query: Lengths | None = None,
    actual_seq_lengths_key: Lengths | None = None,
    block_table: Array | None = None,
    layout_query: str = "BSND",
    layout_key: str = "BSND",
    sparse_count: int = 2048,
    sparse_mode: int = 3,
    pre_tokens: int = 9223372036854775807,
    next_tokens: int = 9223372036854775807,
    numerics: str = "fp32",
    level: str = "portable",
    sparse_indices: Array | None = None,
    query_dtype: None = None,
    key_dtype: None = None,
) -> Result:
    """For every query token the positions of the sparse_count keys that score highest, from int8. In
    strict both quant modes must be given; in portable they default to 0.

        score[s] = key_scale[s] * sum_h weights[h] * query_scale[h] * relu(dot(query[h], key[s]))

    Parameters:
        query                     [B, S1, N1, D] or [T1, N1, D], D <= 131071 (int8): index queries
        key                       [B, S2, 1, D], [T2, 1, D] or pages [block_num, block_size, 1, D]
                                  (int8): index keys, one head
        weights                   [B, S1, N1] or [T1, N1] (float16, bfloat16, float32): weight of
                                  each head, may be negative
        query_dequant_scale       like weights (float16, float32): what a code of query is worth
        key_dequant_scale         key without its last axis (float16, float32): what a code of key
                                  is worth
        query_quant_mode          int, required in strict (0): 0: a scale per token and head
        key_quant_mode            int, required in strict (0): 0: a scale per token and head
        actual_seq_lengths_query  [B] (int32), optional: lengths of the sequences of query: counts
                                  (BSND, may be absent), running totals (TND)
        actual_seq_lengths_key    [B] (int32), optional: lengths of the sequences of key: counts
                                  (BSND, may be absent; PA_BSND), running totals (TND)
        block_table               [B, pages per sequence] (int32), optional: pages of each sequence,
                                  with PA_BSND only
        layout_query              str, default "BSND" (BSND, TND): axes of query
        layout_key                str, default "BSND" (BSND, TND, PA_BSND): axes of key: as query,
                                  or pages
        sparse_count              int, default 2048 (>= 1; strict: <= 2048): keys to select
        sparse_mode               int, default 3 (0, 3): 0: all keys are visible; 3: causal, aligned
                                  at the bottom right
        pre_tokens                int, default 9223372036854775807 (9223372036854775807): keys
                                  before the diagonal: all of them
        next_tokens               int, default 9223372036854775807 (9223372036854775807): keys
                                  behind the diagonal: all of them
        numerics                  str, default "fp32" (fp32, device): device: float16 intermediates,
                                  to reproduce an NPU's selection
        level                     str, default "portable" (portable, strict): strict also refuses
                                  what Atlas A2/A3 refuses

    Reserved, only None: query_dtype, key_dtype

    Results, or by keyword the memory for them:
        sparse_indices            [B, S1, 1, sparse_count] or [T1, 1, sparse_count] (int32):
                                  positions, best first, then -1

    Errors:
        INVALID_ARGUMENT: a tensor that the layouts need is missing, one they do not need is given,
            an attribute is unknown
        INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed
        UNSUPPORTED: float8 operands; strict: what Atlas A2/A3 does not take
        INVALID_SEQLEN: lengths are negative, decrease or exceed their tensor or table
        INVALID_BLOCK: a block_table entry in use names no page of key
        INVALID_STRIDE, MISALIGNED, INVALID_DEVICE, ALIASED: memory that cannot be read, written or
            shared like this
        INVALID_VALUE: value checking (off by default) finds a number that is not finite, or a scale
            that makes no sense

    Source: torch_npu.npu_quant_lightning_indexer. More: docs/operators/lightning_indexer.md
    """
    query_quant_mode = zero_in_portable("npu_quant_lightning_indexer", level, query_quant_mode=query_quant_mode)
    key_quant_mode = zero_in_portable("npu_quant_lightning_indexer", level, key_quant_mode=key_quant_mode)
    if not (
        query_dtype is key_dtype is None
    ):  # fmt: skip
        only_none("npu_quant_lightning_indexer",
            query_dtype=query_dtype, key_dtype=key_dtype)
    values = (
        query, key, weights, query_dequant_scale, key_dequant_scale, query_quant_mode, key_quant_mode,
        actual_seq_lengths_query, actual_seq_lengths_key, block_table, layout_query, layout_key, sparse_count,
        sparse_mode, pre_tokens, next_tokens, numerics, level, sparse_indices,
    )  # fmt: skip
    return run("quant_lightning_indexer", values, "npu_quant_lightning_indexer")


@operator
def npu_lightning_indexer_quant(
    query: Array,
    key: Array,
    weights: Array,
    query_dequant_scale: Array,
    key_dequant_scale: Array,
    query_quant_mode: int = 0,
    key_quant_mode: int = 0,
    *,
    actual_seq_lengths_query: Lengths | None = None,
    actual_seq_lengths_key: Lengths | None = None,
    block_table: Array | None = None,
    layout_query: str = "BSND",
    layout_key: str = "BSND",
    sparse_count: int = 2048,
    sparse_mode: int = 3,
    pre_tokens: int = 9223372036854775807,
    next_tokens: int = 9223372036854775807,
    numerics: str = "fp32",
    level: str = "portable",
    sparse_indices: Array | None = None,
    query_dtype: None = None,
    key_dtype: None = None,
) -> Result:
    """For every query token the positions of the sparse_count keys that score highest, from int8.

        score[s] = key_scale[s] * sum_h weights[h] * query_scale[h] * relu(dot(query[h], key[s]))

    Parameters:
        query                     [B, S1, N1, D] or [T1, N1, D], D <= 131071 (int8): index queries
        key                       [B, S2, 1, D], [T2, 1, D] or pages [block_num, block_size, 1, D]
                                  (int8): index keys, one head
        weights                   [B, S1, N1] or [T1, N1] (float16, bfloat16, float32): weight of
                                  each head, may be negative
        query_dequant_scale       like weights (float16, float32): what a code of query is worth
        key_dequant_scale         key without its last axis (float16, float32): what a code of key
                                  is worth
        query_quant_mode          int, default 0 (0): 0: a scale per token and head
        key_quant_mode            int, default 0 (0): 0: a scale per token and head
        actual_seq_lengths_query  [B] (int32), optional: lengths of the sequences of query: counts
                                  (BSND, may be absent), running totals (TND)
        actual_seq_lengths_key    [B] (int32), optional: lengths of the sequences of key: counts
                                  (BSND, may be absent; PA_BSND), running totals (TND)
        block_table               [B, pages per sequence] (int32), optional: pages of each sequence,
                                  with PA_BSND only
        layout_query              str, default "BSND" (BSND, TND): axes of query
        layout_key                str, default "BSND" (BSND, TND, PA_BSND): axes of key: as query,
                                  or pages
        sparse_count              int, default 2048 (>= 1; strict: <= 2048): keys to select
        sparse_mode               int, default 3 (0, 3): 0: all keys are visible; 3: causal, aligned
                                  at the bottom right
        pre_tokens                int, default 9223372036854775807 (9223372036854775807): keys
                                  before the diagonal: all of them
        next_tokens               int, default 9223372036854775807 (9223372036854775807): keys
                                  behind the diagonal: all of them
        numerics                  str, default "fp32" (fp32, device): device: float16 intermediates,
                                  to reproduce an NPU's selection
        level                     str, default "portable" (portable, strict): strict also refuses
                                  what Atlas A2/A3 refuses

    Reserved, only None: query_dtype, key_dtype

    Results, or by keyword the memory for them:
        sparse_indices            [B, S1, 1, sparse_count] or [T1, 1, sparse_count] (int32):
                                  positions, best first, then -1

    Errors:
        INVALID_ARGUMENT: a tensor that the layouts need is missing, one they do not need is given,
            an attribute is unknown
        INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed
        UNSUPPORTED: float8 operands; strict: what Atlas A2/A3 does not take
        INVALID_SEQLEN: lengths are negative, decrease or exceed their tensor or table
        INVALID_BLOCK: a block_table entry in use names no page of key
        INVALID_STRIDE, MISALIGNED, INVALID_DEVICE, ALIASED: memory that cannot be read, written or
            shared like this
        INVALID_VALUE: value checking (off by default) finds a number that is not finite, or a scale
            that makes no sense

    Source: torch_npu.npu_quant_lightning_indexer. More: docs/operators/lightning_indexer.md
    """
    if not (
        query_dtype is key_dtype is None
    ):  # fmt: skip
        only_none("npu_lightning_indexer_quant",
            query_dtype=query_dtype, key_dtype=key_dtype)
    values = (
        query, key, weights, query_dequant_scale, key_dequant_scale, query_quant_mode, key_quant_mode,
        actual_seq_lengths_query, actual_seq_lengths_key, block_table, layout_query, layout_key, sparse_count,
        sparse_mode, pre_tokens, next_tokens, numerics, level, sparse_indices,
    )  # fmt: skip
    return run("quant_lightning_indexer", values, "npu_lightning_indexer_quant")
