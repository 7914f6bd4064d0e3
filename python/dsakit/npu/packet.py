# SPDX-License-Identifier: Apache-2.0
"""What stands under a name: torch's own object for an operator, which goes straight to the library in plain calls."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverloadPacket

from .. import _core
from ..calling import ABSENT
from ..errors import raise_error, shown
from . import formats
from .levels import current

OURS = ("level", "index_check", "numerics")  # parameters that the documents do not have
# op-plugin's numbers of dtypes
DTYPES = {
    0: torch.uint8, 1: torch.int8, 3: torch.int32, 5: torch.float16, 6: torch.float32, 12: torch.qint8, 13: torch.quint8,
    14: torch.qint32, 15: torch.bfloat16, 16: torch.quint4x2,
}  # fmt: skip
# Where engines pass strided slices of a split projection, which upstream's wrappers copy: strict takes them here too.
STRIDED = {
    "interleave_rope": "x",
    "rotary_mul": "x",
    "kv_rmsnorm_rope_cache": "kv",
    "kv_rmsnorm_rope_cache_v2": "kv",
    "kv_rmsnorm_rope_cache_v2_functional": "kv",
}

_modes = torch._C._len_torch_dispatch_stack, torch._C._len_torch_function_stack


def recorded() -> bool:
    """Whether torch records calls: it compiles, or a mode is on."""
    return bool(torch.compiler.is_compiling() or _modes[0]() or _modes[1]())


class Packet(OpOverloadPacket):  # type: ignore[type-arg]
    """An operator packet whose plain calls do not pass the dispatcher: a Python kernel behind it costs ten times more."""

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if recorded():
            return self._op(*args, **kwargs)
        straight = self.straight
        if type(straight) is not Documented:
            return straight(*args, **kwargs)
        if straight.as_given and not args and current() == "portable" and kwargs.keys().isdisjoint(straight.hidden):
            return straight.function(**kwargs)
        return straight.function(*straight.ours(args, kwargs), **kwargs)  # its __call__ would copy the keywords again


def packet(space: str, name: str, straight: Callable[..., Any]) -> Packet:
    """The object of an operator that has been defined."""
    found = torch._ops._OpNamespace(space).__getattr__(name)
    made = Packet.__new__(Packet)
    made.__dict__.update(found.__dict__)
    made.__dict__["straight"] = straight
    made.__doc__ = straight.__doc__
    return made


@functools.cache
def descriptions() -> dict[str, dict[str, Any]]:
    """Of every operator of the library."""
    return _core.describe()


class Documented:
    """A function of the package as torch_npu has it: without parameters of our own, at the level of the thread, no memory
    for results, dtypes as torch_npu writes them."""

    def __init__(self, function: Callable[..., Any], operator: str, defaults: dict[str, Any] | None = None,
                 without: tuple[str, ...] = ()):  # fmt: skip
        self.function, self.operator = function, operator
        d = descriptions()[operator]
        self.fields = {f["name"]: f for f in d["fields"]}
        outs = [n for n, f in self.fields.items() if f["role"] == "out" or f["role"] == "hint"]
        own = inspect.signature(function).parameters.values()
        self.parameters = [p for p in own if p.name not in (*OURS, *without, *outs)]
        self.names = frozenset(p.name for p in self.parameters)
        self.hidden = frozenset(p.name for p in own) - self.names
        self.positional = [p.name for p in self.parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        self.dtypes = [n for n in self.names if self.fields[n]["kind"] == "dtype" and self.fields[n]["role"] == "attribute"]
        self.weights = [n for n in self.names if self.fields[n]["kind"] == "weight"]
        self.strided = STRIDED.get(operator, "")
        self.defaults = defaults or {}
        self.as_given = not self.dtypes and not self.defaults
        self.has_level = "level" in self.fields
        self.__name__, self.__doc__ = function.__name__, function.__doc__

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self.function(*self.ours(args, kwargs), **kwargs)

    def ours(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """The positional arguments as the function of the package takes them; the keywords become so where they are."""
        if not kwargs.keys().isdisjoint(self.hidden):  # names that nobody has are the function's to refuse
            unknown = next(k for k in kwargs if k in self.hidden)
            raise TypeError(f"{self.__name__}() got an unexpected keyword argument {unknown!r}")
        if len(args) > len(self.positional):
            raise TypeError(f"{self.__name__}() takes {len(self.positional)} positional arguments, {len(args)} are given")
        level = current()
        if self.dtypes or level == "strict" or self.defaults:
            for n, value in (self.defaults | dict(zip(self.positional, args))).items():
                kwargs.setdefault(n, value)
            args = ()
            for n in self.dtypes:
                if n in kwargs and self.fields[n]["dtypes"] != "int":
                    kwargs[n] = dtype_of(self.__name__, n, kwargs[n])
            if level == "strict":
                kwargs |= {n: formats.tagged(kwargs[n]) for n in self.weights if n in kwargs}
                if isinstance(kwargs.get(self.strided), torch.Tensor):
                    kwargs[self.strided] = kwargs[self.strided].contiguous()
            if self.has_level:
                kwargs["level"] = level
        return args

    def schema(self, name: str, returns: str | None = None) -> str:
        """Its schema; `returns`: in place of one fresh tensor for each result."""
        words: list[str] = []
        star = False
        letters = dict(zip((n for n, f in self.fields.items() if f["role"].startswith("inout")), "abcdefgh"))
        for p in self.parameters:
            if p.kind is p.KEYWORD_ONLY and not star:
                words.append("*")
                star = True
            kind = type_of(self.fields[p.name], letters.get(p.name))
            default = self.defaults.get(p.name, p.default)
            if default is ABSENT:
                default = None if kind.endswith("?") else 0
            default = None if isinstance(default, tuple) else default  # an order of axes, for which None stands
            text = f'"{default}"' if isinstance(default, str) else repr(default)
            words.append(f"{kind} {p.name}" + ("" if default is p.empty else "=" + text))
        if returns is None:
            d = descriptions()[self.operator]
            types = [
                f"Tensor({letters[n.removesuffix('_out')]}!)" if n.removesuffix("_out") in letters else "Tensor"
                for n in d["results"]
            ]
            returns = types[0] if len(types) == 1 else f"({', '.join(types)})"
        return f"{name}({', '.join(words)}) -> {returns}"


def type_of(field: dict[str, Any], letter: str | None) -> str:
    role, kind = field["role"], field["kind"]
    if kind == "dtype":
        return "int?" if role == "reserved" else "int" if field["dtypes"] == "int" else "ScalarType?"
    if kind == "axes":
        return "int[]?"
    if field["list"]:
        return "Tensor[]"
    if role == "attribute":
        return field["dtypes"] + "?" * (field["default"] is None and not field["required"])
    if kind == "lengths" and "int64" in field["dtypes"]:
        return "SymInt[]?"
    optional = role.endswith("_opt") or role in ("reserved", "tolerated")
    return (f"Tensor({letter}!)" if letter else "Tensor") + "?" * optional


def dtype_of(operator: str, name: str, value: Any) -> Any:
    """A dtype as torch_npu takes it: one of torch or numpy, a string, or op-plugin's number."""
    if isinstance(value, bool) or not isinstance(value, int):
        return value
    if value not in DTYPES:
        status = "UNSUPPORTED" if value in (290, 293, 296) else "INVALID_ARGUMENT"
        raise_error(status, operator, name, "", f"is {shown(value)}", "one of " + ", ".join(map(str, DTYPES)))
    return DTYPES[value]
