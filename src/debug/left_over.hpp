// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <vector>

#include "debug/compare.hpp"
#include "debug/index_scores.hpp"

// How far a recorded result is from a computed one, in units in which right results are near each other.
namespace dsakit::debug {

enum class Measure {
  roundings,  // floats: rms of the differences over rms of the roundings that the result has seen
  share,      // codes: share that is unequal
  keys,       // selections: the most keys of a row that are neither common nor as good as the cut
};

struct Left {
  /// One query token, or one row of a cache.
  struct Row {
    double squares = 0, unit = 0;  // roundings: sums over elements
    std::int64_t elements = 0, unequal = 0;
    std::int64_t common = 0, tie = 0, near = 0, wrong = 0;  // keys
  };
  Measure measure = Measure::roundings;
  double allowed = 2;    // a right change leaves no more
  double departing = 4;  // and a call to be explained is at least as far (a share: beyond what is allowed)
  double fewer = 2;      // and as many times further than after the right change
  std::vector<Row> rows;

  double figure(const std::vector<std::int64_t>& of) const;
  double figure(std::int64_t row) const { return figure(std::vector<std::int64_t>{row}); }
  double equal_share(const std::vector<std::int64_t>& of) const;
};

/// `scores`: of the computed call, if it selects. `strict`: ties and orders are the same by contract.
Left left_over(const Operator&, const Pair&, const IndexScores* scores, bool strict);

}  // namespace dsakit::debug
