# SPDX-License-Identifier: Apache-2.0
# Written by scripts/generate_python.py from include/dsakit/*.hpp: change those, then run it.
"""The readable twins of mla_indexer_prolog_quant."""

from __future__ import annotations

from typing import Any

from ... import _core, calling_forms
from .. import mla_indexer_prolog_quant as fast
from ...calling import (
    Array,
    Result,
    Weight,
    documented_by,
    operator,
)

__all__ = [
    "mla_indexer_prolog_quant",
    "mla_indexer_prolog_quant_d",
    "mla_indexer_prolog_quant_p",
]


@operator
@documented_by(fast.mla_indexer_prolog_quant)
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
    """The readable twin of dsakit.mla_indexer_prolog_quant."""
    values = (
        token_x, w_dq, w_uq_qr, dequant_scale, w_uk, w_dkv_kr, gamma_cq, gamma_ckv, cos, sin, cache_index, kv_cache,
        kr_cache, k_scale_cache, w_qb, w_qb_scale, wk, w_proj, ln_gamma_k, ln_beta_k, hadamard_q, hadamard_k,
        ip_k_cache, ip_k_scale_cache, epsilon_cq, epsilon_ckv, layernorm_epsilon_k, rope_layout_indexer, cache_mode,
        level, query_nope, query_rope, q_int8, q_scale, weights,
    )  # fmt: skip
    if more or other:
        form = calling_forms.FORMS["mla_indexer_prolog_quant"]
        return form(_core.mla_indexer_prolog_quant_reference, values, "mla_indexer_prolog_quant", more, other)
    return _core.mla_indexer_prolog_quant_reference(values, "mla_indexer_prolog_quant")


@operator
@documented_by(fast.mla_indexer_prolog_quant_d)
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
    """The readable twin of dsakit.mla_indexer_prolog_quant_d."""
    values = (
        token_x, w_dq, w_uq_qr, dequant_scale, w_uk, w_dkv_kr, gamma_cq, gamma_ckv, cos, sin, cache_index, kv_cache,
        kr_cache, k_scale_cache, w_qb, w_qb_scale, wk, w_proj, ln_gamma_k, ln_beta_k, hadamard_q, hadamard_k,
        ip_k_cache, ip_k_scale_cache, epsilon_cq, epsilon_ckv, layernorm_epsilon_k, rope_layout_indexer, cache_mode,
        level, query_nope, query_rope, q_int8, q_scale, weights,
    )  # fmt: skip
    if more or other:
        form = calling_forms.FORMS["mla_indexer_prolog_quant"]
        return form(_core.mla_indexer_prolog_quant_reference, values, "mla_indexer_prolog_quant_d", more, other)
    return _core.mla_indexer_prolog_quant_reference(values, "mla_indexer_prolog_quant_d")


@operator
@documented_by(fast.mla_indexer_prolog_quant_p)
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
    """The readable twin of dsakit.mla_indexer_prolog_quant_p."""
    values = (
        token_x, w_dq, w_uq_qr, dequant_scale, w_uk, w_dkv_kr, gamma_cq, gamma_ckv, cos, sin, cache_index, kv_cache,
        kr_cache, k_scale_cache, w_qb, w_qb_scale, wk, w_proj, ln_gamma_k, ln_beta_k, hadamard_q, hadamard_k,
        ip_k_cache, ip_k_scale_cache, epsilon_cq, epsilon_ckv, layernorm_epsilon_k, rope_layout_indexer, cache_mode,
        level, query_nope, query_rope, q_int8, q_scale, weights,
    )  # fmt: skip
    if more or other:
        form = calling_forms.FORMS["mla_indexer_prolog_quant"]
        return form(_core.mla_indexer_prolog_quant_reference, values, "mla_indexer_prolog_quant_p", more, other)
    return _core.mla_indexer_prolog_quant_reference(values, "mla_indexer_prolog_quant_p")
