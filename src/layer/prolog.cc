// SPDX-License-Identifier: Apache-2.0
#include "dsakit/dynamic_quant.hpp"
#include "dsakit/lightning_indexer_prolog_quant.hpp"
#include "dsakit/mla_indexer_prolog_quant.hpp"
#include "dsakit/mla_prolog_quant.hpp"
#include "dsakit/mla_prolog_v3.hpp"
#include "layer/chunk.hpp"
#include "layer/costs.hpp"
#include "layer/index_prolog.hpp"
#include "ops/mla_indexer_prolog_quant/parts.hpp"

namespace dsakit {
namespace {

MlaPrologQuantArgs mla_args(const Chunk& m) {
  const LayerWeights& w = m.layer.weights;
  return {
      .token_x = m.hidden,
      .w_dq = w.w_dq,
      .w_uq_qr = m.quantised() ? w.w_uq_qr_i8.codes : w.w_uq_qr,
      .dequant_scale = m.quantised() ? w.w_uq_qr_i8.column_scales() : Tensor{},
      .w_uk = w.w_uk,
      .w_dkv_kr = w.w_dkv_kr,
      .gamma_cq = tensor(w.gamma_cq.data(), {m.config.q_lora_rank}),
      .gamma_ckv = tensor(w.gamma_ckv.data(), {m.config.kv_lora_rank}),
      .cos = m.cos,
      .sin = m.sin,
      .cache_index = m.slots,
      .kv_cache = m.kept.latent,
      .kr_cache = m.kept.rope,
      .k_scale_cache = m.kept.latent_scale,
      .epsilon_cq = m.layer.epsilon_cq,
      .epsilon_ckv = m.layer.epsilon_ckv,
  };
}

MlaPrologQuantOuts mla_outs(const Chunk& m) {
  MlaPrologQuantOuts o{};
  o.q_norm_out = m.c_q, o.q_norm_scale_out = m.c_q_scale;
  o.query_nope_out = m.query_nope, o.query_rope_out = m.query_rope;
  return o;
}

LightningIndexerPrologQuantArgs indexer_args(const Chunk& m) {
  const LayerWeights& w = m.layer.weights;
  const std::int64_t di = m.config.index_head_dim;
  const Tensor hadamard = tensor(w.hadamard.data(), {di, di});
  return {
      .x = m.hidden,
      .q_norm = m.c_q,
      .q_norm_scale = m.c_q_scale,
      .w_qb = w.w_qb_i8.codes,
      .w_qb_scale = w.w_qb_i8.column_scales(),
      .wk = w.wk,
      .w_proj = w.w_proj,
      .ln_gamma_k = tensor(w.ln_gamma_k.data(), {di}),
      .ln_beta_k = tensor(w.ln_beta_k.data(), {di}),
      .cos = m.cos,
      .sin = m.sin,
      .hadamard_q = hadamard,
      .hadamard_k = hadamard,
      .k_cache_index = m.slots,
      .layernorm_epsilon_k = m.layer.epsilon_k,
      .rope_layout = m.config.indexer_rope_interleave ? "interleaved" : "half",
  };
}

LightningIndexerPrologQuantOuts indexer_outs(const Chunk& m) {
  return {
      .q_int8 = m.index_query,
      .q_scale = m.index_query_scale,
      .k_cache = m.kept.index_key,
      .k_scale_cache = m.kept.index_scale,
      .weights = m.index_weights,
  };
}

/// sparse_w8a8_packed: all projections in int8, one packed row per token.
void mla_prolog_packed(const Chunk& m) {
  const LayerWeights& w = m.layer.weights;
  {
    Timed timed(m.costs, "dynamic_quant", 0);
    dynamic_quant({.input = m.hidden}, {.y = m.hidden_i8, .scale = reshaped(m.hidden_scale, {m.rows})}, m.context);
  }
  Timed timed(m.costs, "mla_prolog_v3",
              double(w.w_dq_i8.codes.bytes() + w.w_dkv_kr_i8.codes.bytes() + w.w_uk.bytes() +
                     w.w_uq_qr_i8.codes.bytes()));
  const float clip_alpha = 1;
  const auto channels = [](const QuantisedMatrix& q) { return reshaped(q.column_scales(), {1, q.codes.view().n}); };
  mla_prolog_v3(
      {
          .token_x = m.hidden_i8,
          .weight_dq = w.w_dq_i8.codes,
          .weight_uq_qr = w.w_uq_qr_i8.codes,
          .weight_uk = w.w_uk,
          .weight_dkv_kr = w.w_dkv_kr_i8.codes,
          .rmsnorm_gamma_cq = tensor(w.gamma_cq.data(), {m.config.q_lora_rank}),
          .rmsnorm_gamma_ckv = tensor(w.gamma_ckv.data(), {m.config.kv_lora_rank}),
          .rope_sin = m.sin,
          .rope_cos = m.cos,
          .kv_cache = m.kept.latent,
          .cache_index = m.slots,
          .dequant_scale_x = m.hidden_scale,
          .dequant_scale_w_dq = channels(w.w_dq_i8),
          .dequant_scale_w_uq_qr = channels(w.w_uq_qr_i8),
          .dequant_scale_w_dkv_kr = channels(w.w_dkv_kr_i8),
          .k_nope_clip_alpha = tensor(&clip_alpha, {1}),
          .rmsnorm_epsilon_cq = m.layer.epsilon_cq,
          .rmsnorm_epsilon_ckv = m.layer.epsilon_ckv,
          .query_norm_flag = true,
          .weight_quant_mode = 2,
          .kv_cache_quant_mode = 3,
          .ckvkr_repo_mode = 1,
          .quant_scale_repo_mode = 1,
          .tile_size = latent_group(m.config.kv_lora_rank),
      },
      {
          .query = m.query_nope,
          .query_rope = m.query_rope,
          .query_norm = m.c_q,
          .dequant_scale_q_norm = m.c_q_scale,
      },
      m.context);
}

}  // namespace

void run_prolog(const Chunk& m) {
  const LayerWeights& w = m.layer.weights;
  const Matrix& uq_qr = m.quantised() ? w.w_uq_qr_i8.codes : w.w_uq_qr;
  const double mla = double(w.w_dq.bytes() + w.w_dkv_kr.bytes() + w.w_uk.bytes() + uq_qr.bytes()),
               keys = double(w.wk.bytes() + w.w_proj.bytes()), codes = double(w.w_qb_i8.codes.bytes());
  if (m.packed()) {
    mla_prolog_packed(m);
    if (!m.scores()) return;
    Timed timed(m.costs, "lightning_indexer_prolog_quant", keys + codes);
    lightning_indexer_prolog_quant(indexer_args(m), indexer_outs(m), m.context);
  } else if (m.quantised() && m.scores()) {
    using mla_indexer_prolog_quant_op::joined;
    Timed timed(m.costs, "mla_indexer_prolog_quant", mla + keys + codes);
    const MlaPrologQuantArgs args = mla_args(m);
    mla_indexer_prolog_quant(joined(args, indexer_args(m)), joined(args, mla_outs(m), indexer_outs(m)), m.context);
  } else {
    {
      Timed timed(m.costs, "mla_prolog_quant", mla);
      mla_prolog_quant(mla_args(m), mla_outs(m), m.context);
    }
    if (!m.scores()) return;
    Timed timed(m.costs, "index_prolog_bf16", double(w.w_dq.bytes() + w.w_qb.bytes()) + keys);
    index_prolog_bf16(m);
  }
}

}  // namespace dsakit
