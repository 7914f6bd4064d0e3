// SPDX-License-Identifier: Apache-2.0
#include "layer/layer.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>

#include "dsakit/dynamic_quant.hpp"
#include "dsakit/kv_quant_sparse_flash_attention.hpp"
#include "dsakit/lightning_indexer.hpp"
#include "dsakit/lightning_indexer_prolog_quant.hpp"
#include "dsakit/mla_indexer_prolog_quant.hpp"
#include "dsakit/mla_prolog_quant.hpp"
#include "dsakit/mla_prolog_v3.hpp"
#include "dsakit/quant_lightning_indexer.hpp"
#include "dsakit/sparse_flash_attention_quant.hpp"
#include "layer/costs.hpp"
#include "layer/dense_attention.hpp"
#include "layer/index_prolog.hpp"
#include "layer/linear.hpp"

namespace dsakit {
namespace {

/// One chunk on its way through the layer. The members up to `out` are given, the others live in scratch.
struct Chunk {
  const AttentionLayer::State& layer;
  const LayerWeights& w = layer.weights;
  const io::ModelConfig& c = layer.config;
  LayerCache::State& cache;
  Context& context;
  Costs* costs;
  Tensor hidden, out;
  std::int32_t* selection;
  std::int64_t rows = hidden.shape[0], first = cache.length, total = first + rows;

  bf16 *cos{}, *sin{}, *query_nope{}, *query_rope{}, *c_q{}, *index_query{}, *index_key{}, *attended{}, *values{};
  std::int8_t *hidden_i8{}, *c_q_i8{}, *index_query_i8{};
  f16 *index_query_scale{}, *index_weights_f16{};
  float *hidden_scale{}, *c_q_scale{}, *index_weights{}, *index_key_f32{}, *c_q_f32{}, *index_query_f32{},
      *index_weights_rest{};
  std::int64_t* slots{};

  bool quantised() const { return is_quantised(cache.mode); }
  bool packed() const { return is_packed(cache.mode); }
  bool scores() const { return is_sparse(cache.mode) && layer.indexer; }

  /// The arrays between the operators; measures when `memory` is null.
  std::size_t carve(std::byte* memory) {
    const std::int64_t n = c.num_attention_heads, ni = c.index_n_heads, di = c.index_head_dim, dr = c.qk_rope_head_dim;
    Carver carver(memory);
    cos = carver.take<bf16>(rows * dr);
    sin = carver.take<bf16>(rows * dr);
    slots = carver.take<std::int64_t>(rows);
    query_nope = carver.take<bf16>(rows * n * (c.kv_lora_rank + (packed() ? dr : 0)));
    query_rope = packed() ? query_nope + c.kv_lora_rank : carver.take<bf16>(rows * n * dr);
    attended = carver.take<bf16>(rows * n * c.kv_lora_rank);
    values = carver.take<bf16>(rows * n * c.v_head_dim);
    c_q = carver.take<bf16>(quantised() ? 0 : rows * c.q_lora_rank);
    c_q_i8 = carver.take<std::int8_t>(quantised() ? rows * c.q_lora_rank : 0);
    c_q_scale = carver.take<float>(rows);
    hidden_i8 = carver.take<std::int8_t>(packed() ? rows * c.hidden_size : 0);
    hidden_scale = carver.take<float>(packed() ? rows : 0);
    const std::int64_t exact = scores() && !quantised() ? rows : 0, coded = scores() && quantised() ? rows : 0;
    index_query = carver.take<bf16>(exact * ni * di);
    index_key = carver.take<bf16>(exact * di);
    c_q_f32 = carver.take<float>(exact * c.q_lora_rank);
    index_query_f32 = carver.take<float>(exact * ni * di);
    index_key_f32 = carver.take<float>(exact * di);
    index_weights = carver.take<float>(exact * ni);
    index_weights_rest = carver.take<float>(exact * ni);
    index_query_i8 = carver.take<std::int8_t>(coded * ni * di);
    index_query_scale = carver.take<f16>(coded * ni);
    index_weights_f16 = carver.take<f16>(coded * ni);
    return carver.bytes();
  }

  void place() {
    cache.reserve(total);
    for (std::int64_t i = 0; i < rows; ++i) slots[i] = cache.slot(first + i);
    layer.rope->copy(first, rows, cos, sin);
  }

  double prolog_bytes() const { return double(w.w_dq.bytes() + w.w_dkv_kr.bytes() + w.w_uk.bytes()); }
  /// Positions that the rows see, together.
  double visible() const { return double(rows) * double(first) + 0.5 * double(rows) * double(rows + 1); }

  /// Latent and rope rows into the cache; query_nope, query_rope, and c_q in bf16 or int8.
  void mla_prolog() {
    const std::int64_t n = c.num_attention_heads, dr = c.qk_rope_head_dim;
    const bool i8 = quantised();
    const Matrix& uq = i8 ? w.w_uq_qr_i8.codes : w.w_uq_qr;
    Timed timed(costs, "mla_prolog_quant", prolog_bytes() + double(uq.bytes()));
    mla_prolog_quant(
        {
            .token_x = hidden,
            .w_dq = w.w_dq,
            .w_uq_qr = uq,
            .dequant_scale = i8 ? tensor(w.w_uq_qr_i8.scale.data(), {n * (c.qk_nope_head_dim + dr), 1}) : Tensor{},
            .w_uk = w.w_uk,
            .w_dkv_kr = w.w_dkv_kr,
            .gamma_cq = tensor(w.gamma_cq.data(), {c.q_lora_rank}),
            .gamma_ckv = tensor(w.gamma_ckv.data(), {c.kv_lora_rank}),
            .cos = tensor(cos, {rows, dr}),
            .sin = tensor(sin, {rows, dr}),
            .cache_index = tensor(slots, {rows}),
            .kv_cache = cache.pages_of(cache.latent),
            .kr_cache = cache.pages_of(cache.rope),
            .k_scale_cache = cache.pages_of(cache.latent_scale),
            .epsilon_cq = c.rms_norm_eps,
            .epsilon_ckv = c.rms_norm_eps,
        },
        {
            .q_norm_out = i8 ? tensor(c_q_i8, {rows, c.q_lora_rank}) : tensor(c_q, {rows, c.q_lora_rank}),
            .q_norm_scale_out = i8 ? tensor(c_q_scale, {rows, 1}) : tensor(c_q_scale, {0}),
            .query_nope_out = tensor(query_nope, {rows, n, c.kv_lora_rank}),
            .query_rope_out = tensor(query_rope, {rows, n, dr}),
        },
        context);
  }

  /// The same with int8 projections; one packed row per token.
  void mla_prolog_packed() {
    const std::int64_t n = c.num_attention_heads, dr = c.qk_rope_head_dim, he = c.hidden_size;
    {
      Timed timed(costs, "dynamic_quant", 0);
      dynamic_quant({.input = hidden},
                    {.y = tensor(hidden_i8, {rows, he}), .scale = tensor(hidden_scale, {rows})}, context);
    }
    Timed timed(costs, "mla_prolog_v3",
                double(w.w_dq_i8.codes.bytes() + w.w_dkv_kr_i8.codes.bytes() + w.w_uk.bytes() +
                       w.w_uq_qr_i8.codes.bytes()));
    float clip_alpha = 1;
    const auto channels = [](const QuantisedMatrix& m) { return tensor(m.scale.data(), {1, m.codes.view().n}); };
    const auto joined = [&](bf16* first, std::int64_t width) {  // latent and rope part of a query row lie side by side
      Tensor t = tensor(first, {rows, n, width});
      t.stride = {n * (c.kv_lora_rank + dr), c.kv_lora_rank + dr, 1};
      return t;
    };
    mla_prolog_v3(
        {
            .token_x = tensor(hidden_i8, {rows, he}),
            .weight_dq = w.w_dq_i8.codes,
            .weight_uq_qr = w.w_uq_qr_i8.codes,
            .weight_uk = w.w_uk,
            .weight_dkv_kr = w.w_dkv_kr_i8.codes,
            .rmsnorm_gamma_cq = tensor(w.gamma_cq.data(), {c.q_lora_rank}),
            .rmsnorm_gamma_ckv = tensor(w.gamma_ckv.data(), {c.kv_lora_rank}),
            .rope_sin = tensor(sin, {rows, dr}),
            .rope_cos = tensor(cos, {rows, dr}),
            .kv_cache = cache.pages_of(cache.latent),
            .cache_index = tensor(slots, {rows}),
            .dequant_scale_x = tensor(hidden_scale, {rows, 1}),
            .dequant_scale_w_dq = channels(w.w_dq_i8),
            .dequant_scale_w_uq_qr = channels(w.w_uq_qr_i8),
            .dequant_scale_w_dkv_kr = channels(w.w_dkv_kr_i8),
            .k_nope_clip_alpha = tensor(&clip_alpha, {1}),
            .rmsnorm_epsilon_cq = c.rms_norm_eps,
            .rmsnorm_epsilon_ckv = c.rms_norm_eps,
            .query_norm_flag = true,
            .weight_quant_mode = 2,
            .kv_cache_quant_mode = 3,
            .ckvkr_repo_mode = 1,
            .quant_scale_repo_mode = 1,
            .tile_size = latent_group(c.kv_lora_rank),
        },
        {
            .query = joined(query_nope, c.kv_lora_rank),
            .query_rope = joined(query_rope, dr),
            .query_norm = tensor(c_q_i8, {rows, c.q_lora_rank}),
            .dequant_scale_q_norm = tensor(c_q_scale, {rows, 1}),
        },
        context);
  }

  /// Index query, key and head weights from the query that mla_prolog_v3 left.
  void indexer_prolog() {
    const std::int64_t ni = c.index_n_heads, di = c.index_head_dim, dr = c.qk_rope_head_dim;
    const Tensor h = tensor(w.hadamard.data(), {di, di});
    Timed timed(costs, "lightning_indexer_prolog_quant",
                double(w.w_qb_i8.codes.bytes() + w.wk.bytes() + w.w_proj.bytes()));
    lightning_indexer_prolog_quant(
        {
            .x = hidden,
            .q_norm = tensor(c_q_i8, {rows, c.q_lora_rank}),
            .q_norm_scale = tensor(c_q_scale, {rows, 1}),
            .w_qb = w.w_qb_i8.codes,
            .w_qb_scale = tensor(w.w_qb_i8.scale.data(), {ni * di, 1}),
            .wk = w.wk,
            .w_proj = w.w_proj,
            .ln_gamma_k = tensor(w.ln_gamma_k.data(), {di}),
            .ln_beta_k = tensor(w.ln_beta_k.data(), {di}),
            .cos = tensor(cos, {rows, dr}),
            .sin = tensor(sin, {rows, dr}),
            .hadamard_q = h,
            .hadamard_k = h,
            .k_cache_index = tensor(slots, {rows}),
            .layernorm_epsilon_k = kLayerNormEpsilon,
            .rope_layout = c.indexer_rope_interleave ? "interleaved" : "half",
        },
        {
            .q_int8 = tensor(index_query_i8, {rows, ni, di}),
            .q_scale = tensor(index_query_scale, {rows, ni, 1}),
            .k_cache = cache.pages_of(cache.index_key),
            .k_scale_cache = cache.pages_of(cache.index_scale),
            .weights = tensor(index_weights_f16, {rows, ni}),
        },
        context);
  }

  void mla_indexer_prolog() {
    const std::int64_t n = c.num_attention_heads, dr = c.qk_rope_head_dim, ni = c.index_n_heads, di = c.index_head_dim;
    const Tensor h = tensor(w.hadamard.data(), {di, di});
    Timed timed(costs, "mla_indexer_prolog_quant",
                prolog_bytes() +
                    double(w.w_uq_qr_i8.codes.bytes() + w.w_qb_i8.codes.bytes() + w.wk.bytes() + w.w_proj.bytes()));
    mla_indexer_prolog_quant(
        {
            .token_x = hidden,
            .w_dq = w.w_dq,
            .w_uq_qr = w.w_uq_qr_i8.codes,
            .dequant_scale = tensor(w.w_uq_qr_i8.scale.data(), {n * (c.qk_nope_head_dim + dr), 1}),
            .w_uk = w.w_uk,
            .w_dkv_kr = w.w_dkv_kr,
            .gamma_cq = tensor(w.gamma_cq.data(), {c.q_lora_rank}),
            .gamma_ckv = tensor(w.gamma_ckv.data(), {c.kv_lora_rank}),
            .cos = tensor(cos, {rows, dr}),
            .sin = tensor(sin, {rows, dr}),
            .cache_index = tensor(slots, {rows}),
            .w_qb = w.w_qb_i8.codes,
            .w_qb_scale = tensor(w.w_qb_i8.scale.data(), {ni * di, 1}),
            .wk = w.wk,
            .w_proj = w.w_proj,
            .ln_gamma_k = tensor(w.ln_gamma_k.data(), {di}),
            .ln_beta_k = tensor(w.ln_beta_k.data(), {di}),
            .hadamard_q = h,
            .hadamard_k = h,
            .epsilon_cq = c.rms_norm_eps,
            .epsilon_ckv = c.rms_norm_eps,
            .layernorm_epsilon_k = kLayerNormEpsilon,
            .rope_layout_indexer = c.indexer_rope_interleave ? "interleaved" : "half",
        },
        {
            .query_nope = tensor(query_nope, {rows, n, c.kv_lora_rank}),
            .query_rope = tensor(query_rope, {rows, n, dr}),
            .kv_cache = cache.pages_of(cache.latent),
            .kr_cache = cache.pages_of(cache.rope),
            .k_scale_cache = cache.pages_of(cache.latent_scale),
            .q_int8 = tensor(index_query_i8, {rows, ni, di}),
            .q_scale = tensor(index_query_scale, {rows, ni, 1}),
            .ip_k_cache = cache.pages_of(cache.index_key),
            .ip_k_scale_cache = cache.pages_of(cache.index_scale),
            .weights = tensor(index_weights_f16, {rows, ni}),
        },
        context);
  }

  void index_prolog() {
    Timed timed(costs, "index_prolog_bf16", double(w.w_dq.bytes() + w.w_qb.bytes() + w.wk.bytes() + w.w_proj.bytes()));
    IndexPrologBf16{c,
                    w,
                    rows,
                    static_cast<const bf16*>(hidden.data),
                    hidden.stride[0],
                    cos,
                    sin,
                    c_q_f32,
                    index_query_f32,
                    index_key_f32,
                    index_weights_rest,
                    index_query,
                    index_key,
                    index_weights}
        .run(context);
    const std::int64_t width = c.index_head_dim;
    bf16* keys = reinterpret_cast<bf16*>(cache.index_key.memory.data());
    for (std::int64_t i = 0; i < rows; ++i) std::copy_n(index_key + i * width, width, keys + slots[i] * width);
  }

  /// Rows that see at most K positions take them all, in order; the others are scored.
  void select() {
    const std::int64_t k = c.index_topk, all = std::clamp<std::int64_t>(k - first, 0, rows), scored = rows - all;
    for (std::int64_t i = 0; i < all; ++i) std::iota(selection + i * k, selection + i * k + first + i + 1, 0);
    if (scored == 0) return;
    const std::int64_t ni = c.index_n_heads, di = c.index_head_dim;
    const std::int32_t queries = std::int32_t(scored), keys = std::int32_t(total);
    const Tensor query_length = tensor(&queries, {1}), key_length = tensor(&keys, {1});
    const Tensor indices = tensor(selection + all * k, {scored, 1, k});
    if (quantised()) {
      Timed timed(costs, "quant_lightning_indexer", double(total) * double(di + 2));
      Tensor key_scale = cache.pages_of(cache.index_scale);
      key_scale.rank = 3;
      quant_lightning_indexer(
          {
              .query = tensor(index_query_i8 + all * ni * di, {scored, ni, di}),
              .key = cache.pages_of(cache.index_key),
              .weights = tensor(index_weights_f16 + all * ni, {scored, ni}),
              .query_dequant_scale = tensor(index_query_scale + all * ni, {scored, ni}),
              .key_dequant_scale = key_scale,
              .actual_seq_lengths_query = query_length,
              .actual_seq_lengths_key = key_length,
              .block_table = cache.block_table(),
              .layout_query = "TND",
              .layout_key = "PA_BSND",
              .sparse_count = k,
          },
          {.sparse_indices = indices}, context);
    } else {
      Timed timed(costs, "lightning_indexer", double(total) * double(di * 2));
      bf16 none{};
      lightning_indexer(
          {
              .query = tensor(index_query + all * ni * di, {scored, ni, di}),
              .key = cache.pages_of(cache.index_key),
              .weights = tensor(index_weights + all * ni, {scored, ni}),
              .actual_seq_lengths_query = query_length,
              .actual_seq_lengths_key = key_length,
              .block_table = cache.block_table(),
              .layout_query = "TND",
              .layout_key = "PA_BSND",
              .sparse_count = k,
          },
          {.sparse_indices = indices, .sparse_values = tensor(&none, {0})}, context);
    }
  }

  double row_bytes() const {
    return double(cache.latent.row_bytes() + cache.rope.row_bytes() + cache.latent_scale.row_bytes());
  }

  void attend() {
    const std::int64_t n = c.num_attention_heads;
    if (!is_sparse(cache.mode)) {
      Timed timed(costs, "dense_attention", double(total) * row_bytes());
      dense_attention({.query_nope = query_nope,
                       .query_rope = query_rope,
                       .rows = rows,
                       .first = first,
                       .heads = n,
                       .scale = layer.scale,
                       .out = attended},
                      cache, context);
      if (costs) costs->selected += visible(), costs->visible += visible();
      return;
    }
    const std::int64_t k = c.index_topk;
    double listed = 0;
    for (std::int64_t i = 0; i < rows; ++i) listed += double(std::min(first + i + 1, k));
    if (costs) costs->selected += listed, costs->visible += visible();
    if (packed()) return attend_packed(listed);
    Timed timed(costs, "sparse_flash_attention_quant", listed * row_bytes());
    const std::int32_t keys = std::int32_t(total);
    sparse_flash_attention_quant(
        {
            .query_nope = tensor(query_nope, {rows * n, c.kv_lora_rank}),
            .query_rope = tensor(query_rope, {rows * n, c.qk_rope_head_dim}),
            .key_nope_2d = cache.rows_of(cache.latent),
            .key_rope_2d = cache.rows_of(cache.rope),
            .k_nope_scales = cache.rows_of(cache.latent_scale),
            .topk_indices = tensor(selection, {rows, k}),
            .block_table = cache.block_table(),
            .kv_act_seqs = tensor(&keys, {1}),
            .b = 1,
            .s1 = rows,
            .nq = n,
            .softmax_scale = layer.scale,
            .topk = k,
            .block_size = cache.page_size,
        },
        {.attention_out = tensor(attended, {1, rows, n, c.kv_lora_rank})}, context);
  }

  void attend_packed(double listed) {
    const std::int64_t n = c.num_attention_heads, k = c.index_topk;
    Timed timed(costs, "kv_quant_sparse_flash_attention", listed * row_bytes());
    for (std::int64_t i = 0; i < rows && first + i + 1 < k; ++i)
      selection[i * k + first + i + 1] = -1;  // the end of a list that is not full
    const std::int32_t queries = std::int32_t(rows), keys = std::int32_t(total);
    const Tensor key = cache.pages_of(cache.latent);
    kv_quant_sparse_flash_attention(
        {
            .query = tensor(query_nope, {rows, n, c.kv_lora_rank + c.qk_rope_head_dim}),
            .key = key,
            .value = key,
            .sparse_indices = tensor(selection, {rows, 1, k}),
            .scale_value = layer.scale,
            .key_quant_mode = 2,
            .value_quant_mode = 2,
            .block_table = cache.block_table(),
            .actual_seq_lengths_query = tensor(&queries, {1}),
            .actual_seq_lengths_kv = tensor(&keys, {1}),
            .layout_query = "TND",
            .layout_kv = "PA_BSND",
            .attention_mode = 2,
            .tile_size = latent_group(c.kv_lora_rank),
            .rope_head_dim = c.qk_rope_head_dim,
        },
        {.attention_out = tensor(attended, {rows, n, c.kv_lora_rank})}, context);
  }

  /// Each head's latent through its W_UV, rounded to bf16, then the output projection.
  void project() {
    const std::int64_t n = c.num_attention_heads, dv = c.v_head_dim;
    Timed timed(costs, "output_projection", double(w.w_uv.bytes() + w.w_o.bytes()));
    Call call(context, "attention_layer", 0);
    for_each_tile(call, w.w_uv.view(), attended, n * c.kv_lora_rank, c.kv_lora_rank, rows,
                  [&](auto head, auto row, auto some, auto column, auto columns, const float* tile) {
                    for (std::int64_t i = 0; i < some; ++i)
                      call.kernels().round(tile + i * kPanel, columns,
                                                values + ((row + i) * n + head) * dv + column);
                  });
    for_each_tile(call, w.w_o.view(), values, n * dv, 0, rows,
                  [&](auto, auto row, auto some, auto column, auto columns, const float* tile) {
                    for (std::int64_t i = 0; i < some; ++i) {
                      const std::int64_t at = (row + i) * out.stride[0] + column;
                      if (out.dtype == DType::f32)
                        std::copy_n(tile + i * kPanel, columns, static_cast<float*>(out.data) + at);
                      else call.kernels().round(tile + i * kPanel, columns, static_cast<bf16*>(out.data) + at);
                    }
                  });
    call.finish();
  }
};

}  // namespace

std::int64_t chunk_tokens(const io::ModelConfig& c) {
  constexpr std::int64_t kQueryElements = std::int64_t(8) << 20;  // 16 MiB of absorbed query, as much of results
  return std::clamp<std::int64_t>(kQueryElements / (c.num_attention_heads * c.kv_lora_rank), 16, 256);
}

void forward_chunk(const AttentionLayer::State& layer, const Tensor& hidden, const Tensor& out,
                   LayerCache::State& cache, std::int32_t* selection, Scratch& scratch, Context& context,
                   Costs* costs) {
  Chunk chunk{.layer = layer,
              .cache = cache,
              .context = context,
              .costs = costs,
              .hidden = hidden,
              .out = out,
              .selection = selection};
  chunk.carve(scratch.require(chunk.carve(nullptr)));
  chunk.place();
  if (chunk.packed()) {
    chunk.mla_prolog_packed();
    if (chunk.scores()) chunk.indexer_prolog();
  } else if (chunk.scores() && chunk.quantised()) {
    chunk.mla_indexer_prolog();
  } else {
    chunk.mla_prolog();
    if (chunk.scores()) chunk.index_prolog();
  }
  if (chunk.scores()) chunk.select();
  chunk.attend();
  chunk.project();
  cache.length = chunk.total;
}

AttentionLayer::State::State(const io::ModelConfig& config, int layer, std::unique_ptr<WeightSource> source,
                             std::shared_ptr<const RopeTable> rope)
    : config(config),
      indexer(config.index_topk > 0 && config.full_indexer[layer]),
      scale(softmax_scale(config)),
      rope(std::move(rope)),
      weights(config, indexer, std::move(source)) {}

AttentionLayer make_layer(const io::ModelConfig& config, int layer, std::unique_ptr<WeightSource> source) {
  if (layer < 0 || layer >= config.num_hidden_layers)
    throw Error(Status::invalid_argument, "model", "layer", "", "is " + std::to_string(layer),
                "0.." + std::to_string(config.num_hidden_layers - 1), "num_hidden_layers");
  return AttentionLayer(std::make_shared<AttentionLayer::State>(
      config, layer, std::move(source), std::make_shared<RopeTable>(config.rope, config.qk_rope_head_dim)));
}

AttentionLayer::AttentionLayer(const std::string& folder, int layer) {
  const auto checkpoint = std::make_shared<const io::Checkpoint>(folder);
  *this = make_layer(checkpoint->config(), layer, checkpoint_source(checkpoint, layer));
}
AttentionLayer::AttentionLayer(std::shared_ptr<State> state) : state_(std::move(state)) {}

std::int64_t AttentionLayer::hidden_size() const { return state_->config.hidden_size; }
std::int64_t AttentionLayer::index_topk() const { return state_->config.index_topk; }
bool AttentionLayer::has_indexer() const { return state_->indexer; }
std::size_t AttentionLayer::weight_bytes() const { return state_->weights.bytes(); }

LayerCache AttentionLayer::make_cache(std::string_view mode, std::int64_t page_size) const {
  return LayerCache(
      std::make_unique<LayerCache::State>(state_->config, state_->indexer, mode_of(mode, state_->config), page_size));
}

void AttentionLayer::forward(const Tensor& hidden, const Tensor& out, LayerCache& cache_, const Tensor& selection,
                             Context& context, Costs* costs) const {
  const io::ModelConfig& c = state_->config;
  LayerCache::State& cache = cache_.state();
  const Check check("attention_layer", Level::portable);
  check.required(hidden, "hidden");
  check.required(out, "out");
  check.dtype(hidden, "hidden", {DType::bf16});
  check.rank(hidden, "hidden", 2, "tokens and hidden_size");
  check.readable(hidden, "hidden");
  check.shape(hidden, "hidden", {hidden.shape[0], c.hidden_size}, "T and hidden_size");
  check.dtype(out, "out", {DType::bf16, DType::f32});
  check.writable(out, "out");
  check.shape(out, "out", {hidden.shape[0], c.hidden_size}, "as hidden");
  check.no_overlap(out, "out", hidden, "hidden");
  const bool sparse = is_sparse(cache.mode);
  if (!sparse && selection) check.absent(selection, "selection", "dense_bf16 attends to everything");
  if (sparse && !state_->indexer) check.required(selection, "selection");
  if (selection) {
    check.dtype(selection, "selection", {DType::i32});
    if (state_->indexer) check.writable(selection, "selection");
    else check.readable(selection, "selection");
    check.shape(selection, "selection", {hidden.shape[0], c.index_topk}, "T and index_topk");
  }
  const LayerCache::State wanted(c, state_->indexer, cache.mode, cache.page_size);
  if (!cache.same_kind(wanted))
    check.fail(Status::invalid_argument, "cache", "", "was made for another layer",
               "one from make_cache of this layer");

  state_->weights.prepare(cache.mode);
  const std::int64_t rows = hidden.shape[0], step = chunk_tokens(c);
  cache.reserve(cache.length + rows);
  std::vector<std::int32_t> own(sparse ? std::min(rows, step) * c.index_topk : 0);
  const auto slice = [](Tensor t, std::int64_t first, std::int64_t count) {
    t.data = static_cast<std::byte*>(t.data) + first * t.stride[0] * size_of(t.dtype);
    t.shape[0] = count;
    return t;
  };
  const auto given = [&](std::int64_t i) {
    return static_cast<std::int32_t*>(selection.data) + i * selection.stride[0];
  };
  const std::int64_t before = cache.length;
  try {
    for (std::int64_t first = 0; first < rows; first += step) {
      const std::int64_t count = std::min(step, rows - first);
      for (std::int64_t i = 0; i < count && selection && !state_->indexer; ++i)
        std::copy_n(given(first + i), c.index_topk, own.data() + i * c.index_topk);
      forward_chunk(*state_, slice(hidden, first, count), slice(out, first, count), cache, own.data(), cache.scratch,
                    context, costs);
      for (std::int64_t i = 0; i < count && selection && state_->indexer; ++i)
        std::copy_n(own.data() + i * c.index_topk, std::min(c.index_topk, before + first + i + 1), given(first + i));
    }
  } catch (...) {  // interrupted, or a selection that cannot be: as if nothing had been appended
    cache.length = before;
    throw;
  }
}

}  // namespace dsakit
