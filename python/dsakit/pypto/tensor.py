# SPDX-License-Identifier: Apache-2.0
"""Tensors: values that may be shared (views are values as of their call: copy on write) and a valid region."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import numpy as np

from ..errors import shown
from . import names
from .dtypes import BF16, FP32, bfloat16, check_dtype, floats
from .names import StatusType, TileOpFormat
from .scalars import SymInt, symint
from .state import place, refuse, state

Array = np.ndarray[Any, Any]


class Storage:
    """Memory that several tensors may see. `argument`: its place among those of the kernel."""

    __slots__ = ("argument", "snapshots", "written")

    def __init__(self, argument: Any = None) -> None:
        self.argument = argument
        self.snapshots: list[weakref.ref[Box]] = []
        self.written = False


class Box:
    """The values of a tensor. `fixed`: as of a call, in memory that belongs to somebody else who may write to it."""

    __slots__ = ("__weakref__", "a", "cells", "fixed", "storage")

    def __init__(self, a: Array | None, storage: Storage | None = None, fixed: bool = False) -> None:
        self.a, self.storage, self.fixed = a, storage, fixed
        self.cells: Any = None  # under debug.check: who wrote each element, in the order of `a`

    def own(self) -> None:
        """Values that nobody else writes to."""
        self.a, self.storage, self.fixed = self.a.copy(), None, False
        if self.cells is not None:
            self.cells = self.cells.copy()


class Tensor:
    """`Tensor(shape, dtype=DT_FP32, name="", format=TILEOP_ND)`: in a body, one without values before something is written
    to it; as an annotation, also `Tensor[[shape], dtype]`, a parameter. Axes are ints, DYNAMIC or STATIC; `...` at the end:
    the others are static."""

    __slots__ = ("__weakref__", "_box", "_dtype", "_dynamic", "_format", "_shape", "_valid", "name")

    def __init__(
        self,
        shape: Any = None,
        dtype: Any = None,
        name: str = "",
        format: Any = TileOpFormat.TILEOP_ND,
        data_ptr: Any = None,
        device: Any = None,
        ori_shape: Any = None,
    ) -> None:
        for given, word in ((data_ptr, "data_ptr"), (device, "device"), (ori_shape, "ori_shape")):
            if given is not None:
                refuse("UNSUPPORTED", "Tensor", word, f"is {shown(given)}", "None (from_torch takes memory)")
        self._shape = None if shape is None else _declared(shape)
        self._dtype = dtype if dtype is None and shape is None else check_dtype("Tensor", "dtype", dtype or FP32)
        if not isinstance(format, TileOpFormat):
            refuse("INVALID_DTYPE", "Tensor", "format", f"is {shown(format)}", "TILEOP_ND or TILEOP_NZ")
        self._box, self._valid, self._dynamic = Box(None), None, None
        self._format, self.name = format, name

    def __class_getitem__(cls, item: Any) -> Tensor:
        return cls(*item) if isinstance(item, tuple) else cls(item)

    # ---- what it is

    @property
    def shape(self) -> list[int]:
        """A fresh list."""
        a = self._box.a
        sizes = self._shape if a is None else a.shape
        if sizes is None:
            return []
        if self._dynamic is None:
            return list(sizes)
        return [symint(n) if d else n for n, d in zip(sizes, self._dynamic)]

    @property
    def valid_shape(self) -> list[int]:
        return self.shape if self._valid is None else list(self._valid)

    @property
    def dtype(self) -> Any:
        return self._dtype

    @property
    def format(self) -> TileOpFormat:
        return self._format

    @property
    def dim(self) -> int:
        return len(self.shape)

    def set_cache_policy(self, policy: Any, value: Any) -> None:
        """Of no effect on values."""
        _check_policy("set_cache_policy", policy)

    def get_cache_policy(self, policy: Any) -> bool:
        _check_policy("get_cache_policy", policy)
        return False

    def __len__(self) -> int:
        return self.shape[0]

    def __bool__(self) -> NoReturn:
        wanted = "an operation (pypto.where, maximum, minimum, clip compute with conditions)"
        refuse("INVALID_DTYPE", "Tensor", "self", "has no truth value", wanted)
        raise AssertionError

    def __getattr__(self, name: str) -> Any:
        if name == "to":
            raise AttributeError("a pypto tensor has no 'to', wanted 'cast' (pypto.cast(t, dtype))")
        if name in names.NOT_OFFERED["Tensor"]:
            return names.NotOffered("Tensor", name)
        raise AttributeError(f"a pypto tensor has no attribute {name!r}")

    def __mod__(self, other: Any) -> NoReturn:
        names.refuse("Tensor", "__mod__")

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(self.shape[0]))

    def __repr__(self) -> str:
        head = f"Tensor({self.shape}, {self._dtype and self._dtype.name}"
        if self._valid is not None:
            head += f", valid {list(self._valid)}"
        if self._box.a is None:
            return head + ", not written)"
        return head + ")\n" + str(self.numpy())

    def numpy(self) -> Array:
        """A copy of the values, with 0 outside of the valid region; bf16 as ml_dtypes.bfloat16."""
        a = values("numpy", self)
        if self._valid is not None:
            kept = np.zeros(a.shape, a.dtype)
            kept[self.region()] = a[self.region()]
            a = kept
        a = a.copy()
        return a.view(bfloat16) if self._dtype is BF16 else a

    def region(self) -> tuple[slice, ...]:
        """The valid region as an index."""
        return tuple(slice(0, n) for n in self.valid_shape)

    def valid_floats(self) -> Array:
        """The valid values as fp32 (integers: float64)."""
        a = values("numpy", self)[self.region()]
        return floats(a, self._dtype) if self._dtype.kind == "f" else a.astype(np.float64)


tensor = Tensor


def made(a: Array, dtype: Any, valid: Any = None, box: Box | None = None) -> Tensor:
    """A tensor of these values."""
    t: Tensor = object.__new__(Tensor)
    t._box = Box(a) if box is None else box
    t._dtype, t._valid, t._shape, t._dynamic = dtype, valid, None, None
    t._format, t.name = TileOpFormat.TILEOP_ND, ""
    return t


def check_tensor(name: str, t: Any, parameter: str = "input") -> Tensor:
    if not isinstance(t, Tensor):
        refuse("INVALID_DTYPE", name, parameter, f"is {shown(t)}", "a pypto tensor")
    return t


def values(name: str, t: Any, parameter: str = "input") -> Array:
    """What an operation reads."""
    if not isinstance(t, Tensor):
        refuse("INVALID_DTYPE", name, parameter, f"is {shown(t)}", "a pypto tensor")
    a = t._box.a
    if a is None:
        refuse(
            "INVALID_VALUE",
            name,
            parameter,
            f"{t.name + ' ' if t.name else ''}has no values yet",
            "a write before it is read",
        )
    return a


def valid_values(name: str, t: Any, parameter: str = "input") -> Array:
    """Its valid region alone."""
    a = values(name, t, parameter)
    return a if t._valid is None else a[t.region()]


def snapshot(t: Tensor, a: Array, valid: Any = None, dtype: Any = None, cells: Any = None) -> Tensor:
    """A tensor whose values `a` lie in the memory of t: they stay what they are when t is written to."""
    source = t._box
    if source.storage is None:
        source.storage = Storage()
    box = Box(a, source.storage, True)
    box.cells = cells
    kept = source.storage.snapshots
    if len(kept) >= 32 and len(kept) & (len(kept) - 1) == 0:  # now and then, those that are gone
        kept[:] = [r for r in kept if r() is not None]
    kept.append(weakref.ref(box))
    seen = made(None, dtype or t._dtype, valid, box)
    seen._format = t._format
    return seen


def fit_valid(valid: tuple[int, ...], shape: Sequence[int]) -> Any:
    """None where everything is valid."""
    return None if tuple(valid) == tuple(shape) else tuple(int(v) for v in valid)


def writable(t: Tensor, box: Any = Ellipsis) -> Array:
    """The values of t to be written at `box`, an index: views keep theirs, and an argument what it had."""
    b = t._box
    if b.a is None:
        b.a = np.zeros(tuple(int(n) for n in t._shape or ()), t._dtype.np)
        if state.observers:
            allocated(t)
    elif b.fixed:
        b.own()
    storage = b.storage
    if storage is not None:
        if storage.snapshots:
            _keep(storage, b.a[box])
        if storage.argument is not None:
            if not b.a.flags.writeable:
                refuse("INVALID_DEVICE", "assemble", t.name or "tensor", "is read-only", "writable memory")
            storage.written = True
            if state.frame is not None:
                state.frame.log(b.a, box)
    return b.a


def allocated(t: Tensor) -> None:
    for observer in state.observers:
        observer.allocated(t, place())


def written(name: str, t: Tensor, index: Any, assembled: bool = False) -> None:
    """For debugging: elements at `index` of t have values."""
    for observer in state.observers:
        observer.wrote(name, t, index, assembled)


def _keep(storage: Storage, region: Any) -> None:
    left = []
    for ref in storage.snapshots:
        box = ref()
        if box is None or not box.fixed or box.storage is not storage:
            continue
        if np.may_share_memory(box.a, region):
            box.own()
        else:
            left.append(ref)
    storage.snapshots = left


def alias(t: Tensor, a: Array) -> Tensor:
    """Another shape of the same memory: writes pass through."""
    if t._box.storage is None:
        t._box.storage = Storage()
    return made(None, t._dtype, None, Box(a, t._box.storage))


def _check_policy(name: str, policy: Any) -> None:
    if not isinstance(policy, names.CachePolicy):
        refuse("INVALID_DTYPE", name, "policy", f"is {shown(policy)}", "one of pypto.CachePolicy")


def _declared(shape: Any) -> tuple[Any, ...]:
    if not isinstance(shape, (list, tuple)):
        refuse("INVALID_DTYPE", "Tensor", "shape", f"is {shown(shape)}", "a list of sizes")
    for axis, n in enumerate(shape):
        if isinstance(n, StatusType) or (n is Ellipsis and axis == len(shape) - 1):
            continue
        if isinstance(n, bool) or not isinstance(n, (int, np.integer)):
            wanted = "an int, DYNAMIC, STATIC, or ... at the end"
            refuse("INVALID_DTYPE", "Tensor", "shape", f"is {shown(n)}", wanted, f"[{axis}]")
        if n < 0:
            refuse("INVALID_SHAPE", "Tensor", "shape", f"is {n}", "0 or more", f"[{axis}]")
    return tuple(n if isinstance(n, StatusType) or n is Ellipsis else int(n) for n in shape)


def sizes(name: str, parameter: str, given: Any) -> tuple[int, ...]:
    """A list of sizes or offsets as the caller gives it."""
    if not isinstance(given, (list, tuple)):
        given = (given,)
    out = []
    for axis, n in enumerate(given):
        if type(n) is int:
            out.append(n)
        elif isinstance(n, SymInt) or (not isinstance(n, bool) and isinstance(n, (int, np.integer))):
            out.append(int(n))
        else:
            refuse("INVALID_DTYPE", name, parameter, f"is {shown(n)}", "an integer", f"[{axis}]")
    return tuple(out)


def axis_of(name: str, dim: Any, rank: int, parameter: str = "dim") -> int:
    if isinstance(dim, bool) or not isinstance(dim, (int, np.integer)):
        refuse("INVALID_DTYPE", name, parameter, f"is {shown(dim)}", "an integer")
    if not -rank <= dim < rank:
        refuse("INVALID_ARGUMENT", name, parameter, f"is {int(dim)}", f"{-rank}..{rank - 1} (rank of input)")
    return int(dim) % rank


def text_of(a: Sequence[int]) -> str:
    return str([int(n) for n in a])
