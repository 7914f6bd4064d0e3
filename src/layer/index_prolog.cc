// SPDX-License-Identifier: Apache-2.0
#include "layer/index_prolog.hpp"

#include <algorithm>
#include <cmath>

#include "ops/linear.hpp"
#include "ops/norm.hpp"
#include "ops/rope.hpp"

namespace dsakit {
namespace {

/// One thread's memory.
struct RowMemory {
  float *gamma, *cos, *sin, *rotated;

  RowMemory(const io::ModelConfig& c, Carver& memory)
      : gamma(memory.take<float>(c.q_lora_rank)),
        cos(memory.take<float>(c.qk_rope_head_dim)),
        sin(memory.take<float>(c.qk_rope_head_dim)),
        rotated(memory.take<float>(c.qk_rope_head_dim)) {}
};

/// All rows in fp32.
struct Rows32 {
  float *c_q, *key, *rest;  // [rows, Hcq], [rows, Di], [rows, Ni]

  Rows32(const Chunk& m, Carver& memory)
      : c_q(memory.take<float>(m.rows * m.config.q_lora_rank)),
        key(memory.take<float>(m.rows * m.config.index_head_dim)),
        rest(memory.take<float>(m.rows * m.config.index_n_heads)) {}
};

/// Queries [rows, heads, Di] in fp32, and what each thread needs.
struct Queries {
  float* query;
  const io::ModelConfig& config;
  std::size_t row_bytes;
  std::byte* row_memory;  // [threads][row_bytes]

  Queries(const Chunk& m, const Call& call, Carver& memory)
      : query(memory.take<float>(m.rows * m.index_query.shape[1] * m.config.index_head_dim)),
        config(m.config),
        row_bytes(bytes_of<RowMemory>(m.config)),
        row_memory(memory.take<std::byte>(std::int64_t(row_bytes) * call.threads())) {}

  RowMemory of(int thread) const {
    Carver carver(row_memory + std::size_t(thread) * row_bytes);
    return RowMemory(config, carver);
  }
};

/// a * w, fp32, into rows of `to`.
template <class A>
void multiply(Call& call, const Matrix& w, const A* a, std::int64_t a_stride, std::int64_t rows, float* to) {
  if (!w) return;
  for_each_tile(call, w.view(), a, a_stride, 0, rows,
                [&](auto, auto row, auto some, auto column, auto columns, const float* tile) {
                  for (std::int64_t i = 0; i < some; ++i)
                    std::copy_n(tile + i * kPanel, columns, to + (row + i) * w.view().n + column);
                });
}

void make_sums(Call& call, const Chunk& m, const IndexSums& sums) {
  const LayerWeights& w = m.layer.weights;
  const bf16* x = data_of<const bf16>(m.hidden);
  const std::int64_t stride = m.hidden.stride[0];
  multiply(call, w.w_dq, x, stride, m.rows, sums.c_q);
  multiply(call, w.wk, x, stride, m.rows, sums.key);
  multiply(call, w.w_proj, x, stride, m.rows, sums.weights);
  if (sums.rest) multiply(call, w.w_proj_rest, x, stride, m.rows, sums.rest);
}

void finish_prolog(Call& call, const Chunk& m, const IndexSums& sums, const Queries& p) {
  const io::ModelConfig& c = m.config;
  const LayerWeights& w = m.layer.weights;
  const std::int64_t rows = m.rows, all_heads = c.index_n_heads, heads = m.index_query.shape[1],
                     width = c.index_head_dim, dr = c.qk_rope_head_dim, rank = c.q_lora_rank;
  const Kernels& kernels = call.kernels();
  float* head_weights = data_of<float>(m.index_weights);
  call.parallel_for(rows, {.elements = double(rows * rank)}, [&](std::int64_t i, int thread) {
    const RowMemory row = p.of(thread);
    kernels.widen(w.gamma_cq.data(), rank, row.gamma);
    float* c_q = sums.c_q + i * rank;
    rms_norm(kernels, NormOrder::pypto, c_q, rank, row.gamma, float(m.layer.epsilon_cq), c_q);
  });
  multiply(call, w.w_qb, sums.c_q, rank, rows, p.query);

  const RopeLayout layout = c.indexer_rope_interleave ? RopeLayout::interleaved : RopeLayout::half;
  const float head_scale = float(1 / std::sqrt(double(all_heads))), width_scale = float(1 / std::sqrt(double(width)));
  call.parallel_for(rows, {.elements = double(rows * (heads + 4) * width)}, [&](std::int64_t i, int thread) {
    const RowMemory row = p.of(thread);
    kernels.widen(data_of<bf16>(m.cos) + i * dr, dr, row.cos);
    kernels.widen(data_of<bf16>(m.sin) + i * dr, dr, row.sin);
    const auto rotate_first = [&](float* v) {
      rotate(layout, v, row.cos, row.sin, dr / 2, row.rotated);
      std::copy_n(row.rotated, dr, v);
    };
    float *q = p.query + i * heads * width, *k = sums.key + i * width;
    for (std::int64_t h = 0; h < heads; ++h) rotate_first(q + h * width);
    kernels.round(q, heads * width, data_of<bf16>(m.index_query) + i * heads * width);
    layer_norm(kernels, k, width, w.ln_gamma_k.data(), w.ln_beta_k.data(), float(m.layer.epsilon_k), k);
    rotate_first(k);
    kernels.round(k, width, data_of<bf16>(m.kept.index_key) + i * width);
    for (std::int64_t h = 0; h < all_heads; ++h) {
      float weight = sums.weights[i * all_heads + h];
      if (sums.rest) weight += sums.rest[i * all_heads + h];
      head_weights[i * all_heads + h] = weight * head_scale * width_scale;
    }
  });
}

struct Whole {
  Rows32 rows;
  Queries queries;
  Whole(const Chunk& m, const Call& call, Carver& memory) : rows(m, memory), queries(m, call, memory) {}
};

}  // namespace

void index_prolog_bf16(const Chunk& m) {
  Call call(m.context, "attention_layer", [&](const Call& call) { return bytes_of<Whole>(m, call); });
  Carver memory(call.memory());
  const Whole p(m, call, memory);
  const IndexSums sums{p.rows.c_q, p.rows.key, data_of<float>(m.index_weights),
                       m.layer.weights.w_proj_rest ? p.rows.rest : nullptr};
  make_sums(call, m, sums);
  finish_prolog(call, m, sums, p.queries);
  call.finish();
}

void index_sums_bf16(const Chunk& m, const IndexSums& sums) {
  Call call(m.context, "attention_layer", 0);
  make_sums(call, m, sums);
  call.finish();
}

void index_prolog_bf16(const Chunk& m, const IndexSums& sums) {
  Call call(m.context, "attention_layer", [&](const Call& call) { return bytes_of<Queries>(m, call); });
  Carver memory(call.memory());
  const Queries p(m, call, memory);
  finish_prolog(call, m, sums, p);
  call.finish();
}

}  // namespace dsakit
