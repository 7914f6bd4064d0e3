# SPDX-License-Identifier: Apache-2.0
"""Operations that move values: views, shapes, concatenation, gathering and scattering."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import shown
from ..weights import FractalNZ
from .dtypes import BF16, BOOL, FP32, INT32, INT64, OF_WORD, bfloat16, check_dtype, number_bits
from .elementwise import is_number
from .scalars import Element, SymInt
from .state import operation, refuse, refuse_on_chip, state
from .tensor import (
    Array,
    Tensor,
    alias,
    axis_of,
    check_tensor,
    fit_valid,
    made,
    sizes,
    snapshot,
    text_of,
    valid_values,
    values,
    writable,
)


def _cells(t: Tensor, index: Any) -> Any:
    return None if t._box.cells is None else t._box.cells[index]


# ---- windows


@operation
def view(input: Any, shape: Any = None, offsets: Any = None, *, valid_shape: Any = None, dtype: Any = None) -> Tensor:
    """A window of `shape` at `offsets`, of equal rank; it may exceed the source, and what lies beyond is not valid.
    valid_shape: what of it is valid. dtype: the bytes read as another dtype, with the last axis scaled."""
    check_tensor("view", input)
    if dtype is not None:
        input = _reread(input, dtype)
        if shape is None:
            return input
    source = input.shape
    if shape is None or offsets is None:
        missing = "shape" if shape is None else "offsets"
        refuse("INVALID_ARGUMENT", "view", missing, "is missing", "a list of sizes")
    return _window("view", input, source, sizes("view", "shape", shape), sizes("view", "offsets", offsets), valid_shape)


def _window(name: str, t: Tensor, source: Sequence[int], shape: Any, offsets: Any, given: Any) -> Tensor:
    rank = len(source)
    if len(shape) != rank or len(offsets) != rank:
        parameter, got = ("shape", shape) if len(shape) != rank else ("offsets", offsets)
        refuse("INVALID_SHAPE", name, parameter, f"has {len(got)} axes", f"{rank} (rank of input)")
    a = values(name, t)
    inside, valid = True, []
    for axis, (n, offset, size) in enumerate(zip(shape, offsets, source)):
        if offset < 0 or (offset >= size and (offset > 0 or n > 0) and not (offset == size == 0)):
            wanted = f"0..{max(size - 1, 0)} (axis of size {size})"
            refuse("INVALID_INDEX", name, "offsets", f"is {offset}", wanted, f"[{axis}]")
        if n < 0:
            refuse("INVALID_SHAPE", name, "shape", f"is {n}", "0 or more", f"[{axis}]")
        inside = inside and offset + n <= size
        limit = size if t._valid is None else t._valid[axis]
        valid.append(min(max(limit - offset, 0), n))
    if given is not None:
        given = sizes(name, "valid_shape", given)
        if len(given) != rank:
            refuse("INVALID_SHAPE", name, "valid_shape", f"has {len(given)} axes", f"{rank} (rank of input)")
        for axis, (v, n, offset, size) in enumerate(zip(given, shape, offsets, source)):
            if not 0 <= v <= min(n, size - offset):
                wanted = f"0..{min(n, size - offset)} (window of {n} at {offset} of {size})"
                refuse("INVALID_SHAPE", name, "valid_shape", f"is {v}", wanted, f"[{axis}]")
        valid = list(given)
    index = tuple([slice(offset, offset + n) for offset, n in zip(offsets, shape)])
    if inside:
        return snapshot(t, a[index], fit_valid(tuple(valid), shape), None, _cells(t, index))
    wide = np.zeros(shape, a.dtype)
    part = a[index]
    wide[tuple(slice(0, n) for n in part.shape)] = part
    return made(wide, t._dtype, fit_valid(tuple(valid), shape))


def _reread(t: Tensor, dtype: Any) -> Tensor:
    check_dtype("view", "dtype", dtype)
    a = values("view", t)
    if t._valid is not None and t._valid[-1] != a.shape[-1]:
        refuse(
            "INVALID_SHAPE", "view", "input", f"has valid shape {text_of(t._valid)}", "a last axis that is all valid"
        )
    if a.shape[-1] * t._dtype.np.itemsize % dtype.np.itemsize:
        got, wanted = f"has {a.shape[-1]} elements in a row", f"a multiple of {dtype.np.itemsize} bytes ({dtype.word})"
        refuse("INVALID_SHAPE", "view", "input", got, wanted)
    if not (a.shape[-1] == 1 or a.strides[-1] == a.itemsize):
        a = np.ascontiguousarray(a)
    seen = a.view(dtype.np)
    valid = None if t._valid is None else (*t._valid[:-1], seen.shape[-1])
    return snapshot(t, seen, valid, dtype)


def item(t: Tensor, key: Any, valid_shape: Any = None) -> Any:
    """t[key]: a view, its int axes dropped; t[dim:index]: gather; one element of an integer tensor: a SymInt."""
    if type(key) is slice and isinstance(key.stop, Tensor):
        return gather.raw(t, key.start, key.stop)
    source = t.shape
    offsets, stops, dropped = _key("__getitem__", key, source)
    if len(dropped) == len(source) and source:
        return _element("__getitem__", t, offsets)
    shape = tuple([stop - start for start, stop in zip(offsets, stops)])
    window = _window("__getitem__", t, source, shape, offsets, valid_shape)
    if not dropped:
        return window
    box = window._box
    box.a = box.a.reshape([n for axis, n in enumerate(shape) if axis not in dropped])
    if box.cells is not None:
        box.cells = box.cells.reshape(box.a.shape)
    if window._valid is not None:
        window._valid = fit_valid(tuple(v for i, v in enumerate(window._valid) if i not in dropped), box.a.shape)
    return window


def _key(name: str, key: Any, source: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
    """Where a key starts and stops on every axis, and the axes that ints drop."""
    keys = list(key) if isinstance(key, tuple) else [key]
    for place, k in enumerate(keys):
        if k is Ellipsis:
            keys[place : place + 1] = [slice(None)] * (len(source) - len(keys) + 1)
            break
    if len(keys) > len(source):
        refuse("INVALID_INDEX", name, "key", f"has {len(keys)} entries", f"at most {len(source)} (rank)")
    offsets, stops, dropped = [], [], []
    for axis, n in enumerate(source):
        k = keys[axis] if axis < len(keys) else slice(None)
        if type(k) is slice:
            if k.step is not None:
                refuse("INVALID_ARGUMENT", name, "key", f"has the step {shown(k.step)}", "no step", f"[{axis}]")
            start = 0 if k.start is None else _bound(name, k.start, axis)
            stop = n if k.stop is None else _bound(name, k.stop, axis)
            start, stop = start + n * (start < 0), stop + n * (stop < 0)
            if stop < start:
                refuse("INVALID_INDEX", name, "key", f"is {start}:{stop}", "a stop not before the start", f"[{axis}]")
        else:
            start = _bound(name, k, axis)
            if not -n <= start < n:
                refuse("INVALID_INDEX", name, "key", f"is {start}", f"{-n}..{n - 1} (axis of size {n})", f"[{axis}]")
            start += n * (start < 0)
            stop = start + 1
            dropped.append(axis)
        offsets.append(int(start))
        stops.append(int(stop))
    return offsets, stops, dropped


def _bound(name: str, k: Any, axis: int) -> int:
    if isinstance(k, (bool, np.bool_)) or not isinstance(k, (int, np.integer)):
        refuse("INVALID_DTYPE", name, "key", f"is {shown(k)}", "an integer or a slice", f"[{axis}]")
    return int(k)


def _check_elements(name: str, t: Tensor) -> None:
    if t._dtype.kind not in ("i", "u"):
        refuse("INVALID_DTYPE", name, "tensor", f"has dtype {t._dtype.word}", "int32 (single elements)")
    if t._dtype is not INT32 and state.level == "strict":
        refuse_on_chip(name, "tensor", f"has dtype {t._dtype.word}", "int32 (single elements)")


def _element(name: str, t: Tensor, at: list[int]) -> SymInt:
    _check_elements(name, t)
    a = values(name, t)
    if t._valid is not None and any(i >= v for i, v in zip(at, t._valid)):
        refuse("INVALID_INDEX", name, "key", f"is {text_of(at)}", f"inside the valid {text_of(t._valid)}")
    for observer in state.observers:
        observer.read(name, t, tuple(at))
    return SymInt(int(a[tuple(at)]))


def set_item(t: Tensor, key: Any, value: Any) -> None:
    """t[:] = v, t[a:, b:] = v, t[i, j] = 5, t[dim:index] = v."""
    if key is Ellipsis or (type(key) is slice and key == slice(None)):
        move.raw(t, value)
        return
    if type(key) is slice and isinstance(key.stop, Tensor):
        scatter_.raw(t, key.start, key.stop, value)
        return
    source = t.shape
    offsets, stops, dropped = _key("__setitem__", key, source)
    if not isinstance(value, Tensor):
        _set_element(t, source, offsets, dropped, value)
        return
    if len(value.shape) == len(source) - len(dropped) and dropped:
        a = values("__setitem__", value, "value")
        shape = list(a.shape)
        for axis in dropped:
            shape.insert(axis, 1)
        valid = None
        if value._valid is not None:
            valid = list(value._valid)
            for axis in dropped:
                valid.insert(axis, 1)
        value = snapshot(value, a.reshape(shape), None if valid is None else tuple(valid))
    keys = key if isinstance(key, tuple) else (key,)
    if Ellipsis not in keys:
        for axis, k in enumerate(keys):
            n = stops[axis] - offsets[axis]
            if type(k) is slice and k.stop is not None and axis < len(value.shape) and n != value.shape[axis]:
                wanted = f"{n} ({offsets[axis]}:{stops[axis]} of axis {axis})"
                refuse(
                    "INVALID_SHAPE", "__setitem__", "value", f"has {value.shape[axis]} elements", wanted, f"[{axis}]"
                )
    assemble.raw(value, offsets, t)


def _set_element(t: Tensor, source: Sequence[int], at: list[int], dropped: list[int], value: Any) -> None:
    if len(dropped) != len(source) or not (is_number(value) or isinstance(value, Element)):
        refuse(
            "INVALID_DTYPE", "__setitem__", "value", f"is {shown(value)}", "a pypto tensor (a number for one element)"
        )
    _check_elements("__setitem__", t)
    number = value.value if isinstance(value, Element) else value
    if isinstance(number, (float, np.floating)):
        refuse("INVALID_DTYPE", "__setitem__", "value", f"is {number}", f"an integer ({t._dtype.word} tensor)")
    bits = number_bits("__setitem__", number, t._dtype)
    index = tuple(at)
    box = tuple(slice(i, i + 1) for i in at)
    writable(t, box)[index] = bits
    written("__setitem__", t, box)


def written(name: str, t: Tensor, index: Any, assembled: bool = False) -> None:
    """For debugging: elements at `index` of t have values."""
    for observer in state.observers:
        observer.wrote(name, t, index, assembled)


# ---- writing


@operation
def move(self: Any, other: Any) -> None:
    """`t[:] = v`: a local t takes v's values, dtype, shape and valid region; an argument gets its bytes."""
    check_tensor("move", self, "self")
    if is_number(other) or isinstance(other, Element):
        refuse("INVALID_DTYPE", "move", "other", f"is {shown(other)}", "a pypto tensor (pypto.full makes one)")
    a = values("move", check_tensor("move", other, "other"), "other")
    storage = self._box.storage
    if storage is None or storage.argument is None or self._box.fixed:
        if self._shape is not None and -1 not in self._shape and state.level == "strict":
            declared = tuple(self._shape)
            if declared != tuple(a.shape) or self._dtype is not other._dtype:
                got = f"has shape {text_of(a.shape)}, {other._dtype.word}"
                refuse_on_chip("move", "other", got, f"{list(declared)}, {self._dtype.word} (as declared)")
        self._box, self._dtype, self._valid = other._box, other._dtype, other._valid
        self._dynamic, self._format = other._dynamic, other._format
        return
    own = self._box.a
    if own is a or (own.ctypes.data == a.ctypes.data and own.strides == a.strides and own.shape == a.shape):
        storage.written = True
        written("move", self, Ellipsis)
        return
    if tuple(own.shape) != tuple(a.shape):
        refuse("INVALID_SHAPE", "move", "other", f"has shape {text_of(a.shape)}", f"{text_of(own.shape)} (an argument)")
    if self._dtype is not other._dtype:
        got, wanted = f"has dtype {other._dtype.word}", f"{self._dtype.word} (an argument)"
        refuse("INVALID_DTYPE", "move", "other", got, wanted)
    index = Ellipsis if other._valid is None else other.region()
    source = a.copy() if np.may_share_memory(a, own) else a
    writable(self, index)[index] = source[index]
    written("move", self, index)


@operation
def assemble(src: Any, offsets: Any = None, dst: Any = None, parallel: bool = False) -> None:
    """Writes the valid part of src into dst at offsets, both of equal rank and dtype. Also `assemble([(src, offsets), ...],
    dst, parallel)`: later ones win."""
    if isinstance(src, (list, tuple)):
        target = dst if isinstance(offsets, bool) or offsets is None else offsets
        parts = src
    else:
        target, parts = dst, [(src, offsets)]
    check_tensor("assemble", target, "dst")
    boxes = [
        _box_of(part, target, place if isinstance(src, (list, tuple)) else None) for place, part in enumerate(parts)
    ]
    for t, index in boxes:
        a = valid_values("assemble", t, "src")
        own = target._box.a
        if own is not None and np.may_share_memory(a, own):
            a = a.copy()
        writable(target, index)[index] = a
        written("assemble", target, index, True)


def _box_of(part: Any, dst: Tensor, place: int | None) -> tuple[Tensor, tuple[slice, ...]]:
    where = "" if place is None else f"[{place}]"
    if not isinstance(part, (list, tuple)) or len(part) != 2:
        refuse("INVALID_DTYPE", "assemble", "srcs", f"is {shown(part)}", "(src, offsets)", where)
    src, offsets = part
    check_tensor("assemble", src, "src")
    if offsets is None:
        refuse("INVALID_ARGUMENT", "assemble", "offsets", "is missing", "a list of offsets")
    offsets = sizes("assemble", "offsets", offsets)
    shape, valid = dst.shape, src.valid_shape
    if len(valid) != len(shape) or len(offsets) != len(shape):
        parameter, n = ("src", len(valid)) if len(valid) != len(shape) else ("offsets", len(offsets))
        refuse("INVALID_SHAPE", "assemble", parameter, f"has {n} axes", f"{len(shape)} (rank of dst)", where)
    if src._dtype is not dst._dtype:
        got, wanted = f"has dtype {src._dtype.word}", f"{dst._dtype.word} (dtype of dst)"
        refuse("INVALID_DTYPE", "assemble", "src", got, wanted, where)
    for axis, (offset, v, n) in enumerate(zip(offsets, valid, shape)):
        if offset < 0 or offset + v > n:
            got, wanted = f"is {offset} for {v} elements", f"a box inside 0..{n - 1} (axis of dst)"
            refuse("INVALID_INDEX", "assemble", "offsets", got, wanted, f"{where}[{axis}]")
    return src, tuple([slice(o, o + v) for o, v in zip(offsets, valid)])


# ---- shapes


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


# ---- made from nothing


def _bits(name: str, value: Any, dtype: Any) -> Any:
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
    return made(np.full(shape, _bits(name, value, dtype), dtype.np), dtype, valid)


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


@operation
def one_hot(input: Any, num_classes: Any) -> Tensor:
    """[.., num_classes] INT64 with a 1 at the class."""
    a = values("one_hot", check_tensor("one_hot", input))
    if input._dtype.kind not in "iu":
        refuse("INVALID_DTYPE", "one_hot", "input", f"has dtype {input._dtype.word}", "an integer dtype")
    n = sizes("one_hot", "num_classes", num_classes)[0]
    check_range("one_hot", "input", a, n, f"{n} classes")
    valid = None if input._valid is None else (*input._valid, n)
    return made((a[..., None] == np.arange(n)).astype(np.int64), INT64, valid)


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


# ---- by index


def indices(name: str, parameter: str, index: Any) -> Array:
    check_tensor(name, index, parameter)
    if index._dtype.kind not in "iu":
        refuse("INVALID_DTYPE", name, parameter, f"has dtype {index._dtype.word}", "int32 or int64")
    return values(name, index, parameter)


def check_range(name: str, parameter: str, index: Array, n: int, why: str) -> None:
    bad = (index < 0) | (index >= n)
    if bad.any():
        at = np.argwhere(bad)[0]
        position = "".join(f"[{i}]" for i in at)
        refuse("INVALID_INDEX", name, parameter, f"is {int(index[tuple(at)])}", f"0..{n - 1} ({why})", position)


@operation
def gather(input: Any, dim: Any, index: Any) -> Tensor:
    """out[i][j][k] = input[index[i][j][k]][j][k] along dim 0, and so on."""
    a = values("gather", check_tensor("gather", input))
    axis = axis_of("gather", dim, a.ndim)
    i = indices("gather", "index", index)
    if i.ndim != a.ndim or any(m > n for x, (m, n) in enumerate(zip(i.shape, a.shape)) if x != axis):
        wanted = f"within {text_of(a.shape)} but for axis {axis} (shape of input)"
        refuse("INVALID_SHAPE", "gather", "index", f"has shape {text_of(i.shape)}", wanted)
    check_range("gather", "index", valid_values("gather", index), a.shape[axis], f"axis {axis} of input")
    if index._valid is not None:
        i = np.clip(i, 0, max(a.shape[axis] - 1, 0))
    part = a[tuple(slice(None) if x == axis else slice(0, m) for x, m in enumerate(i.shape))]
    return made(np.take_along_axis(part, i.astype(np.int64), axis), input._dtype, index._valid)


@operation
def index_select(input: Any, dim: Any, index: Any) -> Tensor:
    """The slices of an axis that a list names: index is 1-D, or 2-D with an axis of size 1."""
    a = values("index_select", check_tensor("index_select", input))
    axis = axis_of("index_select", dim, a.ndim)
    i = indices("index_select", "index", index)
    if not (i.ndim == 1 or (i.ndim == 2 and 1 in i.shape)):
        wanted = "one axis, or two of which one is of size 1"
        refuse("INVALID_SHAPE", "index_select", "index", f"has shape {text_of(i.shape)}", wanted)
    used = valid_values("index_select", index).reshape(-1)
    check_range("index_select", "index", used, a.shape[axis], f"axis {axis} of input")
    count = i.size
    wide = np.zeros(count, np.int64)
    wide[: used.size] = used
    valid = list(input.valid_shape)
    valid[axis] = used.size
    out = a.take(wide, axis)
    return made(out, input._dtype, fit_valid(tuple(valid), out.shape))


def _scattered(name: str, a: Array, input: Tensor, dim: Any, index: Any, src: Any, reduce: Any) -> None:
    if reduce is not None:
        refuse("UNSUPPORTED", name, "reduce", f"is {shown(reduce)}", "None")
    axis = axis_of(name, dim, a.ndim)
    i = indices(name, "index", index)[index.region()]
    if i.ndim != a.ndim or any(m > n for x, (m, n) in enumerate(zip(i.shape, a.shape)) if x != axis):
        wanted = f"within {text_of(a.shape)} but for axis {axis} (shape of input)"
        refuse("INVALID_SHAPE", name, "index", f"has shape {text_of(i.shape)}", wanted)
    check_range(name, "index", i, a.shape[axis], f"axis {axis} of input")
    if isinstance(src, Tensor):
        if src._dtype is not input._dtype:
            got, wanted = f"has dtype {src._dtype.word}", f"{input._dtype.word} (dtype of input)"
            refuse("INVALID_DTYPE", name, "src", got, wanted)
        v = values(name, src, "src")
        if v.ndim != i.ndim or any(m > n for m, n in zip(i.shape, v.shape)):
            refuse(
                "INVALID_SHAPE", name, "src", f"has shape {text_of(v.shape)}", f"{text_of(i.shape)} (shape of index)"
            )
        v = v[tuple(slice(0, m) for m in i.shape)]
    else:
        v = np.broadcast_to(_bits(name, src, input._dtype), i.shape)
    grids = list(np.indices(i.shape))
    grids[axis] = i
    flat = np.ravel_multi_index([g.reshape(-1) for g in grids], a.shape)
    _, last = np.unique(flat[::-1], return_index=True)  # of duplicates the last in row-major order
    keep = flat.size - 1 - last
    a[np.unravel_index(flat[keep], a.shape)] = v.reshape(-1)[keep]


@operation
def scatter(input: Any, dim: Any, index: Any, src: Any, *, reduce: Any = None) -> Tensor:
    """A copy with out[index[i][j]][j] = src[i][j] along dim 0, and so on; of duplicates the last."""
    a = values("scatter", check_tensor("scatter", input)).copy()
    _scattered("scatter", a, input, dim, index, src, reduce)
    return made(a, input._dtype, input._valid)


@operation
def scatter_(input: Any, dim: Any, index: Any, src: Any, *, reduce: Any = None) -> Tensor:
    """scatter in place."""
    made_of = values("scatter_", check_tensor("scatter_", input)).copy()
    _scattered("scatter_", made_of, input, dim, index, src, reduce)
    writable(input)[...] = made_of
    written("scatter_", input, Ellipsis)
    return input


@operation
def scatter_update(input: Any, dim: Any, index: Any, src: Any) -> Tensor:
    """Rows of src to the rows of a cache that index [b, s] names, in place: input [rows, d] and src [b * s, d], or input
    [blocks, block_size, 1, d] and src [b, s, 1, d]. Negative rows are skipped; of duplicates the last one stays."""
    name = "scatter_update"
    check_tensor(name, input)
    check_tensor(name, src, "src")
    shape = input.shape
    if dim != -2:
        refuse("INVALID_ARGUMENT", name, "dim", f"is {shown(dim)}", "-2")
    i = indices(name, "index", index)
    if src._dtype is not input._dtype:
        got, wanted = f"has dtype {src._dtype.word}", f"{input._dtype.word} (dtype of input)"
        refuse("INVALID_DTYPE", name, "src", got, wanted)
    if i.ndim != 2:
        refuse("INVALID_SHAPE", name, "index", f"has shape {text_of(i.shape)}", "[b, s]")
    if len(shape) not in (2, 4) or (len(shape) == 4 and shape[2] != 1):
        wanted = "[rows, d] or [blocks, block_size, 1, d]"
        refuse("INVALID_SHAPE", name, "input", f"has shape {text_of(shape)}", wanted)
    b, s = i.shape
    due = [b * s, shape[-1]] if len(shape) == 2 else [b, s, 1, shape[-1]]
    v = values(name, src, "src")
    if list(v.shape) != due:
        wanted = f"{text_of(due)} (index and last axis of input)"
        refuse("INVALID_SHAPE", name, "src", f"has shape {text_of(v.shape)}", wanted)
    if src._valid is not None or index._valid is not None:
        i = _valid_rows(name, i, index, src, len(shape))
    rows = shape[0] if len(shape) == 2 else shape[0] * shape[1]
    bad = i >= rows
    if bad.any():
        at = np.argwhere(bad)[0]
        blocks = "" if len(shape) == 2 else f" ({shape[0]} blocks of {shape[1]})"
        wanted = f"below {rows}{blocks}; negative entries skip the row"
        refuse("INVALID_SLOT", name, "index", f"is {int(i[tuple(at)])}", wanted, "".join(f"[{x}]" for x in at))
    _update_rows(input, i.reshape(-1), v.reshape(b * s, shape[-1]), src)
    return input


def _valid_rows(name: str, i: Array, index: Tensor, src: Tensor, rank: int) -> Array:
    """The index with -1 for rows that are not valid."""
    kept = np.full(i.shape, -1, np.int64)
    kept[index.region()] = i[index.region()]
    valid = src.valid_shape
    if valid[-1] != src.shape[-1]:
        refuse("INVALID_SHAPE", name, "src", f"has valid shape {text_of(valid)}", "whole rows")
    if rank == 2:
        kept.reshape(-1)[valid[0] :] = -1
    else:
        kept[valid[0] :] = -1
        kept[:, valid[1] :] = -1
    return kept


def _update_rows(cache: Tensor, rows: Array, v: Array, src: Tensor) -> None:
    used = np.flatnonzero(rows >= 0)
    if used.size == 0:
        return
    shape = cache.shape
    own = cache._box.a
    if own is not None and np.may_share_memory(v, own):
        v = v.copy()
    _, last = np.unique(rows[used][::-1], return_index=True)
    used = used[used.size - 1 - last]
    slots = rows[used].astype(np.int64)
    index = (slots,) if len(shape) == 2 else (slots // shape[1], slots % shape[1], np.zeros_like(slots))
    writable(cache, index)[index] = v[used]
    written("scatter_update", cache, index)


# ---- experimental


def paged_rows(name: str, table: Any, positions: Any, block_size: Any, blocks: int) -> Array:
    """The rows of a paged cache that logical positions name."""
    p = indices(name, "indices", positions)
    if p.ndim != 2 or p.shape[0] != 1:
        refuse("INVALID_SHAPE", name, "indices", f"has shape {text_of(p.shape)}", "[1, k]")
    pages = indices(name, "block_table", table)
    if pages.ndim != 2 or pages.shape[0] != 1:
        refuse("INVALID_SHAPE", name, "block_table", f"has shape {text_of(pages.shape)}", "[1, m]")
    size = sizes(name, "block_size", block_size)[0]
    if size < 1:
        refuse("INVALID_ARGUMENT", name, "block_size", f"is {size}", "1 or more")
    p = valid_values(name, positions, "indices")
    reach = valid_values(name, table, "block_table").shape[1] * size
    check_range(name, "indices", p, reach, f"{reach // size} pages of {size}")
    page = pages[0][p[0] // size]
    bad = (page < 0) | (page >= blocks)
    if bad.any():
        at = int(p[0][np.flatnonzero(bad)[0]] // size)
        got, wanted = f"is {int(pages[0][at])}", f"0..{blocks - 1} (pages of {size})"
        refuse("INVALID_BLOCK", name, "block_table", got, wanted, f"[0][{at}]")
    return page.astype(np.int64) * size + p[0] % size


def _gathered(name: str, source: Any, positions: Any, table: Any, block_size: Any, size: int | None) -> Tensor:
    a = values(name, check_tensor(name, source, "src"), "src")
    if a.ndim != 2:
        refuse("INVALID_SHAPE", name, "src", f"has shape {text_of(a.shape)}", "[rows, d]")
    bs = sizes(name, "block_size", block_size)[0]
    rows = paged_rows(name, table, positions, block_size, a.shape[0] // max(bs, 1))
    width = a.shape[1] if size is None else size
    if not 0 < width <= a.shape[1]:
        refuse("INVALID_ARGUMENT", name, "size", f"is {width}", f"1..{a.shape[1]} (columns of src)")
    k = positions.shape[1]
    out = np.zeros((k, width), a.dtype)
    out[: rows.size] = a[rows, :width]
    return made(out, source._dtype, fit_valid((rows.size, width), out.shape))


@operation
def gather_in_ub(param: Any, indices: Any, block_table: Any, block_size: Any, axis: Any) -> Tensor:
    """[k, d]: row table[p // block_size] * block_size + p % block_size of param for each valid position p."""
    if axis != -2:
        refuse("INVALID_ARGUMENT", "gather_in_ub", "axis", f"is {shown(axis)}", "-2")
    return _gathered("gather_in_ub", param, indices, block_table, block_size, None)


@operation
def gather_in_l1(
    src: Any, indices: Any, block_table: Any, block_size: Any, size: Any, is_b_matrix: bool, is_trans: bool
) -> Tensor:
    """[k, size]: the same rows, their first `size` columns. The flags change no values."""
    return _gathered("gather_in_l1", src, indices, block_table, block_size, sizes("gather_in_l1", "size", size)[0])


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


__all__ = [n for n, f in list(globals().items()) if hasattr(f, "raw")] + ["BOOL"]
