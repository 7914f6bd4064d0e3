# SPDX-License-Identifier: Apache-2.0
"""Scalars of a program: sizes and indices (SymInt), typed numbers (Element)."""

from __future__ import annotations

from typing import Any, NoReturn

from ..errors import shown
from .dtypes import check_dtype
from .names import DataType
from .state import refuse


class SymInt(int):
    """An integer that a device would know at run time only; here it has its value. Closed under + - * // %."""

    loop: tuple[bool, bool] | None = None  # of a value yielded by a loop: whether it is the first, the last

    def __new__(cls, arg0: Any = None, arg1: Any = None) -> SymInt:
        value = arg1 if isinstance(arg0, str) else arg0
        if value is None and arg1 is None:
            made = int.__new__(_Unknown, 0)
            made.name = arg0 or ""
            return made
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            refuse("INVALID_DTYPE", "symbolic_scalar", "arg0", f"is {shown(value)}", "an integer or a name")
        return int.__new__(cls, value)

    def __add__(self, other: Any) -> Any:
        return _made(int.__add__(self, other))

    def __sub__(self, other: Any) -> Any:
        return _made(int.__sub__(self, other))

    def __mul__(self, other: Any) -> Any:
        return _made(int.__mul__(self, other))

    def __floordiv__(self, other: Any) -> Any:
        return _made(int.__floordiv__(self, other))

    def __mod__(self, other: Any) -> Any:
        return _made(int.__mod__(self, other))

    def __radd__(self, other: Any) -> Any:
        return _made(int.__radd__(self, other))

    def __rsub__(self, other: Any) -> Any:
        return _made(int.__rsub__(self, other))

    def __rmul__(self, other: Any) -> Any:
        return _made(int.__rmul__(self, other))

    def __rfloordiv__(self, other: Any) -> Any:
        return _made(int.__rfloordiv__(self, other))

    def __rmod__(self, other: Any) -> Any:
        return _made(int.__rmod__(self, other))

    def __neg__(self) -> SymInt:
        return symint(int.__neg__(self))

    def __pos__(self) -> SymInt:
        return symint(int(self))

    def min(self, other: int) -> SymInt:
        return symint(min(int(self), int(other)))

    def max(self, other: int) -> SymInt:
        return symint(max(int(self), int(other)))

    def concrete(self) -> int:
        return int(self)

    def as_variable(self) -> SymInt:
        return self

    def _refused(self, name: str) -> NoReturn:
        from .names import refuse as not_offered

        not_offered("SymbolicScalar", name)

    def is_concrete(self) -> NoReturn:
        self._refused("is_concrete")

    def is_symbol(self) -> NoReturn:
        self._refused("is_symbol")

    def is_expression(self) -> NoReturn:
        self._refused("is_expression")

    def is_immediate(self) -> NoReturn:
        self._refused("is_immediate")


def symint(value: int) -> SymInt:
    return int.__new__(SymInt, value)


def _made(value: Any) -> Any:
    return value if value is NotImplemented else int.__new__(SymInt, value)


class _Unknown(SymInt):
    """A bare name."""

    name = ""

    def concrete(self) -> int:
        return refuse(
            "INVALID_ARGUMENT", "SymbolicScalar.concrete", "self", f"is {self.name!r}, a bare name", "a value"
        )

    def _no_value(self, *_: Any) -> NoReturn:
        refuse("UNSUPPORTED", "SymbolicScalar", "self", f"is {self.name!r}, a bare name", "a value to compute with")
        raise AssertionError

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __floordiv__ = __rfloordiv__ = _no_value
    __mod__ = __rmod__ = __neg__ = __pos__ = __int__ = __index__ = __bool__ = min = max = _no_value
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _no_value
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"SymbolicScalar({self.name!r})"


class Element:
    """A number with a dtype."""

    __slots__ = ("_dtype", "_value")

    def __init__(self, dtype: DataType, data: Any = None, *, value: Any = None) -> None:
        self._dtype = check_dtype("Element", "dtype", dtype)
        self._value = value if data is None else data
        if isinstance(self._value, (str, bytes)) or not hasattr(self._value, "__float__"):
            refuse("INVALID_DTYPE", "Element", "data", f"is {shown(self._value)}", "a number")

    @property
    def dtype(self) -> DataType:
        return self._dtype

    @property
    def value(self) -> Any:
        return self._value

    def __repr__(self) -> str:
        return f"Element({self._dtype.name}, {self._value!r})"
