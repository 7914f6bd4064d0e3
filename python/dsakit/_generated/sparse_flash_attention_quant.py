# SPDX-License-Identifier: Apache-2.0
# Written by scripts/generate_python.py from include/dsakit/*.hpp: change those, then run it.
"""Attention of each query row over the listed positions of paged latent caches, MLA in absorbed form."""

from __future__ import annotations

from typing import Any

from .. import _core, calling_forms
from ..calling import (
    Array,
    Lengths,
    Result,
    documented_by,
    operator,
    run,
)

__all__ = [
    "sparse_flash_attention_quant",
    "sparse_flash_attention_quant_d",
    "sparse_flash_attention_quant_p",
    "sparse_flash_attention_quant_d_950",
    "sparse_flash_attention_quant_compute",
]


@operator
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
    **other: Any,
) -> Result:
    """Attention of each query row over the listed positions of paged latent caches, MLA in absorbed
    form. In the published form attention_out follows the positional parameters, then nq, n_kv,
    softmax_scale, topk, block_size, max_blocknum_perbatch, tile_config; topk_indcies is
    topk_indices as the documents spell it; b and s1 are left out; it returns None.

        s[h,j] = (query_nope[h] . k[j] + query_rope[h] . key_rope[j]) * softmax_scale, k = code *
            scale of its tile
        out[h] = sum_j softmax(s[h])[j] * k[j]
        row i of a sequence uses the first min(max(kv_act_seqs[b] - s1 + 1 + i, 0), topk) entries of
            its list

    Parameters:
        query_nope     [b*s1*nq, Dv] (bfloat16): absorbed queries
        query_rope     [b*s1*nq, Dr] (bfloat16): rotated part of the queries
        key_nope_2d    [block_num*block_size, Dv] (int8, bfloat16): latent rows
        key_rope_2d    [block_num*block_size, Dr] (bfloat16): rotated part of the keys
        k_nope_scales  [block_num*block_size, Dv/G]; bfloat16 latent: absent or no elements
                       (float32), or None: what a code of each tile of G is worth
        topk_indices   [b*s1, n_kv*K], K >= topk (int32): positions to attend to, as many as the row
                       sees
        block_table    [b, max_blocks] (int32): pages of each sequence
        kv_act_seqs    [b] (int32): lengths of the sequences of keys
        b              int, required (>= 0): sequences
        s1             int, required (>= 0): query tokens of each sequence
        nq             int, required (>= 1; strict: 128): query heads
        n_kv           int, default 1 (1): key heads
        softmax_scale  float, required (finite): factor of the scores, as given
        topk           int, required (>= 1; strict: 2048): the most entries of a list that are used
        block_size     int, required (>= 1; strict: 128): rows of a page
        numerics       str, default "exact" (exact, device, golden): device, golden: with the
                       intermediate roundings of the kernel or of the published comparison, to
                       compare with them
        level          str, default "portable" (portable, strict): strict also refuses what Atlas
                       A2/A3 refuses

    Results, or by keyword the memory for them:
        attention_out  [b, s1, nq, Dv] (bfloat16): attention, still in the latent space

    Errors:
        INVALID_ARGUMENT: a tensor is missing, an attribute is out of range, scales do not go with
            the latent
        INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed
        UNSUPPORTED: strict: what the device does not take
        INVALID_SEQLEN: kv_act_seqs exceeds the columns of block_table
        INVALID_INDEX, INVALID_BLOCK: an entry in use names no position, its page is none of the
            cache
        INVALID_STRIDE, MISALIGNED, INVALID_DEVICE, ALIASED: memory that cannot be read, written or
            shared like this
        INVALID_VALUE: value checking (off by default) finds a number that is not finite, or a scale
            that makes no sense

    Source: the PyPTO example for DeepSeek-V3.2. More: docs/operators/sparse_flash_attention.md
    """
    values = (
        query_nope, query_rope, key_nope_2d, key_rope_2d, k_nope_scales, topk_indices, block_table, kv_act_seqs, b,
        s1, nq, n_kv, softmax_scale, topk, block_size, numerics, level, attention_out,
    )  # fmt: skip
    if calling_forms.is_published_attention(more, other, attention_out, b, s1):
        return calling_forms.attention(_core.sparse_flash_attention_quant, values, "sparse_flash_attention_quant", more, other)
    return run("sparse_flash_attention_quant", values, "sparse_flash_attention_quant")


@operator
@documented_by(sparse_flash_attention_quant)
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
        run("sparse_flash_attention_quant", values, "sparse_flash_attention_quant_d")


@operator
@documented_by(sparse_flash_attention_quant)
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
        run("sparse_flash_attention_quant", values, "sparse_flash_attention_quant_p")


@operator
@documented_by(sparse_flash_attention_quant)
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
        run("sparse_flash_attention_quant", values, "sparse_flash_attention_quant_d_950")


@operator
@documented_by(sparse_flash_attention_quant)
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
        run("sparse_flash_attention_quant", values, "sparse_flash_attention_quant_compute")
