# SPDX-License-Identifier: Apache-2.0
"""Gathering and scattering by index, and rows of paged caches."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import shown
from .dtypes import INT64
from .filling import fill_bits
from .state import operation, refuse
from .tensor import (
    Array,
    Tensor,
    axis_of,
    check_tensor,
    fit_valid,
    made,
    sizes,
    text_of,
    valid_values,
    values,
    writable,
    written,
)


def indices(name: str, parameter: str, index: Any) -> Array:
    check_tensor(name, index, parameter)
    if index._dtype.kind not in "iu":
        refuse("INVALID_DTYPE", name, parameter, f"has dtype {index._dtype.word}", "int32 or int64")
    return values(name, index, parameter)


def check_range(name: str, parameter: str, index: Array, n: int, why: str) -> None:
    bad = (index < 0) | (index >= n)
    if bad.any():
        at = np.argwhere(bad)[0]
        position = "".join(f"[{i}]" for i in at)
        refuse("INVALID_INDEX", name, parameter, f"is {int(index[tuple(at)])}", f"0..{n - 1} ({why})", position)


@operation
def gather(input: Any, dim: Any, index: Any) -> Tensor:
    """out[i][j][k] = input[index[i][j][k]][j][k] along dim 0, and so on."""
    a = values("gather", check_tensor("gather", input))
    axis = axis_of("gather", dim, a.ndim)
    i = indices("gather", "index", index)
    if i.ndim != a.ndim or any(m > n for x, (m, n) in enumerate(zip(i.shape, a.shape)) if x != axis):
        wanted = f"within {text_of(a.shape)} but for axis {axis} (shape of input)"
        refuse("INVALID_SHAPE", "gather", "index", f"has shape {text_of(i.shape)}", wanted)
    check_range("gather", "index", valid_values("gather", index), a.shape[axis], f"axis {axis} of input")
    if index._valid is not None:
        i = np.clip(i, 0, max(a.shape[axis] - 1, 0))
    part = a[tuple(slice(None) if x == axis else slice(0, m) for x, m in enumerate(i.shape))]
    return made(np.take_along_axis(part, i.astype(np.int64), axis), input._dtype, index._valid)


@operation
def index_select(input: Any, dim: Any, index: Any) -> Tensor:
    """The slices of an axis that a list names: index is 1-D, or 2-D with an axis of size 1."""
    a = values("index_select", check_tensor("index_select", input))
    axis = axis_of("index_select", dim, a.ndim)
    i = indices("index_select", "index", index)
    if not (i.ndim == 1 or (i.ndim == 2 and 1 in i.shape)):
        wanted = "one axis, or two of which one is of size 1"
        refuse("INVALID_SHAPE", "index_select", "index", f"has shape {text_of(i.shape)}", wanted)
    used = valid_values("index_select", index).reshape(-1)
    check_range("index_select", "index", used, a.shape[axis], f"axis {axis} of input")
    count = i.size
    wide = np.zeros(count, np.int64)
    wide[: used.size] = used
    valid = list(input.valid_shape)
    valid[axis] = used.size
    out = a.take(wide, axis)
    return made(out, input._dtype, fit_valid(tuple(valid), out.shape))


def _scattered(name: str, a: Array, input: Tensor, dim: Any, index: Any, src: Any, reduce: Any) -> None:
    if reduce is not None:
        refuse("UNSUPPORTED", name, "reduce", f"is {shown(reduce)}", "None")
    axis = axis_of(name, dim, a.ndim)
    i = indices(name, "index", index)[index.region()]
    if i.ndim != a.ndim or any(m > n for x, (m, n) in enumerate(zip(i.shape, a.shape)) if x != axis):
        wanted = f"within {text_of(a.shape)} but for axis {axis} (shape of input)"
        refuse("INVALID_SHAPE", name, "index", f"has shape {text_of(i.shape)}", wanted)
    check_range(name, "index", i, a.shape[axis], f"axis {axis} of input")
    if isinstance(src, Tensor):
        if src._dtype is not input._dtype:
            got, wanted = f"has dtype {src._dtype.word}", f"{input._dtype.word} (dtype of input)"
            refuse("INVALID_DTYPE", name, "src", got, wanted)
        v = values(name, src, "src")
        if v.ndim != i.ndim or any(m > n for m, n in zip(i.shape, v.shape)):
            refuse(
                "INVALID_SHAPE", name, "src", f"has shape {text_of(v.shape)}", f"{text_of(i.shape)} (shape of index)"
            )
        v = v[tuple(slice(0, m) for m in i.shape)]
    else:
        v = np.broadcast_to(fill_bits(name, src, input._dtype), i.shape)
    grids = list(np.indices(i.shape))
    grids[axis] = i
    flat = np.ravel_multi_index([g.reshape(-1) for g in grids], a.shape)
    _, last = np.unique(flat[::-1], return_index=True)  # of duplicates the last in row-major order
    keep = flat.size - 1 - last
    a[np.unravel_index(flat[keep], a.shape)] = v.reshape(-1)[keep]


@operation
def scatter(input: Any, dim: Any, index: Any, src: Any, *, reduce: Any = None) -> Tensor:
    """A copy with out[index[i][j]][j] = src[i][j] along dim 0, and so on; of duplicates the last."""
    a = values("scatter", check_tensor("scatter", input)).copy()
    _scattered("scatter", a, input, dim, index, src, reduce)
    return made(a, input._dtype, input._valid)


@operation
def scatter_(input: Any, dim: Any, index: Any, src: Any, *, reduce: Any = None) -> Tensor:
    """scatter in place."""
    made_of = values("scatter_", check_tensor("scatter_", input)).copy()
    _scattered("scatter_", made_of, input, dim, index, src, reduce)
    writable(input)[...] = made_of
    written("scatter_", input, Ellipsis)
    return input


@operation
def scatter_update(input: Any, dim: Any, index: Any, src: Any) -> Tensor:
    """Rows of src to the rows of a cache that index [b, s] names, in place: input [rows, d] and src [b * s, d], or input
    [blocks, block_size, 1, d] and src [b, s, 1, d]. Negative rows are skipped; of duplicates the last one stays."""
    name = "scatter_update"
    check_tensor(name, input)
    check_tensor(name, src, "src")
    shape = input.shape
    if dim != -2:
        refuse("INVALID_ARGUMENT", name, "dim", f"is {shown(dim)}", "-2")
    i = indices(name, "index", index)
    if src._dtype is not input._dtype:
        got, wanted = f"has dtype {src._dtype.word}", f"{input._dtype.word} (dtype of input)"
        refuse("INVALID_DTYPE", name, "src", got, wanted)
    if i.ndim != 2:
        refuse("INVALID_SHAPE", name, "index", f"has shape {text_of(i.shape)}", "[b, s]")
    if len(shape) not in (2, 4) or (len(shape) == 4 and shape[2] != 1):
        wanted = "[rows, d] or [blocks, block_size, 1, d]"
        refuse("INVALID_SHAPE", name, "input", f"has shape {text_of(shape)}", wanted)
    b, s = i.shape
    due = [b * s, shape[-1]] if len(shape) == 2 else [b, s, 1, shape[-1]]
    v = values(name, src, "src")
    if list(v.shape) != due:
        wanted = f"{text_of(due)} (index and last axis of input)"
        refuse("INVALID_SHAPE", name, "src", f"has shape {text_of(v.shape)}", wanted)
    if src._valid is not None or index._valid is not None:
        i = _valid_rows(name, i, index, src, len(shape))
    rows = shape[0] if len(shape) == 2 else shape[0] * shape[1]
    bad = i >= rows
    if bad.any():
        at = np.argwhere(bad)[0]
        blocks = "" if len(shape) == 2 else f" ({shape[0]} blocks of {shape[1]})"
        wanted = f"below {rows}{blocks}; negative entries skip the row"
        refuse("INVALID_SLOT", name, "index", f"is {int(i[tuple(at)])}", wanted, "".join(f"[{x}]" for x in at))
    _update_rows(input, i.reshape(-1), v.reshape(b * s, shape[-1]), src)
    return input


def _valid_rows(name: str, i: Array, index: Tensor, src: Tensor, rank: int) -> Array:
    """The index with -1 for rows that are not valid."""
    kept = np.full(i.shape, -1, np.int64)
    kept[index.region()] = i[index.region()]
    valid = src.valid_shape
    if valid[-1] != src.shape[-1]:
        refuse("INVALID_SHAPE", name, "src", f"has valid shape {text_of(valid)}", "whole rows")
    if rank == 2:
        kept.reshape(-1)[valid[0] :] = -1
    else:
        kept[valid[0] :] = -1
        kept[:, valid[1] :] = -1
    return kept


def _update_rows(cache: Tensor, rows: Array, v: Array, src: Tensor) -> None:
    used = np.flatnonzero(rows >= 0)
    if used.size == 0:
        return
    shape = cache.shape
    own = cache._box.a
    if own is not None and np.may_share_memory(v, own):
        v = v.copy()
    _, last = np.unique(rows[used][::-1], return_index=True)
    used = used[used.size - 1 - last]
    slots = rows[used].astype(np.int64)
    index = (slots,) if len(shape) == 2 else (slots // shape[1], slots % shape[1], np.zeros_like(slots))
    writable(cache, index)[index] = v[used]
    written("scatter_update", cache, index)


@operation
def one_hot(input: Any, num_classes: Any) -> Tensor:
    """[.., num_classes] INT64 with a 1 at the class."""
    a = values("one_hot", check_tensor("one_hot", input))
    if input._dtype.kind not in "iu":
        refuse("INVALID_DTYPE", "one_hot", "input", f"has dtype {input._dtype.word}", "an integer dtype")
    n = sizes("one_hot", "num_classes", num_classes)[0]
    check_range("one_hot", "input", a, n, f"{n} classes")
    valid = None if input._valid is None else (*input._valid, n)
    return made((a[..., None] == np.arange(n)).astype(np.int64), INT64, valid)


# ---- paged caches


def paged_rows(name: str, table: Any, positions: Any, block_size: Any, blocks: int) -> Array:
    """The rows of a paged cache that logical positions name."""
    p = indices(name, "indices", positions)
    if p.ndim != 2 or p.shape[0] != 1:
        refuse("INVALID_SHAPE", name, "indices", f"has shape {text_of(p.shape)}", "[1, k]")
    pages = indices(name, "block_table", table)
    if pages.ndim != 2 or pages.shape[0] != 1:
        refuse("INVALID_SHAPE", name, "block_table", f"has shape {text_of(pages.shape)}", "[1, m]")
    size = sizes(name, "block_size", block_size)[0]
    if size < 1:
        refuse("INVALID_ARGUMENT", name, "block_size", f"is {size}", "1 or more")
    p = valid_values(name, positions, "indices")
    reach = valid_values(name, table, "block_table").shape[1] * size
    check_range(name, "indices", p, reach, f"{reach // size} pages of {size}")
    page = pages[0][p[0] // size]
    bad = (page < 0) | (page >= blocks)
    if bad.any():
        at = int(p[0][np.flatnonzero(bad)[0]] // size)
        got, wanted = f"is {int(pages[0][at])}", f"0..{blocks - 1} (pages of {size})"
        refuse("INVALID_BLOCK", name, "block_table", got, wanted, f"[0][{at}]")
    return page.astype(np.int64) * size + p[0] % size


def _gathered(name: str, source: Any, positions: Any, table: Any, block_size: Any, size: int | None) -> Tensor:
    a = values(name, check_tensor(name, source, "src"), "src")
    if a.ndim != 2:
        refuse("INVALID_SHAPE", name, "src", f"has shape {text_of(a.shape)}", "[rows, d]")
    bs = sizes(name, "block_size", block_size)[0]
    rows = paged_rows(name, table, positions, block_size, a.shape[0] // max(bs, 1))
    width = a.shape[1] if size is None else size
    if not 0 < width <= a.shape[1]:
        refuse("INVALID_ARGUMENT", name, "size", f"is {width}", f"1..{a.shape[1]} (columns of src)")
    k = positions.shape[1]
    out = np.zeros((k, width), a.dtype)
    out[: rows.size] = a[rows, :width]
    return made(out, source._dtype, fit_valid((rows.size, width), out.shape))


@operation
def gather_in_ub(param: Any, indices: Any, block_table: Any, block_size: Any, axis: Any) -> Tensor:
    """[k, d]: row table[p // block_size] * block_size + p % block_size of param for each valid position p."""
    if axis != -2:
        refuse("INVALID_ARGUMENT", "gather_in_ub", "axis", f"is {shown(axis)}", "-2")
    return _gathered("gather_in_ub", param, indices, block_table, block_size, None)


@operation
def gather_in_l1(
    src: Any, indices: Any, block_table: Any, block_size: Any, size: Any, is_b_matrix: bool, is_trans: bool
) -> Tensor:
    """[k, size]: the same rows, their first `size` columns. The flags change no values."""
    return _gathered("gather_in_l1", src, indices, block_table, block_size, sizes("gather_in_l1", "size", size)[0])
