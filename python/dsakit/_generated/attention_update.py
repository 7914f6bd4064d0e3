# SPDX-License-Identifier: Apache-2.0
# Written by scripts/generate_python.py from include/dsakit/*.hpp: change those, then run it.
"""Merge attention over shards of the keys."""

from __future__ import annotations

from ..calling import (
    Array,
    ArrayList,
    Result,
    operator,
    run,
)

__all__ = [
    "attention_update",
    "npu_attention_update",
]


@operator
def attention_update(
    lse: ArrayList,
    local_out: ArrayList,
    update_type: int,
    *,
    level: str = "portable",
    out: Array | None = None,
    lse_out: Array | None = None,
) -> tuple[Result, Result]:
    """Merge attention over shards of the keys.

        m = max_i lse[i], L = m + log(sum_i exp(lse[i] - m))
        out = sum_i local_out[i] * exp(lse[i] - L), lse_out = L
        a shard with an infinite lse counts for nothing; without another one out = 0, L = -inf

    Parameters:
        lse          [M] each, one or more; strict: at most 16 (float32): log of the sum of
                     exponentials of each row of each shard; infinite: no key
        local_out    [M, d] each, as many as lse; strict: d a multiple of 8 in 8..512 (float32,
                     float16, bfloat16, all the same): attention of each shard
        update_type  int, required (0: out alone, 1: lse_out too): what is returned
        level        str, default "portable" (portable, strict): strict also refuses what Atlas
                     A2/A3 refuses

    Results, or by keyword the memory for them:
        out          [M, d] (dtype of local_out): attention over all keys
        lse_out      [M]; update_type 0: [0] (float32): its log of the sum of exponentials

    Errors:
        INVALID_ARGUMENT: a list is missing or empty, the lists differ in length, update_type is not
            0 or 1
        INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed
        UNSUPPORTED: strict: more than 16 shards, another d
        INVALID_STRIDE, MISALIGNED, INVALID_DEVICE, ALIASED: memory that cannot be read, written or
            shared like this
        INVALID_VALUE: value checking (off by default) finds a number that is not finite, or a scale
            that makes no sense

    Source: torch_npu.npu_attention_update. More: docs/operators/attention_update.md
    """
    values = (
        lse, local_out, update_type, level, out, lse_out,
    )  # fmt: skip
    return run("attention_update", values, "attention_update")


@operator
def npu_attention_update(
    lse: ArrayList,
    local_out: ArrayList,
    update_type: int,
    *,
    level: str = "portable",
    out: Array | None = None,
    lse_out: Array | None = None,
) -> tuple[Result, Result]:
    """Merge attention over shards of the keys.

        m = max_i lse[i], L = m + log(sum_i exp(lse[i] - m))
        out = sum_i local_out[i] * exp(lse[i] - L), lse_out = L
        a shard with an infinite lse counts for nothing; without another one out = 0, L = -inf

    Parameters:
        lse          [M] each, one or more; strict: at most 16 (float32): log of the sum of
                     exponentials of each row of each shard; infinite: no key
        local_out    [M, d] each, as many as lse; strict: d a multiple of 8 in 8..512 (float32,
                     float16, bfloat16, all the same): attention of each shard
        update_type  int, required (0: out alone, 1: lse_out too): what is returned
        level        str, default "portable" (portable, strict): strict also refuses what Atlas
                     A2/A3 refuses

    Results, or by keyword the memory for them:
        out          [M, d] (dtype of local_out): attention over all keys
        lse_out      [M]; update_type 0: [0] (float32): its log of the sum of exponentials

    Errors:
        INVALID_ARGUMENT: a list is missing or empty, the lists differ in length, update_type is not
            0 or 1
        INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed
        UNSUPPORTED: strict: more than 16 shards, another d
        INVALID_STRIDE, MISALIGNED, INVALID_DEVICE, ALIASED: memory that cannot be read, written or
            shared like this
        INVALID_VALUE: value checking (off by default) finds a number that is not finite, or a scale
            that makes no sense

    Source: torch_npu.npu_attention_update. More: docs/operators/attention_update.md
    """
    values = (
        lse, local_out, update_type, level, out, lse_out,
    )  # fmt: skip
    return run("attention_update", values, "npu_attention_update")
