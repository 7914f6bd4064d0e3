// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/indexer/reference.hpp"
#include "ops/quant_lightning_indexer/problem.hpp"
#include "run/taps.hpp"

namespace dsakit::reference {
namespace {

float half(float x) { return to_float(to_f16(x)); }

}  // namespace

void quant_lightning_indexer(const QuantLightningIndexerArgs& args, const QuantLightningIndexerOuts& outs) {
  QuantLightningIndexerOuts given = outs;
  const auto p = quant_lightning_indexer_op::check(args, given, false, false);
  const bool device = args.numerics == "device";

  indexer::for_each_row(p, [&](const SequenceRows& s, std::int64_t row, std::int64_t visible) {
    std::vector<float> score(static_cast<std::size_t>(visible)), relu(static_cast<std::size_t>(p.heads));
    for (std::int64_t j = 0; j < visible; ++j) {
      const auto* key = p.key<std::int8_t>(s, j);
      for (std::int64_t h = 0; h < p.heads; ++h) {
        const auto* query = p.head<std::int8_t>(row, h);
        std::int32_t dot = 0;
        for (std::int64_t d = 0; d < p.dims; ++d) dot += query[d] * key[d];
        relu[std::size_t(h)] = float(std::max(dot, 0));
      }
      float sum = 0;
      if (device) {
        for (std::int64_t h = 0; h < p.heads; ++h)
          sum += half(p.weights.at(row, h) * p.query_scale.at(row, h)) * half(relu[std::size_t(h)] * 0x1p-10f);
      } else {
        sum = indexer::head_sum(p.heads, [&](std::int64_t h) {
          return std::pair{p.weights.at(row, h) * p.query_scale.at(row, h), relu[std::size_t(h)]};
        });
      }
      score[std::size_t(j)] = sum * p.key_scale_at(s, j);
    }
    show("4.scores", row, score);
    indexer::write_list(p, row, score);
  });
}

}  // namespace dsakit::reference
