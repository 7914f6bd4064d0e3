// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "ops/row_operator.hpp"
#include "ops/swiglu/problem.hpp"

namespace dsakit::swiglu_op {

void run(const Problem& p, Call& call) {
  constexpr std::int64_t kPiece = 2048, kTask = 16384;  // elements
  const Kernels& kernels = call.kernels();
  const std::int64_t pieces = (p.width + kTask - 1) / kTask;  // of a row, where one is more than a task
  const std::int64_t rows = std::max<std::int64_t>(kTask / std::max<std::int64_t>(p.width, 1), 1);
  const auto of = [&](std::int64_t r, std::int64_t from, std::int64_t to) {
    float a[kPiece], b[kPiece];
    for (std::int64_t i = from; i < to; i += kPiece) {
      const std::int64_t n = std::min(kPiece, to - i);
      widen(kernels, p.gate.tensor, p.gate.offset(r) + i, n, a);
      widen(kernels, p.value.tensor, p.value.offset(r) + i, n, b);
      kernels.swiglu(a, b, n, a);
      narrow(kernels, a, n, p.y.tensor, p.y.offset(r) + i);
    }
  };
  call.parallel_for((p.rows + rows - 1) / rows * pieces, {.elements = 2 * double(p.rows) * double(p.width)},
                    [&](std::int64_t task, int) {
                      const std::int64_t first = task / pieces * rows, from = task % pieces * kTask;
                      for (std::int64_t r = first, end = std::min(first + rows, p.rows); r < end; ++r)
                        of(r, from, std::min(from + kTask, p.width));
                    });
}

}  // namespace dsakit::swiglu_op
