// SPDX-License-Identifier: Apache-2.0
#include "core/view.hpp"
#include "ops/transpose_batchmatmul/problem.hpp"

namespace dsakit::reference {
namespace {

using transpose_batchmatmul_op::Problem;

void run(const Problem& p) {
  for (std::int64_t b = 0; b < p.batch(); ++b)
    for (std::int64_t i = 0; i < p.rows(); ++i)
      for (std::int64_t j = 0; j < p.w.n; ++j) {
        double sum = 0;
        for (std::int64_t k = 0; k < p.w.k; ++k)
          sum += double(float_at(p.x, b * p.x.stride[0] + i * p.x.stride[1] + k)) * p.weight(b, k, j);
        store(p.y, p.place(i, b * p.w.n + j), float(sum));
      }
}

}  // namespace

void transpose_batchmatmul(const TransposeBatchmatmulArgs& a, const TransposeBatchmatmulOuts& o) {
  run(transpose_batchmatmul_op::check(a, o));
}

void batch_matmul_transpose(const BatchMatmulTransposeArgs& a, const BatchMatmulTransposeOuts& o) {
  run(transpose_batchmatmul_op::check(a, o));
}

}  // namespace dsakit::reference
