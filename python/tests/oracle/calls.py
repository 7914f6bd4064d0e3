# SPDX-License-Identifier: Apache-2.0
"""A small good call of every operator, with all its outputs given, for tests that break one thing at a time."""

import functools

import numpy as np

from . import cases
from .cases import BF16, F, codes, generator, uniform


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
    args["query"] = codes(rng, (5, 4, 128)) if quantised else uniform(rng, (5, 4, 128))
    args["key"] = codes(rng, (6, 16, 1, 128)) if quantised else uniform(rng, (6, 16, 1, 128))
    if quantised:
        args["key_dequant_scale"] = rng.random((6, 16, 1)).astype(np.float16)
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
    )
}
