// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "layer/mlp.hpp"

namespace dsakit {

/// Which rows each expert takes, expert by expert: of those that are wanted, ascending, and of each its rows, ascending.
struct ExpertRows {
  static constexpr std::int64_t kGathered = 4096;  // rows that go through experts at once, unless one has more

  std::vector<std::int32_t> expert;
  std::vector<std::int64_t> begin;         // of expert i's rows in what follows; one more than experts
  std::vector<std::int32_t> token, place;  // row of the input; which of all choices that is

  ExpertRows() = default;
  /// choice [rows, k]; what is not below `experts` is nobody.
  ExpertRows(const std::int32_t* choice, std::int64_t rows, std::int64_t k, std::int64_t experts);

  std::int64_t rows(std::size_t first, std::size_t last) const { return begin[last] - begin[first]; }
  using Window = std::pair<std::size_t, std::size_t>;
  /// Experts first .. last - 1 that go through together: at most `most` of them and `rows` rows, but at least one.
  std::vector<Window> windows(std::size_t most, std::int64_t rows) const;
};

/// sum [.., columns of down] += weight * down(inner) of the experts of a window, ascending: weight[place], sum row token.
void add_weighted(Call&, std::span<const MlpRows>, const MlpArrays&, const ExpertRows&, std::size_t first,
                  const float* weight, float* sum);

}  // namespace dsakit
