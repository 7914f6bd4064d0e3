# SPDX-License-Identifier: Apache-2.0
"""Element-wise operations. fp32 rounds once; bf16 and fp16 are computed through fp32 and rounded to what they are;
integers wrap. Axes of size 1 broadcast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .. import _core
from ..errors import shown
from .dtypes import BOOL, FP32, INT32, check_dtype, convert, floats, number_bits
from .names import CastMode, SaturationMode
from .scalars import Element
from .state import note, operation, refuse, refuse_on_chip, state
from .tensor import Array, Tensor, check_tensor, fit_valid, made, text_of, values

Number = (int, float, np.integer, np.floating)


def is_number(x: Any) -> bool:
    return isinstance(x, Number) and not isinstance(x, (bool, np.bool_))


def operand(name: str, x: Any, like: Tensor, parameter: str = "other") -> Any:
    """What stands beside the tensor `like`, as its values are kept."""
    if type(x) is Tensor or isinstance(x, Tensor):
        if x._dtype is not like._dtype:
            got, wanted = f"has dtype {x._dtype.word}", f"{like._dtype.word} (dtype of input)"
            refuse("INVALID_DTYPE", name, parameter, got, wanted)
        return values(name, x, parameter)
    if isinstance(x, Element):
        if x.dtype is not like._dtype and state.level == "strict":
            got, wanted = f"is an Element of {x.dtype.word}", f"one of {like._dtype.word} (dtype of input)"
            refuse_on_chip(name, parameter, got, wanted)
        value = x.value
        if like._dtype.kind != "f" and float(value).is_integer():
            value = int(value)
        x = value
    elif not is_number(x):
        refuse("INVALID_DTYPE", name, parameter, f"is {shown(x)}", "a pypto tensor or a number")
    if like._dtype.kind != "f" and isinstance(x, (float, np.floating)):
        refuse("INVALID_DTYPE", name, parameter, f"is {x}", f"an integer (input is {like._dtype.word})")
    return number_bits(name, x, like._dtype)


def joint_valid(name: str, tensors: Any, shape: tuple[int, ...]) -> Any:
    """Per axis the smallest; size 1 does not limit."""
    valid = None
    for t in tensors:
        if t._valid is None:
            continue
        valid = list(shape) if valid is None else valid
        own = t.shape
        ahead = len(shape) - len(own)
        for axis, v in enumerate(t._valid):
            if own[axis] != 1 or shape[ahead + axis] == 1:
                valid[ahead + axis] = min(valid[ahead + axis], v)
    if state.observers and len({tuple(t.valid_shape) for t in tensors}) > 1:
        note(f"{name}: valid shapes {' and '.join(text_of(t.valid_shape) for t in tensors)}")
    return None if valid is None else fit_valid(tuple(valid), shape)


def joined(name: str, tensors: Any, a: Array, dtype: Any) -> Tensor:
    """A result of these tensors."""
    for t in tensors:
        if t._valid is not None:
            return made(a, dtype, joint_valid(name, tensors, a.shape))
    return made(a, dtype)


def check_shapes(name: str, *shapes: tuple[int, ...]) -> None:
    try:
        np.broadcast_shapes(*shapes)
    except ValueError:
        got, wanted = f"has shape {text_of(shapes[1])}", f"{text_of(shapes[0])}, or axes of size 1 (shape of input)"
        refuse("INVALID_SHAPE", name, "other", got, wanted)


def apply(name: str, f: Callable[..., Any], dtype: Any, *operands: Any) -> Any:
    """f of operands as they are kept, computed in what `dtype` computes in and kept as it again."""
    try:
        if dtype is FP32 or dtype.kind != "f":
            return f(*operands)
        wide = [floats(np.asarray(x), dtype) for x in operands]
        return convert(np.asarray(f(*wide)), FP32, dtype)
    except ValueError:
        check_shapes(name, *(np.shape(x) for x in operands))
        raise


def _binary(name: str, f: Callable[..., Any], input: Any, other: Any) -> Tensor:
    if not isinstance(input, Tensor):
        return _reversed(name, f, input, other)
    a, b = values(name, input), operand(name, other, input)
    kept = apply(name, f, input._dtype, a, b)
    return joined(name, (input, other) if isinstance(other, Tensor) else (input,), kept, input._dtype)


def _reversed(name: str, f: Callable[..., Any], input: Any, other: Any) -> Any:
    """A number and a tensor."""
    check_tensor(name, other, "other")
    a, b = operand(name, input, other, "input"), values(name, other, "other")
    return joined(name, (other,), apply(name, f, other._dtype, a, b), other._dtype)


@operation
def add(input_tensor: Any, other: Any) -> Tensor:
    """input_tensor + other."""
    return _binary("add", np.add, input_tensor, other)


@operation
def sub(input_tensor: Any, other: Any) -> Tensor:
    """input_tensor - other."""
    return _binary("sub", np.subtract, input_tensor, other)


@operation
def mul(input_tensor: Any, other: Any) -> Tensor:
    """input_tensor * other."""
    return _binary("mul", np.multiply, input_tensor, other)


def _wide_numbers(name: str, input: Any, other: Any) -> tuple[Any, Any, Any]:
    """Both sides of a division, as fp32, and the dtype of the result."""
    like = input if isinstance(input, Tensor) else check_tensor(name, other, "other")
    a = values(name, input) if like is input else operand(name, input, like, "input")
    b = operand(name, other, like) if like is input else values(name, other, "other")
    if like._dtype is FP32:
        return a, b, FP32
    wide = FP32 if like._dtype.kind != "f" else like._dtype
    return floats(np.asarray(a), like._dtype), floats(np.asarray(b), like._dtype), wide


@operation
def div(input: Any, other: Any, precision_type: Any = None) -> Tensor:
    """input / other, one rounding (x / 0 is inf, 0 / 0 NaN); integers become fp32 first, and so is the result."""
    a, b, dtype = _wide_numbers("div", input, other)
    try:
        q = np.divide(a, b)
    except ValueError:
        check_shapes("div", np.shape(a), np.shape(b))
        raise
    kept = q if dtype is FP32 else convert(np.asarray(q), FP32, dtype)
    return joined("div", [t for t in (input, other) if isinstance(t, Tensor)], kept, dtype)


def _limit(name: str, f: Callable[..., Any], doc: str) -> Any:
    def run(input: Any, other: Any) -> Tensor:
        check_tensor(name, input)
        if is_number(other) and state.level == "strict":
            taken = INT32 if isinstance(other, (int, np.integer)) else FP32
            if taken is not input._dtype:
                refuse_on_chip(name, "other", f"is the {taken.word} {other}", f"an Element of {input._dtype.word}")
        if is_number(other) and input._dtype.kind != "f" and float(other).is_integer():
            other = int(other)
        b = operand(name, other, input)
        kept = apply(name, f, input._dtype, values(name, input), b)
        return joined(name, (input, other) if isinstance(other, Tensor) else (input,), kept, input._dtype)

    run.__name__ = run.__qualname__ = name
    run.__doc__ = doc
    return operation(run)


maximum = _limit("maximum", np.maximum, "The larger one; NaN wins.")
minimum = _limit("minimum", np.minimum, "The smaller one; NaN wins.")


@operation
def clip(input: Any, min: Any = None, max: Any = None) -> Tensor:
    """Not below `min` and not above `max`, numbers or tensors; NaN stays."""
    if min is None and max is None:
        refuse("INVALID_ARGUMENT", "clip", "min", "is missing, as is max", "at least one of them")
    for bound, limit in ((min, maximum), (max, minimum)):
        if bound is not None:
            input = limit.raw(input, bound)
    return input


# ---- of one tensor


def _unary(name: str, f: Callable[..., Any], input: Any, floats_only: bool = True) -> Tensor:
    a = values(name, check_tensor(name, input))
    if floats_only and input._dtype.kind != "f":
        refuse("INVALID_DTYPE", name, "input", f"has dtype {input._dtype.word}", "float32, float16 or bfloat16")
    return made(apply(name, f, input._dtype, a), input._dtype, input._valid)


def in_double(f: Callable[..., Any]) -> Callable[[Any], Any]:
    """fp32 of what double gives: within an ulp."""
    return lambda x: f(x.astype(np.float64)).astype(np.float32)


def exponential(x: Any) -> Any:
    x = np.asarray(x, order="C")
    y = np.empty(x.shape, np.float32)
    _core.pypto_exp(x, y)
    return y


_ONE = np.float32(1)


@operation
def sqrt(input: Any, precision_type: Any = None) -> Tensor:
    """The square root, correctly rounded."""
    return _unary("sqrt", np.sqrt, input)


@operation
def reciprocal(a: Any, precision_type: Any = None) -> Tensor:
    """1 / a, correctly rounded."""
    return _unary("reciprocal", lambda x: _ONE / x, a)


@operation
def rsqrt(input: Any, precision_type: Any = None) -> Tensor:
    """1 / sqrt(input), both rounded."""
    return _unary("rsqrt", lambda x: _ONE / np.sqrt(x), input)


@operation
def exp(input: Any, precision_type: Any = None) -> Tensor:
    """e ** input, within 2 ulp."""
    return _unary("exp", exponential, input)


@operation
def exp2(input: Any) -> Tensor:
    """2 ** input."""
    return _unary("exp2", in_double(np.exp2), input)


@operation
def expm1(input: Any) -> Tensor:
    """e ** input - 1."""
    return _unary("expm1", in_double(np.expm1), input)


@operation
def log(input: Any, precision_type: Any = None) -> Tensor:
    """The natural logarithm."""
    return _unary("log", in_double(np.log), input)


@operation
def log2(input: Any, precision_type: Any = None) -> Tensor:
    """The logarithm of base 2."""
    return _unary("log2", in_double(np.log2), input)


@operation
def log10(input: Any, precision_type: Any = None) -> Tensor:
    """The logarithm of base 10."""
    return _unary("log10", in_double(np.log10), input)


@operation
def log1p(input: Any) -> Tensor:
    """log(1 + input)."""
    return _unary("log1p", in_double(np.log1p), input)


@operation
def sin(self: Any) -> Tensor:
    """The sine."""
    return _unary("sin", in_double(np.sin), self)


@operation
def cos(self: Any) -> Tensor:
    """The cosine."""
    return _unary("cos", in_double(np.cos), self)


@operation
def tanh(a: Any) -> Tensor:
    """The hyperbolic tangent."""
    return _unary("tanh", in_double(np.tanh), a)


@operation
def sigmoid(input: Any) -> Tensor:
    """1 / (1 + exp(-input))."""
    return _unary("sigmoid", in_double(lambda x: 1 / (1 + np.exp(-x))), input)


@operation
def floor(input: Any) -> Tensor:
    """Rounded down."""
    return _unary("floor", np.floor, input)


@operation
def ceil(input: Any) -> Tensor:
    """Rounded up."""
    return _unary("ceil", np.ceil, input)


@operation
def trunc(input: Any) -> Tensor:
    """Rounded to zero."""
    return _unary("trunc", np.trunc, input)


@operation
def abs(a: Any) -> Tensor:
    """The magnitude."""
    return _unary("abs", np.abs, a, floats_only=False)


@operation
def neg(a: Any) -> Tensor:
    """-a."""
    return _unary("neg", np.negative, a, floats_only=False)


@operation
def sign(a: Any) -> Tensor:
    """-1, 0 or 1; NaN stays."""
    return _unary("sign", np.sign, a, floats_only=False)


@operation
def relu(a: Any) -> Tensor:
    """0 where negative; NaN stays."""
    return _unary("relu", lambda x: np.where(x < 0, x.dtype.type(0), x), a, floats_only=False)


@operation
def round(input: Any, decimals: int = 0) -> Tensor:
    """To so many decimals, ties to even."""
    a = values("round", check_tensor("round", input))
    if input._dtype.kind != "f":
        return made(a, input._dtype, input._valid, input._box)
    scale = 10.0**decimals

    def rounded(x: Any) -> Any:
        if decimals == 0:
            return np.rint(x)
        return (np.rint(x.astype(np.float64) * scale) / scale).astype(np.float32)

    return made(apply("round", rounded, input._dtype, a), input._dtype, input._valid)


@operation
def pow(base: Any, other: Any, precision_type: Any = None) -> Tensor:
    """base ** other, within 2 ulp; integers wrap, and their powers are not negative."""
    check_tensor("pow", base, "base")
    a, b = values("pow", base, "base"), operand("pow", other, base)
    if base._dtype.kind == "f":
        f = lambda x, y: np.power(np.asarray(x, np.float64), np.asarray(y, np.float64)).astype(np.float32)  # noqa: E731
    else:
        if base._dtype.kind == "i" and np.any(np.asarray(b) < 0):
            refuse("INVALID_ARGUMENT", "pow", "other", "is negative", "0 or more (integers)")
        f = np.power
    kept = apply("pow", f, base._dtype, a, b)
    return joined("pow", (base, other) if isinstance(other, Tensor) else (base,), kept, base._dtype)


# ---- conditions


def _compared(name: str, f: Callable[..., Any]) -> Any:
    def run(input: Any, other: Any) -> Tensor:
        check_tensor(name, input)
        a, b = values(name, input), operand(name, other, input)
        if input._dtype.kind == "f" and input._dtype is not FP32:
            a, b = floats(a, input._dtype), floats(np.asarray(b), input._dtype)
        check_shapes(name, np.shape(a), np.shape(b))
        return joined(name, (input, other) if isinstance(other, Tensor) else (input,), np.asarray(f(a, b)), BOOL)

    run.__name__ = run.__qualname__ = name
    run.__doc__ = f"Whether input {name} other, element by element."
    return operation(run)


eq, ne = _compared("eq", np.equal), _compared("ne", np.not_equal)
lt, le = _compared("lt", np.less), _compared("le", np.less_equal)
gt, ge = _compared("gt", np.greater), _compared("ge", np.greater_equal)


def truth(name: str, t: Any, parameter: str = "input") -> Array:
    a = values(name, check_tensor(name, t, parameter), parameter)
    if t._dtype is BOOL:
        return a
    return floats(a, t._dtype) != 0 if t._dtype.kind == "f" else a != 0


def _tested(name: str, f: Callable[..., Any], integers: bool) -> Any:
    def run(self: Any) -> Tensor:
        a = values(name, check_tensor(name, self))
        found = f(floats(a, self._dtype)) if self._dtype.kind == "f" else np.full(a.shape, integers)
        return made(np.asarray(found), BOOL, self._valid)

    run.__name__ = run.__qualname__ = name
    run.__doc__ = f"{name} of every element."
    return operation(run)


isnan, isfinite = _tested("isnan", np.isnan, False), _tested("isfinite", np.isfinite, True)


@operation
def logical_not(input: Any) -> Tensor:
    """Whether it is 0."""
    return made(~truth("logical_not", input), BOOL, input._valid)


@operation
def logical_and(input: Any, other: Any) -> Tensor:
    """Whether neither is 0."""
    a, b = truth("logical_and", input), truth("logical_and", other, "other")
    check_shapes("logical_and", a.shape, b.shape)
    return joined("logical_and", (input, other), a & b, BOOL)


@operation
def where(condition: Any, input: Any, other: Any) -> Tensor:
    """input where condition holds, other elsewhere; tensors or numbers."""
    c = truth("where", condition, "condition")
    like = input if isinstance(input, Tensor) else other
    if not isinstance(like, Tensor):
        both = [x.dtype if isinstance(x, Element) else FP32 if isinstance(x, float) else INT32 for x in (input, other)]
        like = made(np.zeros((), both[0].np), FP32 if FP32 in both else both[0])
    a, b = operand("where", input, like, "input"), operand("where", other, like)
    check_shapes("where", np.broadcast_shapes(np.shape(a), np.shape(b)), c.shape)
    kept = np.where(c, a, b).astype(like._dtype.np, copy=False)
    return joined("where", [t for t in (condition, input, other) if isinstance(t, Tensor)], kept, like._dtype)


# ---- bits


def _bitwise(name: str, f: Callable[..., Any], input: Any, other: Any) -> Tensor:
    check_tensor(name, input)
    if input._dtype.kind == "f":
        refuse("INVALID_DTYPE", name, "input", f"has dtype {input._dtype.word}", "an integer dtype or BOOL")
    a, b = values(name, input), operand(name, other, input)
    check_shapes(name, np.shape(a), np.shape(b))
    kept = np.asarray(f(a, b)).astype(input._dtype.np, copy=False)
    return joined(name, (input, other) if isinstance(other, Tensor) else (input,), kept, input._dtype)


@operation
def bitwise_and(self: Any, other: Any) -> Tensor:
    """Bits that both have."""
    return _bitwise("bitwise_and", np.bitwise_and, self, other)


@operation
def bitwise_or(input1: Any, input2: Any) -> Tensor:
    """Bits that one of them has."""
    return _bitwise("bitwise_or", np.bitwise_or, input1, input2)


@operation
def bitwise_xor(first: Any, second: Any) -> Tensor:
    """Bits that only one of them has."""
    return _bitwise("bitwise_xor", np.bitwise_xor, first, second)


@operation
def bitwise_left_shift(input: Any, other: Any) -> Tensor:
    """input * 2 ** other, modulo 2 ** n."""
    return _bitwise("bitwise_left_shift", np.left_shift, input, other)


@operation
def bitwise_right_shift(input: Any, other: Any) -> Tensor:
    """input / 2 ** other, rounded down."""
    return _bitwise("bitwise_right_shift", np.right_shift, input, other)


@operation
def bitwise_not(self: Any) -> Tensor:
    """Every bit turned."""
    a = values("bitwise_not", check_tensor("bitwise_not", self))
    if self._dtype.kind == "f":
        refuse("INVALID_DTYPE", "bitwise_not", "input", f"has dtype {self._dtype.word}", "an integer dtype or BOOL")
    return made(~a, self._dtype, self._valid)


# ---- cast

_NONE, _MODES = CastMode.CAST_NONE, {m: m.value for m in CastMode}


@operation
def cast(input: Any, dtype: Any, mode: Any = CastMode.CAST_NONE, satmode: Any = SaturationMode.OFF) -> Tensor:
    """To another dtype, one rounding. CAST_NONE, and a mode that the pair does not know: to nearest with ties to even,
    from float to integer to zero. satmode: integers out of range are clamped (ON) or keep their low bits (OFF)."""
    source = check_tensor("cast", input)._dtype
    a = values("cast", input)
    check_dtype("cast", "dtype", dtype)
    if not isinstance(mode, CastMode):
        refuse("INVALID_DTYPE", "cast", "mode", f"is {shown(mode)}", "one of pypto.CastMode")
    if not isinstance(satmode, SaturationMode):
        refuse("INVALID_DTYPE", "cast", "satmode", f"is {shown(satmode)}", "one of pypto.SaturationMode")
    if dtype is source and not (dtype is FP32 and mode is not _NONE):
        return input
    return made(
        convert(a, source, dtype, _rounding(source, dtype, mode), satmode is SaturationMode.ON), dtype, input._valid
    )


def _rounding(source: Any, target: Any, mode: CastMode) -> int:
    """The number of the mode that this pair rounds by."""
    narrow = target.kind == "f" or source.kind != "f"
    default = CastMode.CAST_RINT if narrow else CastMode.CAST_TRUNC
    if source is INT32 and target.word == "float16":
        return CastMode.CAST_RINT.value
    if mode is _NONE:
        return default.value
    if mode is CastMode.CAST_ODD and not (source is FP32 and target.word == "float16"):
        return default.value
    return mode.value
