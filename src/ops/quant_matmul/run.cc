// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "ops/convert.hpp"
#include "ops/direct.hpp"
#include "ops/door.hpp"
#include "ops/products.hpp"
#include "ops/quant_matmul/problem.hpp"

namespace dsakit {
namespace {

using namespace quant_matmul_op;

/// Of the call: what belongs to columns, spread out as float.
struct Shared {
  float *scale, *offset;

  Shared(const Problem& p, Carver& memory)
      : scale(memory.take<float>(p.scale ? p.n() : 0)), offset(memory.take<float>(p.offset ? p.n() : 0)) {}
};

/// sums + bias; false if one leaves int32.
bool add_bias(const std::int32_t* sums, const std::int32_t* bias, int n, std::int32_t* out) {
  std::uint32_t over = 0;
  for (int j = 0; j < n; ++j) {
    const auto a = std::uint32_t(sums[j]), b = std::uint32_t(bias[j]), c = a + b;
    over |= (a ^ c) & (b ^ c);
    out[j] = std::int32_t(c);
  }
  return over >> 31 == 0;
}

/// What becomes of the sums of one row, from column `first` on.
void finish_row(const Kernels& kernels, const Problem& p, const Shared& s, std::int64_t row, std::int64_t first, int n,
                const std::int32_t* sums) {
  const Tensor& y = p.y.tensor;
  const std::int64_t at = p.y.offset(row) + first;
  if (y.dtype == DType::i32) {
    std::copy_n(sums, n, static_cast<std::int32_t*>(y.data) + at);
    return;
  }
  const float row_scale = p.pertoken_scale ? p.pertoken(row) : 1.0f;
  if (y.dtype != DType::i8 && !p.bias)
    return with_float(y.dtype, [&]<class T>() {
      kernels.dequantize(sums, n, row_scale, s.scale + first, static_cast<T*>(y.data) + at);
    });
  alignas(64) float v[kPanel];
  alignas(64) std::int32_t sum[kPanel];
  if (p.pertoken_scale || !p.bias) {
    kernels.dequantize(sums, n, row_scale, s.scale + first, v);
    for (int j = 0; j < n && p.bias; ++j) v[j] = v[j] + static_cast<const float*>(p.bias.data)[first + j];
  } else if (const auto* bias = static_cast<const std::int32_t*>(p.bias.data) + first; add_bias(sums, bias, n, sum)) {
    kernels.dequantize(sum, n, 1.0f, s.scale + first, v);
  } else {
    for (int j = 0; j < n; ++j) v[j] = float(std::int64_t(sums[j]) + bias[j]) * s.scale[first + j];
  }
  if (y.dtype != DType::i8) return narrow(kernels, v, n, y, at);
  if (p.offset)
    for (int j = 0; j < n; ++j) v[j] = v[j] + s.offset[first + j];
  kernels.quantize(v, n, 1.0f, static_cast<std::int8_t*>(y.data) + at);
}

void run(Call& call, const Problem& p, const CodeProduct& product) {
  Carver memory(call.memory());
  const Shared s(p, memory);
  for (std::int64_t j = 0; j < p.n(); ++j) {
    if (p.scale) s.scale[j] = float_at(p.scale, at_or_only(p.scale, j));
    if (p.offset) s.offset[j] = float_at(p.offset, at_or_only(p.offset, j));
  }
  product.run(call, call.memory() + memory.bytes(),
              [&](std::int64_t row, std::int64_t first, std::int64_t n, const std::int32_t* sums) {
                finish_row(call.kernels(), p, s, row, first, int(n), sums);
              });
}

}  // namespace

void direct::quant_matmul(const QuantMatmulArgs& a, const QuantMatmulOuts& o, Context& context) {
  const Problem problem = check(a, o);
  if (context.check_values()) check_finite(Check("quant_matmul", a.level), Tensors::inputs<QuantMatmulOuts>(a));
  const CodeProduct product{problem.x1, problem.x2, problem.rows};
  Call call(context, "quant_matmul", [&](int threads) { return bytes_of<Shared>(problem) + product.bytes(threads); });
  run(call, problem, product);
  call.finish();
}

}  // namespace dsakit
