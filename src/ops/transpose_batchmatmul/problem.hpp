// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "core/check.hpp"
#include "core/view.hpp"
#include "dsakit/transpose_batchmatmul.hpp"
#include "ops/matrices.hpp"

namespace dsakit::transpose_batchmatmul_op {

/// Row i of x[b] times matrix b of w is columns b*n .. of row i of y. All of one dtype.
struct Problem {
  Tensor x;                                 // [b, m, k]
  Matrices w;                               // its leading axis is b
  Tensor y;                                 // memory and dtype
  std::int64_t row_step, width, slab_step;  // column c of row i: i * row_step + c / width * slab_step + c % width

  /// Element of the weight.
  float weight(std::int64_t b, std::int64_t row, std::int64_t column) const {
    Tensor matrix = w.stack;
    matrix.data = const_cast<std::byte*>(w.matrix(b));
    return float_at(matrix, w.at(row, column));
  }
  std::int64_t batch() const { return x.shape[0]; }
  std::int64_t rows() const { return x.shape[1]; }
  std::int64_t place(std::int64_t row, std::int64_t column) const {
    return row * row_step + column / width * slab_step + column % width;
  }
};

Problem check(const TransposeBatchmatmulArgs&, const TransposeBatchmatmulOuts&);
Problem check(const BatchMatmulTransposeArgs&, const BatchMatmulTransposeOuts&);

/// Value checking of the weight: finite numbers, at [b][k][n].
void check_weight_values(const Check& check, const Problem& p, const char* name);

}  // namespace dsakit::transpose_batchmatmul_op
