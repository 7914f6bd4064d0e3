// SPDX-License-Identifier: Apache-2.0
#include "layer/index_prolog.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "layer/linear.hpp"
#include "ops/prolog/rows.hpp"

namespace dsakit {
namespace {

/// One thread's memory.
struct Row {
  float *gamma, *cos, *sin, *turned;

  Row(Carver& memory, const io::ModelConfig& c) {
    gamma = memory.take<float>(c.q_lora_rank);
    cos = memory.take<float>(c.qk_rope_head_dim);
    sin = memory.take<float>(c.qk_rope_head_dim);
    turned = memory.take<float>(c.qk_rope_head_dim);
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

void IndexPrologBf16::run(Context& context) const {
  const std::int64_t heads = config.index_n_heads, width = config.index_head_dim, rope = config.qk_rope_head_dim,
                     rank = config.q_lora_rank;
  Carver measure;
  Row(measure, config);
  const std::size_t bytes = measure.bytes();
  Call call(context, "attention_layer", [&](int threads) { return std::size_t(threads) * bytes; });
  const Kernels& kernels = call.kernels();
  const auto memory = [&](int thread) {
    Carver carver(call.memory() + std::size_t(thread) * bytes);
    return Row(carver, config);
  };

  multiply(call, weights.w_dq, x, x_stride, rows, c_q);
  call.parallel_for(rows, double(rows * rank), [&](std::int64_t i, int thread) {
    const Row row = memory(thread);
    kernels.widen(weights.gamma_cq.data(), rank, row.gamma);
    prolog::rms_norm(kernels, prolog::kPyPto, c_q + i * rank, rank, row.gamma, float(config.rms_norm_eps),
                     c_q + i * rank);
  });
  multiply(call, weights.w_qb, std::as_const(c_q), rank, rows, query_f32);
  multiply(call, weights.wk, x, x_stride, rows, key_f32);
  multiply(call, weights.w_proj, x, x_stride, rows, head_weights);
  if (weights.w_proj_rest) multiply(call, weights.w_proj_rest, x, x_stride, rows, rest);

  const auto layout = config.indexer_rope_interleave ? prolog::RopeLayout::interleaved : prolog::RopeLayout::half;
  const float head_scale = float(1 / std::sqrt(double(heads))), width_scale = float(1 / std::sqrt(double(width)));
  call.parallel_for(rows, double(rows * (heads + 4) * width), [&](std::int64_t i, int thread) {
    const Row row = memory(thread);
    kernels.widen(cos + i * rope, rope, row.cos);
    kernels.widen(sin + i * rope, rope, row.sin);
    const auto rotate = [&](float* v) {
      prolog::rope(layout, v, row.cos, row.sin, rope / 2, row.turned);
      std::copy_n(row.turned, rope, v);
    };
    float *q = query_f32 + i * heads * width, *k = key_f32 + i * width;
    for (std::int64_t h = 0; h < heads; ++h) rotate(q + h * width);
    kernels.round(q, heads * width, query + i * heads * width);
    prolog::layer_norm(kernels, k, width, weights.ln_gamma_k.data(), weights.ln_beta_k.data(), float(kLayerNormEpsilon),
                       k);
    rotate(k);
    kernels.round(k, width, key + i * width);
    for (std::int64_t h = 0; h < heads; ++h) {
      float& w = head_weights[i * heads + h];
      if (weights.w_proj_rest) w += rest[i * heads + h];
      w = w * head_scale * width_scale;
    }
  });
  call.finish();
}

}  // namespace dsakit
