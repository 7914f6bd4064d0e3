// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "ops/deviation.hpp"
#include "ops/dynamic_block_quant/problem.hpp"

namespace dsakit::reference {

void dynamic_block_quant(const DynamicBlockQuantArgs& args, const DynamicBlockQuantOuts& outs) {
  const auto p = dynamic_block_quant_op::check(args, outs);
  for (std::int64_t r = 0; r < p.rows; ++r)
    for (std::int64_t block = 0, first = 0; first < p.width; ++block, first += std::min(p.block, p.width - first)) {
      const std::int64_t end = first + std::min(p.block, p.width - first);
      float a = deviation.floor;
      for (std::int64_t i = first; i < end; ++i) {
        const float x = std::fabs(float_at(p.x.tensor, p.x.offset(r) + i));
        if (x > a) a = x;
      }
      const float inverse = 1.0f / a, steps = deviation.steps(127);
      float multiplier = inverse * steps, scale = deviation.scale_of(a, steps, Deviation::Scale::product);
      const bool tiny = !std::isfinite(multiplier);
      if (p.min_scale > 0) {
        multiplier = std::fmax(multiplier, p.min_scale);
        scale = std::fmin(scale, 1.0f / p.min_scale);
      }
      for (std::int64_t i = first; i < end; ++i) {
        const float x = float_at(p.x.tensor, p.x.offset(r) + i);
        const float code = tiny ? 0 : deviation.rounded(deviation.divides ? x / scale : x * multiplier);
        p.y.row<std::int8_t>(r)[i] = std::int8_t(code != code ? 0 : std::fmin(std::fmax(code, -128.0f), 127.0f));
      }
      p.scale.row<float>(r)[block] = tiny ? 0 : scale;
    }
}

}  // namespace dsakit::reference
