# SPDX-License-Identifier: Apache-2.0
# Written by scripts/generate_python.py from include/dsakit/*.hpp: change those, then run it.
"""Dense attention for inference: every query row over all keys of its sequence that it may see."""

from __future__ import annotations

from ..calling import (
    Array,
    Lengths,
    Result,
    one_tensor,
    only_none,
    operator,
    run,
    without_lse,
)

__all__ = [
    "fused_infer_attention_score_v2",
    "npu_fused_infer_attention_score_v2",
]


@operator
def fused_infer_attention_score_v2(
    query: Array,
    key: Array,
    value: Array,
    *,
    query_rope: Array | None = None,
    key_rope: Array | None = None,
    pse_shift: Array | None = None,
    atten_mask: Array | None = None,
    actual_seq_qlen: Lengths | None = None,
    actual_seq_kvlen: Lengths | None = None,
    block_table: Array | None = None,
    dequant_scale_query: Array | None = None,
    dequant_scale_key: Array | None = None,
    dequant_offset_key: Array | None = None,
    dequant_scale_value: Array | None = None,
    dequant_offset_value: Array | None = None,
    dequant_scale_key_rope: Array | None = None,
    quant_scale_out: Array | None = None,
    quant_offset_out: Array | None = None,
    num_query_heads: int = 1,
    num_key_value_heads: int = 0,
    softmax_scale: float = 1.0,
    pre_tokens: int = 2147483647,
    next_tokens: int = 2147483647,
    input_layout: str = "BSH",
    sparse_mode: int = 0,
    block_size: int = 0,
    query_quant_mode: int = 0,
    key_quant_mode: int = 0,
    value_quant_mode: int = 0,
    inner_precise: int = 0,
    return_softmax_lse: bool = False,
    level: str = "portable",
    attention_out: Array | None = None,
    softmax_lse: Array | None = None,
    query_dtype: None = None,
    key_dtype: None = None,
    value_dtype: None = None,
    query_rope_dtype: None = None,
    key_rope_dtype: None = None,
    key_shared_prefix_dtype: None = None,
    value_shared_prefix_dtype: None = None,
    dequant_scale_query_dtype: None = None,
    dequant_scale_key_dtype: None = None,
    dequant_scale_value_dtype: None = None,
    dequant_scale_key_rope_dtype: None = None,
    learnable_sink: Array | None = None,
    quant_scale_p: None = None,
    out_dtype: None = None,
) -> tuple[Result, Result]:
    """Dense attention for inference: every query row over all keys of its sequence that it may see.
    Without return_softmax_lse, softmax_lse is [0.0].

        s[k] = softmax_scale * (query . key[k] + query_rope . key_rope[k]) + pse_shift[q,k]
        attention_out = sum_k softmax(s)[k] * value[k], softmax_lse = ln sum_k exp(s[k])
        learnable_sink: one more s, without a value, where a row sees a key

    Parameters:
        query                         as input_layout says: (B, S1, Nq*D) for BSH (float16,
                                      bfloat16, float32, or int8 (fully quantised MLA)): queries
        key                           as query with Nk heads and S2 rows, or pages of rank 3, 4 or 5
                                      (dtype of query, int8, or int32 holding 8 int4): keys
        value                         as key, with its own width Dv (dtype of key): values
        query_rope                    query with Dr in place of D (dtype of query (int8: bfloat16)),
                                      optional: rotated part of the queries
        key_rope                      key with Dr in place of D (dtype of key (int8: bfloat16)),
                                      optional: rotated part of the keys
        pse_shift                     [B or 1, Nq, >= S1, >= S2] (dtype of query), optional: added
                                      to the scores
        atten_mask                    sparse_mode 2..4: [2048, 2048]; else (B or 1, >= S1, >= S2)
                                      and shorter forms (bool, uint8, int8), optional: nonzero hides
                                      a key
        actual_seq_qlen               [B] or longer, or [1] (int64, int32), optional: lengths of the
                                      query sequences; token-folded layouts: running totals
        actual_seq_kvlen              [B] or longer, or [1] (int64, int32), optional: lengths of the
                                      key sequences; token-folded layouts without block_table:
                                      running totals
        block_table                   [B, pages per sequence] (int32), optional: pages of each
                                      sequence; makes key and value pools of pages
        dequant_scale_query           query without its last axis; BSH: (B, S1, Nq) (float32),
                                      optional: what a code of an int8 query is worth
        dequant_scale_key             as key_quant_mode says (float32, float16, bfloat16), optional:
                                      what a code of key is worth
        dequant_offset_key            shape of its scale (dtype of its scale), optional: added to a
                                      code of key before scaling
        dequant_scale_value           as value_quant_mode says (float32, float16, bfloat16),
                                      optional: what a code of value is worth
        dequant_offset_value          shape of its scale (dtype of its scale), optional: added to a
                                      code of value before scaling
        dequant_scale_key_rope        absent, optional: reserved
        quant_scale_out               one element, or Nq*Dv (float32, bfloat16), optional: makes
                                      attention_out int8
        quant_offset_out              shape of quant_scale_out (dtype of quant_scale_out), optional:
                                      added after scaling
        num_query_heads               int, default 1 (>= 1): Nq
        num_key_value_heads           int, default 0 (a divisor of Nq; 0: Nq): Nk; query head h
                                      reads key head h / (Nq / Nk)
        softmax_scale                 float, default 1.0 (finite): factor of the scores, as given,
                                      never derived
        pre_tokens                    int, default 2147483647: of a band: keys before the diagonal
        next_tokens                   int, default 2147483647: of a band: keys behind the diagonal
        input_layout                  str, default "BSH" (BSH, BSND, BNSD, TND, NTD, NSD, or
                                      <in>_<out> of them): axes of query, and of attention_out
        sparse_mode                   int, default 0 (0..4): 0: band and full mask; 1: full mask; 2,
                                      3: causal, top-left, bottom-right; 4: band
        block_size                    int, default 0 (rows of a page; 0 without block_table): rows
                                      of a page
        query_quant_mode              int, default 0 (0, 3): 3: an int8 query with a scale per token
                                      and head
        key_quant_mode                int, default 0 (0..5): a scale per 0: channel or tensor, 1:
                                      token, 2: head, 3: token and head, 4, 5: as 1, 3 by page
        value_quant_mode              int, default 0 (as key_quant_mode): likewise for value
        inner_precise                 int, default 0 (0..3): a hint: results do not depend on it
        return_softmax_lse            bool, default False: fill softmax_lse
        level                         str, default "portable" (portable, strict): strict also
                                      refuses what Atlas A2/A3 refuses
        learnable_sink                [Nq]; strict: absent (float32, or dtype of query (int8: of
                                      query_rope)), optional: one more logit per query head, without
                                      a value

    Reserved, only None: query_dtype, key_dtype, value_dtype, query_rope_dtype, key_rope_dtype,
        key_shared_prefix_dtype, value_shared_prefix_dtype, dequant_scale_query_dtype,
        dequant_scale_key_dtype, dequant_scale_value_dtype, dequant_scale_key_rope_dtype,
        quant_scale_p, out_dtype

    Results, or by keyword the memory for them:
        attention_out                 query, or as input_layout says, with Dv in place of D (dtype
                                      of query (int8: bfloat16; quant_scale_out: int8)): attention;
                                      rows without a key are 0
        softmax_lse                   (B, Nq, S1, 1) or (T1, Nq, 1); without return_softmax_lse [1]
                                      (float32): logarithm of the sum of exp(score); rows without a
                                      key +inf

    Errors:
        INVALID_ARGUMENT: a tensor is missing or does not belong to the mode, an attribute is
            unknown or out of range
        INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed
        UNSUPPORTED: reserved parameters; strict: what Atlas A2/A3 does not take
        INVALID_SEQLEN: lengths are negative, decrease or exceed their tensor or table
        INVALID_BLOCK: a block_table entry in use names no page
        INVALID_STRIDE, MISALIGNED, INVALID_DEVICE, ALIASED: memory that cannot be read, written or
            shared like this
        INVALID_VALUE: value checking (off by default) finds a number that is not finite, or a scale
            that makes no sense

    Source: torch_npu.npu_fused_infer_attention_score_v2. More:
    docs/operators/fused_infer_attention_score_v2.md
    """
    one_tensor("fused_infer_attention_score_v2", key=key, value=value)
    if not (
        query_dtype is key_dtype is value_dtype is query_rope_dtype is key_rope_dtype is key_shared_prefix_dtype is
        value_shared_prefix_dtype is dequant_scale_query_dtype is dequant_scale_key_dtype is
        dequant_scale_value_dtype is dequant_scale_key_rope_dtype is quant_scale_p is out_dtype is None
    ):  # fmt: skip
        only_none("fused_infer_attention_score_v2",
            query_dtype=query_dtype, key_dtype=key_dtype, value_dtype=value_dtype,
            query_rope_dtype=query_rope_dtype, key_rope_dtype=key_rope_dtype,
            key_shared_prefix_dtype=key_shared_prefix_dtype, value_shared_prefix_dtype=value_shared_prefix_dtype,
            dequant_scale_query_dtype=dequant_scale_query_dtype, dequant_scale_key_dtype=dequant_scale_key_dtype,
            dequant_scale_value_dtype=dequant_scale_value_dtype,
            dequant_scale_key_rope_dtype=dequant_scale_key_rope_dtype, quant_scale_p=quant_scale_p,
            out_dtype=out_dtype)
    values = (
        query, key, value, query_rope, key_rope, pse_shift, atten_mask, actual_seq_qlen, actual_seq_kvlen,
        block_table, dequant_scale_query, dequant_scale_key, dequant_offset_key, dequant_scale_value,
        dequant_offset_value, dequant_scale_key_rope, quant_scale_out, quant_offset_out, num_query_heads,
        num_key_value_heads, softmax_scale, pre_tokens, next_tokens, input_layout, sparse_mode, block_size,
        query_quant_mode, key_quant_mode, value_quant_mode, inner_precise, return_softmax_lse, level, attention_out,
        softmax_lse, learnable_sink,
    )  # fmt: skip
    result = run("fused_infer_attention_score_v2", values, "fused_infer_attention_score_v2")
    return without_lse(result) if not return_softmax_lse and softmax_lse is None else result


@operator
def npu_fused_infer_attention_score_v2(
    query: Array,
    key: Array,
    value: Array,
    *,
    query_rope: Array | None = None,
    key_rope: Array | None = None,
    pse_shift: Array | None = None,
    atten_mask: Array | None = None,
    actual_seq_qlen: Lengths | None = None,
    actual_seq_kvlen: Lengths | None = None,
    block_table: Array | None = None,
    dequant_scale_query: Array | None = None,
    dequant_scale_key: Array | None = None,
    dequant_offset_key: Array | None = None,
    dequant_scale_value: Array | None = None,
    dequant_offset_value: Array | None = None,
    dequant_scale_key_rope: Array | None = None,
    quant_scale_out: Array | None = None,
    quant_offset_out: Array | None = None,
    num_query_heads: int = 1,
    num_key_value_heads: int = 0,
    softmax_scale: float = 1.0,
    pre_tokens: int = 2147483647,
    next_tokens: int = 2147483647,
    input_layout: str = "BSH",
    sparse_mode: int = 0,
    block_size: int = 0,
    query_quant_mode: int = 0,
    key_quant_mode: int = 0,
    value_quant_mode: int = 0,
    inner_precise: int = 0,
    return_softmax_lse: bool = False,
    level: str = "portable",
    attention_out: Array | None = None,
    softmax_lse: Array | None = None,
    query_dtype: None = None,
    key_dtype: None = None,
    value_dtype: None = None,
    query_rope_dtype: None = None,
    key_rope_dtype: None = None,
    key_shared_prefix_dtype: None = None,
    value_shared_prefix_dtype: None = None,
    dequant_scale_query_dtype: None = None,
    dequant_scale_key_dtype: None = None,
    dequant_scale_value_dtype: None = None,
    dequant_scale_key_rope_dtype: None = None,
    learnable_sink: Array | None = None,
    quant_scale_p: None = None,
    out_dtype: None = None,
) -> tuple[Result, Result]:
    """Dense attention for inference: every query row over all keys of its sequence that it may see.
    Without return_softmax_lse, softmax_lse is [0.0].

        s[k] = softmax_scale * (query . key[k] + query_rope . key_rope[k]) + pse_shift[q,k]
        attention_out = sum_k softmax(s)[k] * value[k], softmax_lse = ln sum_k exp(s[k])
        learnable_sink: one more s, without a value, where a row sees a key

    Parameters:
        query                         as input_layout says: (B, S1, Nq*D) for BSH (float16,
                                      bfloat16, float32, or int8 (fully quantised MLA)): queries
        key                           as query with Nk heads and S2 rows, or pages of rank 3, 4 or 5
                                      (dtype of query, int8, or int32 holding 8 int4): keys
        value                         as key, with its own width Dv (dtype of key): values
        query_rope                    query with Dr in place of D (dtype of query (int8: bfloat16)),
                                      optional: rotated part of the queries
        key_rope                      key with Dr in place of D (dtype of key (int8: bfloat16)),
                                      optional: rotated part of the keys
        pse_shift                     [B or 1, Nq, >= S1, >= S2] (dtype of query), optional: added
                                      to the scores
        atten_mask                    sparse_mode 2..4: [2048, 2048]; else (B or 1, >= S1, >= S2)
                                      and shorter forms (bool, uint8, int8), optional: nonzero hides
                                      a key
        actual_seq_qlen               [B] or longer, or [1] (int64, int32), optional: lengths of the
                                      query sequences; token-folded layouts: running totals
        actual_seq_kvlen              [B] or longer, or [1] (int64, int32), optional: lengths of the
                                      key sequences; token-folded layouts without block_table:
                                      running totals
        block_table                   [B, pages per sequence] (int32), optional: pages of each
                                      sequence; makes key and value pools of pages
        dequant_scale_query           query without its last axis; BSH: (B, S1, Nq) (float32),
                                      optional: what a code of an int8 query is worth
        dequant_scale_key             as key_quant_mode says (float32, float16, bfloat16), optional:
                                      what a code of key is worth
        dequant_offset_key            shape of its scale (dtype of its scale), optional: added to a
                                      code of key before scaling
        dequant_scale_value           as value_quant_mode says (float32, float16, bfloat16),
                                      optional: what a code of value is worth
        dequant_offset_value          shape of its scale (dtype of its scale), optional: added to a
                                      code of value before scaling
        dequant_scale_key_rope        absent, optional: reserved
        quant_scale_out               one element, or Nq*Dv (float32, bfloat16), optional: makes
                                      attention_out int8
        quant_offset_out              shape of quant_scale_out (dtype of quant_scale_out), optional:
                                      added after scaling
        num_query_heads               int, default 1 (>= 1): Nq
        num_key_value_heads           int, default 0 (a divisor of Nq; 0: Nq): Nk; query head h
                                      reads key head h / (Nq / Nk)
        softmax_scale                 float, default 1.0 (finite): factor of the scores, as given,
                                      never derived
        pre_tokens                    int, default 2147483647: of a band: keys before the diagonal
        next_tokens                   int, default 2147483647: of a band: keys behind the diagonal
        input_layout                  str, default "BSH" (BSH, BSND, BNSD, TND, NTD, NSD, or
                                      <in>_<out> of them): axes of query, and of attention_out
        sparse_mode                   int, default 0 (0..4): 0: band and full mask; 1: full mask; 2,
                                      3: causal, top-left, bottom-right; 4: band
        block_size                    int, default 0 (rows of a page; 0 without block_table): rows
                                      of a page
        query_quant_mode              int, default 0 (0, 3): 3: an int8 query with a scale per token
                                      and head
        key_quant_mode                int, default 0 (0..5): a scale per 0: channel or tensor, 1:
                                      token, 2: head, 3: token and head, 4, 5: as 1, 3 by page
        value_quant_mode              int, default 0 (as key_quant_mode): likewise for value
        inner_precise                 int, default 0 (0..3): a hint: results do not depend on it
        return_softmax_lse            bool, default False: fill softmax_lse
        level                         str, default "portable" (portable, strict): strict also
                                      refuses what Atlas A2/A3 refuses
        learnable_sink                [Nq]; strict: absent (float32, or dtype of query (int8: of
                                      query_rope)), optional: one more logit per query head, without
                                      a value

    Reserved, only None: query_dtype, key_dtype, value_dtype, query_rope_dtype, key_rope_dtype,
        key_shared_prefix_dtype, value_shared_prefix_dtype, dequant_scale_query_dtype,
        dequant_scale_key_dtype, dequant_scale_value_dtype, dequant_scale_key_rope_dtype,
        quant_scale_p, out_dtype

    Results, or by keyword the memory for them:
        attention_out                 query, or as input_layout says, with Dv in place of D (dtype
                                      of query (int8: bfloat16; quant_scale_out: int8)): attention;
                                      rows without a key are 0
        softmax_lse                   (B, Nq, S1, 1) or (T1, Nq, 1); without return_softmax_lse [1]
                                      (float32): logarithm of the sum of exp(score); rows without a
                                      key +inf

    Errors:
        INVALID_ARGUMENT: a tensor is missing or does not belong to the mode, an attribute is
            unknown or out of range
        INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed
        UNSUPPORTED: reserved parameters; strict: what Atlas A2/A3 does not take
        INVALID_SEQLEN: lengths are negative, decrease or exceed their tensor or table
        INVALID_BLOCK: a block_table entry in use names no page
        INVALID_STRIDE, MISALIGNED, INVALID_DEVICE, ALIASED: memory that cannot be read, written or
            shared like this
        INVALID_VALUE: value checking (off by default) finds a number that is not finite, or a scale
            that makes no sense

    Source: torch_npu.npu_fused_infer_attention_score_v2. More:
    docs/operators/fused_infer_attention_score_v2.md
    """
    one_tensor("npu_fused_infer_attention_score_v2", key=key, value=value)
    if not (
        query_dtype is key_dtype is value_dtype is query_rope_dtype is key_rope_dtype is key_shared_prefix_dtype is
        value_shared_prefix_dtype is dequant_scale_query_dtype is dequant_scale_key_dtype is
        dequant_scale_value_dtype is dequant_scale_key_rope_dtype is quant_scale_p is out_dtype is None
    ):  # fmt: skip
        only_none("npu_fused_infer_attention_score_v2",
            query_dtype=query_dtype, key_dtype=key_dtype, value_dtype=value_dtype,
            query_rope_dtype=query_rope_dtype, key_rope_dtype=key_rope_dtype,
            key_shared_prefix_dtype=key_shared_prefix_dtype, value_shared_prefix_dtype=value_shared_prefix_dtype,
            dequant_scale_query_dtype=dequant_scale_query_dtype, dequant_scale_key_dtype=dequant_scale_key_dtype,
            dequant_scale_value_dtype=dequant_scale_value_dtype,
            dequant_scale_key_rope_dtype=dequant_scale_key_rope_dtype, quant_scale_p=quant_scale_p,
            out_dtype=out_dtype)
    values = (
        query, key, value, query_rope, key_rope, pse_shift, atten_mask, actual_seq_qlen, actual_seq_kvlen,
        block_table, dequant_scale_query, dequant_scale_key, dequant_offset_key, dequant_scale_value,
        dequant_offset_value, dequant_scale_key_rope, quant_scale_out, quant_offset_out, num_query_heads,
        num_key_value_heads, softmax_scale, pre_tokens, next_tokens, input_layout, sparse_mode, block_size,
        query_quant_mode, key_quant_mode, value_quant_mode, inner_precise, return_softmax_lse, level, attention_out,
        softmax_lse, learnable_sink,
    )  # fmt: skip
    result = run("fused_infer_attention_score_v2", values, "npu_fused_infer_attention_score_v2")
    return without_lse(result) if not return_softmax_lse and softmax_lse is None else result
