# SPDX-License-Identifier: Apache-2.0
"""Kernels: how a program is called, what its arguments have to be, and what happens to them when it fails."""

from __future__ import annotations

import contextlib
import functools
import inspect
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..errors import Error, raise_error, shown
from . import settings
from .dtypes import check_dtype
from .linear import Packed
from .memory import from_numpy
from .names import NOT_OFFERED, NotOffered, StatusType, TileOpFormat
from .state import located, outside, refuse, refuse_on_chip, state
from .tensor import Array, Box, Storage, Tensor, made, text_of

GROUPS = ("host_options", "codegen_options", "pass_options", "runtime_options", "verify_options", "debug_options")


class Frame:
    """A kernel that runs: its arguments, and what they held where it has written."""

    def __init__(self, verify: dict[str, Any]) -> None:
        self.verify = verify
        self.undo: list[tuple[Array, Any, Array]] | None = [] if state.on_error == "restore" else None

    def log(self, a: Array, box: Any) -> None:
        if self.undo is not None:
            self.undo.append((a, box, a[box].copy()))

    def restore(self) -> None:
        for a, box, before in reversed(self.undo or []):
            a[box] = before


@contextlib.contextmanager
def running(frame: Frame) -> Iterator[None]:
    s = state
    before = s.frame, s.label, s.count, s.vec_tile, s.cube_tile, s.loops, s.depth
    s.frame, s.label, s.count, s.vec_tile, s.cube_tile, s.loops = frame, "", 0, (), None, ()
    s.depth = before[-1] + 1
    try:
        with np.errstate(all="ignore"):
            yield
    finally:
        s.frame, s.label, s.count, s.vec_tile, s.cube_tile, s.loops, s.depth = before


class Kernel:
    """A function of a program as its callers call it. Tensor parameters, which are annotated, come first."""

    def __init__(self, function: Callable[..., Any], given: dict[str, Any]) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.given = {group: settings.check_group("frontend.jit", group, given.get(group)) for group in GROUPS}
        self.signature = inspect.signature(function)
        self.specs = declared(function, self.signature)  # of each tensor parameter, what is declared

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        if state.frame is not None:
            return self.function(*args, **kwargs)
        name = self.function.__name__
        try:
            tensors, rest = self._bound(name, args, kwargs)
            bound = [
                self._argument(name, word, spec, given, i)
                for i, ((word, spec), given) in enumerate(zip(self.specs, tensors))
            ]
        except Error as error:
            error.located = True
            raise
        join(bound)
        frame = Frame(self.given["verify_options"])
        with running(frame):
            try:
                returned = self.function(*bound, **rest)
                if returned is not None and state.level == "strict":
                    refuse("INVALID_ARGUMENT", name, "return", f"is {shown(returned)}", "None (results are arguments)")
                written = any(t._box.storage.written for t in bound)
                if bound and not written:
                    warnings.warn(
                        f"pypto.{name}: no argument was written (`y = x + 1` binds a name, `y[:] = x + 1` writes)",
                        stacklevel=2,
                    )
                if settings.golden is not None and settings.verifying():
                    _verify(name, bound, tensors)
            except BaseException as error:
                frame.restore()
                if isinstance(error, Error):
                    located(error)
                raise

    def _bound(self, name: str, args: Any, kwargs: Any) -> tuple[list[Any], dict[str, Any]]:
        try:
            values = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            due = ", ".join(self.signature.parameters)
            raise_error("INVALID_DTYPE", f"pypto.{name}", "arguments", "", f"do not fit: {error}", due)
        values.apply_defaults()
        arguments = dict(values.arguments)
        return [arguments.pop(word) for word, _ in self.specs], arguments

    def _argument(self, name: str, word: str, spec: Tensor, given: Any, place: int) -> Tensor:
        if given is None:
            wanted = f"a tensor of shape {list(spec._shape)}" if spec._shape is not None else "a tensor"
            refuse("INVALID_ARGUMENT", name, word, "is missing", wanted)
        panels = given if isinstance(given, Packed) else None
        if isinstance(given, Tensor):
            a, dtype = given._box.a, given._dtype
            if a is None:
                refuse("INVALID_VALUE", name, word, "has no values", "a tensor with memory")
        elif panels is not None:
            a, dtype = panels.array, panels.dtype
        else:
            a, dtype = from_numpy(name, word, given)
        a = a.view()
        if panels is not None:
            a.flags.writeable = False
        dynamic = _fits(name, word, spec, a, dtype)
        storage = Storage(panels or place)
        if isinstance(given, Tensor):
            given._box.storage = storage
        t = made(None, dtype, None, Box(a, storage))
        t._dynamic, t.name = dynamic, word
        t._format = (
            spec._format if spec._format is not TileOpFormat.TILEOP_ND else getattr(given, "_format", spec._format)
        )
        return t


def declared(function: Callable[..., Any], signature: inspect.Signature) -> list[tuple[str, Tensor]]:
    """The tensor parameters of a kernel."""
    found: list[tuple[str, Tensor]] = []
    plain = ""
    for word, parameter in signature.parameters.items():
        note = parameter.annotation
        if isinstance(note, str):
            note = _evaluated(function, note)
        if note is Tensor:
            note = Tensor()
        if isinstance(note, Tensor):
            if plain:
                wanted = "tensor parameters before all others"
                refuse("INVALID_ARGUMENT", function.__name__, word, f"is a tensor behind {plain}", wanted)
            found.append((word, note))
        else:
            plain = plain or word
    return found


def _evaluated(function: Callable[..., Any], note: str) -> Any:
    """An annotation that is text (from __future__ import annotations), with the names around the decorator."""
    frame = outside()
    around = {} if frame is None else frame.f_locals
    try:
        return eval(note, function.__globals__, around)
    except Exception as error:
        if "Tensor" not in note:
            return None
        raise_error(
            "INVALID_ARGUMENT", f"pypto.{function.__name__}", "annotation", "", f"{note} fails: {error}", "a Tensor"
        )


def _fits(name: str, word: str, spec: Tensor, a: Array, dtype: Any) -> Any:
    """Which axes are run-time sizes; refuses what the declaration does not allow."""
    if spec._dtype is not None and dtype is not spec._dtype:
        refuse("INVALID_DTYPE", name, word, f"has dtype {dtype.word}", f"{spec._dtype.word} (declared)")
    if spec._shape is None:
        return None
    due = list(spec._shape)
    if due and due[-1] is Ellipsis:
        due = due[:-1] + [StatusType.STATIC] * (a.ndim - len(due) + 1)
    words = "[" + ", ".join(n.name if isinstance(n, StatusType) else str(n) for n in due) + "]"
    if len(due) != a.ndim or any(not isinstance(n, StatusType) and n != m for n, m in zip(due, a.shape)):
        refuse("INVALID_SHAPE", name, word, f"has shape {text_of(a.shape)}", f"{words} (declared)")
    if state.level == "strict" and a.size == 0:
        refuse_on_chip(name, word, f"has shape {text_of(a.shape)}", "elements")
    dynamic = tuple(n in (StatusType.DYN, StatusType.DYNAMIC) for n in due)
    return dynamic if any(dynamic) else None


def join(tensors: list[Tensor]) -> None:
    """Arguments that overlap in memory share a storage, so that views of one do not see what is written to another."""
    spans = []
    for t in tensors:
        first = t._box.a.__array_interface__["data"][0]
        spans.append((first, first + t._box.a.nbytes, t))
    spans.sort(key=lambda s: s[0])
    end, owner = 0, None
    for first, last, t in spans:
        if owner is not None and first < end and last > first:
            t._box.storage = owner._box.storage
            if isinstance(t._box.storage.argument, Packed):
                t._box.storage.argument = t.name  # somebody may write to it: its panels would be stale
        else:
            owner = t
        end = max(end, last)


def _verify(name: str, bound: list[Tensor], given: list[Any]) -> None:
    """Arguments against what set_verify_golden_data has."""
    order, goldens = settings.golden
    rtol, atol = settings.verify_option("pass_verify_error_tol")
    tensors = bound
    if order is not None:
        tensors = [bound[next(i for i, g in enumerate(given) if g is wanted)] for wanted in order]
    for place, (t, due) in enumerate(zip(tensors, goldens)):
        if due is None:
            continue
        a, dtype = from_numpy(name, "goldens", due)
        wanted = made(a, dtype).valid_floats()
        found = t.valid_floats()
        if found.shape != wanted.shape:
            got = f"has shape {text_of(found.shape)}"
            refuse("INVALID_SHAPE", name, t.name, got, f"{text_of(wanted.shape)} (goldens[{place}])")
        bad = ~np.isclose(found, wanted, rtol, atol, equal_nan=True)
        if bad.any():
            at = tuple(np.argwhere(bad)[0])
            position = "".join(f"[{i}]" for i in at)
            got = f"is {found[at]}, one of {int(bad.sum())} of {bad.size} that differ"
            refuse("INVALID_VALUE", name, t.name, got, f"{wanted[at]} (goldens[{place}])", position)


def jit(func: Any = None, **given: Any) -> Any:
    """Makes a kernel of a function, with or without parentheses. Options, by group: host_options, runtime_options,
    codegen_options, pass_options, verify_options, debug_options."""
    for group in given:
        if group not in GROUPS:
            raise TypeError(f"jit() got an unexpected keyword argument {group!r}")
    if func is None:
        return lambda f: Kernel(f, given)
    if not callable(func):
        refuse("INVALID_DTYPE", "frontend.jit", "func", f"is {shown(func)}", "a function")
    return Kernel(func, given)


def function(func: Any = None) -> Any:
    """Marks a function that kernels call: it runs as part of them."""
    return func if func is not None else (lambda f: f)


@contextlib.contextmanager
def named(name: str, *args: Any) -> Iterator[None]:
    """`with function(name, *tensors)`: a part of a program. No effect on values."""
    if not isinstance(name, str):
        refuse("INVALID_DTYPE", "function", "name", f"is {shown(name)}", "a string")
    yield


def from_torch(
    tensor: Any, name: str = "", dynamic_axis: Any = None, tensor_format: Any = None, dtype: Any = None
) -> Tensor:
    """Memory of torch or numpy as a tensor, without a copy."""
    a, own = from_numpy("from_torch", "tensor", tensor)
    if dtype is not None and check_dtype("from_torch", "dtype", dtype) is not own:
        if dtype.np.itemsize != own.np.itemsize:
            refuse("INVALID_DTYPE", "from_torch", "dtype", f"is {dtype.word}", f"{own.word} (of the memory)")
        a, own = a.view(dtype.np), dtype
    t = made(None, own, None, Box(a, Storage(name or "from_torch")))
    t.name = name
    for axis in dynamic_axis or ():
        if not isinstance(axis, int) or not -a.ndim <= axis < a.ndim:
            refuse("INVALID_ARGUMENT", "from_torch", "dynamic_axis", f"has {shown(axis)}", f"{-a.ndim}..{a.ndim - 1}")
    if dynamic_axis:
        axes = {axis % a.ndim for axis in dynamic_axis}
        t._dynamic = tuple(i in axes for i in range(a.ndim))
    if tensor_format is not None:
        if not isinstance(tensor_format, TileOpFormat):
            got = f"is {shown(tensor_format)}"
            refuse("INVALID_DTYPE", "from_torch", "tensor_format", got, "TILEOP_ND or TILEOP_NZ")
        t._format = tensor_format
    return t


def op_wrapper(func: Callable[..., Any]) -> Callable[..., Any]:
    """A function of a program as an operation of its own: numbered, labelled and located in errors."""
    from .state import operation

    return operation(func)


dynamic = NotOffered("frontend", NOT_OFFERED["frontend"][0])
