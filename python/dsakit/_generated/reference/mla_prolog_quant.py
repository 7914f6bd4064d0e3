# SPDX-License-Identifier: Apache-2.0
# Written by scripts/generate_python.py from include/dsakit/*.hpp: change those, then run it.
"""The readable twins of mla_prolog_quant."""

from __future__ import annotations

from typing import Any

from ... import _core, calling_forms
from .. import mla_prolog_quant as fast
from ...calling import (
    Array,
    Result,
    Weight,
    documented_by,
    operator,
)

__all__ = [
    "mla_prolog_quant",
    "mla_prolog_quant_compute",
    "mla_prolog_quant_d",
    "mla_prolog_quant_p",
]


@operator
@documented_by(fast.mla_prolog_quant)
def mla_prolog_quant(
    token_x: Array,
    w_dq: Weight,
    w_uq_qr: Weight,
    dequant_scale: Array | None,
    w_uk: Weight,
    w_dkv_kr: Weight,
    gamma_cq: Array,
    gamma_ckv: Array,
    cos: Array,
    sin: Array,
    cache_index: Array,
    kv_cache: Array,
    kr_cache: Array,
    k_scale_cache: Array | None = None,
    *more: Any,
    q_norm_out: Array | None = None,
    q_norm_scale_out: Array | None = None,
    query_nope_out: Array | None = None,
    query_rope_out: Array | None = None,
    kv_cache_out: Array | None = None,
    kr_cache_out: Array | None = None,
    k_scale_cache_out: Array | None = None,
    epsilon_cq: float = 1e-05,
    epsilon_ckv: float = 1e-05,
    cache_mode: str = "PA_BSND",
    level: str = "portable",
    tile_config: Any = None,
    rope_cfg: Any = None,
    **other: Any,
) -> Result:
    """The readable twin of dsakit.mla_prolog_quant."""
    values = (
        token_x, w_dq, w_uq_qr, dequant_scale, w_uk, w_dkv_kr, gamma_cq, gamma_ckv, cos, sin, cache_index, kv_cache,
        kr_cache, k_scale_cache, q_norm_out, q_norm_scale_out, query_nope_out, query_rope_out, kv_cache_out,
        kr_cache_out, k_scale_cache_out, epsilon_cq, epsilon_ckv, cache_mode, level,
    )  # fmt: skip
    if more or other:
        form = calling_forms.FORMS["mla_prolog_quant"]
        return form(_core.mla_prolog_quant_reference, values, "mla_prolog_quant", more, other)
    result = _core.mla_prolog_quant_reference(values, "mla_prolog_quant")
    return result if q_norm_out is None or query_nope_out is None or query_rope_out is None else None


@operator
@documented_by(fast.mla_prolog_quant_compute)
def mla_prolog_quant_compute(
    token_x: Array,
    w_dq: Weight,
    w_uq_qr: Weight,
    dequant_scale: Array | None,
    w_uk: Weight,
    w_dkv_kr: Weight,
    gamma_cq: Array,
    gamma_ckv: Array,
    cos: Array,
    sin: Array,
    cache_index: Array,
    kv_cache: Array,
    kr_cache: Array,
    k_scale_cache: Array | None = None,
    *more: Any,
    q_norm_out: Array | None = None,
    q_norm_scale_out: Array | None = None,
    query_nope_out: Array | None = None,
    query_rope_out: Array | None = None,
    kv_cache_out: Array | None = None,
    kr_cache_out: Array | None = None,
    k_scale_cache_out: Array | None = None,
    epsilon_cq: float = 1e-05,
    epsilon_ckv: float = 1e-05,
    cache_mode: str = "PA_BSND",
    level: str = "portable",
    tile_config: Any = None,
    rope_cfg: Any = None,
    **other: Any,
) -> Result:
    """The readable twin of dsakit.mla_prolog_quant_compute."""
    values = (
        token_x, w_dq, w_uq_qr, dequant_scale, w_uk, w_dkv_kr, gamma_cq, gamma_ckv, cos, sin, cache_index, kv_cache,
        kr_cache, k_scale_cache, q_norm_out, q_norm_scale_out, query_nope_out, query_rope_out, kv_cache_out,
        kr_cache_out, k_scale_cache_out, epsilon_cq, epsilon_ckv, cache_mode, level,
    )  # fmt: skip
    if more or other:
        form = calling_forms.FORMS["mla_prolog_quant"]
        return form(_core.mla_prolog_quant_reference, values, "mla_prolog_quant_compute", more, other)
    result = _core.mla_prolog_quant_reference(values, "mla_prolog_quant_compute")
    return result if q_norm_out is None or query_nope_out is None or query_rope_out is None else None


@operator
@documented_by(fast.mla_prolog_quant_d)
def mla_prolog_quant_d(
    token_x: Array,
    w_dq: Weight,
    w_uq_qr: Weight,
    dequant_scale: Array | None,
    w_uk: Weight,
    w_dkv_kr: Weight,
    gamma_cq: Array,
    gamma_ckv: Array,
    cos: Array,
    sin: Array,
    cache_index: Array,
    kv_cache: Array,
    kr_cache: Array,
    k_scale_cache: Array | None = None,
    *more: Any,
    q_norm_out: Array | None = None,
    q_norm_scale_out: Array | None = None,
    query_nope_out: Array | None = None,
    query_rope_out: Array | None = None,
    kv_cache_out: Array | None = None,
    kr_cache_out: Array | None = None,
    k_scale_cache_out: Array | None = None,
    epsilon_cq: float = 1e-05,
    epsilon_ckv: float = 1e-05,
    cache_mode: str = "PA_BSND",
    level: str = "portable",
    tile_config: Any = None,
    rope_cfg: Any = None,
    **other: Any,
) -> Result:
    """The readable twin of dsakit.mla_prolog_quant_d."""
    values = (
        token_x, w_dq, w_uq_qr, dequant_scale, w_uk, w_dkv_kr, gamma_cq, gamma_ckv, cos, sin, cache_index, kv_cache,
        kr_cache, k_scale_cache, q_norm_out, q_norm_scale_out, query_nope_out, query_rope_out, kv_cache_out,
        kr_cache_out, k_scale_cache_out, epsilon_cq, epsilon_ckv, cache_mode, level,
    )  # fmt: skip
    if more or other:
        form = calling_forms.FORMS["mla_prolog_quant"]
        return form(_core.mla_prolog_quant_reference, values, "mla_prolog_quant_d", more, other)
    result = _core.mla_prolog_quant_reference(values, "mla_prolog_quant_d")
    return result if q_norm_out is None or query_nope_out is None or query_rope_out is None else None


@operator
@documented_by(fast.mla_prolog_quant_p)
def mla_prolog_quant_p(
    token_x: Array,
    w_dq: Weight,
    w_uq_qr: Weight,
    dequant_scale: Array | None,
    w_uk: Weight,
    w_dkv_kr: Weight,
    gamma_cq: Array,
    gamma_ckv: Array,
    cos: Array,
    sin: Array,
    cache_index: Array,
    kv_cache: Array,
    kr_cache: Array,
    k_scale_cache: Array | None = None,
    *more: Any,
    q_norm_out: Array | None = None,
    q_norm_scale_out: Array | None = None,
    query_nope_out: Array | None = None,
    query_rope_out: Array | None = None,
    kv_cache_out: Array | None = None,
    kr_cache_out: Array | None = None,
    k_scale_cache_out: Array | None = None,
    epsilon_cq: float = 1e-05,
    epsilon_ckv: float = 1e-05,
    cache_mode: str = "PA_BSND",
    level: str = "portable",
    tile_config: Any = None,
    rope_cfg: Any = None,
    **other: Any,
) -> Result:
    """The readable twin of dsakit.mla_prolog_quant_p."""
    calling_forms.quantised_mode_only("mla_prolog_quant_p", dequant_scale)
    values = (
        token_x, w_dq, w_uq_qr, dequant_scale, w_uk, w_dkv_kr, gamma_cq, gamma_ckv, cos, sin, cache_index, kv_cache,
        kr_cache, k_scale_cache, q_norm_out, q_norm_scale_out, query_nope_out, query_rope_out, kv_cache_out,
        kr_cache_out, k_scale_cache_out, epsilon_cq, epsilon_ckv, cache_mode, level,
    )  # fmt: skip
    if more or other:
        form = calling_forms.FORMS["mla_prolog_quant"]
        return form(_core.mla_prolog_quant_reference, values, "mla_prolog_quant_p", more, other)
    result = _core.mla_prolog_quant_reference(values, "mla_prolog_quant_p")
    return result if q_norm_out is None or query_nope_out is None or query_rope_out is None else None
