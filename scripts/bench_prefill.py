# SPDX-License-Identifier: Apache-2.0
"""Prefill of a prompt by sparse attention (the indexer's choice included) and by dense attention over the same latent
rows, one layer of DeepSeek-V3.2: chunks of a few tokens at places along the prompt stand for all of it.
Usage: bench_prefill.py [--prompts 1024 4096 8192 32768] [--chunk 32] [--places 6] [--threads 1] [--rounds 3]
       [--spread 0.1]"""
import argparse
import os
import time

import dsakit
import torch

HEADS, LATENT, ROPE, INDEX_HEADS, INDEX_DIM, LISTED = 128, 512, 64, 64, 128, 2048
BF16_FLOPS = 2 * HEADS * (2 * LATENT + ROPE)  # of a token and a key


def chunk(tokens, length, spread):
    """Calls that compute the last tokens of so many positions: sparse, and dense."""
    torch.manual_seed(1)

    def bf16(*shape):
        return torch.randn(*shape).to(torch.bfloat16)

    query, query_rope = bf16(tokens, HEADS, LATENT) * spread, bf16(tokens, HEADS, ROPE) * spread
    latent, rope = bf16(length, 1, LATENT), bf16(length, 1, ROPE)
    index = dict(
        query=torch.randint(-127, 128, (tokens, INDEX_HEADS, INDEX_DIM), dtype=torch.int8),
        key=torch.randint(-127, 128, (length, 1, INDEX_DIM), dtype=torch.int8),
        weights=torch.rand(tokens, INDEX_HEADS).to(torch.float16),
        query_dequant_scale=torch.rand(tokens, INDEX_HEADS).to(torch.float16),
        key_dequant_scale=torch.rand(length, 1).to(torch.float16),
        actual_seq_lengths_query=torch.tensor([tokens], dtype=torch.int32),
        actual_seq_lengths_key=torch.tensor([length], dtype=torch.int32),
        layout_query="TND",
        layout_key="TND",
        sparse_count=LISTED,
    )

    def sparse():
        dsakit.sparse_flash_attention(
            query,
            latent,
            latent,
            dsakit.quant_lightning_indexer(**index),
            0.1352338,
            query_rope=query_rope,
            key_rope=rope,
            actual_seq_lengths_query=index["actual_seq_lengths_query"],
            actual_seq_lengths_kv=index["actual_seq_lengths_key"],
            layout_query="TND",
            layout_kv="TND",
            attention_mode=2,
        )

    def dense():
        dsakit.npu_fused_infer_attention_score_v2(
            query,
            latent,
            latent,
            query_rope=query_rope,
            key_rope=rope,
            actual_seq_qlen=[tokens],
            actual_seq_kvlen=[length],
            num_query_heads=HEADS,
            num_key_value_heads=1,
            softmax_scale=0.1352338,
            input_layout="TND",
            sparse_mode=3,
            atten_mask=torch.triu(torch.ones(2048, 2048, dtype=torch.bool), 1),
        )

    return sparse, dense


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--prompts", type=int, nargs="+", default=[1024, 4096, 8192, 32768])
    parser.add_argument("--chunk", type=int, default=32)
    parser.add_argument("--places", type=int, default=6)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--spread", type=float, default=0.1, help="of the queries; 1: scores between -12 and 12")
    args = parser.parse_args()
    dsakit.set_num_threads(args.threads)
    load = os.getloadavg()[0]
    print(f"{os.cpu_count()} cores, load {load:.1f}, {args.threads} threads; us a token, and GFLOP/s of attention")
    print("prompt   sparse with indexer        dense  dense over sparse")
    for prompt in args.prompts:
        total, flops = [0.0, 0.0], [0.0, 0.0]
        for place in range(args.places):
            length = max(args.chunk, int(prompt * (place + 0.5) / args.places))
            calls, best = chunk(args.chunk, length, args.spread), [1e9, 1e9]
            for _ in range(args.rounds):  # turn about
                for i, call in enumerate(calls):
                    start = time.perf_counter()
                    call()
                    best[i] = min(best[i], time.perf_counter() - start)
            for i, keys in enumerate((min(length, LISTED), length)):
                total[i] += best[i]
                flops[i] += BF16_FLOPS * keys * args.chunk
        each = [1e6 * t / args.places / args.chunk for t in total]
        rate = [f * 1e-9 / t for f, t in zip(flops, total)]
        times = f"{each[0]:10.0f} {rate[0]:9.0f} {each[1]:11.0f} {rate[1]:5.0f} {each[1] / each[0]:10.2f} x"
        print(f"{prompt:6} {times}", flush=True)


if __name__ == "__main__":
    main()
