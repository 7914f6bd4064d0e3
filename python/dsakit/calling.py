# SPDX-License-Identifier: Apache-2.0
"""What the generated functions stand on: the types of their parameters, how a def becomes an operator, and what
happens to parameters that the library itself does not have."""

from __future__ import annotations

import inspect
import numbers
import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np

from . import _core, graph
from ._core import PackedWeight
from .errors import raise_error, shown
from .weights import FractalNZ


class SupportsDLPack(Protocol):
    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...


Array: TypeAlias = SupportsDLPack  # a numpy array, a torch CPU tensor, anything else with DLPack
Weight: TypeAlias = Array | PackedWeight | FractalNZ
ArrayList: TypeAlias = list[Array] | tuple[Array, ...]
Lengths: TypeAlias = Array | Sequence[int]
Axes: TypeAlias = Sequence[int] | None  # an order of axes; None: the default
DType: TypeAlias = str | type | np.dtype[Any] | Any  # Any: torch has dtypes of its own
Result: TypeAlias = Any  # an array of the kind of the first tensor argument

ABSENT: Any = type("Absent", (), {"__repr__": lambda self: "<absent>"})()


class _Signature(inspect.Signature):
    """Printed as it is written, a parameter a line."""

    def __str__(self) -> str:
        lines, star = [], False
        for p in self.parameters.values():
            if p.kind is p.KEYWORD_ONLY and not star:
                lines.append("*")
            star |= p.kind in (p.VAR_POSITIONAL, p.KEYWORD_ONLY)
            stars = "*" if p.kind is p.VAR_POSITIONAL else "**" if p.kind is p.VAR_KEYWORD else ""
            default = "" if p.default is p.empty else f" = {p.default!r}"
            lines.append(f"{stars}{p.name}: {p.annotation}{default}")
        return "(\n    " + ",\n    ".join(lines) + f",\n) -> {self.return_annotation}"


F = TypeVar("F", bound=Callable[..., Any])


def operator(function: F) -> F:
    """A generated def as a function of dsakit or dsakit.reference. Required arguments that are left out reach the library
    as None, which refuses them with its own sentence; the signature goes on saying that they are required."""
    function.__signature__ = _Signature.from_callable(function)  # type: ignore[attr-defined]
    code, defaults = function.__code__, function.__defaults__ or ()
    function.__defaults__ = (None,) * (code.co_argcount - len(defaults)) + defaults
    keywords = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    function.__kwdefaults__ = dict.fromkeys(keywords) | (function.__kwdefaults__ or {})
    package, generated, module = function.__module__.partition("._generated")
    function.__module__ = package + ".reference" * module.startswith(".reference") if generated else package
    return function


def run(operator: str, values: tuple[Any, ...], spelling: str) -> Any:
    """The operator on `values`, which are in the order of its description. torch.compile and torch.export are sent to torch's
    dispatcher here, other recorders of calls by the library."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.compiler.is_compiling():
        return graph.call(operator, values, spelling)
    return getattr(_core, operator)(values, spelling)


def documented_by(other: Callable[..., Any]) -> Callable[[F], F]:
    """The docstring goes on with that of `other`."""

    def complete(function: F) -> F:
        function.__doc__ = f"{inspect.getdoc(function)}\n\n{inspect.getdoc(other)}"
        return function

    return complete


def only_none(operator: str, **reserved: Any) -> None:
    """Parameters that the documents have and nobody offers."""
    for name, value in reserved.items():
        if value is not None:
            raise_error("UNSUPPORTED", operator, name, "", f"is {shown(value)}", "None (reserved)")


def tolerate(operator: str, level: Any, **undocumented: Any) -> None:
    """Parameters that the documents do not have and callers pass: None is accepted in portable."""
    for name, value in undocumented.items():
        if value is ABSENT or (value is None and level != "strict"):
            continue
        got = f"is {shown(value)}" if value is not None else "is given"
        why = "no parameter of this operator" + ("; portable accepts None" if value is None else "")
        raise_error("INVALID_ARGUMENT", operator, name, "", got, f"absent ({why})")


def one_tensor(operator: str, **tensors: Any) -> None:
    """Parameters that the documents also have as lists of tensors."""
    for name, value in tensors.items():
        if isinstance(value, (list, tuple)):
            wanted = "one tensor: concatenate the sequences into TND, with their running totals in actual_seq_qlen and "
            wanted += "actual_seq_kvlen, or lay them into pages with a block_table (only the v1 form takes a list of one)"
            raise_error("UNSUPPORTED", operator, name, "", f"is a list of {len(value)}", wanted)


def zero_in_portable(operator: str, level: Any, **mode: Any) -> Any:
    """A mode that the documents have no default for: neither has strict."""
    ((name, value),) = mode.items()
    if value is not ABSENT:
        return value
    if level == "strict":
        raise_error("INVALID_ARGUMENT", operator, name, "", "is missing", "a mode [strict: Atlas A2/A3]")
    return 0


def dtype_integer(operator: str, **dtype: Any) -> Any:
    """The integer that the documents have for a dtype: 1 for int8."""
    ((name, value),) = dtype.items()
    if value is None or isinstance(value, numbers.Integral):
        return value
    word = _core.dtype_name(value)
    if word in ("int8", "qint8"):
        return 1
    known = word.startswith(("float", "hifloat", "bfloat", "int", "uint", "qu", "qint"))
    status = "UNSUPPORTED" if known else "INVALID_ARGUMENT"
    raise_error(status, operator, name, "", f"is {word!r:.120}", "1 (int8; other types are reserved)")


def without_lse(results: Any) -> Any:
    """fused_infer_attention_score_v2 leaves a softmax_lse that nobody asked for as it was allocated."""
    results[1][...] = 0
    return results
