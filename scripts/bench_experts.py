#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One sparse layer of DeepSeek-V3.2 at full size with 32 generated experts (1.4 GB on disk), held in memory and read
when they are wanted: time per token, bytes read, and what share of the disk's own rate that is, measured in the same
run. `dsakit bench experts_fp8` has the share of memory's.

    bench_experts.py [FOLDER]    where the checkpoint is written, or found (default: a temporary one)
"""

import concurrent.futures
import json
import mmap
import os
import pathlib
import random
import resource
import statistics
import sys
import tempfile
import time

import numpy as np

import dsakit

EXPERTS, K = 32, 8
HIDDEN, WIDE = 7168, 2048
CONFIG = dict(
    model_type="deepseek_v32",
    vocab_size=256,
    hidden_size=HIDDEN,
    intermediate_size=18432,
    moe_intermediate_size=WIDE,
    num_hidden_layers=1,
    first_k_dense_replace=0,
    n_routed_experts=EXPERTS,
    num_experts_per_tok=K,
    n_shared_experts=1,
    n_group=8,
    topk_group=4,
    routed_scaling_factor=2.5,
    norm_topk_prob=True,
    scoring_func="sigmoid",
    topk_method="noaux_tc",
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
    max_position_embeddings=163840,
    rms_norm_eps=1e-6,
    rope_theta=10000.0,
    tie_word_embeddings=False,
    quantization_config=dict(quant_method="fp8", fmt="e4m3", activation_scheme="dynamic", weight_block_size=[128, 128]),
)


def blocks(n):
    return (n + 127) // 128


def tensors():
    """Name, dtype, shape and bytes of everything, one after the other."""
    rng = np.random.default_rng(1)

    def bf16(name, *shape, low=-1.0, high=1.0):
        x = rng.uniform(low, high, shape).astype(np.float32)
        yield name, "BF16", shape, (x.view(np.uint32) >> 16).astype(np.uint16)

    def f32(name, *shape, low, high):
        yield name, "F32", shape, rng.uniform(low, high, shape).astype(np.float32)

    def fp8(name, rows, cols):
        yield name, "F8_E4M3", (rows, cols), np.frombuffer(rng.bytes(rows * cols), np.uint8) & 0xF7  # no NaN
        scale = 0.01 / cols**0.5
        yield from f32(name + "_scale_inv", blocks(rows), blocks(cols), low=scale / 2, high=scale)

    def mlp(prefix, wide):
        yield from fp8(prefix + "gate_proj.weight", wide, HIDDEN)
        yield from fp8(prefix + "up_proj.weight", wide, HIDDEN)
        yield from fp8(prefix + "down_proj.weight", HIDDEN, wide)

    yield from bf16("model.embed_tokens.weight", 256, HIDDEN)
    yield from bf16("lm_head.weight", 256, HIDDEN, low=-0.02, high=0.02)
    yield from bf16("model.norm.weight", HIDDEN, low=0.5, high=1.5)
    layer = "model.layers.0."
    for norm in ("input_layernorm", "post_attention_layernorm"):
        yield from bf16(f"{layer}{norm}.weight", HIDDEN, low=0.5, high=1.5)
    attention = layer + "self_attn."
    yield from bf16(attention + "q_a_layernorm.weight", 1536, low=0.5, high=1.5)
    yield from bf16(attention + "kv_a_layernorm.weight", 512, low=0.5, high=1.5)
    yield from fp8(attention + "q_a_proj.weight", 1536, HIDDEN)
    yield from fp8(attention + "q_b_proj.weight", 128 * 192, 1536)
    yield from fp8(attention + "kv_a_proj_with_mqa.weight", 576, HIDDEN)
    yield from fp8(attention + "kv_b_proj.weight", 128 * 256, 512)
    yield from fp8(attention + "o_proj.weight", HIDDEN, 128 * 128)
    yield from fp8(attention + "indexer.wq_b.weight", 64 * 128, 1536)
    yield from fp8(attention + "indexer.wk.weight", 128, HIDDEN)
    yield from bf16(attention + "indexer.weights_proj.weight", 64, HIDDEN, low=-0.02, high=0.02)
    yield from f32(attention + "indexer.k_norm.weight", 128, low=0.5, high=1.5)
    yield from f32(attention + "indexer.k_norm.bias", 128, low=-0.1, high=0.1)
    yield from bf16(layer + "mlp.gate.weight", EXPERTS, HIDDEN, low=-0.02, high=0.02)
    yield from f32(layer + "mlp.gate.e_score_correction_bias", EXPERTS, low=-0.05, high=0.05)
    yield from mlp(layer + "mlp.shared_experts.", WIDE)
    for e in range(EXPERTS):
        yield from mlp(f"{layer}mlp.experts.{e}.", WIDE)


def write(folder):
    header, at = {}, 0
    for name, dtype, shape, data in tensors():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + data.nbytes]}
        at += data.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(folder / "model.safetensors.partial", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for *_, data in tensors():
            file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(folder / "model.safetensors.partial", folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=1))


def disk_rate(path, readers=8, block=4 << 20, total=1 << 30):
    """Bytes per second of direct reads of 4 MiB, eight in flight, each block once."""
    size = path.stat().st_size // block * block
    places = random.Random(1).sample(range(0, size, block), min(total, size) // block)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError:
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    buffers = [mmap.mmap(-1, block) for _ in range(readers)]

    def read(worker):
        return sum(os.preadv(fd, [buffers[worker]], place) for place in places[worker::readers])

    start = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(readers) as pool:
        done = sum(pool.map(read, range(readers)))
    rate = done / (time.perf_counter() - start)
    os.close(fd)
    return rate


def steps(model, count, mode="sparse_bf16"):
    """Seconds of each decode step, and what its experts cost."""
    session = model.session(mode)
    session.prefill(list(range(64)))
    times, before = [], model.expert_costs
    for i in range(count):
        start = time.perf_counter()
        session.step((37 * i + 11) % 256)
        times.append(time.perf_counter() - start)
    after = model.expert_costs
    return times, {key: after[key] - before[key] for key in ("asked", "read", "bytes", "waited")}


def main():
    temporary = None
    if len(sys.argv) > 1:
        folder = pathlib.Path(sys.argv[1])
        folder.mkdir(parents=True, exist_ok=True)
    else:
        temporary = tempfile.TemporaryDirectory()
        folder = pathlib.Path(temporary.name)
    if not (folder / "config.json").exists():
        write(folder)
    path = folder / "model.safetensors"
    rates = [disk_rate(path)]

    print(f"{'experts in memory':<20}{'ms per token':>14}{'GB read':>10}{'waited':>9}{'GB/s':>7}{'of the disk':>13}")
    count = 24
    for slots in (K + 1, 16):
        each = EXPERT_BYTES
        model = dsakit.Model(folder, expert_memory=slots * each)
        steps(model, 2)
        times, costs = steps(model, count)
        rates.append(disk_rate(path))
        total, disk = sum(times), statistics.median(rates)
        rate = costs["bytes"] / total
        print(
            f"{slots:>3} of {EXPERTS:<13}{1e3 * statistics.median(times):>14.1f}{costs['bytes'] / 1e9:>10.2f}"
            f"{costs['waited'] / total:>9.0%}{rate / 1e9:>7.2f}{rate / disk:>13.0%}"
        )
        peak, own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, model.weight_bytes
        print(f"    memory: {peak / 1e9:.2f} GB at most; weights and expert memory {own / 1e9:.2f} GB")
        del model
    model = dsakit.Model(folder)
    steps(model, 2)
    times, _ = steps(model, count)
    print(f"all of {EXPERTS:<13}{1e3 * statistics.median(times):>14.1f}{0:>10}{0:>9.0%}")
    print(f"\ndisk: {', '.join(f'{r / 1e9:.2f}' for r in rates)} GB/s (direct reads of 4 MiB, 8 in flight)")


EXPERT_BYTES = 44_089_344  # of memory: three matrices of one byte per weight, and their scales

if __name__ == "__main__":
    main()
