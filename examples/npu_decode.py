# SPDX-License-Identifier: Apache-2.0
"""A decode step of one DeepSeek-V3.2 attention layer as it is written for an NPU: torch and torch_npu only.

    python -m dsakit.npu examples/npu_decode.py [--heads 8] [--tokens 4] [--cached 4096] [--caches C8|C16|mixed] [--check]

With --check the same steps are computed with dsakit's own functions on numpy arrays, and every result and cache has to have
the same bits.
"""

import argparse

import torch
import torch_npu

HE, HCQ, D, DR, LATENT, NI, DI, DV, PAGE = 7168, 1536, 128, 64, 512, 64, 128, 128, 128
NZ = 29


def weights(heads, generator):
    """Random weights in the formats of the layer: int8 by channel, what is multiplied often in FRACTAL_NZ."""
    int8 = lambda *s: torch.randint(-127, 128, s, dtype=torch.int8, generator=generator)
    bf16 = lambda *s: ((torch.rand(s, generator=generator) - 0.5) * 0.1).to(torch.bfloat16)
    scale = lambda *s: torch.rand(s, generator=generator) * 1e-4 + 1e-5
    cast = lambda w: torch_npu.npu_format_cast(w, NZ)
    return dict(
        weight_dq=cast(int8(HE, HCQ)),
        weight_uq_qr=cast(int8(HCQ, heads * (D + DR))),
        weight_uk=bf16(heads, D, LATENT),
        weight_dkv_kr=cast(int8(HE, LATENT + DR)),
        rmsnorm_gamma_cq=bf16(HCQ) + 1,
        rmsnorm_gamma_ckv=bf16(LATENT) + 1,
        dequant_scale_w_dq=scale(1, HCQ),
        dequant_scale_w_uq_qr=scale(1, heads * (D + DR)),
        dequant_scale_w_dkv_kr=scale(1, LATENT + DR),
        wk_weights=bf16(HE, DI + NI),
        ln_gamma=bf16(DI).float() + 1,
        ln_beta=bf16(DI).float(),
        wq_b=cast(int8(HCQ, NI * DI)),
        wq_b_scale=scale(NI * DI),
        w_uv=bf16(heads, LATENT, DV),
        w_o=bf16(heads * DV, HE),
    )


def hadamard():
    h = torch.ones(1, 1)
    while h.shape[0] < DI:
        h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)])
    return (h / DI**0.5).to(torch.bfloat16)


def caches(kind, pages, generator):
    """C8: packed int8 rows and int8 index keys; C16: bf16; mixed: bf16 rows and int8 index keys."""
    bf16 = lambda *s: ((torch.rand(s, generator=generator) - 0.5)).to(torch.bfloat16)
    made = {}
    if kind == "C8":
        codes = torch.randint(-127, 128, (pages * PAGE, LATENT), dtype=torch.int8, generator=generator)
        scales = torch.rand(pages * PAGE, 4, generator=generator) * 0.01
        rope = bf16(pages * PAGE, DR)
        row = torch.cat([codes, rope.view(torch.int8), scales.view(torch.int8)], -1)
        made["kv"], made["kr"] = row.view(pages, PAGE, 1, -1).contiguous(), torch.empty(0, dtype=torch.bfloat16)
    else:
        made["kv"], made["kr"] = bf16(pages, PAGE, 1, LATENT), bf16(pages, PAGE, 1, DR)
    if kind == "C16":
        made["index"] = bf16(pages, PAGE, 1, DI)
    else:
        made["index"] = torch.randint(-127, 128, (pages, PAGE, 1, DI), dtype=torch.int8, generator=generator)
        made["index_scale"] = (torch.rand(pages, PAGE, 1, 1, generator=generator) * 0.01).half()
    return made


def rope_first(x, cos, sin, rotary_mul):
    """RoPE on the first 64 dims of [T, n, 128]."""
    rotated = rotary_mul(x[..., :DR].unsqueeze(1), cos[:, None, None], sin[:, None, None]).squeeze(1)
    return torch.cat([rotated, x[..., DR:]], -1)


def decode(ops, w, cache, kind, x, cos, sin, slots, block_table, query_totals, key_lengths, topk):
    """Steps 1 to 10; `ops` has the operators."""
    tokens, packed, quantised = x.shape[0], kind == "C8", kind != "C16"
    x8, x_scale = ops.npu_dynamic_quant(x)
    names = "weight_dq weight_uq_qr weight_uk weight_dkv_kr rmsnorm_gamma_cq rmsnorm_gamma_ckv".split()
    scales = {n: w[n] for n in w if n.startswith("dequant_scale_w_")}
    modes = dict(weight_quant_mode=2, query_norm_flag=True, cache_mode="PA_BSND")
    if packed:
        modes |= dict(kv_cache_quant_mode=3, ckvkr_repo_mode=1, quant_scale_repo_mode=1, k_nope_clip_alpha=torch.ones(1))
    query, query_rope, _, query_norm, query_norm_scale = ops.npu_mla_prolog_v3(
        x8, *(w[n] for n in names), sin, cos, cache["kv"], cache["kr"], cache_index=slots,
        dequant_scale_x=x_scale.view(-1, 1), **scales, **modes,
    )  # fmt: skip

    projected = x @ w["wk_weights"]
    key, head_weights = projected[:, :DI].contiguous(), projected[:, DI:].contiguous()
    key = torch.nn.functional.layer_norm(key.float(), (DI,), w["ln_gamma"], w["ln_beta"], 1e-6).to(torch.bfloat16)
    key = rope_first(key.view(tokens, 1, DI), cos, sin, ops.npu_rotary_mul)
    if quantised:
        key, key_scale = ops.npu_dynamic_quant((key @ hadamard()).view(tokens, DI))
        ops.npu_scatter_nd_update_(cache["index_scale"].view(-1, 1), slots.view(-1, 1), key_scale.view(-1, 1).half())
    ops.npu_scatter_nd_update_(cache["index"].view(-1, DI), slots.view(-1, 1), key.view(-1, DI))

    index_query = ops.npu_quant_matmul(
        query_norm, w["wq_b"], w["wq_b_scale"], pertoken_scale=query_norm_scale.view(-1), output_dtype=torch.bfloat16
    ).view(tokens, NI, DI)
    index_query = rope_first(index_query, cos, sin, ops.npu_rotary_mul)
    paged = dict(actual_seq_lengths_query=query_totals, block_table=block_table, layout_query="TND")
    select = dict(paged, actual_seq_lengths_key=key_lengths, layout_key="PA_BSND", sparse_count=topk, sparse_mode=3)
    if quantised:
        index_query, index_query_scale = ops.npu_dynamic_quant(index_query @ hadamard())
        indices = ops.npu_quant_lightning_indexer(
            index_query, cache["index"], head_weights.half(), index_query_scale.half(), cache["index_scale"].view(-1, PAGE, 1),
            query_quant_mode=0, key_quant_mode=0, **select,
        )  # fmt: skip
    else:
        indices = ops.npu_lightning_indexer(index_query, cache["index"], head_weights, **select)[0]

    scale = (D + DR) ** -0.5
    attend = dict(paged, actual_seq_lengths_kv=key_lengths, layout_kv="PA_BSND", sparse_mode=3, attention_mode=2)
    kv = cache["kv"]
    if packed:
        query = torch.cat([query, query_rope], -1)
        attended = ops.npu_kv_quant_sparse_flash_attention(
            query, kv, kv, indices, scale, key_quant_mode=2, value_quant_mode=2, **attend
        )
    else:
        attended = ops.npu_sparse_flash_attention(
            query, kv, kv, indices, scale, query_rope=query_rope, key_rope=cache["kr"], **attend
        )[0]
    values = ops.npu_transpose_batchmatmul(attended, w["w_uv"], perm_x1=[1, 0, 2])
    return indices, attended, values.reshape(tokens, -1) @ w["w_o"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=4)
    parser.add_argument("--cached", type=int, default=4096)
    parser.add_argument("--topk", type=int, default=2048)
    parser.add_argument("--caches", choices=("C8", "C16", "mixed"), default="C8")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()

    generator = torch.Generator().manual_seed(1)
    w = weights(options.heads, generator)
    tokens = options.tokens
    pages = -(-(options.cached + tokens) // PAGE)
    cache = caches(options.caches, pages + 1, generator)
    x = (torch.rand(tokens, HE, generator=generator) - 0.5).to(torch.bfloat16).npu()
    angle = torch.rand(tokens, DR, generator=generator)
    table = torch.randperm(pages + 1, generator=generator)[:pages].to(torch.int32).view(1, -1)
    positions = torch.arange(options.cached, options.cached + tokens)
    slots = table[0, positions // PAGE].long() * PAGE + positions % PAGE
    slots[-1:] = -1 if tokens > 1 else slots[-1:]  # a token that is not stored
    call = (angle.cos().to(torch.bfloat16), angle.sin().to(torch.bfloat16), slots, table)
    call += (torch.tensor([tokens], dtype=torch.int32), torch.tensor([options.cached + tokens], dtype=torch.int32))

    before = {n: t.clone() for n, t in cache.items()}
    indices, attended, out = decode(torch_npu, w, cache, options.caches, x, *call, options.topk)
    print(f"{tokens} tokens over {options.cached} positions, {options.heads} heads, {options.caches}: "
          f"{indices.shape[-1]} selected, output {list(out.shape)}, rms {out.float().pow(2).mean().sqrt():.4g}")  # fmt: skip
    if options.check:
        check(w, before, cache, options, x, call, (indices, attended, out))


def check(w, before, cache, options, x, call, results):
    """The same steps as dsakit's functions on numpy arrays."""
    import dsakit
    import ml_dtypes
    import numpy as np

    def array(v):
        if not isinstance(v, torch.Tensor):
            return v
        return v.view(torch.int16).numpy().view(ml_dtypes.bfloat16) if v.dtype == torch.bfloat16 else v.numpy()

    def tensor(v):
        if not isinstance(v, np.ndarray):
            return v
        return torch.from_numpy(v.view(np.int16)).view(torch.bfloat16) if v.dtype == ml_dtypes.bfloat16 else torch.from_numpy(v)

    class Operators:
        def __getattr__(self, name):
            def call(*args, **kwargs):
                found = getattr(dsakit, name)(*map(array, args), **{k: array(v) for k, v in kwargs.items()})
                return tuple(map(tensor, found)) if isinstance(found, tuple) else tensor(found)

            return call

    again = decode(Operators(), w, before, options.caches, x, *call, options.topk)
    for name, a, b in zip(("selection", "attention", "output"), results, again):
        assert torch.equal(a, b), name
    for name in cache:
        assert torch.equal(cache[name], before[name]), name
    print("the same bits, caches included")


if __name__ == "__main__":
    main()
