// SPDX-License-Identifier: Apache-2.0
#include "ops/indexer/reference.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

namespace dsakit::indexer {

void write_list(const Problem& p, std::int64_t row, const std::vector<float>& score) {
  std::vector<std::int32_t> order(score.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](std::int32_t x, std::int32_t y) {
    const float a = score[std::size_t(x)], b = score[std::size_t(y)];
    return std::isnan(b) ? !std::isnan(a) : a > b;
  });
  const auto n = std::min(p.count, std::int64_t(order.size()));
  for (std::int64_t i = 0; i < p.count; ++i) {
    static_cast<std::int32_t*>(p.indices.rows.tensor.data)[p.indices.offset(row, i)] =
        i < n ? order[std::size_t(i)] : -1;
    if (!p.values.rows.tensor) continue;
    const float x = i < n ? score[std::size_t(order[std::size_t(i)])] : -std::numeric_limits<float>::infinity();
    void* values = p.values.rows.tensor.data;
    if (p.type == DType::bf16) static_cast<bf16*>(values)[p.values.offset(row, i)] = to_bf16(x);
    else static_cast<f16*>(values)[p.values.offset(row, i)] = to_f16(x);
  }
}

}  // namespace dsakit::indexer
