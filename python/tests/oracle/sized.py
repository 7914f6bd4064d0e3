# SPDX-License-Identifier: Apache-2.0
"""Good calls of every operator by one number, without memory for results: `wide` has it wherever rows can be as wide,
`tall` as the number of rows, tokens, keys, heads or rows of a page. In portable no width is fixed; 512, 576, 128 and the like
are limits of strict alone. What stays fixed is said beside it."""

import numpy as np

from . import cases
from .cases import BF16, F, codes, generator, uniform
from .mla_prolog_v3 import ROWS, join_rows
from .mla_prolog_v3_cases import mla_prolog_v3

I32 = lambda *v: np.array(v, np.int32)


def pages_of(rng, lengths, size):
    """block_table, number of pages."""
    table, pages = cases.page_table(rng, lengths, size)
    return dict(block_table=table), pages


def indexers(rng, *, width, heads, keys, size, rows, count):
    """Two sequences: the first has `keys` keys and one row, the other 5 and the rest of the rows."""
    table, pages = pages_of(rng, (keys, 5), size)
    lengths = dict(actual_seq_lengths_query=I32(1, rows), actual_seq_lengths_key=I32(keys, 5))
    given = dict(sparse_count=count, layout_query="TND", layout_key="PA_BSND", **lengths, **table)
    for quantised in (True, False):
        kind = codes if quantised else uniform
        args = given | dict(query=kind(rng, (rows, heads, width)), key=kind(rng, (pages, size, 1, width)))
        args["weights"] = rng.random((rows, heads)).astype(np.float16 if quantised else BF16)
        if quantised:
            args["query_dequant_scale"] = rng.random((rows, heads)).astype(np.float16)
            args["key_dequant_scale"] = rng.random((pages, size, 1)).astype(np.float16)
        yield "quant_lightning_indexer" if quantised else "lightning_indexer", args


def sparse_attentions(rng, *, width, rope, heads, keys, size, rows, count):
    """The same of lists."""
    table, pages = pages_of(rng, (keys, 5), size)
    lists = np.resize(np.arange(min(keys, 5), dtype=np.int32), (rows, 1, count))
    lists[0] = np.resize(rng.permutation(keys).astype(np.int32), count)
    lengths = dict(actual_seq_lengths_query=I32(1, rows), actual_seq_lengths_kv=I32(keys, 5))
    given = dict(sparse_indices=lists, layout_query="TND", layout_kv="PA_BSND", attention_mode=2, sparse_mode=0)
    given |= dict(scale_value=0.1, sinks=uniform(rng, heads, 1, F), return_softmax_lse=True, **lengths, **table)
    key, key_rope = uniform(rng, (pages, size, 1, width)), uniform(rng, (pages, size, 1, rope))
    query, query_rope = uniform(rng, (rows, heads, width)), uniform(rng, (rows, heads, rope))
    plain = dict(query=query, query_rope=query_rope, key=key, key_rope=key_rope, value=key.copy())
    yield "sparse_flash_attention", given | plain
    slots = pages * size
    tile = 1 if width % 2 else width
    scales = rng.random((slots, width // tile))
    packed = join_rows(codes(rng, (slots, width)), uniform(rng, (slots, rope)), scales).reshape(pages, size, 1, -1)
    packed = dict(query=uniform(rng, (rows, heads, width + rope)), key=packed, value=packed.copy(), tile_size=tile)
    modes = dict(key_quant_mode=2, value_quant_mode=2, rope_head_dim=rope)
    yield "kv_quant_sparse_flash_attention", given | packed | modes
    table, pages = pages_of(rng, (keys,) * rows, size)
    slots = pages * size
    for quantised in (True, False):
        args = table | dict(
            query_nope=uniform(rng, (rows * heads, width)),
            query_rope=uniform(rng, (rows * heads, rope)),
            key_nope_2d=(codes if quantised else uniform)(rng, (slots, width)),
            key_rope_2d=uniform(rng, (slots, rope)),
            k_nope_scales=rng.random((slots, width // tile)).astype(F) if quantised else None,
            topk_indices=np.resize(np.arange(keys, dtype=np.int32), (rows, count)),
            kv_act_seqs=np.full(rows, keys, np.int32),
            b=rows,
            s1=1,
            nq=heads,
            softmax_scale=0.1,
            topk=min(count, keys),
            block_size=size,
        )
        yield "sparse_flash_attention_quant", args


def dense_attentions(rng, *, width, heads, keys, size, rows):
    dense = dict(
        query=uniform(rng, (2, rows, heads, width)),
        key=uniform(rng, (2, keys, heads, width)),
        value=uniform(rng, (2, keys, heads, width)),
        pse_shift=uniform(rng, (1, heads, rows, keys)),
        atten_mask=rng.integers(0, 2, (2, 1, rows, keys)).astype(np.uint8),
        learnable_sink=uniform(rng, heads, 1, F),
        num_query_heads=heads,
        input_layout="BSND",
        return_softmax_lse=True,
    )
    yield "fused_infer_attention_score_v2", dense
    table, pages = pages_of(rng, (keys, 5), size)
    paged = table | dict(
        query=uniform(rng, (rows, heads, width)),
        key=codes(rng, (pages, size, heads * width)),
        value=codes(rng, (pages, size, heads * width)),
        actual_seq_qlen=np.array([1, rows]),
        actual_seq_kvlen=np.array([keys, 5]),
        block_size=size,
        num_query_heads=heads,
        input_layout="TND",
        quant_scale_out=rng.random((heads, width)).astype(F),
        **{
            f"dequant_{what}_{of}": rng.random((heads, width)).astype(F)
            for what in ("scale", "offset")
            for of in ("key", "value")
        },
    )
    yield "fused_infer_attention_score_v2", paged


def pypto_prologs(seed, *, he, hcq, latent, t, n, d, dr, di, heads, size):
    """dr is even; a rope of the indexer is not wider than its row."""
    both = dict(t=t, he=he, hcq=hcq, block_size=size, blocks=-(-t // size) + 2)
    mla = {
        q: cases.mla_prolog(seed, n=n, d=d, dr=dr, latent=latent, groups=1, quantised=q, **both) for q in (True, False)
    }
    index = cases.indexer_prolog(seed, n=heads, di=di, dr=dr, **both)
    for given, caches in mla.values():
        yield "mla_prolog_quant", given | caches
    yield "lightning_indexer_prolog_quant", index[0] | index[1]
    own = ("w_qb", "w_qb_scale", "wk", "w_proj", "ln_gamma_k", "ln_beta_k", "hadamard_q", "hadamard_k")
    caches = {"ip_" + name: cache for name, cache in index[1].items()}
    yield "mla_indexer_prolog_quant", mla[True][0] | mla[True][1] | caches | {name: index[0][name] for name in own}


def prologs(seed, *, he, hcq, latent, lengths, n, d, dr, size):
    """All modes, and a layout of the caches for each: PA_NZ wants rows of 32 elements, so they are rounded up there."""
    for row in ROWS.values():
        mode = row.cache_modes[(seed + row.number) % len(row.cache_modes)]
        up = lambda v: -(-v // 32) * 32 if mode.endswith("NZ") else v
        given, caches = mla_prolog_v3(
            seed, row.number, cache_mode=mode, lengths=lengths, batched=mode == "BSND", he=he, hcq=hcq, n=n, d=d,
            dr=up(dr), latent=up(latent), tile=up(latent), smooth=row.number > 1, block_size=16 if up(1) > 1 else size,
        )  # fmt: skip
        yield "mla_prolog_v3", given | caches
        yield "mla_prolog_v3_functional", given | caches
        if row.number in (1, 2, 3) and mode in ("PA_BSND", "PA_NZ"):
            args = {
                name: v for name, v in (given | caches).items() if not name.endswith("_mode") or name == "cache_mode"
            }
            del args["query_norm_flag"]
            yield "mla_prolog_v2", args


def caches_of_rows(rng, seed, *, latent, rope, rows, size):
    """Rope rows are even; PA_NZ wants rows of 32 elements."""
    for i, op in enumerate(
        ("kv_rmsnorm_rope_cache", "kv_rmsnorm_rope_cache_v2", "kv_rmsnorm_rope_cache_v2_functional")
    ):
        mode = ("Norm", "PA", "PA_NZ", "PA_BNSD", "PA_BLK_BNSD", "PA_BLK_NZ")[(seed + i) % 6]
        up = lambda v: -(-v // 32) * 32 if mode.endswith("NZ") else v
        wide, dr, b, s = up(latent), up(rope), 2, rows
        pages = -(-b * s // size) + b + 1
        places = (b, 1, s + 1) if mode == "Norm" else (pages, size, 1)
        index = rng.permutation(pages * size)[: b * s]
        if mode == "Norm":
            index = np.stack([rng.permutation(s + 1)[:s] for _ in range(b)])
        elif "BLK" in mode:
            index = rng.permutation(pages)[: b * -(-s // size)] * size
        args = dict(
            kv=uniform(rng, (b, 1, s, wide + dr)),
            gamma=uniform(rng, wide),
            cos=uniform(rng, (b, 1, s, dr)),
            sin=uniform(rng, (b, 1, s, dr)),
            index=index.astype(np.int64),
            k_cache=uniform(rng, (*places, dr)),
            ckv_cache=codes(rng, (*places, wide)),
            c_kv_scale=rng.random(wide).astype(F),
            cache_mode=mode,
            is_output_kv=True,
        )
        yield op, args


def row_operators(rng, *, rows, width):
    """Ropes are even, an int32 holds eight int4."""
    x, even = uniform(rng, (rows, width)), width + width % 2
    row = lambda: uniform(rng, width)
    yield "dynamic_quant", dict(input=x, smooth_scales=row())
    groups = dict(smooth_scales=uniform(rng, (2, width), dtype=np.float16), group_index=I32(rows // 2, rows))
    yield "dynamic_quant", dict(input=x.astype(np.float16)) | groups
    yield "dynamic_quant", dict(input=x, quant_mode="perchannel")
    yield "dynamic_quant", dict(input=uniform(rng, (rows, 8 * width)), dst_type="quint4x2")
    given = dict(scales=rng.random(width).astype(F) + F(1), zero_points=codes(rng, width), dtype="qint8")
    yield "quantize", dict(input=x) | given
    nibbles = dict(input=uniform(rng, (rows, 8 * width)), scales=uniform(rng, 8 * width), zero_points=None)
    yield "quantize", nibbles | dict(dtype="quint4x2", div_mode=False)
    yield "dynamic_block_quant", dict(x=x, col_block_size=5)
    turned, cos, sin = (uniform(rng, (1, h, rows, even)) for h in (2, 1, 1))
    yield "interleave_rope", dict(x=turned, cos=cos, sin=sin)
    for mode in ("half", "interleave"):
        yield "rotary_mul", dict(x=turned, r1=cos, r2=sin, rotary_mode=mode)
    yield "rotary_mul", dict(x=turned, r1=cos, r2=sin, rotate=uniform(rng, (even, even)))
    yield "rms_norm", dict(self=x, gamma=row())
    both = dict(x1=x, x2=uniform(rng, (rows, width)), gamma=row())
    yield "add_rms_norm", both
    yield "add_rms_norm_bias", both | dict(beta=row())
    yield "swiglu", dict(self=uniform(rng, (rows, 2 * width)))
    yield "swiglu", dict(self=uniform(rng, (2 * rows, width)), dim=0)
    rope = width % 70
    parts = dict(
        codes=codes(rng, (rows, width)), rope=uniform(rng, (rows, rope)), scales=rng.random((rows, 1)).astype(F)
    )
    yield "pack_kv_rows", parts
    yield "unpack_kv_rows", dict(rows=codes(rng, (rows, width + 2 * rope + 4)), rope_head_dim=rope, tile_size=width)
    lse, parts = [uniform(rng, rows, 5, F) for _ in range(3)], [uniform(rng, (rows, width)) for _ in range(3)]
    yield "attention_update", dict(lse=lse, local_out=parts, update_type=1)


def products(rng, *, m, k, n):
    x1, x2 = codes(rng, (m, k)), codes(rng, (k, n))
    scale = rng.random(n).astype(F)
    bias = np.arange(n, dtype=np.int32)
    yield (
        "quant_matmul",
        dict(x1=x1, x2=x2, scale=scale, offset=uniform(rng, n, dtype=F), bias=bias, output_dtype="int8"),
    )
    by_tokens = dict(scale=scale, pertoken_scale=rng.random(m).astype(F), output_dtype="bfloat16")
    yield "quant_matmul", dict(x1=x1, x2=x2) | by_tokens
    yield "transpose_batchmatmul", dict(input=uniform(rng, (2, m, k)), weight=uniform(rng, (2, k, n)))
    a, b = uniform(rng, (m, 2, k)), uniform(rng, (2, k, n))
    yield "batch_matmul_transpose", dict(tensor_a=a, tensor_b=b, tensor_c=np.zeros((m, 2, n), BF16))


def moves(rng, *, rows, width, size):
    """Rows of any dtype; PA_NZ wants rows of 32 bytes."""
    pages = -(-rows // size) + 1
    cache = lambda: uniform(rng, (pages, size, 2, width))
    key, value = uniform(rng, (rows, 2, width)), uniform(rng, (rows, 2, width))
    slots = rng.permutation(pages * size)[:rows].astype(np.int32)
    slots[0] = -1
    flat = uniform(rng, (pages * size, width))
    scattered = dict(self=flat, indices=slots[:, None].astype(np.int64), updates=uniform(rng, (rows, width)))
    yield "scatter_nd_update", scattered
    yield "scatter_nd_update_", scattered
    norm = dict(key=key, value=value, key_cache=cache(), value_cache=cache(), slot_mapping=slots, cache_mode="Norm")
    up = -(-width // 16) * 16
    tiles = dict(key=uniform(rng, (rows, 2, up)), value=uniform(rng, (rows, 2, up)), cache_mode="PA_NZ")
    tiles |= {name: uniform(rng, (pages, 2 * up // 16, size, 16)) for name in ("key_cache", "value_cache")}
    for op in ("scatter_pa_kv_cache", "scatter_pa_kv_cache_functional"):
        yield op, norm
        yield op, norm | tiles
    table = cases.page_table(rng, (rows,), size)[0]
    some = dict(key_cache=cache(), value_cache=cache(), block_tables=np.minimum(table, pages - 1), seq_lens=I32(rows))
    for op in ("gather_pa_kv_cache", "gather_pa_kv_cache_functional"):
        yield op, some | dict(key=np.zeros_like(key), value=np.zeros_like(value))
    runs = {name: np.zeros(rows, np.int32) for name in ("group_len", "group_key_idx", "group_key_cache_idx")}
    yield "store_kv_block_metadata", dict(slot_mapping=slots, **runs, block_size=size)
    one = dict(group_len=I32(rows), group_key_idx=I32(0), group_key_cache_idx=I32(1))
    yield "store_kv_block", dict(key_in=key, key_cache_in=uniform(rng, (pages * size + 1, 2, width)), **one)


def wide(w):
    rng, even = generator(w), w + w % 2
    heads, rope = 1 + w % 19, w % 70
    yield from indexers(rng, width=w, heads=heads, keys=w, size=4, rows=3, count=w)
    yield from sparse_attentions(rng, width=w, rope=rope, heads=heads, keys=9, size=4, rows=3, count=w)
    yield from dense_attentions(rng, width=w, heads=heads, keys=w, size=4, rows=3)
    sizes = dict(he=w, hcq=w, latent=w, n=2, d=w % 67 + 1, dr=even % 66 + 2)
    indexer = dict(di=max(w, 2), heads=heads) | dict(dr=min(max(w, 2) // 2 * 2, sizes["dr"]))
    yield from pypto_prologs(w, **sizes | indexer, t=2, size=5)
    yield from prologs(w, **sizes, lengths=(2,), size=5)
    yield from caches_of_rows(rng, w, latent=w, rope=even, rows=3, size=4)
    yield from row_operators(rng, rows=3, width=w)
    for m, k, n in ((3, w, w), (1, 7, w)):
        yield from products(rng, m=m, k=k, n=n)
    yield from moves(rng, rows=3, width=w, size=4)


def tall(w):
    rng, part = generator(1000 + w), 1 + w % 7
    yield from indexers(rng, width=16, heads=w, keys=w, size=w, rows=3, count=5)
    yield from indexers(rng, width=5, heads=3, keys=17, size=4, rows=w, count=part)
    yield from sparse_attentions(rng, width=16, rope=4, heads=w, keys=w, size=w, rows=2, count=9)
    yield from sparse_attentions(rng, width=6, rope=3, heads=3, keys=w, size=4, rows=w, count=part)
    yield from dense_attentions(rng, width=6, heads=3, keys=7, size=w, rows=w)
    yield from dense_attentions(rng, width=4, heads=w, keys=w, size=4, rows=2)
    sizes = dict(he=24, hcq=9, latent=12, d=5, dr=4)
    yield from pypto_prologs(w, **sizes, t=w, n=2, di=6, heads=3, size=4)
    yield from pypto_prologs(w, **sizes, t=2, n=w, di=6, heads=w, size=w)
    yield from prologs(w, **sizes, lengths=(w,), n=2, size=4)
    yield from prologs(w, **sizes, lengths=(2,), n=w, size=w)
    yield from caches_of_rows(rng, w, latent=6, rope=4, rows=w, size=5)
    yield from caches_of_rows(rng, w, latent=6, rope=4, rows=5, size=w)
    yield from row_operators(rng, rows=w, width=6)
    yield from products(rng, m=w, k=7, n=5)
    yield from moves(rng, rows=w, width=5, size=4)
    yield from moves(rng, rows=9, width=5, size=w)
