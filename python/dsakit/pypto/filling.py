# SPDX-License-Identifier: Apache-2.0
"""Tensors made from nothing, and what fills parts of others."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import shown
from .dtypes import FP32, INT32, check_dtype, number_bits
from .elementwise import is_number
from .scalars import Element
from .state import operation, refuse, refuse_on_chip, state
from .tensor import (
    Tensor,
    check_tensor,
    fit_valid,
    made,
    sizes,
    text_of,
    values,
)


def fill_bits(name: str, value: Any, dtype: Any) -> Any:
    if isinstance(value, Element):
        value = value.value
    elif state.level == "strict":
        taken = FP32 if isinstance(value, float) else INT32
        if taken is not dtype:
            refuse_on_chip(name, "fill_value", f"is the {taken.word} {value}", f"an Element of {dtype.word}")
    if dtype.kind in "iu" and isinstance(value, float) and not value.is_integer():
        refuse("INVALID_DTYPE", name, "fill_value", f"is {value}", f"an integer ({dtype.word})")
    return number_bits(name, int(value) if dtype.kind in "iu" else value, dtype)


@operation
def full(size: Any, fill_value: Any, dtype: Any, *, valid_shape: Any = None) -> Tensor:
    """Of one value."""
    return _filled("full", size, fill_value, dtype, valid_shape)


def _filled(name: str, size: Any, value: Any, dtype: Any, valid_shape: Any = None) -> Tensor:
    check_dtype(name, "dtype", dtype)
    if not (is_number(value) or isinstance(value, (Element, bool))):
        refuse("INVALID_DTYPE", name, "fill_value", f"is {shown(value)}", "a number")
    shape = sizes(name, "size", size)
    if any(n < 0 for n in shape):
        refuse("INVALID_SHAPE", name, "size", f"is {text_of(shape)}", "sizes of 0 or more")
    valid = None
    if valid_shape is not None:
        valid = sizes(name, "valid_shape", valid_shape)
        if len(valid) != len(shape) or any(not 0 <= v <= n for v, n in zip(valid, shape)):
            refuse("INVALID_SHAPE", name, "valid_shape", f"is {text_of(valid)}", f"within {text_of(shape)}")
        valid = fit_valid(valid, shape)
    return made(np.full(shape, fill_bits(name, value, dtype), dtype.np), dtype, valid)


def _of_sizes(name: str, size: Any, dtype: Any, value: float) -> Tensor:
    shape = size[0] if len(size) == 1 and isinstance(size[0], (list, tuple)) else size
    dtype = FP32 if dtype is None else dtype
    return _filled(name, list(shape), Element(dtype, value), dtype)


@operation
def zeros(*size: Any, dtype: Any = None) -> Tensor:
    """Of zeros, FP32 unless said otherwise."""
    return _of_sizes("zeros", size, dtype, 0)


@operation
def ones(*size: Any, dtype: Any = None) -> Tensor:
    """Of ones, FP32 unless said otherwise."""
    return _of_sizes("ones", size, dtype, 1)


@operation
def arange(start: Any, end: Any = None, step: Any = 1) -> Tensor:
    """start, start + step, .. before end; INT32 if all are integers, else FP32 (fp32(start + i * step))."""
    if end is None:
        start, end = 0, start
    given = [x.value if isinstance(x, Element) else x for x in (start, end, step)]
    for name, x in zip(("start", "end", "step"), given):
        if not is_number(x):
            refuse("INVALID_DTYPE", "arange", name, f"is {shown(x)}", "a number")
    if given[2] == 0:
        refuse("INVALID_ARGUMENT", "arange", "step", "is 0", "another number")
    count = max(0, int(np.ceil((given[1] - given[0]) / given[2])))
    integers = all(isinstance(x, (int, np.integer)) for x in given)
    if integers:
        return made(np.array([given[0] + i * given[2] for i in range(count)], np.int32), INT32)
    made_of = float(given[0]) + np.arange(count, dtype=np.float64) * float(given[2])
    return made(made_of.astype(np.float32), FP32)


def _triangle(name: str, f: Any) -> Any:
    def run(input: Any, diagonal: Any = 0) -> Tensor:
        a = values(name, check_tensor(name, input))
        if a.ndim < 2:
            refuse("INVALID_SHAPE", name, "input", f"has rank {a.ndim}", "2 or more")
        return made(f(a, int(diagonal)), input._dtype, input._valid)

    run.__name__ = run.__qualname__ = name
    run.__doc__ = f"The {'upper' if name == 'triu' else 'lower'} triangle of the last two axes; 0 elsewhere."
    return operation(run)


triu, tril = _triangle("triu", np.triu), _triangle("tril", np.tril)


@operation
def pad(x: Any, padding: Any, mode: str = "constant", value: Any = 0) -> Tensor:
    """`padding`: before and behind the last axis, then the one before it, and so on."""
    a = values("pad", check_tensor("pad", x))
    pairs = sizes("pad", "padding", padding)
    if mode != "constant":
        refuse("UNSUPPORTED", "pad", "mode", f"is {shown(mode)}", '"constant"')
    if len(pairs) % 2 or len(pairs) > 2 * a.ndim or any(n < 0 for n in pairs):
        refuse("INVALID_SHAPE", "pad", "padding", f"is {text_of(pairs)}", "two numbers for each of the last axes")
    if x._valid is not None:
        refuse(
            "INVALID_SHAPE", "pad", "x", f"has valid shape {text_of(x._valid)}", "all valid (fillpad fills the rest)"
        )
    widths = [(0, 0)] * (a.ndim - len(pairs) // 2) + list(zip(pairs[0::2], pairs[1::2]))[::-1]
    bits = number_bits("pad", int(value) if x._dtype.kind in "iu" else value, x._dtype)
    return made(np.pad(a, widths, constant_values=bits), x._dtype)


@operation
def fillpad(x: Any, mode: str = "constant", value: Any = 0) -> Tensor:
    """`value` outside of the valid region; then all is valid."""
    a = values("fillpad", check_tensor("fillpad", x))
    if mode != "constant":
        refuse("UNSUPPORTED", "fillpad", "mode", f"is {shown(mode)}", '"constant"')
    number = value.value if isinstance(value, Element) else value
    bits = number_bits("fillpad", int(number) if x._dtype.kind in "iu" else number, x._dtype)
    out = np.full(a.shape, bits, a.dtype)
    out[x.region()] = a[x.region()]
    return made(out, x._dtype)
