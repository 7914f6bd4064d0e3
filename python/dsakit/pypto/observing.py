# SPDX-License-Identifier: Apache-2.0
"""What operations tell debugging aids, and what they work on."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from .state import state
from .tensor import Tensor

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
    def note(self, text: str) -> None: ...


@contextlib.contextmanager
def observing(observer: Any) -> Iterator[Any]:
    before = state.observers
    state.observers = (*before, observer)
    state.settle()
    try:
        yield observer
    finally:
        state.observers = before
        state.settle()


@cache
def parameters_of(function: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(function).parameters)


def tensors_of(args: Any, kwargs: Any) -> list[Tensor]:
    found: list[Tensor] = []
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += [v for v in value if isinstance(v, Tensor)]
            found += [w for v in value if isinstance(v, (list, tuple)) for w in v if isinstance(w, Tensor)]
    return found


def results_of(name: str, function: Callable[..., Any], args: Any, kwargs: Any, result: Any) -> list[Tensor]:
    """What an operation made, or wrote somewhere."""
    if name in WRITERS:
        return written_by(name, function, args, kwargs)[1]
    found = result if isinstance(result, (tuple, list)) else [result]
    return [t for t in found if isinstance(t, Tensor)]


def written_by(name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> tuple[list[Tensor], list[Tensor]]:
    """Where an operation writes, and what."""
    given = dict(zip(parameters_of(function), args)) | kwargs
    target, source = (given.get(word) for word in WRITERS[name])
    if isinstance(source, (list, tuple)):  # assemble([(src, offsets), ..], dst)
        target = given.get("offsets") if not isinstance(target, Tensor) else target
        return [t for t in (target,) if isinstance(t, Tensor)], [s for s, _ in source]
    return [t for t in (target,) if isinstance(t, Tensor)], [t for t in (source,) if isinstance(t, Tensor)]
