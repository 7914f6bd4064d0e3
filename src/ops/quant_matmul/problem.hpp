// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "core/view.hpp"
#include "dsakit/quant_matmul.hpp"
#include "ops/matrices.hpp"

namespace dsakit::quant_matmul_op {

/// Row r of x1 times matrix r / rows of x2 is row r of y.
struct Problem {
  Rows x1, y;
  Matrices x2;                                 // its leading axes are those of y, or none if all rows meet one matrix
  std::int64_t total;                          // rows
  std::int64_t rows;                           // that meet the same matrix
  std::int64_t m;                              // row r has the token scale r % m
  Tensor scale, offset, pertoken_scale, bias;  // absent ones have no effect
  std::int64_t pertoken_step;

  std::int64_t k() const { return x2.k; }
  std::int64_t n() const { return x2.n; }
  float pertoken(std::int64_t row) const {
    return static_cast<const float*>(pertoken_scale.data)[row % m * pertoken_step];
  }
};

Problem check(const QuantMatmulArgs&, const QuantMatmulOuts&);

/// Element i of a vector [n], or the only one of [1].
inline std::int64_t at_or_only(const Tensor& t, std::int64_t i) { return t.shape[0] == 1 ? 0 : i * t.stride[0]; }

}  // namespace dsakit::quant_matmul_op
