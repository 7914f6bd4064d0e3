// SPDX-License-Identifier: Apache-2.0
#include "debug/scores.hpp"

#include "debug/bind.hpp"
#include "debug/index_scores.hpp"
#include "debug/names.hpp"

namespace dsakit::debug {

std::vector<std::vector<double>> index_scores(const Case& c) {
  if (!is_indexer(c.op())) return {};
  const Bound bound = bind(c);
  const IndexScores scores(bound.arguments);
  std::vector<std::vector<double>> rows(std::size_t(scores.rows()));
  for (std::size_t row = 0; row < rows.size(); ++row)
    for (std::int64_t key = 0; key < scores.visible(std::int64_t(row)); ++key)
      rows[row].push_back(scores.score(std::int64_t(row), key));
  return rows;
}

}  // namespace dsakit::debug
