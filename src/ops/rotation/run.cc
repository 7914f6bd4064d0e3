// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "ops/rope.hpp"
#include "ops/rotation/problem.hpp"
#include "ops/row_operator.hpp"

namespace dsakit::rotation {
namespace {

struct Scratch {  // of one thread
  float *x, *y, *cos, *sin;

  Scratch(const Problem& p, Carver& memory)
      : x(memory.take<float>(p.width)),
        y(memory.take<float>(p.width)),
        cos(memory.take<float>(p.width)),
        sin(memory.take<float>(p.width)) {}
};

void rotate(Kind kind, const float* __restrict x, const float* __restrict cos, const float* __restrict sin,
            std::int64_t half, float* __restrict y) {
  if (kind != Kind::interleave)
    return dsakit::rotate(kind == Kind::half ? RopeLayout::half : RopeLayout::interleaved_to_half, x, cos, sin, half, y);
  for (std::int64_t i = 0; i < 2 * half; i += 2) {
    y[i] = x[i] * cos[i] - x[i + 1] * sin[i];
    y[i + 1] = x[i + 1] * cos[i + 1] + x[i] * sin[i + 1];
  }
}

}  // namespace

std::size_t workspace(const Problem& p, int threads) {
  Carver one;
  Scratch(p, one);
  return std::size_t(threads) * one.bytes();
}

void run(const Problem& p, Call& call) {
  const Kernels& kernels = call.kernels();
  const std::size_t each = workspace(p, 1);
  const std::int64_t rows = std::max<std::int64_t>(4096 / std::max<std::int64_t>(p.width, 1), 1);  // per task
  call.parallel_for((p.rows + rows - 1) / rows, {.elements = double(p.rows * p.width)}, [&](std::int64_t task, int thread) {
    Carver memory(call.memory() + std::size_t(thread) * each);
    const Scratch s(p, memory);
    std::int64_t cos_at = -1, sin_at = -1;  // what s.cos and s.sin hold
    for (std::int64_t r = task * rows, end = std::min(r + rows, p.rows); r < end; ++r) {
      const std::int64_t cos = p.cos.offset(r), sin = p.sin.offset(r);
      if (cos != cos_at) widen(kernels, p.cos.tensor, cos_at = cos, p.width, s.cos);
      if (sin != sin_at) widen(kernels, p.sin.tensor, sin_at = sin, p.width, s.sin);
      widen(kernels, p.x.tensor, p.x.offset(r), p.width, s.x);
      rotate(p.kind, s.x, s.cos, s.sin, p.width / 2, s.y);
      narrow(kernels, s.y, p.width, p.y.tensor, p.y.offset(r));
    }
  });
}

}  // namespace dsakit::rotation
