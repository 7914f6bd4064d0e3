# SPDX-License-Identifier: Apache-2.0
# Written by scripts/generate_python.py from include/dsakit/*.hpp: change those, then run it.
"""Packed cache rows into codes, rope values and scales."""

from __future__ import annotations

from ..calling import (
    Array,
    DType,
    Result,
    operator,
    run,
)

__all__ = [
    "unpack_kv_rows",
]


@operator
def unpack_kv_rows(
    rows: Array,
    *,
    rope_head_dim: int = 64,
    tile_size: int = 128,
    rope_dtype: DType = "bfloat16",
    level: str = "portable",
    codes: Array | None = None,
    rope: Array | None = None,
    scales: Array | None = None,
) -> tuple[Result, Result, Result]:
    """Packed cache rows into codes, rope values and scales.

        row = Hckv codes, then Dr rope values of 2 bytes, then Hckv/tile_size scales of 4 bytes,
            little endian

    Parameters:
        rows           [.., Hckv + 2*Dr + 4*Hckv/tile_size] (int8): packed rows
        rope_head_dim  int, default 64 (>= 0): Dr
        tile_size      int, default 128 (>= 1, divides Hckv): codes that share a scale
        rope_dtype     dtype, default "bfloat16" (bfloat16, float16): type of the rope values
        level          str, default "portable" (portable, strict): strict also refuses what Atlas
                       A2/A3 refuses

    Results, or by keyword the memory for them:
        codes          [.., Hckv] (int8): latent codes
        rope           [.., Dr] (rope_dtype): rotated part of the key
        scales         [.., Hckv/tile_size] (float32): what a code of each tile is worth

    Errors:
        INVALID_ARGUMENT: rows is missing, rope_head_dim, tile_size or rope_dtype is out of range
        INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed
        INVALID_STRIDE, MISALIGNED, INVALID_DEVICE, ALIASED: memory that cannot be read, written or
            shared like this
        INVALID_VALUE: value checking (off by default) finds a number that is not finite, or a scale
            that makes no sense

    Source: the rows of torch_npu.npu_mla_prolog_v3; the call is of dsakit. More:
    docs/operators/kv_rows.md
    """
    values = (
        rows, rope_head_dim, tile_size, rope_dtype, level, codes, rope, scales,
    )  # fmt: skip
    return run("unpack_kv_rows", values, "unpack_kv_rows")
