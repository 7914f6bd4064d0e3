# SPDX-License-Identifier: Apache-2.0
"""Matrix products, on the library's packed products."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import _core
from ..errors import shown
from .dtypes import BF16, FP16, FP32, INT8, INT32, bfloat16, check_dtype, convert, floats
from .elementwise import is_number
from .names import ReLuType, TileOpFormat, TransMode
from .state import operation, refuse, state
from .tensor import Array, Tensor, check_tensor, fit_valid, made, text_of, values

MAX_INNER = 131071  # terms up to which an int32 sum of int8 products is exact
EXTENSIONS = ("bias_tensor", "scale_tensor", "scale", "relu_type", "trans_mode")


class Packed:
    """A constant weight for kernels, in the order that products read: made by `prepack`, passed in its place. What a kernel
    multiplies by, the weight or windows of it, is packed when it is first met."""

    def __init__(self, weight: Any) -> None:
        from .memory import from_numpy

        self.array, self.dtype = from_numpy("prepack", "w", weight)
        self.panels: dict[Any, Any] = {}

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    def __repr__(self) -> str:
        return f"pypto.prepack of {list(self.shape)}, {self.dtype.word}"


def prepack(w: Any) -> Packed:
    """A handle to pass for a constant weight: it is packed once. Kernels may not write to it."""
    return Packed(w)


def product(a: Array, b: Array, dtype: Any, out: Any, panels: dict[Any, Any] | None = None) -> Array:
    """a [.., m, k] times b [.., k, n] with equal leading axes, or those of size 1; `out`: FP32, INT32 or `dtype`."""
    lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    c = np.empty((*lead, m, n), out.np)
    if c.size == 0 or k == 0:
        c[...] = 0
        return c
    if a.strides[-1] != a.itemsize and k > 1:
        a = np.ascontiguousarray(a)
    w: Any = b
    if panels is not None and dtype in (BF16, INT8) and b.shape[:-2] == lead and len(lead) < 2:
        w = _packed(b, dtype, panels)
    elif lead:
        w = np.broadcast_to(b, (*lead, k, n)).reshape(-1, k, n)
    if lead:
        a = np.broadcast_to(a, (*lead, m, k)).reshape(-1, m, k)
    _core.pypto_matmul(a, w, c.reshape(-1, m, n) if len(lead) > 1 else c, dtype.code, out.code, state.gemm == "fma")
    return c


def _packed(b: Array, dtype: Any, panels: dict[Any, Any]) -> Any:
    key = (b.__array_interface__["data"][0], b.shape, b.strides)
    found = panels.get(key)
    if found is None:
        rows = np.ascontiguousarray(b)
        found = panels[key] = _core.pack_weight(rows.view(bfloat16) if dtype is BF16 else rows)
    return found


def _swapped(a: Array, trans: bool) -> Array:
    return np.swapaxes(a, -1, -2) if trans else a


@operation
def matmul(
    input: Any,
    mat2: Any,
    out_dtype: Any,
    *,
    a_trans: bool = False,
    b_trans: bool = False,
    c_matrix_nz: bool = False,
    extend_params: Any = None,
) -> Tensor:
    """input [.., m, k] times mat2 [.., k, n], ranks 2 to 4 and equal, leading axes broadcast.

    BF16 or FP16 -> the same or FP32; FP32 -> FP32; INT8 -> INT32, or FP16 (portable BF16) with a scale; all -> INT8 with a
    scale. Sums in fp32 in the order of the library's products (INT8: exact), rounded once.
    extend_params: bias_tensor [1, n], scale or scale_tensor, relu_type; taken in this order."""
    x, y, dtype = _operands("matmul", input, mat2, a_trans, b_trans)
    rank = x.ndim
    if not 2 <= rank <= 4 or y.ndim != rank:
        refuse("INVALID_SHAPE", "matmul", "mat2", f"has rank {y.ndim}", f"{rank} (rank of input), 2 to 4")
    try:
        lead = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    except ValueError:
        wanted = f"{text_of(x.shape[:-2])} or sizes of 1 (leading axes of input)"
        refuse("INVALID_SHAPE", "matmul", "mat2", f"has leading axes {text_of(y.shape[:-2])}", wanted)
    if x.shape[-1] != y.shape[-2]:
        got, wanted = f"has shape {text_of(y.shape)}", f"{x.shape[-1]} rows (columns of input)"
        refuse("INVALID_SHAPE", "matmul", "mat2", got + (", transposed" if b_trans else ""), wanted)
    _check_out("matmul", dtype, out_dtype, x.shape[-1])
    more = _extensions(extend_params, dtype, out_dtype, y.shape[-1])
    shape = (*lead, x.shape[-2], y.shape[-1])
    valid = None
    if input._valid is not None or mat2._valid is not None:
        x, y, valid = _valid_parts(input, mat2, x, y, a_trans, b_trans)
        if more.get("bias_tensor") is not None:
            more["bias_tensor"] = more["bias_tensor"][..., : y.shape[-1]]
    c = _finished(x, y, dtype, out_dtype, more, _panels(mat2))
    if valid is not None:
        wide = np.zeros(shape, c.dtype)
        wide[tuple(slice(0, n) for n in c.shape)] = c
        c, valid = wide, fit_valid((*c.shape[:-2], *valid), shape)
    result = made(c, out_dtype, valid)
    if c_matrix_nz:
        result._format = TileOpFormat.TILEOP_NZ
    return result


def _panels(t: Tensor) -> Any:
    storage = t._box.storage
    argument = None if storage is None else storage.argument
    if not isinstance(argument, Packed) or not np.may_share_memory(t._box.a, argument.array):
        return None  # a copy (a reshaped window): its place may hold another one when it is next met
    return argument.panels


def _operands(name: str, input: Any, mat2: Any, a_trans: bool, b_trans: bool) -> tuple[Array, Array, Any]:
    check_tensor(name, input)
    check_tensor(name, mat2, "mat2")
    if mat2._dtype is not input._dtype:
        got, wanted = f"has dtype {mat2._dtype.word}", f"{input._dtype.word} (dtype of input)"
        refuse("INVALID_DTYPE", name, "mat2", got, wanted)
    if input._dtype not in (FP32, FP16, BF16, INT8):
        wanted = "float32, float16, bfloat16 or int8"
        refuse("INVALID_DTYPE", name, "input", f"has dtype {input._dtype.word}", wanted)
    x, y = values(name, input), values(name, mat2, "mat2")
    return _swapped(x, a_trans), _swapped(y, b_trans), input._dtype


_RESULTS = {
    "float32": ("float32", "int8"),
    "float16": ("float16", "float32", "int8"),
    "bfloat16": ("bfloat16", "float32", "int8"),
    "int8": ("int32", "float16", "bfloat16", "int8"),
}


def _check_out(name: str, dtype: Any, out: Any, k: int) -> None:
    check_dtype(name, "out_dtype", out)
    known = _RESULTS[dtype.word]
    if out.word not in known:
        refuse("INVALID_DTYPE", name, "out_dtype", f"is {out.word}", f"{' or '.join(known)} (input is {dtype.word})")
    if dtype is INT8 and k > MAX_INNER:
        got, wanted = f"has {k} columns", f"at most {MAX_INNER} (int32 sums stay exact)"
        refuse("INVALID_SHAPE", name, "input", got, wanted)


def _valid_parts(a: Tensor, b: Tensor, x: Array, y: Array, a_trans: bool, b_trans: bool) -> Any:
    """What takes part: the smaller valid k, a's rows, b's columns; leading axes that are valid in both."""
    va, vb = list(a.valid_shape), list(b.valid_shape)
    if a_trans:
        va[-1], va[-2] = va[-2], va[-1]
    if b_trans:
        vb[-1], vb[-2] = vb[-2], vb[-1]
    k = min(va[-1], vb[-2])
    lead_a, lead_b = [], []
    for i in range(len(va) - 2):
        both = [v for v, n in ((va[i], x.shape[i]), (vb[i], y.shape[i])) if n != 1]
        n = min(both, default=1)
        lead_a.append(slice(0, n if x.shape[i] != 1 else 1))
        lead_b.append(slice(0, n if y.shape[i] != 1 else 1))
    x = x[(*lead_a, slice(0, va[-2]), slice(0, k))]
    y = y[(*lead_b, slice(0, k), slice(0, vb[-1]))]
    return x, y, (va[-2], vb[-1])


def _extensions(given: Any, dtype: Any, out: Any, n: int) -> dict[str, Any]:
    """extend_params, checked; the scale as fp32 values with the low 13 bits cleared, the bias as values to add."""
    if given is not None and not isinstance(given, dict):
        refuse("INVALID_DTYPE", "matmul", "extend_params", f"is {shown(given)}", "a dict or None")
    more = dict(given or {})
    for name in more:
        if name not in EXTENSIONS:
            refuse(
                "INVALID_ARGUMENT", "matmul", "extend_params", f"has {shown(name)}", f"some of {', '.join(EXTENSIONS)}"
            )
    if more.get("trans_mode", TransMode.CAST_NONE) is not TransMode.CAST_NONE:
        refuse(
            "UNSUPPORTED",
            "matmul",
            "extend_params['trans_mode']",
            f"is {shown(more['trans_mode'])}",
            "TransMode.CAST_NONE",
        )
    relu = more.get("relu_type", ReLuType.NO_RELU)
    if not isinstance(relu, ReLuType):
        refuse("INVALID_DTYPE", "matmul", "extend_params['relu_type']", f"is {shown(relu)}", "one of pypto.ReLuType")
    found: dict[str, Any] = {"relu": relu is ReLuType.RELU}
    scale = _scale(more, n)
    needed = out is INT8 or (dtype is INT8 and out is not INT32)
    if needed and scale is None:
        wanted = f"a scale or a scale_tensor ({dtype.word} to {out.word})"
        refuse("INVALID_ARGUMENT", "matmul", "extend_params", "has no scale", wanted)
    if scale is not None and not needed:
        wanted = f"none ({dtype.word} to {out.word})"
        refuse("INVALID_ARGUMENT", "matmul", "extend_params", "has a scale", wanted)
    found["scale"] = scale
    bias = more.get("bias_tensor")
    if bias is not None:
        b = values("matmul", check_tensor("matmul", bias, "bias_tensor"), "bias_tensor")
        if b.shape not in ((1, n), (n,)):
            refuse("INVALID_SHAPE", "matmul", "bias_tensor", f"has shape {text_of(b.shape)}", f"[1, {n}]")
        if (bias._dtype is INT32) != (dtype is INT8) or bias._dtype.kind not in "fi":
            wanted = "int32" if dtype is INT8 else "float32 or the dtype of input"
            refuse("INVALID_DTYPE", "matmul", "bias_tensor", f"has dtype {bias._dtype.word}", wanted)
        found["bias_tensor"] = b if dtype is INT8 else floats(b, bias._dtype)
    return found


def _scale(more: dict[str, Any], n: int) -> Any:
    tensor, number = more.get("scale_tensor"), more.get("scale")
    if tensor is not None and number:
        refuse("INVALID_ARGUMENT", "matmul", "extend_params", "has scale and scale_tensor", "one of them")
    if tensor is not None:
        t = check_tensor("matmul", tensor, "scale_tensor")
        if t._dtype.word not in ("int64", "uint64"):
            refuse("INVALID_DTYPE", "matmul", "scale_tensor", f"has dtype {t._dtype.word}", "uint64 or int64")
        a = values("matmul", t, "scale_tensor")
        if a.shape not in ((1, n), (n,)):
            refuse("INVALID_SHAPE", "matmul", "scale_tensor", f"has shape {text_of(a.shape)}", f"[1, {n}]")
        bits = (a.astype(np.int64) & 0xFFFFFFFF).astype(np.uint32)
    elif number is None or number == 0.0:
        return None
    elif not is_number(number):
        return refuse("INVALID_DTYPE", "matmul", "scale", f"is {shown(number)}", "a number")
    else:
        bits = np.array(number, np.float32).view(np.uint32)
    return (bits & np.uint32(0xFFFFE000)).view(np.float32)


def _finished(x: Array, y: Array, dtype: Any, out: Any, more: dict[str, Any], panels: Any) -> Array:
    plain = more["scale"] is None and more.get("bias_tensor") is None and not more["relu"]
    acc = INT32 if dtype is INT8 else FP32
    if plain and out is not INT8:
        return product(x, y, dtype, out, panels)
    v: Array = product(x, y, dtype, acc, panels)
    bias = more.get("bias_tensor")
    if bias is not None:
        v = v.astype(np.int64) + bias if dtype is INT8 else v + bias
    if more["scale"] is not None:
        v = v.astype(np.float32) * more["scale"]
    if more["relu"]:
        v = np.where(v < 0, v.dtype.type(0), v)
    if out is INT8:
        return convert(np.asarray(v, np.float32), FP32, INT8, saturate=True)
    if out is INT32:
        return v.astype(np.int32)
    return v if out is FP32 else convert(np.asarray(v, np.float32), FP32, out)


@operation
def transposed_batchmatmul(tensor_a: Any, tensor_b: Any, out_dtype: Any) -> Tensor:
    """[M, B, K] and [B, K, N] -> [M, B, N]: one product for each B, one rounding."""
    name = "transposed_batchmatmul"
    x, y, dtype = _operands(name, tensor_a, tensor_b, False, False)
    if dtype not in (FP16, BF16):
        refuse("INVALID_DTYPE", name, "tensor_a", f"has dtype {dtype.word}", "float16 or bfloat16")
    if x.ndim != 3 or y.ndim != 3 or x.shape[1] != y.shape[0] or x.shape[2] != y.shape[1]:
        got = f"has shape {text_of(y.shape)}"
        refuse("INVALID_SHAPE", name, "tensor_b", got, f"[B, K, N] with [M, B, K] = {text_of(x.shape)} (tensor_a)")
    check_dtype(name, "out_dtype", out_dtype)
    if out_dtype not in (dtype, FP32):
        refuse("INVALID_DTYPE", name, "out_dtype", f"is {out_dtype.word}", f"{dtype.word} or float32")
    for t, parameter in ((tensor_a, "tensor_a"), (tensor_b, "tensor_b")):
        if t._valid is not None and (parameter == "tensor_b" or list(t._valid[1:]) != t.shape[1:]):
            refuse("INVALID_SHAPE", name, parameter, f"has valid shape {text_of(t._valid)}", "all valid but for rows")
    c = product(x.transpose(1, 0, 2), y, dtype, out_dtype, _panels(tensor_b))
    valid = None if tensor_a._valid is None else (tensor_a._valid[0], c.shape[0], c.shape[2])
    return made(c.transpose(1, 0, 2), out_dtype, valid)
