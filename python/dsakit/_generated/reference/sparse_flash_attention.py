# SPDX-License-Identifier: Apache-2.0
# Written by scripts/generate_python.py from include/dsakit/*.hpp: change those, then run it.
"""The readable twins of sparse_flash_attention."""

from __future__ import annotations

from ... import _core
from .. import sparse_flash_attention as fast
from ...calling import (
    Array,
    Lengths,
    Result,
    documented_by,
    operator,
)

__all__ = [
    "sparse_flash_attention",
    "npu_sparse_flash_attention",
]


@operator
@documented_by(fast.sparse_flash_attention)
def sparse_flash_attention(
    query: Array,
    key: Array,
    value: Array,
    sparse_indices: Array,
    scale_value: float,
    *,
    block_table: Array | None = None,
    actual_seq_lengths_query: Lengths | None = None,
    actual_seq_lengths_kv: Lengths | None = None,
    query_rope: Array = None,
    key_rope: Array = None,
    sparse_block_size: int = 1,
    layout_query: str = "BSND",
    layout_kv: str = "BSND",
    sparse_mode: int = 3,
    pre_tokens: int = 9223372036854775807,
    next_tokens: int = 9223372036854775807,
    attention_mode: int = 0,
    return_softmax_lse: bool = False,
    sinks: Array | None = None,
    index_check: str = "error",
    numerics: str = "exact",
    level: str = "portable",
    attention_out: Array | None = None,
    softmax_max: Array | None = None,
    softmax_sum: Array | None = None,
    p_rounding: str = "none",
) -> tuple[Result, Result, Result]:
    """The readable twin of dsakit.sparse_flash_attention."""
    values = (
        query, key, value, sparse_indices, scale_value, block_table, actual_seq_lengths_query,
        actual_seq_lengths_kv, query_rope, key_rope, sparse_block_size, layout_query, layout_kv, sparse_mode,
        pre_tokens, next_tokens, attention_mode, return_softmax_lse, sinks, index_check, numerics, level,
        attention_out, softmax_max, softmax_sum,
    )  # fmt: skip
    return _core.sparse_flash_attention_rounded(values, p_rounding, "sparse_flash_attention")


@operator
@documented_by(fast.npu_sparse_flash_attention)
def npu_sparse_flash_attention(
    query: Array,
    key: Array,
    value: Array,
    sparse_indices: Array,
    scale_value: float,
    *,
    block_table: Array | None = None,
    actual_seq_lengths_query: Lengths | None = None,
    actual_seq_lengths_kv: Lengths | None = None,
    query_rope: Array = None,
    key_rope: Array = None,
    sparse_block_size: int = 1,
    layout_query: str = "BSND",
    layout_kv: str = "BSND",
    sparse_mode: int = 3,
    pre_tokens: int = 9223372036854775807,
    next_tokens: int = 9223372036854775807,
    attention_mode: int = 0,
    return_softmax_lse: bool = False,
    sinks: Array | None = None,
    index_check: str = "error",
    numerics: str = "exact",
    level: str = "portable",
    attention_out: Array | None = None,
    softmax_max: Array | None = None,
    softmax_sum: Array | None = None,
    p_rounding: str = "none",
) -> tuple[Result, Result, Result]:
    """The readable twin of dsakit.npu_sparse_flash_attention."""
    values = (
        query, key, value, sparse_indices, scale_value, block_table, actual_seq_lengths_query,
        actual_seq_lengths_kv, query_rope, key_rope, sparse_block_size, layout_query, layout_kv, sparse_mode,
        pre_tokens, next_tokens, attention_mode, return_softmax_lse, sinks, index_check, numerics, level,
        attention_out, softmax_max, softmax_sum,
    )  # fmt: skip
    return _core.sparse_flash_attention_rounded(values, p_rounding, "npu_sparse_flash_attention")
