// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <vector>

#include "ops/indexer/reference.hpp"
#include "ops/lightning_indexer/problem.hpp"
#include "run/taps.hpp"

namespace dsakit::reference {
namespace {

/// One fp32 chain from +0, ascending, of exact products.
template <class T>
float dot(const T* a, const T* b, std::int64_t n) {
  float sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum = std::fma(to_float(a[i]), to_float(b[i]), sum);
  return sum;
}

template <class T>
void select(const indexer::Problem& p) {
  indexer::for_each_row(p, [&](const SequenceRows& s, std::int64_t row, std::int64_t visible) {
    std::vector<float> score(static_cast<std::size_t>(visible));
    for (std::int64_t j = 0; j < visible; ++j)
      score[std::size_t(j)] = indexer::head_sum(p.heads, [&](std::int64_t h) {
        const float a = dot(p.head<T>(row, h), p.key<T>(s, j), p.dims);
        return std::pair{p.weights.at(row, h), a < 0 ? 0 : a};
      });
    show("3.scores", row, score);
    indexer::write_list(p, row, score);
  });
}

}  // namespace

void lightning_indexer(const LightningIndexerArgs& args, const LightningIndexerOuts& outs) {
  LightningIndexerOuts given = outs;
  const auto p = lightning_indexer_op::check(args, given, false, false);
  if (p.type == DType::bf16) select<bf16>(p);
  else select<f16>(p);
}

}  // namespace dsakit::reference
