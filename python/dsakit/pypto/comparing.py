# SPDX-License-Identifier: Apache-2.0
"""A program beside an operator: both on copies of the same arguments."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import shown
from . import debug, observing
from .dtypes import OF_WORD, floats
from .memory import from_numpy
from .state import refuse
from .tensor import Array

# Of floating-point results: abs + rel * |x|, or a part of the largest value of the row (accuracy of prologs, end to end).
_RULES = {
    "bfloat16": (1e-3, 2.0**-7, 2.0**-6),
    "float16": (2.5e-4, 2.0**-10, 2.0**-9),
    "float32": (1e-5, 1e-4, 2.0**-18),
}
_FLIPS = 0.01  # of integer codes that may be one step away, where floating-point products lie before them


@dataclasses.dataclass
class Line:
    """Of one argument, or of one stage. verdict: equal, licensed (within the rule) or wrong."""

    name: str
    elements: int
    different: int
    ulp: int
    rule: str
    verdict: str
    first: tuple[int, ...] | None
    values: tuple[float, float] | None

    def __str__(self) -> str:
        text = f"{self.name:<22} {self.elements:>10} {self.different:>9} {self.ulp:>10} {self.rule:<34} {self.verdict}"
        if self.first is not None and self.values is not None:
            text += f", first {list(self.first)}: {self.values[0]:.9g} and {self.values[1]:.9g}"
        return text


@dataclasses.dataclass
class Comparison:
    lines: list[Line]

    def __iter__(self) -> Any:
        return iter(self.lines)

    def __getitem__(self, name: str) -> Line:
        return next(line for line in self.lines if line.name == name)

    @property
    def verdict(self) -> str:
        words = {line.verdict for line in self.lines}
        return next((w for w in ("wrong", "licensed") if w in words), "equal")

    def __str__(self) -> str:
        head = f"{'argument':<22} {'elements':>10} {'different':>9} {'max ulp':>10} {'rule':<34} verdict"
        return "\n".join([head, *(str(line) for line in self.lines)])


def judge(name: str, a: Array, b: Array, dtype: Any) -> Line:
    """a, of the program, beside b, of the operator; as they are kept here."""
    u = debug.ulps(a, b, dtype)
    different = int((u > 0).sum())
    if different == 0:
        return Line(name, a.size, 0, 0, "equal", "equal", None, None)
    at = tuple(int(i) for i in np.argwhere(u)[0])
    x, y = (floats(np.ascontiguousarray(v), dtype).astype(np.float64) for v in (a, b))
    if dtype.kind != "f":
        good = int(u.max()) <= 1 and different <= _FLIPS * a.size
        rule = f"one step, {_FLIPS:.0%} of elements"
    else:
        absolute, relative, of_row = _RULES[dtype.word]
        finite = np.isfinite(y)
        d = np.where(
            finite, np.abs(x - np.where(finite, y, 0)), np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0, np.inf)
        )
        row = np.abs(np.where(finite, y, 0)).max(axis=-1, keepdims=True) if y.ndim else np.abs(y)
        good = bool(np.all(d <= np.maximum(absolute + relative * np.abs(np.where(finite, y, 0)), of_row * row)))
        rule = f"{absolute:g} + {relative:g} |x|, or {of_row:g} of row"
    return Line(
        name, a.size, different, int(u.max()), rule, "licensed" if good else "wrong", at, (float(x[at]), float(y[at]))
    )


def _copies(args: Any) -> list[Any]:
    """Copies; what shares memory goes on sharing it."""
    arrays = [(i, _array(a)) for i, a in enumerate(args)]
    spans = sorted((a.__array_interface__["data"][0], a.nbytes, i) for i, a in arrays if a is not None and a.nbytes)
    blocks: list[tuple[int, int, list[int]]] = []
    for first, size, i in spans:
        if blocks and first < blocks[-1][1]:
            start, end, members = blocks.pop()
            blocks.append((start, max(end, first + size), [*members, i]))
        else:
            blocks.append((first, first + size, [i]))
    memory = {i: (np.empty(end - start, np.uint8), start) for start, end, members in blocks for i in members}
    shared: dict[int, Any] = {}
    out = list(args)
    for i, a in arrays:
        if a is None:
            continue
        if not a.nbytes:
            out[i] = _like(args[i], a.copy())
            continue
        start = memory[i][1]
        block = shared.setdefault(start, memory[i][0])
        at = a.__array_interface__["data"][0] - start
        copy = block[at : at + a.nbytes].view(a.dtype).reshape(a.shape)
        copy[...] = a
        out[i] = _like(args[i], copy)
    return out


def _array(a: Any) -> Array | None:
    if isinstance(a, np.ndarray) or (hasattr(a, "detach") and hasattr(a, "data_ptr")):
        return from_numpy("compare", "args", a)[0]
    return None


def _like(given: Any, a: Array) -> Any:
    """The copy in the kind of what was given."""
    if isinstance(given, np.ndarray):
        return a.view(given.dtype)
    import torch

    if given.dtype is torch.bfloat16:
        return torch.from_numpy(a.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(a)


def compare(
    program: Callable[..., Any],
    operator: Callable[..., Any],
    *args: Any,
    stages: dict[str, Callable[..., Any]] | None = None,
) -> Comparison:
    """Runs both on copies of `args` (shared memory stays shared) and judges every array argument: elements, how many differ,
    max ulp, verdict equal / licensed / wrong, first difference. operator: a function of dsakit or dsakit.reference that takes
    the same arguments.

    stages: label -> function of the program's last values under each label before it ({label: array}), which says what the
    last value under that label is due to be; each is judged from the program's own stage before."""
    if not callable(operator):
        refuse("INVALID_DTYPE", "compare", "operator", f"is {shown(operator)}", "a function")
    ours, theirs = _copies(args), _copies(args)
    with debug.watch("*", values=stages is not None) as record:
        program(*ours)
    operator(*theirs)
    names = [word for word, _ in getattr(program, "specs", [])]
    lines = []
    for i, (x, y) in enumerate(zip(ours, theirs)):
        if _array(x) is None:
            continue
        (a, dtype), (b, _) = from_numpy("compare", "args", x), from_numpy("compare", "args", y)
        lines.append(judge(names[i] if i < len(names) else f"args[{i}]", a, b, dtype))
    return Comparison(lines + _staged(record, stages or {}))


def _staged(record: Any, stages: dict[str, Callable[..., Any]]) -> list[Line]:
    last: dict[str, Any] = {o.label: o for o in record if o.op not in observing.VIEWS}
    lines = []
    for label, due in stages.items():
        if label not in last:
            known = ", ".join(w for w in last if w)
            refuse("INVALID_ARGUMENT", "compare", "stages", f"has {label!r}", f"labels of the program ({known})")
        o = last[label]
        before = {w: _stage_values(p) for w, p in last.items() if p.number < o.number}
        wanted, dtype = from_numpy("compare", label, np.ascontiguousarray(due(before)))
        if dtype is not OF_WORD[o.dtype] or wanted.size != o.values.size:
            got = f"is {dtype.word}{list(wanted.shape)}"
            refuse("INVALID_SHAPE", "compare", f"stages[{label!r}]", got, f"{o.dtype}{list(o.values.shape)}")
        lines.append(judge(label, o.values, wanted.reshape(o.values.shape), dtype))
    return lines


def _stage_values(o: Any) -> Array:
    from .dtypes import bfloat16

    return o.values.view(bfloat16) if o.dtype == "bfloat16" else o.values
