# SPDX-License-Identifier: Apache-2.0
# Written by scripts/generate_python.py from include/dsakit/*.hpp: change those, then run it.
"""mla_prolog_quant in its quantised mode and lightning_indexer_prolog_quant on its q_norm, in one call and with the same bits."""

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
    "mla_indexer_prolog_quant",
    "mla_indexer_prolog_quant_d",
    "mla_indexer_prolog_quant_p",
]


@operator
def mla_indexer_prolog_quant(
    token_x: Array,
    w_dq: Weight,
    w_uq_qr: Weight,
    dequant_scale: Array,
    w_uk: Weight,
    w_dkv_kr: Weight,
    gamma_cq: Array,
    gamma_ckv: Array,
    cos: Array,
    sin: Array,
    cache_index: Array,
    kv_cache: Array,
    kr_cache: Array,
    k_scale_cache: Array,
    w_qb: Weight,
    w_qb_scale: Array,
    wk: Weight,
    w_proj: Weight,
    ln_gamma_k: Array,
    ln_beta_k: Array,
    hadamard_q: Array | None,
    hadamard_k: Array | None,
    ip_k_cache: Array,
    ip_k_scale_cache: Array,
    *more: Any,
    epsilon_cq: float = 1e-05,
    epsilon_ckv: float = 1e-05,
    layernorm_epsilon_k: float = 1e-06,
    rope_layout_indexer: str = "half",
    cache_mode: str = "PA_BSND",
    level: str = "portable",
    query_nope: Array | None = None,
    query_rope: Array | None = None,
    q_int8: Array | None = None,
    q_scale: Array | None = None,
    weights: Array | None = None,
    **other: Any,
) -> Result:
    """mla_prolog_quant in its quantised mode and lightning_indexer_prolog_quant on its q_norm, in one
    call and with the same bits. In the published form the ten output tensors (query_nope_out ..
    weights_out) follow the positional parameters, then epsilon_cq, epsilon_ckv, cache_mode,
    tile_config, attrs, configs, rope_cfg; it returns None.

        those of mla_prolog_quant and lightning_indexer_prolog_quant

    Parameters:
        token_x              [t, He] (bfloat16): hidden states
        w_dq                 [He, Hcq] (bfloat16): down projection of the query
        w_uq_qr              [Hcq, N*(D+Dr)], per head D plain, then Dr rope columns (int8): up
                             projection of the query
        dequant_scale        [N*(D+Dr), 1] (float32): what a column of w_uq_qr is worth
        w_uk                 [N, D, Hckv] (bfloat16): takes the query into the latent space
        w_dkv_kr             [He, Hckv+Dr], latent columns first (bfloat16): down projection of the
                             key
        gamma_cq             [Hcq] (bfloat16): weights of the norm of the query
        gamma_ckv            [Hckv] (bfloat16): weights of the norm of the latent
        cos                  [t, Dr] (bfloat16): cosines, before the sines
        sin                  [t, Dr] (bfloat16): sines
        cache_index          [t] (int64): slot of each token, negative: not stored
        kv_cache             [block_num, block_size, 1, Hckv] (int8), updated in place: latent rows
        kr_cache             [block_num, block_size, 1, Dr] (bfloat16), updated in place: rotated
                             key rows
        k_scale_cache        [block_num, block_size, 1, G] (float32), updated in place: scales of
                             the latent rows
        w_qb                 [Hcq, Ni*Di] (int8): projection of the index query
        w_qb_scale           [Ni*Di, 1] or [1, Ni*Di] (float32): what a column of w_qb is worth
        wk                   [He, Di] (bfloat16): projection of the index key
        w_proj               [He, Ni] (bfloat16): projection of the head weights
        ln_gamma_k           [Di] (bfloat16; portable: float32): weights of the layer norm of the
                             index key
        ln_beta_k            [Di] (bfloat16; portable: float32): offsets of the layer norm of the
                             index key
        hadamard_q           [Di, Di] (bfloat16), or None: rotates the index query; both absent:
                             identity (portable)
        hadamard_k           [Di, Di] (bfloat16), or None: rotates the index key
        ip_k_cache           [block_num, block_size, 1, Di] (int8), updated in place: index keys,
                             block_size that of kv_cache
        ip_k_scale_cache     [block_num, block_size, 1, 1] (float16; portable: float32), updated in
                             place: what a code of them is worth
        epsilon_cq           float, default 1e-05 (> 0): added in the norm of the query
        epsilon_ckv          float, default 1e-05 (> 0): added in the norm of the latent
        layernorm_epsilon_k  float, default 1e-06 (> 0): added in the layer norm of the index key
        rope_layout_indexer  str, default "half" (half, interleaved, interleaved_to_half; strict:
                             half): which elements of index rows turn together, and where they go
        cache_mode           str, default "PA_BSND" (PA_BSND): how the caches lie
        level                str, default "portable" (portable, strict): strict also refuses what
                             Atlas A2/A3 refuses

    Results, or by keyword the memory for them:
        query_nope           [t, N, Hckv] (bfloat16): absorbed query
        query_rope           [t, N, Dr] (bfloat16): rotated query
        kv_cache             [block_num, block_size, 1, Hckv] (int8), updated in place: latent rows
        kr_cache             [block_num, block_size, 1, Dr] (bfloat16), updated in place: rotated
                             key rows
        k_scale_cache        [block_num, block_size, 1, G] (float32), updated in place: scales of
                             the latent rows
        q_int8               [t, Ni, Di] (int8): index query
        q_scale              [t, Ni, 1] (float16): what a code of it is worth
        ip_k_cache           [block_num, block_size, 1, Di] (int8), updated in place: index keys,
                             block_size that of kv_cache
        ip_k_scale_cache     [block_num, block_size, 1, 1] (float16; portable: float32), updated in
                             place: what a code of them is worth
        weights              [t, Ni] (float16): weight of each index head

    Errors:
        INVALID_ARGUMENT: a tensor is missing or dequant_scale empty, one Hadamard matrix without
            the other, an attribute is unknown or out of range
        INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed, ip_k_cache has another block_size
            than kv_cache
        UNSUPPORTED: cache_mode PA_NZ; strict: what the device does not take
        INVALID_SLOT: cache_index is not below block_num * block_size
        INVALID_STRIDE, MISALIGNED, INVALID_DEVICE, ALIASED: memory that cannot be read, written or
            shared like this
        INVALID_VALUE: value checking (off by default) finds a number that is not finite, or a scale
            that makes no sense

    Source: the PyPTO example for DeepSeek-V3.2. More: docs/operators/mla_indexer_prolog_quant.md
    """
    values = (
        token_x, w_dq, w_uq_qr, dequant_scale, w_uk, w_dkv_kr, gamma_cq, gamma_ckv, cos, sin, cache_index, kv_cache,
        kr_cache, k_scale_cache, w_qb, w_qb_scale, wk, w_proj, ln_gamma_k, ln_beta_k, hadamard_q, hadamard_k,
        ip_k_cache, ip_k_scale_cache, epsilon_cq, epsilon_ckv, layernorm_epsilon_k, rope_layout_indexer, cache_mode,
        level, query_nope, query_rope, q_int8, q_scale, weights,
    )  # fmt: skip
    if more or other:
        form = calling_forms.FORMS["mla_indexer_prolog_quant"]
        return form(_core.mla_indexer_prolog_quant, values, "mla_indexer_prolog_quant", more, other)
    return run("mla_indexer_prolog_quant", values, "mla_indexer_prolog_quant")


@operator
@documented_by(mla_indexer_prolog_quant)
def mla_indexer_prolog_quant_d(
    token_x: Array,
    w_dq: Weight,
    w_uq_qr: Weight,
    dequant_scale: Array,
    w_uk: Weight,
    w_dkv_kr: Weight,
    gamma_cq: Array,
    gamma_ckv: Array,
    cos: Array,
    sin: Array,
    cache_index: Array,
    kv_cache: Array,
    kr_cache: Array,
    k_scale_cache: Array,
    w_qb: Weight,
    w_qb_scale: Array,
    wk: Weight,
    w_proj: Weight,
    ln_gamma_k: Array,
    ln_beta_k: Array,
    hadamard_q: Array | None,
    hadamard_k: Array | None,
    ip_k_cache: Array,
    ip_k_scale_cache: Array,
    *more: Any,
    epsilon_cq: float = 1e-05,
    epsilon_ckv: float = 1e-05,
    layernorm_epsilon_k: float = 1e-06,
    rope_layout_indexer: str = "half",
    cache_mode: str = "PA_BSND",
    level: str = "portable",
    query_nope: Array | None = None,
    query_rope: Array | None = None,
    q_int8: Array | None = None,
    q_scale: Array | None = None,
    weights: Array | None = None,
    **other: Any,
) -> Result:
    """mla_indexer_prolog_quant as the documents call it too."""
    values = (
        token_x, w_dq, w_uq_qr, dequant_scale, w_uk, w_dkv_kr, gamma_cq, gamma_ckv, cos, sin, cache_index, kv_cache,
        kr_cache, k_scale_cache, w_qb, w_qb_scale, wk, w_proj, ln_gamma_k, ln_beta_k, hadamard_q, hadamard_k,
        ip_k_cache, ip_k_scale_cache, epsilon_cq, epsilon_ckv, layernorm_epsilon_k, rope_layout_indexer, cache_mode,
        level, query_nope, query_rope, q_int8, q_scale, weights,
    )  # fmt: skip
    if more or other:
        form = calling_forms.FORMS["mla_indexer_prolog_quant"]
        return form(_core.mla_indexer_prolog_quant, values, "mla_indexer_prolog_quant_d", more, other)
    return run("mla_indexer_prolog_quant", values, "mla_indexer_prolog_quant_d")


@operator
@documented_by(mla_indexer_prolog_quant)
def mla_indexer_prolog_quant_p(
    token_x: Array,
    w_dq: Weight,
    w_uq_qr: Weight,
    dequant_scale: Array,
    w_uk: Weight,
    w_dkv_kr: Weight,
    gamma_cq: Array,
    gamma_ckv: Array,
    cos: Array,
    sin: Array,
    cache_index: Array,
    kv_cache: Array,
    kr_cache: Array,
    k_scale_cache: Array,
    w_qb: Weight,
    w_qb_scale: Array,
    wk: Weight,
    w_proj: Weight,
    ln_gamma_k: Array,
    ln_beta_k: Array,
    hadamard_q: Array | None,
    hadamard_k: Array | None,
    ip_k_cache: Array,
    ip_k_scale_cache: Array,
    *more: Any,
    epsilon_cq: float = 1e-05,
    epsilon_ckv: float = 1e-05,
    layernorm_epsilon_k: float = 1e-06,
    rope_layout_indexer: str = "half",
    cache_mode: str = "PA_BSND",
    level: str = "portable",
    query_nope: Array | None = None,
    query_rope: Array | None = None,
    q_int8: Array | None = None,
    q_scale: Array | None = None,
    weights: Array | None = None,
    **other: Any,
) -> Result:
    """mla_indexer_prolog_quant as the documents call it too."""
    values = (
        token_x, w_dq, w_uq_qr, dequant_scale, w_uk, w_dkv_kr, gamma_cq, gamma_ckv, cos, sin, cache_index, kv_cache,
        kr_cache, k_scale_cache, w_qb, w_qb_scale, wk, w_proj, ln_gamma_k, ln_beta_k, hadamard_q, hadamard_k,
        ip_k_cache, ip_k_scale_cache, epsilon_cq, epsilon_ckv, layernorm_epsilon_k, rope_layout_indexer, cache_mode,
        level, query_nope, query_rope, q_int8, q_scale, weights,
    )  # fmt: skip
    if more or other:
        form = calling_forms.FORMS["mla_indexer_prolog_quant"]
        return form(_core.mla_indexer_prolog_quant, values, "mla_indexer_prolog_quant_p", more, other)
    return run("mla_indexer_prolog_quant", values, "mla_indexer_prolog_quant_p")
