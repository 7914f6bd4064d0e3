# SPDX-License-Identifier: Apache-2.0
"""mla_indexer_prolog_quant: the quantised mla_prolog_quant and lightning_indexer_prolog_quant on its q_norm."""

from typing import Any

from dsakit import pypto

from .lightning_indexer_prolog_quant import epsilon_of, head_weights, index_key, index_query
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
    down_in_halves,
    heads,
    key,
    norm,
    quant,
    store,
    up,
    write,
    write_key,
)


@pypto.frontend.jit
def mla_indexer_prolog_quant(
    token_x: Tensor(TOKENS, BF16),
    w_dq: Tensor(WEIGHT, BF16),
    w_uq_qr: Tensor(WEIGHT, INT8),
    dequant_scale: Tensor([STATIC, STATIC], FP32),
    w_uk: Tensor([STATIC, STATIC, STATIC], BF16),
    w_dkv_kr: Tensor(WEIGHT, BF16),
    gamma_cq: Tensor([STATIC], BF16),
    gamma_ckv: Tensor([STATIC], BF16),
    cos: Tensor(TOKENS, BF16),
    sin: Tensor(TOKENS, BF16),
    cache_index: Tensor([DYNAMIC], INT64),
    kv_cache: Tensor(CACHE, INT8),
    kr_cache: Tensor(CACHE, BF16),
    k_scale_cache: Tensor(CACHE, FP32),
    w_qb: Tensor(WEIGHT, INT8),
    w_qb_scale: Tensor([STATIC, STATIC], FP32),
    wk: Tensor(WEIGHT, BF16),
    w_proj: Tensor(WEIGHT, BF16),
    ln_gamma_k: Tensor(),
    ln_beta_k: Tensor(),
    hadamard_q: Tensor(WEIGHT, BF16),
    hadamard_k: Tensor(WEIGHT, BF16),
    ip_k_cache: Tensor(CACHE, INT8),
    ip_k_scale_cache: Tensor(),
    query_nope_out: Tensor([DYNAMIC, STATIC, STATIC], BF16),
    query_rope_out: Tensor([DYNAMIC, STATIC, STATIC], BF16),
    kv_cache_out: Tensor(CACHE, INT8),
    kr_cache_out: Tensor(CACHE, BF16),
    k_scale_cache_out: Tensor(CACHE, FP32),
    q_int8_out: Tensor([DYNAMIC, STATIC, STATIC], INT8),
    q_scale_out: Tensor([DYNAMIC, STATIC, 1], FP16),
    ip_k_cache_out: Tensor(CACHE, INT8),
    ip_k_scale_cache_out: Tensor(),
    weights_out: Tensor(TOKENS, FP16),
    epsilon_cq: float = 1e-5,
    epsilon_ckv: float = 1e-5,
    cache_mode: str = "PA_BSND",
    tile_config: Any = None,
    attrs: Any = None,
    configs: Any = None,
    rope_cfg: Any = None,
):
    if cache_mode != "PA_BSND":
        raise NotImplementedError('caches of this program lie as "PA_BSND"')
    epsilon = epsilon_of(attrs)
    unroll_list = list(getattr(tile_config, "unroll_list", UNROLL_LIST))
    for t, p in pypto.loop_unroll(0, token_x.shape[0], name="tokens", idx_name="t", unroll_list=unroll_list):
        x, c, s, index = token_x[t : t + p], cos[t : t + p], sin[t : t + p], cache_index[t : t + p]
        q_norm = norm("Norm_q", down_in_halves("Down_q", x, w_dq), gamma_cq, epsilon_cq)
        codes, scale = quant("Quant_q", q_norm)
        q = up(("Up_q", "Dequant_q"), codes, scale, w_uq_qr, dequant_scale)
        nope, rotated = heads(q, c, s, w_uk)
        iq, iq_scale = index_query(codes, scale, c, s, w_qb, w_qb_scale, hadamard_q)
        weights = head_weights(x, w_proj, ip_k_cache.shape[3])
        k, kr = key(x, c, s, w_dkv_kr, gamma_ckv, epsilon_ckv)
        ik, ik_scale = index_key(x, c, s, wk, ln_gamma_k, ln_beta_k, epsilon, hadamard_k)
        store(t, (nope, query_nope_out), (rotated, query_rope_out))
        store(t, (iq, q_int8_out), (iq_scale, q_scale_out), (weights, weights_out))
        write_key(k, kr, index, kv_cache, kr_cache, k_scale_cache)
        write(ik, index, ip_k_cache)
        write(pypto.cast(ik_scale, ip_k_scale_cache.dtype), index, ip_k_scale_cache)
    kv_cache_out[:], kr_cache_out[:], k_scale_cache_out[:] = kv_cache, kr_cache, k_scale_cache
    ip_k_cache_out[:], ip_k_scale_cache_out[:] = ip_k_cache, ip_k_scale_cache
