# SPDX-License-Identifier: Apache-2.0
"""A decode step of one DeepSeek-V3.2 or GLM-5 attention layer as it is written for an NPU: torch and torch_npu only.

    python -m dsakit.npu examples/npu_decode.py [--model V3.2|GLM-5] [--heads 8] [--tokens 4] [--cached 4096]
                                                [--caches C8|C16|mixed] [--prefill]

--prefill makes queries and cache rows with single operators in place of the fused prolog.
"""

import argparse
from typing import NamedTuple

import torch
import torch_npu

PAGE, NZ = 128, 29


class Sizes(NamedTuple):
    """Widths of a layer; `heads` are those of this card."""

    hidden: int
    q_rank: int
    heads: int
    nope: int
    value: int
    index_heads: int
    scale: float
    epsilon: float
    index_rotary: str
    rope: int = 64
    latent: int = 512
    index_width: int = 128


V32 = Sizes(7168, 1536, 8, 128, 128, 64, scale=0.1352338, epsilon=1e-6, index_rotary="half")
GLM5 = Sizes(6144, 2048, 8, 192, 256, 32, scale=0.0625, epsilon=1e-5, index_rotary="interleave")


class Batch(NamedTuple):
    """The tokens of a step, and where they stand."""

    x: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor
    slots: torch.Tensor  # -1: not stored
    block_table: torch.Tensor
    query_totals: torch.Tensor
    key_lengths: torch.Tensor


def weights(s, generator):
    """Random weights in the formats of the layer: int8 by channel, what is multiplied often in FRACTAL_NZ."""
    int8 = lambda *shape: torch.randint(-127, 128, shape, dtype=torch.int8, generator=generator)
    bf16 = lambda *shape: ((torch.rand(shape, generator=generator) - 0.5) * 0.1).to(torch.bfloat16)
    scale = lambda n: torch.rand(1, n, generator=generator) * 1e-4 + 1e-5
    cast = lambda w: torch_npu.npu_format_cast(w, NZ)
    dq, dkv = int8(s.hidden, s.q_rank), int8(s.hidden, s.latent + s.rope)
    return dict(
        weight_dq=cast(dq),
        weight_uq_qr=cast(int8(s.q_rank, s.heads * (s.nope + s.rope))),
        weight_uk=bf16(s.heads, s.nope, s.latent),
        weight_dkv_kr=cast(dkv),
        weight_dq_dkv=cast(torch.cat([dq, dkv], 1)),  # of the prolog that is not fused
        rmsnorm_gamma_cq=bf16(s.q_rank) + 1,
        rmsnorm_gamma_ckv=bf16(s.latent) + 1,
        dequant_scale_w_dq=scale(s.q_rank),
        dequant_scale_w_uq_qr=scale(s.heads * (s.nope + s.rope)),
        dequant_scale_w_dkv_kr=scale(s.latent + s.rope),
        wk_weights=bf16(s.hidden, s.index_width + s.index_heads),
        ln_gamma=bf16(s.index_width).float() + 1,
        ln_beta=bf16(s.index_width).float(),
        wq_b=cast(int8(s.q_rank, s.index_heads * s.index_width)),
        wq_b_scale=scale(s.index_heads * s.index_width)[0],
        w_uv=bf16(s.heads, s.latent, s.value),
        w_o=bf16(s.heads * s.value, s.hidden),
        hadamard=hadamard(s.index_width),
    )


def hadamard(n):
    h = torch.ones(1, 1)
    while h.shape[0] < n:
        h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)])
    return (h / n**0.5).to(torch.bfloat16)


def caches(s, kind, pages, generator):
    """C8: packed int8 rows and int8 index keys; C16: bf16; mixed: bf16 rows and int8 index keys."""
    bf16 = lambda *shape: (torch.rand(shape, generator=generator) - 0.5).to(torch.bfloat16)
    int8 = lambda *shape: torch.randint(-127, 128, shape, dtype=torch.int8, generator=generator)
    made = {}
    if kind == "C8":
        scales = torch.rand(pages, PAGE, 1, s.latent // 128, generator=generator) * 0.01
        parts = int8(pages, PAGE, 1, s.latent), bf16(pages, PAGE, 1, s.rope), scales
        made["kv"] = torch.cat([part.view(torch.int8) for part in parts], -1)
        made["kr"] = torch.empty(0, dtype=torch.bfloat16)
    else:
        made["kv"], made["kr"] = bf16(pages, PAGE, 1, s.latent), bf16(pages, PAGE, 1, s.rope)
    if kind == "C16":
        made["index"] = bf16(pages, PAGE, 1, s.index_width)
    else:
        made["index"] = int8(pages, PAGE, 1, s.index_width)
        made["index_scale"] = (torch.rand(pages, PAGE, 1, 1, generator=generator) * 0.01).half()
    return made


def batch(s, sequences, generator, skip=False):
    """`sequences`: for each its new tokens (1 + drafts) and how many are cached. `skip`: the last token is not stored."""
    new = torch.tensor([n for n, _ in sequences], dtype=torch.int32)
    lengths = torch.tensor([n + cached for n, cached in sequences], dtype=torch.int32)
    pages = -(-lengths // PAGE)
    order = torch.randperm(int(pages.sum()), generator=generator).to(torch.int32)
    table = torch.full((len(sequences), int(pages.max())), -1, dtype=torch.int32)
    table[torch.arange(int(pages.max())) < pages[:, None]] = order
    row = torch.repeat_interleave(torch.arange(len(sequences)), new)
    positions = torch.cat([torch.arange(cached, cached + n) for n, cached in sequences])
    slots = table[row, positions // PAGE].long() * PAGE + positions % PAGE
    if skip:
        slots[-1] = -1
    angle = positions[:, None] * 10000.0 ** (-torch.arange(0, s.rope, 2) / s.rope)
    angle = torch.cat([angle, angle], 1)
    x = (torch.rand(len(positions), s.hidden, generator=generator) - 0.5).to(torch.bfloat16)
    cos, sin = angle.cos().to(torch.bfloat16), angle.sin().to(torch.bfloat16)
    return Batch(x.npu(), cos, sin, slots, table, new.cumsum(0, dtype=torch.int32), lengths)


def prolog(ops, s, w, cache, kind, batch):
    """Steps 1 and 2, fused: queries, and rows in the caches."""
    x, x_scale = ops.npu_dynamic_quant(batch.x)
    names = "weight_dq weight_uq_qr weight_uk weight_dkv_kr rmsnorm_gamma_cq rmsnorm_gamma_ckv".split()
    modes = dict(weight_quant_mode=2, query_norm_flag=True, cache_mode="PA_BSND")
    if kind == "C8":
        alpha = torch.ones(1)
        modes |= dict(kv_cache_quant_mode=3, ckvkr_repo_mode=1, quant_scale_repo_mode=1, k_nope_clip_alpha=alpha)
    query, query_rope, _, query_norm, query_norm_scale = ops.npu_mla_prolog_v3(
        x, *(w[n] for n in names), batch.sin, batch.cos, cache["kv"], cache["kr"], cache_index=batch.slots,
        dequant_scale_x=x_scale.view(-1, 1), **{n: w[n] for n in w if n.startswith("dequant_scale_w_")},
        rmsnorm_epsilon_cq=s.epsilon, rmsnorm_epsilon_ckv=s.epsilon, **modes,
    )  # fmt: skip
    return query, query_rope, query_norm, query_norm_scale.view(-1)


def prolog_by_parts(ops, s, w, cache, kind, batch):
    """The same with single operators, as prefill has it."""
    tokens, bf16 = batch.x.shape[0], torch.bfloat16
    x, x_scale = ops.npu_dynamic_quant(batch.x)
    scale = torch.cat([w["dequant_scale_w_dq"], w["dequant_scale_w_dkv_kr"]], 1)[0]
    projected = ops.npu_quant_matmul(x, w["weight_dq_dkv"], scale, pertoken_scale=x_scale, output_dtype=bf16)
    cos, sin = batch.cos.view(tokens, 1, 1, -1), batch.sin.view(tokens, 1, 1, -1)

    q = ops.npu_rms_norm(projected[:, : s.q_rank].contiguous(), w["rmsnorm_gamma_cq"], s.epsilon)[0]
    query_norm, query_norm_scale = ops.npu_dynamic_quant(q)
    scale = w["dequant_scale_w_uq_qr"][0]
    q = ops.npu_quant_matmul(query_norm, w["weight_uq_qr"], scale, pertoken_scale=query_norm_scale, output_dtype=bf16)
    q = q.view(tokens, s.heads, s.nope + s.rope)
    query = ops.npu_transpose_batchmatmul(q[..., : s.nope].contiguous(), w["weight_uk"], perm_x1=[1, 0, 2])
    query_rope = ops.npu_interleave_rope(q[..., s.nope :].view(tokens, s.heads, 1, s.rope), cos, sin)

    latent_rope = projected[:, s.q_rank :].view(tokens, 1, 1, -1)
    if kind == "C8":
        latent = latent_rope[..., : s.latent].contiguous().view(tokens, -1)
        latent = ops.npu_rms_norm(latent, w["rmsnorm_gamma_ckv"], s.epsilon)[0]
        codes, scales = ops.npu_dynamic_block_quant(latent)
        rope = ops.npu_interleave_rope(latent_rope[..., s.latent :], cos, sin).view(tokens, -1)
        rows = torch.cat([part.view(torch.int8) for part in (codes, rope, scales)], -1)
        ops.npu_scatter_nd_update_(cache["kv"].view(-1, rows.shape[1]), batch.slots.view(-1, 1), rows)
    else:
        ops.npu_kv_rmsnorm_rope_cache(
            latent_rope, w["rmsnorm_gamma_ckv"], cos, sin, batch.slots, cache["kr"], cache["kv"],
            epsilon=s.epsilon, cache_mode="PA",
        )  # fmt: skip
    return query, query_rope.view(tokens, s.heads, s.rope), query_norm, query_norm_scale


def rotated(ops, s, x, batch):
    """RoPE on the first dims of [T, n, index_width]."""
    cos, sin = batch.cos[:, None, None], batch.sin[:, None, None]
    first = ops.npu_rotary_mul(x[..., : s.rope].unsqueeze(1), cos, sin, s.index_rotary).squeeze(1)
    return torch.cat([first, x[..., s.rope :]], -1)


def select(ops, s, w, cache, kind, batch, query_norm, query_norm_scale, topk):
    """Steps 3 to 8: index keys into the cache, then the best positions of each token."""
    tokens, width, quantised = batch.x.shape[0], s.index_width, kind != "C16"
    projected = batch.x @ w["wk_weights"]
    key, head_weights = projected[:, :width], projected[:, width:].contiguous()
    key = torch.nn.functional.layer_norm(key.float(), (width,), w["ln_gamma"], w["ln_beta"], 1e-6).to(torch.bfloat16)
    key = rotated(ops, s, key.view(tokens, 1, width), batch).view(tokens, width)
    slots = batch.slots.view(-1, 1)
    if quantised:
        key, key_scale = ops.npu_dynamic_quant(key @ w["hadamard"])
        ops.npu_scatter_nd_update_(cache["index_scale"].view(-1, 1), slots, key_scale.view(-1, 1).half())
    ops.npu_scatter_nd_update_(cache["index"].view(-1, width), slots, key)

    query = ops.npu_quant_matmul(
        query_norm, w["wq_b"], w["wq_b_scale"], pertoken_scale=query_norm_scale, output_dtype=torch.bfloat16
    )
    query = rotated(ops, s, query.view(tokens, s.index_heads, width), batch)
    how = dict(
        actual_seq_lengths_query=batch.query_totals, actual_seq_lengths_key=batch.key_lengths, block_table=batch.block_table,
        layout_query="TND", layout_key="PA_BSND", sparse_count=topk, sparse_mode=3,
    )  # fmt: skip
    if not quantised:
        return ops.npu_lightning_indexer(query, cache["index"], head_weights, **how)[0]
    query, query_scale = ops.npu_dynamic_quant(query @ w["hadamard"])
    return ops.npu_quant_lightning_indexer(
        query, cache["index"], head_weights.half(), query_scale.half(), cache["index_scale"].view(-1, PAGE, 1),
        query_quant_mode=0, key_quant_mode=0, **how,
    )  # fmt: skip


def attend(ops, s, cache, kind, batch, query, query_rope, indices):
    """Step 9."""
    kv = cache["kv"]
    how = dict(
        actual_seq_lengths_query=batch.query_totals, actual_seq_lengths_kv=batch.key_lengths, block_table=batch.block_table,
        layout_query="TND", layout_kv="PA_BSND", sparse_mode=3, attention_mode=2,
    )  # fmt: skip
    if kind == "C8":
        query = torch.cat([query, query_rope], -1)
        return ops.npu_kv_quant_sparse_flash_attention(
            query, kv, kv, indices, s.scale, key_quant_mode=2, value_quant_mode=2, **how
        )
    return ops.npu_sparse_flash_attention(
        query, kv, kv, indices, s.scale, query_rope=query_rope, key_rope=cache["kr"], **how
    )[0]


def decode(ops, s, w, cache, kind, batch, topk=2048, prolog=prolog):
    """Steps 1 to 10; `ops` has the operators. Selection, attention in the latent space, output."""
    query, query_rope, query_norm, query_norm_scale = prolog(ops, s, w, cache, kind, batch)
    indices = select(ops, s, w, cache, kind, batch, query_norm, query_norm_scale, topk)
    attended = attend(ops, s, cache, kind, batch, query, query_rope, indices)
    values = ops.npu_transpose_batchmatmul(attended, w["w_uv"], perm_x1=[1, 0, 2])
    return indices, attended, values.reshape(batch.x.shape[0], -1) @ w["w_o"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=("V3.2", "GLM-5"), default="V3.2")
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=4)
    parser.add_argument("--cached", type=int, default=4096)
    parser.add_argument("--topk", type=int, default=2048)
    parser.add_argument("--caches", choices=("C8", "C16", "mixed"), default="C8")
    parser.add_argument("--prefill", action="store_true")
    options = parser.parse_args()

    generator = torch.Generator().manual_seed(1)
    s = (V32 if options.model == "V3.2" else GLM5)._replace(heads=options.heads)
    step = batch(s, [(options.tokens, options.cached)], generator)
    cache = caches(s, options.caches, step.block_table.numel(), generator)
    how = prolog_by_parts if options.prefill else prolog
    indices, _, out = decode(torch_npu, s, weights(s, generator), cache, options.caches, step, options.topk, how)
    print(f"{options.tokens} tokens over {options.cached} positions, {s.heads} heads, {options.caches}: "
          f"{indices.shape[-1]} selected, output {list(out.shape)}, rms {out.float().pow(2).mean().sqrt():.4g}")  # fmt: skip


if __name__ == "__main__":
    main()
