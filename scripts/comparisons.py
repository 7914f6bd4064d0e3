# SPDX-License-Identifier: Apache-2.0
"""Our operators and what other libraries have for the same work: the calls that compare_peers.py times.

Data are numpy arrays, so that ours run where nothing else is installed. A peer that cannot be made or does not run here
is the reason in words instead of a call. Peers get what suits them: weights packed by oneDNN, keys that lie in order.
"""

import collections.abc
import dataclasses
import functools
import os

import ml_dtypes
import numpy as np

import dsakit

try:
    import torch
except ImportError as error:
    torch, WITHOUT_TORCH = None, f"no torch: {error}"

BF16 = np.dtype(ml_dtypes.bfloat16)
COPIES = 5  # of weights that a cache would keep from call to call, which no model lets happen


@dataclasses.dataclass
class Comparison:
    """An operator at one size. bytes, i8_ops, bf16_flops: the work that no implementation can avoid."""

    operator: str
    size: str
    ours: collections.abc.Callable
    peers: dict  # name -> call, or why there is none
    bytes: float = 0
    i8_ops: float = 0
    bf16_flops: float = 0
    difference: collections.abc.Callable | None = None  # of our result and a peer's; None: theirs is a part of ours
    after: dict = dataclasses.field(default_factory=dict)  # name or "ours" -> what takes a call back
    one_thread: bool = True  # worth its time with one thread too


@dataclasses.dataclass
class Sizes:
    """Of DeepSeek-V3.2, and of one layer of a dense model with 32 heads."""

    hidden: int = 7168
    q_rank: int = 1536
    heads: int = 128
    nope: int = 128
    rope: int = 64
    latent: int = 512
    index_heads: int = 64
    index_width: int = 128
    selected: int = 2048
    context: int = 32768
    keys: tuple = (8192, 32768, 131072)
    tokens: tuple = (1, 4, 32, 128)
    rows: int = 1024
    intermediate: int = 2048
    # batch, heads, key heads, queries, keys, width
    attention: tuple = (
        (1, 32, 32, 1024, 1024, 128),
        (1, 32, 8, 1024, 1024, 128),
        (1, 8, 8, 4096, 4096, 128),
        (1, 32, 32, 1, 8192, 128),
        (1, 32, 8, 1, 8192, 128),
        (4, 32, 8, 1, 8192, 128),
    )
    layer: tuple = (4096, 32768)  # cached tokens; none: the layer is left out


QUICK = Sizes(
    keys=(8192,), tokens=(1, 32), attention=((1, 32, 8, 1024, 1024, 128), (1, 32, 8, 1, 8192, 128)), layer=(2048,)
)
TINY = Sizes(
    hidden=128,
    q_rank=64,
    heads=4,
    nope=32,
    rope=16,
    latent=128,
    index_heads=4,
    index_width=32,
    selected=16,
    context=256,
    keys=(256,),
    tokens=(1, 4),
    rows=8,
    intermediate=32,
    attention=((1, 4, 2, 8, 8, 32), (2, 4, 2, 1, 32, 32)),
    layer=(),
)


class Data:
    """Random numbers; each call goes on."""

    def __init__(self):
        self.rng = np.random.default_rng(1)

    def f32(self, *shape, low=-1.0, high=1.0):
        return (self.rng.random(shape, np.float32) * np.float32(high - low) + np.float32(low)).astype(np.float32)

    def bf16(self, *shape, low=-1.0, high=1.0):
        return self.f32(*shape, low=low, high=high).astype(BF16)

    def f16(self, *shape):
        return self.f32(*shape, low=0.0).astype(np.float16)

    def i8(self, *shape):
        return self.rng.integers(-128, 128, shape, np.int8)

    def positions(self, below, *shape):
        """Different ones in each row."""
        rows = [self.rng.choice(below, shape[-1], replace=False) for _ in range(int(np.prod(shape[:-1])))]
        return np.array(rows, np.int32).reshape(shape)


def tensor(x):
    """The same memory for torch."""
    return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16) if x.dtype == BF16 else torch.from_numpy(x)


def numbers(x):
    """Of a result of either side, in double."""
    if torch is not None and isinstance(x, torch.Tensor):
        x = x.float().numpy() if x.is_floating_point() else x.numpy()
    return np.asarray(x).astype(np.float64)


def rms(ours, theirs):
    """Root mean square of the difference, as a share of theirs."""
    a, b = numbers(ours).ravel(), numbers(theirs).ravel()
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def strangers(ours, theirs):
    """Share of our positions that are not among theirs: ties, and roundings of bf16."""
    a, b = (numbers(x).reshape(-1, np.shape(x)[-1]) for x in (ours, theirs))
    return float(np.mean([1 - np.isin(x, y).mean() for x, y in zip(a, b)]))


def reason(error):
    return f"{type(error).__name__}: {str(error).splitlines()[0][:100] if str(error) else ''}"


def peers(**makers):
    """name -> a call that has run once, or why there is none."""
    result = {}
    for name, make in makers.items():
        name = name.replace("_", " ")
        if torch is None:
            result[name] = WITHOUT_TORCH
            continue
        try:
            result[name] = make()
            with torch.inference_mode():
                result[name]()
        except Exception as error:  # of any kind: other releases lack other things
            result[name] = reason(error)
    return result


def by_turns(calls):
    """One call after the other, each with its own copy of the weights."""
    state = {"calls": 0}

    def call():
        state["calls"] += 1
        return calls[state["calls"] % len(calls)]()

    return call


# Products of torch and of the oneDNN inside it. Weights are [k, n], as ours.


def linear(w, dtype):
    """torch.nn.functional.linear, weights as torch keeps them."""
    w = tensor(w).to(dtype).t().contiguous()
    return lambda x: torch.nn.functional.linear(x, w)


def onednn(w, tokens):
    """oneDNN's product with weights that it has packed for so many rows."""
    w = torch.ops.mkldnn._reorder_linear_weight(tensor(w).t().contiguous(), tokens)
    return lambda x: torch.ops.mkldnn._linear_pointwise(x, w, None, "none", [], "")


def onednn_int8(w, tokens):
    """oneDNN's int8 product with packed weights and a scale for each column, to bf16; one scale for all of x.

    x is unsigned(..): for signed rows oneDNN has no kernel but its reference."""
    n = w.shape[1]
    w = torch.ops.onednn.qlinear_prepack(tensor(w).t().contiguous(), [tokens, w.shape[0]])
    scale, zero = torch.full((n,), 0.01), torch.zeros(n, dtype=torch.int64)
    return lambda x: torch.ops.onednn.qlinear_pointwise(
        x, 0.01, 128, w, scale, zero, None, 1.0, 0, torch.bfloat16, "none", [], ""
    )


def unsigned(x):
    """int8 codes with a zero point of 128."""
    return (tensor(x).int() + 128).to(torch.uint8)


def products(*pairs):
    """A call of several products, each with its operand."""
    return lambda: [product(x) for product, x in pairs]


def tokens_of(t):
    return f"{t} token{'s' if t > 1 else ''}"


def packed(weights):
    return {name: dsakit.pack_weight(w) for name, w in weights.items()}


# The prologs. A peer of theirs is the products alone: no norm, quantisation, rotation, nor cache.


def mla_weights(s, data, codes):
    make = data.i8 if codes else lambda *shape: data.bf16(*shape, low=-0.02, high=0.02)
    return dict(
        dq=make(s.hidden, s.q_rank),
        uq=data.i8(s.q_rank, s.heads * (s.nope + s.rope)),
        uk=data.bf16(s.heads, s.nope, s.latent, low=-0.05, high=0.05),
        dkv=make(s.hidden, s.latent + s.rope),
    )


def mla_peers(s, data, w, t, codes):
    x, c, q = data.bf16(t, s.hidden), data.bf16(t, s.q_rank), data.bf16(s.heads, t, s.nope)
    xi, ci = data.i8(t, s.hidden), data.i8(t, s.q_rank)

    def absorbed(dtype):
        uk, rows = tensor(w["uk"]).to(dtype), tensor(q).to(dtype)
        return lambda rows: torch.bmm(rows, uk), rows

    def onednn_packed():
        down = [
            (onednn_int8(w[name], t), unsigned(xi)) if codes else (onednn(w[name], t), tensor(x))
            for name in ("dq", "dkv")
        ]
        return products(*down, (onednn_int8(w["uq"], t), unsigned(ci)), absorbed(torch.bfloat16))

    def plain(dtype):
        down = [(linear(w[name], dtype), tensor(x).to(dtype)) for name in ("dq", "dkv")]
        return products(*down, (linear(w["uq"], dtype), tensor(c).to(dtype)), absorbed(dtype))

    return peers(
        oneDNN_packed=onednn_packed, torch_bf16=lambda: plain(torch.bfloat16), torch_fp32=lambda: plain(torch.float32)
    )


def mla_work(s, t, codes):
    hidden = s.hidden * (s.q_rank + s.latent + s.rope)
    query, heads = s.q_rank * s.heads * (s.nope + s.rope), s.heads * s.nope * s.latent
    return dict(
        bytes=hidden * (1 if codes else 2) + query + 2 * heads,
        i8_ops=2 * t * (query + (hidden if codes else 0)),
        bf16_flops=2 * t * (heads + (0 if codes else hidden)),
    )


def mla_prolog_quant(s):
    """Down projections and absorption in bf16, up projection int8, latent rows int8."""
    data, pages = Data(), (64, 16, 1)
    w = mla_weights(s, data, codes=False)
    ours = packed(w)
    fixed = dict(
        w_dq=ours["dq"],
        w_uq_qr=ours["uq"],
        dequant_scale=data.f32(s.heads * (s.nope + s.rope), 1, low=0.0001, high=0.001),
        w_uk=ours["uk"],
        w_dkv_kr=ours["dkv"],
        gamma_cq=data.bf16(s.q_rank, low=0.5, high=1.5),
        gamma_ckv=data.bf16(s.latent, low=0.5, high=1.5),
        kv_cache=np.zeros((*pages, s.latent), np.int8),
        kr_cache=np.zeros((*pages, s.rope), BF16),
        k_scale_cache=np.zeros((*pages, 4), np.float32),
    )
    for t in s.tokens:
        rows = dict(
            token_x=data.bf16(t, s.hidden),
            cos=data.bf16(t, s.rope),
            sin=data.bf16(t, s.rope),
            cache_index=7 * np.arange(t, dtype=np.int64),
        )
        call = functools.partial(dsakit.mla_prolog_quant, **rows, **fixed)
        yield Comparison(
            "mla_prolog_quant", tokens_of(t), call, mla_peers(s, data, w, t, False), **mla_work(s, t, False)
        )


def mla_prolog_v3(s):
    """All int8 but the absorption, packed cache rows."""
    data, pages = Data(), (64, 16, 1)
    w = mla_weights(s, data, codes=True)
    ours, down, wide = packed(w), s.latent + s.rope, s.heads * (s.nope + s.rope)
    fixed = dict(
        weight_dq=ours["dq"],
        weight_uq_qr=ours["uq"],
        weight_uk=ours["uk"],
        weight_dkv_kr=ours["dkv"],
        rmsnorm_gamma_cq=data.bf16(s.q_rank, low=0.5, high=1.5),
        rmsnorm_gamma_ckv=data.bf16(s.latent, low=0.5, high=1.5),
        kv_cache=dsakit.empty_kv_rows(*pages, kv_lora_rank=s.latent, rope_head_dim=s.rope),
        kr_cache=np.zeros(0, BF16),
        dequant_scale_w_dq=data.f32(1, s.q_rank, low=0.0001, high=0.001),
        dequant_scale_w_uq_qr=data.f32(1, wide, low=0.0001, high=0.001),
        dequant_scale_w_dkv_kr=data.f32(1, down, low=0.0001, high=0.001),
        k_nope_clip_alpha=np.ones(1, np.float32),
        query_norm_flag=True,
        weight_quant_mode=2,
        kv_cache_quant_mode=3,
        ckvkr_repo_mode=1,
        quant_scale_repo_mode=1,
    )
    for t in s.tokens:
        rows = dict(
            token_x=data.i8(t, s.hidden),
            dequant_scale_x=data.f32(t, 1, low=0.001, high=0.01),
            rope_sin=data.bf16(t, s.rope),
            rope_cos=data.bf16(t, s.rope),
            cache_index=7 * np.arange(t, dtype=np.int64),
        )
        call = functools.partial(dsakit.mla_prolog_v3, **rows, **fixed)
        yield Comparison("mla_prolog_v3", tokens_of(t), call, mla_peers(s, data, w, t, True), **mla_work(s, t, True))


def hadamard(n):
    signs = np.array([[(-1.0) ** (i & j).bit_count() for j in range(n)] for i in range(n)])
    return (signs / n**0.5).astype(BF16)


def lightning_indexer_prolog_quant(s):
    data, pages, wide = Data(), (64, 16, 1), s.index_heads * s.index_width
    copies = [
        dict(
            q=data.i8(s.q_rank, wide),
            k=data.bf16(s.hidden, s.index_width, low=-0.02, high=0.02),
            proj=data.bf16(s.hidden, s.index_heads, low=-0.02, high=0.02),
        )
        for _ in range(COPIES)
    ]
    ours = [packed(w) for w in copies]
    fixed = dict(
        w_qb_scale=data.f32(wide, 1, low=0.0001, high=0.001),
        ln_gamma_k=data.bf16(s.index_width),
        ln_beta_k=data.bf16(s.index_width),
        hadamard_q=hadamard(s.index_width),
        hadamard_k=hadamard(s.index_width),
        k_cache=np.zeros((*pages, s.index_width), np.int8),
        k_scale_cache=np.zeros((*pages, 1), np.float16),
    )
    for t in s.tokens:
        rows = dict(
            x=data.bf16(t, s.hidden),
            q_norm=data.i8(t, s.q_rank),
            q_norm_scale=data.f32(t, 1, low=0.01, high=0.02),
            cos=data.bf16(t, s.rope),
            sin=data.bf16(t, s.rope),
            k_cache_index=7 * np.arange(t, dtype=np.int64),
        )
        call = lambda w, rows=rows: functools.partial(
            dsakit.lightning_indexer_prolog_quant, w_qb=w["q"], wk=w["k"], w_proj=w["proj"], **rows, **fixed
        )

        def onednn_packed(t=t, rows=rows):
            x, c = tensor(rows["x"]), unsigned(rows["q_norm"])
            return by_turns(
                [
                    products((onednn_int8(w["q"], t), c), (onednn(w["k"], t), x), (onednn(w["proj"], t), x))
                    for w in copies
                ]
            )

        def plain(dtype, rows=rows):
            x, c = tensor(rows["x"]).to(dtype), tensor(rows["q_norm"]).to(dtype)
            return by_turns(
                [
                    products((linear(w["q"], dtype), c), (linear(w["k"], dtype), x), (linear(w["proj"], dtype), x))
                    for w in copies
                ]
            )

        hidden = s.hidden * (s.index_width + s.index_heads)
        yield Comparison(
            "lightning_indexer_prolog_quant",
            tokens_of(t),
            by_turns([call(w) for w in ours]),
            peers(
                oneDNN_packed=onednn_packed,
                torch_bf16=lambda: plain(torch.bfloat16),
                torch_fp32=lambda: plain(torch.float32),
            ),
            bytes=s.q_rank * wide + 2 * hidden,
            i8_ops=2 * t * s.q_rank * wide,
            bf16_flops=2 * t * hidden,
        )


# Selection and attention.


def quant_lightning_indexer(s):
    """Scores of all keys and the positions of the best; theirs: a product, relu, the sum over the heads, topk."""
    data, block = Data(), 128
    for keys, t in [(keys, t) for keys in s.keys for t in (1, 4)]:
        query, key = data.i8(t, s.index_heads, s.index_width), data.i8(keys, s.index_width)
        weights, q_scale = data.f16(t, s.index_heads), data.f16(t, s.index_heads)
        key_scale = data.f16(keys)
        call = functools.partial(
            dsakit.quant_lightning_indexer,
            query,
            key.reshape(keys // block, block, 1, s.index_width),
            weights,
            q_scale,
            key_scale.reshape(keys // block, block, 1),
            actual_seq_lengths_query=np.array([t], np.int32),
            actual_seq_lengths_key=np.array([keys], np.int32),
            block_table=np.arange(keys // block, dtype=np.int32)[None],
            layout_query="TND",
            layout_key="PA_BSND",
            sparse_count=s.selected,
            sparse_mode=0,
        )

        def composed(product, query=query, weights=weights, q_scale=q_scale, key_scale=key_scale, t=t):
            q = tensor(query).reshape(-1, s.index_width)
            w = (tensor(weights).float() * tensor(q_scale).float()).bfloat16()[:, None]
            scale = tensor(key_scale).float()

            def call():
                scores = torch.relu(product(q)).bfloat16().view(t, s.index_heads, -1)
                return torch.topk(torch.bmm(w, scores)[:, 0].float() * scale, s.selected).indices

            return call

        def int8(key=key, composed=composed):
            columns = tensor(key).t()
            return composed(lambda q: torch._int_mm(q, columns))

        def bf16(key=key, composed=composed):
            columns = tensor(key).bfloat16().t()
            return composed(lambda q: q.bfloat16() @ columns)

        yield Comparison(
            "quant_lightning_indexer",
            f"{keys // 1024}K keys, {tokens_of(t)}" if keys >= 1024 else f"{keys} keys, {tokens_of(t)}",
            call,
            peers(torch_int8=int8, torch_bf16=bf16),
            bytes=keys * (s.index_width + 2),
            i8_ops=2 * keys * t * s.index_heads * s.index_width,
            difference=strangers,
        )


def sparse_attention(s, data, t, rows, ours, name, row_bytes):
    """rows: makes the tensor [t, selected, latent + rope] of what has been selected."""
    query = data.bf16(t, s.heads, s.latent + s.rope)
    scale = float((s.nope + s.rope) ** -0.5)

    def products():
        q, get = tensor(query), rows()

        def call():
            kv = get()
            p = torch.softmax(torch.bmm(q, kv.transpose(1, 2)).float() * scale, -1).bfloat16()
            return torch.bmm(p, kv[..., : s.latent])

        return call

    def sdpa():
        q, get = tensor(query)[:, None], rows()

        def call():
            kv = get()[:, None]
            return torch.nn.functional.scaled_dot_product_attention(q, kv, kv[..., : s.latent], scale=scale)

        return call

    return Comparison(
        name,
        f"{s.selected} of {s.context}, {tokens_of(t)}",
        lambda: ours(query, scale)[0],
        peers(torch_gather_and_bmm=products, torch_gather_and_SDPA=sdpa),
        bytes=t * s.selected * row_bytes,
        bf16_flops=2 * t * s.heads * s.selected * (2 * s.latent + s.rope),
        difference=rms,
    )


def lengths_of(s, t):
    return dict(
        actual_seq_lengths_query=np.array([t], np.int32),
        actual_seq_lengths_kv=np.array([s.context], np.int32),
        block_table=np.arange(s.context // 128, dtype=np.int32)[None],
        layout_query="TND",
        layout_kv="PA_BSND",
        attention_mode=2,
    )


def sparse_flash_attention(s):
    data = Data()
    latent, rope = data.bf16(s.context, s.latent), data.bf16(s.context, s.rope)
    pages = lambda x: x.reshape(s.context // 128, 128, 1, -1)
    for t in s.tokens[:3]:
        chosen = data.positions(s.context - t, t, 1, s.selected)

        def rows(chosen=chosen):
            kv, places = torch.cat([tensor(latent), tensor(rope)], 1), tensor(chosen)[:, 0].long()
            return lambda: kv[places]

        def ours(query, scale, chosen=chosen, t=t):
            return dsakit.sparse_flash_attention(
                query[..., : s.latent],
                pages(latent),
                pages(latent),
                chosen,
                scale,
                query_rope=query[..., s.latent :],
                key_rope=pages(rope),
                **lengths_of(s, t),
            )

        row_bytes = 2 * (s.latent + s.rope)
        yield sparse_attention(s, data, t, rows, ours, "sparse_flash_attention", row_bytes)


def kv_quant_sparse_flash_attention(s):
    data, tile = Data(), 128
    codes, rope = data.i8(s.context, s.latent), data.bf16(s.context, s.rope)
    scales = data.f32(s.context, s.latent // tile, low=0.001, high=0.01)
    rows8 = np.concatenate([x.view(np.int8) for x in (codes, rope, scales)], 1)
    cache = rows8.reshape(s.context // 128, 128, 1, -1)
    for t in s.tokens[:3]:
        chosen = data.positions(s.context - t, t, 1, s.selected)

        def rows(chosen=chosen):
            places = tensor(chosen)[:, 0].long()
            parts = [tensor(x) for x in (codes, rope, scales)]

            def gather():
                latent, turned, scale = (part[places] for part in parts)
                latent = latent.unflatten(-1, (-1, tile)) * scale[..., None]
                return torch.cat([latent.flatten(-2).bfloat16(), turned], -1)

            return gather

        def ours(query, scale, chosen=chosen, t=t):
            out = dsakit.kv_quant_sparse_flash_attention(
                query, cache, cache, chosen, scale, 2, 2, tile_size=tile, rope_head_dim=s.rope, **lengths_of(s, t)
            )
            return (out,)

        row_bytes = s.latent + 2 * s.rope + 4 * (s.latent // tile)
        yield sparse_attention(s, data, t, rows, ours, "kv_quant_sparse_flash_attention", row_bytes)


def fused_infer_attention_score_v2(s):
    """Dense, bf16; with several queries causal."""
    for batch, heads, key_heads, queries, keys, width in s.attention:
        data = Data()
        q = data.bf16(batch, heads, queries, width)
        k, v = data.bf16(batch, key_heads, keys, width), data.bf16(batch, key_heads, keys, width)
        causal = queries > 1

        def ours(q=q, k=k, v=v, heads=heads, key_heads=key_heads, width=width, causal=causal):
            return dsakit.fused_infer_attention_score_v2(
                q,
                k,
                v,
                num_query_heads=heads,
                num_key_value_heads=key_heads,
                softmax_scale=width**-0.5,
                input_layout="BNSD",
                sparse_mode=3 if causal else 0,
            )[0]

        def sdpa(q=q, k=k, v=v, causal=causal, groups=key_heads < heads):
            q, k, v = tensor(q), tensor(k), tensor(v)
            return lambda: torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=causal, enable_gqa=groups
            )

        pairs = queries * (queries + 1) / 2 if causal else keys
        what = f"causal prefill of {queries}" if causal else f"decode behind {keys}, batch {batch}"
        yield Comparison(
            "fused_infer_attention_score_v2",
            f"{what}, {heads}/{key_heads} heads of {width}",
            ours,
            peers(torch_SDPA=sdpa),
            bytes=2 * batch * width * (2 * keys * key_heads + 2 * queries * heads),
            bf16_flops=4 * batch * heads * pairs * width,
            difference=rms,
        )


# One product, and rows.


def quant_matmul(s):
    """The index queries: int8 rows and columns with scales, to bf16. oneDNN's: one scale for all rows."""
    data, n = Data(), s.index_heads * s.index_width
    copies = [data.i8(s.q_rank, n) for _ in range(COPIES)]
    ours, column = [dsakit.pack_weight(w) for w in copies], data.f32(n, low=0.0001, high=0.001)
    for t in s.tokens:
        x, row = data.i8(t, s.q_rank), data.f32(t, low=0.001, high=0.01)
        call = lambda w, x=x, row=row: functools.partial(
            dsakit.quant_matmul, x, w, column, pertoken_scale=row, output_dtype="bfloat16"
        )

        def onednn_packed(x=x, t=t):
            rows = unsigned(x)
            return by_turns([functools.partial(onednn_int8(w, t), rows) for w in copies])

        def int_mm(x=x, row=row):
            rows, across, down = tensor(x), tensor(row)[:, None], tensor(column)
            turned = [tensor(w).t().contiguous().t() for w in copies]
            one = lambda w: lambda: (torch._int_mm(rows, w) * across * down).bfloat16()
            return by_turns([one(w) for w in turned])

        yield Comparison(
            "quant_matmul",
            f"{s.q_rank} x {n}, {tokens_of(t)}",
            by_turns([call(w) for w in ours]),
            peers(oneDNN_packed=onednn_packed, torch_int_mm=int_mm),
            bytes=s.q_rank * n + t * s.q_rank + 2 * t * n,
            i8_ops=2 * t * s.q_rank * n,
        )


def rows(s):
    """Operators of rows, beside torch's own functions or, where it has none, a few of them."""
    data, t, n = Data(), s.rows, s.hidden
    x, gamma = data.bf16(t, n), data.bf16(n, low=0.5, high=1.5)
    gated = data.bf16(t, 2 * s.intermediate, low=-4.0, high=4.0)
    turned, cos, sin = data.bf16(t, s.heads, 1, s.rope), data.bf16(t, 1, 1, s.rope), data.bf16(t, 1, 1, s.rope)

    def quantised():
        rows = tensor(x)

        def call():
            wide = rows.float()
            scale = wide.abs().amax(-1, keepdim=True) / 127
            return (wide / scale).round().to(torch.int8)

        return call

    def normed():
        rows, weight = tensor(x), tensor(gamma)
        return lambda: torch.nn.functional.rms_norm(rows, (n,), weight, 1e-6)

    def swished():
        rows = tensor(gated)

        def call():
            a, b = rows.chunk(2, -1)
            return torch.nn.functional.silu(a) * b

        return call

    def rotated():
        rows, c, s = tensor(turned), tensor(cos), tensor(sin)

        def call():
            y = torch.cat([rows[..., ::2], rows[..., 1::2]], -1)
            a, b = y.chunk(2, -1)
            return y * c + torch.cat([-b, a], -1) * s

        return call

    size = f"{t} x "
    each = functools.partial(Comparison, difference=rms)
    quant = lambda: dsakit.dynamic_quant(x)[0]
    yield each("dynamic_quant", f"{size}{n}", quant, peers(torch_eager=quantised), bytes=3 * t * n)
    norm = lambda: dsakit.rms_norm(x, gamma)[0]
    yield each("rms_norm", f"{size}{n}", norm, peers(torch=normed), bytes=4 * t * n)
    swiglu = lambda: dsakit.swiglu(gated)
    yield each(
        "swiglu", f"{size}{2 * s.intermediate}", swiglu, peers(torch_eager=swished), bytes=6 * t * s.intermediate
    )
    rope = lambda: dsakit.interleave_rope(turned, cos, sin)
    work = 4 * turned.size + 4 * t * s.rope
    yield each("interleave_rope", f"{size}{s.heads} x {s.rope}", rope, peers(torch_eager=rotated), bytes=work)


def layer(s):
    """A decode step of one layer in transformers: eager, and with dsakit.hf, its MLP too."""
    if not s.layer:
        return
    try:
        import bench_hf
    except ImportError as error:
        absent = {"transformers eager": reason(error)}
        yield Comparison("layer", f"decode step behind {s.layer[0]} tokens", None, absent, one_thread=False)
        return
    eager, ours = (bench_hf.model_of(torch.bfloat16) for _ in range(2))
    bench_hf.hf.accelerate(ours, mlps=True)
    weights = sum(p.numel() for p in eager.parameters()) - eager.get_input_embeddings().weight.numel()
    step = lambda model, cache: lambda: bench_hf.step(model, cache)
    for tokens in s.layer:
        data = bench_hf.rows_of(tokens)
        mine = bench_hf.paged_cache(ours, data, tokens)
        after = {"ours": functools.partial(mine.crop, -1)}
        if (needed := bench_hf.eager_bytes(tokens, torch.bfloat16)) <= memory() / 2:
            cache = bench_hf.eager_cache(eager, data, torch.bfloat16)
            theirs = {"transformers eager": step(eager, cache)}
            after["transformers eager"] = functools.partial(cache.crop, -1)
        else:
            theirs = {"transformers eager": f"it would take {needed / 1e9:.1f} GB"}
        attention = s.heads * s.selected * (2 * s.latent + s.rope)
        yield Comparison(
            "layer",
            f"decode step behind {tokens} tokens",
            step(ours, mine),
            theirs,
            bytes=2 * (weights + tokens * s.index_width + s.selected * (s.latent + s.rope)),
            bf16_flops=2 * (weights + tokens * s.index_heads * s.index_width + attention),
            difference=rms,
            after=after,
            one_thread=False,
        )


def memory():
    """Bytes that this machine has."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


ALL = (
    mla_prolog_quant,
    mla_prolog_v3,
    lightning_indexer_prolog_quant,
    quant_lightning_indexer,
    sparse_flash_attention,
    kv_quant_sparse_flash_attention,
    fused_infer_attention_score_v2,
    quant_matmul,
    rows,
    layer,
)
