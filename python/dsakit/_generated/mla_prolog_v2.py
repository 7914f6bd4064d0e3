# SPDX-License-Identifier: Apache-2.0
# Written by scripts/generate_python.py from include/dsakit/*.hpp: change those, then run it.
"""Absorbed and rotated queries and the cache rows of new tokens, the mode told by the dtypes."""

from __future__ import annotations

from ..calling import (
    Array,
    Result,
    Weight,
    operator,
    run,
)

__all__ = [
    "mla_prolog_v2",
    "npu_mla_prolog_v2",
]


@operator
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
    """Absorbed and rotated queries and the cache rows of new tokens, the mode told by the dtypes.

        c = norm(x weight_dq), query_norm = c or quant(c), q = query_norm weight_uq_qr per head
        query = q[:D] weight_uk, query_rope = rope(q[D:])
        kv = x weight_dkv_kr, kv_cache row = norm(kv[:Hckv]), kr_cache row = rope(kv[Hckv:]), as the
            mode stores them

    Parameters:
        token_x                 [T, He] or [B, S, He] (bfloat16, int8): hidden states
        weight_dq               [He, Hcq] (bfloat16, int8): down projection of the query
        weight_uq_qr            [Hcq, N*(D+Dr)], per head D plain, then Dr rope columns (bfloat16,
                                int8): up projection of the query
        weight_uk               [N, D, Hckv] (bfloat16): takes the query into the latent space
        weight_dkv_kr           [He, Hckv+Dr], latent columns first (bfloat16, int8): down
                                projection of the key
        rmsnorm_gamma_cq        [Hcq] (bfloat16): weights of the norm of the query
        rmsnorm_gamma_ckv       [Hckv] (bfloat16): weights of the norm of the latent
        rope_sin                [T, Dr] or [B, S, Dr] (bfloat16): sines, before the cosines
        rope_cos                [T, Dr] or [B, S, Dr] (bfloat16): cosines
        cache_index             [T] or [B, S] (int64): slot of each token, negative: not stored
        kv_cache                [block_num, block_size, 1, Hckv] (bfloat16, int8), updated in place:
                                latent rows
        kr_cache                [block_num, block_size, 1, Dr] (bfloat16, int8), updated in place:
                                rotated key rows
        dequant_scale_x         [T, 1] (float32), optional: what a code of an int8 token_x is worth
        dequant_scale_w_dq      [1, Hcq] (float32), optional: what a column of an int8 weight_dq is
                                worth
        dequant_scale_w_uq_qr   [1, N*(D+Dr)] (float32), optional: what a column of an int8
                                weight_uq_qr is worth
        dequant_scale_w_dkv_kr  [1, Hckv+Dr] (float32), optional: what a column of an int8
                                weight_dkv_kr is worth
        quant_scale_ckv         [1, Hckv] (float32), optional: factors of the latent before it is
                                stored as int8; all int8: its elements are equal
        quant_scale_ckr         [1, Dr] (float32), optional: factors of the rotated key before it is
                                stored as int8
        smooth_scales_cq        [1, Hcq] (float32), optional: factors of the normalised query before
                                it is quantised
        rmsnorm_epsilon_cq      float, default 1e-05 (> 0): added in the norm of the query
        rmsnorm_epsilon_ckv     float, default 1e-05 (> 0): added in the norm of the latent
        cache_mode              str, default "PA_BSND" (PA_BSND, PA_NZ): how the caches lie
        level                   str, default "portable" (portable, strict): strict also refuses what
                                Atlas A2/A3 refuses

    Results, or by keyword the memory for them:
        query                   [T, N, Hckv] or [B, S, N, Hckv] (bfloat16, int8): absorbed query
        query_rope              [T, N, Dr] or [B, S, N, Dr] (bfloat16): rotated query
        kv_cache_out            shape of kv_cache (dtype of kv_cache): kv_cache itself
        kr_cache_out            shape of kr_cache (dtype of kr_cache): kr_cache itself
        dequant_scale_q_nope    [T, N, 1] beside an int8 query, else [1], set to 0 (float32): what a
                                code of query is worth

    Errors:
        INVALID_ARGUMENT: a tensor is missing or does not belong to the mode, the dtypes are no
            mode, an attribute is out of range
        INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed or not of the mode
        UNSUPPORTED: strict: what Atlas A2/A3 does not take
        INVALID_SLOT: cache_index names no slot or page of the cache
        INVALID_STRIDE, MISALIGNED, INVALID_DEVICE, ALIASED: memory that cannot be read, written or
            shared like this
        INVALID_VALUE: value checking (off by default) finds a number that is not finite, or a scale
            that makes no sense

    Source: torch_npu.npu_mla_prolog_v2. More: docs/operators/mla_prolog.md
    """
    values = (
        token_x, weight_dq, weight_uq_qr, weight_uk, weight_dkv_kr, rmsnorm_gamma_cq, rmsnorm_gamma_ckv, rope_sin,
        rope_cos, cache_index, kv_cache, kr_cache, dequant_scale_x, dequant_scale_w_dq, dequant_scale_w_uq_qr,
        dequant_scale_w_dkv_kr, quant_scale_ckv, quant_scale_ckr, smooth_scales_cq, rmsnorm_epsilon_cq,
        rmsnorm_epsilon_ckv, cache_mode, level, query, query_rope, kv_cache_out, kr_cache_out, dequant_scale_q_nope,
    )  # fmt: skip
    return run("mla_prolog_v2", values, "mla_prolog_v2")


@operator
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
    """Absorbed and rotated queries and the cache rows of new tokens, the mode told by the dtypes.

        c = norm(x weight_dq), query_norm = c or quant(c), q = query_norm weight_uq_qr per head
        query = q[:D] weight_uk, query_rope = rope(q[D:])
        kv = x weight_dkv_kr, kv_cache row = norm(kv[:Hckv]), kr_cache row = rope(kv[Hckv:]), as the
            mode stores them

    Parameters:
        token_x                 [T, He] or [B, S, He] (bfloat16, int8): hidden states
        weight_dq               [He, Hcq] (bfloat16, int8): down projection of the query
        weight_uq_qr            [Hcq, N*(D+Dr)], per head D plain, then Dr rope columns (bfloat16,
                                int8): up projection of the query
        weight_uk               [N, D, Hckv] (bfloat16): takes the query into the latent space
        weight_dkv_kr           [He, Hckv+Dr], latent columns first (bfloat16, int8): down
                                projection of the key
        rmsnorm_gamma_cq        [Hcq] (bfloat16): weights of the norm of the query
        rmsnorm_gamma_ckv       [Hckv] (bfloat16): weights of the norm of the latent
        rope_sin                [T, Dr] or [B, S, Dr] (bfloat16): sines, before the cosines
        rope_cos                [T, Dr] or [B, S, Dr] (bfloat16): cosines
        cache_index             [T] or [B, S] (int64): slot of each token, negative: not stored
        kv_cache                [block_num, block_size, 1, Hckv] (bfloat16, int8), updated in place:
                                latent rows
        kr_cache                [block_num, block_size, 1, Dr] (bfloat16, int8), updated in place:
                                rotated key rows
        dequant_scale_x         [T, 1] (float32), optional: what a code of an int8 token_x is worth
        dequant_scale_w_dq      [1, Hcq] (float32), optional: what a column of an int8 weight_dq is
                                worth
        dequant_scale_w_uq_qr   [1, N*(D+Dr)] (float32), optional: what a column of an int8
                                weight_uq_qr is worth
        dequant_scale_w_dkv_kr  [1, Hckv+Dr] (float32), optional: what a column of an int8
                                weight_dkv_kr is worth
        quant_scale_ckv         [1, Hckv] (float32), optional: factors of the latent before it is
                                stored as int8; all int8: its elements are equal
        quant_scale_ckr         [1, Dr] (float32), optional: factors of the rotated key before it is
                                stored as int8
        smooth_scales_cq        [1, Hcq] (float32), optional: factors of the normalised query before
                                it is quantised
        rmsnorm_epsilon_cq      float, default 1e-05 (> 0): added in the norm of the query
        rmsnorm_epsilon_ckv     float, default 1e-05 (> 0): added in the norm of the latent
        cache_mode              str, default "PA_BSND" (PA_BSND, PA_NZ): how the caches lie
        level                   str, default "portable" (portable, strict): strict also refuses what
                                Atlas A2/A3 refuses

    Results, or by keyword the memory for them:
        query                   [T, N, Hckv] or [B, S, N, Hckv] (bfloat16, int8): absorbed query
        query_rope              [T, N, Dr] or [B, S, N, Dr] (bfloat16): rotated query
        kv_cache_out            shape of kv_cache (dtype of kv_cache): kv_cache itself
        kr_cache_out            shape of kr_cache (dtype of kr_cache): kr_cache itself
        dequant_scale_q_nope    [T, N, 1] beside an int8 query, else [1], set to 0 (float32): what a
                                code of query is worth

    Errors:
        INVALID_ARGUMENT: a tensor is missing or does not belong to the mode, the dtypes are no
            mode, an attribute is out of range
        INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed or not of the mode
        UNSUPPORTED: strict: what Atlas A2/A3 does not take
        INVALID_SLOT: cache_index names no slot or page of the cache
        INVALID_STRIDE, MISALIGNED, INVALID_DEVICE, ALIASED: memory that cannot be read, written or
            shared like this
        INVALID_VALUE: value checking (off by default) finds a number that is not finite, or a scale
            that makes no sense

    Source: torch_npu.npu_mla_prolog_v2. More: docs/operators/mla_prolog.md
    """
    values = (
        token_x, weight_dq, weight_uq_qr, weight_uk, weight_dkv_kr, rmsnorm_gamma_cq, rmsnorm_gamma_ckv, rope_sin,
        rope_cos, cache_index, kv_cache, kr_cache, dequant_scale_x, dequant_scale_w_dq, dequant_scale_w_uq_qr,
        dequant_scale_w_dkv_kr, quant_scale_ckv, quant_scale_ckr, smooth_scales_cq, rmsnorm_epsilon_cq,
        rmsnorm_epsilon_ckv, cache_mode, level, query, query_rope, kv_cache_out, kr_cache_out, dequant_scale_q_nope,
    )  # fmt: skip
    return run("mla_prolog_v2", values, "npu_mla_prolog_v2")
