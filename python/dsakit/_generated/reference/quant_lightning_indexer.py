# SPDX-License-Identifier: Apache-2.0
# Written by scripts/generate_python.py from include/dsakit/*.hpp: change those, then run it.
"""The readable twins of quant_lightning_indexer."""

from __future__ import annotations

from ... import _core
from .. import quant_lightning_indexer as fast
from ...calling import (
    ABSENT,
    Array,
    Lengths,
    Result,
    documented_by,
    only_none,
    operator,
    zero_in_portable,
)

__all__ = [
    "quant_lightning_indexer",
    "npu_quant_lightning_indexer",
    "npu_lightning_indexer_quant",
]


@operator
@documented_by(fast.quant_lightning_indexer)
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
    """The readable twin of dsakit.quant_lightning_indexer."""
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
    return _core.quant_lightning_indexer_reference(values, "quant_lightning_indexer")


@operator
@documented_by(fast.npu_quant_lightning_indexer)
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
    """The readable twin of dsakit.npu_quant_lightning_indexer."""
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
    return _core.quant_lightning_indexer_reference(values, "npu_quant_lightning_indexer")


@operator
@documented_by(fast.npu_lightning_indexer_quant)
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
    """The readable twin of dsakit.npu_lightning_indexer_quant."""
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
    return _core.quant_lightning_indexer_reference(values, "npu_lightning_indexer_quant")
