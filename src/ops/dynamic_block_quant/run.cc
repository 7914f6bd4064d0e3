// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstring>

#include "ops/convert.hpp"
#include "ops/dynamic_block_quant/problem.hpp"

namespace dsakit::dynamic_block_quant_op {
namespace {

constexpr std::int64_t kRows = 8;  // per task

/// Codes of one block; returns its scale.
float quantise(const Kernels& kernels, const float* x, std::int64_t n, float min_scale, std::int8_t* codes) {
  const float largest = kernels.max_abs(x, n), inverse = 1.0f / largest;
  float multiplier = inverse * 127.0f, scale = largest * (1.0f / 127.0f);
  if (!std::isfinite(multiplier)) {
    std::memset(codes, 0, std::size_t(n));
    return 0;
  }
  if (min_scale > 0) multiplier = std::max(multiplier, min_scale), scale = std::min(scale, 1.0f / min_scale);
  kernels.quantize(x, n, multiplier, codes);
  return scale;
}

}  // namespace

std::size_t workspace(const Problem& p, int threads) {
  Carver one;
  one.take<float>(p.width);
  return std::size_t(threads) * one.bytes();
}

void run(const Problem& p, Call& call) {
  const std::size_t each = workspace(p, 1);
  call.parallel_for((p.rows + kRows - 1) / kRows, {.elements = double(p.rows * p.width)}, [&](std::int64_t task, int thread) {
    auto* x = reinterpret_cast<float*>(call.memory() + std::size_t(thread) * each);
    for (std::int64_t r = task * kRows, end = std::min(r + kRows, p.rows); r < end; ++r) {
      widen(call.kernels(), p.x.tensor, p.x.offset(r), p.width, x);
      float* scale = p.scale.row<float>(r);
      for (std::int64_t i = 0, n; i < p.width; i += n) {
        n = std::min(p.block, p.width - i);
        *scale++ = quantise(call.kernels(), x + i, n, p.min_scale, p.y.row<std::int8_t>(r) + i);
      }
    }
  });
}

}  // namespace dsakit::dynamic_block_quant_op
