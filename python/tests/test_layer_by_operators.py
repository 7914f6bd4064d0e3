# SPDX-License-Identifier: Apache-2.0
"""The quantised layers of a checkpoint, put together again from the file and the public operators: same selection, and
an output that differs by no more than the order of the last two sums."""
import math
import pathlib

import ml_dtypes
import numpy as np
import pytest

import dsakit

TINY = pathlib.Path(dsakit.__file__).parent / "models" / "tiny-dsa"
BF16, F32 = ml_dtypes.bfloat16, np.float32
HE, N, HCQ, HCKV, D, DR, DV, NI, DI, K = 256, 4, 192, 256, 64, 64, 64, 4, 128, 128  # config.json


def per_channel(weight):
    """[in, out] bf16 -> int8 codes and fp32 scales per output column."""
    w = weight.astype(F32)
    scale = (np.abs(w).max(axis=0) / F32(127)).astype(F32)
    return np.clip(np.rint(w / scale), -127, 127).astype(np.int8), scale.reshape(-1, 1)


def rope_table(length):
    f = (10000.0 ** (-2 * np.arange(DR // 2) / DR)).astype(F32)
    angle = (np.arange(length, dtype=F32)[:, None] * f).astype(np.float64)
    return [np.concatenate([x, x], axis=1).astype(F32).astype(BF16) for x in (np.cos(angle), np.sin(angle))]


def hadamard(n):
    h = np.ones((1, 1))
    while len(h) < n:
        h = np.block([[h, h], [h, -h]])
    return (h / math.sqrt(n)).astype(BF16)


@pytest.mark.parametrize("mode", ["sparse_w8a8", "sparse_w8a8_packed"])
def test_quantised_layer(mode):
    file = dsakit.load_safetensors(str(TINY / "model.safetensors"))
    layer = 1
    w = {k.removeprefix(f"model.layers.{layer}.self_attn."): v for k, v in file.items()
         if k.startswith(f"model.layers.{layer}.self_attn.")}
    length, page = 300, 16
    x = np.random.Generator(np.random.Philox(5)).normal(size=(length, HE)).astype(BF16)

    transposed = {k: np.ascontiguousarray(w[k + ".weight"].T) for k in
                  ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "indexer.wq_b", "indexer.wk", "indexer.weights_proj")}
    uq, uq_scale = per_channel(transposed["q_b_proj"])
    qb, qb_scale = per_channel(transposed["indexer.wq_b"])
    kv_b = w["kv_b_proj.weight"].reshape(N, D + DV, HCKV)
    cos, sin = rope_table(length)
    pages = -(-length // page)
    table = np.random.Generator(np.random.Philox(6)).permutation(pages).astype(np.int32)
    slots = (table[np.arange(length) // page].astype(np.int64) * page + np.arange(length) % page)
    cache = lambda width, dtype: np.zeros((pages, page, 1, width), dtype)
    kv, kr, ks, ik, iks = cache(HCKV, np.int8), cache(DR, BF16), cache(HCKV // 128, F32), cache(DI, np.int8), cache(1, np.float16)
    h = hadamard(DI)

    packed = cache(HCKV + 2 * DR + 4 * (HCKV // 128), np.int8)
    w_uk = np.ascontiguousarray(kv_b[:, :D])
    gammas = w["q_a_layernorm.weight"], w["kv_a_layernorm.weight"]
    if mode == "sparse_w8a8":
        q_norm, q_norm_scale, q_nope, q_rope, *_ = dsakit.mla_prolog_quant(
            x, transposed["q_a_proj"], uq, uq_scale, w_uk, transposed["kv_a_proj_with_mqa"], *gammas, cos, sin, slots,
            kv, kr, ks, epsilon_cq=1e-6, epsilon_ckv=1e-6)
    else:
        dq, dq_scale = per_channel(transposed["q_a_proj"])
        dkv, dkv_scale = per_channel(transposed["kv_a_proj_with_mqa"])
        x_codes, x_scale = dsakit.dynamic_quant(x)
        q_nope, q_rope, _, q_norm, q_norm_scale = dsakit.mla_prolog_v3(
            x_codes, dq, uq, w_uk, dkv, *gammas, sin, cos, packed, None, cache_index=slots, dequant_scale_x=x_scale[:, None],
            dequant_scale_w_dq=dq_scale.T, dequant_scale_w_uq_qr=uq_scale.T, dequant_scale_w_dkv_kr=dkv_scale.T,
            k_nope_clip_alpha=np.ones(1, F32), rmsnorm_epsilon_cq=1e-6, rmsnorm_epsilon_ckv=1e-6, query_norm_flag=True,
            weight_quant_mode=2, kv_cache_quant_mode=3, ckvkr_repo_mode=1, quant_scale_repo_mode=1)
    q_int8, q_scale, _, _, head_weights = dsakit.lightning_indexer_prolog_quant(
        x, q_norm, q_norm_scale, qb, qb_scale, transposed["indexer.wk"], transposed["indexer.weights_proj"],
        w["indexer.k_norm.weight"].astype(F32), w["indexer.k_norm.bias"].astype(F32), cos, sin, h, h, ik, iks, slots)
    selection = dsakit.quant_lightning_indexer(
        q_int8, ik, head_weights, q_scale, iks, actual_seq_lengths_query=[length], actual_seq_lengths_key=[length],
        block_table=table[None], layout_query="TND", layout_key="PA_BSND", sparse_count=K)
    if mode == "sparse_w8a8":
        attended = dsakit.sparse_flash_attention_quant(
            q_nope, q_rope, kv, kr, ks, selection, table[None], [length], b=1, s1=length, nq=N,
            softmax_scale=(D + DR) ** -0.5, topk=K, block_size=page)[0]
    else:
        attended = dsakit.kv_quant_sparse_flash_attention(
            np.concatenate([q_nope, q_rope], axis=-1), packed, packed, selection, (D + DR) ** -0.5, 2, 2,
            block_table=table[None], actual_seq_lengths_query=[length], actual_seq_lengths_kv=[length], layout_query="TND",
            layout_kv="PA_BSND", attention_mode=2)

    values = np.einsum("tnc,nvc->tnv", attended.astype(F32), kv_b[:, D:].astype(F32)).astype(BF16)
    wanted = values.reshape(length, N * DV).astype(F32) @ w["o_proj.weight"].astype(F32).T

    got_selection = np.full((length, K), -1, np.int32)
    ours = dsakit.Layer(str(TINY), layer, mode=mode, page_size=page)
    got = np.asarray(ours.prefill(x, out=np.empty((length, HE), F32), selection=got_selection))

    selection = selection[:, 0]
    for i in range(length):
        n = min(i + 1, K)
        if i < K:  # everything: the layer lists positions in order
            assert set(selection[i, :n]) == set(got_selection[i, :n]) == set(range(n))
        else:
            assert (selection[i] == got_selection[i]).all(), i
    error = np.sqrt(np.mean((got - wanted) ** 2) / np.mean(wanted**2))
    assert error < 3e-3, error  # bf16 between the two products: 1.7e-3
