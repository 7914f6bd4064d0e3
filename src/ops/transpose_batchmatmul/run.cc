// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "ops/convert.hpp"
#include "ops/direct.hpp"
#include "ops/door.hpp"
#include "ops/products.hpp"
#include "ops/transpose_batchmatmul/problem.hpp"

namespace dsakit {
namespace {

using transpose_batchmatmul_op::Problem;

/// Columns first .. first + n - 1 of a row of y.
void store_row(const Kernels& kernels, const Problem& p, std::int64_t row, std::int64_t first, std::int64_t n,
               const float* v) {
  for (std::int64_t run; n > 0; n -= run, first += run, v += run) {
    run = std::min(n, p.width - first % p.width);
    narrow(kernels, v, run, p.y, p.place(row, first));
  }
}

template <class Args, class Outs>
void run(const Args& a, const Outs& o, Context& context, const char* op, const char* weight) {
  const Problem p = transpose_batchmatmul_op::check(a, o);
  if (context.check_values()) {
    const Check check(op, a.level);
    check_finite(check, Tensors::inputs<Outs>(a));
    check_weight_values(check, p, weight);
  }
  const StackProduct product{p.x, p.w};
  Call call(context, op, [&](int threads) { return product.bytes(threads); });
  product.run(call, call.memory(),
              [&](std::int64_t b, std::int64_t row, std::int64_t column, std::int64_t n, const float* v) {
                store_row(call.kernels(), p, row, b * p.w.n + column, n, v);
              });
  call.finish();
}

}  // namespace

void direct::transpose_batchmatmul(const TransposeBatchmatmulArgs& a, const TransposeBatchmatmulOuts& o,
                                   Context& context) {
  run(a, o, context, "transpose_batchmatmul", "weight");
}

void direct::batch_matmul_transpose(const BatchMatmulTransposeArgs& a, const BatchMatmulTransposeOuts& o,
                                    Context& context) {
  run(a, o, context, "batch_matmul_transpose", "tensor_b");
}

}  // namespace dsakit
