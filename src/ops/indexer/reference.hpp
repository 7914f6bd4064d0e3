// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "ops/indexer/problem.hpp"

// The parts that the readable twins of the two indexers share. No kernel, no trick.
namespace dsakit::indexer {

/// f(sequence, query row, visible keys) for every query row, padding included.
template <class F>
void for_each_row(const Problem& p, F f) {
  for (std::int64_t b = 0; b < p.sequences.count(); ++b) {
    const SequenceRows s = p.sequences.at(b);
    for (std::int64_t i = 0; i < s.rows; ++i) f(s, s.first_row + i, s.visible(i));
  }
}

/// The canonical head sum: f(h) is the weight of a head and what it weighs.
template <class F>
float head_sum(std::int64_t heads, F f) {
  float lane[16] = {};
  for (std::int64_t h = 0; h < heads; ++h) {
    const auto [weight, x] = f(h);
    lane[h % 16] = std::fma(weight, x, lane[h % 16]);
  }
  for (int half = 8; half > 0; half /= 2)
    for (int l = 0; l < half; ++l) lane[l] += lane[l + half];
  return lane[0];
}

/// The best positions, then -1; their scores, then -inf.
void write_list(const Problem&, std::int64_t row, const std::vector<float>& score);

}  // namespace dsakit::indexer
