#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A decode step of one DeepSeek-V3.2 layer (its attention's sizes, an MLP of width 2048) in transformers: eager, and
with dsakit.hf, its MLP too, in one run, with the same threads and the same cached tokens, which are put into the caches
directly.

    .venv/bin/python scripts/bench_hf.py [--tokens 2048 8192 32768] [--rounds 5] [--memory 5.5]

A step of eager that would take more than --memory GB is left out, and said to be.
"""

import argparse
import functools

import timing
import torch
import transformers

import dsakit
from dsakit import hf

SIZES = dict(
    hidden_size=7168,
    num_attention_heads=128,
    num_key_value_heads=128,
    q_lora_rank=1536,
    kv_lora_rank=512,
    qk_nope_head_dim=128,
    qk_rope_head_dim=64,
    v_head_dim=128,
    index_n_heads=64,
    index_head_dim=128,
    index_topk=2048,
    intermediate_size=2048,
    num_hidden_layers=1,
    first_k_dense_replace=1,
    vocab_size=256,
    max_position_embeddings=163840,
    pad_token_id=None,
    bos_token_id=None,
    eos_token_id=None,
)


def model_of(dtype):
    torch.manual_seed(1)
    config = transformers.DeepseekV32Config(**SIZES, attn_implementation="eager")
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    model = transformers.DeepseekV32ForCausalLM(config).eval()
    torch.set_default_dtype(default)
    return model


def rows_of(tokens):
    """Latents, rotated keys and index keys, as both keep them."""
    widths = dict(latent=SIZES["kv_lora_rank"], rope=SIZES["qk_rope_head_dim"], index_key=SIZES["index_head_dim"])
    generator = torch.Generator().manual_seed(tokens)
    return {name: torch.randn(tokens, width, generator=generator).bfloat16() for name, width in widths.items()}


def eager_cache(model, rows, dtype):
    cache = transformers.DynamicCache(config=model.config)
    cache.update(rows["latent"].to(dtype)[None, None], rows["rope"].to(dtype)[None, None], 0)
    cache.update_indexer(rows["index_key"].to(dtype)[None], 0)
    return cache


def paged_cache(model, rows, tokens):
    """The rows in bf16; in the int8 modes codes and scales of about their size."""
    cache = transformers.DynamicCache(config=model.config)
    attention = model.model.layers[0].self_attn
    layer = hf.PagedLayer(attention.layer, attention.mode)
    codes = lambda width: torch.randint(-127, 128, (tokens, width), dtype=torch.int8)
    if attention.mode == "sparse_w8a8":
        scale = torch.full((tokens, 4), 0.01)
        rows = dict(rows, latent=codes(512), latent_scale=scale, index_key=codes(128))
        rows["index_scale"] = torch.full((tokens, 1), 0.01, dtype=torch.float16)
    layer.rows.append(0, rows)
    layer.columns = tokens
    cache.layers[0] = layer
    return cache


@torch.no_grad()
def step(model, cache):
    """Logits of a step of one token; cache.crop(-1) takes it back."""
    return model(torch.tensor([[65]]), past_key_values=cache).logits.float()


def eager_bytes(tokens, dtype):
    """Expanded keys and values, the keys beside their rotated part, the values once more in order."""
    heads, nope, rope, value = 128, 128, 64, 128
    return tokens * heads * (2 * nope + rope + 2 * value) * dtype.itemsize


def compare(tokens, models, rounds, memory):
    """Median milliseconds of a step of each, by turns."""
    caches = {}
    for name, model in models.items():
        if "eager" not in name:
            caches[name] = paged_cache(model, rows_of(tokens), tokens)
        elif (needed := eager_bytes(tokens, model.dtype)) <= memory * 1e9:
            caches[name] = eager_cache(model, rows_of(tokens), model.dtype)
        else:
            print(f"{tokens:6} tokens  {name:19} left out: {needed / 1e9:.1f} GB")
    steps = {name: functools.partial(step, models[name], cache) for name, cache in caches.items()}
    back = {name: functools.partial(cache.crop, -1) for name, cache in caches.items()}
    times = {name: 1e3 * seconds for name, seconds in timing.alternate(steps, 0, rounds, back).items()}
    logits = {name: call() for name, call in steps.items()}
    best = min((ms for name, ms in times.items() if "eager" in name), default=float("nan"))
    exact = logits.get("eager float32")
    for name, ms in times.items():
        line = f"{tokens:6} tokens  {name:19} {ms:9.1f} ms"
        if "eager" not in name:
            line += f"  {best / ms:6.1f} x the best eager, cache {caches[name].layers[0].nbytes / 1e6:.1f} MB"
        if exact is not None and name in ("eager bfloat16", "dsakit sparse_bf16"):  # int8 caches hold other numbers
            line += f"; logits {100 * float((logits[name] - exact).norm() / exact.norm()):.1f} % from float32"
        print(line, flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, nargs="+", default=[2048, 8192, 32768])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--memory", type=float, default=5.5, help="GB that a step of eager may take, beside 3 GB of models"
    )
    args = parser.parse_args()
    timing.set_threads(dsakit.get_num_threads())
    versions = f"transformers {transformers.__version__}, torch {torch.__version__}"
    print(f"{dsakit.get_num_threads()} threads, {dsakit.info()['isa']}; {versions}")
    models = {f"eager {name}": model_of(getattr(torch, name)) for name in ("float32", "bfloat16")}
    for mode in ("sparse_bf16", "sparse_w8a8"):
        models[f"dsakit {mode}"] = model = model_of(torch.bfloat16)
        hf.accelerate(model, mode=mode, mlps=True)
    for tokens in args.tokens:
        compare(tokens, models, args.rounds, args.memory)


if __name__ == "__main__":
    main()
