// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>

#include "core/check.hpp"
#include "core/view.hpp"
#include "run/call.hpp"

// What interleave_rope and rotary_mul share: rows that are rotated by the rows of two broadcast tensors.
namespace dsakit::rotation {

enum class Kind {
  half,        // [a, b] -> [a cos - b sin, b cos + a sin]
  interleave,  // the same of the pairs (x[2i], x[2i+1]), in place
  to_half,     // pairs in, halves out
};

struct Problem {
  Kind kind;
  Rows x, y, cos, sin;  // cos and sin: stride 0 along the axes that they are broadcast over
  std::int64_t rows, width;
  Tensor matrix{};  // [width, width] in place of the kind: x * cos + (x @ matrix) * sin
};

/// The output: y as x.
Problem resolve(const Check&, Kind, const Tensor& x, const Tensor& cos, const Tensor& sin, const Tensor& y);
std::size_t workspace(const Problem&, int threads);
void run(const Problem&, Call&);
void reference(const Problem&);

}  // namespace dsakit::rotation
