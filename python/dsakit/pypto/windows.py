# SPDX-License-Identifier: Apache-2.0
"""Windows of tensors, read and written: views, slices, single elements, assembling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import shown
from .dtypes import INT32, check_dtype, number_bits
from .elementwise import is_number
from .indexing import gather, scatter_
from .scalars import Element, SymInt
from .state import operation, refuse, refuse_on_chip, state
from .tensor import (
    Tensor,
    check_tensor,
    fit_valid,
    made,
    sizes,
    snapshot,
    text_of,
    valid_values,
    values,
    writable,
    written,
)


def _cells(t: Tensor, index: Any) -> Any:
    return None if t._box.cells is None else t._box.cells[index]


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
    a = t._box.a
    if t._valid is None and valid_shape is None and a is not None and _is_plain(key, a.shape):
        return snapshot(t, a[key], None, None, _cells(t, key))
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


def _is_plain(key: Any, shape: tuple[int, ...]) -> bool:
    """Whether numpy does with a key what a view does: non-empty slices inside, at least one, and ints."""
    keys = key if type(key) is tuple else (key,)
    slices = len(shape) - len(keys)
    if slices < 0:
        return False
    for k, n in zip(keys, shape):
        if type(k) is slice:
            start, stop = k.start, k.stop
            if k.step is not None or (start is not None and not (isinstance(start, int) and 0 <= start < n)):
                return False
            if stop is not None and not (isinstance(stop, int) and (start or 0) < stop <= n):
                return False
            if n == 0 or start is True or stop is True or start is False:
                return False
            slices += 1
        elif not isinstance(k, int) or k is True or k is False or not -n <= k < n:
            return False
    return slices > 0


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
