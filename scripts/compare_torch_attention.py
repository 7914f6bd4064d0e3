# SPDX-License-Identifier: Apache-2.0
"""Dense attention beside torch's scaled_dot_product_attention on the CPU: same machine, same run, turn and turn about,
bf16. Needs dsakit and torch (what ./check installs).

    .venv/bin/python scripts/compare_torch_attention.py [THREADS]
"""
import statistics
import sys
import time

import torch

import dsakit

THREADS = int(sys.argv[1]) if len(sys.argv) > 1 else dsakit.info()["threads"]
SECONDS = 3.0  # per size


def both(batch, heads, kv_heads, queries, keys, width):
    """Median milliseconds of (ours, theirs), and the largest difference of the results."""
    torch.manual_seed(1)
    q = torch.randn(batch, heads, queries, width).bfloat16()
    k = torch.randn(batch, kv_heads, keys, width).bfloat16()
    v = torch.randn(batch, kv_heads, keys, width).bfloat16()
    causal, scale = queries > 1, width**-0.5

    def ours():
        return dsakit.fused_infer_attention_score_v2(
            q, k, v, num_query_heads=heads, num_key_value_heads=kv_heads, softmax_scale=scale, input_layout="BNSD",
            sparse_mode=3 if causal else 0)[0]

    def theirs():
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=kv_heads < heads)

    difference = (ours().float() - theirs().float()).abs().max().item()
    times = ([], [])
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end or len(times[0]) < 3:
        for call, list_ in zip((ours, theirs), times):
            start = time.perf_counter()
            call()
            list_.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times[0]), statistics.median(times[1]), difference


torch.set_num_threads(THREADS)
dsakit.set_num_threads(THREADS)
print(f"{THREADS} threads, {dsakit.info()['isa']}, torch {torch.__version__}")
print(f"{'':44}{'dsakit':>12}{'torch':>12}{'torch/dsakit':>14}{'difference':>12}")
for name, size in {
    "prefill 1024, 32 heads of 128": (1, 32, 32, 1024, 1024, 128),
    "prefill 1024, 32 heads on 8": (1, 32, 8, 1024, 1024, 128),
    "prefill 4096, 8 heads of 128": (1, 8, 8, 4096, 4096, 128),
    "decode, 8192 keys, 32 heads of 128": (1, 32, 32, 1, 8192, 128),
    "decode, 8192 keys, 32 heads on 8": (1, 32, 8, 1, 8192, 128),
    "decode, 4 sequences, 8192 keys, 32 heads on 8": (4, 32, 8, 1, 8192, 128),
}.items():
    mine, other, difference = both(*size)
    print(f"{name:44}{mine:9.2f} ms{other:9.2f} ms{other / mine:14.2f}{difference:12.4f}")
