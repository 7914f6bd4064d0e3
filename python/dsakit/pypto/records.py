# SPDX-License-Identifier: Apache-2.0
"""Records of what operations computed: watch, dump, diff."""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import json
import math
import struct
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .. import _core
from ..whole_files import write_whole
from .dtypes import OF_WORD, floats
from .names import SaturationMode
from .observing import VIEWS, Observer, observing, parameters_of, results_of, tensors_of
from .state import place, refuse, state
from .tensor import Array, Tensor


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
        found = results_of(name, function, args, kwargs, result)
        for place_, t in enumerate(found):
            op = name if len(found) == 1 else f"{name}.{place_}"
            self._add(op, indices, t, _wrapped(name, function, args, kwargs) if place_ == 0 else 0)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def _tile(self, name: str, args: Any, kwargs: Any) -> None:
        """Tiles that a device has no room for."""
        tensors = tensors_of(args, kwargs)
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
        a = np.ascontiguousarray(a if t._valid is None else a[t.region()])
        low, high, nan, inf, zero, checksum = _core.pypto_statistics(a, t._dtype.code)
        none = low > high
        self.operations.append(
            Operation(
                number=state.count,
                label=state.label,
                op=op,
                indices=indices,
                occurrence=occurrence,
                place=place(),
                shape=[int(n) for n in t.shape],
                valid=[int(n) for n in t.valid_shape],
                dtype=t._dtype.word,
                min=math.nan if none else low,
                max=math.nan if none else high,
                nan=nan,
                inf=inf,
                zero=zero,
                wrapped=wrapped,
                checksum=checksum,
                values=a.copy() if self.keeps else None,
            )
        )


def _fits(pattern: str, name: str) -> bool:
    return pattern == "*" or fnmatch.fnmatchcase(f"{state.label}/{name}", pattern)


def _wrapped(name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> int:
    """Elements that a cast without saturation did not keep."""
    if name != "cast":
        return 0
    given = dict(zip(parameters_of(function), args)) | kwargs
    source, target = given["input"], given["dtype"]
    if given.get("satmode") is SaturationMode.ON or target.kind not in "iu":
        return 0
    limits = np.iinfo(target.np)
    a = np.ascontiguousarray(source._box.a[source.region()])
    low, high, _, inf, _, _ = _core.pypto_statistics(a, source._dtype.code)
    if not inf and low > limits.min - 0.5 and high < limits.max + 0.5:
        return 0
    x = floats(a, source._dtype).astype(np.float64) if source._dtype.kind == "f" else a.astype(object)
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
    with observing(Record(pattern, values, when)) as record:
        yield record


@contextlib.contextmanager
def dump(path: Any, pattern: str = "*") -> Iterator[Record]:
    """The same with data, into one safetensors file when it ends; keys as 0017.Matmul_qa.matmul.bs_offset=0."""
    with observing(Record(pattern, True)) as record:
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
    parts = [struct.pack("<Q", len(text)) + text, *(o.values.tobytes() for o in record)]
    write_whole(path, lambda file: file.writelines(parts), "debug.save")


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
