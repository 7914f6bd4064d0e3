# SPDX-License-Identifier: Apache-2.0
# Written by scripts/generate_python.py from include/dsakit/*.hpp: change those, then run it.
"""Attention of each query row over the listed positions of packed int8 rows, MLA in absorbed form."""

from __future__ import annotations

from ..calling import (
    Array,
    Lengths,
    Result,
    only_none,
    operator,
    run,
)

__all__ = [
    "kv_quant_sparse_flash_attention",
    "npu_kv_quant_sparse_flash_attention",
]


@operator
def kv_quant_sparse_flash_attention(
    query: Array,
    key: Array,
    value: Array,
    sparse_indices: Array,
    scale_value: float,
    key_quant_mode: int,
    value_quant_mode: int,
    *,
    key_dequant_scale: Array | None = None,
    value_dequant_scale: Array | None = None,
    block_table: Array | None = None,
    actual_seq_lengths_query: Lengths | None = None,
    actual_seq_lengths_kv: Lengths | None = None,
    sparse_block_size: int = 1,
    layout_query: str = "BSND",
    layout_kv: str = "BSND",
    sparse_mode: int = 3,
    pre_tokens: int = 9223372036854775807,
    next_tokens: int = 9223372036854775807,
    attention_mode: int = 0,
    quant_scale_repo_mode: int = 1,
    tile_size: int = 128,
    rope_head_dim: int = 64,
    sinks: Array | None = None,
    return_softmax_lse: bool = False,
    index_check: str = "error",
    numerics: str = "exact",
    level: str = "portable",
    attention_out: Array | None = None,
    softmax_max: Array | None = None,
    softmax_sum: Array | None = None,
    key_dtype: None = None,
    value_dtype: None = None,
) -> Result:
    """Attention of each query row over the listed positions of packed int8 rows, MLA in absorbed form.
    Returns attention_out alone; all three with return_softmax_lse.

        k[j] = code * scale of its tile, never rounded
        s[h,j] = (query[h] . [k[j], rope of key[j]]) * scale_value
        out[h] = sum_j softmax(s[h])[j] * k[j]

    Parameters:
        query                     [B, S1, N1, Dv+Dr] or [T1, N1, Dv+Dr] (bfloat16, float16):
                                  absorbed queries, latent part first
        key                       [B, S2, 1, row], [T2, 1, row] or pages [block_num, block_size, 1,
                                  row] (int8): packed rows: Dv codes, Dr values of query's dtype,
                                  Dv/tile_size float32 scales
        value                     shape of key; portable: or its codes alone [.., Dv] (dtype of
                                  key): the key: the same memory, or equal rows
        sparse_indices            [B, S1, 1, K] or [T1, 1, K] (int32): blocks of positions to attend
                                  to, -1 ends a list
        scale_value               float, required (finite): factor of the scores, as given
        key_quant_mode            int, required (2): 2: a scale per tile of a token
        value_quant_mode          int, required (2): 2: a scale per tile of a token
        key_dequant_scale         absent, optional: always absent: the scales are in the rows
        value_dequant_scale       absent, optional: always absent: the scales are in the rows
        block_table               [B, pages per sequence] (int32), optional: pages of each sequence,
                                  with PA_BSND only
        actual_seq_lengths_query  [B] (int32), optional: lengths of the sequences of query: counts
                                  (BSND, may be absent), running totals (TND)
        actual_seq_lengths_kv     [B] (int32), optional: lengths of the sequences of key: counts
                                  (BSND, may be absent; PA_BSND), running totals (TND)
        sparse_block_size         int, default 1 (>= 1; strict: a power of two up to 16): positions
                                  that one entry of sparse_indices names
        layout_query              str, default "BSND" (BSND, TND): axes of query
        layout_kv                 str, default "BSND" (BSND, TND, PA_BSND): axes of key: as query,
                                  or pages
        sparse_mode               int, default 3 (0, 3): 0: all keys are visible; 3: causal, aligned
                                  at the bottom right
        pre_tokens                int, default 9223372036854775807 (9223372036854775807): keys
                                  before the diagonal: all of them
        next_tokens               int, default 9223372036854775807 (9223372036854775807): keys
                                  behind the diagonal: all of them
        attention_mode            int, default 0 (2): 2: MLA in absorbed form, the only mode; the
                                  documents' default is refused
        quant_scale_repo_mode     int, default 1 (1): 1: the scales are in the rows
        tile_size                 int, default 128 (>= 1, divides Dv; strict: 128): codes that share
                                  a scale
        rope_head_dim             int, default 64 (>= 0; strict: 64): Dr
        sinks                     [N1] (float32), optional: one more logit per head, without a value
        return_softmax_lse        bool, default False: return softmax_max and softmax_sum too
        index_check               str, default "error" (error, mask): mask: entries past the key
                                  length are ignored, as the device does
        numerics                  str, default "exact" (exact, device, golden): device, golden: with
                                  the intermediate roundings of the kernel or of the published
                                  comparison, to compare with them
        level                     str, default "portable" (portable, strict): strict also refuses
                                  what Atlas A2/A3 refuses

    Reserved, only None: key_dtype, value_dtype

    Results, or by keyword the memory for them:
        attention_out             query with Dv as last axis (dtype of query): attention, still in
                                  the latent space
        softmax_max               [B, 1, S1, N1] or [1, T1, N1]; without return_softmax_lse [0]
                                  (float32): largest score of each head
        softmax_sum               shape of softmax_max (float32): sum of exp(score - softmax_max)

    Errors:
        INVALID_ARGUMENT: a tensor that the layouts need is missing, one they do not need is given,
            an attribute is unknown, value is not key
        INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed
        UNSUPPORTED: float8 rows; strict: what Atlas A2/A3 does not take
        INVALID_SEQLEN: lengths are negative, decrease or exceed their tensor or table
        INVALID_INDEX, INVALID_BLOCK: an entry in use names no visible position, its page is none of
            key
        INVALID_STRIDE, MISALIGNED, INVALID_DEVICE, ALIASED: memory that cannot be read, written or
            shared like this
        INVALID_VALUE: value checking (off by default) finds a number that is not finite, or a scale
            that makes no sense

    Source: torch_npu.npu_kv_quant_sparse_flash_attention. More:
    docs/operators/sparse_flash_attention.md
    """
    if not (
        key_dtype is value_dtype is None
    ):  # fmt: skip
        only_none("kv_quant_sparse_flash_attention",
            key_dtype=key_dtype, value_dtype=value_dtype)
    values = (
        query, key, value, sparse_indices, scale_value, key_quant_mode, value_quant_mode, key_dequant_scale,
        value_dequant_scale, block_table, actual_seq_lengths_query, actual_seq_lengths_kv, sparse_block_size,
        layout_query, layout_kv, sparse_mode, pre_tokens, next_tokens, attention_mode, quant_scale_repo_mode,
        tile_size, rope_head_dim, sinks, return_softmax_lse, index_check, numerics, level, attention_out,
        softmax_max, softmax_sum,
    )  # fmt: skip
    result = run("kv_quant_sparse_flash_attention", values, "kv_quant_sparse_flash_attention")
    return result if return_softmax_lse else result[0]


@operator
def npu_kv_quant_sparse_flash_attention(
    query: Array,
    key: Array,
    value: Array,
    sparse_indices: Array,
    scale_value: float,
    key_quant_mode: int,
    value_quant_mode: int,
    *,
    key_dequant_scale: Array | None = None,
    value_dequant_scale: Array | None = None,
    block_table: Array | None = None,
    actual_seq_lengths_query: Lengths | None = None,
    actual_seq_lengths_kv: Lengths | None = None,
    sparse_block_size: int = 1,
    layout_query: str = "BSND",
    layout_kv: str = "BSND",
    sparse_mode: int = 3,
    pre_tokens: int = 9223372036854775807,
    next_tokens: int = 9223372036854775807,
    attention_mode: int = 0,
    quant_scale_repo_mode: int = 1,
    tile_size: int = 128,
    rope_head_dim: int = 64,
    sinks: Array | None = None,
    return_softmax_lse: bool = False,
    index_check: str = "error",
    numerics: str = "exact",
    level: str = "portable",
    attention_out: Array | None = None,
    softmax_max: Array | None = None,
    softmax_sum: Array | None = None,
    key_dtype: None = None,
    value_dtype: None = None,
) -> Result:
    """Attention of each query row over the listed positions of packed int8 rows, MLA in absorbed form.
    Returns attention_out alone; all three with return_softmax_lse.

        k[j] = code * scale of its tile, never rounded
        s[h,j] = (query[h] . [k[j], rope of key[j]]) * scale_value
        out[h] = sum_j softmax(s[h])[j] * k[j]

    Parameters:
        query                     [B, S1, N1, Dv+Dr] or [T1, N1, Dv+Dr] (bfloat16, float16):
                                  absorbed queries, latent part first
        key                       [B, S2, 1, row], [T2, 1, row] or pages [block_num, block_size, 1,
                                  row] (int8): packed rows: Dv codes, Dr values of query's dtype,
                                  Dv/tile_size float32 scales
        value                     shape of key; portable: or its codes alone [.., Dv] (dtype of
                                  key): the key: the same memory, or equal rows
        sparse_indices            [B, S1, 1, K] or [T1, 1, K] (int32): blocks of positions to attend
                                  to, -1 ends a list
        scale_value               float, required (finite): factor of the scores, as given
        key_quant_mode            int, required (2): 2: a scale per tile of a token
        value_quant_mode          int, required (2): 2: a scale per tile of a token
        key_dequant_scale         absent, optional: always absent: the scales are in the rows
        value_dequant_scale       absent, optional: always absent: the scales are in the rows
        block_table               [B, pages per sequence] (int32), optional: pages of each sequence,
                                  with PA_BSND only
        actual_seq_lengths_query  [B] (int32), optional: lengths of the sequences of query: counts
                                  (BSND, may be absent), running totals (TND)
        actual_seq_lengths_kv     [B] (int32), optional: lengths of the sequences of key: counts
                                  (BSND, may be absent; PA_BSND), running totals (TND)
        sparse_block_size         int, default 1 (>= 1; strict: a power of two up to 16): positions
                                  that one entry of sparse_indices names
        layout_query              str, default "BSND" (BSND, TND): axes of query
        layout_kv                 str, default "BSND" (BSND, TND, PA_BSND): axes of key: as query,
                                  or pages
        sparse_mode               int, default 3 (0, 3): 0: all keys are visible; 3: causal, aligned
                                  at the bottom right
        pre_tokens                int, default 9223372036854775807 (9223372036854775807): keys
                                  before the diagonal: all of them
        next_tokens               int, default 9223372036854775807 (9223372036854775807): keys
                                  behind the diagonal: all of them
        attention_mode            int, default 0 (2): 2: MLA in absorbed form, the only mode; the
                                  documents' default is refused
        quant_scale_repo_mode     int, default 1 (1): 1: the scales are in the rows
        tile_size                 int, default 128 (>= 1, divides Dv; strict: 128): codes that share
                                  a scale
        rope_head_dim             int, default 64 (>= 0; strict: 64): Dr
        sinks                     [N1] (float32), optional: one more logit per head, without a value
        return_softmax_lse        bool, default False: return softmax_max and softmax_sum too
        index_check               str, default "error" (error, mask): mask: entries past the key
                                  length are ignored, as the device does
        numerics                  str, default "exact" (exact, device, golden): device, golden: with
                                  the intermediate roundings of the kernel or of the published
                                  comparison, to compare with them
        level                     str, default "portable" (portable, strict): strict also refuses
                                  what Atlas A2/A3 refuses

    Reserved, only None: key_dtype, value_dtype

    Results, or by keyword the memory for them:
        attention_out             query with Dv as last axis (dtype of query): attention, still in
                                  the latent space
        softmax_max               [B, 1, S1, N1] or [1, T1, N1]; without return_softmax_lse [0]
                                  (float32): largest score of each head
        softmax_sum               shape of softmax_max (float32): sum of exp(score - softmax_max)

    Errors:
        INVALID_ARGUMENT: a tensor that the layouts need is missing, one they do not need is given,
            an attribute is unknown, value is not key
        INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed
        UNSUPPORTED: float8 rows; strict: what Atlas A2/A3 does not take
        INVALID_SEQLEN: lengths are negative, decrease or exceed their tensor or table
        INVALID_INDEX, INVALID_BLOCK: an entry in use names no visible position, its page is none of
            key
        INVALID_STRIDE, MISALIGNED, INVALID_DEVICE, ALIASED: memory that cannot be read, written or
            shared like this
        INVALID_VALUE: value checking (off by default) finds a number that is not finite, or a scale
            that makes no sense

    Source: torch_npu.npu_kv_quant_sparse_flash_attention. More:
    docs/operators/sparse_flash_attention.md
    """
    if not (
        key_dtype is value_dtype is None
    ):  # fmt: skip
        only_none("npu_kv_quant_sparse_flash_attention",
            key_dtype=key_dtype, value_dtype=value_dtype)
    values = (
        query, key, value, sparse_indices, scale_value, key_quant_mode, value_quant_mode, key_dequant_scale,
        value_dequant_scale, block_table, actual_seq_lengths_query, actual_seq_lengths_kv, sparse_block_size,
        layout_query, layout_kv, sparse_mode, pre_tokens, next_tokens, attention_mode, quant_scale_repo_mode,
        tile_size, rope_head_dim, sinks, return_softmax_lse, index_check, numerics, level, attention_out,
        softmax_max, softmax_sum,
    )  # fmt: skip
    result = run("kv_quant_sparse_flash_attention", values, "npu_kv_quant_sparse_flash_attention")
    return result if return_softmax_lse else result[0]
