// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "dsakit/lightning_indexer_prolog_quant.hpp"
#include "dsakit/mla_indexer_prolog_quant.hpp"
#include "dsakit/mla_prolog_quant.hpp"

// The arguments of the two operators this one consists of, and back; q_norm and q_norm_scale, which join them, are left
// out.
namespace dsakit::mla_indexer_prolog_quant_op {

inline MlaPrologQuantArgs mla_args(const MlaIndexerPrologQuantArgs& a, const MlaIndexerPrologQuantOuts& o) {
  return {.token_x = a.token_x,
          .w_dq = a.w_dq,
          .w_uq_qr = a.w_uq_qr,
          .dequant_scale = a.dequant_scale,
          .w_uk = a.w_uk,
          .w_dkv_kr = a.w_dkv_kr,
          .gamma_cq = a.gamma_cq,
          .gamma_ckv = a.gamma_ckv,
          .cos = a.cos,
          .sin = a.sin,
          .cache_index = a.cache_index,
          .kv_cache = o.kv_cache,
          .kr_cache = o.kr_cache,
          .k_scale_cache = o.k_scale_cache,
          .epsilon_cq = a.epsilon_cq,
          .epsilon_ckv = a.epsilon_ckv,
          .cache_mode = a.cache_mode,
          .level = a.level};
}

inline LightningIndexerPrologQuantArgs indexer_args(const MlaIndexerPrologQuantArgs& a) {
  return {.x = a.token_x,
          .q_norm = {},
          .q_norm_scale = {},
          .w_qb = a.w_qb,
          .w_qb_scale = a.w_qb_scale,
          .wk = a.wk,
          .w_proj = a.w_proj,
          .ln_gamma_k = a.ln_gamma_k,
          .ln_beta_k = a.ln_beta_k,
          .cos = a.cos,
          .sin = a.sin,
          .hadamard_q = a.hadamard_q,
          .hadamard_k = a.hadamard_k,
          .k_cache_index = a.cache_index,
          .layernorm_epsilon_k = a.layernorm_epsilon_k,
          .rope_layout = a.rope_layout_indexer,
          .level = a.level};
}

inline LightningIndexerPrologQuantOuts indexer_outs(const MlaIndexerPrologQuantOuts& o) {
  return {.q_int8 = o.q_int8,
          .q_scale = o.q_scale,
          .k_cache = o.ip_k_cache,
          .k_scale_cache = o.ip_k_scale_cache,
          .weights = o.weights};
}

/// Both calls as one. What both have (tokens, cos, sin, slots) is that of the first.
inline MlaIndexerPrologQuantArgs joined(const MlaPrologQuantArgs& m, const LightningIndexerPrologQuantArgs& i) {
  return {.token_x = m.token_x,
          .w_dq = m.w_dq,
          .w_uq_qr = m.w_uq_qr,
          .dequant_scale = m.dequant_scale,
          .w_uk = m.w_uk,
          .w_dkv_kr = m.w_dkv_kr,
          .gamma_cq = m.gamma_cq,
          .gamma_ckv = m.gamma_ckv,
          .cos = m.cos,
          .sin = m.sin,
          .cache_index = m.cache_index,
          .w_qb = i.w_qb,
          .w_qb_scale = i.w_qb_scale,
          .wk = i.wk,
          .w_proj = i.w_proj,
          .ln_gamma_k = i.ln_gamma_k,
          .ln_beta_k = i.ln_beta_k,
          .hadamard_q = i.hadamard_q,
          .hadamard_k = i.hadamard_k,
          .epsilon_cq = m.epsilon_cq,
          .epsilon_ckv = m.epsilon_ckv,
          .layernorm_epsilon_k = i.layernorm_epsilon_k,
          .rope_layout_indexer = i.rope_layout,
          .cache_mode = m.cache_mode,
          .level = m.level};
}

/// `m` has the caches that are written.
inline MlaIndexerPrologQuantOuts joined(const MlaPrologQuantArgs& m, const MlaPrologQuantOuts& mo,
                                        const LightningIndexerPrologQuantOuts& io) {
  return {.query_nope = mo.query_nope_out,
          .query_rope = mo.query_rope_out,
          .kv_cache = m.kv_cache,
          .kr_cache = m.kr_cache,
          .k_scale_cache = m.k_scale_cache,
          .q_int8 = io.q_int8,
          .q_scale = io.q_scale,
          .ip_k_cache = io.k_cache,
          .ip_k_scale_cache = io.k_scale_cache,
          .weights = io.weights};
}

}  // namespace dsakit::mla_indexer_prolog_quant_op
