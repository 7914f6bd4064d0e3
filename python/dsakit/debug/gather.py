# SPDX-License-Identifier: Apache-2.0
"""What pictures are made of: the rows, keys and results of recorded calls, as numpy arrays."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import ml_dtypes
import numpy as np

from ..errors import raise_error
from .case import Case

Floats = np.ndarray[Any, np.dtype[np.float64]]
Integers = np.ndarray[Any, np.dtype[np.int64]]

INDEXERS = ("lightning_indexer", "quant_lightning_indexer")
ATTENTION = ("sparse_flash_attention", "kv_quant_sparse_flash_attention", "sparse_flash_attention_quant")


class Call:
    """A recorded call that pictures ask again and again."""

    def __init__(self, case: Case):
        self.case = case

    @functools.cached_property
    def attributes(self) -> dict[str, Any]:
        return self.case.call_attributes

    @property
    def operator(self) -> str:
        return self.case.operator

    def refuse(self, parameter: str, got: str, wanted: str) -> NoReturn:
        raise_error("INVALID_FILE", "plot", f"{self.case.name}: {parameter}", "", got, wanted, "PLOT")

    def tensor(self, name: str, group: str = "in") -> np.ndarray[Any, Any] | None:
        key = self.case.find(group, name)
        return None if key is None else self.case[key]

    def required(self, name: str, group: str = "in") -> np.ndarray[Any, Any]:
        found = self.tensor(name, group)
        if found is None:
            self.refuse(f"{group}.{name}", "is not recorded", "what the picture shows")
        return found

    def lengths(self, name: str) -> list[int] | None:
        found = self.tensor(name)
        return None if found is None else [int(x) for x in found.reshape(-1)]


@dataclass(frozen=True)
class Row:
    """A query row: the sequence it is of, its position there and how many keys it sees."""

    number: int
    sequence: int
    position: int
    visible: int


def _counts(lengths: list[int] | None, layout: str, shape: tuple[int, ...]) -> list[tuple[int, int]]:
    """(first row, rows) of each sequence of an operand whose rows are folded."""
    if layout == "TND":
        totals = [0, *(lengths or [])]
        return [(a, b - a) for a, b in itertools.pairwise(totals)]
    counts = lengths if lengths is not None else [shape[1]] * shape[0]
    return [(b * shape[1], n) for b, n in enumerate(counts)]


def query_rows(call: Call) -> list[Row]:
    """Of an indexer or of sparse attention, without padding."""
    if call.operator == "sparse_flash_attention_quant":
        s1, kv = int(call.attributes["s1"]), call.lengths("kv_act_seqs") or []
        queries = [(b * s1, s1) for b in range(len(kv))]
        causal = True
    else:
        name = "actual_seq_lengths_key" if call.operator in INDEXERS else "actual_seq_lengths_kv"
        layout = call.attributes["layout_key" if call.operator in INDEXERS else "layout_kv"]
        queries = _counts(
            call.lengths("actual_seq_lengths_query"), call.attributes["layout_query"], call.required("query").shape
        )
        lengths, shape = call.lengths(name), call.required("key").shape
        kv = list(lengths or []) if layout == "PA_BSND" else [n for _, n in _counts(lengths, layout, shape)]
        causal = call.attributes["sparse_mode"] == 3
    rows = []
    for b, (first, count) in enumerate(queries):
        for i in range(count):
            position = kv[b] - count + i
            rows.append(Row(first + i, b, position, max(0, position + 1) if causal else kv[b]))
    return rows


def spread(rows: list[Row], limit: int) -> list[Row]:
    """At most `limit` of them, evenly."""
    if len(rows) <= limit:
        return rows
    return [rows[i] for i in np.linspace(0, len(rows) - 1, limit).round().astype(int)]


def lists(call: Call) -> Integers:
    """The selected positions of every query row, -1 where there is none: [rows, K]."""
    if call.operator in INDEXERS:
        found = call.tensor("sparse_indices", "out")
        if found is None:
            found = call.required("sparse_indices", "ref")
    elif call.operator == "sparse_flash_attention_quant":
        found = call.required("topk_indices")
    elif call.operator in ATTENTION:
        if int(call.attributes["sparse_block_size"]) != 1:
            call.refuse("sparse_block_size", f"is {call.attributes['sparse_block_size']}", "1")
        found = call.required("sparse_indices")
    else:
        call.refuse("operator", f"is {call.operator}", "an indexer or sparse attention")
    return found.reshape(-1, found.shape[-1]).astype(np.int64)


def list_of(call: Call, row: Row, all_lists: Integers) -> Integers:
    """What a row uses of its list: the visible positions in front of the first -1."""
    used = all_lists[row.number]
    if call.operator == "sparse_flash_attention_quant":
        return used[: min(row.visible, int(call.attributes["topk"]))]
    end = np.flatnonzero(used == -1)
    used = used[: end[0]] if len(end) else used
    return used[used < row.visible]


class Keys:
    """Rows of an operand with a row for each key of each sequence, wherever they lie."""

    def __init__(self, call: Call, name: str, group: str = "in"):
        self._call, self._key = call, call.case.find(group, name) or ""
        array = call.required(name, group)
        self._table = call.tensor("block_table")
        layout = "PA_BSND"
        if call.operator == "sparse_flash_attention_quant":
            array = array.reshape(-1, int(call.attributes["block_size"]), array.shape[-1])
        elif call.operator in INDEXERS or call.operator in ATTENTION:
            layout = call.attributes["layout_key" if call.operator in INDEXERS else "layout_kv"]
        pages = call.case.layout(self._key).get("pages")
        self._stored = {int(p): i for i, p in enumerate(call.case[pages])} if pages else None
        self._first = [0]
        if layout != "PA_BSND":
            self._table = None
            lengths = "actual_seq_lengths_key" if call.operator in INDEXERS else "actual_seq_lengths_kv"
            self._first = [first for first, _ in _counts(call.lengths(lengths), layout, array.shape)]
            array = array.reshape(-1, array.shape[-1])
        self._array = array

    def of(self, row: Row, all_of_it: bool = True) -> np.ndarray[Any, Any]:
        """All that the row sees."""
        if self._table is None:
            first = self._first[row.sequence]
            return self._array[first : first + row.visible]
        block = self._array.shape[1]
        pages = [int(p) for p in self._table[row.sequence][: -(-row.visible // block)]]
        if self._stored is not None:
            missing = [p for p in pages if p not in self._stored]
            if missing and all_of_it:
                got = f"has {len(missing)} of the {len(pages)} visible pages not stored"
                self._call.refuse(self._key, got, 'all of them (record with caches="whole")')
            pages = [self._stored[p] for p in pages if p in self._stored]
        return self._array[pages].reshape(len(pages) * block, -1)[: row.visible]


def _queries(call: Call, name: str, heads: int) -> Floats:
    """[rows, heads, width]"""
    found = call.required(name)
    return found.reshape(-1, heads, found.shape[-1]).astype(np.float32)


class Attention:
    """Scores and softmax of sparse attention over every key that a row sees, in float32."""

    def __init__(self, call: Call):
        if call.operator not in ATTENTION:
            call.refuse("operator", f"is {call.operator}", ", ".join(ATTENTION))
        self.call, self.rows, self._lists = call, query_rows(call), lists(call)
        self._keys: list[Keys] = []
        self._sinks = None
        if call.operator == "sparse_flash_attention_quant":
            heads = int(call.attributes["nq"])
            self._scale = float(call.attributes["softmax_scale"])
            parts = [_queries(call, n, heads) for n in ("query_nope", "query_rope")]
            names = ["key_nope_2d", "key_rope_2d"]
            if call.required("key_nope_2d").dtype == np.int8:
                names.append("k_nope_scales")
        else:
            heads = call.required("query").shape[-2]
            self._scale = float(call.attributes["scale_value"])
            packed = call.operator != "sparse_flash_attention"
            parts = [_queries(call, n, heads) for n in (("query",) if packed else ("query", "query_rope"))]
            names = ["key"] if packed else ["key", "key_rope"]
            self._sinks = call.tensor("sinks")
        self._keys = [Keys(call, n) for n in names]
        self._query = np.concatenate(parts, -1)

    def list_of(self, row: Row) -> Integers:
        return list_of(self.call, row, self._lists)

    def _matrix(self, row: Row) -> Floats:
        """Keys as the queries meet them: [visible, width]."""
        import dsakit

        found = [k.of(row) for k in self._keys]
        if self.call.operator == "kv_quant_sparse_flash_attention":
            codes, rope, scales = dsakit.unpack_kv_rows(
                np.ascontiguousarray(found[0]),
                rope_head_dim=int(self.call.attributes["rope_head_dim"]),
                tile_size=int(self.call.attributes["tile_size"]),
                rope_dtype=str(self.call.required("query").dtype),
            )
            found = [codes, rope, scales]
        latent, rope = found[0].astype(np.float32), found[1].astype(np.float32)
        if len(found) == 3:
            latent = latent * np.repeat(found[2].astype(np.float32), latent.shape[1] // found[2].shape[1], axis=1)
        return np.concatenate([latent, rope], 1)

    def softmax(self, row: Row) -> Floats:
        """Of all visible keys: [heads, visible]. A sink takes its share from them."""
        scores = self._query[row.number] @ self._matrix(row).T * self._scale
        top = scores.max(1, keepdims=True)
        sinks = None if self._sinks is None else self._sinks.reshape(-1, 1).astype(np.float32)
        if sinks is not None:
            top = np.maximum(top, sinks)
        e = np.exp(scores - top)
        total = e.sum(1, keepdims=True, dtype=np.float64)
        return e / (total if sinks is None else total + np.exp(sinks - top))


def float_scores(call: Call, row: Row) -> Floats:
    """What an indexer's keys were worth before quantisation, from group `float`."""
    names = [call.case.find("float", n) for n in ("query", "key")]
    if None in names:
        call.refuse("group float", "lacks query or key", "both, as they were before quantisation")
    query = call.required("query", "float")
    weights = call.tensor("weights", "float")
    weights = call.required("weights") if weights is None else weights
    q = query.reshape(-1, *query.shape[-2:])[row.number].astype(np.float64)
    keys = Keys(call, "key", "float").of(row).astype(np.float64)
    return weights.reshape(-1, q.shape[0])[row.number].astype(np.float64) @ np.maximum(q @ keys.T, 0)


def results(call: Call, other_group: str = "") -> Iterator[tuple[str, np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    """(name, recorded, reference) of each result, as rows that both have: the reference is computed now, or a group."""
    run = None if other_group else call.case.run(reference=True)
    if run is not None and run.refusal:
        call.refuse("call", "is refused: " + run.refusal[1], "one that is computed")
    for key in (*call.case.keys("out"), *call.case.keys("after")):
        group, _, name = key.partition(".")
        parameter = call.case.parameter(group, name) or name
        if run is None:
            other = call.case.find(other_group, parameter)
            if other is None:
                continue
            golden, skipped, pages = call.case[other], [], None
        else:
            found = f"{group}.{parameter}"
            if found not in run.results:
                continue
            golden, skipped, pages = run.results[found], run.undefined.get(found, []), run.pages.get(found)
        recorded = call.case[key]
        stored = call.case.layout(key).get("pages")
        if stored and pages is not None:
            at = {int(p): i for i, p in enumerate(call.case[stored])}
            both = [(at[p], i) for i, p in enumerate(pages) if p in at]
            recorded, golden = recorded[[a for a, _ in both]], golden[[b for _, b in both]]
        if recorded.shape != golden.shape or recorded.dtype != golden.dtype or recorded.size == 0:
            continue
        width = recorded.shape[-1] if recorded.ndim > 1 else recorded.size
        recorded, golden = recorded.reshape(-1, width), golden.reshape(-1, width)
        kept = np.ones(len(recorded), bool)
        for first, end in skipped:
            kept[first:end] = False
        yield parameter, recorded[kept], golden[kept]


def steps_of(dtype: Any, size: Floats) -> Floats:
    """The distance of neighbouring numbers of a dtype at this size."""
    info = ml_dtypes.finfo(dtype)
    exponent = np.floor(np.log2(np.maximum(np.abs(size), float(info.tiny))))
    return np.exp2(exponent - info.nmant)
