# SPDX-License-Identifier: Apache-2.0
# Written by scripts/generate_python.py from include/dsakit/*.hpp: change those, then run it.
"""The readable twins of batch_matmul_transpose."""

from __future__ import annotations

from ... import _core
from .. import batch_matmul_transpose as fast
from ...calling import (
    Array,
    Weight,
    documented_by,
    only_none,
    operator,
)

__all__ = [
    "batch_matmul_transpose",
]


@operator
@documented_by(fast.batch_matmul_transpose)
def batch_matmul_transpose(
    tensor_a: Array,
    tensor_b: Weight,
    tensor_c: Array,
    format_mode: None = None,
    quant_mode: None = None,
    *,
    level: str = "portable",
) -> None:
    """The readable twin of dsakit.batch_matmul_transpose."""
    if not (
        format_mode is quant_mode is None
    ):  # fmt: skip
        only_none("batch_matmul_transpose",
            format_mode=format_mode, quant_mode=quant_mode)
    values = (
        tensor_a, tensor_b, tensor_c, level,
    )  # fmt: skip
    _core.batch_matmul_transpose_reference(values, "batch_matmul_transpose")
