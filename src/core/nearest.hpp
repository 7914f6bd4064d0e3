// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <limits>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

namespace dsakit {

/// Letters to insert, delete or replace on the way from a to b (Levenshtein).
inline std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);  // of the prefix of a so far to each prefix of b
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] != b[j]);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, diagonal + 1, row[j] + 1});
    }
  }
  return row.back();
}

/// The one of `all` that `wish` may have meant; the first of several.
template <class Names>
std::string_view nearest(std::string_view wish, const Names& all) {
  std::string_view best;
  std::size_t distance = std::numeric_limits<std::size_t>::max();
  for (const std::string_view name : all)
    if (const std::size_t d = edit_distance(wish.substr(0, 120), name); d < distance) best = name, distance = d;
  return best;
}

}  // namespace dsakit
