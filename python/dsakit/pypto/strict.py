# SPDX-License-Identifier: Apache-2.0
"""What Atlas A2/A3 also refuses: tile sizes, dtypes, ranks and sizes. Tables of documented limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .names import TileOpFormat
from .observing import parameters_of
from .scalars import SymInt
from .state import refuse_on_chip, state
from .tensor import Storage, Tensor, text_of

_ARITHMETIC = "float32 float16 bfloat16 int32 int16".split()
_FLOATS = "float32 float16 bfloat16".split()
_GATHERED = "float32 float16 bfloat16 int32 int16 int8".split()
# Operation -> dtypes that the chip takes.
DTYPES: dict[str, list[str]] = (
    dict.fromkeys("add sub mul div abs neg maximum minimum clip amax amin".split(), _ARITHMETIC)
    | dict.fromkeys("sqrt reciprocal rsqrt exp exp2 expm1 log log2 log10 log1p sin cos tanh sigmoid".split(), _FLOATS)
    | {
        "sum": ["float32", "bfloat16", "int32", "int16"],
        "softmax": ["float32"],
        "scatter_update": _GATHERED,
        "gather_in_ub": ["float32", "float16", "bfloat16", "int8"],
        "gather_in_l1": ["float32", "float16", "bfloat16", "int8"],
        "gather": _GATHERED + ["uint8", "uint16", "uint32"],
        "index_select": _GATHERED + ["uint8", "uint16", "uint32"],
        "topk": ["float32", "float16"],
        "argsort": ["float32", "float16"],
    }
)
CASTS = {
    "float32": "float16 bfloat16 float32 int64 int32 int16",
    "float16": "float32 int32 int16 int8 uint8",
    "bfloat16": "float32 int32",
    "int32": "float32 float16 int64 int16",
    "int16": "float32 float16",
    "int64": "float32 int32",
    "int8": "float16",
    "uint8": "float16",
}
# Those without tiles, those whose tiles the first tensor decides, products.
FREE = set(
    "view reshape assemble move unsqueeze __getitem__ __setitem__ clone full zeros ones arange "
    "gather_in_l1 pass_verify_print".split()
)
BY_INPUT = set("sum amax amin argmax argmin prod cumsum var softmax topk argsort transpose permute".split())
PRODUCTS = {"matmul", "transposed_batchmatmul"}
NZ_TAKEN = {"view", "reshape", "matmul", "transposed_batchmatmul"}
_RANK = 4


def _named(function: Callable[..., Any], args: Any, kwargs: Any) -> dict[str, Any]:
    return dict(zip(parameters_of(function), args)) | kwargs


def _tensors(given: dict[str, Any]) -> list[tuple[str, Tensor]]:
    found = []
    for name, value in given.items():
        if isinstance(value, Tensor):
            found.append((name, value))
        elif isinstance(value, (list, tuple)):
            found += [(name, v) for v in value if isinstance(v, Tensor)]
    return found


def before(name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> None:
    given = _named(function, args, kwargs)
    tensors = _tensors(given)
    most = 5 if name in ("transpose", "permute") else _RANK
    for word, t in tensors:
        if t._format is TileOpFormat.TILEOP_NZ and name not in NZ_TAKEN:
            refuse_on_chip(name, word, "is TILEOP_NZ", "TILEOP_ND (only view, reshape and matmul take NZ)")
        shape = t.shape
        if len(shape) > most:
            refuse_on_chip(name, word, f"has rank {len(shape)}", f"at most {most}")
        count = 1
        for n in shape:
            count *= n
        if count == 0 and t._box.a is not None:
            refuse_on_chip(name, word, f"has shape {text_of(shape)}", "elements")
        if count > 2**31 - 1:
            refuse_on_chip(name, word, f"has {count} elements", "at most 2147483647")
    known = DTYPES.get(name)
    if known and tensors and tensors[0][1]._dtype.word not in known:
        refuse_on_chip(name, tensors[0][0], f"has dtype {tensors[0][1]._dtype.word}", " or ".join(known))
    check = _CHECKS.get(name)
    if check is not None:
        check(name, given, tensors)
    if name in ("view", "__getitem__", "assemble", "__setitem__") and state.loops:
        _cycle(name, given, tensors)
    if name in PRODUCTS:
        _products(name, given)
    elif name not in FREE and tensors:
        _tiles(name, given, tensors)


def _tiles(name: str, given: dict[str, Any], tensors: list[tuple[str, Tensor]]) -> None:
    if name == "scatter_update":
        rank = len(given["src"].shape) if isinstance(given.get("src"), Tensor) else 0
    elif name in BY_INPUT:
        rank = len(tensors[0][1].shape)
    else:
        rank = max(len(t.shape) for _, t in tensors)
    if not state.vec_tile:
        refuse_on_chip(name, "set_vec_tile_shapes", "was not called", f"{rank} tile sizes")
    if len(state.vec_tile) < min(rank, 4):
        refuse_on_chip(name, "set_vec_tile_shapes", f"has {len(state.vec_tile)} sizes", f"{rank} tile sizes")


def _cycle(name: str, given: dict[str, Any], tensors: list[tuple[str, Tensor]]) -> None:
    """The chip orders the parts of one loop body by what they read and write: a tensor that is viewed and assembled in it
    is a cycle."""
    if name == "__setitem__" and (given["key"] == slice(None) or given["key"] is Ellipsis):
        return
    writes = name in ("assemble", "__setitem__")
    t = given.get("self") if name.startswith("__") else given.get("dst") if writes else given.get("input")
    if not isinstance(t, Tensor) or (t._box.fixed and not writes):
        return
    if t._box.storage is None:
        t._box.storage = Storage()
    body = state.loops[-1].loop, state.loops[-1].index
    if state.body is None or state.body[0] != body:
        state.body = body, {}
    seen = state.body[1].setdefault(id(t._box.storage), (t._box.storage, set()))[1]
    seen.add(writes)
    if len(seen) == 2:
        refuse_on_chip(name, t.name or "tensor", "is both viewed and assembled", "one of them in a loop body")


def _broadcast(name: str, given: dict[str, Any], tensors: list[tuple[str, Tensor]]) -> None:
    if len(tensors) > 1 and len(tensors[0][1].shape) != len(tensors[1][1].shape):
        got = f"has rank {len(tensors[1][1].shape)}"
        refuse_on_chip(name, tensors[1][0], got, f"{len(tensors[0][1].shape)} (rank of {tensors[0][0]})")


def _cast(name: str, given: dict[str, Any], tensors: list[tuple[str, Tensor]]) -> None:
    source, target = given["input"], given["dtype"]
    if not isinstance(source, Tensor) or not hasattr(target, "word") or source._dtype is target:
        return
    if target.word not in CASTS.get(source._dtype.word, "").split():
        known = CASTS.get(source._dtype.word, "no dtype").replace(" ", ", ")
        refuse_on_chip(name, "dtype", f"is {target.word}", f"one of {known} (input is {source._dtype.word})")


def _concat(name: str, given: dict[str, Any], tensors: list[tuple[str, Tensor]]) -> None:
    if not 2 <= len(tensors) <= 128:
        refuse_on_chip(name, "tensors", f"has {len(tensors)}", "2 to 128 tensors")


def _transpose(name: str, given: dict[str, Any], tensors: list[tuple[str, Tensor]]) -> None:
    rank = len(tensors[0][1].shape)
    axes = {int(given["dim0"]) % max(rank, 1), int(given["dim1"]) % max(rank, 1)}
    if rank == 4 and axes in ({0, 1}, {0, 3}):
        refuse_on_chip(
            name, "dim0", f"with dim1 is {text_of(sorted(axes))}", "other axes than (0, 1) and (0, 3) of rank 4"
        )
    if rank == 5 and axes != {3, 4}:
        refuse_on_chip(name, "dim0", f"with dim1 is {text_of(sorted(axes))}", "(3, 4) of rank 5")


def _view(name: str, given: dict[str, Any], tensors: list[tuple[str, Tensor]]) -> None:
    for axis, n in enumerate(given.get("shape") or ()):
        if isinstance(n, SymInt):
            refuse_on_chip(name, f"shape[{axis}]", f"is the run-time {int(n)}", "an int (valid_shape may be run-time)")


def _reshape(name: str, given: dict[str, Any], tensors: list[tuple[str, Tensor]]) -> None:
    inplace = bool(given.get("inplace"))
    for axis, n in enumerate(given.get("shape") or ()):
        if isinstance(n, SymInt) and not inplace:
            refuse_on_chip(name, f"shape[{axis}]", f"is the run-time {int(n)}", "an int, or inplace=True")
    if inplace and tensors and tensors[0][1]._box.fixed:
        refuse_on_chip(name, "input", "is a view", "a tensor with memory of its own (inplace)")
    shape = given.get("shape") or ()
    if -1 in list(shape) and tensors and tensors[0][1]._dynamic is not None:
        refuse_on_chip(name, "shape", "has -1", "sizes (input has run-time ones)")


def _index(name: str, given: dict[str, Any], tensors: list[tuple[str, Tensor]]) -> None:
    index = given.get("index")
    if isinstance(index, Tensor) and index._dtype.word not in ("int64", "int32", "int16"):
        refuse_on_chip(name, "index", f"has dtype {index._dtype.word}", "int64, int32 or int16")


_CHECKS: dict[str, Callable[..., None]] = {
    **dict.fromkeys("add sub mul div maximum minimum eq ne lt le gt ge where".split(), _broadcast),
    "cast": _cast,
    "concat": _concat,
    "transpose": _transpose,
    "view": _view,
    "reshape": _reshape,
    "scatter_update": _index,
}

KiB = 1024


def _products(name: str, given: dict[str, Any]) -> None:
    """Tile sizes clipped to the operands rounded up to 16, against the memories next to the matrix unit."""
    a, b = (given.get(w) for w in (("input", "mat2") if name == "matmul" else ("tensor_a", "tensor_b")))
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return
    tile = state.cube_tile
    if tile is None:
        refuse_on_chip(name, "set_cube_tile_shapes", "was not called", "tile sizes m, k, n")
    e = a._dtype.np.itemsize
    x, y = a.shape, b.shape
    if len(x) < 2 or len(y) < 2:
        return
    m, k = (x[-1], x[-2]) if given.get("a_trans") else (x[-2], x[-1])
    n = y[-2] if given.get("b_trans") else y[-1]
    if name == "transposed_batchmatmul":
        m = x[0]
    for word, sizes in (("k", tile.k), ("n", tile.n)):
        for size in sizes:
            if size * e % 32:
                refuse_on_chip(
                    name, "set_cube_tile_shapes", f"has {word} size {size}", f"multiples of 32 bytes ({a._dtype.word})"
                )
    clip = lambda size, whole: min(size, -(-whole // 16) * 16)  # noqa: E731
    m0, m1 = (clip(s, m) for s in tile.m)
    k0, ka, kb = clip(tile.k[0], k), clip(tile.k[1], k), clip(tile.k[-1], k)
    n0, n1 = (clip(s, n) for s in tile.n)
    for what, bytes_, limit in (
        ("m0 * k0", m0 * k0 * e, 64 * KiB),
        ("n0 * k0", n0 * k0 * e, 64 * KiB),
        ("m0 * n0", m0 * n0 * 4, 128 * KiB),
        ("m1 * ka + n1 * kb", (m1 * ka + n1 * kb) * e, 512 * KiB),
    ):
        if bytes_ > limit:
            refuse_on_chip(name, "set_cube_tile_shapes", f"has {what} of {bytes_} bytes", f"at most {limit}")
    for word, shape in (("input", x), ("mat2", y)):
        if shape[-1] > 65535:
            refuse_on_chip(name, word, f"has an inner axis of {shape[-1]}", "at most 65535")
