// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "dsakit/dynamic_quant.hpp"
#include "layer/costs.hpp"
#include "layer/index_prolog.hpp"
#include "layer/parallel_chunk.hpp"
#include "ops/prolog/door.hpp"
#include "ops/prolog/parted.hpp"

// The prolog in parts: this rank's columns of the products of the hidden states, then, from those of all ranks, what caches get,
// index queries of this rank's heads, and its queries, which nobody else waits for: so they are made while something travels.
// The sums that are exchanged are fp32 before any rounding.
namespace dsakit {
namespace {

using prolog::flat_rows;
using prolog::HiddenSums;

constexpr char kOp[] = "attention_layer";

/// A weight of which a rank may have nothing.
Weight view_of(const Matrix& m, DType dtype) {
  if (m) return m.view();
  Weight none;
  none.dtype = dtype;
  return none;
}
Rows scales_of(const QuantisedMatrix& m) {
  return m.codes ? flat_rows(m.column_scales(), 1) : prolog::no_rows();
}
Rows rows_of(const Tensor& t, std::int64_t width) {
  return t && t.elements() > 0 ? flat_rows(t, width) : prolog::no_rows();
}

/// Of some rows; with `heads` their queries too, else what caches get and the low-rank query alone.
prolog::MlaProblem mla_problem(const Chunk& m, const HiddenSums& sums, Slice rows, std::int64_t heads) {
  const io::ModelConfig& c = m.config;
  const LayerWeights& w = m.layer.weights;
  const bool packed = m.packed();
  const std::int64_t latent = c.kv_lora_rank, rope = c.qk_rope_head_dim;
  const DType first = packed ? DType::i8 : DType::bf16, second = m.quantised() ? DType::i8 : DType::bf16;
  const prolog::CacheRows none{prolog::no_rows()};
  const auto cache = [](const Tensor& t, std::int64_t width, std::int64_t begin = 0) {
    return prolog::CacheRows{.first = flat_rows(t, width), .begin = begin};
  };
  const auto some = [&](const Tensor& t) { return t && t.elements() > 0 ? slice(t, rows.begin, rows.size()) : t; };
  const std::int64_t width = m.kept.latent.shape[3];
  const bool queries = heads > 0;
  return {
      .numerics = packed ? prolog::kTorchNpu : prolog::kPyPto,
      .tokens = rows.size(),
      .hidden = c.hidden_size,
      .rank = c.q_lora_rank,
      .heads = heads,
      .nope = c.qk_nope_head_dim,
      .rope = rope,
      .latent = latent,
      .epsilon_cq = float(m.layer.epsilon_cq),
      .epsilon_ckv = float(m.layer.epsilon_ckv),
      .w_dq = sums.given() ? view_of({}, first) : view_of(packed ? w.w_dq_i8.codes : w.w_dq, first),
      .w_uq_qr = queries ? view_of(m.quantised() ? w.w_uq_qr_i8.codes : w.w_uq_qr, second) : view_of({}, second),
      .w_uk = queries ? view_of(w.w_uk, DType::bf16) : view_of({}, DType::bf16),
      .w_dkv_kr = sums.given() ? view_of({}, first) : view_of(packed ? w.w_dkv_kr_i8.codes : w.w_dkv_kr, first),
      .gamma_cq = w.gamma_cq.data(),
      .gamma_ckv = w.gamma_ckv.data(),
      .x = sums.given() ? prolog::no_rows() : flat_rows(packed ? m.hidden_i8 : m.hidden, c.hidden_size),
      .cos = flat_rows(some(m.cos), rope),
      .sin = flat_rows(some(m.sin), rope),
      .x_scale = packed ? flat_rows(some(m.hidden_scale), 1) : prolog::no_rows(),
      .dq_scale = scales_of(w.w_dq_i8),
      .uq_qr_scale = queries ? scales_of(w.w_uq_qr_i8) : prolog::no_rows(),
      .dkv_kr_scale = scales_of(w.w_dkv_kr_i8),
      .smooth = prolog::no_rows(),
      .cache_index = flat_rows(some(m.slots), 1),
      .q_norm = flat_rows(some(m.c_q), c.q_lora_rank),
      .q_norm_scale = rows_of(some(m.c_q_scale), 1),
      .query_nope = queries ? rows_of(some(m.query_nope), latent) : prolog::no_rows(),
      .query_rope = queries ? rows_of(some(m.query_rope), rope) : prolog::no_rows(),
      .query_scale = prolog::no_rows(),
      .latent_store = m.quantised() ? prolog::Store::groups : prolog::Store::bf16,
      .key_store = prolog::Store::bf16,
      .groups = latent / latent_group(latent),
      .latent_scale = prolog::no_rows(),
      .key_scale = prolog::no_rows(),
      .kv_cache = cache(m.kept.latent, width),
      .kr_cache = packed ? cache(m.kept.latent, width, latent) : cache(m.kept.rope, rope),
      .k_scale_cache = packed          ? cache(m.kept.latent, width, latent + 2 * rope)
                       : m.quantised() ? cache(m.kept.latent_scale, m.kept.latent_scale.shape[3])
                                       : none,
      .sums = sums,
  };
}

prolog::IndexerProblem indexer_problem(const SharedChunk& s, const HiddenSums& sums) {
  const Chunk& m = s.chunk;
  const io::ModelConfig& c = m.config;
  const LayerWeights& w = m.layer.weights;
  const std::int64_t dim = c.index_head_dim, heads = c.index_n_heads;
  const Tensor hadamard = tensor(w.hadamard.data(), {dim, dim});
  return {
      .tokens = m.rows,
      .hidden = c.hidden_size,
      .rank = c.q_lora_rank,
      .heads = s.own_index_query.shape[1],
      .dim = dim,
      .rope = c.qk_rope_head_dim,
      .layout = c.indexer_rope_interleave ? RopeLayout::interleaved : RopeLayout::half,
      .epsilon = float(m.layer.epsilon_k),
      .head_scale = float(1.0 / (std::sqrt(double(heads)) * std::sqrt(double(dim)))),
      .w_qb = view_of(w.w_qb_i8.codes, DType::i8),
      .wk = sums.given() ? view_of({}, DType::bf16) : view_of(w.wk, DType::bf16),
      .w_proj = sums.given() ? view_of({}, DType::bf16) : view_of(w.w_proj, DType::bf16),
      .gamma = tensor(w.ln_gamma_k.data(), {dim}),
      .beta = tensor(w.ln_beta_k.data(), {dim}),
      .hadamard_q = hadamard,
      .hadamard_k = hadamard,
      .channel_scale = scales_of(w.w_qb_i8),
      .x = sums.given() ? prolog::no_rows() : flat_rows(m.hidden, c.hidden_size),
      .q_norm = flat_rows(m.c_q, c.q_lora_rank),
      .q_norm_scale = flat_rows(m.c_q_scale, 1),
      .cos = flat_rows(m.cos, c.qk_rope_head_dim),
      .sin = flat_rows(m.sin, c.qk_rope_head_dim),
      .cache_index = flat_rows(m.slots, 1),
      .q_int8 = rows_of(s.own_index_query, dim),
      .q_scale = rows_of(s.own_index_scale, 1),
      .weights = flat_rows(m.index_weights, heads),
      .k_cache = flat_rows(m.kept.index_key, dim),
      .k_scale_cache = flat_rows(m.kept.index_scale, 1),
      .sums = sums,
      .all_heads = heads,
  };
}

/// This rank's columns.
void multiply(const SharedChunk& s) {
  const Chunk& m = s.chunk;
  const io::ModelConfig& c = m.config;
  const LayerWeights& w = m.layer.weights;
  const LayerShare share = s.parallel.share();
  const auto own = [&](std::int64_t width) { return share.prolog_columns(width).size(); };
  Timed timed(m.costs, "hidden_products",
              double(w.w_dq.bytes() + w.w_dkv_kr.bytes() + w.w_dq_i8.codes.bytes() + w.w_dkv_kr_i8.codes.bytes() +
                     w.wk.bytes() + w.w_proj.bytes()));
  if (m.packed())
    dynamic_quant({.input = m.hidden}, {.y = m.hidden_i8, .scale = reshaped(m.hidden_scale, {m.rows})}, m.context);
  using enum HiddenSums::Use;
  prolog::run(kOp, mla_problem(m, {made, s.mine.c_q, s.mine.kv, own(c.q_lora_rank), own(c.kv_lora_rank + c.qk_rope_head_dim)},
                               {0, m.rows}, c.num_attention_heads),
              m.context);
  if (!m.scores()) return;
  if (m.quantised())
    prolog::run(kOp, indexer_problem(s, {made, s.mine.key, s.mine.weights, own(c.index_head_dim), own(c.index_n_heads)}),
                m.context);
  else
    index_sums_bf16(m, {s.mine.plain_c_q, s.mine.key, s.mine.weights, s.mine.rest});
}

void exchange_sums(const SharedChunk& s) {
  const Chunk& m = s.chunk;
  const io::ModelConfig& c = m.config;
  const auto columns = [](const float* mine, float* all, std::int64_t width) {
    return SharedColumns{mine, all, width, sizeof(float)};
  };
  const SharedColumns c_q = columns(s.mine.c_q, s.sums.c_q, c.q_lora_rank),
                      kv = columns(s.mine.kv, s.sums.kv, c.kv_lora_rank + c.qk_rope_head_dim),
                      key = columns(s.mine.key, s.sums.key, c.index_head_dim),
                      weights = columns(s.mine.weights, s.sums.weights, c.index_n_heads);
  if (!m.scores()) return gather(s.parallel, "first_products", m.rows, {c_q, kv});
  if (m.quantised()) return gather(s.parallel, "first_products", m.rows, {c_q, kv, key, weights});
  const SharedColumns plain = columns(s.mine.plain_c_q, s.sums.plain_c_q, c.q_lora_rank),
                      rest = columns(s.mine.rest, s.sums.rest, c.index_n_heads);
  if (s.mine.rest) gather(s.parallel, "first_products", m.rows, {c_q, kv, key, weights, plain, rest});
  else gather(s.parallel, "first_products", m.rows, {c_q, kv, key, weights, plain});
}

/// The sums of all columns, from row `first` on.
HiddenSums given_sums(const SharedChunk& s, std::int64_t first) {
  const io::ModelConfig& c = s.chunk.config;
  const std::int64_t query = c.q_lora_rank, kv = c.kv_lora_rank + c.qk_rope_head_dim;
  return {HiddenSums::Use::given, s.sums.c_q + first * query, s.sums.kv + first * kv, query, kv};
}

void make_index_queries(const SharedChunk& s) {
  const Chunk& m = s.chunk;
  const io::ModelConfig& c = m.config;
  const LayerWeights& w = m.layer.weights;
  Timed timed(m.costs, "index_query_products", double(w.w_qb.bytes() + w.w_qb_i8.codes.bytes()));
  if (m.quantised()) {
    prolog::run(kOp, indexer_problem(s, {HiddenSums::Use::given, s.sums.key, s.sums.weights, c.index_head_dim, c.index_n_heads}),
                m.context);
  } else {
    Chunk own = m;
    own.index_query = s.own_index_query;
    index_prolog_bf16(own, {s.sums.plain_c_q, s.sums.key, s.sums.weights, s.sums.rest});
  }
}

}  // namespace

void run_prolog(const SharedChunk& s) {
  const Chunk& m = s.chunk;
  s.parallel.talk.work([&] { multiply(s); });
  if (s.parallel.share().split_prolog) exchange_sums(s);
  s.parallel.talk.work([&] {
    prolog::run(kOp, mla_problem(m, given_sums(s, 0), {0, m.rows}, 0), m.context);
    if (m.scores()) make_index_queries(s);
  });
}

void gather_index_queries(const SharedChunk& s) {
  const Chunk& m = s.chunk;
  const io::ModelConfig& c = m.config;
  if (!m.scores() || !s.parallel.share().split_prolog) return;
  const SharedColumns query{s.own_index_query.data, m.index_query.data, c.index_n_heads,
                            c.index_head_dim * size_of(m.index_query.dtype), false};
  if (!m.quantised()) return gather(s.parallel, "index_queries", m.rows, {query});
  const SharedColumns scale{s.own_index_scale.data, m.index_query_scale.data, c.index_n_heads, sizeof(f16), false};
  gather(s.parallel, "index_queries", m.rows, {query, scale});
}

void make_queries(const SharedChunk& s, Slice rows) {
  const Chunk& m = s.chunk;
  const LayerWeights& w = m.layer.weights;
  if (rows.size() == 0 || m.config.num_attention_heads == 0) return;
  Timed timed(m.costs, "query_products", double(w.w_uq_qr.bytes() + w.w_uq_qr_i8.codes.bytes() + w.w_uk.bytes()));
  prolog::run(kOp, mla_problem(m, given_sums(s, rows.begin), rows, m.config.num_attention_heads), m.context);
}

}  // namespace dsakit
