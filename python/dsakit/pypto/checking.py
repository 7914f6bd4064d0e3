# SPDX-License-Identifier: Apache-2.0
"""Who wrote what: reading what nobody wrote, boxes that overlap, races."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..errors import raise_error, shown
from .observing import VIEWS, WRITERS, Observer, observing, parameters_of, tensors_of, written_by
from .state import place, refuse, state
from .tensor import Tensor


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
                for t in tensors_of(args, kwargs)[:1]:
                    self._cells(t)
            if self.bounds:
                self._window(name, function, args, kwargs)
            return
        tensors = tensors_of(args, kwargs)
        if name in WRITERS:
            targets = written_by(name, function, args, kwargs)[0]
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
        given = dict(zip(parameters_of(function), args)) | kwargs
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
    with observing(_Check(unassigned, bounds, overlap, races)):
        yield
