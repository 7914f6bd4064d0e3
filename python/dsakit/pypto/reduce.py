# SPDX-License-Identifier: Apache-2.0
"""Operations along an axis: of its valid elements only."""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np

from .. import _core
from ..errors import shown
from . import elementwise as ew
from .dtypes import BF16, BOOL, FP32, INT32, convert, floats
from .names import TopKAlgo
from .state import operation, refuse
from .tensor import Array, Tensor, axis_of, check_tensor, fit_valid, made, text_of, valid_values, values


def canonical_sum(a: Array, axis: int) -> Array:
    """fp32 along an axis: sixteen lanes from +0, element i in lane i mod 16, folded in halves."""
    if axis == a.ndim - 1:
        a = np.ascontiguousarray(a)
        out = np.empty(a.shape[:-1], np.float32)
        if out.size:
            _core.pypto_row_sum(a, out)
        return out
    a = np.moveaxis(a, axis, 0)
    lanes = np.zeros((16, *a.shape[1:]), np.float32)
    for first in range(0, a.shape[0], 16):
        some = a[first : first + 16]
        lanes[: some.shape[0]] += some
    for half in (8, 4, 2, 1):
        lanes[:half] += lanes[half : 2 * half]
    return lanes[0]


def _axis(name: str, input: Any, dim: Any) -> tuple[Array, int]:
    check_tensor(name, input)
    return valid_values(name, input), axis_of(name, dim, len(input.shape))


def _reduced(input: Tensor, kept: Array, axis: int, keepdim: bool, dtype: Any) -> Tensor:
    """The result of an axis, from its values where they are valid."""
    shape = [1 if i == axis else n for i, n in enumerate(input.shape)]
    valid = None
    kept = np.expand_dims(kept, axis)
    if input._valid is not None:
        valid = tuple(1 if i == axis else n for i, n in enumerate(input._valid))
        wide = np.zeros(shape, kept.dtype)
        wide[tuple(slice(0, n) for n in valid)] = kept
        kept = wide
    if not keepdim:
        kept = np.squeeze(kept, axis)
        if valid is not None:
            valid = valid[:axis] + valid[axis + 1 :]
    return made(kept, dtype, None if valid is None else fit_valid(valid, kept.shape))


@operation
def sum(input: Any, dim: Any, keepdim: bool = False) -> Tensor:
    """The canonical row sum in fp32, rounded once to bf16 or fp16; integers modulo 2 ** n."""
    a, axis = _axis("sum", input, dim)
    dtype = input._dtype
    if dtype.kind == "f":
        total = canonical_sum(floats(a, dtype), axis)
        kept = total if dtype is FP32 else convert(total, FP32, dtype)
    else:
        kept = np.add.reduce(a, axis=axis, dtype=a.dtype) if dtype is not BOOL else a.any(axis)
    return _reduced(input, np.asarray(kept), axis, keepdim, dtype)


def _extreme(name: str, f: Any, lowest: bool, doc: str) -> Any:
    def run(input: Any, dim: Any, keepdim: bool = False) -> Tensor:
        a, axis = _axis(name, input, dim)
        dtype = input._dtype
        if dtype is BF16:
            a = floats(a, dtype)
        if a.shape[axis] == 0:
            worst = -np.inf if dtype.kind == "f" else (0 if dtype is BOOL else np.iinfo(dtype.np).min)
            if not lowest:
                worst = np.inf if dtype.kind == "f" else (1 if dtype is BOOL else np.iinfo(dtype.np).max)
            kept = np.full(a.shape[:axis] + a.shape[axis + 1 :], worst, a.dtype)
        else:
            kept = f(a, axis=axis)  # NaN wins
        if dtype is BF16:
            kept = convert(np.asarray(kept), FP32, BF16)
        return _reduced(input, np.asarray(kept), axis, keepdim, dtype)

    run.__name__ = run.__qualname__ = name
    run.__doc__ = doc
    return operation(run)


amax = _extreme("amax", np.max, True, "The largest along an axis; NaN wins; of nothing, -inf or the type's minimum.")
amin = _extreme("amin", np.min, False, "The smallest along an axis; NaN wins; of nothing, inf or the type's maximum.")


def _where(name: str, f: Any) -> Any:
    def run(input: Any, dim: Any = -1, keepdim: bool = False) -> Tensor:
        a, axis = _axis(name, input, dim)
        if a.shape[axis] == 0:
            refuse("INVALID_SHAPE", name, "input", f"has valid shape {text_of(a.shape)}", f"elements along axis {axis}")
        if input._dtype.kind == "f":
            a = floats(a, input._dtype)
        return _reduced(input, f(a, axis=axis).astype(np.int32), axis, keepdim, INT32)

    run.__name__ = run.__qualname__ = name
    run.__doc__ = f"The position of the first {'largest' if name == 'argmax' else 'smallest'} (NaN wins), INT32."
    return operation(run)


argmax, argmin = _where("argmax", np.argmax), _where("argmin", np.argmin)


@operation
def prod(self: Any, dim: Any, keepdim: bool = False) -> Tensor:
    """The product along an axis, in its order; fp32 rounded to what it was; integers modulo 2 ** n."""
    a, axis = _axis("prod", self, dim)
    wide = floats(a, self._dtype) if self._dtype.kind == "f" else a
    n = wide.shape[axis]
    kept = np.multiply.accumulate(wide, axis=axis).take(n - 1, axis) if n else np.ones_like(wide.sum(axis), wide.dtype)
    if self._dtype.kind == "f" and self._dtype is not FP32:
        kept = convert(kept, FP32, self._dtype)
    return _reduced(self, np.asarray(kept).astype(self._dtype.np, copy=False), axis, keepdim, self._dtype)


@operation
def cumsum(input: Any, dim: Any) -> Tensor:
    """Running totals in the order of the axis: in fp32, rounded to what it was; integers modulo 2 ** n."""
    axis = axis_of("cumsum", dim, len(check_tensor("cumsum", input).shape))
    a = values("cumsum", input)
    if input._dtype.kind == "f":
        kept = np.add.accumulate(floats(a, input._dtype), axis=axis)
        kept = kept if input._dtype is FP32 else convert(kept, FP32, input._dtype)
    else:
        kept = np.add.accumulate(a, axis=axis, dtype=a.dtype)
    return made(kept, input._dtype, input._valid)


@operation
def var(input: Any, dim: Any = None, correction: Any = 1, keepdim: bool = False) -> Tensor:
    """The variance along an axis (None: of everything): canonical sums of x and of (x - mean) ** 2, over n - correction."""
    check_tensor("var", input)
    if input._dtype.kind != "f":
        refuse("INVALID_DTYPE", "var", "input", f"has dtype {input._dtype.word}", "float32, float16 or bfloat16")
    a = floats(valid_values("var", input), input._dtype)
    shape = input.shape
    if dim is None:
        flat = a.reshape(1, -1)
        kept = _variance(flat, 1, correction)
        kept = kept if input._dtype is FP32 else convert(kept, FP32, input._dtype)
        return made(kept.reshape([1] * len(shape) if keepdim else ()), input._dtype)
    axis = axis_of("var", dim, len(shape))
    kept = _variance(a, axis, correction)
    kept = kept if input._dtype is FP32 else convert(kept, FP32, input._dtype)
    return _reduced(input, kept, axis, keepdim, input._dtype)


def _variance(a: Array, axis: int, correction: Any) -> Array:
    n = a.shape[axis]
    mean = np.expand_dims(canonical_sum(a, axis) / np.float32(n), axis)
    d = a - mean
    return np.asarray(canonical_sum(d * d, axis) / np.float32(n - correction))


@operation
def softmax(input: Any, dim: Any) -> Tensor:
    """exp(x - amax) over its sum along an axis: amax, sub, exp, sum, div, each rounded."""
    a, axis = _axis("softmax", input, dim)
    if input._dtype.kind != "f":
        refuse("INVALID_DTYPE", "softmax", "input", f"has dtype {input._dtype.word}", "float32, float16 or bfloat16")
    x = floats(a, input._dtype)
    if x.shape[axis]:
        e = ew.exponential(x - x.max(axis=axis, keepdims=True))
        x = e / np.expand_dims(canonical_sum(e, axis), axis)
    x = x if input._dtype is FP32 else convert(x, FP32, input._dtype)
    return _spread(input, x)


def _spread(input: Tensor, kept: Array) -> Tensor:
    if input._valid is not None:
        wide = np.zeros(input.shape, kept.dtype)
        wide[input.region()] = kept
        kept = wide
    return made(kept, input._dtype, input._valid)


@operation
def rms_norm(input: Any, gamma: Any = None, epsilon: float = 1e-06) -> Tensor:
    """gamma * (x * (1 / sqrt(mean of squares + epsilon))) along the last axis: every step in fp32, each square times
    fp32(1 / n) before the canonical sum; then what input was."""
    check_tensor("rms_norm", input)
    if input._dtype.kind != "f":
        refuse("INVALID_DTYPE", "rms_norm", "input", f"has dtype {input._dtype.word}", "float32, float16 or bfloat16")
    x = floats(valid_values("rms_norm", input), input._dtype)
    n = x.shape[-1]
    mean = canonical_sum(x * x * np.float32(1 / n if n else 0), x.ndim - 1)
    y = x * (np.float32(1) / np.sqrt(mean + np.float32(epsilon)))[..., None]
    if gamma is not None:
        if check_tensor("rms_norm", gamma, "gamma").shape[-1:] != input.shape[-1:]:
            wanted = f"[{input.shape[-1]}] (last axis of input)"
            refuse("INVALID_SHAPE", "rms_norm", "gamma", f"has shape {text_of(gamma.shape)}", wanted)
        if gamma._dtype is not input._dtype:
            wanted = f"{input._dtype.word} (dtype of input)"
            refuse("INVALID_DTYPE", "rms_norm", "gamma", f"has dtype {gamma._dtype.word}", wanted)
        y = floats(values("rms_norm", gamma, "gamma"), gamma._dtype)[..., :n] * y
    y = y if input._dtype is FP32 else convert(y, FP32, input._dtype)
    return _spread(input, y)


# ---- order


def order_keys(a: Array, dtype: Any, descending: bool) -> Array:
    """Unsigned keys whose ascending, stable order is that of the values, with NaN last: -0 equals +0."""
    if dtype.kind == "f":
        x = floats(a, dtype)
        u = np.ascontiguousarray(x + np.float32(0)).view(np.uint32)
        key = np.where(u >> 31, ~u, u | np.uint32(0x80000000))
        key = ~key if descending else key
        return np.where(np.isnan(x), np.uint32(0xFFFFFFFF), key)
    if dtype.kind == "i":
        key = a.astype(np.int64).view(np.uint64) ^ np.uint64(1 << 63)
    else:
        key = a.astype(np.uint64)
    return ~key if descending else key


def _order(a: Array, dtype: Any, axis: int, descending: bool) -> Array:
    return np.argsort(order_keys(a, dtype, descending), axis=axis, kind="stable").astype(np.int32)


@operation
def topk(
    input: Any, k: Any, dim: Any = None, largest: bool = True, algo: Any = TopKAlgo.MERGE_SORT
) -> tuple[Tensor, Tensor]:
    """The k largest (smallest) along an axis and their positions, INT32: by value, then by position; NaN last. Slots past
    the valid elements: -inf (smallest: inf), position -1, outside of the valid region."""
    check_tensor("topk", input)
    shape = input.shape
    axis = axis_of("topk", -1 if dim is None else dim, len(shape))
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)):
        refuse("INVALID_DTYPE", "topk", "k", f"is {shown(k)}", "an integer")
    if not 0 < k <= shape[axis]:
        refuse("INVALID_ARGUMENT", "topk", "k", f"is {int(k)}", f"1..{shape[axis]} (axis {axis} of input)")
    if not isinstance(algo, TopKAlgo):
        refuse("INVALID_DTYPE", "topk", "algo", f"is {shown(algo)}", "one of pypto.TopKAlgo")
    a, dtype = valid_values("topk", input), input._dtype
    order = _order(a, dtype, axis, bool(largest)).take(range(builtins.min(int(k), a.shape[axis])), axis)
    found = np.take_along_axis(a, order, axis)
    out = [int(k) if i == axis else n for i, n in enumerate(shape)]
    valid = fit_valid(found.shape, out)
    if valid is not None:
        pad = _worst(dtype, bool(largest))
        wide, positions = np.full(out, pad, a.dtype), np.full(out, -1, np.int32)
        index = tuple(slice(0, n) for n in found.shape)
        wide[index], positions[index] = found, order
        found, order = wide, positions
    return made(found, dtype, valid), made(order, INT32, valid)


def _worst(dtype: Any, largest: bool) -> Any:
    """What stands in slots without an element."""
    if dtype is BF16:
        return np.uint16(0xFF80 if largest else 0x7F80)
    if dtype.kind == "f":
        return -np.inf if largest else np.inf
    limits = np.iinfo(dtype.np)
    return limits.min if largest else limits.max


@operation
def argsort(input: Any, dim: Any = None, descending: bool = True) -> Tensor:
    """Positions in the order of the values along an axis, INT32, stable; NaN last."""
    check_tensor("argsort", input)
    axis = axis_of("argsort", -1 if dim is None else dim, len(input.shape))
    order = _order(valid_values("argsort", input), input._dtype, axis, bool(descending))
    if input._valid is not None:
        wide = np.full(input.shape, -1, np.int32)
        wide[input.region()] = order
        order = wide
    return made(order, INT32, input._valid)
