# SPDX-License-Identifier: Apache-2.0
"""What operations of a thread run with, and how an operation becomes one: numbered, located in errors, seen by debugging."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np

from ..errors import Error, raise_error, shown

PACKAGE = os.path.dirname(__file__)
QUIET = np.errstate(all="ignore")


class State(threading.local):
    """Of a thread. `special`: an operation has more to do than to compute."""

    level = "portable"
    gemm = "fast"
    on_error = "restore"
    check_values = False
    label = ""
    count = 0  # operations so far
    frame: Any = None  # the kernel that runs
    depth = 0  # kernels and contexts in which numpy is quiet
    special = False
    body: Any = None  # in strict: the loop body that runs, and what it has viewed and assembled
    observers: tuple[Any, ...] = ()
    loops: tuple[Any, ...] = ()  # those around, the innermost last
    vec_tile: tuple[int, ...] = ()
    cube_tile: Any = None

    def settle(self) -> None:
        """After something of it has changed."""
        self.special = self.level == "strict" or self.check_values or bool(self.observers)


state = State()


def outside() -> types.FrameType | None:
    """The innermost frame outside of this package, which is the program's."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and os.path.dirname(frame.f_code.co_filename) == PACKAGE:
        frame = frame.f_back
    return frame


def place() -> str:
    """file:line of the program."""
    frame = outside()
    return "" if frame is None else f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


def located(error: Error) -> Error:
    """The same refusal, once: with label, number of the operation and line."""
    if not getattr(error, "located", False):
        words = [state.label] if state.label else []
        where = f" ({', '.join([*words, f'op {state.count}', place()])})"
        sentence = str(error)
        chip = " [strict: Atlas A2/A3]"
        head, tail = (sentence[: -len(chip)], chip) if sentence.endswith(chip) else (sentence, "")
        error.args = (head + where + tail,)
        error.located = True
    return error


F = TypeVar("F", bound=Callable[..., Any])


def operation(function: F) -> F:
    """A function on tensors as an operation of the module. Between operations and inside of one another, its plain
    function is `raw`."""
    name = function.__name__

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        state.count += 1
        try:
            if not state.depth:
                with np.errstate(all="ignore"):
                    return _special(name, function, args, kwargs) if state.special else function(*args, **kwargs)
            if state.special:
                return _special(name, function, args, kwargs)
            return function(*args, **kwargs)
        except Error as error:
            raise located(error)  # noqa: B904  (the same one)

    run.raw = function
    return run


def _special(name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    if state.level == "strict":
        from . import strict

        strict.before(name, function, args, kwargs)
    for observer in state.observers:
        observer.before(name, function, args, kwargs)
    result = function(*args, **kwargs)
    if state.check_values:
        _finite(name, result)
    for observer in state.observers:
        observer.after(name, function, args, kwargs, result)
    return result


def _finite(name: str, result: Any) -> None:
    for t in result if isinstance(result, (tuple, list)) else (result,):
        box = getattr(t, "_box", None)
        if box is None or box.a is None or t.dtype.kind != "f":
            continue
        bad = ~np.isfinite(t.valid_floats())
        if bad.any():
            at = "".join(f"[{i}]" for i in np.argwhere(bad)[0])
            value = t.valid_floats()[tuple(np.argwhere(bad)[0])]
            refuse("INVALID_VALUE", name, "result", f"is {value}", "a finite number", at)


def note(text: str) -> None:
    """What is no error and may be a mistake: for debugging."""
    for observer in state.observers:
        observer.note(f"{text} ({place()})")


def refuse(status: str, name: str, parameter: str, got: str, wanted: str, position: str = "") -> Any:
    raise_error(status, f"pypto.{name}", parameter, position, got, wanted)


def refuse_on_chip(name: str, parameter: str, got: str, wanted: str) -> Any:
    sentence = f"pypto.{name}: {parameter} {got}, wanted {wanted} [strict: Atlas A2/A3]"
    raise_error("UNSUPPORTED", f"pypto.{name}", parameter, "", got, wanted, sentence=sentence)


_LEVELS = ("portable", "strict")
_GEMMS = ("fast", "fma")
_ON_ERROR = ("restore", "keep")


@contextlib.contextmanager
def configure(
    level: str | None = None, gemm: str | None = None, on_error: str | None = None, check_values: bool | None = None
) -> Iterator[None]:
    """How the programs of this thread run inside the `with`; what is not given stays as it is.

    level         "portable", or "strict": what Atlas A2/A3 would refuse is refused too
    gemm          "fast", or "fma": bf16 products by fp32 fma in a fixed order, the same bits on every machine
    on_error      "restore": arguments get their bytes back when a program fails; "keep" leaves them for inspection
    check_values  True: a result that is not finite is an error
    """
    given = {"level": (level, _LEVELS), "gemm": (gemm, _GEMMS), "on_error": (on_error, _ON_ERROR)}
    for name, (value, known) in given.items():
        if value is not None and value not in known:
            refuse("INVALID_ARGUMENT", "configure", name, f"is {shown(value)}", " or ".join(f'"{k}"' for k in known))
    if check_values is not None and not isinstance(check_values, bool):
        refuse("INVALID_DTYPE", "configure", "check_values", f"is {shown(check_values)}", "True or False")
    before = state.level, state.gemm, state.on_error, state.check_values
    state.level, state.gemm = level or before[0], gemm or before[1]
    state.on_error = on_error or before[2]
    state.check_values = before[3] if check_values is None else check_values
    state.settle()
    try:
        yield
    finally:
        state.level, state.gemm, state.on_error, state.check_values = before
        state.settle()


if os.environ.get("DSAKIT_CHECK") == "1":
    State.check_values = State.special = True
