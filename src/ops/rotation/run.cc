// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "ops/convert.hpp"
#include "ops/rope.hpp"
#include "ops/rotation/problem.hpp"

namespace dsakit::rotation {
namespace {

struct Scratch {  // of one thread
  float *x, *y, *cos, *sin, *turned;

  Scratch(const Problem& p, Carver& memory)
      : x(memory.take<float>(p.width)),
        y(memory.take<float>(p.width)),
        cos(memory.take<float>(p.width)),
        sin(memory.take<float>(p.width)),
        turned(memory.take<float>(p.matrix ? p.width : 0)) {}
};

void rotate(Kind kind, const float* __restrict x, const float* __restrict cos, const float* __restrict sin,
            std::int64_t half, float* __restrict y) {
  if (kind != Kind::interleave)
    return dsakit::rotate(kind == Kind::half ? RopeLayout::half : RopeLayout::interleaved_to_half, x, cos, sin, half,
                          y);
  for (std::int64_t i = 0; i < 2 * half; i += 2) {
    y[i] = x[i] * cos[i] - x[i + 1] * sin[i];
    y[i + 1] = x[i + 1] * cos[i + 1] + x[i] * sin[i + 1];
  }
}

/// The same with a matrix; `turned` is room for a row. Sums in the order of k.
void rotate_by(const float* __restrict matrix, const float* __restrict x, const float* __restrict cos,
               const float* __restrict sin, std::int64_t width, float* __restrict turned, float* __restrict y) {
  std::fill_n(turned, width, 0.0f);
  for (std::int64_t k = 0; k < width; ++k)
    for (std::int64_t i = 0; i < width; ++i) turned[i] = turned[i] + x[k] * matrix[k * width + i];
  for (std::int64_t i = 0; i < width; ++i) y[i] = x[i] * cos[i] + turned[i] * sin[i];
}

std::int64_t matrix_size(const Problem& p) { return p.matrix ? p.width * p.width : 0; }

std::size_t of_one_thread(const Problem& p) { return bytes_of<Scratch>(p); }

}  // namespace

std::size_t workspace(const Problem& p, int threads) {
  Carver shared;
  shared.take<float>(matrix_size(p));
  return shared.bytes() + std::size_t(threads) * of_one_thread(p);
}

void run(const Problem& p, Call& call) {
  const Kernels& kernels = call.kernels();
  Carver shared(call.memory());
  float* matrix = shared.take<float>(matrix_size(p));
  for (std::int64_t k = 0; p.matrix && k < p.width; ++k)
    for (std::int64_t i = 0; i < p.width; ++i)
      matrix[k * p.width + i] = float_at(p.matrix, k * p.matrix.stride[0] + i * p.matrix.stride[1]);
  const std::size_t each = of_one_thread(p);
  const double elements = double(p.rows * p.width) * (p.matrix ? double(p.width) : 1);
  const std::int64_t rows = std::max<std::int64_t>(4096 / std::max<std::int64_t>(p.width, 1), 1);  // per task
  call.parallel_for((p.rows + rows - 1) / rows, {.elements = elements}, [&](std::int64_t task, int thread) {
    Carver memory(call.memory() + shared.bytes() + std::size_t(thread) * each);
    const Scratch s(p, memory);
    std::int64_t cos_at = -1, sin_at = -1;  // what s.cos and s.sin hold
    for (std::int64_t r = task * rows, end = std::min(r + rows, p.rows); r < end; ++r) {
      const std::int64_t cos = p.cos.offset(r), sin = p.sin.offset(r);
      if (cos != cos_at) widen(kernels, p.cos.tensor, cos_at = cos, p.width, s.cos);
      if (sin != sin_at) widen(kernels, p.sin.tensor, sin_at = sin, p.width, s.sin);
      widen(kernels, p.x.tensor, p.x.offset(r), p.width, s.x);
      if (p.matrix) rotate_by(matrix, s.x, s.cos, s.sin, p.width, s.turned, s.y);
      else rotate(p.kind, s.x, s.cos, s.sin, p.width / 2, s.y);
      narrow(kernels, s.y, p.width, p.y.tensor, p.y.offset(r));
    }
  });
}

}  // namespace dsakit::rotation
