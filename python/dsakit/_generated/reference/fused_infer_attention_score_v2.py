# SPDX-License-Identifier: Apache-2.0
# Written by scripts/generate_python.py from include/dsakit/*.hpp: change those, then run it.
"""The readable twins of fused_infer_attention_score_v2."""

from __future__ import annotations

from ... import _core
from .. import fused_infer_attention_score_v2 as fast
from ...calling import (
    Array,
    Lengths,
    Result,
    documented_by,
    one_tensor,
    only_none,
    operator,
    without_lse,
)

__all__ = [
    "fused_infer_attention_score_v2",
    "npu_fused_infer_attention_score_v2",
]


@operator
@documented_by(fast.fused_infer_attention_score_v2)
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
    """The readable twin of dsakit.fused_infer_attention_score_v2."""
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
    result = _core.fused_infer_attention_score_v2_reference(values, "fused_infer_attention_score_v2")
    return without_lse(result) if not return_softmax_lse and softmax_lse is None else result


@operator
@documented_by(fast.npu_fused_infer_attention_score_v2)
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
    """The readable twin of dsakit.npu_fused_infer_attention_score_v2."""
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
    result = _core.fused_infer_attention_score_v2_reference(values, "npu_fused_infer_attention_score_v2")
    return without_lse(result) if not return_softmax_lse and softmax_lse is None else result
