# SPDX-License-Identifier: Apache-2.0
"""Loops of a program, run in their order."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ..errors import shown
from .scalars import SymInt, symint
from .state import refuse, refuse_on_chip, state

_numbers = itertools.count()


class Iteration(NamedTuple):
    """Where a loop is."""

    name: str
    index: int
    parallel: bool
    loop: int  # number of the run of this loop


_OPTIONS = ("name", "idx_name", "unroll_list", "submit_before_loop", "parallel")


def _range(name: str, args: tuple[Any, ...], options: dict[str, Any]) -> tuple[int, int, int]:
    for option in options:
        if option not in _OPTIONS:
            raise TypeError(f"{name}() got an unexpected keyword argument {option!r}")
    if not 1 <= len(args) <= 3:
        raise TypeError(f"{name}() takes [start,] stop[, step], {len(args)} arguments are given")
    words = ("stop",) if len(args) == 1 else ("start", "stop", "step")
    for word, value in zip(words, args):
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
            refuse("INVALID_DTYPE", name, word, f"is {shown(value)}", "an integer")
    start, stop = (0, args[0]) if len(args) == 1 else args[:2]
    step = args[2] if len(args) == 3 else 1
    if step < 1:
        refuse("INVALID_ARGUMENT", name, "step", f"is {int(step)}", "1 or more")
    return int(start), int(stop), int(step)


def _factors(name: str, given: Any) -> list[int]:
    if not isinstance(given, (list, set, tuple, frozenset)):
        refuse("INVALID_DTYPE", name, "unroll_list", f"is {shown(given)}", "a list or a set of integers")
    for p in given:
        if isinstance(p, bool) or not isinstance(p, (int, np.integer)) or p < 1:
            refuse("INVALID_ARGUMENT", name, "unroll_list", f"has {shown(p)}", "integers of 1 or more")
    factors = sorted({int(p) for p in given} | {1})
    if state.level == "strict":
        for low, high in zip(factors, factors[1:]):
            if high % low:
                refuse_on_chip(
                    name, "unroll_list", f"has {low} and {high}", "factors each of which divides the next larger"
                )
    return factors[::-1]


def _steps(name: str, options: dict[str, Any], places: Any) -> Iterator[tuple[SymInt, int]]:
    """Yields every place with the loops around it in the state of the thread."""
    word = options.get("idx_name") or options.get("name") or name
    if state.level == "strict" and options.get("idx_name") in [i.name for i in state.loops]:
        refuse_on_chip(name, "idx_name", f"is {word!r}, that of a loop around", "another name")
    around, number = state.loops, next(_numbers)
    parallel = bool(options.get("parallel"))
    try:
        for index, count, first, last in places:
            value = symint(index)
            value.loop = (first, last)
            state.loops = (*around, Iteration(str(word), index, parallel, number))
            yield value, count
    finally:
        state.loops = around


def loop(*args: Any, **options: Any) -> Iterator[SymInt]:
    """loop([start,] stop[, step], *, name, idx_name, ..): start, start + step, .. before stop. Keywords change no values."""
    start, stop, step = _range("loop", args, options)
    if options.get("unroll_list") is not None:
        _factors("loop", options["unroll_list"])
    places = ((i, 1, i == start, i + step >= stop) for i in range(start, stop, step))
    return (value for value, _ in _steps("loop", options, places))


def loop_unroll(*args: Any, **options: Any) -> Iterator[tuple[SymInt, int]]:
    """Yields (index, p): the body does p steps. The largest factors of unroll_list come first, 1 is always one."""
    start, stop, step = _range("loop_unroll", args, options)
    factors = _factors("loop_unroll", options.get("unroll_list") or [1])

    def places() -> Iterator[tuple[int, int, bool, bool]]:
        index, left = start, max(0, -(-(stop - start) // step))
        for p in factors:
            while left >= p:
                yield index, p, index == start, index + p * step >= stop
                index, left = index + p * step, left - p

    return _steps("loop_unroll", options, places())


def _of_loop(name: str, scalar: Any) -> tuple[bool, bool]:
    found = scalar.loop if isinstance(scalar, SymInt) else None
    if found is None:
        refuse("INVALID_ARGUMENT", name, "scalar", f"is {shown(scalar)}", "a value as a loop yielded it")
    return found


def is_loop_begin(scalar: Any) -> bool:
    """Whether it is the first value of its loop."""
    return _of_loop("is_loop_begin", scalar)[0]


def is_loop_end(scalar: Any) -> bool:
    """Whether it is the last value of its loop."""
    return _of_loop("is_loop_end", scalar)[1]


def cond(scalar: Any, file: Any = None, lineno: Any = None) -> bool:
    """bool(scalar)."""
    return bool(scalar)
