// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>
#include <vector>

#include "core/view.hpp"
#include "ops/attention_update/problem.hpp"

namespace dsakit::reference {

void attention_update(const AttentionUpdateArgs& args, const AttentionUpdateOuts& outs) {
  const auto p = attention_update_op::check(args, outs);
  for (std::int64_t r = 0; r < p.rows; ++r) {
    std::vector<std::int64_t> seen;  // shards with a key
    double m = -std::numeric_limits<double>::infinity(), sum = 0;
    for (std::int64_t i = 0; i < p.shards(); ++i)
      if (!std::isinf(*p.lse_of(i).row<const float>(r))) seen.push_back(i);
    const auto lse = [&](std::int64_t i) { return double(*p.lse_of(i).row<const float>(r)); };
    for (std::int64_t i : seen) m = lse(i) > m || std::isnan(lse(i)) ? lse(i) : m;
    for (std::int64_t i : seen) sum += std::exp(lse(i) - m);
    const double all = seen.empty() ? m : m + std::log(sum);
    for (std::int64_t c = 0; c < p.width; ++c) {
      double out = 0;
      for (std::int64_t i : seen)
        out += double(float_at(p.rows_of(i).tensor, p.rows_of(i).offset(r) + c)) * std::exp(lse(i) - all);
      const std::int64_t at = p.out.offset(r) + c;
      switch (p.out.tensor.dtype) {
        case DType::bf16:
          static_cast<bf16*>(p.out.tensor.data)[at] = to_bf16_once(out);
          break;
        case DType::f16:
          static_cast<f16*>(p.out.tensor.data)[at] = to_f16_once(out);
          break;
        default:
          static_cast<float*>(p.out.tensor.data)[at] = float(out);
      }
    }
    if (p.lse_out.tensor.data) *p.lse_out.row<float>(r) = float(all);
  }
}

}  // namespace dsakit::reference
