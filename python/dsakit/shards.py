# SPDX-License-Identifier: Apache-2.0
"""What dsakit.dist has for engines with caches of their own, whose tokens lie on several ranks."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from . import _core
from ._core import Group
from .calling import only_none
from .errors import Error, raise_error, shown

INDEXERS = ("quant_lightning_indexer", "lightning_indexer")
ATTENTION = ("kv_quant_sparse_flash_attention", "sparse_flash_attention", "sparse_flash_attention_quant")


@dataclasses.dataclass(frozen=True)
class Ownership:
    """Which rank has which positions of a sequence: `interleave` of them in turn. A rank numbers its own from 0 in their
    order. Positions and numbers are integers or integer arrays."""

    ranks: int
    rank: int
    interleave: int = 1

    def owner(self, position: Any) -> Any:
        return position // self.interleave % self.ranks

    def owns(self, position: Any) -> Any:
        return self.owner(position) == self.rank

    def local(self, position: Any) -> Any:
        """The number of a position with its owner."""
        return position // (self.ranks * self.interleave) * self.interleave + position % self.interleave

    def position(self, local: Any) -> Any:
        """Of this rank's number."""
        begin = local // self.interleave * (self.ranks * self.interleave)
        return begin + self.rank * self.interleave + local % self.interleave

    def below(self, position: Any) -> Any:
        """How many positions below it are this rank's."""
        rest = position % (self.ranks * self.interleave) - self.rank * self.interleave
        rest = rest * (rest > 0)
        return (
            position // (self.ranks * self.interleave) * self.interleave
            + rest
            - (rest - self.interleave) * (rest > self.interleave)
        )


@functools.cache
def _fields(operator: str) -> tuple[int, dict[str, Any], tuple[str, ...]]:
    """How many parameters go by position, all of them with their defaults, and those that are reserved."""
    description = _core.describe()[operator]
    fields = {field["name"]: field for field in description["fields"]}
    reserved = tuple(name for name, field in fields.items() if field["role"] == "reserved")
    defaults = {name: field["default"] for name, field in fields.items() if name not in reserved}
    return description["positional"], defaults, reserved


def _values(
    spelling: str, operator: Any, known: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[str, tuple[Any, ...]]:
    """The name of the operator, and its arguments in the order of its description."""

    def refuse(parameter: str, got: str, wanted: str) -> None:
        raise_error("INVALID_ARGUMENT", spelling, parameter, "", got, wanted)

    name = getattr(operator, "__name__", operator)
    if name not in known:
        refuse("operator", f"is {shown(operator)}", " or ".join(f"dsakit.{one}" for one in known))
    positional, values, reserved = _fields(name)
    if len(args) > positional:
        refuse("arguments", f"are {len(args)} by position", f"at most {positional}; the others by name")
    given = dict(zip(values, args, strict=False))
    for parameter, value in kwargs.items():
        if parameter in given or parameter not in (*values, *reserved):
            got = "is given twice" if parameter in given else "is given"
            refuse(parameter, got, f"a parameter of {name}")
        given[parameter] = value
    only_none(spelling, **{parameter: given.get(parameter) for parameter in reserved})
    return name, tuple({**values, **given}[parameter] for parameter in values)


def _shared(
    call: str, group: Group, operator: Any, known: tuple[str, ...], args: Any, kwargs: Any, options: tuple[Any, ...]
) -> Any:
    spelling = f"dist.{call}"
    try:
        name, values = _values(spelling, operator, known, args, kwargs)
    except Error as e:
        _core.dist_refuse(group, e.status, e.operator, e.parameter, e.got, e.wanted)  # on all ranks
        raise
    results = getattr(_core, f"dist_{call}_{name}")(group, values, *options)
    alone = name == "kv_quant_sparse_flash_attention" and not kwargs.get("return_softmax_lse")
    return results[0] if alone else results  # as the operator returns them


def select(group: Group, operator: Any, /, *args: Any, interleave: int = 1, merge: str = "auto", **kwargs: Any) -> Any:
    """On all ranks the selection that one process makes of the index keys of all: `operator` is
    `dsakit.quant_lightning_indexer` or `dsakit.lightning_indexer`, and the arguments are its own. `key`, its scale and
    `block_table` are this rank's part of the cache; all others are the same on all ranks, and lengths are those of whole
    sequences. What a rank has, `Ownership(group.size(), group.rank(), interleave)` says; keys are BSND or PA_BSND.

    merge   "one" exchange of all candidates, "two" with samples first, "auto": whichever should be faster

    What differs between ranks, or is refused on one of them, is refused on all."""
    return _shared("select", group, operator, INDEXERS, args, kwargs, (interleave, merge))


def attend(
    group: Group, operator: Any, /, *args: Any, interleave: int = 1, exchange: str = "rows", **kwargs: Any
) -> Any:
    """Attention of this rank's heads, any number of them, to positions of all ranks: `operator` is
    `dsakit.sparse_flash_attention`, `dsakit.kv_quant_sparse_flash_attention` or `dsakit.sparse_flash_attention_quant`, and
    the arguments are its own. The cache and `block_table` are this rank's part, as in `select`; lists and lengths are those of
    whole sequences, the same on all ranks.

    exchange   "rows": the selected rows travel to all ranks, and the result has the bits of one process; "partials": queries
               and results of parts travel, which are merged in the order of the ranks: close, and the same bits every time
    """
    return _shared("attend", group, operator, ATTENTION, args, kwargs, (interleave, exchange))


def _empty(like: Any, shape: Sequence[int], dtype: str) -> Any:
    """In the kind of an array; torch has no arithmetic of uint64 to speak of, and gets int64 for it."""
    if type(like).__module__.partition(".")[0] == "torch":
        import torch

        return torch.empty(tuple(shape), dtype=getattr(torch, dtype.replace("uint64", "int64")))
    if dtype == "bfloat16":
        import ml_dtypes

        return np.empty(shape, ml_dtypes.bfloat16)
    return np.empty(shape, dtype)


def _rows(query: Any) -> int:
    return int(np.prod(tuple(query.shape)[:-2], dtype=np.int64))


def index_candidates(operator: Any, /, *args: Any, owner: Ownership, **kwargs: Any) -> Any:
    """This rank's best candidates, best first: eight bytes each of score and position, or 0, [T, sparse_count] for T rows of
    queries: uint64, of torch tensors int64. Arguments as `select` has them."""
    spelling = "dist.index_candidates"
    name, values = _values(spelling, operator, INDEXERS, args, kwargs)
    given = dict(zip(_fields(name)[1], values, strict=True))
    query, count = given["query"], given["sparse_count"]
    if not hasattr(query, "shape") or not isinstance(count, int) or count < 0:  # the operator says what is wrong
        query, count = np.empty((0, 0, 0)), 0
    candidates = _empty(query, (_rows(query), count), "uint64")
    getattr(_core, f"dist_index_candidates_{name}")(values, _owner(owner), candidates)
    return candidates


def merge_candidates(candidates: Sequence[Any], /) -> Any:
    """The lists [T, sparse_count] of one indexer, from each rank's candidates: positions, best first, then -1."""
    candidates = list(candidates)
    if not candidates:
        raise_error("INVALID_ARGUMENT", "dist.merge_candidates", "candidates", "", "are none", "those of each rank")
    lists = _empty(candidates[0], tuple(candidates[0].shape), "int32")
    _core.dist_merge_candidates(candidates, lists)
    return lists


def partial_attention(operator: Any, /, *args: Any, owner: Ownership, **kwargs: Any) -> tuple[Any, Any, Any]:
    """Attention to those listed positions that this rank has, of T rows and N heads: maximum and sum of the softmax [T, N],
    both 0 where there are none, and values [T, N, Dv], float32. Arguments as `attend` has them; `sinks` are counted by
    `merge_partials`."""
    spelling = "dist.partial_attention"
    name, values = _values(spelling, operator, ATTENTION, args, kwargs)
    given = dict(zip(_fields(name)[1], values, strict=True))
    query: Any = given.get("query", given.get("query_nope"))
    try:
        if name == "sparse_flash_attention_quant":
            rows, heads, width = given["b"] * given["s1"], given["nq"], query.shape[-1]
        else:
            rows, heads, width = _rows(query), query.shape[-2], query.shape[-1] - given.get("rope_head_dim", 0)
        results = tuple(
            _empty(query, shape, "float32") for shape in ((rows, heads), (rows, heads), (rows, heads, width))
        )
    except (AttributeError, IndexError, TypeError, ValueError):  # the operator says what is wrong
        results = tuple(np.empty(0, np.float32) for _ in range(3))
    getattr(_core, f"dist_partial_attention_{name}")(values, _owner(owner), *results)
    return results[0], results[1], results[2]


def merge_partials(
    softmax_max: Sequence[Any],
    softmax_sum: Sequence[Any],
    attention_out: Sequence[Any],
    *,
    sinks: Any = None,
    dtype: str = "bfloat16",
) -> Any:
    """Attention [T, N, Dv] to all positions, from each rank's part in the order of the ranks. dtype: "bfloat16", "float16"
    or "float32"; in between everything is float32. `sinks` [N]: one more logit per head, without a value."""
    attention_out = list(attention_out)
    if dtype not in ("bfloat16", "float16", "float32"):
        wanted = '"bfloat16", "float16" or "float32"'
        raise_error("INVALID_DTYPE", "dist.merge_partials", "dtype", "", f"is {shown(dtype)}", wanted)
    if not attention_out:
        raise_error("INVALID_ARGUMENT", "dist.merge_partials", "attention_out", "", "are none", "those of each rank")
    out = _empty(attention_out[0], tuple(attention_out[0].shape), dtype)
    _core.dist_merge_partials(list(softmax_max), list(softmax_sum), attention_out, sinks, out)
    return out


def _owner(owner: Ownership) -> _core.Ownership:
    return _core.Ownership(owner.ranks, owner.rank, owner.interleave)
