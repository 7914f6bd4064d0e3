// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <vector>

#include "ops/dynamic_quant/problem.hpp"

namespace dsakit::reference {

void dynamic_quant(const DynamicQuantArgs& args, const DynamicQuantOuts& outs) {
  const auto p = dynamic_quant_op::check(args, outs);
  for (std::int64_t r = 0; r < p.rows; ++r) {
    std::vector<float> z(static_cast<std::size_t>(p.width));
    float a = 0;
    for (std::int64_t i = 0; i < p.width; ++i) {
      float& v = z[std::size_t(i)];
      v = float_at(p.input.tensor, p.input.offset(r) + i);
      if (p.smooth) v = v * float_at(p.smooth, p.smooth_offset(r) + i);
      if (std::fabs(v) > a) a = std::fabs(v);
    }
    const float multiplier = p.largest_code() / a;
    const bool tiny = !std::isfinite(multiplier);
    *p.scale.row<float>(r) = tiny ? 0 : a / p.largest_code();
    for (std::int64_t i = 0; i < p.width; ++i) {
      float code = tiny ? 0 : std::nearbyintf(z[std::size_t(i)] * multiplier);
      if (code != code) code = 0;
      if (p.int4) {
        std::int32_t& word = p.y.row<std::int32_t>(r)[i / 8];
        const std::uint32_t before = i % 8 == 0 ? 0 : std::uint32_t(word);
        word = std::int32_t(before | (std::uint32_t(std::int32_t(std::fmin(std::fmax(code, -8.0f), 7.0f))) & 15u)
                                         << (4 * (i % 8)));
      } else {
        p.y.row<std::int8_t>(r)[i] = std::int8_t(std::fmin(std::fmax(code, -128.0f), 127.0f));
      }
    }
  }
}

}  // namespace dsakit::reference
