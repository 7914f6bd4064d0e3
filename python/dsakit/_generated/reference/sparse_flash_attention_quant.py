# SPDX-License-Identifier: Apache-2.0
# Written by scripts/generate_python.py from include/dsakit/*.hpp: change those, then run it.
"""The readable twins of sparse_flash_attention_quant."""

from __future__ import annotations

from typing import Any

from ... import _core, calling_forms
from .. import sparse_flash_attention_quant as fast
from ...calling import (
    Array,
    Lengths,
    Result,
    documented_by,
    operator,
)

__all__ = [
    "sparse_flash_attention_quant",
    "sparse_flash_attention_quant_d",
    "sparse_flash_attention_quant_p",
    "sparse_flash_attention_quant_d_950",
    "sparse_flash_attention_quant_compute",
]


@operator
@documented_by(fast.sparse_flash_attention_quant)
def sparse_flash_attention_quant(
    query_nope: Array,
    query_rope: Array,
    key_nope_2d: Array,
    key_rope_2d: Array,
    k_nope_scales: Array | None,
    topk_indices: Array,
    block_table: Array,
    kv_act_seqs: Lengths,
    *more: Any,
    b: int,
    s1: int,
    nq: int,
    n_kv: int = 1,
    softmax_scale: float,
    topk: int,
    block_size: int,
    numerics: str = "exact",
    level: str = "portable",
    attention_out: Array | None = None,
    p_rounding: str = "none",
    **other: Any,
) -> Result:
    """The readable twin of dsakit.sparse_flash_attention_quant."""
    values = (
        query_nope, query_rope, key_nope_2d, key_rope_2d, k_nope_scales, topk_indices, block_table, kv_act_seqs, b,
        s1, nq, n_kv, softmax_scale, topk, block_size, numerics, level, attention_out,
    )  # fmt: skip
    if calling_forms.is_published_attention(more, other, attention_out, b, s1):
        return calling_forms.attention(_core.sparse_flash_attention_quant_reference, values, "sparse_flash_attention_quant", more, other)
    return _core.sparse_flash_attention_quant_rounded(values, p_rounding, "sparse_flash_attention_quant")


@operator
@documented_by(fast.sparse_flash_attention_quant)
def sparse_flash_attention_quant_d(
    query_nope: Array | None = None,
    query_rope: Array | None = None,
    key_nope_2d: Array | None = None,
    key_rope_2d: Array | None = None,
    k_nope_scales: Array | None = None,
    topk_indices: Array | None = None,
    block_table: Array | None = None,
    kv_act_seqs: Lengths | None = None,
    attention_out: Array | None = None,
    nq: int | None = None,
    n_kv: int = 1,
    softmax_scale: float | None = None,
    topk: int | None = None,
    block_size: int | None = None,
    max_blocknum_perbatch: int | None = None,
    tile_config: Any = None,
    *,
    topk_indcies: Array | None = None,
    b: int | None = None,
    s1: int | None = None,
    numerics: str = "exact",
    level: str = "portable",
) -> None:
    """The entry of the PyPTO documents, which writes into attention_out. topk_indcies is topk_indices
    as they spell it; max_blocknum_perbatch says how many columns block_table has; tile_config has
    no effect.
    """
    written = {"topk_indices": "topk_indcies"} if topk_indices is None else {}
    topk_indices = calling_forms.one_of_two("sparse_flash_attention_quant_d", topk_indices=topk_indices, topk_indcies=topk_indcies)
    b, s1 = calling_forms.sizes_of("sparse_flash_attention_quant_d", attention_out, b, s1)
    calling_forms.check_columns("sparse_flash_attention_quant_d", block_table, max_blocknum_perbatch)
    values = (
        query_nope, query_rope, key_nope_2d, key_rope_2d, k_nope_scales, topk_indices, block_table, kv_act_seqs, b,
        s1, nq, n_kv, softmax_scale, topk, block_size, numerics, level, attention_out,
    )  # fmt: skip
    with calling_forms.as_written(written):
        _core.sparse_flash_attention_quant_reference(values, "sparse_flash_attention_quant_d")


@operator
@documented_by(fast.sparse_flash_attention_quant)
def sparse_flash_attention_quant_p(
    query_nope: Array | None = None,
    query_rope: Array | None = None,
    key_nope_2d: Array | None = None,
    key_rope_2d: Array | None = None,
    k_nope_scales: Array | None = None,
    topk_indices: Array | None = None,
    block_table: Array | None = None,
    kv_act_seqs: Lengths | None = None,
    attention_out: Array | None = None,
    nq: int | None = None,
    n_kv: int = 1,
    softmax_scale: float | None = None,
    topk: int | None = None,
    block_size: int | None = None,
    max_blocknum_perbatch: int | None = None,
    tile_config: Any = None,
    *,
    topk_indcies: Array | None = None,
    b: int | None = None,
    s1: int | None = None,
    numerics: str = "exact",
    level: str = "portable",
) -> None:
    """The entry of the PyPTO documents, which writes into attention_out. topk_indcies is topk_indices
    as they spell it; max_blocknum_perbatch says how many columns block_table has; tile_config has
    no effect.
    """
    written = {"topk_indices": "topk_indcies"} if topk_indices is None else {}
    topk_indices = calling_forms.one_of_two("sparse_flash_attention_quant_p", topk_indices=topk_indices, topk_indcies=topk_indcies)
    b, s1 = calling_forms.sizes_of("sparse_flash_attention_quant_p", attention_out, b, s1)
    calling_forms.check_columns("sparse_flash_attention_quant_p", block_table, max_blocknum_perbatch)
    values = (
        query_nope, query_rope, key_nope_2d, key_rope_2d, k_nope_scales, topk_indices, block_table, kv_act_seqs, b,
        s1, nq, n_kv, softmax_scale, topk, block_size, numerics, level, attention_out,
    )  # fmt: skip
    with calling_forms.as_written(written):
        _core.sparse_flash_attention_quant_reference(values, "sparse_flash_attention_quant_p")


@operator
@documented_by(fast.sparse_flash_attention_quant)
def sparse_flash_attention_quant_d_950(
    query_nope: Array | None = None,
    query_rope: Array | None = None,
    key_nope_2d: Array | None = None,
    key_rope_2d: Array | None = None,
    k_nope_scales: Array | None = None,
    topk_indices: Array | None = None,
    block_table: Array | None = None,
    kv_act_seqs: Lengths | None = None,
    attention_out: Array | None = None,
    nq: int | None = None,
    n_kv: int = 1,
    softmax_scale: float | None = None,
    topk: int | None = None,
    block_size: int | None = None,
    max_blocknum_perbatch: int | None = None,
    tile_config: Any = None,
    *,
    topk_indcies: Array | None = None,
    b: int | None = None,
    s1: int | None = None,
    numerics: str = "exact",
    level: str = "portable",
) -> None:
    """The entry of the PyPTO documents, which writes into attention_out. topk_indcies is topk_indices
    as they spell it; max_blocknum_perbatch says how many columns block_table has; tile_config has
    no effect.
    """
    written = {"topk_indices": "topk_indcies"} if topk_indices is None else {}
    topk_indices = calling_forms.one_of_two("sparse_flash_attention_quant_d_950", topk_indices=topk_indices, topk_indcies=topk_indcies)
    b, s1 = calling_forms.sizes_of("sparse_flash_attention_quant_d_950", attention_out, b, s1)
    calling_forms.check_columns("sparse_flash_attention_quant_d_950", block_table, max_blocknum_perbatch)
    values = (
        query_nope, query_rope, key_nope_2d, key_rope_2d, k_nope_scales, topk_indices, block_table, kv_act_seqs, b,
        s1, nq, n_kv, softmax_scale, topk, block_size, numerics, level, attention_out,
    )  # fmt: skip
    with calling_forms.as_written(written):
        _core.sparse_flash_attention_quant_reference(values, "sparse_flash_attention_quant_d_950")


@operator
@documented_by(fast.sparse_flash_attention_quant)
def sparse_flash_attention_quant_compute(
    query_nope: Array | None = None,
    query_rope: Array | None = None,
    key_nope_2d: Array | None = None,
    key_rope_2d: Array | None = None,
    k_nope_scales: Array | None = None,
    topk_indices: Array | None = None,
    block_table: Array | None = None,
    kv_act_seqs: Lengths | None = None,
    attention_out: Array | None = None,
    nq: int | None = None,
    n_kv: int = 1,
    softmax_scale: float | None = None,
    topk: int | None = None,
    block_size: int | None = None,
    max_blocknum_perbatch: int | None = None,
    tile_config: Any = None,
    *,
    topk_indcies: Array | None = None,
    b: int | None = None,
    s1: int | None = None,
    numerics: str = "exact",
    level: str = "portable",
) -> None:
    """The entry of the PyPTO documents, which writes into attention_out. topk_indcies is topk_indices
    as they spell it; max_blocknum_perbatch says how many columns block_table has; tile_config has
    no effect.
    """
    written = {"topk_indices": "topk_indcies"} if topk_indices is None else {}
    topk_indices = calling_forms.one_of_two("sparse_flash_attention_quant_compute", topk_indices=topk_indices, topk_indcies=topk_indcies)
    b, s1 = calling_forms.sizes_of("sparse_flash_attention_quant_compute", attention_out, b, s1)
    calling_forms.check_columns("sparse_flash_attention_quant_compute", block_table, max_blocknum_perbatch)
    values = (
        query_nope, query_rope, key_nope_2d, key_rope_2d, k_nope_scales, topk_indices, block_table, kv_act_seqs, b,
        s1, nq, n_kv, softmax_scale, topk, block_size, numerics, level, attention_out,
    )  # fmt: skip
    with calling_forms.as_written(written):
        _core.sparse_flash_attention_quant_reference(values, "sparse_flash_attention_quant_compute")
