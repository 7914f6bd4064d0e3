# SPDX-License-Identifier: Apache-2.0
# Written by scripts/generate_python.py from include/dsakit/*.hpp: change those, then run it.
"""One product per head of rows [T, h, k], into tensor_c."""

from __future__ import annotations

from ..calling import (
    Array,
    Weight,
    only_none,
    operator,
    run,
)

__all__ = [
    "batch_matmul_transpose",
]


@operator
def batch_matmul_transpose(
    tensor_a: Array,
    tensor_b: Weight,
    tensor_c: Array,
    format_mode: None = None,
    quant_mode: None = None,
    *,
    level: str = "portable",
) -> None:
    """One product per head of rows [T, h, k], into tensor_c.

        tensor_c[t, h] = tensor_a[t, h] tensor_b[h], sums in float32, one rounding

    Parameters:
        tensor_a     [T, h, k] (bfloat16, float16): rows
        tensor_b     [h, k, n] (dtype of tensor_a): a matrix per h
        tensor_c     [T, h, n] or [T, h*n] (dtype of tensor_a), updated in place: products, all
                     written
        level        str, default "portable" (portable, strict): strict also refuses what Atlas
                     A2/A3 refuses

    Reserved, only None: format_mode, quant_mode

    Errors:
        INVALID_ARGUMENT: a tensor is missing
        INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed
        UNSUPPORTED: format_mode, quant_mode
        INVALID_STRIDE, MISALIGNED, INVALID_DEVICE, ALIASED: memory that cannot be read, written or
            shared like this
        INVALID_VALUE: value checking (off by default) finds a number that is not finite, or a scale
            that makes no sense

    Source: torch.ops._C_ascend.batch_matmul_transpose. More:
    docs/operators/transpose_batchmatmul.md
    """
    if not (
        format_mode is quant_mode is None
    ):  # fmt: skip
        only_none("batch_matmul_transpose",
            format_mode=format_mode, quant_mode=quant_mode)
    values = (
        tensor_a, tensor_b, tensor_c, level,
    )  # fmt: skip
    run("batch_matmul_transpose", values, "batch_matmul_transpose")
