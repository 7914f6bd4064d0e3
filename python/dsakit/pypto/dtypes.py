# SPDX-License-Identifier: Apache-2.0
"""The dtypes that tensors have here, and their values in numpy: bf16 is kept as its bits, in uint16."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from .. import _core
from ..errors import shown
from .names import DataType
from .state import refuse

# How a value of each is kept. kind: f floating point, i signed, u unsigned, b BOOL.
_KEPT = {
    "DT_FP32": ("float32", np.float32, "f"),
    "DT_FP16": ("float16", np.float16, "f"),
    "DT_BF16": ("bfloat16", np.uint16, "f"),
    "DT_INT8": ("int8", np.int8, "i"),
    "DT_INT16": ("int16", np.int16, "i"),
    "DT_INT32": ("int32", np.int32, "i"),
    "DT_INT64": ("int64", np.int64, "i"),
    "DT_UINT8": ("uint8", np.uint8, "u"),
    "DT_UINT16": ("uint16", np.uint16, "u"),
    "DT_UINT32": ("uint32", np.uint32, "u"),
    "DT_UINT64": ("uint64", np.uint64, "u"),
    "DT_BOOL": ("bool", np.bool_, "b"),
}
for _d in DataType:  # on the members themselves: a dict of them would call Enum.__hash__
    _name, _np, _kind = _KEPT.get(_d.name, (_d.name, None, ""))
    _d.word, _d.np, _d.kind, _d.code = _name, None if _np is None else np.dtype(_np), _kind, _d.value

FP32, FP16, BF16 = DataType.DT_FP32, DataType.DT_FP16, DataType.DT_BF16
INT8, INT16, INT32, INT64 = DataType.DT_INT8, DataType.DT_INT16, DataType.DT_INT32, DataType.DT_INT64
UINT8, UINT16, UINT32, UINT64 = DataType.DT_UINT8, DataType.DT_UINT16, DataType.DT_UINT32, DataType.DT_UINT64
BOOL = DataType.DT_BOOL
OF_WORD: dict[str, Any] = {d.word: d for d in DataType if d.np is not None}
bfloat16 = np.dtype(ml_dtypes.bfloat16)

RINT, ROUND, FLOOR, CEIL, TRUNC, ODD = 1, 2, 3, 4, 5, 6


def check_dtype(name: str, parameter: str, dtype: Any) -> Any:
    if not isinstance(dtype, DataType):
        refuse("INVALID_DTYPE", name, parameter, f"is {shown(dtype)}", "one of pypto.DT_FP32, DT_BF16, ...")
    if dtype.np is None:
        refuse("UNSUPPORTED", name, parameter, f"is {dtype.name}", "FP32, FP16, BF16, INT8..64, UINT8..64 or BOOL")
    return dtype


def convert(a: np.ndarray[Any, Any], source: Any, target: Any, mode: int = RINT, saturate: bool = False) -> Any:
    """The values of another dtype: one rounding by `mode`."""
    if a.size == 0:
        return np.empty(a.shape, target.np)
    if not a.flags.c_contiguous:
        a = np.ascontiguousarray(a)
    out = np.empty(a.shape, target.np)
    _core.pypto_cast(a, source.code, out, target.code, mode, saturate)
    return out


def floats(a: np.ndarray[Any, Any], dtype: Any) -> Any:
    """As fp32, exactly (64-bit and 32-bit integers: rounded once)."""
    if dtype is FP32:
        return a
    return convert(a, dtype, FP32)


def number_bits(name: str, value: Any, dtype: Any) -> Any:
    """A Python number as a numpy scalar of how `dtype` is kept; one rounding."""
    if dtype is BF16:
        with np.errstate(all="ignore"):
            return np.uint16(np.asarray(_to_odd(float(value))).astype(bfloat16).view(np.uint16))
    if dtype.kind == "f":
        with np.errstate(all="ignore"):
            return dtype.np.type(float(value))
    if dtype is BOOL:
        return np.bool_(value)
    if isinstance(value, float) and not value.is_integer():
        refuse("INVALID_DTYPE", name, "other", f"is {value}", f"an integer ({dtype.word} tensor)")
    low, high = np.iinfo(dtype.np).min, np.iinfo(dtype.np).max
    if not low <= int(value) <= high:
        refuse("INVALID_ARGUMENT", name, "other", f"is {value}", f"{low}..{high} ({dtype.word})")
    return dtype.np.type(int(value))


def _to_odd(value: float) -> np.float32:
    """As fp32, rounded to odd: rounding that to 16 bits is rounding the number once."""
    near = np.float32(value)
    if not np.isfinite(near) or float(near) == value:
        return near
    if abs(float(near)) > abs(value):
        near = np.nextafter(near, np.float32(0))
    return np.uint32(near.view(np.uint32) | 1).view(np.float32)
