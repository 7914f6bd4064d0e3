// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>

#include "core/view.hpp"
#include "dsakit/dynamic_quant.hpp"
#include "run/call.hpp"

namespace dsakit::dynamic_quant_op {

enum class Mode { token, channel, tensor };  // what has a scale of its own

struct Problem {
  Rows input, y, scale;
  std::int64_t rows, width;
  bool int4;
  Mode mode;
  std::int64_t length;                 // of a channel: axis -2
  Tensor smooth;                       // not given, [width] or [groups, width]; of channels [length]
  const std::int32_t* ends = nullptr;  // of the groups
  std::int64_t ends_stride = 1, groups = 0;

  float largest_code() const { return int4 ? 7.0f : 127.0f; }
  /// Offset of the smooth row of row r, in elements.
  std::int64_t smooth_offset(std::int64_t r) const {
    std::int64_t g = 0;
    while (g < groups && ends[g * ends_stride] <= r) ++g;
    return groups ? g * smooth.stride[0] : 0;
  }
};

Problem check(const DynamicQuantArgs&, const DynamicQuantOuts&);
std::size_t workspace(const Problem&, int threads);
void run(const Problem&, Call&);

}  // namespace dsakit::dynamic_quant_op
