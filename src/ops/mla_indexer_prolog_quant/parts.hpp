// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "dsakit/lightning_indexer_prolog_quant.hpp"
#include "dsakit/mla_indexer_prolog_quant.hpp"
#include "dsakit/mla_prolog_quant.hpp"

// The arguments of the two operators this one consists of; q_norm and q_norm_scale, which join them, are left out.
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

}  // namespace dsakit::mla_indexer_prolog_quant_op
