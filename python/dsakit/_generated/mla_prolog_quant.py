# SPDX-License-Identifier: Apache-2.0
# Written by scripts/generate_python.py from include/dsakit/*.hpp: change those, then run it.
"""Absorbed and rotated queries and the cache rows of new tokens."""

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
    "mla_prolog_quant",
    "mla_prolog_quant_compute",
    "mla_prolog_quant_d",
    "mla_prolog_quant_p",
]


@operator
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
    """Absorbed and rotated queries and the cache rows of new tokens. In the published form the seven
    output tensors follow the positional parameters, then epsilon_cq, epsilon_ckv, cache_mode,
    tile_config, rope_cfg; it returns None. By keyword: where q_norm_out, query_nope_out and
    query_rope_out are given.

        c = norm(x w_dq), q_norm = quant(c), q = q_norm w_uq_qr per head
        query_nope = q[:D] w_uk, query_rope = rope(q[D:])
        kv = x w_dkv_kr, kv_cache row = quant(norm(kv[:Hckv])) per group, kr_cache row =
            rope(kv[Hckv:])

    Parameters:
        token_x            [t, He] (bfloat16): hidden states
        w_dq               [He, Hcq] (bfloat16): down projection of the query
        w_uq_qr            [Hcq, N*(D+Dr)], per head D plain, then Dr rope columns (int8; not
                           quantised: bfloat16): up projection of the query
        dequant_scale      [N*(D+Dr), 1]; absent or empty: not quantised (float32), or None: what a
                           column of w_uq_qr is worth
        w_uk               [N, D, Hckv] (bfloat16): takes the query into the latent space
        w_dkv_kr           [He, Hckv+Dr], latent columns first (bfloat16): down projection of the
                           key
        gamma_cq           [Hcq] (bfloat16): weights of the norm of the query
        gamma_ckv          [Hckv] (bfloat16): weights of the norm of the latent
        cos                [t, Dr] (bfloat16): cosines, before the sines
        sin                [t, Dr] (bfloat16): sines
        cache_index        [t] (int64): slot of each token, negative: not stored
        kv_cache           [block_num, block_size, 1, Hckv] (int8; not quantised: bfloat16): latent
                           rows, updated in place unless kv_cache_out is given
        kr_cache           [block_num, block_size, 1, Dr] (bfloat16): rotated key rows, likewise
        k_scale_cache      [block_num, block_size, 1, G] (float32), optional: scales of the latent
                           rows, likewise; not used when not quantised
        epsilon_cq         float, default 1e-05 (> 0): added in the norm of the query
        epsilon_ckv        float, default 1e-05 (> 0): added in the norm of the latent
        cache_mode         str, default "PA_BSND" (PA_BSND): how the caches lie
        level              str, default "portable" (portable, strict): strict also refuses what
                           Atlas A2/A3 refuses
        tile_config        without effect: how to cut the work
        rope_cfg           without effect: how to cut the rotation

    Results, or by keyword the memory for them:
        q_norm_out         [t, Hcq] (int8; not quantised: bfloat16): normalised low-rank query
        q_norm_scale_out   [t, 1]; not quantised: [0] (float32): what a code of it is worth
        query_nope_out     [t, N, Hckv] (bfloat16): absorbed query
        query_rope_out     [t, N, Dr] (bfloat16): rotated query
        kv_cache_out       shape of kv_cache (dtype of kv_cache): absent: kv_cache itself; other
                           memory receives a full copy, then the new rows
        kr_cache_out       shape of kr_cache (bfloat16): likewise
        k_scale_cache_out  shape of k_scale_cache (float32): likewise

    Errors:
        INVALID_ARGUMENT: a tensor is missing, an epsilon is not finite and above 0, cache_mode is
            unknown
        INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed
        UNSUPPORTED: cache_mode PA_NZ; strict: what the device does not take
        INVALID_SLOT: cache_index is not below block_num * block_size
        INVALID_STRIDE, MISALIGNED, INVALID_DEVICE, ALIASED: memory that cannot be read, written or
            shared like this
        INVALID_VALUE: value checking (off by default) finds a number that is not finite, or a scale
            that makes no sense

    Source: the PyPTO example for DeepSeek-V3.2. More: docs/operators/mla_prolog.md
    """
    values = (
        token_x, w_dq, w_uq_qr, dequant_scale, w_uk, w_dkv_kr, gamma_cq, gamma_ckv, cos, sin, cache_index, kv_cache,
        kr_cache, k_scale_cache, q_norm_out, q_norm_scale_out, query_nope_out, query_rope_out, kv_cache_out,
        kr_cache_out, k_scale_cache_out, epsilon_cq, epsilon_ckv, cache_mode, level,
    )  # fmt: skip
    if more or other:
        form = calling_forms.FORMS["mla_prolog_quant"]
        return form(_core.mla_prolog_quant, values, "mla_prolog_quant", more, other)
    result = run("mla_prolog_quant", values, "mla_prolog_quant")
    return result if q_norm_out is None or query_nope_out is None or query_rope_out is None else None


@operator
@documented_by(mla_prolog_quant)
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
    """mla_prolog_quant as the documents call it too."""
    values = (
        token_x, w_dq, w_uq_qr, dequant_scale, w_uk, w_dkv_kr, gamma_cq, gamma_ckv, cos, sin, cache_index, kv_cache,
        kr_cache, k_scale_cache, q_norm_out, q_norm_scale_out, query_nope_out, query_rope_out, kv_cache_out,
        kr_cache_out, k_scale_cache_out, epsilon_cq, epsilon_ckv, cache_mode, level,
    )  # fmt: skip
    if more or other:
        form = calling_forms.FORMS["mla_prolog_quant"]
        return form(_core.mla_prolog_quant, values, "mla_prolog_quant_compute", more, other)
    result = run("mla_prolog_quant", values, "mla_prolog_quant_compute")
    return result if q_norm_out is None or query_nope_out is None or query_rope_out is None else None


@operator
@documented_by(mla_prolog_quant)
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
    """mla_prolog_quant as the documents call it too."""
    values = (
        token_x, w_dq, w_uq_qr, dequant_scale, w_uk, w_dkv_kr, gamma_cq, gamma_ckv, cos, sin, cache_index, kv_cache,
        kr_cache, k_scale_cache, q_norm_out, q_norm_scale_out, query_nope_out, query_rope_out, kv_cache_out,
        kr_cache_out, k_scale_cache_out, epsilon_cq, epsilon_ckv, cache_mode, level,
    )  # fmt: skip
    if more or other:
        form = calling_forms.FORMS["mla_prolog_quant"]
        return form(_core.mla_prolog_quant, values, "mla_prolog_quant_d", more, other)
    result = run("mla_prolog_quant", values, "mla_prolog_quant_d")
    return result if q_norm_out is None or query_nope_out is None or query_rope_out is None else None


@operator
@documented_by(mla_prolog_quant)
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
    """mla_prolog_quant in its quantised mode only."""
    calling_forms.quantised_mode_only("mla_prolog_quant_p", dequant_scale)
    values = (
        token_x, w_dq, w_uq_qr, dequant_scale, w_uk, w_dkv_kr, gamma_cq, gamma_ckv, cos, sin, cache_index, kv_cache,
        kr_cache, k_scale_cache, q_norm_out, q_norm_scale_out, query_nope_out, query_rope_out, kv_cache_out,
        kr_cache_out, k_scale_cache_out, epsilon_cq, epsilon_ckv, cache_mode, level,
    )  # fmt: skip
    if more or other:
        form = calling_forms.FORMS["mla_prolog_quant"]
        return form(_core.mla_prolog_quant, values, "mla_prolog_quant_p", more, other)
    result = run("mla_prolog_quant", values, "mla_prolog_quant_p")
    return result if q_norm_out is None or query_nope_out is None or query_rope_out is None else None
