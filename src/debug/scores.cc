// SPDX-License-Identifier: Apache-2.0
#include "debug/scores.hpp"

#include <algorithm>

#include "debug/bind.hpp"
#include "debug/rule.hpp"
#include "ops/indexer/reference.hpp"
#include "ops/lightning_indexer/problem.hpp"
#include "ops/quant_lightning_indexer/problem.hpp"

namespace dsakit::debug {
namespace {

/// sum_h weight[h] * relu(query[h] . key), where `weight` has the scale of the query in it.
template <class Weight>
double score_of(const indexer::Problem& p, const Sequence& s, std::int64_t row, std::int64_t key, Weight weight) {
  const Tensor &query = p.query.tensor, keys{.data = const_cast<void*>(p.keys.data), .dtype = p.type};
  const std::int64_t at = p.keys.offset(s.index, s.first_key + key);
  double sum = 0;
  for (std::int64_t h = 0; h < p.heads; ++h) {
    double dot = 0;
    for (std::int64_t d = 0; d < p.dims; ++d)
      dot += number_at(query, p.query.offset(row) + h * p.head_stride + d) * number_at(keys, at + d);
    sum += weight(h) * std::max(dot, 0.0);
  }
  return sum;
}

template <class Score>
std::vector<std::vector<double>> scores_of(const indexer::Problem& p, Score score) {
  std::vector<std::vector<double>> rows;
  indexer::for_each_row(p, [&](const Sequence& s, std::int64_t row, std::int64_t visible) {
    if (rows.size() <= std::size_t(row)) rows.resize(std::size_t(row) + 1);
    for (std::int64_t key = 0; key < visible; ++key) rows[std::size_t(row)].push_back(score(s, row, key));
  });
  return rows;
}

}  // namespace

std::vector<std::vector<double>> index_scores(const Case& c) {
  const std::string_view op = c.op().name;
  if (op != "lightning_indexer" && op != "quant_lightning_indexer") return {};
  const Bound bound = bind(c);
  if (op == "lightning_indexer") {
    LightningIndexerArgs args;
    LightningIndexerOuts outs;
    read_all(bound.arguments, args, outs);
    const auto p = lightning_indexer_op::check(args, outs, true, false);
    return scores_of(p, [&](const Sequence& s, std::int64_t row, std::int64_t key) {
      return score_of(p, s, row, key, [&](std::int64_t h) { return double(p.weights.at(row, h)); });
    });
  }
  QuantLightningIndexerArgs args;
  QuantLightningIndexerOuts outs;
  read_all(bound.arguments, args, outs);
  const auto p = quant_lightning_indexer_op::check(args, outs, true, false);
  return scores_of(p, [&](const Sequence& s, std::int64_t row, std::int64_t key) {
    const auto weight = [&](std::int64_t h) { return double(p.weights.at(row, h)) * p.query_scale.at(row, h); };
    return score_of(p, s, row, key, weight) * double(p.key_scale_at(s, key));
  });
}

}  // namespace dsakit::debug
