# SPDX-License-Identifier: Apache-2.0
"""sparse_flash_attention_quant: attention of each query row over the listed rows of paged latent caches, int8 with
scales or bf16. The probabilities are normalised and rounded to bf16 before they meet the rows."""

from typing import Any

from dsakit import pypto

from .mla_prolog_quant import BF16, DYNAMIC, FP16, FP32, INT8, INT32, STATIC, TOKENS, Tensor

UNROLL_LIST = (4, 2, 1)


@pypto.frontend.function
def latent_rows(latent: Tensor, scales: Tensor, places: Tensor, table: Tensor, block_size: int) -> Tensor:
    # the listed rows; int8: bf16(code * scale of its tile)
    pypto.set_semantic_label("Gather_latent")
    pypto.set_vec_tile_shapes(64, 512)
    width = latent.shape[1]
    if latent.dtype != INT8:
        return pypto.experimental.gather_in_l1(latent, places, table, block_size, width, True, True)
    codes = pypto.experimental.gather_in_ub(latent, places, table, block_size, -2)
    scale = pypto.experimental.gather_in_ub(scales, places, table, block_size, -2)
    pypto.set_semantic_label("Dequant_latent")
    pypto.set_vec_tile_shapes(64, 4, 128)
    k, tiles = scale.shape
    codes = pypto.reshape(pypto.cast(pypto.cast(codes, FP16), FP32), [k, tiles, width // tiles])
    return pypto.reshape(pypto.cast(codes * pypto.reshape(scale, [k, tiles, 1]), BF16), [k, width])


@pypto.frontend.function
def rope_rows(rope: Tensor, places: Tensor, table: Tensor, block_size: int) -> Tensor:
    # the listed rows
    pypto.set_semantic_label("Gather_rope")
    return pypto.experimental.gather_in_l1(rope, places, table, block_size, rope.shape[1], True, True)


@pypto.frontend.function
def attended(nope: Tensor, q_rope: Tensor, latent: Tensor, rope: Tensor, softmax_scale: float) -> Tensor:
    # s = ([nope, q_rope] . [latent, rope]) * softmax_scale
    pypto.set_semantic_label("Scores")
    pypto.set_cube_tile_shapes([128, 128], [64, 192], [128, 256])
    pypto.set_vec_tile_shapes(16, 2048)
    q, k = pypto.concat([nope, q_rope], -1), pypto.concat([latent, rope], -1)
    s = pypto.matmul(q, k, FP32, b_trans=True) * softmax_scale
    # bf16(e / sum(e)), e = exp(s - max(s))
    pypto.set_semantic_label("Softmax")
    e = pypto.exp(s - pypto.amax(s, -1, keepdim=True))
    p = pypto.cast(e / pypto.sum(e, -1, keepdim=True), BF16)
    # bf16(p latent)
    pypto.set_semantic_label("Weighted")
    pypto.set_cube_tile_shapes([128, 128], [128, 256], [128, 256])
    return pypto.matmul(p, latent, BF16)


@pypto.frontend.jit
def sparse_flash_attention_quant(
    query_nope: Tensor(TOKENS, BF16),
    query_rope: Tensor(TOKENS, BF16),
    key_nope_2d: Tensor(),
    key_rope_2d: Tensor(TOKENS, BF16),
    k_nope_scales: Tensor(),
    topk_indices: Tensor(TOKENS, INT32),
    block_table: Tensor(TOKENS, INT32),
    kv_act_seqs: Tensor([DYNAMIC], INT32),
    attention_out: Tensor([DYNAMIC, DYNAMIC, STATIC, STATIC], BF16),
    nq: int,
    n_kv: int,
    softmax_scale: float,
    topk: int,
    block_size: int,
    max_blocknum_perbatch: int,
    tile_config: Any = None,
):
    s1, dv = attention_out.shape[1], query_nope.shape[1]
    unroll_list = list(getattr(tile_config, "unroll_list", UNROLL_LIST))
    for b in pypto.loop(attention_out.shape[0], name="sequences", idx_name="b"):
        table = pypto.view(block_table, [1, max_blocknum_perbatch], [b, 0])
        for first, p in pypto.loop_unroll(0, s1, name="rows", idx_name="i", unroll_list=unroll_list):
            for i in range(first, first + p):
                # the first min(max(length - s1 + 1 + i, 0), topk) entries of the list
                row = b * s1 + i
                count = pypto.min(pypto.max(kv_act_seqs[b] - s1 + 1 + i, 0), topk)
                if pypto.cond(count > 0):
                    places = pypto.view(topk_indices, [1, topk], [row, 0], valid_shape=[1, count])
                    latent = latent_rows(key_nope_2d, k_nope_scales, places, table, block_size)
                    rope = rope_rows(key_rope_2d, places, table, block_size)
                    lines = slice(row * nq, row * nq + nq)
                    out = attended(query_nope[lines], query_rope[lines], latent, rope, softmax_scale)
                else:
                    out = pypto.zeros(nq, dv, dtype=BF16)
                pypto.set_semantic_label("Write")
                attention_out[b:, i:, :, :] = pypto.reshape(out, [1, 1, nq, dv])
