#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A decode step of one DeepSeek-V3.2 layer (its attention's sizes, an MLP of width 2048) in transformers: eager, and with
dsakit.hf, in one run, with the same threads and the same cached tokens, which are put into the caches directly.

    .venv/bin/python scripts/bench_hf.py [--tokens 2048 8192 32768] [--mode sparse_bf16 ...] [--memory 8]

A run of eager that would take more than --memory GB is left out, and said to be.
"""

import argparse
import statistics
import time

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
WEIGHTS = 2.6e8  # of the model


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
def step(model, cache, seconds=3):
    """Milliseconds of a step of one token, which is taken back each time: the median, after one that is not counted."""
    token, times = torch.tensor([[65]]), []
    while len(times) < 4 or sum(times[1:]) < seconds:
        start = time.perf_counter()
        logits = model(token, past_key_values=cache).logits
        times.append(time.perf_counter() - start)
        cache.crop(-1)
        if len(times) == 3 and sum(times) > 10 * seconds:
            break
    return 1e3 * statistics.median(times[1:]), logits.float()


def eager_bytes(tokens, dtype):
    """Expanded keys and values, the keys beside their rotated part, the values once more in order."""
    heads, nope, rope, value = 128, 128, 64, 128
    return tokens * heads * (2 * nope + rope + 2 * value) * dtype.itemsize + WEIGHTS * dtype.itemsize


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, nargs="+", default=[2048, 8192, 32768])
    parser.add_argument(
        "--mode", nargs="+", default=["sparse_bf16", "sparse_w8a8"], choices=["sparse_bf16", "sparse_w8a8"]
    )
    parser.add_argument("--memory", type=float, default=8, help="GB that a run of eager may take")
    args = parser.parse_args()
    torch.set_num_threads(dsakit.get_num_threads())
    print(
        f"{dsakit.get_num_threads()} threads, {dsakit.info()['isa']}; transformers {transformers.__version__}, torch {torch.__version__}"
    )
    best, said = {}, {}
    for dtype in (torch.float32, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        model = None
        for tokens in args.tokens:
            if (needed := eager_bytes(tokens, dtype)) > args.memory * 1e9:
                print(f"{tokens:6} tokens  eager {name:12} left out: {needed / 1e9:.1f} GB")
                continue
            model = model or model_of(dtype)
            ms, logits = step(model, eager_cache(model, rows_of(tokens), dtype))
            print(f"{tokens:6} tokens  eager {name:12} {ms:9.1f} ms", flush=True)
            if ms < best.get(tokens, float("inf")):
                best[tokens], said[tokens] = ms, logits
    model = None
    for mode in args.mode:
        model = model_of(torch.bfloat16)
        hf.accelerate(model, mode=mode)
        for tokens in args.tokens:
            cache = paged_cache(model, rows_of(tokens), tokens)
            ms, logits = step(model, cache)
            line = f"{tokens:6} tokens  dsakit {mode:11} {ms:9.1f} ms"
            if tokens in best:
                line += f"  {best[tokens] / ms:6.1f} x the best eager"
            if tokens in best and mode == "sparse_bf16":  # the int8 caches hold other numbers
                distance = ((logits - said[tokens]).norm() / said[tokens].norm()).item()
                line += f", logits {100 * distance:.1f} % from its"
            print(f"{line}, cache {cache.layers[0].nbytes / 1e6:.1f} MB", flush=True)


if __name__ == "__main__":
    main()
