// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <string>

#include "ops/pypto/elements.hpp"
#include "ops/pypto/pypto.hpp"

namespace dsakit::pypto_op {
namespace {

/// exp(x) = 2^n exp(r), |r| <= ln 2 / 2, by its series to r^8 / 8!: it leaves out 2e-10, and a float rounds by 6e-8. In
/// double, so that hardly more than that last rounding is seen, and without fma, so that it is the same everywhere.
/// Beyond the bounds the result is 0 or infinite.
inline float exp_of(float x) {
  constexpr double kRound = 6755399441055744.0;  // 1.5 * 2^52: the sum is rounded to an integer, in its low bits
  const float above = x < -104.5f ? -104.5f : x, v = above > 89.5f ? 89.5f : above;
  const double shifted = v * 1.4426950408889634 + kRound, n = shifted - kRound, r = v - n * 0.6931471805599453;
  double p = 1.0 / 40320;
  for (const double c : {1.0 / 5040, 1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5, 1.0, 1.0}) p = p * r + c;
  return float(p * std::bit_cast<double>((std::bit_cast<std::uint64_t>(shifted) + 1023) << 52));
}

}  // namespace

void row_sum(const Tensor& x, const Tensor& y, Context& context) {
  const Check check("pypto.sum", Level::portable);
  check_elements(check, x, {DType::f32}, y, {DType::f32});
  const std::int64_t rows = y.elements(), n = rows > 0 ? x.elements() / rows : 0;
  if (x.elements() != rows * n)
    check.fail(Status::invalid_shape, "input", "", "has " + std::to_string(x.elements()) + " elements",
               "a multiple of " + std::to_string(rows), "rows of out");
  check.no_overlap(y, "out", x, "input");
  Call call(context, "pypto.sum", 0);
  call.parallel_for(rows, {.bytes = 4.0 * double(rows * n), .elements = double(rows * n) / 4},
                    [&](std::int64_t r, int) {
                      static_cast<float*>(y.data)[r] =
                          call.kernels().sum(static_cast<const float*>(x.data) + r * n, n, 1);
                    });
  call.finish();
}

void exp(const Tensor& x, const Tensor& y, Context& context) {
  const Check check("pypto.exp", Level::portable);
  check_elements(check, x, {DType::f32}, y, {DType::f32});
  check_count(check, x, y);
  check_same_or_apart(check, x, y);
  Call call(context, "pypto.exp", 0);
  each_block(call, x.elements(), 4, [&](std::int64_t first, std::int64_t n) {
    const float* from = static_cast<const float*>(x.data) + first;
    float* to = static_cast<float*>(y.data) + first;
    for (std::int64_t i = 0; i < n; ++i) to[i] = exp_of(from[i]);
  });
  call.finish();
}

}  // namespace dsakit::pypto_op
