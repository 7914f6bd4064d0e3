# SPDX-License-Identifier: Apache-2.0
# Written by scripts/generate_python.py from include/dsakit/*.hpp: change those, then run it.
"""The readable twins of mla_prolog_v2."""

from __future__ import annotations

from ... import _core
from .. import mla_prolog_v2 as fast
from ...calling import (
    Array,
    Result,
    Weight,
    documented_by,
    operator,
)

__all__ = [
    "mla_prolog_v2",
    "npu_mla_prolog_v2",
]


@operator
@documented_by(fast.mla_prolog_v2)
def mla_prolog_v2(
    token_x: Array,
    weight_dq: Weight,
    weight_uq_qr: Weight,
    weight_uk: Weight,
    weight_dkv_kr: Weight,
    rmsnorm_gamma_cq: Array,
    rmsnorm_gamma_ckv: Array,
    rope_sin: Array,
    rope_cos: Array,
    cache_index: Array,
    kv_cache: Array,
    kr_cache: Array,
    *,
    dequant_scale_x: Array | None = None,
    dequant_scale_w_dq: Array | None = None,
    dequant_scale_w_uq_qr: Array | None = None,
    dequant_scale_w_dkv_kr: Array | None = None,
    quant_scale_ckv: Array | None = None,
    quant_scale_ckr: Array | None = None,
    smooth_scales_cq: Array | None = None,
    rmsnorm_epsilon_cq: float = 1e-05,
    rmsnorm_epsilon_ckv: float = 1e-05,
    cache_mode: str = "PA_BSND",
    level: str = "portable",
    query: Array | None = None,
    query_rope: Array | None = None,
    kv_cache_out: Array | None = None,
    kr_cache_out: Array | None = None,
    dequant_scale_q_nope: Array | None = None,
) -> tuple[Result, Result, Result, Result, Result]:
    """The readable twin of dsakit.mla_prolog_v2."""
    values = (
        token_x, weight_dq, weight_uq_qr, weight_uk, weight_dkv_kr, rmsnorm_gamma_cq, rmsnorm_gamma_ckv, rope_sin,
        rope_cos, cache_index, kv_cache, kr_cache, dequant_scale_x, dequant_scale_w_dq, dequant_scale_w_uq_qr,
        dequant_scale_w_dkv_kr, quant_scale_ckv, quant_scale_ckr, smooth_scales_cq, rmsnorm_epsilon_cq,
        rmsnorm_epsilon_ckv, cache_mode, level, query, query_rope, kv_cache_out, kr_cache_out, dequant_scale_q_nope,
    )  # fmt: skip
    return _core.mla_prolog_v2_reference(values, "mla_prolog_v2")


@operator
@documented_by(fast.npu_mla_prolog_v2)
def npu_mla_prolog_v2(
    token_x: Array,
    weight_dq: Weight,
    weight_uq_qr: Weight,
    weight_uk: Weight,
    weight_dkv_kr: Weight,
    rmsnorm_gamma_cq: Array,
    rmsnorm_gamma_ckv: Array,
    rope_sin: Array,
    rope_cos: Array,
    cache_index: Array,
    kv_cache: Array,
    kr_cache: Array,
    *,
    dequant_scale_x: Array | None = None,
    dequant_scale_w_dq: Array | None = None,
    dequant_scale_w_uq_qr: Array | None = None,
    dequant_scale_w_dkv_kr: Array | None = None,
    quant_scale_ckv: Array | None = None,
    quant_scale_ckr: Array | None = None,
    smooth_scales_cq: Array | None = None,
    rmsnorm_epsilon_cq: float = 1e-05,
    rmsnorm_epsilon_ckv: float = 1e-05,
    cache_mode: str = "PA_BSND",
    level: str = "portable",
    query: Array | None = None,
    query_rope: Array | None = None,
    kv_cache_out: Array | None = None,
    kr_cache_out: Array | None = None,
    dequant_scale_q_nope: Array | None = None,
) -> tuple[Result, Result, Result, Result, Result]:
    """The readable twin of dsakit.npu_mla_prolog_v2."""
    values = (
        token_x, weight_dq, weight_uq_qr, weight_uk, weight_dkv_kr, rmsnorm_gamma_cq, rmsnorm_gamma_ckv, rope_sin,
        rope_cos, cache_index, kv_cache, kr_cache, dequant_scale_x, dequant_scale_w_dq, dequant_scale_w_uq_qr,
        dequant_scale_w_dkv_kr, quant_scale_ckv, quant_scale_ckr, smooth_scales_cq, rmsnorm_epsilon_cq,
        rmsnorm_epsilon_ckv, cache_mode, level, query, query_rope, kv_cache_out, kr_cache_out, dequant_scale_q_nope,
    )  # fmt: skip
    return _core.mla_prolog_v2_reference(values, "npu_mla_prolog_v2")
