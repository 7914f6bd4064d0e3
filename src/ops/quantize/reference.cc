// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "ops/deviation.hpp"
#include "ops/quantize/problem.hpp"

namespace dsakit::reference {

void quantize(const QuantizeArgs& args, const QuantizeOuts& outs) {
  const auto p = quantize_op::check(args, outs);
  const auto [low, high] = quantize_op::range_of(p);
  for (std::int64_t r = 0; r < p.rows; ++r)
    for (std::int64_t i = 0; i < p.width; ++i) {
      const std::int64_t channel = p.channel(r, i);
      const float x = float_at(p.input.tensor, p.input.offset(r) + i);
      const float scale = float_at(p.scales, channel * p.scale_step);
      const double zero = quantize_op::zero_point(p, channel);
      double code;
      if (p.divides) {
        const float quotient = deviation.divides ? x * (1.0f / scale) : x / scale;
        code = double(deviation.rounded(quotient)) + std::nearbyint(zero);
      } else {
        const float product = deviation.divides ? x / (1.0f / scale) : x * scale;
        const float shifted = p.zero_points ? product + float(zero) : product;
        code = double(deviation.rounded(shifted));
      }
      code = code != code ? 0 : code < low ? low : code > high ? high : code;
      if (p.int4) {
        std::int32_t& word = p.y.row<std::int32_t>(r)[i / 8];
        const std::uint32_t before = i % 8 == 0 ? 0 : std::uint32_t(word);
        word = std::int32_t(before | (std::uint32_t(std::int32_t(code)) & 15u) << (4 * (i % 8)));
      } else if (p.y.tensor.dtype == DType::i8) {
        p.y.row<std::int8_t>(r)[i] = std::int8_t(code);
      } else if (p.y.tensor.dtype == DType::u8) {
        p.y.row<std::uint8_t>(r)[i] = std::uint8_t(code);
      } else {
        p.y.row<std::int32_t>(r)[i] = std::int32_t(code);
      }
    }
}

}  // namespace dsakit::reference
