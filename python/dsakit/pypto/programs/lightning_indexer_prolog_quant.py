# SPDX-License-Identifier: Apache-2.0
"""lightning_indexer_prolog_quant: index query, index key (into its cache) and head weights of new tokens."""

from typing import Any

from dsakit import pypto

from .mla_prolog_quant import (
    BF16,
    CACHE,
    DYNAMIC,
    FP16,
    FP32,
    INT8,
    INT64,
    STATIC,
    TOKENS,
    UNROLL_LIST,
    WEIGHT,
    Tensor,
    quant,
    store,
    turned,
    up,
    write,
)


@pypto.frontend.function
def rope_first(label: str, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    # elements j and j + Dr / 2 of the first Dr turn together and stay where they are; the others do not change
    pypto.set_semantic_label(label)
    pypto.set_vec_tile_shapes(4, 32, 128)
    width = cos.shape[1]
    first = pypto.cast(x[:, :, :width], FP32)
    together = turned(first[:, :, : width // 2], first[:, :, width // 2 :], cos, sin)
    return together if width == x.shape[2] else pypto.concat([together, x[:, :, width:]], -1)


@pypto.frontend.function
def rotated(label: str, x: Tensor, hadamard: Tensor) -> Tensor:
    # bf16(x hadamard), the matrix as it is given
    pypto.set_semantic_label(label)
    pypto.set_cube_tile_shapes([128, 256], [128, 128], [128, 128])
    tokens, n, d = x.shape
    return pypto.reshape(pypto.matmul(pypto.reshape(x, [tokens * n, d]), hadamard, BF16), [tokens, n, d])


@pypto.frontend.function
def layer_norm(label: str, x: Tensor, gamma: Tensor, beta: Tensor, epsilon: float) -> Tensor:
    # d = x - sum(x * (1 / n)), bf16((d / sqrt(sum(d * d * (1 / n)) + epsilon)) * gamma + beta)
    pypto.set_semantic_label(label)
    pypto.set_vec_tile_shapes(32, 128)
    n = gamma.shape[0]
    d = x - pypto.sum(x * (1 / n), -1, keepdim=True)
    y = d / pypto.sqrt(pypto.sum(d * d * (1 / n), -1, keepdim=True) + epsilon)
    gamma, beta = (pypto.cast(pypto.reshape(v, [1, n]), FP32) for v in (gamma, beta))
    return pypto.cast(y * gamma + beta, BF16)


@pypto.frontend.function
def index_query(
    codes: Tensor, scale: Tensor, cos: Tensor, sin: Tensor, w_qb: Tensor, w_qb_scale: Tensor, hadamard: Tensor
) -> tuple[Tensor, Tensor]:
    d = hadamard.shape[0]
    q = up(("Up_iq", "Dequant_iq"), codes, scale, w_qb, w_qb_scale)
    q = rope_first("Rope_iq", pypto.reshape(q, [q.shape[0], q.shape[1] // d, d]), cos, sin)
    codes, scale = quant("Quant_iq", rotated("Hadamard_iq", q, hadamard))
    return codes, pypto.cast(scale, FP16)


@pypto.frontend.function
def index_key(
    x: Tensor, cos: Tensor, sin: Tensor, wk: Tensor, gamma: Tensor, beta: Tensor, epsilon: float, hadamard: Tensor
) -> tuple[Tensor, Tensor]:
    # x wk, kept in fp32
    pypto.set_semantic_label("Down_ik")
    pypto.set_cube_tile_shapes([32, 32], [256, 512], [64, 128])
    k = layer_norm("Norm_ik", pypto.matmul(x, wk, FP32), gamma, beta, epsilon)
    k = rope_first("Rope_ik", pypto.reshape(k, [x.shape[0], 1, wk.shape[1]]), cos, sin)
    return quant("Quant_ik", rotated("Hadamard_ik", k, hadamard))


@pypto.frontend.function
def head_weights(x: Tensor, w_proj: Tensor, width: int) -> Tensor:
    # f16(bf16(x w_proj) * (1 / (sqrt(heads) * sqrt(width))))
    pypto.set_semantic_label("Weights")
    pypto.set_cube_tile_shapes([32, 32], [256, 512], [64, 64])
    pypto.set_vec_tile_shapes(32, 64)
    w = pypto.cast(pypto.matmul(x, w_proj, BF16), FP32)
    return pypto.cast(w * (1 / (w_proj.shape[1] ** 0.5 * width**0.5)), FP16)


def epsilon_of(attrs: Any) -> float:
    if getattr(attrs, "rope_layout", "half") != "half":
        raise NotImplementedError('this program rotates in the layout "half"')
    return float(getattr(attrs, "eps", 1e-6))


@pypto.frontend.jit
def lightning_indexer_prolog_quant(
    x: Tensor(TOKENS, BF16),
    q_norm: Tensor(TOKENS, INT8),
    q_norm_scale: Tensor([DYNAMIC, 1], FP32),
    w_qb: Tensor(WEIGHT, INT8),
    w_qb_scale: Tensor([STATIC, STATIC], FP32),
    wk: Tensor(WEIGHT, BF16),
    w_proj: Tensor(WEIGHT, BF16),
    ln_gamma_k: Tensor(),
    ln_beta_k: Tensor(),
    cos: Tensor(TOKENS, BF16),
    sin: Tensor(TOKENS, BF16),
    hadamard_q: Tensor(WEIGHT, BF16),
    hadamard_k: Tensor(WEIGHT, BF16),
    k_cache: Tensor(CACHE, INT8),
    k_scale_cache: Tensor(),
    k_cache_index: Tensor([DYNAMIC], INT64),
    q_int8_out: Tensor([DYNAMIC, STATIC, STATIC], INT8),
    q_scale_out: Tensor([DYNAMIC, STATIC, 1], FP16),
    k_int8_out: Tensor(CACHE, INT8),
    k_scale_out: Tensor(),
    weights_out: Tensor(TOKENS, FP16),
    attrs: Any = None,
    configs: Any = None,
):
    epsilon = epsilon_of(attrs)
    unroll_list = list(getattr(configs, "unroll_list", UNROLL_LIST))
    for t, p in pypto.loop_unroll(0, x.shape[0], name="tokens", idx_name="t", unroll_list=unroll_list):
        rows, c, s, index = x[t : t + p], cos[t : t + p], sin[t : t + p], k_cache_index[t : t + p]
        codes, scale = q_norm[t : t + p], q_norm_scale[t : t + p]
        q, q_scale = index_query(codes, scale, c, s, w_qb, w_qb_scale, hadamard_q)
        k, k_scale = index_key(rows, c, s, wk, ln_gamma_k, ln_beta_k, epsilon, hadamard_k)
        weights = head_weights(rows, w_proj, k_cache.shape[3])
        store(t, (q, q_int8_out), (q_scale, q_scale_out), (weights, weights_out))
        write(k, index, k_cache)
        write(pypto.cast(k_scale, k_scale_cache.dtype), index, k_scale_cache)
    k_int8_out[:], k_scale_out[:] = k_cache, k_scale_cache
