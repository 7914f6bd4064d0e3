# SPDX-License-Identifier: Apache-2.0
# Written by scripts/generate_python.py from include/dsakit/*.hpp: change those, then run it.
"""The readable twins of mla_prolog_v3."""

from __future__ import annotations

from ... import _core
from .. import mla_prolog_v3 as fast
from ...calling import (
    ABSENT,
    Array,
    Lengths,
    Result,
    Weight,
    documented_by,
    only_none,
    operator,
    tolerate,
)

__all__ = [
    "mla_prolog_v3",
    "npu_mla_prolog_v3",
]


@operator
@documented_by(fast.mla_prolog_v3)
def mla_prolog_v3(
    token_x: Array,
    weight_dq: Weight,
    weight_uq_qr: Weight,
    weight_uk: Weight,
    weight_dkv_kr: Weight,
    rmsnorm_gamma_cq: Array,
    rmsnorm_gamma_ckv: Array,
    rope_sin: Array,
    rope_cos: Array,
    kv_cache: Array,
    kr_cache: Array | None,
    *,
    cache_index: Array | None = None,
    dequant_scale_x: Array | None = None,
    dequant_scale_w_dq: Array | None = None,
    dequant_scale_w_uq_qr: Array | None = None,
    dequant_scale_w_dkv_kr: Array | None = None,
    quant_scale_ckv: Array | None = None,
    quant_scale_ckr: Array | None = None,
    smooth_scales_cq: Array | None = None,
    actual_seq_len: Lengths | None = None,
    k_nope_clip_alpha: Array | None = None,
    rmsnorm_epsilon_cq: float = 1e-05,
    rmsnorm_epsilon_ckv: float = 1e-05,
    cache_mode: str = "PA_BSND",
    query_norm_flag: bool = False,
    weight_quant_mode: int = 0,
    kv_cache_quant_mode: int = 0,
    query_quant_mode: int = 0,
    ckvkr_repo_mode: int = 0,
    quant_scale_repo_mode: int = 0,
    tile_size: int = 128,
    qc_qr_scale: float = 1.0,
    kc_scale: float = 1.0,
    level: str = "portable",
    query: Array | None = None,
    query_rope: Array | None = None,
    dequant_scale_q_nope: Array | None = None,
    query_norm: Array | None = None,
    dequant_scale_q_norm: Array | None = None,
    token_x_dtype: None = None,
    weight_dq_dtype: None = None,
    weight_uq_qr_dtype: None = None,
    weight_dkv_kr_dtype: None = None,
    kv_cache_dtype: None = None,
    k_pe_clip_alpha: None = ABSENT,
) -> tuple[Result, Result, Result, Result, Result]:
    """The readable twin of dsakit.mla_prolog_v3."""
    if not (
        token_x_dtype is weight_dq_dtype is weight_uq_qr_dtype is weight_dkv_kr_dtype is kv_cache_dtype is None
    ):  # fmt: skip
        only_none("mla_prolog_v3",
            token_x_dtype=token_x_dtype, weight_dq_dtype=weight_dq_dtype, weight_uq_qr_dtype=weight_uq_qr_dtype,
            weight_dkv_kr_dtype=weight_dkv_kr_dtype, kv_cache_dtype=kv_cache_dtype)
    if k_pe_clip_alpha is not ABSENT:
        tolerate("mla_prolog_v3", level, k_pe_clip_alpha=k_pe_clip_alpha)
    values = (
        token_x, weight_dq, weight_uq_qr, weight_uk, weight_dkv_kr, rmsnorm_gamma_cq, rmsnorm_gamma_ckv, rope_sin,
        rope_cos, kv_cache, kr_cache, cache_index, dequant_scale_x, dequant_scale_w_dq, dequant_scale_w_uq_qr,
        dequant_scale_w_dkv_kr, quant_scale_ckv, quant_scale_ckr, smooth_scales_cq, actual_seq_len,
        k_nope_clip_alpha, rmsnorm_epsilon_cq, rmsnorm_epsilon_ckv, cache_mode, query_norm_flag, weight_quant_mode,
        kv_cache_quant_mode, query_quant_mode, ckvkr_repo_mode, quant_scale_repo_mode, tile_size, qc_qr_scale,
        kc_scale, level, query, query_rope, dequant_scale_q_nope, query_norm, dequant_scale_q_norm,
    )  # fmt: skip
    return _core.mla_prolog_v3_reference(values, "mla_prolog_v3")


@operator
@documented_by(fast.npu_mla_prolog_v3)
def npu_mla_prolog_v3(
    token_x: Array,
    weight_dq: Weight,
    weight_uq_qr: Weight,
    weight_uk: Weight,
    weight_dkv_kr: Weight,
    rmsnorm_gamma_cq: Array,
    rmsnorm_gamma_ckv: Array,
    rope_sin: Array,
    rope_cos: Array,
    kv_cache: Array,
    kr_cache: Array | None,
    *,
    cache_index: Array | None = None,
    dequant_scale_x: Array | None = None,
    dequant_scale_w_dq: Array | None = None,
    dequant_scale_w_uq_qr: Array | None = None,
    dequant_scale_w_dkv_kr: Array | None = None,
    quant_scale_ckv: Array | None = None,
    quant_scale_ckr: Array | None = None,
    smooth_scales_cq: Array | None = None,
    actual_seq_len: Lengths | None = None,
    k_nope_clip_alpha: Array | None = None,
    rmsnorm_epsilon_cq: float = 1e-05,
    rmsnorm_epsilon_ckv: float = 1e-05,
    cache_mode: str = "PA_BSND",
    query_norm_flag: bool = False,
    weight_quant_mode: int = 0,
    kv_cache_quant_mode: int = 0,
    query_quant_mode: int = 0,
    ckvkr_repo_mode: int = 0,
    quant_scale_repo_mode: int = 0,
    tile_size: int = 128,
    qc_qr_scale: float = 1.0,
    kc_scale: float = 1.0,
    level: str = "portable",
    query: Array | None = None,
    query_rope: Array | None = None,
    dequant_scale_q_nope: Array | None = None,
    query_norm: Array | None = None,
    dequant_scale_q_norm: Array | None = None,
    token_x_dtype: None = None,
    weight_dq_dtype: None = None,
    weight_uq_qr_dtype: None = None,
    weight_dkv_kr_dtype: None = None,
    kv_cache_dtype: None = None,
    k_pe_clip_alpha: None = ABSENT,
) -> tuple[Result, Result, Result, Result, Result]:
    """The readable twin of dsakit.npu_mla_prolog_v3."""
    if not (
        token_x_dtype is weight_dq_dtype is weight_uq_qr_dtype is weight_dkv_kr_dtype is kv_cache_dtype is None
    ):  # fmt: skip
        only_none("npu_mla_prolog_v3",
            token_x_dtype=token_x_dtype, weight_dq_dtype=weight_dq_dtype, weight_uq_qr_dtype=weight_uq_qr_dtype,
            weight_dkv_kr_dtype=weight_dkv_kr_dtype, kv_cache_dtype=kv_cache_dtype)
    if k_pe_clip_alpha is not ABSENT:
        tolerate("npu_mla_prolog_v3", level, k_pe_clip_alpha=k_pe_clip_alpha)
    values = (
        token_x, weight_dq, weight_uq_qr, weight_uk, weight_dkv_kr, rmsnorm_gamma_cq, rmsnorm_gamma_ckv, rope_sin,
        rope_cos, kv_cache, kr_cache, cache_index, dequant_scale_x, dequant_scale_w_dq, dequant_scale_w_uq_qr,
        dequant_scale_w_dkv_kr, quant_scale_ckv, quant_scale_ckr, smooth_scales_cq, actual_seq_len,
        k_nope_clip_alpha, rmsnorm_epsilon_cq, rmsnorm_epsilon_ckv, cache_mode, query_norm_flag, weight_quant_mode,
        kv_cache_quant_mode, query_quant_mode, ckvkr_repo_mode, quant_scale_repo_mode, tile_size, qc_qr_scale,
        kc_scale, level, query, query_rope, dequant_scale_q_nope, query_norm, dequant_scale_q_norm,
    )  # fmt: skip
    return _core.mla_prolog_v3_reference(values, "npu_mla_prolog_v3")
