# SPDX-License-Identifier: Apache-2.0
# Written by scripts/generate_python.py from include/dsakit/*.hpp: change those, then run it.
"""The readable twins of lightning_indexer."""

from __future__ import annotations

from ... import _core
from .. import lightning_indexer as fast
from ...calling import (
    Array,
    Lengths,
    Result,
    documented_by,
    operator,
)

__all__ = [
    "lightning_indexer",
    "npu_lightning_indexer",
]


@operator
@documented_by(fast.lightning_indexer)
def lightning_indexer(
    query: Array,
    key: Array,
    weights: Array,
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
    return_value: bool = False,
    numerics: str = "fp32",
    level: str = "portable",
    sparse_indices: Array | None = None,
    sparse_values: Array | None = None,
) -> tuple[Result, Result]:
    """The readable twin of dsakit.lightning_indexer."""
    values = (
        query, key, weights, actual_seq_lengths_query, actual_seq_lengths_key, block_table, layout_query,
        layout_key, sparse_count, sparse_mode, pre_tokens, next_tokens, return_value, numerics, level,
        sparse_indices, sparse_values,
    )  # fmt: skip
    return _core.lightning_indexer_reference(values, "lightning_indexer")


@operator
@documented_by(fast.npu_lightning_indexer)
def npu_lightning_indexer(
    query: Array,
    key: Array,
    weights: Array,
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
    return_value: bool = False,
    numerics: str = "fp32",
    level: str = "portable",
    sparse_indices: Array | None = None,
    sparse_values: Array | None = None,
) -> tuple[Result, Result]:
    """The readable twin of dsakit.npu_lightning_indexer."""
    values = (
        query, key, weights, actual_seq_lengths_query, actual_seq_lengths_key, block_table, layout_query,
        layout_key, sparse_count, sparse_mode, pre_tokens, next_tokens, return_value, numerics, level,
        sparse_indices, sparse_values,
    )  # fmt: skip
    return _core.lightning_indexer_reference(values, "npu_lightning_indexer")
