# SPDX-License-Identifier: Apache-2.0
"""Other shapes of the same values: reshape, transpose, repetition, concatenation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import shown
from .state import operation, refuse
from .tensor import (
    Tensor,
    alias,
    axis_of,
    check_tensor,
    fit_valid,
    made,
    sizes,
    snapshot,
    text_of,
    values,
)


@operation
def reshape(input: Any, shape: Any, *, valid_shape: Any = None, inplace: bool = False) -> Tensor:
    """Row-major, one -1 at most. inplace: the same memory, writes pass through."""
    source = check_tensor("reshape", input).shape
    a = values("reshape", input)
    wanted = list(sizes("reshape", "shape", shape))
    if wanted.count(-1) > 1 or any(n < -1 for n in wanted):
        refuse("INVALID_SHAPE", "reshape", "shape", f"is {text_of(wanted)}", "sizes, one of them -1 at most")
    if -1 in wanted:
        known = math.prod([n for n in wanted if n != -1])
        if known == 0 or a.size % known:
            refuse("INVALID_SHAPE", "reshape", "shape", f"is {text_of(wanted)}", f"{a.size} elements (input)")
        wanted[wanted.index(-1)] = a.size // known
    if math.prod(wanted) != a.size:
        got, due = f"is {text_of(wanted)}", f"{a.size} elements (input has shape {text_of(source)})"
        refuse("INVALID_SHAPE", "reshape", "shape", got, due)
    valid = _valid_of_reshape(input, source, wanted, valid_shape)
    if not inplace:
        cells = input._box.cells
        seen = snapshot(input, a.reshape(wanted), valid, None, None if cells is None else cells.reshape(wanted))
        return seen
    return _same_memory("reshape", input, wanted, valid)


def _same_memory(name: str, input: Tensor, shape: list[int], valid: Any) -> Tensor:
    if input._box.fixed:
        input._box.own()
    a = values(name, input)
    seen = a.reshape(shape)
    if seen.size and not np.shares_memory(seen, a):
        refuse("INVALID_STRIDE", name, "input", "lies in memory with gaps", "contiguous memory (inplace)")
    t = alias(input, seen)
    t._valid = valid
    if input._box.cells is not None:
        t._box.cells = input._box.cells.reshape(shape)
    return t


def _valid_of_reshape(t: Tensor, source: Sequence[int], shape: Sequence[int], given: Any) -> Any:
    if given is not None:
        given = sizes("reshape", "valid_shape", given)
        if len(given) != len(shape) or any(not 0 <= v <= n for v, n in zip(given, shape)):
            refuse("INVALID_SHAPE", "reshape", "valid_shape", f"is {text_of(given)}", f"within {text_of(shape)}")
        return fit_valid(given, shape)
    if t._valid is None:
        return None
    # Partial axes keep their place when as many elements lie before them and behind them.
    valid = list(shape)
    for axis, (v, n) in enumerate(zip(t._valid, source)):
        if v == n:
            continue
        before, behind = math.prod(source[:axis]), math.prod(source[axis + 1 :])
        for place, size in enumerate(shape):
            if size == n and (math.prod(shape[:place]), math.prod(shape[place + 1 :])) == (before, behind):
                valid[place] = v
                break
        else:
            got = f"is missing for a valid region {text_of(t._valid)} of {text_of(source)}"
            refuse("INVALID_ARGUMENT", "reshape", "valid_shape", got, f"what is valid of {text_of(shape)}")
    return fit_valid(tuple(valid), shape)


@operation
def unsqueeze(input: Any, dim: Any) -> Tensor:
    """An axis of size 1 at `dim`, in the same memory: writes pass through."""
    shape = check_tensor("unsqueeze", input).shape
    axis = axis_of("unsqueeze", dim, len(shape) + 1)
    valid = None
    if input._valid is not None:
        valid = (*input._valid[:axis], 1, *input._valid[axis:])
    shape.insert(axis, 1)
    return _same_memory("unsqueeze", input, [int(n) for n in shape], valid)


@operation
def permute(input_tensor: Any, dims: Any) -> Tensor:
    """The axes in the order `dims`."""
    rank = len(check_tensor("permute", input_tensor).shape)
    order = [axis_of("permute", d, rank, "dims") for d in sizes("permute", "dims", dims)]
    if sorted(order) != list(range(rank)):
        refuse("INVALID_ARGUMENT", "permute", "dims", f"is {text_of(order)}", f"each of 0..{rank - 1} once")
    return _permuted("permute", input_tensor, order)


@operation
def transpose(input: Any, dim0: Any, dim1: Any) -> Tensor:
    """Two axes exchanged."""
    rank = len(check_tensor("transpose", input).shape)
    order = list(range(rank))
    a, b = axis_of("transpose", dim0, rank, "dim0"), axis_of("transpose", dim1, rank, "dim1")
    order[a], order[b] = order[b], order[a]
    return _permuted("transpose", input, order)


def _permuted(name: str, t: Tensor, order: list[int]) -> Tensor:
    valid = None if t._valid is None else tuple(t._valid[i] for i in order)
    cells = t._box.cells
    return snapshot(t, values(name, t).transpose(order), valid, None, None if cells is None else cells.transpose(order))


@operation
def expand_clone(input: Any, shape: Any, *, valid_shape: Any = None) -> Tensor:
    """A copy with axes of size 1 repeated."""
    a = values("expand_clone", check_tensor("expand_clone", input))
    wanted = sizes("expand_clone", "shape", shape)
    if len(wanted) != a.ndim or any(n not in (m, *(() if m != 1 else (n,))) for n, m in zip(wanted, a.shape)):
        due = f"{text_of(a.shape)} with axes of size 1 enlarged (input)"
        refuse("INVALID_SHAPE", "expand_clone", "shape", f"is {text_of(wanted)}", due)
    valid = input._valid
    if valid is not None:
        valid = fit_valid(tuple(n if m == 1 else v for v, n, m in zip(valid, wanted, a.shape)), wanted)
    if valid_shape is not None:
        valid = fit_valid(sizes("expand_clone", "valid_shape", valid_shape), wanted)
    return made(np.broadcast_to(a, wanted).copy(), input._dtype, valid)


@operation
def clone(input: Any) -> Tensor:
    """A copy."""
    return made(values("clone", check_tensor("clone", input)).copy(), input._dtype, input._valid)


@operation
def concat(tensors: Any, dim: Any = 0) -> Tensor:
    """One behind the other along an axis; only the last may be partly valid there."""
    if not isinstance(tensors, (list, tuple)) or not tensors:
        refuse("INVALID_DTYPE", "concat", "tensors", f"is {shown(tensors)}", "a list of tensors")
    first = check_tensor("concat", tensors[0], "tensors")
    shape = first.shape
    axis = axis_of("concat", dim, len(shape))
    for place, t in enumerate(tensors):
        check_tensor("concat", t, "tensors")
        if t._dtype is not first._dtype:
            got, wanted = f"has dtype {t._dtype.word}", f"{first._dtype.word} (dtype of tensors[0])"
            refuse("INVALID_DTYPE", "concat", "tensors", got, wanted, f"[{place}]")
        own = t.shape
        if len(own) != len(shape) or any(a != b for i, (a, b) in enumerate(zip(own, shape)) if i != axis):
            wanted = f"{text_of(shape)} but for axis {axis} (tensors[0])"
            refuse("INVALID_SHAPE", "concat", "tensors", f"has shape {text_of(own)}", wanted, f"[{place}]")
    a = np.concatenate([values("concat", t, "tensors") for t in tensors], axis)
    if all(t._valid is None for t in tensors):
        return made(a, first._dtype)
    return made(a, first._dtype, _valid_of_concat(tensors, axis, a.shape))


def _valid_of_concat(tensors: Sequence[Tensor], axis: int, shape: tuple[int, ...]) -> Any:
    total, rest = 0, None
    for place, t in enumerate(tensors):
        own = t.valid_shape
        others = [v for i, v in enumerate(own) if i != axis]
        if rest is not None and others != rest:
            got, wanted = f"has valid shape {text_of(own)}", f"that of the others but for axis {axis}"
            refuse("INVALID_SHAPE", "concat", "tensors", got, wanted, f"[{place}]")
        if own[axis] != t.shape[axis] and place != len(tensors) - 1:
            got, wanted = f"has {own[axis]} valid of {t.shape[axis]}", "all valid, but for the last tensor"
            refuse("INVALID_SHAPE", "concat", "tensors", got, wanted, f"[{place}]")
        rest, total = others, total + int(own[axis])
    valid = list(rest or [])
    valid.insert(axis, total)
    return fit_valid(tuple(valid), shape)
