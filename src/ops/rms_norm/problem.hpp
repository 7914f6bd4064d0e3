// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>

#include "core/check.hpp"
#include "core/view.hpp"
#include "ops/door.hpp"
#include "run/call.hpp"

// What rms_norm, add_rms_norm and add_rms_norm_bias share: all but the names.
namespace dsakit::rms_norm_op {

/// A row is `pieces` runs of `width` elements: piece k of row r is row r * pieces + k of the tensors.
struct Problem {
  std::int64_t rows, pieces, width;
  float epsilon;
  bool adds;  // the forms that add: x + x2 is rounded to sum, and normalised
  Rows x, x2, sum;
  Rows gamma, beta;  // one row; beta may be without memory
  Rows y, rstd;

  std::int64_t row_width() const { return pieces * width; }
};

/// A call by the places of its tensors in the formula. x2, sum: the forms that add.
struct Inputs {
  const Tensor &x, &gamma;
  const char* x_name;
  double epsilon;
  const Tensor* x2 = nullptr;
  const Tensor* beta = nullptr;
};
struct Outputs {
  const Tensor &y, &rstd;
  const Tensor* sum = nullptr;
};

/// All that a door asks but of results.
void check_inputs(const Check&, const Tensors&, const Inputs&);
/// y, which sum is like, and rstd, as they are wanted.
Tensor wanted_y(const Inputs&);
Tensor wanted_rstd(const Inputs&);
/// Inputs have been checked; results are now.
Problem resolve(const Check&, const Tensors&, const Inputs&, const Outputs&);

std::size_t workspace(const Problem&, int threads);
void run(const Problem&, Call&);
void reference(const Problem&);

}  // namespace dsakit::rms_norm_op
