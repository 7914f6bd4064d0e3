// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "ops/convert.hpp"
#include "ops/swiglu/problem.hpp"

namespace dsakit::swiglu_op {

void run(const Problem& p, Call& call) {
  constexpr std::int64_t kTask = 16384;                       // elements
  const std::int64_t pieces = (p.width + kTask - 1) / kTask;  // of a row, where one is more than a task
  const std::int64_t rows = std::max<std::int64_t>(kTask / std::max<std::int64_t>(p.width, 1), 1);
  const double elements = double(p.rows) * double(p.width);
  with_float(p.y.tensor.dtype, [&]<class T>() {
    call.parallel_for((p.rows + rows - 1) / rows * pieces,
                      {.bytes = 3 * sizeof(T) * elements, .elements = elements / 4},  // an exp and a division each
                      [&](std::int64_t task, int) {
                        const std::int64_t first = task / pieces * rows, i = task % pieces * kTask;
                        const std::int64_t n = std::min(kTask, p.width - i);
                        for (std::int64_t r = first, end = std::min(first + rows, p.rows); r < end; ++r)
                          call.kernels().swiglu(p.gate.row<const T>(r) + i, p.value.row<const T>(r) + i, n,
                                                p.y.row<T>(r) + i);
                      });
  });
}

}  // namespace dsakit::swiglu_op
