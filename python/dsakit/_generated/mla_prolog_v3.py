# SPDX-License-Identifier: Apache-2.0
# Written by scripts/generate_python.py from include/dsakit/*.hpp: change those, then run it.
"""Absorbed and rotated queries and the cache rows of new tokens, the caches updated in place."""

from __future__ import annotations

from ..calling import (
    ABSENT,
    Array,
    Lengths,
    Result,
    Weight,
    only_none,
    operator,
    run,
    tolerate,
)

__all__ = [
    "mla_prolog_v3",
    "npu_mla_prolog_v3",
]


@operator
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
    """Absorbed and rotated queries and the cache rows of new tokens, the caches updated in place.

        c = norm(x weight_dq) * qc_qr_scale, query_norm = c or quant(c), q = query_norm weight_uq_qr
            per head
        query = q[:D] weight_uk, query_rope = rope(q[D:])
        kv = x weight_dkv_kr, kv_cache row = norm(kv[:Hckv]) * kc_scale, kr_cache row =
            rope(kv[Hckv:]), as the mode stores them

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
        kv_cache                [block_num, block_size, 1, Hckv]; TND: [T, 1, .]; BSND: [B, S, 1, .]
                                (bfloat16, int8), updated in place: latent rows, or packed rows
        kr_cache                kv_cache with Dr as last axis; packed rows: no elements (bfloat16,
                                int8), or None, updated in place: rotated key rows
        cache_index             [T] or [B, S]; PA_BLK_*: [P] or [B, ceil(S/block_size)] (int64),
                                optional: slot of each token, PA_BLK_*: page of each block;
                                negative: not stored
        dequant_scale_x         [T, 1] (float32), optional: what a code of an int8 token_x is worth
        dequant_scale_w_dq      [1, Hcq] (float32), optional: what a column of an int8 weight_dq is
                                worth
        dequant_scale_w_uq_qr   [1, N*(D+Dr)] (float32), optional: what a column of an int8
                                weight_uq_qr is worth
        dequant_scale_w_dkv_kr  [1, Hckv+Dr] (float32), optional: what a column of an int8
                                weight_dkv_kr is worth
        quant_scale_ckv         [1, Hckv] or [1] (float32), optional: factors of the latent before
                                it is stored as int8
        quant_scale_ckr         [1, Dr] (float32), optional: factors of the rotated key before it is
                                stored as int8
        smooth_scales_cq        [1, Hcq] (float32), optional: factors of the normalised query before
                                it is quantised
        actual_seq_len          [B] (int32), optional: running totals of the sequences, PA_BLK_*
                                with token_x [T, He] only
        k_nope_clip_alpha       [1] (float32), optional: packed rows: the largest value of a tile is
                                limited to this part of itself
        rmsnorm_epsilon_cq      float, default 1e-05 (> 0): added in the norm of the query
        rmsnorm_epsilon_ckv     float, default 1e-05 (> 0): added in the norm of the latent
        cache_mode              str, default "PA_BSND" (PA_BSND, PA_NZ, PA_BLK_BSND, PA_BLK_NZ,
                                BSND, TND): how the caches lie
        query_norm_flag         bool, default False: return query_norm and its scale too
        weight_quant_mode       int, default 0 (0, 1, 2; 3..5 are reserved): 0: bfloat16; 1:
                                weight_uq_qr int8; 2: token_x and its weights int8 too
        kv_cache_quant_mode     int, default 0 (0..3): 0: bfloat16 rows; 1: int8 by one scale; 2:
                                int8 by scales of columns; 3: packed, by tiles
        query_quant_mode        int, default 0 (0, 1): 1: query is int8, a scale per token and head
        ckvkr_repo_mode         int, default 0 (0, 1): 1: latent and rope in one row
        quant_scale_repo_mode   int, default 0 (0, 1): 1: the scales in the same row
        tile_size               int, default 128 (a divisor of Hckv): codes that share a scale
        qc_qr_scale             float, default 1.0 (finite): factor of the normalised query
        kc_scale                float, default 1.0 (finite): factor of the normalised latent
        level                   str, default "portable" (portable, strict): strict also refuses what
                                Atlas A2/A3 refuses
        k_pe_clip_alpha         None: passed by engines, of no effect

    Reserved, only None: token_x_dtype, weight_dq_dtype, weight_uq_qr_dtype, weight_dkv_kr_dtype,
        kv_cache_dtype

    Results, or by keyword the memory for them:
        query                   [T, N, Hckv] or [B, S, N, Hckv] (bfloat16, int8): absorbed query
        query_rope              [T, N, Dr] or [B, S, N, Dr] (bfloat16): rotated query
        dequant_scale_q_nope    [T, N, 1] beside an int8 query, else [0] (float32): what a code of
                                query is worth
        query_norm              [T, Hcq] or [B, S, Hcq]; without query_norm_flag [0] (bfloat16,
                                int8): normalised low-rank query
        dequant_scale_q_norm    [T, 1] beside an int8 query_norm, else [0] (float32): what a code of
                                query_norm is worth

    Errors:
        INVALID_ARGUMENT: a tensor is missing or does not belong to the mode, the modes do not go
            together, an attribute is out of range
        INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed or not of the mode
        UNSUPPORTED: reserved modes; strict: what Atlas A2/A3 does not take
        INVALID_SEQLEN: running totals that decrease or end elsewhere than at T
        INVALID_SLOT: cache_index names no slot or page of the cache
        INVALID_STRIDE, MISALIGNED, INVALID_DEVICE, ALIASED: memory that cannot be read, written or
            shared like this
        INVALID_VALUE: value checking (off by default) finds a number that is not finite, or a scale
            that makes no sense

    Source: torch_npu.npu_mla_prolog_v3. More: docs/operators/mla_prolog.md
    """
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
    return run("mla_prolog_v3", values, "mla_prolog_v3")


@operator
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
    """Absorbed and rotated queries and the cache rows of new tokens, the caches updated in place.

        c = norm(x weight_dq) * qc_qr_scale, query_norm = c or quant(c), q = query_norm weight_uq_qr
            per head
        query = q[:D] weight_uk, query_rope = rope(q[D:])
        kv = x weight_dkv_kr, kv_cache row = norm(kv[:Hckv]) * kc_scale, kr_cache row =
            rope(kv[Hckv:]), as the mode stores them

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
        kv_cache                [block_num, block_size, 1, Hckv]; TND: [T, 1, .]; BSND: [B, S, 1, .]
                                (bfloat16, int8), updated in place: latent rows, or packed rows
        kr_cache                kv_cache with Dr as last axis; packed rows: no elements (bfloat16,
                                int8), or None, updated in place: rotated key rows
        cache_index             [T] or [B, S]; PA_BLK_*: [P] or [B, ceil(S/block_size)] (int64),
                                optional: slot of each token, PA_BLK_*: page of each block;
                                negative: not stored
        dequant_scale_x         [T, 1] (float32), optional: what a code of an int8 token_x is worth
        dequant_scale_w_dq      [1, Hcq] (float32), optional: what a column of an int8 weight_dq is
                                worth
        dequant_scale_w_uq_qr   [1, N*(D+Dr)] (float32), optional: what a column of an int8
                                weight_uq_qr is worth
        dequant_scale_w_dkv_kr  [1, Hckv+Dr] (float32), optional: what a column of an int8
                                weight_dkv_kr is worth
        quant_scale_ckv         [1, Hckv] or [1] (float32), optional: factors of the latent before
                                it is stored as int8
        quant_scale_ckr         [1, Dr] (float32), optional: factors of the rotated key before it is
                                stored as int8
        smooth_scales_cq        [1, Hcq] (float32), optional: factors of the normalised query before
                                it is quantised
        actual_seq_len          [B] (int32), optional: running totals of the sequences, PA_BLK_*
                                with token_x [T, He] only
        k_nope_clip_alpha       [1] (float32), optional: packed rows: the largest value of a tile is
                                limited to this part of itself
        rmsnorm_epsilon_cq      float, default 1e-05 (> 0): added in the norm of the query
        rmsnorm_epsilon_ckv     float, default 1e-05 (> 0): added in the norm of the latent
        cache_mode              str, default "PA_BSND" (PA_BSND, PA_NZ, PA_BLK_BSND, PA_BLK_NZ,
                                BSND, TND): how the caches lie
        query_norm_flag         bool, default False: return query_norm and its scale too
        weight_quant_mode       int, default 0 (0, 1, 2; 3..5 are reserved): 0: bfloat16; 1:
                                weight_uq_qr int8; 2: token_x and its weights int8 too
        kv_cache_quant_mode     int, default 0 (0..3): 0: bfloat16 rows; 1: int8 by one scale; 2:
                                int8 by scales of columns; 3: packed, by tiles
        query_quant_mode        int, default 0 (0, 1): 1: query is int8, a scale per token and head
        ckvkr_repo_mode         int, default 0 (0, 1): 1: latent and rope in one row
        quant_scale_repo_mode   int, default 0 (0, 1): 1: the scales in the same row
        tile_size               int, default 128 (a divisor of Hckv): codes that share a scale
        qc_qr_scale             float, default 1.0 (finite): factor of the normalised query
        kc_scale                float, default 1.0 (finite): factor of the normalised latent
        level                   str, default "portable" (portable, strict): strict also refuses what
                                Atlas A2/A3 refuses
        k_pe_clip_alpha         None: passed by engines, of no effect

    Reserved, only None: token_x_dtype, weight_dq_dtype, weight_uq_qr_dtype, weight_dkv_kr_dtype,
        kv_cache_dtype

    Results, or by keyword the memory for them:
        query                   [T, N, Hckv] or [B, S, N, Hckv] (bfloat16, int8): absorbed query
        query_rope              [T, N, Dr] or [B, S, N, Dr] (bfloat16): rotated query
        dequant_scale_q_nope    [T, N, 1] beside an int8 query, else [0] (float32): what a code of
                                query is worth
        query_norm              [T, Hcq] or [B, S, Hcq]; without query_norm_flag [0] (bfloat16,
                                int8): normalised low-rank query
        dequant_scale_q_norm    [T, 1] beside an int8 query_norm, else [0] (float32): what a code of
                                query_norm is worth

    Errors:
        INVALID_ARGUMENT: a tensor is missing or does not belong to the mode, the modes do not go
            together, an attribute is out of range
        INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed or not of the mode
        UNSUPPORTED: reserved modes; strict: what Atlas A2/A3 does not take
        INVALID_SEQLEN: running totals that decrease or end elsewhere than at T
        INVALID_SLOT: cache_index names no slot or page of the cache
        INVALID_STRIDE, MISALIGNED, INVALID_DEVICE, ALIASED: memory that cannot be read, written or
            shared like this
        INVALID_VALUE: value checking (off by default) finds a number that is not finite, or a scale
            that makes no sense

    Source: torch_npu.npu_mla_prolog_v3. More: docs/operators/mla_prolog.md
    """
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
    return run("mla_prolog_v3", values, "npu_mla_prolog_v3")
