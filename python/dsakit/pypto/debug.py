# SPDX-License-Identifier: Apache-2.0
"""To see what a program computes: watch, dump, diff, first_nan, profile, check. Each is a context manager around calls of
kernels (diff compares two of their records); several may be on at once."""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import inspect
import json
import math
import struct
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np

from .. import _core
from ..errors import raise_error, shown
from .dtypes import OF_WORD, floats
from .names import SaturationMode
from .state import place, refuse, state
from .tensor import Array, Tensor

# Operations that write to a tensor -> that tensor, and what is written.
WRITERS = {
    "assemble": ("dst", "src"),
    "move": ("self", "other"),
    "__setitem__": ("self", "value"),
    "scatter_update": ("input", "src"),
    "scatter_": ("input", "src"),
}
VIEWS = {"view", "reshape", "transpose", "permute", "unsqueeze", "__getitem__"}


class Observer:
    """What operations tell while a debugging aid is on."""

    def before(self, name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> None: ...
    def after(self, name: str, function: Callable[..., Any], args: Any, kwargs: Any, result: Any) -> None: ...
    def allocated(self, t: Tensor, where: str) -> None: ...
    def read(self, name: str, t: Tensor, index: Any) -> None: ...
    def wrote(self, name: str, t: Tensor, index: Any, assembled: bool) -> None: ...
    def iteration(self) -> None: ...
    def note(self, text: str) -> None: ...


@contextlib.contextmanager
def _observing(observer: Any) -> Iterator[Any]:
    before = state.observers
    state.observers = (*before, observer)
    state.settle()
    try:
        yield observer
    finally:
        state.observers = before
        state.settle()


@cache
def _parameters(function: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(function).parameters)


def _tensors(args: Any, kwargs: Any) -> list[Tensor]:
    found: list[Tensor] = []
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += [v for v in value if isinstance(v, Tensor)]
            found += [w for v in value if isinstance(v, (list, tuple)) for w in v if isinstance(w, Tensor)]
    return found


def _results(name: str, function: Callable[..., Any], args: Any, kwargs: Any, result: Any) -> list[Tensor]:
    """What an operation made, or wrote somewhere."""
    if name in WRITERS:
        return _written(name, function, args, kwargs)[1]
    found = result if isinstance(result, (tuple, list)) else [result]
    return [t for t in found if isinstance(t, Tensor)]


def _written(name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> tuple[list[Tensor], list[Tensor]]:
    """Where an operation writes, and what."""
    given = dict(zip(_parameters(function), args)) | kwargs
    target, source = (given.get(word) for word in WRITERS[name])
    if isinstance(source, (list, tuple)):  # assemble([(src, offsets), ..], dst)
        target = given.get("offsets") if not isinstance(target, Tensor) else target
        return [t for t in (target,) if isinstance(t, Tensor)], [s for s, _ in source]
    return [t for t in (target,) if isinstance(t, Tensor)], [t for t in (source,) if isinstance(t, Tensor)]


# ---- records


@dataclasses.dataclass
class Operation:
    """One operation of a run. `occurrence`: which one of its label, name and loop indices."""

    number: int
    label: str
    op: str
    indices: dict[str, int]
    occurrence: int
    place: str
    shape: list[int]
    valid: list[int]
    dtype: str
    min: float
    max: float
    nan: int
    inf: int
    zero: int
    wrapped: int
    checksum: int
    values: Array | None = None

    @property
    def key(self) -> str:
        parts = [f"{self.number:04d}", self.label or "_", self.op, *(f"{k}={v}" for k, v in self.indices.items())]
        return ".".join(parts)

    def aligned(self) -> tuple[Any, ...]:
        return self.label, self.op, tuple(self.indices.items()), self.occurrence

    def __str__(self) -> str:
        where = "".join(f" {k}={v}" for k, v in self.indices.items())
        text = f"{self.number:>5} {self.label or '-'}/{self.op}{where} {self.dtype}{self.shape}"
        if self.valid != self.shape:
            text += f" valid {self.valid}"
        text += f" min {self.min:.6g} max {self.max:.6g}"
        for word in ("nan", "inf", "zero", "wrapped"):
            if getattr(self, word):
                text += f" {word} {getattr(self, word)}"
        return text + f" {self.checksum:08x} {self.place}"


class Record(Observer):
    """The operations that a pattern fits, in their order."""

    def __init__(self, pattern: str = "*", values: bool = False, when: Any = None) -> None:
        self.pattern = pattern if "/" in pattern else f"*/{pattern}" if pattern != "*" else "*"
        self.keeps, self.when = values, when
        self.operations: list[Operation] = []
        self.notes: list[str] = []  # what is no error and may be a mistake
        self._seen: dict[Any, int] = defaultdict(int)

    def __len__(self) -> int:
        return len(self.operations)

    def __iter__(self) -> Iterator[Operation]:
        return iter(self.operations)

    def __getitem__(self, place: int) -> Operation:
        return self.operations[place]

    def __str__(self) -> str:
        return "\n".join(str(o) for o in self.operations)

    def after(self, name: str, function: Callable[..., Any], args: Any, kwargs: Any, result: Any) -> None:
        if not _fits(self.pattern, name):
            return
        self._tile(name, args, kwargs)
        indices = {i.name: i.index for i in state.loops}
        if self.when is not None and not self.when(indices):
            return
        found = _results(name, function, args, kwargs, result)
        for place_, t in enumerate(found):
            op = name if len(found) == 1 else f"{name}.{place_}"
            self._add(op, indices, t, _wrapped(name, function, args, kwargs) if place_ == 0 else 0)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def _tile(self, name: str, args: Any, kwargs: Any) -> None:
        """Tiles that a device has no room for."""
        tensors = _tensors(args, kwargs)
        if not state.vec_tile or not tensors or name in VIEWS or name in ("matmul", "transposed_batchmatmul"):
            return
        size = math.prod(state.vec_tile) * tensors[0].dtype.np.itemsize
        limit = 64 if name in ("sum", "amax", "amin", "prod") else 192
        if size > limit * 1024:
            self.notes.append(f"{name}: a tile of {size} bytes, more than {limit} KiB ({place()})")

    def _add(self, op: str, indices: dict[str, int], t: Tensor, wrapped: int) -> None:
        a = t._box.a
        if a is None:
            return
        where = (state.label, op, tuple(indices.items()))
        occurrence = self._seen[where]
        self._seen[where] += 1
        a = np.ascontiguousarray(a[t.region()])
        f = floats(a, t._dtype) if t._dtype.kind == "f" else a
        finite = f[np.isfinite(f)] if t._dtype.kind == "f" else f
        self.operations.append(
            Operation(
                state.count, state.label, op, indices, occurrence, place(), [int(n) for n in t.shape],
                [int(n) for n in t.valid_shape], t._dtype.word,
                float(finite.min()) if finite.size else float("nan"),
                float(finite.max()) if finite.size else float("nan"),
                int(np.isnan(f).sum()) if t._dtype.kind == "f" else 0,
                int(np.isinf(f).sum()) if t._dtype.kind == "f" else 0,
                int((f == 0).sum()), wrapped, zlib.crc32(a.tobytes()),
                a.copy() if self.keeps else None,
            )
        )  # fmt: skip


def _fits(pattern: str, name: str) -> bool:
    return pattern == "*" or fnmatch.fnmatchcase(f"{state.label}/{name}", pattern)


def _wrapped(name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> int:
    """Elements that a cast without saturation did not keep."""
    if name != "cast":
        return 0
    given = dict(zip(_parameters(function), args)) | kwargs
    source, target = given["input"], given["dtype"]
    if given.get("satmode") is SaturationMode.ON or target.kind not in "iu":
        return 0
    a = source._box.a[source.region()]
    x = floats(a, source._dtype).astype(np.float64) if source._dtype.kind == "f" else a.astype(object)
    limits = np.iinfo(target.np)
    if source._dtype.kind == "f":
        x = np.rint(x)
    return int(((x < limits.min) | (x > limits.max)).sum())


@contextlib.contextmanager
def watch(
    pattern: str = "*", *, values: bool = False, when: Callable[[dict[str, int]], bool] | None = None
) -> Iterator[Record]:
    """Records the operations that fit "label/op" (an "op" alone: of every label; * and ? stand for others): number, loop
    indices, file:line, shape, valid, dtype, min, max, counts of NaN, Inf, 0 and wrapped, checksum; `values`: also the data.
    when(indices): whether an iteration is of interest."""
    with _observing(Record(pattern, values, when)) as record:
        yield record


@contextlib.contextmanager
def dump(path: Any, pattern: str = "*") -> Iterator[Record]:
    """The same with data, into one safetensors file when it ends; keys as 0017.Matmul_qa.matmul.bs_offset=0."""
    with _observing(Record(pattern, True)) as record:
        yield record
    save(record, path)


def save(record: Record, path: Any) -> None:
    """A record with values as a safetensors file."""
    words = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "bool": "BOOL"}
    header: dict[str, Any] = {}
    end = 0
    for o in record:
        if o.values is None:
            refuse("INVALID_ARGUMENT", "debug.save", "record", "has no values", "one of watch(values=True) or dump")
        kind = words.get(o.dtype) or o.dtype.replace("uint", "U").replace("int", "I")
        header[o.key] = {"dtype": kind, "shape": list(o.values.shape), "data_offsets": [end, end + o.values.nbytes]}
        end += o.values.nbytes
    about = [
        {k: v for k, v in dataclasses.asdict(dataclasses.replace(o, values=None)).items()} | {"key": o.key}
        for o in record
    ]
    text = json.dumps({"__metadata__": {"operations": json.dumps(about)}} | header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for o in record:
            f.write(o.values.tobytes())


def load(path: Any) -> Record:
    """What dump has written."""
    with open(path, "rb") as f:
        size = struct.unpack("<Q", f.read(8))[0]
        about = json.loads(json.loads(f.read(size))["__metadata__"]["operations"])
    data = _core.load_safetensors(path)
    record = Record("*", True)
    for o in about:
        key = o.pop("key")
        values = np.asarray(data[key])
        o["values"] = values.view(np.uint16) if o["dtype"] == "bfloat16" else values
        record.operations.append(Operation(**o))
    return record


@dataclasses.dataclass
class Difference:
    """first: the first operation, in the order of `a`, whose values differ. labels: label -> [elements that differ, max abs,
    max ulp]. missing: operations that one record alone has."""

    first: tuple[Operation, Operation, tuple[int, ...]] | None
    labels: dict[str, list[Any]]
    missing: list[tuple[str, Operation]]

    def __bool__(self) -> bool:
        return self.first is not None or bool(self.missing)

    def __str__(self) -> str:
        if not self:
            return "no difference"
        lines = []
        if self.first:
            a, b, at = self.first
            values = f": {_value(a, at)} and {_value(b, at)}" if at is not None and a.values is not None else ""
            lines.append(f"first: {a.label or '-'}/{a.op} ({a.key} and {b.key}, {a.place}){list(at or ())}{values}")
        for label, (count, largest, ulp) in self.labels.items():
            lines.append(f"{label or '-'}: {count} elements, max abs {largest:.6g}, max ulp {ulp}")
        lines += [f"only in {side}: {o.key}" for side, o in self.missing]
        return "\n".join(lines)


def _value(o: Operation, at: tuple[int, ...]) -> float:
    return float(floats(o.values, OF_WORD[o.dtype])[at])


def ulps(a: Array, b: Array, dtype: Any) -> Array:
    """How many values of the dtype lie between, element by element; integers: the difference; NaN against a number: 2**31."""
    if dtype.kind != "f":
        return np.abs(a.astype(np.int64) - b.astype(np.int64))
    bits = {4: np.int32, 2: np.int16}[dtype.np.itemsize]
    ordered = []
    for x in (a, b):
        i = np.ascontiguousarray(x).view(bits).astype(np.int64)
        low = np.iinfo(bits).min
        ordered.append(np.where(i < 0, low - i, i))
    distance = np.abs(ordered[0] - ordered[1])
    nan = np.isnan(floats(np.ascontiguousarray(a), dtype)), np.isnan(floats(np.ascontiguousarray(b), dtype))
    distance = np.where(nan[0] != nan[1], 2**31, distance)
    return np.where(nan[0] & nan[1], 0, distance)


def diff(a: Any, b: Any) -> Difference:
    """Two records (or files of dump), aligned by label, operation, loop indices and occurrence."""
    a, b = (x if isinstance(x, Record) else load(x) for x in (a, b))
    other = {o.aligned(): o for o in b}
    first, labels, missing = None, {}, []
    for o in a:
        p = other.pop(o.aligned(), None)
        if p is None:
            missing.append(("a", o))
            continue
        if (o.shape, o.valid, o.dtype, o.checksum) == (p.shape, p.valid, p.dtype, p.checksum):
            continue
        count, largest, ulp, at = _distance(o, p)
        if count == 0:
            continue
        first = first or (o, p, at)
        known = labels.setdefault(o.label, [0, 0.0, 0])
        labels[o.label] = [known[0] + count, max(known[1], largest), max(known[2], ulp)]
    return Difference(first, labels, missing + [("b", o) for o in other.values()])


def _distance(o: Operation, p: Operation) -> tuple[int, float, int, Any]:
    same = o.values is not None and p.values is not None and o.values.shape == p.values.shape and o.dtype == p.dtype
    if not same:
        return 1, float("nan"), 0, None
    dtype = OF_WORD[o.dtype]
    u = ulps(o.values, p.values, dtype)
    if not u.any():
        return 0, 0.0, 0, None
    x, y = (floats(np.ascontiguousarray(v), dtype).astype(np.float64) for v in (o.values, p.values))
    with np.errstate(all="ignore"):
        d = np.abs(x - y)
    at = tuple(int(i) for i in np.argwhere(u)[0])
    return int((u > 0).sum()), float(np.nanmax(d)) if not np.isnan(d).all() else float("inf"), int(u.max()), at


# ---- first_nan


class _FirstNan(Observer):
    def __init__(self, inf: bool, ignore: Any) -> None:
        self.inf = inf
        self.ignore = [ignore] if isinstance(ignore, str) else list(ignore)

    def _bad(self, t: Tensor) -> Any:
        if t._box.a is None or t._dtype.kind != "f":
            return None
        x = floats(np.ascontiguousarray(t._box.a[t.region()]), t._dtype)
        bad = ~np.isfinite(x) if self.inf else np.isnan(x)
        return (bad, x) if bad.any() else None

    def after(self, name: str, function: Callable[..., Any], args: Any, kwargs: Any, result: Any) -> None:
        if (
            name in VIEWS
            or name in WRITERS
            or any(fnmatch.fnmatchcase(w, p) for p in self.ignore for w in (state.label, f"{state.label}/{name}"))
        ):
            return
        for t in _results(name, function, args, kwargs, result):
            found = self._bad(t)
            if found is None:
                continue
            if any(self._bad(s) is not None for s in _tensors(args, kwargs)):
                continue
            bad, x = found
            at = tuple(np.argwhere(bad)[0])
            got = f"is {x[at]}, the first of {int(bad.sum())}, from finite inputs"
            refuse("INVALID_VALUE", name, "result", got, "finite values", "".join(f"[{i}]" for i in at))


@contextlib.contextmanager
def first_nan(inf: bool = True, ignore: Any = ()) -> Iterator[None]:
    """An error at the first operation that makes NaN (with `inf`: or Inf) of finite inputs. ignore: labels, or "label/op",
    where that is meant to happen (groups of zeros: ["Quant_*"])."""
    with _observing(_FirstNan(inf, ignore)):
        yield


# ---- profile


@dataclasses.dataclass
class Row:
    count: int = 0
    elements: int = 0
    read: int = 0  # bytes
    written: int = 0  # bytes
    operations: int = 0
    seconds: float = 0.0


class Profile(Observer):
    """rows: (label, operation) -> Row."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], Row] = defaultdict(Row)
        self._began: list[float] = []

    def before(self, name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> None:
        self._began.append(time.perf_counter())

    def after(self, name: str, function: Callable[..., Any], args: Any, kwargs: Any, result: Any) -> None:
        took = time.perf_counter() - self._began.pop()
        row = self.rows[state.label, name]
        row.count += 1
        row.seconds += took
        made = _results(name, function, args, kwargs, result)
        row.elements += sum(math.prod(t.shape) for t in made)
        if name in VIEWS:
            return
        inputs = made if name in WRITERS else [t for t in _tensors(args, kwargs) if t._box.a is not None]
        row.read += sum(t._box.a.nbytes for t in inputs)
        row.written += sum(t._box.a.nbytes for t in made if t._box.a is not None)
        if name in ("matmul", "transposed_batchmatmul") and made:
            a = inputs[0].shape
            k = a[-2] if kwargs.get("a_trans") else a[-1]
            row.operations += 2 * math.prod(made[0].shape) * int(k)
        else:
            row.operations += max((math.prod(t.shape) for t in (*made, *inputs)), default=0)

    def __str__(self) -> str:
        head = f"{'label':<24} {'operation':<22} {'count':>6} {'elements':>11} {'MB read':>9} {'MB written':>10} {'Mop':>9} {'ms':>9}"
        lines = [head]
        for (label, name), r in sorted(self.rows.items(), key=lambda item: -item[1].seconds):
            lines.append(
                f"{label or '-':<24} {name:<22} {r.count:>6} {r.elements:>11} {r.read / 1e6:>9.2f} {r.written / 1e6:>10.2f} "
                f"{r.operations / 1e6:>9.2f} {r.seconds * 1e3:>9.3f}"
            )
        return "\n".join(lines)


@contextlib.contextmanager
def profile() -> Iterator[Profile]:
    """Label by operation: count, elements, bytes read and written, operations, time."""
    with _observing(Profile()) as found:
        yield found


# ---- check


class _Check(Observer):
    """Of every element who wrote it: cells, int32 beside the values. Positive: number of a write; 0: written before;
    negative: not written, in memory that this allocation made."""

    def __init__(self, unassigned: bool, bounds: bool, overlap: bool, races: bool) -> None:
        self.unassigned, self.bounds, self.overlap, self.races = unassigned, bounds, overlap, races
        self.born = [""]
        self.writes: list[tuple[str, bool, tuple[Any, ...]]] = [("", False, ())]

    def allocated(self, t: Tensor, where: str) -> None:
        self.born.append(where)
        t._box.cells = np.full(t._box.a.shape, 1 - len(self.born), np.int32)

    def before(self, name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> None:
        if name in VIEWS:
            if name in ("unsqueeze", "reshape"):
                for t in _tensors(args, kwargs)[:1]:
                    self._cells(t)
            if self.bounds:
                self._window(name, function, args, kwargs)
            return
        tensors = _tensors(args, kwargs)
        if name in WRITERS:
            targets = _written(name, function, args, kwargs)[0]
            tensors = [t for t in tensors if all(t is not target for target in targets)]
        for t in tensors:
            self._check_read(name, t, t.region() if t._box.a is not None else None)

    def read(self, name: str, t: Tensor, index: Any) -> None:
        self._check_read(name, t, index)

    def _check_read(self, name: str, t: Tensor, index: Any) -> None:
        cells = t._box.cells
        if cells is None:
            return
        seen = cells[index]
        if self.unassigned:
            missing = np.asarray(seen < 0)
            if missing.any():
                born = self.born[-int(np.min(seen))]
                word = t.name or "input"
                got = f"has {int(missing.sum())} of {missing.size} elements that nobody wrote (made at {born})"
                refuse("INVALID_VALUE", name, word, got, "a box that is wholly written")
        if self.races:
            self._races(name, t, seen, "read")

    def _window(self, name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> None:
        given = dict(zip(_parameters(function), args)) | kwargs
        if given.get("valid_shape") is not None or name not in ("view", "__getitem__"):
            return
        t = given.get("input", given.get("self"))
        if not isinstance(t, Tensor) or t._box.a is None:
            return
        if name == "view" and given.get("shape") is not None and given.get("offsets") is not None:
            spans = list(zip(given["offsets"], given["shape"]))
        elif name == "__getitem__":
            keys = given["key"] if isinstance(given["key"], tuple) else (given["key"],)
            if Ellipsis in keys:
                return
            spans = [(k.start or 0, k.stop - (k.start or 0)) if type(k) is slice and type(k.stop) is not type(None)
                     and not isinstance(k.stop, Tensor) else (0, 0) for k in keys]  # fmt: skip
        else:
            return
        for axis, ((offset, n), size) in enumerate(zip(spans, t.shape)):
            if offset + n > size:
                got = f"is {int(n)} at {int(offset)}"
                wanted = f"at most {max(int(size - offset), 0)} (axis of size {int(size)}), or valid_shape"
                refuse("INVALID_INDEX", name, "shape", got, wanted, f"[{axis}]")

    def _cells(self, t: Tensor) -> Any:
        box = t._box
        if box.cells is None and box.a is not None:
            box.cells = np.zeros(box.a.shape, np.int32)
        return box.cells

    def wrote(self, name: str, t: Tensor, index: Any, assembled: bool) -> None:
        cells = self._cells(t)
        if cells is None:
            return
        old = cells[index]
        now = tuple((i.loop, i.index, i.parallel) for i in state.loops)
        if self.overlap and assembled:
            for number in np.unique(old[old > 0]):
                where, other, iteration = self.writes[number]
                if other and iteration == now:
                    got = f"covers {int((old == number).sum())} elements that {where} wrote in the same iteration"
                    refuse("ALIASED", name, t.name or "dst", got, "boxes that do not overlap")
        if self.races:
            self._races(name, t, old, "written")
        self.writes.append((place(), assembled, now))
        cells[index] = len(self.writes) - 1

    def _races(self, name: str, t: Tensor, seen: Any, word: str) -> None:
        if not any(i.parallel for i in state.loops):
            return
        for number in np.unique(np.asarray(seen)[np.asarray(seen) > 0]):
            where, _, iteration = self.writes[number]
            for there, here in zip(iteration, state.loops):
                if there[0] != here.loop or (there[1] != here.index and not here.parallel):
                    break
                if there[1] != here.index:
                    got = f"is {word} in iteration {here.index} and was written in {there[1]} ({where})"
                    wanted = f"boxes that iterations of the parallel loop {here.name} do not share"
                    refuse("ALIASED", name, t.name or "tensor", got, wanted)


@contextlib.contextmanager
def check(unassigned: bool = True, bounds: bool = True, overlap: bool = True, races: bool = True) -> Iterator[None]:
    """Errors, naming both places: reading a box that is not wholly written; a view past its source without valid_shape; two
    assembles into one box in one iteration; a box that iterations of a parallel loop share."""
    for name, value in dict(unassigned=unassigned, bounds=bounds, overlap=overlap, races=races).items():
        if not isinstance(value, bool):
            raise_error("INVALID_DTYPE", "pypto.debug.check", name, "", f"is {shown(value)}", "True or False")
    with _observing(_Check(unassigned, bounds, overlap, races)):
        yield


__all__ = [
    "Difference",
    "Operation",
    "Profile",
    "Record",
    "check",
    "diff",
    "dump",
    "first_nan",
    "load",
    "profile",
    "save",
    "watch",
]
