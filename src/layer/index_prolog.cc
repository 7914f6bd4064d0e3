// SPDX-License-Identifier: Apache-2.0
#include "layer/index_prolog.hpp"

#include <algorithm>
#include <cmath>

#include "layer/linear.hpp"
#include "ops/prolog/rows.hpp"

namespace dsakit {
namespace {

using prolog::RopeLayout;

/// Rotates the first `width` elements of a row in place.
void rotate(const Kernels& kernels, RopeLayout layout, bf16* row, const float* cos, const float* sin, std::int64_t width,
            float* wide, float* turned) {
  kernels.widen_bf16(row, width, wide);
  prolog::rope(layout, wide, cos, sin, width / 2, turned);
  kernels.round_bf16(turned, width, row);
}

}  // namespace

void IndexPrologBf16::run(Context& context) const {
  const std::int64_t pitch = config.qk_rope_head_dim * 4;
  Call call(context, "attention_layer", std::size_t(context.threads()) * std::size_t(pitch) * sizeof(float));
  const Kernels& kernels = call.kernels();
  const std::int64_t heads = config.index_n_heads, width = config.index_head_dim, rope = config.qk_rope_head_dim;
  const RopeLayout layout = config.indexer_rope_interleave ? RopeLayout::interleaved : RopeLayout::half;

  for_each_tile(call, weights.w_qb.view(), c_q, config.q_lora_rank, 0, rows,
                [&](auto, auto row, auto some, auto column, auto columns, const float* tile) {
                  for (std::int64_t i = 0; i < some; ++i)
                    kernels.round_bf16(tile + i * kPanel, columns, query + (row + i) * heads * width + column);
                });
  for_each_tile(call, weights.wk.view(), x, x_stride, 0, rows,
                [&](auto, auto row, auto some, auto column, auto columns, const float* tile) {
                  for (std::int64_t i = 0; i < some; ++i)
                    std::copy_n(tile + i * kPanel, columns, key_f32 + (row + i) * width + column);
                });
  const float head_scale = float(1 / std::sqrt(double(heads))), width_scale = float(1 / std::sqrt(double(width)));
  for_each_tile(call, weights.w_proj.view(), x, x_stride, 0, rows,
                [&](auto, auto row, auto some, auto column, auto columns, const float* tile) {
                  for (std::int64_t i = 0; i < some; ++i)
                    for (std::int64_t j = 0; j < columns; ++j)
                      head_weights[(row + i) * heads + column + j] = tile[i * kPanel + j] * head_scale * width_scale;
                });
  call.parallel_for(rows, double(rows * (heads * rope + 4 * width)), [&](std::int64_t i, int thread) {
    float* wide_cos = reinterpret_cast<float*>(call.memory()) + thread * pitch;
    float *wide_sin = wide_cos + rope, *wide = wide_sin + rope, *turned = wide + rope;
    kernels.widen_bf16(cos + i * rope, rope, wide_cos);
    kernels.widen_bf16(sin + i * rope, rope, wide_sin);
    for (std::int64_t h = 0; h < heads; ++h)
      rotate(kernels, layout, query + (i * heads + h) * width, wide_cos, wide_sin, rope, wide, turned);
    float* k = key_f32 + i * width;
    prolog::layer_norm(kernels, k, width, weights.ln_gamma_k.data(), weights.ln_beta_k.data(), float(kLayerNormEpsilon), k);
    kernels.round_bf16(k, width, key + i * width);
    rotate(kernels, layout, key + i * width, wide_cos, wide_sin, rope, wide, turned);
  });
  call.finish();
}

}  // namespace dsakit
