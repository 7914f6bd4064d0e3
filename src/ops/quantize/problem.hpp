// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "core/view.hpp"
#include "dsakit/quantize.hpp"
#include "run/call.hpp"

namespace dsakit::quantize_op {

struct Problem {
  Rows input, y;
  std::int64_t rows, width;
  bool divides, int4;
  Tensor scales, zero_points;  // zero_points may be absent
  // Channel of element i of row r: r / repeat % channels, or i if `inner`.
  std::int64_t channels = 1, repeat = 1, scale_step = 0, zero_step = 0;
  bool inner = false;

  std::int64_t channel(std::int64_t r, std::int64_t i) const { return inner ? i : r / repeat % channels; }
};

/// Lowest and highest code.
struct Range {
  double low, high;
};
inline Range range_of(const Problem& p) {
  if (p.int4) return {-8, 7};
  switch (p.y.tensor.dtype) {
    case DType::i8:
      return {-128, 127};
    case DType::u8:
      return {0, 255};
    default:
      return {-2147483648.0, 2147483647.0};
  }
}

/// Zero point of a channel: a number, not yet rounded.
inline double zero_point(const Problem& p, std::int64_t channel) {
  if (!p.zero_points) return 0;
  const std::int64_t at = channel * p.zero_step;
  switch (p.zero_points.dtype) {
    case DType::i8:
      return static_cast<const std::int8_t*>(p.zero_points.data)[at];
    case DType::u8:
      return static_cast<const std::uint8_t*>(p.zero_points.data)[at];
    case DType::i32:
      return static_cast<const std::int32_t*>(p.zero_points.data)[at];
    default:
      return float_at(p.zero_points, at);
  }
}

Problem check(const QuantizeArgs&, const QuantizeOuts&);
std::size_t workspace(const Problem&);
void run(const Problem&, Call&);

}  // namespace dsakit::quantize_op
