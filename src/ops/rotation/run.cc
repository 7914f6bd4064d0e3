// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "ops/convert.hpp"
#include "ops/rotation/problem.hpp"

namespace dsakit::rotation {
namespace {

constexpr std::int64_t kElements = 4096;  // of a task

struct Scratch {  // of one thread, with a matrix
  float *x, *y, *cos, *sin, *turned;

  Scratch(const Problem& p, Carver& memory)
      : x(memory.take<float>(p.width)),
        y(memory.take<float>(p.width)),
        cos(memory.take<float>(p.width)),
        sin(memory.take<float>(p.width)),
        turned(memory.take<float>(p.width)) {}
};

/// y = x * cos + (x @ matrix) * sin; `turned` is room for a row. Sums in the order of k.
void rotate_by(const float* __restrict matrix, const float* __restrict x, const float* __restrict cos,
               const float* __restrict sin, std::int64_t width, float* __restrict turned, float* __restrict y) {
  std::fill_n(turned, width, 0.0f);
  for (std::int64_t k = 0; k < width; ++k)
    for (std::int64_t i = 0; i < width; ++i) turned[i] = turned[i] + x[k] * matrix[k * width + i];
  for (std::int64_t i = 0; i < width; ++i) y[i] = x[i] * cos[i] + turned[i] * sin[i];
}

std::int64_t matrix_size(const Problem& p) { return p.width * p.width; }

std::size_t of_one_thread(const Problem& p) { return bytes_of<Scratch>(p); }

constexpr RopePairs pairs_of(Kind kind) {
  return kind == Kind::half         ? RopePairs::half
         : kind == Kind::interleave ? RopePairs::adjacent
                                    : RopePairs::adjacent_to_half;
}

/// Rows along the last axis that has more than one are rotated at once.
template <class T>
void run_rows(const Problem& p, Call& call) {
  const Kernels& kernels = call.kernels();
  int axis = p.x.tensor.rank - 2;
  while (axis > 0 && p.x.tensor.shape[axis] == 1) --axis;
  const auto stride = [&](const Rows& rows) { return axis < 0 ? 0 : rows.tensor.stride[axis]; };
  const std::int64_t length = axis < 0 ? 1 : p.x.tensor.shape[axis];
  const std::int64_t most = std::max<std::int64_t>(kElements / p.width, 1);  // rows of a task
  const std::int64_t pieces = (length + most - 1) / most, together = std::max<std::int64_t>(most / length, 1);
  const std::int64_t tasks = (p.rows / length * pieces + together - 1) / together;
  call.parallel_for(tasks, {.elements = double(p.rows * p.width)}, [&](std::int64_t task, int) {
    for (std::int64_t i = task * together, end = std::min(i + together, p.rows / length * pieces); i < end; ++i) {
      const std::int64_t begin = i % pieces * most, rows = std::min(most, length - begin), r = i / pieces * length + begin;
      kernels.rotate(RotateRows<T>{.pairs = pairs_of(p.kind),
                                   .x = p.x.row<const T>(r),
                                   .x_stride = stride(p.x),
                                   .cos = p.cos.row<const T>(r),
                                   .cos_stride = stride(p.cos),
                                   .sin = p.sin.row<const T>(r),
                                   .sin_stride = stride(p.sin),
                                   .y = p.y.row<T>(r),
                                   .y_stride = stride(p.y),
                                   .rows = rows,
                                   .half = p.width / 2});
    }
  });
}

void run_matrix(const Problem& p, Call& call) {
  const Kernels& kernels = call.kernels();
  Carver shared(call.memory());
  float* matrix = shared.take<float>(matrix_size(p));
  for (std::int64_t k = 0; k < p.width; ++k)
    for (std::int64_t i = 0; i < p.width; ++i)
      matrix[k * p.width + i] = float_at(p.matrix, k * p.matrix.stride[0] + i * p.matrix.stride[1]);
  const std::size_t each = of_one_thread(p);
  const double elements = double(p.rows * p.width) * double(p.width);
  const std::int64_t rows = std::max<std::int64_t>(kElements / p.width, 1);  // per task
  call.parallel_for((p.rows + rows - 1) / rows, {.elements = elements}, [&](std::int64_t task, int thread) {
    Carver memory(call.memory() + shared.bytes() + std::size_t(thread) * each);
    const Scratch s(p, memory);
    for (std::int64_t r = task * rows, end = std::min(r + rows, p.rows); r < end; ++r) {
      widen(kernels, p.cos.tensor, p.cos.offset(r), p.width, s.cos);
      widen(kernels, p.sin.tensor, p.sin.offset(r), p.width, s.sin);
      widen(kernels, p.x.tensor, p.x.offset(r), p.width, s.x);
      rotate_by(matrix, s.x, s.cos, s.sin, p.width, s.turned, s.y);
      narrow(kernels, s.y, p.width, p.y.tensor, p.y.offset(r));
    }
  });
}

}  // namespace

std::size_t workspace(const Problem& p, int threads) {
  if (!p.matrix || p.rows == 0) return 0;
  Carver shared;
  shared.take<float>(matrix_size(p));
  return shared.bytes() + std::size_t(threads) * of_one_thread(p);
}

void run(const Problem& p, Call& call) {
  if (p.rows == 0) return;
  if (p.matrix) return run_matrix(p, call);
  with_float(p.x.tensor.dtype, [&]<class T>() { run_rows<T>(p, call); });
}

}  // namespace dsakit::rotation
