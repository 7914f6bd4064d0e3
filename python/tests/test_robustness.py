# SPDX-License-Identifier: Apache-2.0
"""Bad input, one thing at a time: what it is answered, and that nothing has been written. Ids such as T06 or N13 are those
of the documents. What every operator and tensor gets is made in test_refusals_generated.py; these are their own rules."""

import itertools

import numpy as np
import pytest

import dsakit
from oracle.calls import CALLS, STRICT
from oracle.capsule import capsule
from oracle.cases import BF16, F, generator
from oracle.harness import assert_same, both, operator, refused
from oracle.refusals import backwards, frozen, share, spread

INT32_MAX, INT32_MIN, INT64_MIN = 2**31 - 1, -(2**31), -(2**63)


class Row:
    """`change(args)` breaks the good call `call`; statuses and parameters may be sets of which one is right."""

    def __init__(self, id, call, change, status, parameter, position="", says=()):
        self.new = change if isinstance(change, dict) else None
        change = put(change) if isinstance(change, dict) else change
        self.id, self.call, self.change, self.status, self.parameter = id, call, change, status, parameter
        self.position, self.says = position, (says,) if isinstance(says, str) else says

    def test(self, impl):
        call = (CALLS | STRICT)[self.call]
        args = call.make()
        self.change(args)
        guards = [v for v in args.values() if isinstance(v, np.ndarray) and v.nbytes < 2**20]  # not weights of full size
        function = operator(call.operator, impl)
        error = refused(lambda: function(**args), call.operator, self.status, self.parameter, self.position, guards)
        for part in self.says:
            assert part in str(error), str(error)


def put(new):
    """Replace arguments; a function gets the good one."""
    make = type(lambda: 0)
    return lambda args: args.update({k: v(args[k]) if isinstance(v, make) else v for k, v in new.items()})


def set_at(name, at, value):
    """Change one element."""

    def change(args):
        args[name] = args[name].copy()
        args[name][at] = value

    return change


def wider(array):
    """The same numbers in a wider buffer: innermost stride 1, rows apart."""
    buffer = np.zeros((*array.shape[:-1], array.shape[-1] + 3), array.dtype)
    view = buffer[..., : array.shape[-1]]
    view[...] = array
    return view


def longer(array, axis):
    """One more of the last along an axis."""
    last = np.take(array, [-1], axis)
    return np.concatenate([array, last], axis)


def shape_rows(name, call):
    """Every axis of every tensor one longer, but where another size is as good."""
    free = {
        "li": ["key 0", "key 1", "block_table 1"],
        "qli": ["block_table 1"],
        "li dense": ["key 1"],
        "attention": ["topk_indices 1", "block_table 1"],
        "v3 blocks": ["cache_index 0", "actual_seq_len 0"],
        "v3 tiles": ["kv_cache 0", "kv_cache 1"],
        "sfa": ["sparse_indices 2", "block_table 1"],
        "kvsfa": ["sparse_indices 2", "block_table 1"],
        "fia": ["pse_shift 2", "pse_shift 3", "atten_mask 2", "atten_mask 3"],
        "fia pages": ["block_table 1"],
        "scatter": ["self 0"],
        "gather pages": ["block_tables 1"],
        "gather pages functional": ["block_tables 1"],
        "store": ["key_in 0", "key_cache_in 0"],
    }
    counts = {"b", "s1", "nq", "tile_size", "num_query_heads", "num_key_value_heads", "block_size"}
    free["li values"] = free["li"]
    free["attention bf16"] = free["attention"]
    args = call.make()
    for tensor in call.tensors():
        for axis in range(args[tensor].ndim):
            if f"{tensor} {axis}" in free.get(name, ()):
                continue
            change = {tensor: lambda v, axis=axis: longer(v, axis)}
            yield Row(
                f"shape {tensor} {axis}",
                name,
                change,
                {"INVALID_SHAPE", "INVALID_SEQLEN", "INVALID_ARGUMENT"},
                set(call.tensors()) | counts,
                position=None,
            )


def i32(*values):
    return np.array(values, np.int32)


F8 = __import__("ml_dtypes").float8_e4m3fn


def indexer_rows():
    """indexer.md 7 and 9 for the two indexers."""
    for name in ("li", "qli", "li values"):
        row = lambda *a, name=name, **k: Row(a[0], name, *a[1:], **k)
        yield row(
            "N5 query lengths", dict(actual_seq_lengths_query=None), "INVALID_ARGUMENT", "actual_seq_lengths_query"
        )
        yield row("N5 key lengths", dict(actual_seq_lengths_key=None), "INVALID_ARGUMENT", "actual_seq_lengths_key")
        yield row("N12 missing", dict(block_table=None), "INVALID_ARGUMENT", "block_table", says="PA_BSND")
        yield row(
            "N1 -1",
            set_at("block_table", (0, 2), -1),
            "INVALID_BLOCK",
            "block_table",
            "[0][2]",
            says=("is -1", "0..5", "sequence 0", "8..8"),
        )
        yield row(
            "N1 end",
            set_at("block_table", (1, 1), 6),
            "INVALID_BLOCK",
            "block_table",
            "[1][1]",
            says=("is 6", "0..5", "sequence 1", "4..5"),
        )
        yield row("B01 min", set_at("block_table", (0, 0), INT32_MIN), "INVALID_BLOCK", "block_table", "[0][0]")
        yield row("B02 max", set_at("block_table", (1, 0), INT32_MAX), "INVALID_BLOCK", "block_table", "[1][0]")
        yield row(
            "N2 columns",
            dict(block_table=lambda v: v[:, :2].copy()),
            "INVALID_SEQLEN",
            "actual_seq_lengths_key",
            "[0]",
            says=("is 9", "block_table"),
        )
        yield row("N2 rank", dict(block_table=lambda v: v[0].copy()), "INVALID_SHAPE", "block_table")
        yield row("B09 rows", dict(block_table=lambda v: v[:1].copy()), "INVALID_SHAPE", "block_table")
        yield row(
            "N3 decreasing",
            dict(actual_seq_lengths_query=[3, 2]),
            "INVALID_SEQLEN",
            "actual_seq_lengths_query",
            "[1]",
            says=("is 2", "at least 3", "must not decrease"),
        )
        yield row(
            "N3 negative", dict(actual_seq_lengths_query=[-1, 2]), "INVALID_SEQLEN", "actual_seq_lengths_query", "[0]"
        )
        yield row("N3 last", dict(actual_seq_lengths_query=[3, 6]), "INVALID_SEQLEN", "actual_seq_lengths_query", "[1]")
        yield row("S01", dict(actual_seq_lengths_key=[9, -1]), "INVALID_SEQLEN", "actual_seq_lengths_key", "[1]")
        yield row("S06", dict(actual_seq_lengths_key=[9, 17]), "INVALID_SEQLEN", "actual_seq_lengths_key", "[1]")
        yield row(
            "S06 max", dict(actual_seq_lengths_key=[9, INT32_MAX]), "INVALID_SEQLEN", "actual_seq_lengths_key", "[1]"
        )
        yield row("N4 B+1", dict(actual_seq_lengths_key=[0, 9, 6]), "INVALID_SEQLEN", "actual_seq_lengths_key")
        yield row("S07 B-1", dict(actual_seq_lengths_key=[9]), "INVALID_SEQLEN", "actual_seq_lengths_key")
        yield row(
            "S07 rank",
            dict(actual_seq_lengths_key=np.array([[9, 6]], np.int32)),
            {"INVALID_SHAPE", "INVALID_SEQLEN"},
            "actual_seq_lengths_key",
        )
        yield row(
            "N11",
            dict(layout_query="TND", layout_key="BSND", block_table=None),
            "INVALID_ARGUMENT",
            {"layout_key", "layout_query"},
        )
        yield row(
            "2 both",
            dict(layout_query="BSND", layout_key="TND", block_table=None),
            "INVALID_ARGUMENT",
            {"layout_key", "layout_query"},
        )
        yield row("2 key layout", dict(layout_key="PA_NZ"), "INVALID_ARGUMENT", "layout_key")
        yield row("3 N2", dict(key=lambda v: np.repeat(v, 2, 2)), "INVALID_SHAPE", "key")
        yield row("3 D", dict(key=lambda v: v[..., :8].copy()), "INVALID_SHAPE", {"key", "query"})
        yield row(
            "7 N1",
            dict(query=lambda v: v[:, :0].copy(), weights=lambda v: v[:, :0].copy())
            | (dict(query_dequant_scale=lambda v: v[:, :0].copy()) if name == "qli" else {}),
            "INVALID_SHAPE",
            "query",
        )
        yield row(
            "5 D", dict(query=lambda v: v[..., :0].copy(), key=lambda v: v[..., :0].copy()), "INVALID_SHAPE", "query"
        )
        for count in (0, -1, INT64_MIN):
            yield row(
                f"K01 {count}",
                dict(
                    sparse_count=count, sparse_indices=None, **({"sparse_values": None} if name == "li values" else {})
                ),
                "INVALID_ARGUMENT",
                "sparse_count",
            )
            yield row(f"K01 out {count}", dict(sparse_count=count), "INVALID_ARGUMENT", "sparse_count")
        for mode in (1, 2, 4, -1, 2**40):
            yield row(f"N10 mode {mode}", dict(sparse_mode=mode), "INVALID_ARGUMENT", "sparse_mode", says=("0", "3"))
        for window in ("pre_tokens", "next_tokens"):
            for tokens in (0, -1, 2**63 - 2, INT64_MIN):
                yield row(f"N10 {window} {tokens}", {window: tokens}, "INVALID_ARGUMENT", window)
        block = dict(key=lambda v: v[:, :0].copy())
        if name == "qli":
            block["key_dequant_scale"] = lambda v: v[:, :0].copy()
        yield row("B07", block, "INVALID_SHAPE", "key")
        yield row(
            "out of memory",
            dict(sparse_count=2**40, sparse_indices=None, **({"sparse_values": None} if name == "li values" else {})),
            "OUT_OF_MEMORY",
            "sparse_indices",
        )
        yield row(
            "sparse_count overflow",
            dict(sparse_count=2**62, sparse_indices=None, **({"sparse_values": None} if name == "li values" else {})),
            "INVALID_SHAPE",
            "sparse_indices",
        )
    for name in ("li dense", "qli dense"):
        row = lambda *a, name=name, **k: Row(a[0], name, *a[1:], **k)
        yield row(
            "N12 given",
            dict(block_table=np.zeros((2, 9), np.int32)),
            "INVALID_ARGUMENT",
            "block_table",
            says="wanted absent",
        )
        yield row(
            "N4 query",
            dict(actual_seq_lengths_query=[2, 4]),
            "INVALID_SEQLEN",
            "actual_seq_lengths_query",
            "[1]",
            says=("is 4", "0..3"),
        )
        yield row(
            "N4 key",
            dict(actual_seq_lengths_key=[10, 6]),
            "INVALID_SEQLEN",
            "actual_seq_lengths_key",
            "[0]",
            says=("is 10", "0..9"),
        )
        yield row(
            "S01 query", dict(actual_seq_lengths_query=[-3, 3]), "INVALID_SEQLEN", "actual_seq_lengths_query", "[0]"
        )
        yield row("S07 three", dict(actual_seq_lengths_query=[0, 2, 3]), "INVALID_SEQLEN", "actual_seq_lengths_query")
        yield row("N11 TND", dict(layout_query="TND"), "INVALID_ARGUMENT", {"layout_key", "layout_query"})
        yield row("N12 PA", dict(layout_key="PA_BSND"), "INVALID_ARGUMENT", "block_table")
    row = lambda *a, **k: Row(a[0], "li", *a[1:], **k)
    yield row("N6", dict(key=lambda v: v.astype(np.float16)), "INVALID_DTYPE", {"key", "query"})
    yield row("4 weights", dict(weights=lambda v: v.astype(np.float16)), "INVALID_DTYPE", "weights")
    yield row("numerics", dict(numerics="device"), "INVALID_ARGUMENT", "numerics", says=("fp32", "fast"))
    yield row(
        "values without",
        dict(sparse_values=np.zeros((5, 1, 7), BF16)),
        {"INVALID_SHAPE", "INVALID_ARGUMENT"},
        "sparse_values",
    )
    row = lambda *a, **k: Row(a[0], "qli", *a[1:], **k)
    for tensor in ("query", "key"):
        yield row(f"N6 float8 {tensor}", {tensor: lambda v: np.zeros(v.shape, F8)}, "UNSUPPORTED", tensor)
    yield row("N7", dict(key_dequant_scale=np.ones((6, 4, 2), np.float16)), "INVALID_SHAPE", "key_dequant_scale")
    for mode in ("query_quant_mode", "key_quant_mode"):
        for value in (1, 2, -1):
            yield row(f"N10 {mode} {value}", {mode: value}, "INVALID_ARGUMENT", mode)
    yield row("numerics", dict(numerics="fast"), "INVALID_ARGUMENT", "numerics", says=("fp32", "device"))
    for tensor in ("weights", "query_dequant_scale", "key_dequant_scale"):
        yield row(f"device {tensor}", {tensor: lambda v: v.astype(F), "numerics": "device"}, "INVALID_DTYPE", tensor)
    yield row(
        "4 bf16 scale", dict(query_dequant_scale=lambda v: v.astype(BF16)), "INVALID_DTYPE", "query_dequant_scale"
    )


def attention_rows():
    """sparse_attention.md 4 and 6 for sparse_flash_attention_quant."""
    for name in ("attention", "attention bf16"):
        row = lambda *a, name=name, **k: Row(a[0], name, *a[1:], **k)
        for value in (9, INT32_MAX, -1, -2, INT32_MIN):
            yield row(
                f"N14 {value}",
                set_at("topk_indices", (3, 1), value),
                "INVALID_INDEX",
                "topk_indices",
                "[3][1]",
                says=f"is {value}",
            )
        yield row(
            "I08 lowest",
            lambda a: (set_at("topk_indices", (2, 2), -1)(a), set_at("topk_indices", (1, 1), 5)(a)),
            "INVALID_INDEX",
            "topk_indices",
            "[1][1]",
        )
        yield row(
            "N2 -1", set_at("block_table", (1, 2), -1), "INVALID_BLOCK", "block_table", "[1][2]", says=("is -1", "0..4")
        )
        yield row("N2 end", set_at("block_table", (0, 1), 5), "INVALID_BLOCK", "block_table", "[0][1]", says="is 5")
        yield row("S01", set_at("kv_act_seqs", 0, -1), "INVALID_SEQLEN", "kv_act_seqs", "[0]")
        yield row(
            "B04", set_at("kv_act_seqs", 1, 13), "INVALID_SEQLEN", "kv_act_seqs", "[1]", says=("is 13", "block_table")
        )
        yield row("B10", dict(block_table=None), "INVALID_ARGUMENT", "block_table")
        yield row("B09", dict(block_table=lambda v: v[:1].copy()), "INVALID_SHAPE", "block_table")
        yield row("B09 rank", dict(block_table=lambda v: v.reshape(-1)), "INVALID_SHAPE", "block_table")
        yield row("S07", dict(kv_act_seqs=i32(5, 9, 0)), {"INVALID_SHAPE", "INVALID_SEQLEN"}, "kv_act_seqs")
        yield row("21 rows", dict(b=3), "INVALID_SHAPE", {"query_nope", "b"})
        yield row("21 s1", dict(s1=1), "INVALID_SHAPE", {"query_nope", "s1"})
        yield row("21 nq", dict(nq=4), "INVALID_SHAPE", {"query_nope", "nq"})
        yield row("21 topk", dict(topk=4), "INVALID_ARGUMENT", "topk", says="at most 3")
        for n in (0, 2, -1):
            yield row(f"21 n_kv {n}", dict(n_kv=n), "INVALID_ARGUMENT", "n_kv")
        for n in (0, -1, INT64_MIN):
            yield row(f"N12 topk {n}", dict(topk=n), "INVALID_ARGUMENT", "topk")
            yield row(f"B07 {n}", dict(block_size=n), "INVALID_SHAPE", "block_size")
            yield row(f"10 nq {n}", dict(nq=n), {"INVALID_ARGUMENT", "INVALID_SHAPE"}, "nq")
        yield row("B07 pages", dict(block_size=3), "INVALID_SHAPE", {"key_nope_2d", "block_size"})
        for big in (2**62, 2**63 - 1):
            yield row(f"21 b {big}", dict(b=big), {"INVALID_SHAPE", "INVALID_ARGUMENT"}, {"b", "query_nope"})
        for bad in (float("nan"), float("inf"), -float("inf"), 1e60):
            yield row(f"N15 {bad}", dict(softmax_scale=bad), "INVALID_ARGUMENT", "softmax_scale")
        yield row(
            "N6 width", dict(key_rope_2d=lambda v: v[:, :3].copy()), "INVALID_SHAPE", {"key_rope_2d", "query_rope"}
        )
        yield row(
            "N10", dict(key_nope_2d=lambda v: np.zeros(v.shape, F8)), {"INVALID_DTYPE", "UNSUPPORTED"}, "key_nope_2d"
        )
        yield row("N10 f16", dict(query_nope=lambda v: v.astype(np.float16)), "INVALID_DTYPE", "query_nope")
        for missing in ("b", "s1", "nq", "softmax_scale", "topk", "block_size"):
            yield row(f"missing {missing}", {missing: None}, "INVALID_ARGUMENT", missing)
    row = lambda *a, **k: Row(a[0], "attention", *a[1:], **k)
    yield row("22 missing", dict(k_nope_scales=None), "INVALID_ARGUMENT", "k_nope_scales", says="int8")
    yield row("22 tiles", dict(k_nope_scales=np.ones((20, 3), F)), "INVALID_SHAPE", "k_nope_scales")
    yield row("22 rows", dict(k_nope_scales=np.ones((19, 4), F)), "INVALID_SHAPE", "k_nope_scales")
    yield Row(
        "22 given",
        "attention bf16",
        dict(k_nope_scales=np.ones((20, 4), F)),
        "INVALID_ARGUMENT",
        "k_nope_scales",
        says="bfloat16",
    )


def prolog_rows():
    """mla_prolog.md 9, 10, 14 and indexer.md 5 to 7 for the three prologs."""
    for name, index in (
        ("mla", "cache_index"),
        ("mla bf16", "cache_index"),
        ("lip", "k_cache_index"),
        ("fused", "cache_index"),
    ):
        row = lambda *a, name=name, **k: Row(a[0], name, *a[1:], **k)
        for slot in (15, 2**31, 2**63 - 1):
            yield row(
                f"C01 {slot}",
                set_at(index, 3, slot),
                "INVALID_SLOT",
                index,
                "[3]",
                says=(f"is {slot}", "below 15", "3 pages of 5", "skip"),
            )
        yield row("C01 lowest", dict({index: np.array([0, 99, -1, 15])}), "INVALID_SLOT", index, "[1]")
        yield row("V7 t", {index: lambda v: v[:3].copy()}, "INVALID_SHAPE", index)
        yield row(
            "N8 Dr odd",
            dict(cos=lambda v: v[:, :7].copy(), sin=lambda v: v[:, :7].copy()),
            "INVALID_SHAPE",
            {"cos", "w_dkv_kr", "w_uq_qr"},
        )
    for name in ("mla", "mla bf16", "fused"):
        row = lambda *a, name=name, **k: Row(a[0], name, *a[1:], **k)
        yield row("N9 PA_NZ", dict(cache_mode="PA_NZ"), "UNSUPPORTED", "cache_mode", says="PA_NZ")
        for mode in ("PA_BLK_BSND", "BSND", "TND", "pa_bsnd"):
            yield row(
                f"V4 {mode}",
                dict(cache_mode=mode),
                {"INVALID_ARGUMENT", "UNSUPPORTED"},
                "cache_mode",
                says=("PA_BSND", mode),
            )
        yield row("V7 block_size", dict(kr_cache=lambda v: v.reshape(5, 3, 1, 8)), "INVALID_SHAPE", "kr_cache")
        yield row("N8 Nkv", dict(kv_cache=lambda v: np.repeat(v, 2, 2)), "INVALID_SHAPE", "kv_cache")
        yield row("V8", dict(kv_cache=lambda v: v[..., :31].copy()), "INVALID_SHAPE", {"kv_cache", "w_uk"})
        yield row("V6", dict(w_uk=lambda v: v[0].copy()), "INVALID_SHAPE", "w_uk")
        yield row("A04", lambda a: a.update(share_caches(a)), "ALIASED", {"kv_cache", "kr_cache"})
        for axis in range(3):
            yield row(
                f"zero w_uk {axis}", dict(w_uk=lambda v, axis=axis: np.take(v, [], axis)), "INVALID_SHAPE", {"w_uk"}
            )
    for name in ("mla", "fused"):
        row = lambda *a, name=name, **k: Row(a[0], name, *a[1:], **k)
        yield row(
            "N9 G",
            dict(k_scale_cache=np.zeros((3, 5, 1, 3), F)),
            "INVALID_SHAPE",
            "k_scale_cache",
            says="divisor of 32",
        )
        yield row("N9 kv bf16", dict(kv_cache=lambda v: np.zeros(v.shape, BF16)), "INVALID_DTYPE", "kv_cache")
        yield row("w_uq bf16", dict(w_uq_qr=lambda v: v.astype(F).astype(BF16)), "INVALID_DTYPE", "w_uq_qr")
        yield row("T18 scales", dict(k_scale_cache=None), "INVALID_ARGUMENT", "k_scale_cache")
    yield Row(
        "scale without elements", "fused", dict(dequant_scale=np.zeros((0, 1), F)), "INVALID_ARGUMENT", "dequant_scale"
    )
    yield Row("T18", "fused", dict(dequant_scale=None), "INVALID_ARGUMENT", "dequant_scale")
    yield Row("w_uq int8", "mla bf16", dict(w_uq_qr=lambda v: v.astype(np.int8)), {"INVALID_DTYPE"}, {"w_uq_qr"})
    for out in ("kv_cache", "kr_cache", "k_scale_cache"):
        partly = lambda a, out=out: a.update(dict(zip((out, out + "_out"), share(a[out], a[out]))))
        yield Row(f"A05 {out}", "mla", partly, "ALIASED", {out, out + "_out"})
        yield Row(
            f"V7 {out}_out",
            "mla",
            {out + "_out": np.zeros((3, 4, 1, 8), BF16)},
            {"INVALID_SHAPE", "INVALID_DTYPE"},
            out + "_out",
        )
    for name, cache in (("lip", "k_cache"), ("fused", "ip_k_cache")):
        row = lambda *a, name=name, **k: Row(a[0], name, *a[1:], **k)
        scale = cache.replace("k_cache", "k_scale_cache")
        yield row("N14 q", dict(hadamard_q=None), "INVALID_ARGUMENT", "hadamard_q")
        yield row("N14 k", dict(hadamard_k=None), "INVALID_ARGUMENT", "hadamard_k")
        yield row("scale dtype", {scale: lambda v: np.zeros(v.shape, BF16)}, "INVALID_DTYPE", scale)
        yield row("scale blocks", {scale: lambda v: v[:2].copy()}, "INVALID_SHAPE", scale)
        yield row("scale pages", {scale: lambda v: v.reshape(5, 3, 1, 1)}, "INVALID_SHAPE", scale)
        yield row("Ni*Di", dict(w_qb_scale=lambda v: v[:47].copy()), "INVALID_SHAPE", "w_qb_scale")
        yield row(
            "Dr > Di",
            dict(cos=lambda v: np.zeros((4, 18), BF16), sin=lambda v: np.zeros((4, 18), BF16)),
            "INVALID_SHAPE",
            {"cos", "w_dkv_kr", "w_uq_qr"},
        )
    yield Row("2 BSND", "lip", dict(layout_query="BSND"), "INVALID_ARGUMENT", "layout_query", says="TND")
    yield Row("2 TND", "lip", dict(layout_key="TND"), "INVALID_ARGUMENT", "layout_key", says="PA_BSND")
    yield Row(
        "N15",
        "fused",
        dict(
            ip_k_cache=lambda v: v.reshape(5, 3, 1, 16).copy(), ip_k_scale_cache=lambda v: v.reshape(5, 3, 1, 1).copy()
        ),
        "INVALID_SHAPE",
        "ip_k_cache",
        says=("block_size", "kv_cache"),
    )
    yield Row(
        "C01 index cache",
        "fused",
        lambda a: (
            a.update(ip_k_cache=a["ip_k_cache"][:2].copy(), ip_k_scale_cache=a["ip_k_scale_cache"][:2].copy()),
            set_at("cache_index", 2, 10)(a),
        ),
        "INVALID_SLOT",
        "cache_index",
        None,
        says="is 1",
    )


def share_caches(args):
    """Columns of one buffer, one of them common to both caches."""
    kv, kr = args["kv_cache"], args["kr_cache"]
    wide, narrow = (v.shape[-1] * v.itemsize for v in (kv, kr))
    buffer = np.zeros((3, 5, 1, wide + narrow), np.uint8)
    return dict(kv_cache=buffer[..., :wide].view(kv.dtype), kr_cache=buffer[..., wide - 2 : -2].view(kr.dtype))


def dynamic_rows():
    row = lambda *a, **k: Row(a[0], "dynamic", *a[1:], **k)
    for mode in ("perchannel", "pertensor"):
        yield row(f"strict {mode}", dict(quant_mode=mode, level="strict"), "UNSUPPORTED", "quant_mode", says=mode)
    for dtype in ("float8_e4m3fn", "float8_e5m2", "hifloat8", F8):
        yield row(f"reserved {dtype}", dict(dst_type=dtype), "UNSUPPORTED", "dst_type")
    for dtype in ("int9", "", "int32", "uint8", "quint8", np.int32, 7, 3.5, object()):
        yield row(f"dst_type {dtype!r:.20}", dict(dst_type=dtype), {"INVALID_ARGUMENT", "INVALID_DTYPE"}, "dst_type")
    yield row("dst_type_max", dict(dst_type_max=1.0), "UNSUPPORTED", "dst_type_max")
    yield row("dst_type_max nan", dict(dst_type_max=float("nan")), {"UNSUPPORTED", "INVALID_ARGUMENT"}, "dst_type_max")
    yield row("rank 1", dict(input=lambda v: v[0, 0].copy()), "INVALID_SHAPE", "input")
    yield row("width 0", dict(input=lambda v: v[..., :0].copy()), "INVALID_SHAPE", "input")
    yield row("T17", dict(smooth_scales=None, group_index=i32(6)), "INVALID_ARGUMENT", "group_index")
    yield row(
        "int4 width",
        dict(dst_type="quint4x2", input=lambda v: v[..., :12].copy(), smooth_scales=lambda v: v[:12].copy()),
        "INVALID_SHAPE",
        "input",
    )
    yield row("smooth dtype", dict(smooth_scales=lambda v: v.astype(F)), "INVALID_DTYPE", "smooth_scales")
    row = lambda *a, **k: Row(a[0], "dynamic groups", *a[1:], **k)
    yield row("S02", dict(group_index=i32(4, 2)), "INVALID_SEQLEN", "group_index", "[1]")
    yield row("S01", dict(group_index=i32(-1, 6)), "INVALID_SEQLEN", "group_index", "[0]")
    yield row("S03", dict(group_index=i32(2, 7)), "INVALID_SEQLEN", "group_index", "[1]")
    yield row("last", dict(group_index=i32(2, 5)), "INVALID_SEQLEN", "group_index", "[1]")
    yield row("S03 first", dict(group_index=i32(7, 6)), "INVALID_SEQLEN", "group_index", "[0]")
    yield row(
        "no groups",
        dict(group_index=i32(), smooth_scales=np.zeros((0, 16), BF16)),
        {"INVALID_SHAPE", "INVALID_SEQLEN"},
        "group_index",
    )


def all_rows():
    for name, call in CALLS.items():
        yield from shape_rows(name, call)
    yield from indexer_rows()
    yield from attention_rows()
    yield from prolog_rows()
    yield from dynamic_rows()


def grouped(rows):
    """(call, first word of the id) -> rows: one test each, since a test costs more than a call."""
    groups = {}
    for row in rows:
        if row:
            groups.setdefault((row.call, row.id.split()[0]), []).append(row)
    return groups


GROUPS = grouped(all_rows())
one_group = lambda groups: pytest.mark.parametrize("group", groups, ids=lambda group: f"{group[0]}: {group[1]}")


def check_rows(rows, impl):
    wrong = []
    for row in rows:
        try:
            row.test(impl)
        except (AssertionError, pytest.fail.Exception) as error:
            wrong.append(f"{row.call}: {row.id}: {error}")
    assert not wrong, "\n".join(wrong)


@both
@one_group(GROUPS)
def test_refused(group, impl):
    check_rows(GROUPS[group], impl)


def test_there_are_enough():
    assert sum(map(len, GROUPS.values())) >= 400


# ---- strict: limits of the chip, which portable does not have


def nz(k, n, dtype):
    c0 = 32 // np.dtype(dtype).itemsize
    return np.zeros((-(-n // c0), -(-k // 16), 16, c0), dtype)


def strict_rows():
    def limit(call, id, change, parameter, status="UNSUPPORTED"):
        return Row(
            f"strict {id}",
            f"{call} strict",
            change,
            status,
            parameter,
            None,
            "[strict: Atlas A2/A3]" if status == "UNSUPPORTED" else (),
        )

    for name in ("li", "qli"):
        scales = dict(query_dequant_scale=1, key_dequant_scale=1) if name == "qli" else {}
        yield limit(
            name, "D", dict(query=lambda v: v[..., :64].copy(), key=lambda v: v[..., :64].copy()), {"query", "key"}
        )
        many = lambda v: np.repeat(v, 17, 1)[:, :65].copy()
        yield limit(
            name, "N1", {"query": many, "weights": many} | ({"query_dequant_scale": many} if scales else {}), "query"
        )
        for size in (20, 8, 1040):
            page = lambda v, size=size: np.zeros((6, size, *v.shape[2:]), v.dtype)
            yield limit(
                name,
                f"block_size {size}",
                {"key": page} | ({"key_dequant_scale": page} if scales else {}) | dict(actual_seq_lengths_key=[2, 3]),
                {"key", "block_size"},
            )
        for count in (2049, 3000, 9216) if name == "li" else (2049, 3072):
            yield limit(name, f"K02 {count}", dict(sparse_count=count, sparse_indices=None), "sparse_count")
        none = lambda v: v[:0].copy()
        yield limit(
            name,
            "zero T",
            dict(query=none, weights=none, sparse_indices=none, actual_seq_lengths_query=[0, 0])
            | ({"query_dequant_scale": none} if scales else {}),
            {"query"},
        )
        yield limit(name, "folded", dict(weights=lambda v: v[:, None].copy()), "weights", "INVALID_SHAPE")
        yield limit(name, "unfolded", dict(sparse_indices=lambda v: v[:, 0].copy()), "sparse_indices", "INVALID_SHAPE")
    yield limit("li", "14", dict(return_value=True), "return_value")
    for tensor in ("weights", "query_dequant_scale", "key_dequant_scale"):
        yield limit("qli", f"float16 {tensor}", {tensor: lambda v: v.astype(F)}, tensor)
    yield limit(
        "qli", "T1", dict(key_dequant_scale=lambda v: v[..., None].copy()), "key_dequant_scale", "INVALID_SHAPE"
    )

    yield limit(
        "attention",
        "9 Dv",
        dict(
            query_nope=lambda v: v[:, :256].copy(),
            key_nope_2d=lambda v: v[:, :256].copy(),
            attention_out=lambda v: v[..., :256].copy(),
        ),
        "query_nope",
    )
    yield limit(
        "attention",
        "9 Dr",
        dict(query_rope=lambda v: v[:, :32].copy(), key_rope_2d=lambda v: v[:, :32].copy()),
        "query_rope",
    )
    yield limit("attention", "13", dict(block_size=64, block_table=i32(0, 1, 2, 3, 4, 5)[None]), "block_size")
    yield limit(
        "attention",
        "21 nq",
        dict(
            nq=64,
            query_nope=lambda v: v[:64].copy(),
            query_rope=lambda v: v[:64].copy(),
            attention_out=lambda v: v[:, :, :64].copy(),
        ),
        "nq",
    )
    yield limit("attention", "21 topk", dict(topk=1024), "topk")
    five = lambda v: np.repeat(v, 10, 0)
    yield limit(
        "attention",
        "21 s1",
        dict(
            b=2,
            s1=5,
            query_nope=five,
            query_rope=five,
            topk_indices=five,
            kv_act_seqs=i32(300, 300),
            block_table=lambda v: np.repeat(v, 2, 0),
            attention_out=np.zeros((2, 5, 128, 512), BF16),
        ),
        "s1",
    )
    yield limit(
        "attention",
        "19",
        dict(
            b=0,
            query_nope=lambda v: v[:0],
            query_rope=lambda v: v[:0],
            topk_indices=lambda v: v[:0],
            kv_act_seqs=i32(),
            block_table=lambda v: v[:0],
            attention_out=lambda v: v[:0],
        ),
        {"query_nope", "b"},
    )
    yield limit("attention", "folded", dict(query_nope=lambda v: v[None]), "query_nope", "INVALID_SHAPE")
    yield limit(
        "attention", "4-D cache", dict(key_nope_2d=lambda v: v.reshape(3, 128, 1, 512)), "key_nope_2d", "INVALID_SHAPE"
    )

    for name in ("mla", "fused"):
        for weight, shape, dtype in (
            ("w_dq", (7168, 1536), BF16),
            ("w_uq_qr", (1536, 24576), np.int8),
            ("w_dkv_kr", (7168, 576), BF16),
        ):
            yield limit(name, f"V11 {weight}", {weight: np.zeros(shape, dtype)}, weight)
        yield limit(
            name,
            "V9 He",
            dict(token_x=lambda v: v[:, :7000].copy(), w_dq=nz(7000, 1536, BF16), w_dkv_kr=nz(7000, 576, BF16))
            | (dict(wk=nz(7000, 128, BF16), w_proj=nz(7000, 64, BF16)) if name == "fused" else {}),
            "token_x",
        )
        blocks = lambda v: v.reshape(4, 64, *v.shape[2:]).copy()
        yield limit(
            name,
            "V9 block_size",
            dict(kv_cache=blocks, kr_cache=blocks, k_scale_cache=blocks)
            | (dict(ip_k_cache=blocks, ip_k_scale_cache=blocks) if name == "fused" else {}),
            "kv_cache",
        )
        yield limit(name, "G", dict(k_scale_cache=np.zeros((2, 128, 1, 8), F)), "k_scale_cache")
        yield limit(
            name,
            "V9 N",
            dict(
                w_uk=np.zeros((64, 128, 512), BF16),
                w_uq_qr=nz(1536, 64 * 192, np.int8),
                dequant_scale=np.ones((64 * 192, 1), F),
            ),
            "w_uk",
        )
        yield limit(
            name,
            "V9 Dr",
            dict(
                cos=lambda v: v[:, :32].copy(),
                sin=lambda v: v[:, :32].copy(),
                w_uq_qr=nz(1536, 128 * 160, np.int8),
                dequant_scale=np.ones((128 * 160, 1), F),
                w_dkv_kr=nz(7168, 544, BF16),
                kr_cache=np.zeros((2, 128, 1, 32), BF16),
            ),
            "cos",
        )
        yield limit(
            name, "V13", dict(dequant_scale=lambda v: v.reshape(1, -1).copy()), "dequant_scale", "INVALID_SHAPE"
        )
        yield limit(name, "V6", dict(token_x=lambda v: v[None].copy()), "token_x", "INVALID_SHAPE")
        yield limit(
            name, "folded cache", dict(kv_cache=lambda v: v.reshape(256, 512).copy()), "kv_cache", "INVALID_SHAPE"
        )
    for name in ("lip", "fused"):
        cache = "k_cache" if name == "lip" else "ip_k_cache"
        for weight, shape, dtype in (
            ("w_qb", (1536, 8192), np.int8),
            ("wk", (7168, 128), BF16),
            ("w_proj", (7168, 64), BF16),
        ):
            yield limit(name, f"V11 {weight}", {weight: np.zeros(shape, dtype)}, weight)
        yield limit(
            name,
            "4 scale",
            {cache.replace("k_cache", "k_scale_cache"): lambda v: v.astype(F)},
            cache.replace("k_cache", "k_scale_cache"),
        )
        yield limit(name, "4 gamma", dict(ln_gamma_k=lambda v: v.astype(F)), "ln_gamma_k")
        yield limit(name, "4 beta", dict(ln_beta_k=lambda v: v.astype(F)), {"ln_beta_k", "ln_gamma_k"})
        layout = "rope_layout" if name == "lip" else "rope_layout_indexer"
        for value in ("interleaved", "interleaved_to_half"):
            yield limit(name, f"18 {value}", {layout: value}, layout)
        yield limit(
            name, "T2", dict(hadamard_q=None, hadamard_k=None), {"hadamard_q", "hadamard_k"}, "INVALID_ARGUMENT"
        )
        yield limit(
            name,
            "17 Ni",
            dict(
                w_qb=nz(1536, 32 * 128, np.int8),
                w_qb_scale=lambda v: v[: 32 * 128].copy(),
                w_proj=nz(7168, 32, BF16),
                q_int8=lambda v: v[:, :32].copy(),
                q_scale=lambda v: v[:, :32].copy(),
                weights=lambda v: v[:, :32].copy(),
            ),
            "w_qb_scale",
        )
    yield limit(
        "lip", "17 He", dict(x=lambda v: v[:, :6144].copy(), wk=nz(6144, 128, BF16), w_proj=nz(6144, 64, BF16)), "x"
    )
    yield limit(
        "lip", "17 Hcq", dict(q_norm=lambda v: v[:, :1024].copy(), w_qb=nz(1024, 8192, np.int8)), {"q_norm", "w_qb"}
    )
    blocks = lambda v: v.reshape(4, 64, *v.shape[2:]).copy()
    yield limit("lip", "11", dict(k_cache=blocks, k_scale_cache=blocks), "k_cache")
    yield limit("dynamic", "float32", dict(input=lambda v: v.astype(F), smooth_scales=lambda v: v.astype(F)), "input")
    for name, call in STRICT.items():
        args = call.make()
        for tensor in call.tensors():
            value = args[tensor]
            if value.nbytes > 2**20 or value.ndim < 2 or value.shape[0] == 1:
                continue
            paged_axis = "cache" in tensor or tensor in ("key", "key_dequant_scale")
            if not paged_axis and not tensor.endswith("_2d") and tensor != "k_nope_scales" and value.shape[-1] > 1:
                yield Row(
                    f"T12 {tensor}", name, {tensor: wider}, "INVALID_STRIDE", tensor, says="[strict: Atlas A2/A3]"
                )
            if tensor not in call.written:
                yield Row(
                    f"T08 {tensor}",
                    name,
                    {tensor: lambda v: np.broadcast_to(v[:1], v.shape)},
                    "INVALID_STRIDE",
                    tensor,
                    says="[strict: Atlas A2/A3]",
                )


STRICT_GROUPS = grouped(strict_rows())


@both
@one_group(STRICT_GROUPS)
def test_refused_in_strict(group, impl):
    check_rows(STRICT_GROUPS[group], impl)


# ---- two things wrong at once: the first of the validation table is the answer


def table(call, *faults):
    """(row of the table, change, status, parameter), in the order of the table."""
    return [Row(f"{number}", call, change, status, parameter, None) for number, change, status, parameter in faults]


def nan_page(v):
    v = v.copy()
    v.flat[0] = -5
    return v


INDEXER_TABLE = (
    ("1", dict(weights=None), "INVALID_ARGUMENT", "weights"),
    ("2", dict(layout_query="BNSD"), "INVALID_ARGUMENT", "layout_query"),
    ("3", dict(key=lambda v: np.repeat(v, 2, 2)), "INVALID_SHAPE", "key"),
    ("4", dict(actual_seq_lengths_query=np.array([2.0, 5.0])), "INVALID_DTYPE", "actual_seq_lengths_query"),
    ("8", dict(sparse_count=0, sparse_indices=None), "INVALID_ARGUMENT", "sparse_count"),
    ("10", dict(sparse_mode=1), "INVALID_ARGUMENT", "sparse_mode"),
    ("12", dict(actual_seq_lengths_key=[9, -1]), "INVALID_SEQLEN", "actual_seq_lengths_key"),
    ("13", dict(block_table=nan_page), "INVALID_BLOCK", "block_table"),
    ("16", dict(query=spread), "INVALID_STRIDE", "query"),
)
ORDERED = {
    "li": table("li", *INDEXER_TABLE),
    "qli": table("qli", *INDEXER_TABLE),
    "attention": table(
        "attention",
        ("1", dict(query_rope=None), "INVALID_ARGUMENT", "query_rope"),
        ("4", dict(key_rope_2d=lambda v: v[:, :3].copy()), "INVALID_SHAPE", "key_rope_2d"),
        ("5", dict(query_nope=lambda v: v.astype(np.float16)), "INVALID_DTYPE", "query_nope"),
        ("14", dict(softmax_scale=float("nan")), "INVALID_ARGUMENT", "softmax_scale"),
        ("15", dict(kv_act_seqs=[5, -1]), "INVALID_SEQLEN", "kv_act_seqs"),
        ("16", dict(topk_indices=lambda v: v - 9), "INVALID_INDEX", "topk_indices"),
        ("20", dict(key_nope_2d=spread), "INVALID_STRIDE", "key_nope_2d"),
    ),
    "mla": table(
        "mla",
        ("V1", dict(gamma_ckv=None), "INVALID_ARGUMENT", "gamma_ckv"),
        ("V4", dict(cache_mode="TND"), "INVALID_ARGUMENT", "cache_mode"),
        ("V7", dict(cos=lambda v: v[:3].copy()), "INVALID_SHAPE", "cos"),
        ("V10", dict(sin=lambda v: v.astype(np.float16)), "INVALID_DTYPE", "sin"),
        ("V15", dict(cache_index=lambda v: v + 100), "INVALID_SLOT", "cache_index"),
        ("V20", dict(token_x=spread), "INVALID_STRIDE", "token_x"),
    ),
    "mla strict": table(
        "mla strict",
        ("V7", dict(gamma_ckv=np.ones(511, BF16)), "INVALID_SHAPE", "gamma_ckv"),
        ("V10", dict(sin=lambda v: v.astype(np.float16)), "INVALID_DTYPE", "sin"),
        ("V11", dict(w_dq=np.zeros((7168, 1536), BF16)), "UNSUPPORTED", "w_dq"),
        ("V15", dict(cache_index=lambda v: v + 1000), "INVALID_SLOT", "cache_index"),
        ("V20", dict(token_x=spread), "INVALID_STRIDE", "token_x"),
    ),
    "lip": table(
        "lip",
        ("1", dict(wk=None), "INVALID_ARGUMENT", "wk"),
        ("2", dict(layout_query="BSND"), "INVALID_ARGUMENT", "layout_query"),
        ("3", dict(cos=lambda v: v[:3].copy()), "INVALID_SHAPE", "cos"),
        ("4", dict(sin=lambda v: v.astype(np.float16)), "INVALID_DTYPE", "sin"),
        ("16", dict(x=spread), "INVALID_STRIDE", "x"),
        ("18", dict(layernorm_epsilon_k=0.0), "INVALID_ARGUMENT", "layernorm_epsilon_k"),
        ("19", dict(k_cache_index=lambda v: v + 100), "INVALID_SLOT", "k_cache_index"),
    ),
    "lip strict": table(
        "lip strict",
        ("3", dict(ln_beta_k=np.ones(127, BF16)), "INVALID_SHAPE", "ln_beta_k"),
        ("4", dict(sin=lambda v: v.astype(np.float16)), "INVALID_DTYPE", "sin"),
        (
            "11",
            dict(k_cache=lambda v: v.reshape(4, 64, 1, 128), k_scale_cache=lambda v: v.reshape(4, 64, 1, 1)),
            "UNSUPPORTED",
            "k_cache",
        ),
        ("16", dict(hadamard_q=spread), "INVALID_STRIDE", "hadamard_q"),
        ("18", dict(rope_layout="interleaved"), "UNSUPPORTED", "rope_layout"),
        ("19", dict(k_cache_index=lambda v: v + 1000), "INVALID_SLOT", "k_cache_index"),
    ),
}


@both
@pytest.mark.parametrize("name", ORDERED)
def test_the_first_fault_is_reported(name, impl):
    rows = [
        Row(f"{a.id} before {b.id}", a.call, b.new | a.new, a.status, a.parameter, None)
        for a, b in itertools.combinations(ORDERED[name], 2)
    ]
    check_rows(rows, impl)


# ---- what looks odd and is right


def run(name, args, impl="fast"):
    """Results by the name of what is written."""
    call = (CALLS | STRICT)[name]
    operator(call.operator, impl)(**args)
    return {written: args[written].copy() for written in call.written}


def assert_all_same(got, want, what):
    for name in want:
        assert_same(got[name], want[name], f"{what}: {name}")


@both
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    "form", [wider, backwards, frozen, "broadcast", "capsule"], ids=lambda f: getattr(f, "__name__", f)
)
def test_memory_that_is_fine(name, form, impl):
    """T07, T08, T12: the same numbers elsewhere give the same bits."""
    call = CALLS[name]
    want = run(name, call.make(), impl)
    for tensor in call.tensors():
        args = call.make()
        good = args[tensor]
        if tensor in call.written and form is not wider:
            continue
        if tensor == "value" and is_twin(args):
            continue
        if form is wider and tensor.endswith("_cache") and args.get("cache_mode") == "PA_NZ":
            continue  # blocks are contiguous
        if form == "broadcast":
            if good.dtype in (np.int32, np.int64) or good.ndim < 2 or good.shape[0] == 1:
                continue
            args[tensor] = np.ascontiguousarray(np.broadcast_to(good[:1], good.shape))
            expected = run(name, with_value(args, tensor), impl)
            args = call.make()
            args[tensor] = np.broadcast_to(good[:1], good.shape)
            with_value(args, tensor)
            assert_all_same(run(name, args, impl), expected, tensor)
            continue
        args[tensor] = capsule(good, version=1, data=-8, byte_offset=8) if form == "capsule" else form(good)
        assert_all_same(run(name, args, impl), want, tensor)
        if form is wider and tensor in call.written:
            assert not args[tensor].base[..., good.shape[-1] :].astype(F).any(), "beside the rows"


@both
@pytest.mark.parametrize("name", STRICT)
def test_strict_takes_what_the_chip_takes(name, impl):
    """Also pages apart: the first axis of a paged cache is free."""
    call = STRICT[name]
    want = run(name, call.make(), impl)
    portable = call.make() | dict(level="portable")
    assert_all_same(run(name, portable, impl), want, "portable")
    for tensor in call.tensors():
        keys = name in ("qli strict", "kvsfa strict") and tensor in ("key", "key_dequant_scale")
        if "cache" not in tensor.replace("cache_index", "") and not keys:
            continue
        args = call.make()
        apart = np.zeros((args[tensor].shape[0] * 2, *args[tensor].shape[1:]), args[tensor].dtype)[::2]
        apart[...] = args[tensor]
        args[tensor] = apart
        assert_all_same(run(name, args, impl), want, tensor)


def indexer_call(name, **changes):
    args = CALLS[name].make()
    put(changes)(args)
    return args


@both
@pytest.mark.parametrize("name", ["li", "li values", "qli"])
def test_indexer_corners(name, impl):
    good = run(name, CALLS[name].make(), impl)
    pick = lambda **changes: run(name, indexer_call(name, **changes), impl)["sparse_indices"]
    base = good["sparse_indices"]
    # S04: rows behind the last total are -1, the others as before with the sequence's own rows
    fewer = pick(actual_seq_lengths_query=[2, 4], sparse_mode=0)
    assert (fewer[4] == -1).all() and (fewer[:4] == pick(sparse_mode=0)[:4]).all()
    assert (pick(actual_seq_lengths_key=[0, 6])[:2] == -1).all()  # S08
    late = pick(actual_seq_lengths_key=[9, 1])  # S09: three rows, one key: the last row sees it
    assert (late[2:4] == -1).all() and late[4, 0].tolist() == [0] + [-1] * 6
    first_empty = pick(actual_seq_lengths_query=[0, 5], actual_seq_lengths_key=[9, 6])  # S11
    assert (first_empty[2:] == base[2:]).all()
    shared = pick(block_table=lambda v: np.array([[0, 5, 2, 0], [0, 5, 2, 0]], np.int32))  # B05
    assert (shared >= -1).all()
    table = CALLS[name].make()["block_table"]
    for garbage in (INT32_MIN, INT32_MAX, -1):  # B03
        other = table.copy()
        other[0, 3:], other[1, 2:] = garbage, garbage
        assert_same(pick(block_table=other), base)
    assert base[0, 0, -1] == -1 or (base[0] >= 0).all()
    many = run(
        name,
        indexer_call(
            name,
            sparse_count=40,
            sparse_indices=np.zeros((5, 1, 40), np.int32),
            **(dict(sparse_values=np.zeros((5, 1, 40), BF16)) if name == "li values" else {}),
        ),
        impl,
    )
    assert (np.sort(many["sparse_indices"][4, 0, :6]) == range(6)).all() and (
        many["sparse_indices"][4, 0, 6:] == -1
    ).all()  # K03
    if name == "li values":
        assert np.isneginf(many["sparse_values"][4, 0, 6:].astype(F)).all()
    plateau = pick(weights=lambda v: v * 0, sparse_mode=0)  # K04
    assert (plateau[0, 0] == range(7)).all() and (plateau[4, 0] == [0, 1, 2, 3, 4, 5, -1]).all()
    with np.errstate(all="ignore"):
        nan = pick(weights=lambda v: v * np.array(np.nan, v.dtype), sparse_mode=0)  # K06: all rank alike, below -inf
    assert (nan == plateau).all()


@both
def test_indexer_signs(impl):
    """Q03, Q04, Q09, K07 on one head: dots 16384, 0, -16384 and their scales."""
    q = np.full((1, 1, 1, 1), -128, np.int8)
    key = np.array([-128, 0, 127, -128, -128], np.int8).reshape(1, 5, 1, 1)
    call = lambda scale, weight=1: (
        operator("quant_lightning_indexer", impl)(
            q,
            key,
            np.full((1, 1, 1), weight, F),
            np.ones((1, 1, 1), F),
            np.array(scale, F).reshape(1, 5, 1),
            sparse_count=5,
        )
        .reshape(-1)
        .tolist()
    )
    assert call([1, 1, 1, 2, 0]) == [3, 0, 1, 2, 4]
    assert call([1, 1, 1, -2, 0]) == [0, 1, 2, 4, 3]
    assert call([np.inf, 1, 1, -np.inf, np.nan]) == [0, 1, 2, 3, 4]
    assert call([np.inf, 1, 1, 2, 0], -1) == [1, 2, 4, 3, 0]


@both
@pytest.mark.parametrize("name", ["mla", "mla bf16", "lip", "fused"])
def test_cache_slots(name, impl):
    """C02 to C05, and no tokens at all."""
    call = CALLS[name]
    index = "k_cache_index" if name == "lip" else "cache_index"
    caches = [w for w in call.written if "cache" in w]
    outs = [w for w in call.written if w not in caches]
    before = call.make()
    run_with = lambda slots, **more: run(name, before_with(call, {index: np.array(slots), **more}), impl)
    plain = run_with([0, 1, 2, 3])
    flat = lambda result, cache: result[cache].reshape(-1, result[cache].shape[-1])
    skipped = run_with([0, -1, INT64_MIN, 3])
    for cache in caches:
        assert_same(flat(skipped, cache)[[0, 3]], flat(plain, cache)[[0, 3]])
        kept = [1, 2, *range(4, 15)]
        assert_same(flat(skipped, cache)[kept], before[cache].reshape(-1, before[cache].shape[-1])[kept])
    twice = run_with([7, 9, 7, 9])
    for cache in caches:
        assert_same(flat(twice, cache)[[7, 9]], flat(plain, cache)[[2, 3]])
    none = run_with([INT64_MIN, 2**62, -9, 5], **{cache: before[cache][:0] for cache in caches})
    for out in outs:
        assert_same(skipped[out], plain[out])
        assert_same(twice[out], plain[out])
        assert_same(none[out], plain[out])


def is_twin(args):
    """Value must have the rows of key."""
    return "scale_value" in args


def with_value(args, tensor):
    """A changed key is the value too, where it must be."""
    if tensor == "key" and is_twin(args):
        args["value"] = args["key"]
    return args


def before_with(call, new):
    args = call.make()
    args.update(new)
    return args


@both
@pytest.mark.parametrize("name", CALLS)
def test_any_bits_are_computed(name, impl):
    """Q01, Q02, Q10: NaN, infinities, subnormals and -0 anywhere: no trap, the same bits twice and on other threads."""
    call = CALLS[name]
    rng = generator(99)
    for tensor in call.tensors():
        args = call.make()
        if args[tensor].dtype not in (BF16, np.float16, F) or tensor in (*call.written, "k_nope_clip_alpha"):
            continue
        if tensor == "value" and is_twin(args):
            continue
        odd = np.array([np.nan, np.inf, -np.inf, -0.0, 1e-40, -3e38, 65504], F).astype(args[tensor].dtype)
        values = np.where(rng.random(args[tensor].shape) < 0.3, rng.choice(odd, args[tensor].shape), args[tensor])
        results = []
        for threads in (1, 3):
            args = with_value(before_with(call, {tensor: values.astype(args[tensor].dtype)}), tensor)
            dsakit.set_num_threads(threads)
            results.append(run(name, args, impl))
        dsakit.set_num_threads(2)
        for written in results[0]:
            assert_same(results[0][written], results[1][written], f"{tensor}: {written}")


@both
def test_no_elements_need_no_memory(impl):
    """T02 for an input of every rank, and the operators without tokens."""
    quant = operator("dynamic_quant", impl)
    y, scale = quant(capsule(np.zeros((0, 8), F), data=None))
    assert y.shape == (0, 8) and scale.shape == (0,)
    for name, call in CALLS.items():
        if call.operator in ("mla_prolog_quant", "lightning_indexer_prolog_quant", "mla_indexer_prolog_quant"):
            rows = ("token_x", "x", "q_norm", "q_norm_scale", "cos", "sin", "cache_index", "k_cache_index")
            args = call.make()
            before = {w: args[w].copy() for w in call.written if "cache" in w}
            for tensor in (*rows, *(w for w in call.written if "cache" not in w)):
                if tensor in args:
                    args[tensor] = capsule(args[tensor][:0], data=None)
            operator(call.operator, impl)(**args)
            assert all((args[w] == v).all() or np.isnan(v.astype(F)).any() for w, v in before.items())


@both
def test_attention_reads_only_what_it_uses(impl):
    """B03, I04, I09: garbage behind the lists and the tables, a position twice, a sequence that sees nothing."""
    base = CALLS["attention"].make()
    want = run("attention", base, impl)["attention_out"]
    args = before_with(CALLS["attention"], dict(kv_act_seqs=[0, 9]))
    args["topk_indices"][:2], args["block_table"][0] = INT32_MIN, INT32_MAX
    got = run("attention", args, impl)["attention_out"]
    assert not got[0].astype(F).any()
    assert_same(got[1], want[1])
    args = before_with(CALLS["attention"], dict(kv_act_seqs=[1, 9]))  # s1 2: row 0 sees nothing, row 1 one position
    args["topk_indices"][0], args["topk_indices"][1, 1:] = -1, 77
    args["topk_indices"][1, 0] = 0
    got = run("attention", args, impl)["attention_out"]
    assert not got[0, 0].astype(F).any() and got[0, 1].astype(F).any()
    args = before_with(CALLS["attention"], {})
    args["topk_indices"][3] = 5
    once = before_with(CALLS["attention"], dict(topk=1))
    once["topk_indices"][3, 0] = 5
    assert_same(
        run("attention", args, impl)["attention_out"][1, 1], run("attention", once, impl)["attention_out"][1, 1]
    )


@both
def test_quantisation_corners(impl):
    """Q06 to Q08."""
    x = np.zeros((5, 8), F)
    x[1], x[2, 0], x[3, 3], x[4] = 1e-40, np.nan, np.inf, np.arange(8)
    x[2, 1] = 2
    y, scale = operator("dynamic_quant", impl)(x)
    assert not y[:2].any() and not scale[:2].any()
    assert y[2, 0] == 0 and y[4, 7] == 127 and scale[4] == F(7) / F(127)
    assert_same(operator("dynamic_quant", impl)(x)[0], y)
