# SPDX-License-Identifier: Apache-2.0
"""Memory of callers: numpy arrays and torch CPU tensors, by address."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import shown
from ..weights import FractalNZ
from .dtypes import BF16, OF_WORD, bfloat16
from .state import refuse
from .tensor import Array, text_of


def from_numpy(name: str, parameter: str, given: Any) -> tuple[Array, Any]:
    """Memory of a caller as it is kept here, and its dtype: numpy arrays, torch CPU tensors; by address."""
    a = given
    if isinstance(a, FractalNZ) and not hasattr(a, "detach"):
        a = a.nd()  # of numpy: kept in tiles, and immutable
        a.flags.writeable = False
    if not isinstance(a, np.ndarray):
        if hasattr(a, "detach") and hasattr(a, "data_ptr"):
            a = _of_torch(name, parameter, a)
        elif hasattr(a, "__dlpack__"):
            a = np.from_dlpack(a)
        else:
            refuse("INVALID_DTYPE", name, parameter, f"is {shown(given)}", "a torch CPU tensor or a numpy array")
    if isinstance(a, tuple):
        a, dtype = a
    elif a.dtype == bfloat16:
        a, dtype = a.view(np.uint16), BF16
    else:
        dtype = OF_WORD.get(a.dtype.name)
        if dtype is None:
            refuse(
                "UNSUPPORTED", name, parameter, f"has dtype {a.dtype}", "FP32, FP16, BF16, INT8..64, UINT8..64, BOOL"
            )
    if not a.flags.c_contiguous:
        refuse("INVALID_STRIDE", name, parameter, f"has strides {text_of(a.strides)} bytes", "contiguous memory")
    return a, dtype


def _of_torch(name: str, parameter: str, t: Any) -> tuple[Array, Any]:
    import torch

    if t.device.type != "cpu":
        refuse("INVALID_DEVICE", name, parameter, f"is on {t.device}", "a CPU tensor")
    word = str(t.dtype).removeprefix("torch.")
    dtype = OF_WORD.get(word)
    if dtype is None:
        refuse("UNSUPPORTED", name, parameter, f"has dtype {word}", "FP32, FP16, BF16, INT8..64, UINT8..64, BOOL")
    t = t.detach().as_subclass(torch.Tensor)  # FRACTAL_NZ is a tag: memory is row-major
    if dtype is BF16:
        return t.view(torch.int16).numpy().view(np.uint16), dtype
    return t.numpy(), dtype
