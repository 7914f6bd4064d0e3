# SPDX-License-Identifier: Apache-2.0
# Written by scripts/generate_python.py from include/dsakit/*.hpp: change those, then run it.
"""Store keys and values of new tokens in paged caches, in place."""

from __future__ import annotations

from ..calling import (
    Array,
    only_none,
    operator,
    run,
)

__all__ = [
    "scatter_pa_kv_cache",
    "npu_scatter_pa_kv_cache",
]


@operator
def scatter_pa_kv_cache(
    key: Array,
    value: Array,
    key_cache: Array,
    value_cache: Array,
    slot_mapping: Array,
    *,
    compress_lens: None = None,
    compress_seq_offsets: None = None,
    seq_lens: None = None,
    cache_mode: str | None = "PA_NZ",
    level: str = "portable",
) -> None:
    """Store keys and values of new tokens in paged caches, in place.

        key_cache[slot] = key[t], value_cache[slot] = value[t], slot = slot_mapping[t], for
            ascending t
        PA_NZ: column j of slot s is [s / block_size, j / c0, s % block_size, j % c0]

    Parameters:
        key                   [T, h, dk] (bfloat16, float16, float32, int8 or any other): keys of
                              new tokens
        value                 [T, h, dv] (dtype of key): values of new tokens
        key_cache             Norm: [block_num, block_size, h, dk]; PA_NZ: [block_num, h*dk/c0,
                              block_size, c0], c0 elements are 32 bytes (dtype of key), updated in
                              place: pages of keys
        value_cache           key_cache with dv for dk (dtype of key), updated in place: pages of
                              values
        slot_mapping          [T] (int32, int64): slot of each token: page * block_size + place;
                              negative: not stored
        cache_mode            str, default "PA_NZ" (PA_NZ, Norm (None means Norm)): how the caches
                              lie
        level                 str, default "portable" (portable, strict): strict also refuses what
                              Atlas A2/A3 refuses

    Reserved, only None: compress_lens, compress_seq_offsets, seq_lens

    Errors:
        INVALID_ARGUMENT: a tensor is missing, cache_mode is unknown
        UNSUPPORTED: key of rank 4, the compressed form
        INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed
        INVALID_SLOT: a slot behind the last page
        INVALID_STRIDE, MISALIGNED, INVALID_DEVICE, ALIASED: memory that cannot be read, written or
            shared like this
        INVALID_VALUE: value checking (off by default) finds a number that is not finite, or a scale
            that makes no sense

    Source: torch_npu.npu_scatter_pa_kv_cache. More: docs/operators/scatter_pa_kv_cache.md
    """
    cache_mode = "Norm" if cache_mode is None else cache_mode
    if not (
        compress_lens is compress_seq_offsets is seq_lens is None
    ):  # fmt: skip
        only_none("scatter_pa_kv_cache",
            compress_lens=compress_lens, compress_seq_offsets=compress_seq_offsets, seq_lens=seq_lens)
    values = (
        key, value, key_cache, value_cache, slot_mapping, cache_mode, level,
    )  # fmt: skip
    run("scatter_pa_kv_cache", values, "scatter_pa_kv_cache")


@operator
def npu_scatter_pa_kv_cache(
    key: Array,
    value: Array,
    key_cache: Array,
    value_cache: Array,
    slot_mapping: Array,
    *,
    compress_lens: None = None,
    compress_seq_offsets: None = None,
    seq_lens: None = None,
    cache_mode: str | None = "PA_NZ",
    level: str = "portable",
) -> None:
    """Store keys and values of new tokens in paged caches, in place.

        key_cache[slot] = key[t], value_cache[slot] = value[t], slot = slot_mapping[t], for
            ascending t
        PA_NZ: column j of slot s is [s / block_size, j / c0, s % block_size, j % c0]

    Parameters:
        key                   [T, h, dk] (bfloat16, float16, float32, int8 or any other): keys of
                              new tokens
        value                 [T, h, dv] (dtype of key): values of new tokens
        key_cache             Norm: [block_num, block_size, h, dk]; PA_NZ: [block_num, h*dk/c0,
                              block_size, c0], c0 elements are 32 bytes (dtype of key), updated in
                              place: pages of keys
        value_cache           key_cache with dv for dk (dtype of key), updated in place: pages of
                              values
        slot_mapping          [T] (int32, int64): slot of each token: page * block_size + place;
                              negative: not stored
        cache_mode            str, default "PA_NZ" (PA_NZ, Norm (None means Norm)): how the caches
                              lie
        level                 str, default "portable" (portable, strict): strict also refuses what
                              Atlas A2/A3 refuses

    Reserved, only None: compress_lens, compress_seq_offsets, seq_lens

    Errors:
        INVALID_ARGUMENT: a tensor is missing, cache_mode is unknown
        UNSUPPORTED: key of rank 4, the compressed form
        INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed
        INVALID_SLOT: a slot behind the last page
        INVALID_STRIDE, MISALIGNED, INVALID_DEVICE, ALIASED: memory that cannot be read, written or
            shared like this
        INVALID_VALUE: value checking (off by default) finds a number that is not finite, or a scale
            that makes no sense

    Source: torch_npu.npu_scatter_pa_kv_cache. More: docs/operators/scatter_pa_kv_cache.md
    """
    cache_mode = "Norm" if cache_mode is None else cache_mode
    if not (
        compress_lens is compress_seq_offsets is seq_lens is None
    ):  # fmt: skip
        only_none("npu_scatter_pa_kv_cache",
            compress_lens=compress_lens, compress_seq_offsets=compress_seq_offsets, seq_lens=seq_lens)
    values = (
        key, value, key_cache, value_cache, slot_mapping, cache_mode, level,
    )  # fmt: skip
    run("scatter_pa_kv_cache", values, "npu_scatter_pa_kv_cache")
