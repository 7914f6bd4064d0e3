# SPDX-License-Identifier: Apache-2.0
"""Programs written for the PyPTO tensor front end, run on a CPU: every operation computes at once.

    import dsakit
    dsakit.pypto.install()      # `import pypto` gives this module
    import pypto

Beside the names that PyPTO documents: install, uninstall, configure, prepack, compare, and debug. Rules and marks are in
docs/pypto.md.
"""

from __future__ import annotations

import os as _os
import sys as _sys
import types as _types
import typing as _typing
from typing import Any

from .. import errors as _errors
from . import elementwise as _elementwise
from . import filling as _filling
from . import frontend
from . import indexing as _indexing
from . import linear as _linear
from . import names as _names
from . import reduce as _reduce
from . import settings as _settings
from . import shapes as _shapes
from . import windows as _windows
from .linear import matmul, prepack
from .loops import cond, is_loop_begin, is_loop_end, loop, loop_unroll
from .names import (
    AtomicRMWMode,
    AtomicType,
    CachePolicy,
    CastMode,
    CompStage,
    DataType,
    DequantScaleRoundingMode,
    LogLevel,
    OpType,
    OutType,
    PrecisionType,
    ReduceMode,
    ReLuType,
    RunMode,
    SaturationMode,
    ScatterMode,
    StatusType,
    TileOpFormat,
    TopKAlgo,
    TransMode,
)
from .scalars import Element
from .scalars import SymInt as SymbolicScalar
from .state import configure
from .state import operation as _operation_of
from .state import refuse as _refuse
from .state import state as _state
from .tensor import Tensor

element, symbolic_scalar, tensor = Element, SymbolicScalar, Tensor
DYN, DYNAMIC, STATIC = StatusType.DYN, StatusType.DYNAMIC, StatusType.STATIC
ROUND_UP, ROUND_DOWN = DequantScaleRoundingMode.ROUND_UP, DequantScaleRoundingMode.ROUND_DOWN
CubeTile = _settings.CubeTile
function, from_torch = frontend.named, frontend.from_torch
for _member in DataType:
    globals()[_member.name] = _member

_OPERATIONS = {
    **{
        n: f
        for m in (_elementwise, _reduce, _windows, _shapes, _filling, _indexing)
        for n, f in vars(m).items()
        if hasattr(f, "raw")
    },
    "matmul": matmul,
}
_HIDDEN = ("move", "gather_in_ub", "gather_in_l1")
for _name, _operation in _OPERATIONS.items():
    if _name not in _HIDDEN:
        globals()[_name] = _operation
for _name, _value in vars(_settings).items():
    if _name.startswith(("set_", "get_", "pass_verify_", "reset_")) and _name not in (
        "set_operation_options",
        "get_operation_options",
    ):
        globals()[_name] = _value
options = _settings.options


def min(a: Any, b: Any) -> Any:
    """The smaller scalar."""
    return _scalar("min", a, b, a if a <= b else b)


def max(a: Any, b: Any) -> Any:
    """The larger scalar."""
    return _scalar("max", a, b, a if a >= b else b)


def _scalar(name: str, a: Any, b: Any, chosen: Any) -> Any:
    for word, value in (("a", a), ("b", b)):
        if isinstance(value, Tensor):
            _refuse("INVALID_DTYPE", name, word, "is a tensor", f"a number ({name}imum computes with tensors)")
    both = isinstance(a, int) and isinstance(b, int)
    return (
        SymbolicScalar(chosen) if both and (isinstance(a, SymbolicScalar) or isinstance(b, SymbolicScalar)) else chosen
    )


class _Platform:
    """What a program asks of its machine."""

    def __init__(self) -> None:
        self.npuarch = _os.environ.get("DSAKIT_PYPTO_ARCH", "DAV_2201")

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "npuarch":
            raise AttributeError(f"pypto.platform has no attribute {name!r}")
        if value != "DAV_2201" and _state.level == "strict":
            _refuse("UNSUPPORTED", "platform", "npuarch", f"is {value!r}", "'DAV_2201' [strict: Atlas A2/A3]")
        object.__setattr__(self, name, value)


platform = _Platform()


# ---- methods


def _methods() -> None:
    binary = {"add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "pow": "pow"}
    for word, name in binary.items():
        f = _OPERATIONS[name]
        setattr(Tensor, f"__{word}__", lambda self, other, f=f: f(self, other))
        setattr(Tensor, f"__r{word}__", lambda self, other, f=f: f(other, self))
        if word != "pow":
            setattr(Tensor, f"__i{word}__", lambda self, other, f=f: f(self, other))
    for word in ("lt", "le", "gt", "ge", "eq", "ne"):
        setattr(Tensor, f"__{word}__", lambda self, other, f=_OPERATIONS[word]: f(self, other))
    Tensor.__hash__ = object.__hash__
    Tensor.__neg__ = lambda self: _OPERATIONS["neg"](self)
    Tensor.__pos__ = lambda self: self
    Tensor.__floordiv__ = _floordiv
    Tensor.__getitem__ = _getitem
    Tensor.__setitem__ = _setitem
    Tensor.__matmul__ = lambda self, other: matmul(self, other, self.dtype)
    for name, f in _OPERATIONS.items():
        if name not in (
            "full",
            "zeros",
            "ones",
            "arange",
            "gather_in_ub",
            "gather_in_l1",
            "assemble",
            "where",
            "concat",
        ):
            setattr(Tensor, name, f)
    Tensor.assemble = lambda self, input, offsets: _OPERATIONS["assemble"](input, offsets, self)
    Tensor.where, Tensor.permute, Tensor.pad = _where, _permute, _pad
    Tensor.concat = _concat


def _concat(self: Tensor, tensors: Any, dim: int = 0) -> Tensor:
    more = list(tensors) if isinstance(tensors, (list, tuple)) else [tensors]
    return _OPERATIONS["concat"]([self, *more], dim)


def _where(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """where(condition, x, y), or of a condition where(x, y)."""
    given = dict(zip(("condition", "x", "y"), args if len(args) + len(kwargs) == 3 else (self, *args))) | kwargs
    return _OPERATIONS["where"](given.get("condition", self), given["x"], given["y"])


def _permute(self: Tensor, perm: Any) -> Tensor:
    return _OPERATIONS["permute"](self, perm)


def _pad(self: Tensor, pad: Any, mode: str = "constant", value: Any = 0) -> Tensor:
    return _OPERATIONS["pad"](self, pad, mode, value)


def _floordiv(self: Tensor, other: Any) -> Tensor:
    q = _OPERATIONS["floor"](_OPERATIONS["div"](self, other))
    return q if self.dtype.kind == "f" else _OPERATIONS["cast"](q, self.dtype)


@_operation_of
def __getitem__(self: Tensor, key: Any, *, valid_shape: Any = None) -> Any:
    return _windows.item(self, key, valid_shape)


@_operation_of
def __setitem__(self: Tensor, key: Any, value: Any) -> None:
    _windows.set_item(self, key, value)


_getitem, _setitem = __getitem__, __setitem__
del __getitem__, __setitem__
_methods()


# ---- submodules


def _module(name: str, doc: str, **contents: Any) -> _types.ModuleType:
    made = _types.ModuleType(f"{__name__}.{name}", doc)
    vars(made).update(contents)
    for stub in _names.NOT_OFFERED.get(name, ()):
        setattr(made, stub, _names.NotOffered(name, stub))
    return made


experimental = _module(
    "experimental",
    "Operations that PyPTO may change.",
    transposed_batchmatmul=_linear.transposed_batchmatmul,
    gather_in_ub=_indexing.gather_in_ub,
    gather_in_l1=_indexing.gather_in_l1,
    set_operation_options=_settings.set_operation_options,
    get_operation_options=_settings.get_operation_options,
)
operation = _module("operation", "Operations of programs.", op_wrapper=frontend.op_wrapper)
distributed = _module("distributed", "Documented and not offered.")
runtime = _module("runtime", "Documented and not offered.")


@_operation_of
def ScalarDivS(operand: Any, value: Any, reverse_operand: bool = False) -> Tensor:  # noqa: N802
    """operand / value, or value / operand if reverse_operand."""
    f = _elementwise.div.raw
    return f(value, operand) if reverse_operand else f(operand, value)


class _LogBaseType(_names.enum.Enum):
    LOG_E, LOG_2, LOG_10 = range(3)


pypto_impl = _module(
    "pypto_impl", "Parts that programs reach for.", ScalarDivS=ScalarDivS, Element=Element, LogBaseType=_LogBaseType
)
error = _module(
    "error", "Errors.", PyptoError=_errors.Error, **{n: _names.error_not_offered(n) for n in _names.ERRORS_NOT_OFFERED}
)
del globals()["ScalarDivS"]

if _typing.TYPE_CHECKING:
    from . import debug, programs
    from .comparing import compare

_STUBS = frozenset(_names.NOT_OFFERED["pypto"])


def __getattr__(name: str) -> Any:
    if name in _STUBS:
        return _names.NotOffered("pypto", name)
    if name in ("debug", "programs"):
        import importlib

        return importlib.import_module("." + name, __name__)
    if name == "compare":
        from .comparing import compare

        return compare
    raise AttributeError(f"module 'pypto' has no attribute {name!r}")


# ---- `import pypto`

_PARTS = ("experimental", "frontend", "operation", "pypto_impl", "error", "debug")


def install() -> None:
    """From here on `import pypto` gives this module. Refused where another one is imported already."""
    other = _sys.modules.get("pypto")
    if other is _sys.modules[__name__]:
        return
    if other is not None:
        place = getattr(other, "__file__", None) or "memory"
        _errors.raise_error(
            "CONFLICT", "pypto.install", "pypto", "", f"is imported from {place}", "no other module of that name"
        )
    me = _sys.modules[__name__]
    _sys.modules["pypto"] = me
    for part in _PARTS:
        _sys.modules[f"pypto.{part}"] = getattr(me, part)


def uninstall() -> None:
    """`import pypto` finds what it found before install()."""
    if _sys.modules.get("pypto") is _sys.modules[__name__]:
        for part in ("", *(f".{p}" for p in _PARTS)):
            _sys.modules.pop("pypto" + part, None)


_NOT_OURS = {"annotations", "Any", *(m.rpartition(".")[2] for m in _sys.modules if m.startswith(__name__ + "."))}
_NOT_OURS -= {"frontend", "tensor"}
__all__ = [n for n in globals() if not n.startswith("_") and n not in _NOT_OURS]
