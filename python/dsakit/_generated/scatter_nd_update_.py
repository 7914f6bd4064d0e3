# SPDX-License-Identifier: Apache-2.0
# Written by scripts/generate_python.py from include/dsakit/*.hpp: change those, then run it.
"""Write rows to places of a tensor, in place."""

from __future__ import annotations

from ..calling import (
    Array,
    Result,
    operator,
    run,
)

__all__ = [
    "scatter_nd_update_",
    "npu_scatter_nd_update_",
]


@operator
def scatter_nd_update_(
    self: Array,
    indices: Array,
    updates: Array,
    *,
    level: str = "portable",
) -> Result:
    """Write rows to places of a tensor, in place. Returns self.

        self[indices[i]] = updates[i] for ascending i

    Parameters:
        self     any rank from 1 on (float32, float16, bfloat16, int64, int8, bool), updated in
                 place: where rows go
        indices  [.., a], 1 <= a <= rank of self (int32, int64): place of each row in the first a
                 axes of self; a = 1: a negative one skips its row
        updates  axes of indices but the last, then axes a .. of self (dtype of self): rows
        level    str, default "portable" (portable, strict): strict also refuses what Atlas A2/A3
                 refuses

    Errors:
        INVALID_ARGUMENT: a tensor is missing
        INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed
        INVALID_INDEX: a place outside self
        INVALID_STRIDE, MISALIGNED, INVALID_DEVICE, ALIASED: memory that cannot be read, written or
            shared like this
        INVALID_VALUE: value checking (off by default) finds a number that is not finite, or a scale
            that makes no sense

    Source: torch_npu.npu_scatter_nd_update_. More: docs/operators/scatter_nd_update.md
    """
    values = (
        self, indices, updates, level,
    )  # fmt: skip
    run("scatter_nd_update_", values, "scatter_nd_update_")
    return self


@operator
def npu_scatter_nd_update_(
    self: Array,
    indices: Array,
    updates: Array,
    *,
    level: str = "portable",
) -> Result:
    """Write rows to places of a tensor, in place. Returns self.

        self[indices[i]] = updates[i] for ascending i

    Parameters:
        self     any rank from 1 on (float32, float16, bfloat16, int64, int8, bool), updated in
                 place: where rows go
        indices  [.., a], 1 <= a <= rank of self (int32, int64): place of each row in the first a
                 axes of self; a = 1: a negative one skips its row
        updates  axes of indices but the last, then axes a .. of self (dtype of self): rows
        level    str, default "portable" (portable, strict): strict also refuses what Atlas A2/A3
                 refuses

    Errors:
        INVALID_ARGUMENT: a tensor is missing
        INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed
        INVALID_INDEX: a place outside self
        INVALID_STRIDE, MISALIGNED, INVALID_DEVICE, ALIASED: memory that cannot be read, written or
            shared like this
        INVALID_VALUE: value checking (off by default) finds a number that is not finite, or a scale
            that makes no sense

    Source: torch_npu.npu_scatter_nd_update_. More: docs/operators/scatter_nd_update.md
    """
    values = (
        self, indices, updates, level,
    )  # fmt: skip
    run("scatter_nd_update_", values, "npu_scatter_nd_update_")
    return self
