// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "dsakit/context.hpp"
#include "dsakit/tensor.hpp"

// What programs of dsakit.pypto are made of and plain numpy is too slow for, or rounds otherwise. Tensors of `cast`,
// `row_sum`, `exp` and `statistics` are contiguous; refusals are those of the operators pypto.matmul, pypto.cast, pypto.sum and
// pypto.exp.
namespace dsakit::pypto_op {

/// c[b] = a[b] * b[b], [B, M, K] * [B, K, N], each also [.., ..] without the leading axis; b may have B = 1, transposed
/// matrices and be packed. bf16, f16 and f32 to their own dtype or f32, in the order of the library's products, int8 to
/// int32. `fma`: bf16 products as ContextOptions::same_products has them. c is contiguous.
void matmul(const Tensor& a, const Tensor& b, const Tensor& c, bool fma, Context&);

enum class CastMode { rint = 1, round, floor, ceil, trunc, odd };

/// y = x, element by element: one rounding of the exact value by the mode, of integers `saturate`d or cut to their low
/// bits. f32 to f32 rounds to integral values. `odd` is for f32 to f16.
void cast(const Tensor& x, const Tensor& y, CastMode mode, bool saturate, Context&);

/// y[r] = canonical sum of the row x[r], f32.
void row_sum(const Tensor& x, const Tensor& y, Context&);

/// y = exp(x), f32: the nearest float but for one in some hundred, the same on every machine; y may be x.
void exp(const Tensor& x, const Tensor& y, Context&);

/// Of all finite elements (none: inf and -inf), and how many are NaN, infinite, 0; a checksum of the bytes, the same on
/// every machine.
struct Statistics {
  double min, max;
  std::int64_t nan = 0, inf = 0, zero = 0;
  std::uint32_t checksum = 0;
};
Statistics statistics(const Tensor& x, Context&);

}  // namespace dsakit::pypto_op
