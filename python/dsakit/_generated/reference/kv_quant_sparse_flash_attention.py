# SPDX-License-Identifier: Apache-2.0
# Written by scripts/generate_python.py from include/dsakit/*.hpp: change those, then run it.
"""The readable twins of kv_quant_sparse_flash_attention."""

from __future__ import annotations

from ... import _core
from .. import kv_quant_sparse_flash_attention as fast
from ...calling import (
    Array,
    Lengths,
    Result,
    documented_by,
    only_none,
    operator,
)

__all__ = [
    "kv_quant_sparse_flash_attention",
    "npu_kv_quant_sparse_flash_attention",
]


@operator
@documented_by(fast.kv_quant_sparse_flash_attention)
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
    p_rounding: str = "none",
) -> Result:
    """The readable twin of dsakit.kv_quant_sparse_flash_attention."""
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
    result = _core.kv_quant_sparse_flash_attention_rounded(values, p_rounding, "kv_quant_sparse_flash_attention")
    return result if return_softmax_lse else result[0]


@operator
@documented_by(fast.npu_kv_quant_sparse_flash_attention)
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
    p_rounding: str = "none",
) -> Result:
    """The readable twin of dsakit.npu_kv_quant_sparse_flash_attention."""
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
    result = _core.kv_quant_sparse_flash_attention_rounded(values, p_rounding, "npu_kv_quant_sparse_flash_attention")
    return result if return_softmax_lse else result[0]
