# SPDX-License-Identifier: Apache-2.0
"""Bad input of the torch_npu family and of the row operators beyond what every tensor and attribute gets: index data,
modes, optional tensors, limits of the chip, and odd calls that are right."""

import itertools

import numpy as np
import pytest

from oracle.calls import CALLS, STRICT
from oracle.cases import BF16, F
from oracle.harness import assert_same, both, operator
from oracle.mla_prolog_v3 import MODES, logical_rows
from test_robustness import (
    INT32_MAX,
    INT32_MIN,
    INT64_MIN,
    Row,
    assert_all_same,
    before_with,
    check_rows,
    grouped,
    i32,
    one_group,
    run,
    set_at,
    share,
    share_caches,
    spread,
    table,
)

EITHER = {"INVALID_ARGUMENT", "INVALID_SHAPE"}
NUMBERS = (float("nan"), float("inf"), -float("inf"), 1e39)


def rows_of(name):
    return lambda *a, **k: Row(a[0], name, *a[1:], **k)


def sparse_rows():
    """sparse_attention.md 2 and 4."""
    for name in ("sfa", "kvsfa"):
        row = rows_of(name)
        query, kv, index, pages = "actual_seq_lengths_query", "actual_seq_lengths_kv", "sparse_indices", "block_table"
        yield row("S01 query", {query: i32(-1, 4)}, "INVALID_SEQLEN", query, "[0]")
        yield row("S01 key", {kv: i32(5, -1)}, "INVALID_SEQLEN", kv, "[1]")
        yield row("S02", {query: i32(3, 2)}, "INVALID_SEQLEN", query, "[1]", says="must not decrease")
        yield row("S03", {query: i32(2, 5)}, "INVALID_SEQLEN", query, "[1]", says="is 5")
        yield row("S03 first", {query: i32(5, 4)}, "INVALID_SEQLEN", query, "[0]")
        yield row("S06", {kv: i32(5, 13)}, "INVALID_SEQLEN", kv, "[1]", says=("is 13", "0..12", "block_table"))
        yield row("S06 max", {kv: i32(INT32_MAX, 9)}, "INVALID_SEQLEN", kv, "[0]")
        for values in ((5,), (5, 9, 0), ()):
            yield row(f"S07 {len(values)}", {kv: i32(*values)}, {"INVALID_SEQLEN", "INVALID_SHAPE"}, kv)
        for lengths in (query, kv):
            yield row(f"S10 {lengths}", {lengths: None}, "INVALID_ARGUMENT", lengths, says="is missing")
        yield row("B01", set_at(pages, (1, 2), -1), "INVALID_BLOCK", pages, "[1][2]", says=("is -1", "0..4"))
        yield row("B01 min", set_at(pages, (0, 0), INT32_MIN), "INVALID_BLOCK", pages, "[0][0]")
        yield row("B02", set_at(pages, (0, 1), 5), "INVALID_BLOCK", pages, "[0][1]", says="is 5")
        yield row("B02 max", set_at(pages, (1, 1), INT32_MAX), "INVALID_BLOCK", pages, "[1][1]")
        yield row("B04", {pages: lambda v: v[:, :2].copy()}, "INVALID_SEQLEN", kv, "[1]", says=("is 9", "block_table"))
        empty = lambda v: v[:, :0].copy()
        block = dict(key=empty, value=empty) | (dict(key_rope=empty) if name == "sfa" else {})
        yield row("B07", block, "INVALID_SHAPE", {"key", "block_size"})
        yield row("B09 rows", {pages: lambda v: v[:1].copy()}, "INVALID_SHAPE", pages)
        yield row("B09 rank", {pages: lambda v: v.reshape(-1)}, "INVALID_SHAPE", pages)
        yield row("B10", {pages: None}, "INVALID_ARGUMENT", pages, says="PA_BSND")
        says = ("is 9", "below 9", "sequence 1")
        yield row("I01", set_at(index, (3, 0, 1), 9), "INVALID_INDEX", index, "[3][0][1]", says=says)
        yield row("I01 max", set_at(index, (0, 0, 2), INT32_MAX), "INVALID_INDEX", index, "[0][0][2]")
        for value in (-2, INT32_MIN):
            yield row(f"I03 {value}", set_at(index, (1, 0, 0), value), "INVALID_INDEX", index, "[1][0][0]")
            masked = lambda a, value=value: (set_at(index, (1, 0, 0), value)(a), a.update(index_check="mask"))
            yield row(f"I03 mask {value}", masked, "INVALID_INDEX", index, "[1][0][0]")
        for value in (2**29 + 1, 2**30, INT32_MAX):
            lists = np.zeros((4, 1, 3), np.int32)
            lists[2, 0, 0] = value
            blocks = {index: lists, "sparse_block_size": 4}
            yield row(f"I06 {value}", blocks, "INVALID_INDEX", index, "[2][0][0]")
        two = lambda a: (set_at(index, (2, 0, 1), -7)(a), set_at(index, (1, 0, 2), 5)(a))
        yield row("I01 lowest", two, "INVALID_INDEX", index, "[1][0][2]")
        early = lambda a: (set_at(index, (3, 0, 0), 99)(a), set_at(pages, (0, 0), 99)(a))
        yield row("16 lowest", early, "INVALID_BLOCK", pages, "[0][0]")
        for mode in (0, 1, 3, -1, 2**40):
            says = ("2", str(mode))
            yield row(f"2 {mode}", dict(attention_mode=mode), "INVALID_ARGUMENT", "attention_mode", says=says)
        for mode in (1, 2, 4, -1, 2**40):
            yield row(f"14 mode {mode}", dict(sparse_mode=mode), "INVALID_ARGUMENT", "sparse_mode", says=("0", "3"))
        for window in ("pre_tokens", "next_tokens"):
            for tokens in (0, -1, 2**31 - 1, INT64_MIN):
                yield row(f"14 {window} {tokens}", {window: tokens}, "INVALID_ARGUMENT", window)
        for value in NUMBERS:
            yield row(f"P03 {value}", dict(scale_value=value), "INVALID_ARGUMENT", "scale_value")
        for size in (0, -1, INT64_MIN, 3, 8, 2**62):
            yield row(f"11 {size}", dict(sparse_block_size=size), "INVALID_ARGUMENT", "sparse_block_size")
        yield row("P01 layouts", dict(layout_kv="BSND", block_table=None), EITHER, {"layout_kv", "layout_query", "key"})
        heads = lambda v: v[:, :0].copy()
        no_heads = dict(query=heads, query_rope=heads) if name == "sfa" else dict(query=heads)
        yield row("4 N1", no_heads, "INVALID_SHAPE", "query")
        twice = lambda v: np.repeat(v, 2, 2)
        keys = dict(key=twice, value=twice) | (dict(key_rope=twice) if name == "sfa" else {})
        yield row("4 N2", keys, "INVALID_SHAPE", "key")
        other = lambda v: np.concatenate([v[:1, :1] * -1, v[:1, 1:]], 1)
        first = dict(value=lambda v: np.concatenate([other(v), v[1:]]))
        yield row("6", first, "INVALID_ARGUMENT", "value", "[0][0][0][0]", says="key")
        yield row("18", set_at("sinks", 1, np.nan), "INVALID_ARGUMENT", "sinks", "[1]")
        yield row("3.3", dict(return_softmax_lse=False), "INVALID_SHAPE", {"softmax_max", "softmax_sum"})
    row = rows_of("kvsfa")
    for mode in ("key_quant_mode", "value_quant_mode"):
        for value in (0, 1, 3, -1):
            yield row(f"7 {mode} {value}", {mode: value}, "INVALID_ARGUMENT", mode, says="2")
        yield row(f"7 {mode} absent", {mode: None}, "INVALID_ARGUMENT", mode, says="is missing")
    for value in (0, 2, -1):
        yield row(f"7 repo {value}", dict(quant_scale_repo_mode=value), "INVALID_ARGUMENT", "quant_scale_repo_mode")
    for scale in ("key_dequant_scale", "value_dequant_scale"):
        yield row(f"T17 {scale}", {scale: np.ones(4, F)}, "INVALID_ARGUMENT", scale, says="wanted absent")
    for size in (0, -1, INT64_MIN, 3, 2**62):
        yield row(f"7 tile {size}", dict(tile_size=size), EITHER, "tile_size")
    for width in (-1, 20, 2**62, INT64_MIN):
        yield row(f"7 rope {width}", dict(rope_head_dim=width), EITHER, "rope_head_dim")
    yield row("7 other tile", dict(tile_size=16), "INVALID_SHAPE", {"key", "tile_size"}, says=("32", "28"))
    yield row("5 float8", dict(key=lambda v: v.view(F8), value=lambda v: v.view(F8)), "UNSUPPORTED", "key")
    row = rows_of("sfa")
    wide = lambda v: np.concatenate([v, v], -1)
    yield row("4 Dr", dict(key_rope=wide), "INVALID_SHAPE", {"key_rope", "query_rope"})
    half = lambda v: v.astype(np.float16)
    yield row("5 query", dict(query=half), "INVALID_DTYPE", {"query", "key"}, says=("float16", "bfloat16"))


F8 = __import__("ml_dtypes").float8_e4m3fn
SLOTTED = {"v3": 15, "v3 tiles": 15, "v3 NZ": 15, "v3 functional": 15, "v2": 15}
SCALES = dict(
    dequant_scale_x=(4, 1),
    dequant_scale_w_dq=(1, 24),
    dequant_scale_w_uq_qr=(1, 80),
    dequant_scale_w_dkv_kr=(1, 64),
    quant_scale_ckv=(1, 32),
    quant_scale_ckr=(1, 32),
    smooth_scales_cq=(1, 24),
    k_nope_clip_alpha=(1,),
)
V3 = ("v3", "v3 tiles", "v3 NZ", "v3 batched", "v3 TND", "v3 functional")


def prolog_rows():
    """mla_prolog.md 3, 9, 10, 11."""
    for name, slots in SLOTTED.items():
        row = rows_of(name)
        for slot in (slots, 2**31, 2**63 - 1):
            says = (f"is {slot}", f"below {slots}", "3 pages of 5")
            yield row(f"C01 {slot}", set_at("cache_index", 3, slot), "INVALID_SLOT", "cache_index", "[3]", says=says)
        yield row("C01 lowest", dict(cache_index=np.array([0, 99, -1, 15])), "INVALID_SLOT", "cache_index", "[1]")
        yield row("V7 index", dict(cache_index=lambda v: v[:3].copy()), "INVALID_SHAPE", "cache_index")
        yield row("V14", dict(cache_index=None), "INVALID_ARGUMENT", "cache_index", says="is missing")
        yield row("B07", dict(kv_cache=lambda v: v[:, :0].copy()), "INVALID_SHAPE", "kv_cache")
    row = rows_of("v3 blocks")
    says = ("is 6", "below 6")
    yield row("C01 page", set_at("cache_index", 2, 6), "INVALID_SLOT", "cache_index", "[2]", says=says)
    yield row("C01 max", set_at("cache_index", 0, 2**63 - 1), "INVALID_SLOT", "cache_index", "[0]")
    ends = "actual_seq_len"
    yield row("S01", {ends: i32(-1, 7, 9)}, "INVALID_SEQLEN", ends, "[0]")
    yield row("S02", {ends: i32(7, 6, 9)}, "INVALID_SEQLEN", ends, "[1]", says="must not decrease")
    yield row("S03", {ends: i32(7, 7, 10)}, "INVALID_SEQLEN", ends, "[2]", says="9")
    yield row("S03 first", {ends: i32(10, 9, 9)}, "INVALID_SEQLEN", ends, None)
    yield row("S04", {ends: i32(7, 7, 8)}, "INVALID_SEQLEN", ends, "[2]", says=("is 8", "9"))
    yield row("S07", {ends: i32()}, {"INVALID_SEQLEN", "INVALID_SHAPE", "INVALID_ARGUMENT"}, ends)
    yield row("S10", {ends: None}, "INVALID_ARGUMENT", ends, says="is missing")
    yield row("V7 pages", dict(cache_index=lambda v: v[:2].copy()), "INVALID_SHAPE", "cache_index")
    for name in ("v3 batched", "v3 TND"):
        index = dict(cache_index=np.zeros(4, np.int64))
        yield rows_of(name)("V14 given", index, "INVALID_ARGUMENT", "cache_index", says="wanted absent")
    for name in V3:
        row = rows_of(name)
        given = CALLS[name].make()
        lengths = {ends: i32(4)}
        yield row("V14 lengths", lengths, "INVALID_ARGUMENT", ends, says="wanted absent")
        packed = given["kv_cache_quant_mode"] == 3
        for scale, shape in SCALES.items():
            tolerated = scale == "smooth_scales_cq" or (packed and scale == "quant_scale_ckv")
            if scale not in given and not tolerated:
                yield row(f"T17 {scale}", {scale: np.ones(shape, F)}, "INVALID_ARGUMENT", scale, says="wanted absent")
        for factor in ("qc_qr_scale", "kc_scale"):
            for value in NUMBERS:
                yield row(f"P03 {factor} {value}", {factor: value}, "INVALID_ARGUMENT", factor)
        for mode, last in zip(MODES, (5, 3, 1, 1, 1)):
            for value in (-1, last + 1, 2**40, INT64_MIN):
                yield row(f"V2 {mode} {value}", {mode: value}, "INVALID_ARGUMENT", mode, says=f"0..{last}")
        says = ("ckvkr_repo_mode" if packed else "query_quant_mode", "kv_cache_quant_mode")
        wrong = dict(ckvkr_repo_mode=0) if packed else dict(query_quant_mode=1 - given["query_quant_mode"])
        yield row("P02 V3", wrong, "INVALID_ARGUMENT", set(wrong), says=says)
        for value in (3, 4, 5):  # with per-channel rows there is no such row at all
            reserved = dict(weight_quant_mode=value) | (dict(kv_cache_quant_mode=0) if name == "v3 NZ" else {})
            yield row(f"V2 reserved {value}", reserved, "UNSUPPORTED", "weight_quant_mode", says="reserved")
        yield row("V4", dict(cache_mode="pa_bsnd"), "INVALID_ARGUMENT", "cache_mode", says="PA_BLK_NZ")
        if packed:
            for mode in ("PA_NZ", "PA_BLK_BSND", "PA_BLK_NZ"):
                says = (mode, "kv_cache_quant_mode 3")
                yield row(f"V4 {mode}", dict(cache_mode=mode), "INVALID_ARGUMENT", "cache_mode", says=says)
            for value in (0, -1, np.nan, np.inf):
                alpha = dict(k_nope_clip_alpha=np.array([value], F))
                yield row(f"V16 {value}", alpha, "INVALID_ARGUMENT", "k_nope_clip_alpha")
            for size in (0, -1, 3, INT64_MIN, 2**62):
                yield row(f"V18 {size}", dict(tile_size=size), EITHER, "tile_size")
            cache = np.zeros((*given["kv_cache"].shape[:-1], 32), BF16)
            yield row("V19", dict(kr_cache=cache), EITHER, "kr_cache")
            yield row("V10 kv", dict(kv_cache=cache), "INVALID_DTYPE", "kv_cache", says="pack_kv_rows")
            yield row("V8", dict(kv_cache=cache.view(np.int8)), "INVALID_SHAPE", "kv_cache", says="pack_kv_rows")
        else:
            yield row("V18", dict(tile_size=64), "INVALID_ARGUMENT", "tile_size", says="128")
            yield row("T18 kr", dict(kr_cache=None), "INVALID_ARGUMENT", "kr_cache", says="is missing")
            yield row("N8 Nkv", dict(kv_cache=lambda v: np.repeat(v, 2, -2)), "INVALID_SHAPE", "kv_cache")
        odd = dict(rope_sin=lambda v: v[..., :31].copy(), rope_cos=lambda v: v[..., :31].copy())
        yield row("N8 Dr", odd, "INVALID_SHAPE", {"rope_sin", "rope_cos"}, says="even")
        for axis in range(3):
            empty = dict(weight_uk=lambda v, axis=axis: np.take(v, [], axis))
            yield row(f"zero w_uk {axis}", empty, "INVALID_SHAPE", "weight_uk")
        storage = dict(weight_dq=np.zeros((1, 2, 16, 32), given["weight_dq"].dtype))
        yield row("P06", storage, "INVALID_SHAPE", "weight_dq")
    for name in ("v3", "v2"):
        yield rows_of(name)("A04", lambda a: a.update(share_caches(a)), "ALIASED", {"kv_cache", "kr_cache"})
    row = rows_of("v2")
    for mode in ("TND", "BSND", "PA_BLK_BSND", "PA_BLK_NZ", "nonsense"):
        says = ("PA_BSND", "PA_NZ")
        yield row(f"11 {mode}", dict(cache_mode=mode), "INVALID_ARGUMENT", "cache_mode", says=says)
    row = rows_of("v3 functional")
    for cache in ("kv_cache", "kr_cache"):
        partly = lambda a, cache=cache: a.update(dict(zip((cache, cache + "_out"), share(a[cache], a[cache]))))
        yield row(f"A01 {cache}", partly, "ALIASED", {cache, cache + "_out"})


def row_operator_rows():
    """supporting_ops.md 1, 2, 4, and the packed rows."""
    row = rows_of("quantize")
    for axis in (2, -3, 2**40, INT64_MIN):
        yield row(f"axis {axis}", dict(axis=axis), EITHER, "axis", says=(str(axis), "-2..1"))
    for n in (0, 15, 17):
        yield row(f"size {n}", dict(scales=np.ones(n, BF16)), "INVALID_SHAPE", "scales", says=f"[{n}]")
        yield row(f"zero {n}", dict(zero_points=np.ones(n, np.int8)), "INVALID_SHAPE", "zero_points")
    yield row("other axis", dict(axis=0), "INVALID_SHAPE", "scales")
    yield row("one of two", dict(scales=np.ones(1, BF16)), "INVALID_SHAPE", "zero_points")
    yield row("half scales", dict(scales=lambda v: v.astype(np.float16)), "INVALID_DTYPE", "scales")
    yield row("zero fp32", dict(zero_points=lambda v: v.astype(F)), "INVALID_DTYPE", "zero_points")
    for dtype in ("int9", "", "float16", None, 3, F8, "float8_e5m2", "hifloat8", "quint4x2"):
        statuses = {"INVALID_ARGUMENT", "INVALID_DTYPE", "UNSUPPORTED"}
        yield row(f"dtype {dtype!r:.20}", dict(dtype=dtype), statuses, "dtype")
    row = rows_of("quantize int4")
    seven = dict(input=lambda v: v[:, :12].copy(), scales=lambda v: v[:12].copy())
    yield row("width", seven, "INVALID_SHAPE", "input", says="8")
    for dtype in ("int8", "quint8", "qint32"):
        yield row(f"dtype {dtype}", dict(dtype=dtype), "INVALID_ARGUMENT", "dtype", says=("qint8", "quint4x2"))
    yield row("rank", dict(scales=lambda v: v[None, None]), "INVALID_SHAPE", "scales")

    row = rows_of("block quant")
    for size in (0, -1, INT64_MIN):
        yield row(f"columns {size}", dict(col_block_size=size), "INVALID_ARGUMENT", "col_block_size")
        yield row(f"rows {size}", dict(row_block_size=size), "INVALID_ARGUMENT", "row_block_size")
    yield row("rows 128", dict(row_block_size=128), "UNSUPPORTED", "row_block_size", says="reserved")
    for value in (*NUMBERS, -1.0, -1e-45):
        yield row(f"P03 {value}", dict(min_scale=value), "INVALID_ARGUMENT", "min_scale")
    for value in (0, 2, 291, -1):
        yield row(f"dst {value}", dict(dst_type=value), "UNSUPPORTED", "dst_type")
    yield row("dst max", dict(dst_type_max=1.0), "UNSUPPORTED", "dst_type_max")
    yield row("dst max nan", dict(dst_type_max=float("nan")), {"UNSUPPORTED", "INVALID_ARGUMENT"}, "dst_type_max")
    yield row("rank", dict(x=lambda v: v[0, 0].copy()), "INVALID_SHAPE", "x")

    for name, tables in (("interleave", ("cos", "sin")), ("rotary", ("r1", "r2"))):
        row = rows_of(name)
        odd = {n: lambda v: v[..., :7].copy() for n in ("x", *tables)}
        yield row("odd", odd, "INVALID_SHAPE", "x", says="even")
        for t in tables:
            yield row(f"width {t}", {t: lambda v: v[..., :1].copy()}, "INVALID_SHAPE", t)
            yield row(f"tokens {t}", {t: lambda v: v[:, :, :2].copy()}, "INVALID_SHAPE", t)
            yield row(f"half {t}", {t: lambda v: v.astype(np.float16)}, "INVALID_DTYPE", t)
    row = rows_of("interleave")
    yield row("heads of cos", dict(cos=lambda v: np.repeat(v, 3, 1)), "INVALID_SHAPE", "cos")
    yield row("batch of cos", dict(cos=lambda v: v[:1].copy()), "INVALID_SHAPE", "cos")

    row = rows_of("pack")
    yield row("tiles", dict(scales=lambda v: np.ones((3, 4, 3), F)), "INVALID_SHAPE", {"scales", "codes"})
    yield row("no tiles", dict(scales=lambda v: v[..., :0].copy()), "INVALID_SHAPE", "scales")
    yield row("no codes", dict(codes=lambda v: v[..., :0].copy()), "INVALID_SHAPE", "codes")
    row = rows_of("unpack")
    for size in (0, -1, 3, INT64_MIN, 2**62, 2**63 - 1):
        yield row(f"tile {size}", dict(tile_size=size), EITHER, {"tile_size", "rows"})
    for width in (-1, 18, INT64_MIN, 2**62, 2**63 - 1):
        yield row(f"rope {width}", dict(rope_head_dim=width), EITHER, {"rope_head_dim", "rows"})


def dense_rows():
    """fused_infer_attention_score_v2.md 7."""
    row, mode = rows_of("fia"), "sparse_mode"
    query, kv = "actual_seq_qlen", "actual_seq_kvlen"
    yield row("S-2", dict(input_layout="SBH"), "INVALID_ARGUMENT", "input_layout", says=("SBH", "BNSD_BSND"))
    yield row("S-3", dict(input_layout="BSH"), "INVALID_SHAPE", {"query", "key"}, says="rank")
    for count in (0, -1, 3, 5, 2**62):
        yield row(f"S-5 {count}", dict(num_query_heads=count), EITHER, {"num_query_heads", "query"})
    for count in (-1, 3, 4, 2**62, INT64_MIN):
        yield row(f"S-6 {count}", dict(num_key_value_heads=count), EITHER, {"num_key_value_heads", "key"})
    yield row("S-10", dict(value=lambda v: v[:, :8].copy()), "INVALID_SHAPE", {"key", "value"})
    yield row("S-9", dict(key=lambda v: v[..., :8].copy()), "INVALID_SHAPE", {"key", "query"})
    half = lambda v: v.astype(np.float16)
    yield row("S-13", dict(key=half, value=half), "INVALID_DTYPE", {"key", "query"})
    for rope in ("query_rope", "key_rope"):
        yield row(f"S-15 {rope}", {rope: None}, "INVALID_ARGUMENT", {"query_rope", "key_rope"})
        yield row(f"S-15 {rope} half", {rope: half}, "INVALID_DTYPE", rope)
    for values, at in (([4, 2], "[0]"), ([3, -1], "[1]"), ([3, INT32_MAX], "[1]")):
        yield row(f"S-27 query {values}", {query: values}, "INVALID_SEQLEN", query, at)
    for values, at in (([9, 10], "[1]"), ([-1, 9], "[0]"), ([9, 2**62], "[1]"), ([9, INT64_MIN], "[1]")):
        yield row(f"S-27 key {values}", {kv: values}, "INVALID_SEQLEN", kv, at)
    yield row("S-27 none", {kv: []}, {"INVALID_SEQLEN", "INVALID_ARGUMENT"}, kv)
    for value in (-1, 5, 6, 7, 8, 2**40):
        yield row(f"S-30 {value}", {mode: value}, "INVALID_ARGUMENT", mode, says="0")
    yield row("S-30 9", {mode: 9}, "UNSUPPORTED", mode)
    yield row("S-31 1", {mode: 1, "atten_mask": None}, EITHER, {"atten_mask", mode})
    for value in (2, 3, 4):
        yield row(f"P05 S-31 {value}", {mode: value}, "INVALID_SHAPE", "atten_mask", says="2048")
    for shape in ((2, 1, 2, 9), (2, 1, 3, 8), (3, 1, 3, 9), (2, 4, 3, 9), (2, 9), (1, 1, 1, 9)):
        mask = dict(atten_mask=np.zeros(shape, np.uint8))
        yield row(f"P05 S-32 {shape}", mask, "INVALID_SHAPE", "atten_mask", says="has shape")
    for dtype in (np.int32, F, BF16, np.float16):
        mask = dict(atten_mask=np.zeros((2, 1, 3, 9), dtype))
        yield row(f"S-33 {np.dtype(dtype)}", mask, "INVALID_DTYPE", "atten_mask")
    for shape in ((2, 4, 2, 9), (2, 4, 3, 8), (3, 4, 3, 9), (2, 2, 3, 9), (4, 3, 9)):
        yield row(f"P05 S-38 {shape}", dict(pse_shift=np.zeros(shape, BF16)), "INVALID_SHAPE", "pse_shift")
    yield row("S-38 dtype", dict(pse_shift=half), "INVALID_DTYPE", "pse_shift")
    band = dict(pre_tokens=-3, next_tokens=2)
    yield row("S-34", band, "INVALID_ARGUMENT", {"pre_tokens", "next_tokens"})
    for value in (-1, 4, 2**40):
        yield row(f"S-63 {value}", dict(inner_precise=value), "INVALID_ARGUMENT", "inner_precise")
    for value in NUMBERS:
        yield row(f"S-69 {value}", dict(softmax_scale=value), "INVALID_ARGUMENT", "softmax_scale")
    for name in ("key", "value", "query"):
        quant = f"{name}_quant_mode"
        for value in (-1, 1, 3, 9, 2**40):
            yield row(f"S-50 {quant} {value}", {quant: value}, "INVALID_ARGUMENT", {quant, "key_quant_mode"})
        if name != "query":
            yield row(f"S-50 {quant} reserved", {quant: 6}, "UNSUPPORTED", quant, says="reserved")
    one = np.ones((2, 16), F)
    for scale in ("dequant_scale_key", "dequant_offset_value", "dequant_scale_query"):
        yield row(f"T17 {scale}", {scale: one}, "INVALID_ARGUMENT", scale)
    yield row("S-58", dict(quant_offset_out=np.ones(1, F)), "INVALID_SHAPE", {"quant_offset_out", "quant_scale_out"})
    yield row("S-64", dict(dequant_scale_key_rope=one), "UNSUPPORTED", "dequant_scale_key_rope", says="reserved")
    paged = dict(block_table=np.zeros((2, 3), np.int32), block_size=9)  # key [Bn, Nk, bs, D] has nine heads
    yield row("2.3", paged, "INVALID_SHAPE", "num_key_value_heads", says="9")

    row, pages = rows_of("fia pages"), "block_table"
    for lengths in (query, kv):
        yield row(f"S-24 {lengths}", {lengths: None}, "INVALID_ARGUMENT", lengths, says="is missing")
    for values, at in (([2, 1], None), ([-1, 4], "[0]"), ([1, 5], "[1]")):
        yield row(f"S-25 query {values}", {query: values}, "INVALID_SEQLEN", query, at)
    for values, at in (([5, 13], "[1]"), ([-1, 9], "[0]"), ([5, 2**40], "[1]")):
        yield row(f"S06 {values}", {kv: values}, "INVALID_SEQLEN", kv, at)
    for values in ([5], [5, 9, 0]):
        yield row(f"S07 {len(values)}", {kv: values}, "INVALID_SEQLEN", kv)
    yield row("B01", set_at(pages, (1, 2), -1), "INVALID_BLOCK", pages, "[1][2]", says=("is -1", "0..4"))
    yield row("B02", set_at(pages, (0, 1), 5), "INVALID_BLOCK", pages, "[0][1]", says="is 5")
    yield row("B01 min", set_at(pages, (0, 0), INT32_MIN), "INVALID_BLOCK", pages, "[0][0]")
    yield row("B02 max", set_at(pages, (1, 0), INT32_MAX), "INVALID_BLOCK", pages, "[1][0]")
    two = lambda a: (set_at(pages, (1, 0), 9)(a), set_at(pages, (0, 1), 9)(a))
    yield row("B02 lowest", two, "INVALID_BLOCK", pages, "[0][1]")
    yield row("B04", {pages: lambda v: v[:, :2].copy()}, "INVALID_SEQLEN", kv, "[1]")
    for size in (0, -1, 3, 8, 2**62, INT64_MIN):
        yield row(f"B07 {size}", dict(block_size=size), {"INVALID_SHAPE", "INVALID_ARGUMENT"}, {"block_size", "key"})
    yield row("B09", {pages: lambda v: v[:1].copy()}, "INVALID_SHAPE", pages)
    yield row("B09 rank", {pages: lambda v: v.reshape(-1)}, "INVALID_SHAPE", pages)
    for scale in ("dequant_scale_key", "dequant_scale_value"):
        yield row(f"S-49 {scale}", {scale: None}, "INVALID_ARGUMENT", {"dequant_scale_key", "dequant_scale_value"})
    for offset in ("dequant_offset_key", "dequant_offset_value"):
        yield row(f"S-50 {offset}", {offset: None}, "INVALID_ARGUMENT", {"dequant_offset_key", "dequant_offset_value"})
        yield row(f"S-55 {offset}", {offset: half}, "INVALID_DTYPE", offset)
    for value in (-1, 9, 2**40):
        both_modes = dict(key_quant_mode=value, value_quant_mode=value)
        yield row(f"S-51 {value}", both_modes, "INVALID_ARGUMENT", "key_quant_mode", says="0..5")
    yield row("S-51 pair", dict(key_quant_mode=1), "INVALID_ARGUMENT", {"key_quant_mode", "value_quant_mode"})
    for value in (2, 3, 4, 5):
        both_modes = dict(key_quant_mode=value, value_quant_mode=value)
        yield row(f"S-52 {value}", both_modes, "INVALID_SHAPE", "dequant_scale_key")
    yield row("S-59", dict(quant_scale_out=np.ones(63, F)), "INVALID_SHAPE", "quant_scale_out")
    yield row("S-39", dict(pse_shift=np.zeros((2, 4, 4, 16), BF16)), "INVALID_ARGUMENT", "pse_shift")
    yield row("S-29", {mode: 1}, "INVALID_ARGUMENT", {mode, "atten_mask"})
    mask = {mode: 0, "atten_mask": np.zeros((1, 4, 16), np.uint8)}
    yield row("S-29 mask", mask, "INVALID_ARGUMENT", {mode, "atten_mask"})


def new_rows():
    yield from sparse_rows()
    yield from prolog_rows()
    yield from row_operator_rows()
    yield from dense_rows()


GROUPS = grouped(new_rows())


@both
@one_group(GROUPS)
def test_refused(group, impl):
    check_rows(GROUPS[group], impl)


# ---- strict


def limit(call, id, change, parameter, status="UNSUPPORTED"):
    says = "[strict: Atlas A2/A3]" if status == "UNSUPPORTED" else ()
    return Row(f"strict {id}", f"{call} strict", change, status, parameter, None, says)


def nz(k, n, dtype):
    c0 = 32 // np.dtype(dtype).itemsize
    return np.zeros((-(-n // c0), -(-k // 16), 16, c0), dtype)


def strict_rows():
    int8 = np.int8
    for name in ("v3", "v3 tiles"):
        plain = dict(weight_dq=(1024, 1536), weight_uq_qr=(1536, 192), weight_dkv_kr=(1024, 576))
        for weight, shape in plain.items():
            yield limit(name, f"V11 {weight}", {weight: np.zeros(shape, int8)}, weight)
        hidden = dict(token_x=lambda v: v[:, :1000].copy(), weight_dq=nz(1000, 1536, int8))
        yield limit(name, "V9 He", hidden | dict(weight_dkv_kr=nz(1000, 576, int8)), "token_x")
        heads = dict(weight_uk=np.zeros((3, 128, 512), BF16), weight_uq_qr=nz(1536, 3 * 192, int8))
        yield limit(name, "V9 N", heads, "weight_uk")
        nope = dict(weight_uk=np.zeros((1, 64, 512), BF16), weight_uq_qr=nz(1536, 128, int8))
        yield limit(name, "V9 D", nope, "weight_uk")
        blocks = lambda v: np.zeros((v.shape[0], 20, *v.shape[2:]), v.dtype)
        pages = dict(kv_cache=blocks) | (dict(kr_cache=blocks) if name == "v3" else {})
        yield limit(name, "V9 block_size", pages, "kv_cache")
        for scale in ("dequant_scale_x", "dequant_scale_w_dq"):
            yield limit(name, f"V13 {scale}", {scale: lambda v: v.reshape(-1)}, scale, "INVALID_SHAPE")
        absent = dict(smooth_scales_cq=np.zeros((1, 0), F))
        yield limit(name, "T5", absent, "smooth_scales_cq", {"INVALID_SHAPE", "INVALID_ARGUMENT"})
    per_token = dict(quant_scale_ckv=lambda v: v.reshape(1, 1))
    yield limit("v3", "T6", per_token, "quant_scale_ckv", "INVALID_SHAPE")
    yield limit("v3 tiles", "T1", dict(k_nope_clip_alpha=None), "k_nope_clip_alpha", "INVALID_ARGUMENT")
    yield limit("v3 tiles", "T2", dict(quant_scale_ckv=np.ones((1, 512), F)), "quant_scale_ckv", "INVALID_ARGUMENT")
    yield limit("v3 tiles", "T3 none", dict(kr_cache=None), "kr_cache", "INVALID_ARGUMENT")
    yield limit("v3 tiles", "T3 int8", dict(kr_cache=np.zeros(0, int8)), "kr_cache", "INVALID_DTYPE")
    same = lambda a: a.update(kr_cache=a["kv_cache"])
    yield limit("v3 tiles", "A03", same, {"kr_cache", "kv_cache"}, {"ALIASED", "INVALID_DTYPE", "INVALID_SHAPE"})
    tiles = dict(tile_size=64, kv_cache=lambda v: np.zeros((*v.shape[:-1], 672), int8))
    yield limit("v3 tiles", "V18", tiles, "tile_size")
    hidden = dict(token_x=lambda v: v[:, :1024].copy(), weight_dq=nz(1024, 1536, int8))
    yield limit("v2", "11 He", hidden | dict(weight_dkv_kr=nz(1024, 576, int8)), "token_x")
    pages = lambda v: np.zeros((v.shape[0], 32, *v.shape[2:]), v.dtype)
    yield limit("v2", "11 block_size", dict(kv_cache=pages, kr_cache=pages), "kv_cache")
    yield limit("v2", "T6", dict(quant_scale_ckv=np.ones(1, F)), "quant_scale_ckv", "INVALID_SHAPE")

    for name in ("sfa", "kvsfa"):
        lists = np.zeros((4, 1, 3), np.int32)
        late = dict(sparse_indices=lists, actual_seq_lengths_kv=i32(1, 9), actual_seq_lengths_query=i32(1, 4))
        yield limit(name, "N16", late, "sparse_indices")
        yield limit(name, "I01 mask", dict(index_check="mask"), "index_check")
        yield limit(name, "18", dict(sinks=np.zeros(2, F)), "sinks")
        wide = {"query": lambda v: np.concatenate([v, v[:, :1]], 1)}
        wide |= {"query_rope": wide["query"]} if name == "sfa" else {}
        yield limit(name, "10", wide | dict(attention_out=np.zeros((4, 3, 512), BF16)), "query")
        tall = lambda v, n: np.zeros((v.shape[0], n, *v.shape[2:]), v.dtype)
        caches = ("key", "value", "key_rope")[: 3 if name == "sfa" else 2]
        for size in (24, 8, 1040):
            paged = {k: lambda v, size=size: tall(v, size) for k in caches}
            yield limit(name, f"13 {size}", paged, {"key", "block_size"})
        yield limit(name, "folded", dict(sparse_indices=lambda v: v[:, 0].copy()), "sparse_indices", "INVALID_SHAPE")
        sizes = (256,) if name == "sfa" else (32, 3)
        for size in sizes:
            paged = {k: lambda v: tall(v, 768) for k in caches}
            yield limit(name, f"12 {size}", paged | dict(sparse_block_size=size), "sparse_block_size")
    apart = lambda v: np.repeat(v, 2, 0)[::2]
    for name in ("sfa", "fia"):
        yield Row("T12 pages", f"{name} strict", dict(key=apart), "INVALID_STRIDE", "key", says="[strict: Atlas A2/A3]")
    yield limit("sfa", "17", dict(return_softmax_lse=True), "return_softmax_lse")
    two_tiles = lambda v: v[..., :648].copy()
    yield limit("kvsfa", "8", dict(tile_size=256, key=two_tiles, value=two_tiles), "tile_size")
    half = lambda v: v[..., :256].copy()
    yield limit("sfa", "9 Dv", dict(query=half, key=half, value=half, attention_out=half), "query")
    half = lambda v: v[..., :32].copy()
    yield limit("sfa", "9 Dr", dict(query_rope=half, key_rope=half), "query_rope")

    yield limit("block quant", "columns", dict(col_block_size=64, scale=np.zeros((3, 4), F)), "col_block_size")
    half = {n: lambda v: v[..., :32].copy() for n in ("x", "cos", "sin", "y")}
    yield limit("interleave", "Dr", half, "x")
    wide = {n: np.zeros((1, 1, 1, 896), BF16) for n in ("x", "r1", "r2", "y")}
    yield limit("rotary", "width", wide, "x")
    many = {n: np.zeros((1000, 1, 1, 2), BF16) for n in ("x", "r1", "r2", "y")}
    yield limit("rotary", "B", many, "x")

    for layout in ("NTD", "NSD", "BSND_BNSD", "BSH_BNSD"):
        yield limit("fia", f"S-2 {layout}", dict(input_layout=layout), "input_layout")
    single = {n: lambda v: v.astype(F) for n in ("query", "key", "value", "pse_shift")}
    single["attention_out"] = single["query"]
    yield limit("fia", "S-66", single, "query", "INVALID_DTYPE")
    odd = {n: lambda v: v[..., :24].copy() for n in ("query", "key", "value", "attention_out")}
    yield limit("fia", "S-21", odd, {"query", "key"}, "INVALID_SHAPE")
    yield limit("fia", "S-31", dict(sparse_mode=3, atten_mask=None), "atten_mask", "INVALID_SHAPE")
    band = dict(pre_tokens=-9, next_tokens=20)
    yield limit("fia", "S-35", band, {"pre_tokens", "next_tokens"}, "INVALID_ARGUMENT")


STRICT_GROUPS = grouped(strict_rows())


@both
@one_group(STRICT_GROUPS)
def test_refused_in_strict(group, impl):
    check_rows(STRICT_GROUPS[group], impl)


# ---- two things wrong at once: the first of the validation table is the answer

negative = lambda v: v - 100
taller = lambda v: np.zeros((v.shape[0], 20, *v.shape[2:]), v.dtype)
SPARSE_TABLE = (
    ("1", dict(sparse_indices=None), "INVALID_ARGUMENT", "sparse_indices"),
    ("2", dict(attention_mode=0), "INVALID_ARGUMENT", "attention_mode"),
    ("3", dict(layout_query="BNSD"), "INVALID_ARGUMENT", "layout_query"),
    ("4", dict(sparse_indices=lambda v: v[:3].copy()), "INVALID_SHAPE", "sparse_indices"),
    ("5", dict(block_table=lambda v: v.astype(np.int64)), "INVALID_DTYPE", "block_table"),
    ("6", dict(value=lambda v: v[:4].copy()), "INVALID_SHAPE", "value"),
    ("11", dict(sparse_block_size=3), "INVALID_ARGUMENT", "sparse_block_size"),
    ("14", dict(sparse_mode=1), "INVALID_ARGUMENT", "sparse_mode"),
    ("15", dict(actual_seq_lengths_kv=i32(5, -1)), "INVALID_SEQLEN", "actual_seq_lengths_kv"),
    ("16", dict(sparse_indices=negative), "INVALID_INDEX", "sparse_indices"),
    ("18", dict(sinks=np.full(3, np.nan, F)), "INVALID_ARGUMENT", "sinks"),
    ("20", dict(query=spread), "INVALID_STRIDE", "query"),
)
ORDERED = {
    "sfa": table("sfa", *SPARSE_TABLE),
    "kvsfa": table(
        "kvsfa", *SPARSE_TABLE[:6], ("7", dict(tile_size=0), "INVALID_ARGUMENT", "tile_size"), *SPARSE_TABLE[6:]
    ),
    "v3": table(
        "v3",
        ("V1", dict(rmsnorm_gamma_ckv=None), "INVALID_ARGUMENT", "rmsnorm_gamma_ckv"),
        ("V2", dict(weight_quant_mode=6), "INVALID_ARGUMENT", "weight_quant_mode"),
        ("V4", dict(cache_mode="BNSD"), "INVALID_ARGUMENT", "cache_mode"),
        ("V6", dict(rope_sin=lambda v: v[0].copy()), "INVALID_SHAPE", "rope_sin"),
        ("V7", dict(rmsnorm_gamma_ckv=np.ones(31, BF16)), "INVALID_SHAPE", "rmsnorm_gamma_ckv"),
        ("V10", dict(rope_cos=lambda v: v.astype(np.float16)), "INVALID_DTYPE", "rope_cos"),
        ("V12", dict(dequant_scale_w_dq=None), "INVALID_ARGUMENT", "dequant_scale_w_dq"),
        ("V15", dict(cache_index=lambda v: v * 0 + 99), "INVALID_SLOT", "cache_index"),
        ("V20", dict(token_x=spread), "INVALID_STRIDE", "token_x"),
    ),
    "v3 strict": table(
        "v3 strict",
        ("V7", dict(rmsnorm_gamma_ckv=np.ones(511, BF16)), "INVALID_SHAPE", "rmsnorm_gamma_ckv"),
        ("V9", dict(kv_cache=taller, kr_cache=taller), "UNSUPPORTED", "kv_cache"),
        ("V10", dict(rope_cos=lambda v: v.astype(np.float16)), "INVALID_DTYPE", "rope_cos"),
        ("V11", dict(weight_dq=np.zeros((1024, 1536), np.int8)), "UNSUPPORTED", "weight_dq"),
        ("V12", dict(dequant_scale_w_dq=None), "INVALID_ARGUMENT", "dequant_scale_w_dq"),
        ("V13", dict(quant_scale_ckv=np.ones((1, 1), F)), "INVALID_SHAPE", "quant_scale_ckv"),
        ("V15", dict(cache_index=lambda v: v * 0 + 999), "INVALID_SLOT", "cache_index"),
        ("V20", dict(token_x=spread), "INVALID_STRIDE", "token_x"),
    ),
    "v2": table(
        "v2",
        ("V1", dict(rmsnorm_gamma_ckv=None), "INVALID_ARGUMENT", "rmsnorm_gamma_ckv"),
        ("V4", dict(cache_mode="TND"), "INVALID_ARGUMENT", "cache_mode"),
        ("V7", dict(rope_cos=lambda v: v[:3].copy()), "INVALID_SHAPE", "rope_cos"),
        ("V10", dict(rope_sin=lambda v: v.astype(np.float16)), "INVALID_DTYPE", "rope_sin"),
        ("V12", dict(quant_scale_ckr=None), "INVALID_ARGUMENT", "quant_scale_ckr"),
        ("V15", dict(cache_index=lambda v: v * 0 + 99), "INVALID_SLOT", "cache_index"),
        ("V20", dict(token_x=spread), "INVALID_STRIDE", "token_x"),
    ),
    "fia": table(
        "fia",
        ("S-1", dict(value=None), "INVALID_ARGUMENT", "value"),
        ("S-2", dict(input_layout="SBH"), "INVALID_ARGUMENT", "input_layout"),
        ("S-5", dict(num_query_heads=0), "INVALID_SHAPE", "num_query_heads"),
        ("S-10", dict(value=lambda v: v[:, :8].copy()), "INVALID_SHAPE", "value"),
        ("S-15", dict(key_rope=None), "INVALID_ARGUMENT", "key_rope"),
        ("S-27", dict(actual_seq_qlen=[4, 2]), "INVALID_SEQLEN", "actual_seq_qlen"),
        ("S-30", dict(sparse_mode=5), "INVALID_ARGUMENT", "sparse_mode"),
        ("S-32", dict(atten_mask=np.zeros((2, 1, 2, 9), np.uint8)), "INVALID_SHAPE", "atten_mask"),
        ("S-38", dict(pse_shift=lambda v: v[:, :3].copy()), "INVALID_SHAPE", "pse_shift"),
        ("S-63", dict(inner_precise=7), "INVALID_ARGUMENT", "inner_precise"),
        ("S-65", dict(query=spread), "INVALID_STRIDE", "query"),
        ("S-69", dict(softmax_scale=float("nan")), "INVALID_ARGUMENT", "softmax_scale"),
    ),
    "fia pages": table(
        "fia pages",
        ("S-24", dict(actual_seq_kvlen=None), "INVALID_ARGUMENT", "actual_seq_kvlen"),
        ("S-40", dict(block_table=lambda v: v.astype(np.int64)), "INVALID_DTYPE", "block_table"),  # bounds the lengths
        ("S-25", dict(actual_seq_qlen=[2, 1]), "INVALID_SEQLEN", "actual_seq_qlen"),
        ("S-27", dict(actual_seq_kvlen=[5, 13]), "INVALID_SEQLEN", "actual_seq_kvlen"),
        ("S-29", dict(sparse_mode=1), "INVALID_ARGUMENT", "sparse_mode"),
        ("S-46", dict(block_table=lambda v: v + 9), "INVALID_BLOCK", "block_table"),
        ("S-50", dict(dequant_offset_key=None), "INVALID_ARGUMENT", {"dequant_offset_key", "dequant_offset_value"}),
        ("S-59", dict(quant_scale_out=np.ones(63, F)), "INVALID_SHAPE", "quant_scale_out"),
        ("S-63", dict(inner_precise=7), "INVALID_ARGUMENT", "inner_precise"),
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


def changed(name, impl, **new):
    """Results with arguments replaced; a function gets the good one."""
    args = CALLS[name].make()
    args.update({k: v(args[k]) if callable(v) else v for k, v in new.items()})
    return run(name, args, impl)


def nothing(results, tokens, sinks):
    """Rows of a token that attends to nothing."""
    assert not results["attention_out"][tokens].astype(F).any()
    most, total = (results[n].reshape(4, 3)[tokens] for n in ("softmax_max", "softmax_sum"))
    assert (most == (0 if sinks is None else sinks)).all() and (total == (sinks is not None)).all()


@both
@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("name", ["sfa", "kvsfa"])
def test_sparse_corners(name, sinks, impl):
    sinks = CALLS[name].make()["sinks"] if sinks else None
    pick = lambda **new: changed(name, impl, sinks=sinks, **new)
    want = pick()
    assert_rows = lambda got, tokens: [
        assert_same(got[n].reshape(4, 3, -1)[tokens], want[n].reshape(4, 3, -1)[tokens], n) for n in want
    ]
    fewer = pick(actual_seq_lengths_query=i32(2, 3))  # S04: the last row is padding, the third sees one key more
    assert not any(fewer[n].reshape(4, -1)[3].astype(F).any() for n in fewer)
    assert_rows(fewer, slice(0, 2))
    # S08, I09, B03
    empty = pick(actual_seq_lengths_kv=i32(0, 9), sparse_indices=garbage((0, 1)), block_table=garbage(0))
    nothing(empty, slice(0, 2), sinks)
    assert_rows(empty, slice(2, 4))
    late = lists({0: INT32_MIN, 1: [0, -1, INT32_MIN]})
    late = pick(actual_seq_lengths_kv=i32(1, 9), sparse_indices=late)  # S09
    nothing(late, slice(0, 1), sinks)
    assert_rows(late, slice(2, 4))
    second = dict(actual_seq_lengths_query=i32(0, 4), block_table=i32([9, 9, 9], [4, 3, 2]))
    assert_rows(pick(sparse_indices=lists({1: [2, 1, 0]}), **second), slice(2, 4))  # S11: an empty first sequence
    assert_rows(pick(block_table=lambda v: np.where(v < 0, INT32_MAX, v)), slice(0, 4))  # B03
    shared = pick(block_table=lambda v: v * 0 + i32([4, 3, 2]))  # B05
    assert_rows(shared, slice(2, 4))
    listed = lambda token, *entries, **new: pick(sparse_indices=lists({token: entries}), **new)
    assert_all_same(listed(2, 7, -1, INT32_MIN), listed(2, 7, -1, -1), "I02: nothing behind -1 is read")
    nothing(listed(1, -1, -1, -1), slice(1, 2), sinks)  # I07
    visible = listed(0, 0, 1, -1)
    assert_all_same(listed(0, 0, 4, 1), visible, "I05: the first row sees four keys")
    assert_all_same(listed(0, 0, 99, 1, index_check="mask"), visible, "I01")
    twice, once = listed(3, 5, 5, 5), listed(3, 5, -1, -1)  # I04
    if sinks is None:
        assert_same(twice["softmax_sum"].reshape(4, 3)[3], 3 * once["softmax_sum"].reshape(4, 3)[3])
        assert_same(twice["attention_out"][3], once["attention_out"][3])


def garbage(rows):
    def change(v):
        v = v.copy()
        v[list(rows) if isinstance(rows, tuple) else rows] = INT32_MIN
        return v

    return change


def lists(new):
    """The lists with those of some tokens replaced."""

    def change(v):
        v = v.copy()
        for token, entries in new.items():
            v[token] = entries
        return v

    return change


@both
@pytest.mark.parametrize("name", ["sfa", "kvsfa", "fia pages"])
def test_nothing_unused_reaches_a_result(name, impl):
    """Q11: every byte of the pages that no sequence has, and of the tails of the last pages, set."""
    want = run(name, CALLS[name].make(), impl)
    args = CALLS[name].make()
    used = np.zeros((5, 4), bool)
    for pages, length in zip(args["block_table"], (5, 9)):
        for i in range(length):
            used[pages[i // 4], i % 4] = True
    for tensor in ("key", "value", "key_rope"):
        if tensor in args:
            args[tensor].view(np.uint8)[~used] = 0xFF
    assert_all_same(run(name, args, impl), want, "unused")


@both
@pytest.mark.parametrize("name", SLOTTED)
def test_cache_slots(name, impl):
    """C02 to C05."""
    call = CALLS[name]
    before = call.make()
    mode = before.get("cache_mode", "PA_BSND")
    caches = [w for w in call.written if "cache" in w]
    old = {w: logical_rows(before[w.removesuffix("_out")], mode) for w in caches}
    run_with = lambda slots, **more: run(name, before_with(call, {"cache_index": np.array(slots), **more}), impl)
    rows = lambda results, cache: logical_rows(results[cache], mode)
    plain, skipped, twice = run_with([0, 1, 2, 3]), run_with([0, -1, INT64_MIN, 3]), run_with([7, 9, 7, 9])
    kept = [1, 2, *range(4, 15)]
    for cache in caches:
        assert_same(rows(skipped, cache)[[0, 3]], rows(plain, cache)[[0, 3]], "C02")
        assert_same(rows(skipped, cache)[kept], old[cache][kept], "C03")
        assert_same(rows(twice, cache)[[7, 9]], rows(plain, cache)[[2, 3]], "C04")
    paged = [n for n, v in before.items() if isinstance(v, np.ndarray) and v.ndim == 4]
    none = run_with([INT64_MIN, 2**62, -9, 5], **{n: before[n][:0] for n in paged})
    for out in call.written:
        if out not in caches:
            for other in (skipped, twice, none):
                assert_same(other[out], plain[out], out)


@both
def test_pages_of_a_prolog(impl):
    """C02, C04 of whole pages: a skipped page, a page of two sequences, entries behind the last page."""
    plain = changed("v3 blocks", impl, cache_index=np.array([0, 1, 2]))
    got = changed("v3 blocks", impl, cache_index=np.array([0, INT64_MIN, 0, 2**62]))
    old = CALLS["v3 blocks"].make()
    for cache in ("kv_cache", "kr_cache"):
        assert_same(got[cache][0, :2], plain[cache][2, :2], "the later sequence")
        assert_same(got[cache][0, 2:], plain[cache][0, 2:], "the earlier one")
        assert_same(got[cache][1:], old[cache][1:], "skipped")
    for out in ("query", "query_rope", "query_norm"):
        assert_same(got[out], plain[out])


@both
def test_one_buffer_as_both_caches(impl):
    """A03, and rows side by side that share no element (A04)."""
    want = run("v3 tiles", CALLS["v3 tiles"].make(), impl)
    args = CALLS["v3 tiles"].make()
    args["kr_cache"] = args["kv_cache"]
    assert_all_same(run("v3 tiles", args, impl), want, "A03")
    want, args = run("v3", CALLS["v3"].make(), impl), CALLS["v3"].make()
    buffer = np.zeros((3, 5, 1, 96), np.uint8)
    beside = dict(kv_cache=buffer[..., :32].view(np.int8), kr_cache=buffer[..., 32:].view(BF16))
    for cache, view in beside.items():
        view[...] = args[cache]
    assert_all_same(run("v3", args | beside, impl), want, "A04")


TOKENS = ("token_x", "rope_sin", "rope_cos", "dequant_scale_x", "cache_index")


@both
@pytest.mark.parametrize("name", ["v3", "v3 tiles", "v3 NZ", "v3 functional", "v2"])
def test_no_tokens(name, impl):
    call = CALLS[name]
    args = call.make()
    caches = {n: args[n].copy() for n in ("kv_cache", "kr_cache") if n in args}
    for tensor in (*TOKENS, *(w for w in call.written if "cache" not in w)):
        if tensor in args:
            args[tensor] = args[tensor][:0]
    operator(call.operator, impl)(**args)
    for cache, before in caches.items():
        assert_same(args[cache], before)
        if cache + "_out" in args:
            assert_same(args[cache + "_out"], before)


@both
def test_dense_corners(impl):
    plain = changed("fia", impl)
    ended = changed("fia", impl, actual_seq_kvlen=[9, 0])  # S08
    assert not ended["attention_out"][1].astype(F).any() and np.isposinf(ended["softmax_lse"][1]).all()
    assert_same(ended["attention_out"][0], plain["attention_out"][0])
    assert not plain["attention_out"][1, 2].astype(F).any() and np.isposinf(plain["softmax_lse"][1, :, 2]).all()
    pages = changed("fia pages", impl)
    fewer = changed("fia pages", impl, actual_seq_qlen=[1, 3])  # S04
    assert not fewer["attention_out"][3].any() and np.isposinf(fewer["softmax_lse"][3]).all()
    empty = dict(actual_seq_qlen=[0, 4], block_table=garbage(0), actual_seq_kvlen=[0, 9])
    first = changed("fia pages", impl, **empty)  # S11, B03
    assert_same(first["attention_out"][1:], pages["attention_out"][1:])
    late = changed("fia pages", impl, actual_seq_kvlen=[5, 1])  # S09: three rows, one key
    assert np.isposinf(late["softmax_lse"][1:3]).all() and np.isfinite(late["softmax_lse"][3]).all()
    shared = changed("fia pages", impl, block_table=lambda v: v * 0 + i32([4, 3, 2]))  # B05
    assert_same(shared["attention_out"][1:], pages["attention_out"][1:])
    hidden = np.ones((2, 1, 3, 9), np.uint8)
    assert not changed("fia", impl, atten_mask=hidden)["attention_out"].astype(F).any()
    unseen = CALLS["fia"].make()
    mask = unseen["atten_mask"].astype(bool)
    for n in ("key", "value", "key_rope"):  # positions that no row may see, and those behind the lengths
        at = mask.all(axis=(1, 2))
        at[1, 5:] = True
        unseen[n][at] = np.nan
    assert_all_same(run("fia", unseen, impl), plain, "Q11")


@both
def test_quantisation_corners(impl):
    """Q01 to Q08 where scales are made, and where they are given."""
    x = np.zeros((5, 8), F)
    x[1], x[2, 0], x[3, 3], x[4] = 1e-40, np.nan, np.inf, np.arange(8)
    x[2, 1] = 2
    y, scale = operator("dynamic_block_quant", impl)(x.astype(BF16), col_block_size=8)
    assert not y[:2].any() and not scale[:2].any()
    assert y[2, 0] == 0 and y[4, 7] == 127 and scale[4, 0] == F(7) * F(1 / F(127))
    assert_same(operator("dynamic_block_quant", impl)(x.astype(BF16), col_block_size=8)[0], y)
    given = operator("quantize", impl)
    scales = np.array([0, -0.0, np.nan, np.inf, -2, 1e-45, 1, 1], F)
    row = np.array([[5, 5, 5, 5, 5, 5, np.nan, -np.inf], [0, 0, 0, 0, 0, 0, -0.0, 1e30]], F)
    codes = given(row, scales, None, "qint8", axis=1)
    assert codes.tolist() == [[127, -128, 0, 0, -2, 127, 0, -128], [0, 0, 0, 0, 0, 0, 0, 127]]
    codes = given(row, scales, None, "qint8", axis=1, div_mode=False)
    assert codes.tolist() == [[0, 0, 0, 127, -10, 0, 0, -128], [0, 0, 0, 0, 0, 0, 0, 127]]


@both
@pytest.mark.parametrize("name", ["quantize", "quantize int4", "block quant", "interleave", "rotary", "pack", "unpack"])
def test_no_rows(name, impl):
    """T02: tensors without elements need no memory."""
    args = CALLS[name].make()
    for tensor, value in args.items():
        if isinstance(value, np.ndarray) and value.ndim > 1:
            args[tensor] = value[:0]
    result = operator(CALLS[name].operator, impl)(**args)
    assert all(r.size == 0 for r in (result if isinstance(result, tuple) else (result,)))
