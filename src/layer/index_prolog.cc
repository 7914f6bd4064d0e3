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
struct Products {
  float *c_q, *query, *key, *rest;  // [rows, Hcq], [rows, Ni, Di], [rows, Di], [rows, Ni]
  const io::ModelConfig& config;
  std::size_t row_bytes;
  std::byte* row_memory;  // [threads][row_bytes]

  Products(const Chunk& m, const Call& call, Carver& memory)
      : c_q(memory.take<float>(m.rows * m.config.q_lora_rank)),
        query(memory.take<float>(m.rows * m.config.index_n_heads * m.config.index_head_dim)),
        key(memory.take<float>(m.rows * m.config.index_head_dim)),
        rest(memory.take<float>(m.rows * m.config.index_n_heads)),
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
  for_each_tile(call, w.view(), a, a_stride, 0, rows,
                [&](auto, auto row, auto some, auto column, auto columns, const float* tile) {
                  for (std::int64_t i = 0; i < some; ++i)
                    std::copy_n(tile + i * kPanel, columns, to + (row + i) * w.view().n + column);
                });
}

}  // namespace

void index_prolog_bf16(const Chunk& m) {
  const io::ModelConfig& c = m.config;
  const LayerWeights& w = m.layer.weights;
  const std::int64_t rows = m.rows, heads = c.index_n_heads, width = c.index_head_dim, dr = c.qk_rope_head_dim,
                     rank = c.q_lora_rank;
  Call call(m.context, "attention_layer", [&](const Call& call) { return bytes_of<Products>(m, call); });
  const Kernels& kernels = call.kernels();
  Carver memory(call.memory());
  const Products p(m, call, memory);
  const bf16* x = data_of<const bf16>(m.hidden);
  float* head_weights = data_of<float>(m.index_weights);

  multiply(call, w.w_dq, x, m.hidden.stride[0], rows, p.c_q);
  call.parallel_for(rows, {.elements = double(rows * rank)}, [&](std::int64_t i, int thread) {
    const RowMemory row = p.of(thread);
    kernels.widen(w.gamma_cq.data(), rank, row.gamma);
    float* c_q = p.c_q + i * rank;
    rms_norm(kernels, NormOrder::pypto, c_q, rank, row.gamma, float(m.layer.epsilon_cq), c_q);
  });
  multiply(call, w.w_qb, p.c_q, rank, rows, p.query);
  multiply(call, w.wk, x, m.hidden.stride[0], rows, p.key);
  multiply(call, w.w_proj, x, m.hidden.stride[0], rows, head_weights);
  if (w.w_proj_rest) multiply(call, w.w_proj_rest, x, m.hidden.stride[0], rows, p.rest);

  const RopeLayout layout = c.indexer_rope_interleave ? RopeLayout::interleaved : RopeLayout::half;
  const float head_scale = float(1 / std::sqrt(double(heads))), width_scale = float(1 / std::sqrt(double(width)));
  call.parallel_for(rows, {.elements = double(rows * (heads + 4) * width)}, [&](std::int64_t i, int thread) {
    const RowMemory row = p.of(thread);
    kernels.widen(data_of<bf16>(m.cos) + i * dr, dr, row.cos);
    kernels.widen(data_of<bf16>(m.sin) + i * dr, dr, row.sin);
    const auto rotate_first = [&](float* v) {
      rotate(layout, v, row.cos, row.sin, dr / 2, row.rotated);
      std::copy_n(row.rotated, dr, v);
    };
    float *q = p.query + i * heads * width, *k = p.key + i * width;
    for (std::int64_t h = 0; h < heads; ++h) rotate_first(q + h * width);
    kernels.round(q, heads * width, data_of<bf16>(m.index_query) + i * heads * width);
    layer_norm(kernels, k, width, w.ln_gamma_k.data(), w.ln_beta_k.data(), float(m.layer.epsilon_k), k);
    rotate_first(k);
    kernels.round(k, width, data_of<bf16>(m.kept.index_key) + i * width);
    for (std::int64_t h = 0; h < heads; ++h) {
      float& weight = head_weights[i * heads + h];
      if (w.w_proj_rest) weight += p.rest[i * heads + h];
      weight = weight * head_scale * width_scale;
    }
  });
  call.finish();
}

}  // namespace dsakit
