# SPDX-License-Identifier: Apache-2.0
"""A small good call of every operator, with all its outputs given, for tests that break one thing at a time."""

import functools

import numpy as np

from . import cases
from .cases import BF16, F, codes, generator, uniform
from .mla_prolog_v3 import join_rows
from .mla_prolog_v3_cases import mla_prolog_v3


class Call:
    """`make()` -> fresh keyword arguments; `written`: outputs and caches; `optional`: tensors that may be absent."""

    def __init__(self, operator, make, written, optional=()):
        self.operator, self.make, self.written, self.optional = operator, make, written, set(optional)

    def tensors(self):
        return [name for name, value in self.make().items() if isinstance(value, np.ndarray)]


def _paged(quantised):
    rng = generator(11)
    i32 = lambda *v: np.array(v, np.int32)
    float_type = np.float16 if quantised else BF16
    args = dict(
        query=codes(rng, (5, 4, 16)) if quantised else uniform(rng, (5, 4, 16)),
        key=codes(rng, (6, 4, 1, 16)) if quantised else uniform(rng, (6, 4, 1, 16)),
        weights=uniform(rng, (5, 4), 1.0, float_type),
    )
    if quantised:
        args["query_dequant_scale"] = rng.random((5, 4)).astype(np.float16)
        args["key_dequant_scale"] = rng.random((6, 4, 1)).astype(np.float16)
    args.update(
        actual_seq_lengths_query=i32(2, 5),
        actual_seq_lengths_key=i32(9, 6),
        block_table=np.array([[0, 5, 2, -7], [4, 1, 2**31 - 1, -(2**31)]], np.int32),
        layout_query="TND",
        layout_key="PA_BSND",
        sparse_count=7,
        sparse_indices=np.full((5, 1, 7), 85, np.int32),
    )
    return args


def _values():
    args = _paged(False)
    return args | dict(return_value=True, sparse_values=np.full((5, 1, 7), 85, BF16))


def _dense(quantised):
    args = _paged(quantised)
    rng = generator(12)
    for name in ("query", "weights", "query_dequant_scale"):
        if name in args:
            args[name] = np.concatenate([args[name], args[name][:1]]).reshape(2, 3, *args[name].shape[1:])
    args["key"] = codes(rng, (2, 9, 1, 16)) if quantised else uniform(rng, (2, 9, 1, 16))
    if quantised:
        args["key_dequant_scale"] = rng.random((2, 9, 1)).astype(np.float16)
    del args["block_table"]
    return args | dict(
        layout_query="BSND",
        layout_key="BSND",
        actual_seq_lengths_query=np.array([2, 3], np.int32),
        sparse_indices=np.full((2, 3, 1, 7), 85, np.int32),
    )


def _attention(int8):
    rng = generator(13)
    return dict(
        query_nope=uniform(rng, (12, 16)),
        query_rope=uniform(rng, (12, 4)),
        key_nope_2d=codes(rng, (20, 16)) if int8 else uniform(rng, (20, 16)),
        key_rope_2d=uniform(rng, (20, 4)),
        k_nope_scales=rng.random((20, 4)).astype(F) if int8 else None,
        topk_indices=np.array([[0, 1, 2], [4, 3, 0], [7, 0, 1], [8, 2, 5]], np.int32),
        block_table=np.array([[0, 1, -1], [4, 3, 2]], np.int32),
        kv_act_seqs=np.array([5, 9], np.int32),
        b=2,
        s1=2,
        nq=3,
        softmax_scale=0.25,
        topk=3,
        block_size=4,
        attention_out=np.full((2, 2, 3, 16), 7, BF16),
    )


def _mla(quantised):
    given, caches = cases.mla_prolog(6, t=4, he=40, hcq=24, n=2, d=8, dr=8, latent=32, groups=2, quantised=quantised)
    if not quantised:
        del given["dequant_scale"]
    outs = dict(
        q_norm_out=np.full((4, 24), 7, np.int8 if quantised else BF16),
        query_nope_out=np.full((4, 2, 32), 7, BF16),
        query_rope_out=np.full((4, 2, 8), 7, BF16),
    )
    if quantised:
        outs["q_norm_scale_out"] = np.full((4, 1), 7, F)
    return given | caches | outs


_INDEX_OUTS = dict(q_int8=((4, 3, 16), np.int8), q_scale=((4, 3, 1), np.float16), weights=((4, 3), np.float16))


def _lip():
    given, caches = cases.indexer_prolog(5, t=4, he=40, hcq=24, n=3, di=16, dr=8)
    return given | caches | {name: np.full(shape, 7, dtype) for name, (shape, dtype) in _INDEX_OUTS.items()}


def _fused():
    args, index = _mla(True), _lip()
    keep = ("w_qb", "w_qb_scale", "wk", "w_proj", "ln_gamma_k", "ln_beta_k", "hadamard_q", "hadamard_k", *_INDEX_OUTS)
    args |= {name: index[name] for name in keep}
    args |= {"ip_k_cache": index["k_cache"], "ip_k_scale_cache": index["k_scale_cache"]}
    args["query_nope"], args["query_rope"] = args.pop("query_nope_out"), args.pop("query_rope_out")
    del args["q_norm_out"], args["q_norm_scale_out"]
    return args


def _dynamic(groups):
    rng = generator(14)
    args = dict(input=uniform(rng, (2, 3, 16)), smooth_scales=uniform(rng, 16))
    if groups:
        args |= dict(smooth_scales=uniform(rng, (2, 16)), group_index=np.array([2, 6], np.int32))
    return args | dict(y=np.full((2, 3, 16), 7, np.int8), scale=np.full((2, 3), 7, F))


_V3 = dict(he=40, hcq=24, n=2, d=8, dr=32, latent=32, tile=16)
_V3_OUTS = ("query", "query_rope", "dequant_scale_q_nope", "query_norm", "dequant_scale_q_norm")


def _v3(row, **more):
    """Every output that the row has is given."""
    given, before = mla_prolog_v3(21, row, **({"lengths": [4]} | _V3 | more))
    lead = given["token_x"].shape[:-1]
    t, outs = int(np.prod(lead)), dict(query_rope=np.full((*lead, 2, 32), 7, BF16))
    outs["query"] = np.full((*lead, 2, 32), 7, np.int8 if row == 6 else BF16)
    outs["query_norm"] = np.full((*lead, 24), 7, BF16 if row == 1 else np.int8)
    if row > 1:
        outs["dequant_scale_q_norm"] = np.full((t, 1), 7, F)
    if row == 6:
        outs["dequant_scale_q_nope"] = np.full((t, 2, 1), 7, F)
    caches = {name: value for name, value in before.items() if value.size}
    return given | caches | {n: outs[n] for n in _V3_OUTS if n in outs}


def _v2():
    args = _v3(3)
    for name in ("query_norm", "dequant_scale_q_norm", "query_norm_flag"):
        del args[name]
    return {name: value for name, value in args.items() if not name.endswith("_mode") or name == "cache_mode"}


def _functional():
    args = _v3(2)
    return args | {name + "_out": np.full_like(args[name], 7) for name in ("kv_cache", "kr_cache")}


def _sparse(packed):
    """Two sequences of 5 and 9 tokens in pages of 4, lists of three."""
    rng = generator(15)
    query = uniform(rng, (4, 3, 20))
    args = dict(query=query)
    if packed:
        rows = join_rows(codes(rng, (20, 16)), uniform(rng, (20, 4)), rng.random((20, 2)))
        args.update(key=rows.reshape(5, 4, 1, -1), key_quant_mode=2, value_quant_mode=2, tile_size=8, rope_head_dim=4)
    else:
        args.update(query=query[..., :16].copy(), query_rope=query[..., 16:].copy(), key=uniform(rng, (5, 4, 1, 16)))
        args["key_rope"] = uniform(rng, (5, 4, 1, 4))
    return args | dict(
        value=args["key"].copy(),
        sparse_indices=np.array([[0, 1, 2], [4, 3, 0], [7, 0, -1], [8, 2, 5]], np.int32)[:, None],
        scale_value=0.25,
        block_table=np.array([[0, 1, -1], [4, 3, 2]], np.int32),
        actual_seq_lengths_query=np.array([2, 4], np.int32),
        actual_seq_lengths_kv=np.array([5, 9], np.int32),
        layout_query="TND",
        layout_kv="PA_BSND",
        attention_mode=2,
        sinks=uniform(rng, 3, 1, F),
        return_softmax_lse=True,
        attention_out=np.full((4, 3, 16), 7, BF16),
        softmax_max=np.full((1, 4, 3), 7, F),
        softmax_sum=np.full((1, 4, 3), 7, F),
    )


def _quantize(div_mode):
    rng = generator(16)
    dtype = dict(dtype="quint4x2")
    if div_mode:
        dtype = dict(zero_points=rng.integers(-9, 9, 16).astype(np.int8), dtype="qint8")
    args = dict(input=uniform(rng, (5, 16), 9), scales=(rng.random(16) + 0.5).astype(BF16)) | dtype
    y = np.full((5, 16), 7, np.int8) if div_mode else np.full((5, 2), 7, np.int32)
    return args | dict(axis=-1, div_mode=div_mode, y=y)


def _block_quant():
    x = uniform(generator(17), (2, 3, 20), 9)
    return dict(x=x, col_block_size=8, y=np.full((2, 3, 20), 7, np.int8), scale=np.full((2, 3, 3), 7, F))


def _rope(first, second):
    rng = generator(18)
    args = {"x": uniform(rng, (2, 3, 5, 8)), first: uniform(rng, (2, 1, 5, 8)), second: uniform(rng, (2, 1, 5, 8))}
    return args | dict(y=np.full((2, 3, 5, 8), 7, BF16))


def _kv_rows(pack):
    rng = generator(19)
    parts = dict(codes=codes(rng, (3, 4, 16)), rope=uniform(rng, (3, 4, 6)), scales=rng.random((3, 4, 2)).astype(F))
    rows = join_rows(*(v.reshape(12, -1) for v in parts.values())).reshape(3, 4, -1)
    if pack:
        return parts | dict(rows=np.full_like(rows, 7))
    return dict(rows=rows, rope_head_dim=6, tile_size=8) | {name: np.full_like(v, 7) for name, v in parts.items()}


def _dense_attention(**more):
    """Two sequences, four query heads on two key heads, a full mask, a bias and lengths."""
    rng = generator(20)
    return dict(
        query=uniform(rng, (2, 3, 4, 16)),
        key=uniform(rng, (2, 9, 2, 16)),
        value=uniform(rng, (2, 9, 2, 12)),
        query_rope=uniform(rng, (2, 3, 4, 6)),
        key_rope=uniform(rng, (2, 9, 2, 6)),
        pse_shift=uniform(rng, (2, 4, 3, 9)),
        atten_mask=rng.integers(0, 2, (2, 1, 3, 9)).astype(np.uint8),
        actual_seq_qlen=[3, 2],
        actual_seq_kvlen=[9, 5],
        num_query_heads=4,
        num_key_value_heads=2,
        softmax_scale=0.25,
        input_layout="BSND",
        return_softmax_lse=True,
        attention_out=np.full((2, 3, 4, 12), 7, BF16),
        softmax_lse=np.full((2, 4, 3, 1), 7, F),
    )


def _dense_pages():
    """int8 keys in pages, folded queries, int8 results."""
    rng = generator(21)
    scale = lambda: (rng.random((2, 16)) + 0.5).astype(F)
    return dict(
        query=uniform(rng, (4, 4, 16)),
        key=codes(rng, (5, 4, 32)),
        value=codes(rng, (5, 4, 32)),
        actual_seq_qlen=[1, 4],
        actual_seq_kvlen=[5, 9],
        block_table=np.array([[0, 1, -1], [4, 3, 2]], np.int32),
        dequant_scale_key=scale(),
        dequant_offset_key=scale(),
        dequant_scale_value=scale(),
        dequant_offset_value=scale(),
        quant_scale_out=np.full((4, 16), 20, F),
        num_query_heads=4,
        num_key_value_heads=2,
        softmax_scale=0.25,
        input_layout="TND",
        sparse_mode=3,
        block_size=4,
        return_softmax_lse=True,
        attention_out=np.full((4, 4, 16), 7, np.int8),
        softmax_lse=np.full((4, 4, 1), 7, F),
    )


def _norm(*names):
    rng = generator(22)
    args = {name: uniform(rng, (2, 3, 16)) for name in names if name != "beta"} | dict(gamma=uniform(rng, 16))
    if "beta" in names:
        args["beta"] = uniform(rng, 16)
    args |= dict(y=np.full((2, 3, 16), 7, BF16), rstd=np.full((2, 3, 1), 7, F))
    return args | (dict(x=np.full((2, 3, 16), 7, BF16)) if "x2" in names else {})


def _kv_cache(mode, codes_of=(), functional=False, b=2, s=3, out=True):
    """Page size 4; slots in another order, one skipped."""
    rng, latent, rope = generator(24), 32, 32
    lead = (b, 1, 5) if mode == "Norm" else (6, 4, 1)
    kind = lambda name: np.int8 if name in codes_of else BF16
    args = dict(
        kv=uniform(rng, (b, 1, s, latent + rope)),
        gamma=uniform(rng, latent),
        cos=uniform(rng, (b, 1, s, rope)),
        sin=uniform(rng, (b, 1, s, rope)),
        index=np.array([[4, -1, 0], [2, 3, 1]] if mode == "Norm" else [20, 4] if "BLK" in mode else [7, -1, 0, 9, 8, 23]),
        k_cache=np.full((*lead, rope), 7, kind("k_cache")),
        ckv_cache=np.full((*lead, latent), 7, kind("ckv_cache")),
        cache_mode=mode,
        is_output_kv=out,
    )
    if "k_cache" in codes_of:
        args["k_rope_scale"] = (rng.random(rope) * 50).astype(F)
    if "ckv_cache" in codes_of:
        args["c_kv_scale"] = (rng.random(latent) * 50).astype(F)
    if functional:
        args |= {name + "_out": np.full_like(args[name], 5) for name in ("k_cache", "ckv_cache")}
    return args | dict(
        k_rope=np.full((b, 1, s, rope) if out else 0, 7, BF16), c_kv=np.full((b, 1, s, latent) if out else 0, 7, BF16)
    )


def _quant_matmul():
    rng = generator(24)
    args = dict(x1=codes(rng, (5, 24)), x2=codes(rng, (24, 16)), scale=rng.random(16).astype(F), output_dtype="int8")
    args |= dict(offset=uniform(rng, 16, dtype=F), bias=np.arange(16, dtype=np.int32))
    return args | dict(y=np.full((5, 16), 7, np.int8))


def _matmul_by_tokens():
    rng = generator(25)
    args = dict(x1=codes(rng, (5, 24)), x2=codes(rng, (24, 16)), scale=rng.random(16).astype(F), output_dtype="bfloat16")
    return args | dict(pertoken_scale=rng.random(5).astype(F), y=np.full((5, 16), 7, BF16))


def _batchmatmul():
    rng = generator(26)
    args = dict(input=uniform(rng, (3, 5, 24)), weight=uniform(rng, (3, 24, 16)))
    return args | dict(y=np.full((5, 3, 16), 7, BF16))


def _batch_matmul_transpose():
    rng = generator(27)
    args = dict(tensor_a=uniform(rng, (5, 3, 24)), tensor_b=uniform(rng, (3, 24, 16)))
    return args | dict(tensor_c=np.full((5, 3, 16), 7, BF16))


def _attention_update():
    rng = generator(25)
    return dict(
        lse=[uniform(rng, 6, 5, F) for _ in range(3)],
        local_out=[uniform(rng, (6, 16)) for _ in range(3)],
        update_type=1,
        out=np.full((6, 16), 7, BF16),
        lse_out=np.full(6, 7, F),
    )


def _swiglu():
    return dict(self=uniform(generator(23), (2, 3, 16)), y=np.full((2, 3, 8), 7, BF16))


def _scatter_nd(functional):
    rng = generator(26)
    args = dict(
        self=uniform(rng, (7, 3, 8)), indices=np.array([[2], [-1], [0], [6]], np.int64), updates=uniform(rng, (4, 3, 8))
    )
    return args | (dict(out=np.full((7, 3, 8), 7, BF16)) if functional else {})


def _pages(rng):
    return dict(key_cache=uniform(rng, (3, 4, 2, 16)), value_cache=uniform(rng, (3, 4, 2, 16)))


def _scatter_pa(functional=False):
    rng = generator(27)
    args = dict(key=uniform(rng, (5, 2, 16)), value=uniform(rng, (5, 2, 16)), **_pages(rng))
    args |= dict(slot_mapping=np.array([3, -1, 11, 0, 6], np.int32), cache_mode="Norm")
    outs = ("key_cache_out", "value_cache_out") if functional else ()
    return args | {name: np.full((3, 4, 2, 16), 7, BF16) for name in outs}


def _gather_pa(functional=False):
    args = dict(
        **_pages(generator(28)),
        block_tables=np.array([[2, 0], [1, -1]], np.int32),
        seq_lens=np.array([5, 2], np.int32),
        key=np.full((8, 2, 16), 7, BF16),
        value=np.full((8, 2, 16), 7, BF16),
        seq_offset=np.array([1, 0], np.int32),
    )
    outs = ("key_out", "value_out") if functional else ()
    return args | {name: np.full((8, 2, 16), 7, BF16) for name in outs}


def _runs():
    return dict(group_len=np.full(5, 7, np.int32), group_key_idx=np.full(5, 7, np.int32),
                group_key_cache_idx=np.full(5, 7, np.int32))  # fmt: skip


def _store_metadata():
    return dict(slot_mapping=np.array([2, 3, 4, -1, 9], np.int32), **_runs(), block_size=4)


def _store():
    rng = generator(29)
    runs = {name: np.array(v, np.int32) for name, v in zip(_runs(), ([2, 1, 1, 0, 0], [0, 2, 4, 0, 0], [2, 4, 9, 0, 0]))}
    return dict(key_in=uniform(rng, (5, 24)), key_cache_in=uniform(rng, (3, 4, 24)), **runs, block_size=4)


_LENGTHS = ("actual_seq_lengths_query", "actual_seq_lengths_key")
_MLA_OUTS = ("q_norm_out", "query_nope_out", "query_rope_out")
_MLA_CACHES = ("kv_cache", "kr_cache", "k_scale_cache")
CALLS = {
    "li": Call("lightning_indexer", lambda: _paged(False), ["sparse_indices"], ["sparse_indices"]),
    "li values": Call(
        "lightning_indexer", _values, ["sparse_indices", "sparse_values"], ["sparse_indices", "sparse_values"]
    ),
    "li dense": Call("lightning_indexer", lambda: _dense(False), ["sparse_indices"], ["sparse_indices", *_LENGTHS]),
    "qli": Call("quant_lightning_indexer", lambda: _paged(True), ["sparse_indices"], ["sparse_indices"]),
    "qli dense": Call(
        "quant_lightning_indexer", lambda: _dense(True), ["sparse_indices"], ["sparse_indices", *_LENGTHS]
    ),
    "attention": Call("sparse_flash_attention_quant", lambda: _attention(True), ["attention_out"], ["attention_out"]),
    "attention bf16": Call(
        "sparse_flash_attention_quant", lambda: _attention(False), ["attention_out"], ["attention_out"]
    ),
    "mla": Call(
        "mla_prolog_quant",
        lambda: _mla(True),
        [*_MLA_OUTS, "q_norm_scale_out", *_MLA_CACHES],
        # without dequant_scale it is another mode, which refuses something else
        [*_MLA_OUTS, "q_norm_scale_out", "dequant_scale"],
    ),
    "mla bf16": Call("mla_prolog_quant", lambda: _mla(False), [*_MLA_OUTS, "kv_cache", "kr_cache"], [*_MLA_OUTS]),
    "lip": Call("lightning_indexer_prolog_quant", _lip, ["k_cache", "k_scale_cache", *_INDEX_OUTS], [*_INDEX_OUTS]),
    "fused": Call(
        "mla_indexer_prolog_quant",
        _fused,
        ["query_nope", "query_rope", *_MLA_CACHES, "ip_k_cache", "ip_k_scale_cache", *_INDEX_OUTS],
        ["query_nope", "query_rope", *_INDEX_OUTS],
    ),
    "dynamic": Call("dynamic_quant", lambda: _dynamic(False), ["y", "scale"], ["y", "scale", "smooth_scales"]),
    "dynamic groups": Call(
        "dynamic_quant",
        lambda: _dynamic(True),
        ["y", "scale"],
        ["y", "scale", "smooth_scales", "group_index"],
    ),
    "v3": Call("mla_prolog_v3", lambda: _v3(6), [*_V3_OUTS, "kv_cache", "kr_cache"], [*_V3_OUTS]),
    "v3 tiles": Call(
        "mla_prolog_v3",
        lambda: _v3(7, smooth=True),
        [*(n for n in _V3_OUTS if n != "dequant_scale_q_nope"), "kv_cache"],
        [*_V3_OUTS, "k_nope_clip_alpha", "smooth_scales_cq"],
    ),
    "v3 blocks": Call(
        "mla_prolog_v3",
        lambda: _v3(1, lengths=(7, 0, 2), cache_mode="PA_BLK_BSND", spare=3),
        ["query", "query_rope", "query_norm", "kv_cache", "kr_cache"],
        [*_V3_OUTS],
    ),
    "v3 batched": Call(
        "mla_prolog_v3",
        lambda: _v3(2, lengths=(2, 2), batched=True, cache_mode="BSND"),
        [*(n for n in _V3_OUTS if n != "dequant_scale_q_nope"), "kv_cache", "kr_cache"],
        [*_V3_OUTS],
    ),
    "v3 NZ": Call(
        "mla_prolog_v3",
        lambda: _v3(3, cache_mode="PA_NZ"),
        [*(n for n in _V3_OUTS if n != "dequant_scale_q_nope"), "kv_cache", "kr_cache"],
        [*_V3_OUTS],
    ),
    "v3 TND": Call(
        "mla_prolog_v3",
        lambda: _v3(4, cache_mode="TND"),
        [*(n for n in _V3_OUTS if n != "dequant_scale_q_nope"), "kv_cache"],
        [*_V3_OUTS, "k_nope_clip_alpha"],
    ),
    "v3 functional": Call(
        "mla_prolog_v3_functional",
        _functional,
        ["query", "query_rope", "query_norm", "dequant_scale_q_norm", "kv_cache_out", "kr_cache_out"],
        [*_V3_OUTS, "kv_cache_out", "kr_cache_out"],
    ),
    "v2": Call("mla_prolog_v2", _v2, ["query", "query_rope", "kv_cache", "kr_cache"], ["query", "query_rope"]),
    **{
        name: Call(
            operator,
            lambda packed=packed: _sparse(packed),
            ["attention_out", "softmax_max", "softmax_sum"],
            ["attention_out", "softmax_max", "softmax_sum", "sinks"],
        )
        for name, operator, packed in (
            ("sfa", "sparse_flash_attention", False),
            ("kvsfa", "kv_quant_sparse_flash_attention", True),
        )
    },
    "fia": Call(
        "fused_infer_attention_score_v2",
        _dense_attention,
        ["attention_out", "softmax_lse"],
        ["attention_out", "softmax_lse", "pse_shift", "atten_mask"],
    ),
    "fia pages": Call(
        "fused_infer_attention_score_v2",
        _dense_pages,
        ["attention_out", "softmax_lse"],
        # without block_table they are other keys, which are refused for their shape
        ["attention_out", "softmax_lse", "dequant_offset_key", "dequant_offset_value", "quant_scale_out"]
        + ["block_table"],
    ),
    "quantize": Call("quantize", lambda: _quantize(True), ["y"], ["y", "zero_points"]),
    "quantize int4": Call("quantize", lambda: _quantize(False), ["y"], ["y"]),
    "block quant": Call("dynamic_block_quant", _block_quant, ["y", "scale"], ["y", "scale"]),
    "rms norm": Call("rms_norm", lambda: _norm("self"), ["y", "rstd"], ["y", "rstd"]),
    "add rms norm": Call("add_rms_norm", lambda: _norm("x1", "x2"), ["y", "rstd", "x"], ["y", "rstd", "x"]),
    "add rms norm bias": Call(
        "add_rms_norm_bias", lambda: _norm("x1", "x2", "beta"), ["y", "rstd", "x"], ["y", "rstd", "x", "beta"]
    ),
    "kv cache": Call(
        "kv_rmsnorm_rope_cache",
        lambda: _kv_cache("PA", ["ckv_cache"]),
        ["k_cache", "ckv_cache", "k_rope", "c_kv"],
        ["k_rope", "c_kv"],
    ),
    "kv cache v2": Call(
        "kv_rmsnorm_rope_cache_v2",
        lambda: _kv_cache("PA_NZ", ["k_cache"]),
        ["k_cache", "ckv_cache", "k_rope", "c_kv"],
        ["k_rope", "c_kv"],
    ),
    "kv cache functional": Call(
        "kv_rmsnorm_rope_cache_v2_functional",
        lambda: _kv_cache("Norm", functional=True),
        ["k_cache_out", "ckv_cache_out", "k_rope", "c_kv"],
        ["k_cache_out", "ckv_cache_out", "k_rope", "c_kv"],
    ),
    "scatter": Call("scatter_nd_update_", lambda: _scatter_nd(False), ["self"]),
    "scatter functional": Call("scatter_nd_update", lambda: _scatter_nd(True), ["out"], ["out"]),
    "scatter pages": Call("scatter_pa_kv_cache", _scatter_pa, ["key_cache", "value_cache"]),
    "scatter pages functional": Call(
        "scatter_pa_kv_cache_functional",
        lambda: _scatter_pa(True),
        ["key_cache_out", "value_cache_out"],
        ["key_cache_out", "value_cache_out"],
    ),
    "gather pages": Call("gather_pa_kv_cache", _gather_pa, ["key", "value"], ["seq_offset"]),
    "gather pages functional": Call(
        "gather_pa_kv_cache_functional",
        lambda: _gather_pa(True),
        ["key_out", "value_out"],
        ["key_out", "value_out", "seq_offset"],
    ),
    "store runs": Call("store_kv_block_metadata", _store_metadata, list(_runs())),
    "store": Call("store_kv_block", _store, ["key_cache_in"]),
    "quant matmul": Call("quant_matmul", _quant_matmul, ["y"], ["y", "scale", "offset", "bias"]),
    "quant matmul by tokens": Call("quant_matmul", _matmul_by_tokens, ["y"], ["y", "scale", "pertoken_scale"]),
    "transpose batchmatmul": Call("transpose_batchmatmul", _batchmatmul, ["y"], ["y"]),
    "batch matmul transpose": Call("batch_matmul_transpose", _batch_matmul_transpose, ["tensor_c"]),
    "update": Call("attention_update", _attention_update, ["out", "lse_out"], ["out", "lse_out"]),
    "swiglu": Call("swiglu", _swiglu, ["y"], ["y"]),
    "interleave": Call("interleave_rope", lambda: _rope("cos", "sin"), ["y"], ["y"]),
    "rotary": Call("rotary_mul", lambda: _rope("r1", "r2"), ["y"], ["y"]),
    "pack": Call("pack_kv_rows", lambda: _kv_rows(True), ["rows"], ["rows"]),
    "unpack": Call("unpack_kv_rows", lambda: _kv_rows(False), ["codes", "rope", "scales"], ["codes", "rope", "scales"]),
}


def _zeros_nz(k, n, dtype):
    """FRACTAL_NZ storage of a weight; nobody ever touches its memory."""
    c0 = 32 // np.dtype(dtype).itemsize
    return np.zeros((-(-n // c0), -(-k // 16), 16, c0), dtype)


@functools.cache
def _big_weights():
    return dict(
        w_dq=_zeros_nz(7168, 1536, BF16),
        w_uq_qr=_zeros_nz(1536, 128 * 192, np.int8),
        w_uk=np.zeros((128, 128, 512), BF16),
        w_dkv_kr=_zeros_nz(7168, 576, BF16),
        w_qb=_zeros_nz(1536, 64 * 128, np.int8),
        wk=_zeros_nz(7168, 128, BF16),
        w_proj=_zeros_nz(7168, 64, BF16),
    )


def _weights(*names):
    return {name: _big_weights()[name] for name in names}


def _strict_indexer(quantised):
    rng = generator(15)
    args = _paged(quantised) | dict(level="strict")
    args["query"] = codes(rng, (5, 64, 128)) if quantised else uniform(rng, (5, 4, 128))
    args["key"] = codes(rng, (6, 16, 1, 128)) if quantised else uniform(rng, (6, 16, 1, 128))
    if quantised:
        args["key_dequant_scale"] = rng.random((6, 16, 1)).astype(np.float16)
        args["weights"] = uniform(rng, (5, 64), 1.0, np.float16)
        args["query_dequant_scale"] = rng.random((5, 64)).astype(np.float16)
    return args | dict(actual_seq_lengths_key=np.array([48, 20], np.int32))


def _strict_attention():
    rng = generator(16)
    return dict(
        query_nope=uniform(rng, (128, 512)),
        query_rope=uniform(rng, (128, 64)),
        key_nope_2d=codes(rng, (3 * 128, 512)),
        key_rope_2d=uniform(rng, (3 * 128, 64)),
        k_nope_scales=rng.random((3 * 128, 4)).astype(F),
        topk_indices=np.arange(2048, dtype=np.int32)[None],
        block_table=np.array([[2, 0, 1]], np.int32),
        kv_act_seqs=np.array([300], np.int32),
        b=1,
        s1=1,
        nq=128,
        softmax_scale=0.25,
        topk=2048,
        block_size=128,
        attention_out=np.full((1, 1, 128, 512), 7, BF16),
        level="strict",
    )


def _strict_mla():
    return dict(
        token_x=np.ones((1, 7168), BF16),
        **_weights("w_dq", "w_uq_qr", "w_uk", "w_dkv_kr"),
        dequant_scale=np.ones((128 * 192, 1), F),
        gamma_cq=np.ones(1536, BF16),
        gamma_ckv=np.ones(512, BF16),
        cos=np.ones((1, 64), BF16),
        sin=np.ones((1, 64), BF16),
        cache_index=np.array([130]),
        kv_cache=np.full((2, 128, 1, 512), 7, np.int8),
        kr_cache=np.full((2, 128, 1, 64), 7, BF16),
        k_scale_cache=np.full((2, 128, 1, 4), 7, F),
        q_norm_out=np.full((1, 1536), 7, np.int8),
        q_norm_scale_out=np.full((1, 1), 7, F),
        query_nope_out=np.full((1, 128, 512), 7, BF16),
        query_rope_out=np.full((1, 128, 64), 7, BF16),
        level="strict",
    )


def _strict_lip():
    return dict(
        x=np.ones((1, 7168), BF16),
        q_norm=np.ones((1, 1536), np.int8),
        q_norm_scale=np.ones((1, 1), F),
        **_weights("w_qb", "wk", "w_proj"),
        w_qb_scale=np.ones((64 * 128, 1), F),
        ln_gamma_k=np.ones(128, BF16),
        ln_beta_k=np.ones(128, BF16),
        cos=np.ones((1, 64), BF16),
        sin=np.ones((1, 64), BF16),
        hadamard_q=np.ones((128, 128), BF16),
        hadamard_k=np.ones((128, 128), BF16),
        k_cache=np.full((2, 128, 1, 128), 7, np.int8),
        k_scale_cache=np.full((2, 128, 1, 1), 7, np.float16),
        k_cache_index=np.array([130]),
        q_int8=np.full((1, 64, 128), 7, np.int8),
        q_scale=np.full((1, 64, 1), 7, np.float16),
        weights=np.full((1, 64), 7, np.float16),
        level="strict",
    )


def _strict_fused():
    args, index = _strict_mla(), _strict_lip()
    keep = ("w_qb", "w_qb_scale", "wk", "w_proj", "ln_gamma_k", "ln_beta_k", "hadamard_q", "hadamard_k", *_INDEX_OUTS)
    args |= {name: index[name] for name in keep}
    args |= {"ip_k_cache": index["k_cache"], "ip_k_scale_cache": index["k_scale_cache"]}
    args["query_nope"], args["query_rope"] = args.pop("query_nope_out"), args.pop("query_rope_out")
    del args["q_norm_out"], args["q_norm_scale_out"]
    return args


def _strict_dynamic():
    return _dynamic(False) | dict(level="strict")


@functools.cache
def _v3_of_the_device(row):
    sizes = dict(he=1024, hcq=1536, n=1, d=128, dr=64, latent=512, tile=128, block_size=16)
    given, before = mla_prolog_v3(22, row, lengths=[3], **sizes)
    weight = np.int8 if row > 4 else BF16
    given["weight_dq"] = _zeros_nz(1024, 1536, weight)
    given["weight_uq_qr"] = _zeros_nz(1536, 192, np.int8 if row > 1 else BF16)
    given["weight_dkv_kr"] = _zeros_nz(1024, 576, weight)
    return given | {name: value for name, value in before.items() if value.size}


def _strict_v3(row):
    args = {
        name: v.copy() if isinstance(v, np.ndarray) and v.nbytes < 2**20 else v
        for name, v in _v3_of_the_device(row).items()
    }
    outs = dict(query=np.full((3, 1, 512), 7, np.int8 if row == 6 else BF16), query_rope=np.full((3, 1, 64), 7, BF16))
    outs |= dict(query_norm=np.full((3, 1536), 7, np.int8), dequant_scale_q_norm=np.full((3, 1), 7, F))
    if row == 6:
        outs["dequant_scale_q_nope"] = np.full((3, 1, 1), 7, F)
    else:
        args["kr_cache"] = np.zeros(0, BF16)
    return args | {n: outs[n] for n in _V3_OUTS if n in outs} | dict(level="strict")


def _strict_v2():
    args = _strict_v3(6)
    for name in ("query_norm", "dequant_scale_q_norm", "query_norm_flag"):
        del args[name]
    args = {name: value for name, value in args.items() if not name.endswith("_mode") or name == "cache_mode"}
    return args | dict(
        token_x=np.ones((3, 7168), np.int8),
        weight_dq=_zeros_nz(7168, 1536, np.int8),
        weight_dkv_kr=_zeros_nz(7168, 576, np.int8),
        quant_scale_ckv=np.full((1, 512), 3, F),
    )


def _strict_sparse(packed):
    rng = generator(23)
    args = _sparse(packed) | dict(level="strict", return_softmax_lse=False)
    query = uniform(rng, (4, 2, 576))
    if packed:
        rows = join_rows(codes(rng, (80, 512)), uniform(rng, (80, 64)), rng.random((80, 4)))
        args |= dict(query=query, key=rows.reshape(5, 16, 1, 656), tile_size=128, rope_head_dim=64)
    else:
        args |= dict(query=query[..., :512].copy(), query_rope=query[..., 512:].copy())
        args |= dict(key=uniform(rng, (5, 16, 1, 512)), key_rope=uniform(rng, (5, 16, 1, 64)))
    for name in ("sinks", "softmax_max", "softmax_sum"):
        del args[name]
    return args | dict(value=args["key"].copy(), attention_out=np.full((4, 2, 512), 7, BF16))


def _strict_block_quant():
    x = uniform(generator(24), (3, 200), 9)
    return dict(x=x, y=np.full((3, 200), 7, np.int8), scale=np.full((3, 2), 7, F), level="strict")


def _strict_rope(first, second):
    rng = generator(25)
    args = {"x": uniform(rng, (2, 3, 5, 64)), first: uniform(rng, (2, 1, 5, 64)), second: uniform(rng, (2, 1, 5, 64))}
    return args | dict(y=np.full((2, 3, 5, 64), 7, BF16), level="strict")


def _strict_dense():
    rng = generator(26)
    return dict(
        query=uniform(rng, (2, 3, 4, 32)),
        key=uniform(rng, (2, 9, 2, 32)),
        value=uniform(rng, (2, 9, 2, 32)),
        pse_shift=uniform(rng, (2, 4, 3, 9)),
        atten_mask=rng.integers(0, 2, (2, 1, 3, 9)).astype(np.uint8),
        actual_seq_qlen=[3, 2],
        actual_seq_kvlen=[9, 5],
        num_query_heads=4,
        num_key_value_heads=2,
        softmax_scale=0.25,
        input_layout="BSND",
        return_softmax_lse=True,
        attention_out=np.full((2, 3, 4, 32), 7, BF16),
        softmax_lse=np.full((2, 4, 3, 1), 7, F),
        level="strict",
    )


STRICT = {
    name + " strict": Call(CALLS[name].operator, make, CALLS[name].written, CALLS[name].optional)
    for name, make in (
        ("li", lambda: _strict_indexer(False)),
        ("qli", lambda: _strict_indexer(True)),
        ("attention", _strict_attention),
        ("mla", _strict_mla),
        ("lip", _strict_lip),
        ("fused", _strict_fused),
        ("dynamic", _strict_dynamic),
        ("v3", lambda: _strict_v3(6)),
        ("v3 tiles", lambda: _strict_v3(7)),
        ("v2", _strict_v2),
        ("quantize", lambda: _quantize(True) | dict(level="strict")),
        ("block quant", _strict_block_quant),
        ("interleave", lambda: _strict_rope("cos", "sin")),
        ("rotary", lambda: _strict_rope("r1", "r2")),
        ("fia", _strict_dense),
    )
} | {
    name + " strict": Call(CALLS[name].operator, lambda packed=packed: _strict_sparse(packed), ["attention_out"])
    for name, packed in (("sfa", False), ("kvsfa", True))
}
