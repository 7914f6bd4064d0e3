// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <vector>

#include "ops/deviation.hpp"
#include "ops/dynamic_quant/problem.hpp"

namespace dsakit::reference {

void dynamic_quant(const DynamicQuantArgs& args, const DynamicQuantOuts& outs) {
  using dynamic_quant_op::Mode;
  const auto p = dynamic_quant_op::check(args, outs);
  const std::int64_t scales = outs.scale.elements();
  // Which scale element i of row r has.
  auto scale_of = [&](std::int64_t r, std::int64_t i) {
    return p.mode == Mode::token ? r : p.mode == Mode::channel ? r / p.length * p.width + i : 0;
  };
  auto z = [&](std::int64_t r, std::int64_t i) {
    const float x = float_at(p.input.tensor, p.input.offset(r) + i);
    if (!p.smooth) return x;
    return x * float_at(p.smooth, p.mode == Mode::channel ? r % p.length * p.smooth.stride[0] : p.smooth_offset(r) + i);
  };
  const float steps = deviation.steps(p.largest_code());
  std::vector<float> largest(std::size_t(scales), deviation.floor);
  for (std::int64_t r = 0; r < p.rows; ++r)
    for (std::int64_t i = 0; i < p.width; ++i)
      if (float& a = largest[std::size_t(scale_of(r, i))]; std::fabs(z(r, i)) > a) a = std::fabs(z(r, i));
  auto is_tiny = [&](float a) { return !std::isfinite(steps / a); };
  auto worth = [&](float a) { return deviation.scale_of(a, steps, Deviation::Scale::quotient); };
  for (std::int64_t s = 0; s < scales; ++s)
    *p.scale.row<float>(s) = is_tiny(largest[std::size_t(s)]) ? 0 : worth(largest[std::size_t(s)]);
  for (std::int64_t r = 0; r < p.rows; ++r)
    for (std::int64_t i = 0; i < p.width; ++i) {
      const float a = largest[std::size_t(scale_of(r, i))];
      const float scaled = deviation.divides ? z(r, i) / worth(a) : z(r, i) * (steps / a);
      float code = is_tiny(a) ? 0 : deviation.rounded(scaled);
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

}  // namespace dsakit::reference
