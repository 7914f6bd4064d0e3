# SPDX-License-Identifier: Apache-2.0
# Written by scripts/generate_python.py from include/dsakit/*.hpp: change those, then run it.
"""Index query, index key and head weights of new tokens, the keys into their paged cache."""

from __future__ import annotations

from typing import Any

from .. import _core, calling_forms
from ..calling import (
    Array,
    Result,
    Weight,
    documented_by,
    operator,
    run,
)

__all__ = [
    "lightning_indexer_prolog_quant",
    "lightning_indexer_prolog_quant_compute",
]


@operator
def lightning_indexer_prolog_quant(
    x: Array,
    q_norm: Array,
    q_norm_scale: Array,
    w_qb: Weight,
    w_qb_scale: Array,
    wk: Weight,
    w_proj: Weight,
    ln_gamma_k: Array,
    ln_beta_k: Array,
    cos: Array,
    sin: Array,
    hadamard_q: Array | None,
    hadamard_k: Array | None,
    k_cache: Array,
    k_scale_cache: Array,
    k_cache_index: Array,
    *more: Any,
    layernorm_epsilon_k: float = 1e-06,
    rope_layout: str = "half",
    layout_query: str = "TND",
    layout_key: str = "PA_BSND",
    level: str = "portable",
    q_int8: Array | None = None,
    q_scale: Array | None = None,
    weights: Array | None = None,
    **other: Any,
) -> Result:
    """Index query, index key and head weights of new tokens, the keys into their paged cache. In the
    published form the output tensors q_int8_out, q_scale_out, k_int8_out, k_scale_out, weights_out
    follow the positional parameters, then the objects attrs, configs; it returns None.

        q = rope(q_norm w_qb) hadamard_q per head, q_int8 = quant(q)
        k = rope(layer_norm(x wk)) hadamard_k, k_cache row = quant(k)
        weights = x w_proj / (sqrt(Ni) * sqrt(Di))

    Parameters:
        x                    [t, He] (bfloat16): hidden states
        q_norm               [t, Hcq] (int8): normalised low-rank query, of mla_prolog_quant
        q_norm_scale         [t, 1] (float32): what a code of it is worth
        w_qb                 [Hcq, Ni*Di] (int8): projection of the index query
        w_qb_scale           [Ni*Di, 1] or [1, Ni*Di] (float32): what a column of w_qb is worth
        wk                   [He, Di] (bfloat16): projection of the index key
        w_proj               [He, Ni] (bfloat16): projection of the head weights
        ln_gamma_k           [Di] (bfloat16; portable: float32): weights of the layer norm of the
                             index key
        ln_beta_k            [Di] (bfloat16; portable: float32): offsets of the layer norm of the
                             index key
        cos                  [t, Dr] (bfloat16): cosines, before the sines
        sin                  [t, Dr] (bfloat16): sines
        hadamard_q           [Di, Di] (bfloat16), or None: rotates the index query; both absent:
                             identity (portable)
        hadamard_k           [Di, Di] (bfloat16), or None: rotates the index key
        k_cache              [block_num, block_size, 1, Di] (int8), updated in place: index keys
        k_scale_cache        [block_num, block_size, 1, 1] (float16; portable: float32), updated in
                             place: what a code of them is worth
        k_cache_index        [t] (int64): slot of each token, negative: not stored
        layernorm_epsilon_k  float, default 1e-06 (> 0): added in the layer norm of the index key
        rope_layout          str, default "half" (half, interleaved, interleaved_to_half; strict:
                             half): which elements of index rows turn together, and where they go
        layout_query         str, default "TND" (TND): axes of the query
        layout_key           str, default "PA_BSND" (PA_BSND): axes of the caches
        level                str, default "portable" (portable, strict): strict also refuses what
                             Atlas A2/A3 refuses

    Results, or by keyword the memory for them:
        q_int8               [t, Ni, Di] (int8): index query
        q_scale              [t, Ni, 1] (float16): what a code of it is worth
        k_cache              [block_num, block_size, 1, Di] (int8), updated in place: index keys
        k_scale_cache        [block_num, block_size, 1, 1] (float16; portable: float32), updated in
                             place: what a code of them is worth
        weights              [t, Ni] (float16): weight of each index head

    Errors:
        INVALID_ARGUMENT: a tensor is missing, one Hadamard matrix without the other, an attribute
            is unknown or out of range
        INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed
        UNSUPPORTED: strict: what the device does not take
        INVALID_SLOT: k_cache_index is not below block_num * block_size
        INVALID_STRIDE, MISALIGNED, INVALID_DEVICE, ALIASED: memory that cannot be read, written or
            shared like this
        INVALID_VALUE: value checking (off by default) finds a number that is not finite, or a scale
            that makes no sense

    Source: the PyPTO example for DeepSeek-V3.2. More:
    docs/operators/lightning_indexer_prolog_quant.md
    """
    values = (
        x, q_norm, q_norm_scale, w_qb, w_qb_scale, wk, w_proj, ln_gamma_k, ln_beta_k, cos, sin, hadamard_q,
        hadamard_k, k_cache, k_scale_cache, k_cache_index, layernorm_epsilon_k, rope_layout, layout_query,
        layout_key, level, q_int8, q_scale, weights,
    )  # fmt: skip
    if more or other:
        form = calling_forms.FORMS["lightning_indexer_prolog_quant"]
        return form(_core.lightning_indexer_prolog_quant, values, "lightning_indexer_prolog_quant", more, other)
    return run("lightning_indexer_prolog_quant", values, "lightning_indexer_prolog_quant")


@operator
@documented_by(lightning_indexer_prolog_quant)
def lightning_indexer_prolog_quant_compute(
    x: Array,
    q_norm: Array,
    q_norm_scale: Array,
    w_qb: Weight,
    w_qb_scale: Array,
    wk: Weight,
    w_proj: Weight,
    ln_gamma_k: Array,
    ln_beta_k: Array,
    cos: Array,
    sin: Array,
    hadamard_q: Array | None,
    hadamard_k: Array | None,
    k_cache: Array,
    k_scale_cache: Array,
    k_cache_index: Array,
    *more: Any,
    layernorm_epsilon_k: float = 1e-06,
    rope_layout: str = "half",
    layout_query: str = "TND",
    layout_key: str = "PA_BSND",
    level: str = "portable",
    q_int8: Array | None = None,
    q_scale: Array | None = None,
    weights: Array | None = None,
    **other: Any,
) -> Result:
    """lightning_indexer_prolog_quant as the documents call it too."""
    values = (
        x, q_norm, q_norm_scale, w_qb, w_qb_scale, wk, w_proj, ln_gamma_k, ln_beta_k, cos, sin, hadamard_q,
        hadamard_k, k_cache, k_scale_cache, k_cache_index, layernorm_epsilon_k, rope_layout, layout_query,
        layout_key, level, q_int8, q_scale, weights,
    )  # fmt: skip
    if more or other:
        form = calling_forms.FORMS["lightning_indexer_prolog_quant"]
        return form(_core.lightning_indexer_prolog_quant, values, "lightning_indexer_prolog_quant_compute", more, other)
    return run("lightning_indexer_prolog_quant", values, "lightning_indexer_prolog_quant_compute")
