# SPDX-License-Identifier: Apache-2.0
# Written by scripts/generate_python.py from include/dsakit/*.hpp: change those, then run it.
"""Normalise the latent and rotate the key of new tokens, and store both in caches."""

from __future__ import annotations

from ..calling import (
    Array,
    Result,
    only_none,
    operator,
    run,
)

__all__ = [
    "kv_rmsnorm_rope_cache",
    "npu_kv_rmsnorm_rope_cache",
]


@operator
def kv_rmsnorm_rope_cache(
    kv: Array,
    gamma: Array,
    cos: Array,
    sin: Array,
    index: Array,
    k_cache: Array,
    ckv_cache: Array,
    *,
    k_rope_scale: Array | None = None,
    c_kv_scale: Array | None = None,
    k_rope_offset: None = None,
    c_kv_offset: None = None,
    v: None = None,
    epsilon: float = 1e-05,
    cache_mode: str = "Norm",
    is_output_kv: bool = False,
    level: str = "portable",
    k_cache_out: Array | None = None,
    ckv_cache_out: Array | None = None,
    k_rope: Array | None = None,
    c_kv: Array | None = None,
) -> tuple[Result, Result, Result, Result]:
    """Normalise the latent and rotate the key of new tokens, and store both in caches.

        latent = kv[:Hckv], c_kv = latent / sqrt(mean(latent^2) + epsilon) * gamma
        k_rope = rope(kv[Hckv:]), pairs in, halves out
        ckv_cache row = c_kv, k_cache row = k_rope; int8: rint(value * scale), saturated

    Parameters:
        kv             [B, 1, S, Hckv+Dr], any strides with the last 1 (bfloat16, float16): latent
                       columns, then rope columns, of each token
        gamma          [Hckv]; strict: Hckv = 512 (dtype of kv): weights of the norm
        cos            [B, 1, S, Dr], Dr even; strict: Dr = 64 (dtype of kv): cosines, all used as
                       given
        sin            shape of cos (dtype of kv): sines, likewise
        index          Norm: [B, S]; PA*: [B*S]; PA_BLK_*: [B*ceil(S/block_size)] (int64): row of
                       each token in its sequence, PA*: slot, PA_BLK_*: first slot of each block of
                       tokens; negative: not stored
        k_cache        Norm: [B, 1, L, Dr]; else [block_num, block_size, 1, Dr] (dtype of kv, or
                       int8), updated in place: rotated key rows
        ckv_cache      k_cache with Hckv as last axis (dtype of kv, or int8), updated in place:
                       latent rows
        k_rope_scale   [Dr] (float32), optional: factors of the rotated key in an int8 k_cache
        c_kv_scale     [Hckv] (float32), optional: factors of the latent in an int8 ckv_cache
        epsilon        float, default 1e-05 (> 0): added in the norm
        cache_mode     str, default "Norm" (Norm, PA, PA_BNSD, PA_NZ, PA_BLK_BNSD, PA_BLK_NZ): how
                       the caches lie, and what index says
        is_output_kv   bool, default False: return the rows too, before quantisation
        level          str, default "portable" (portable, strict): strict also refuses what Atlas
                       A2/A3 refuses

    Reserved, only None: k_rope_offset, c_kv_offset, v

    Results, or by keyword the memory for them:
        k_cache_out    shape of k_cache (dtype of k_cache): k_cache itself
        ckv_cache_out  shape of ckv_cache (dtype of ckv_cache): ckv_cache itself
        k_rope         [B, 1, S, Dr]; without is_output_kv [0] (dtype of kv): rotated keys
        c_kv           [B, 1, S, Hckv]; without is_output_kv [0] (dtype of kv): normalised latents

    Errors:
        INVALID_ARGUMENT: a tensor is missing, a scale without an int8 cache or the other way round,
            cache_mode is unknown, epsilon is not finite or not above 0
        INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed
        UNSUPPORTED: offsets, v; strict: Hckv is not 512 or Dr not 64
        INVALID_SLOT: index names no row of the cache, PA_BLK_*: not the first of a page
        INVALID_STRIDE, MISALIGNED, INVALID_DEVICE, ALIASED: memory that cannot be read, written or
            shared like this
        INVALID_VALUE: value checking (off by default) finds a number that is not finite, or a scale
            that makes no sense

    Source: torch_npu.npu_kv_rmsnorm_rope_cache. More: docs/operators/kv_rmsnorm_rope_cache.md
    """
    if not (
        k_rope_offset is c_kv_offset is v is None
    ):  # fmt: skip
        only_none("kv_rmsnorm_rope_cache",
            k_rope_offset=k_rope_offset, c_kv_offset=c_kv_offset, v=v)
    values = (
        kv, gamma, cos, sin, index, k_cache, ckv_cache, k_rope_scale, c_kv_scale, epsilon, cache_mode, is_output_kv,
        level, k_cache_out, ckv_cache_out, k_rope, c_kv,
    )  # fmt: skip
    return run("kv_rmsnorm_rope_cache", values, "kv_rmsnorm_rope_cache")


@operator
def npu_kv_rmsnorm_rope_cache(
    kv: Array,
    gamma: Array,
    cos: Array,
    sin: Array,
    index: Array,
    k_cache: Array,
    ckv_cache: Array,
    *,
    k_rope_scale: Array | None = None,
    c_kv_scale: Array | None = None,
    k_rope_offset: None = None,
    c_kv_offset: None = None,
    v: None = None,
    epsilon: float = 1e-05,
    cache_mode: str = "Norm",
    is_output_kv: bool = False,
    level: str = "portable",
    k_cache_out: Array | None = None,
    ckv_cache_out: Array | None = None,
    k_rope: Array | None = None,
    c_kv: Array | None = None,
) -> tuple[Result, Result, Result, Result]:
    """Normalise the latent and rotate the key of new tokens, and store both in caches.

        latent = kv[:Hckv], c_kv = latent / sqrt(mean(latent^2) + epsilon) * gamma
        k_rope = rope(kv[Hckv:]), pairs in, halves out
        ckv_cache row = c_kv, k_cache row = k_rope; int8: rint(value * scale), saturated

    Parameters:
        kv             [B, 1, S, Hckv+Dr], any strides with the last 1 (bfloat16, float16): latent
                       columns, then rope columns, of each token
        gamma          [Hckv]; strict: Hckv = 512 (dtype of kv): weights of the norm
        cos            [B, 1, S, Dr], Dr even; strict: Dr = 64 (dtype of kv): cosines, all used as
                       given
        sin            shape of cos (dtype of kv): sines, likewise
        index          Norm: [B, S]; PA*: [B*S]; PA_BLK_*: [B*ceil(S/block_size)] (int64): row of
                       each token in its sequence, PA*: slot, PA_BLK_*: first slot of each block of
                       tokens; negative: not stored
        k_cache        Norm: [B, 1, L, Dr]; else [block_num, block_size, 1, Dr] (dtype of kv, or
                       int8), updated in place: rotated key rows
        ckv_cache      k_cache with Hckv as last axis (dtype of kv, or int8), updated in place:
                       latent rows
        k_rope_scale   [Dr] (float32), optional: factors of the rotated key in an int8 k_cache
        c_kv_scale     [Hckv] (float32), optional: factors of the latent in an int8 ckv_cache
        epsilon        float, default 1e-05 (> 0): added in the norm
        cache_mode     str, default "Norm" (Norm, PA, PA_BNSD, PA_NZ, PA_BLK_BNSD, PA_BLK_NZ): how
                       the caches lie, and what index says
        is_output_kv   bool, default False: return the rows too, before quantisation
        level          str, default "portable" (portable, strict): strict also refuses what Atlas
                       A2/A3 refuses

    Reserved, only None: k_rope_offset, c_kv_offset, v

    Results, or by keyword the memory for them:
        k_cache_out    shape of k_cache (dtype of k_cache): k_cache itself
        ckv_cache_out  shape of ckv_cache (dtype of ckv_cache): ckv_cache itself
        k_rope         [B, 1, S, Dr]; without is_output_kv [0] (dtype of kv): rotated keys
        c_kv           [B, 1, S, Hckv]; without is_output_kv [0] (dtype of kv): normalised latents

    Errors:
        INVALID_ARGUMENT: a tensor is missing, a scale without an int8 cache or the other way round,
            cache_mode is unknown, epsilon is not finite or not above 0
        INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed
        UNSUPPORTED: offsets, v; strict: Hckv is not 512 or Dr not 64
        INVALID_SLOT: index names no row of the cache, PA_BLK_*: not the first of a page
        INVALID_STRIDE, MISALIGNED, INVALID_DEVICE, ALIASED: memory that cannot be read, written or
            shared like this
        INVALID_VALUE: value checking (off by default) finds a number that is not finite, or a scale
            that makes no sense

    Source: torch_npu.npu_kv_rmsnorm_rope_cache. More: docs/operators/kv_rmsnorm_rope_cache.md
    """
    if not (
        k_rope_offset is c_kv_offset is v is None
    ):  # fmt: skip
        only_none("npu_kv_rmsnorm_rope_cache",
            k_rope_offset=k_rope_offset, c_kv_offset=c_kv_offset, v=v)
    values = (
        kv, gamma, cos, sin, index, k_cache, ckv_cache, k_rope_scale, c_kv_scale, epsilon, cache_mode, is_output_kv,
        level, k_cache_out, ckv_cache_out, k_rope, c_kv,
    )  # fmt: skip
    return run("kv_rmsnorm_rope_cache", values, "npu_kv_rmsnorm_rope_cache")
