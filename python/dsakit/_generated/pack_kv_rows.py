# SPDX-License-Identifier: Apache-2.0
# Written by scripts/generate_python.py from include/dsakit/*.hpp: change those, then run it.
"""Codes, rope values and scales into packed cache rows."""

from __future__ import annotations

from ..calling import (
    Array,
    Result,
    operator,
    run,
)

__all__ = [
    "pack_kv_rows",
]


@operator
def pack_kv_rows(
    codes: Array,
    rope: Array,
    scales: Array,
    *,
    level: str = "portable",
    rows: Array | None = None,
) -> Result:
    """Codes, rope values and scales into packed cache rows.

        row = Hckv codes, then Dr rope values of 2 bytes, then G scales of 4 bytes, little endian,
            no padding

    Parameters:
        codes   [.., Hckv] (int8): latent codes
        rope    [.., Dr], as many rows; Dr may be 0 (bfloat16, float16): rotated part of the key
        scales  [.., G], as many rows; G divides Hckv (float32): what a code of each tile is worth
        level   str, default "portable" (portable, strict): strict also refuses what Atlas A2/A3
                refuses

    Results, or by keyword the memory for them:
        rows    [.., Hckv + 2*Dr + 4*G], leading axes of codes (int8): packed rows

    Errors:
        INVALID_ARGUMENT: a tensor is missing
        INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed
        INVALID_STRIDE, MISALIGNED, INVALID_DEVICE, ALIASED: memory that cannot be read, written or
            shared like this
        INVALID_VALUE: value checking (off by default) finds a number that is not finite, or a scale
            that makes no sense

    Source: the rows of torch_npu.npu_mla_prolog_v3; the call is of dsakit. More:
    docs/operators/kv_rows.md
    """
    values = (
        codes, rope, scales, level, rows,
    )  # fmt: skip
    return run("pack_kv_rows", values, "pack_kv_rows")
