// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "debug/index_scores.hpp"

namespace dsakit::debug {

/// How a row's selection stands among the scores of all keys that it sees.
struct SelectionFigures {
  std::int64_t row = 0, visible = 0, selected = 0;
  double cut = 0, next = 0;                 // the worst score selected, the best that is not
  std::int64_t tied = 0, tied_kept = 0;     // keys worth the cut
  std::int64_t zero = 0;                    // keys worth exactly 0
  std::int64_t near = 0, near_percent = 0;  // within 2^-10, 1 % of the cut
  double sink = 0, recent = 0;              // share of the list: first 4 positions, last 64
};

/// `list`: positions of the row, -1 where there is none.
SelectionFigures selection_figures(const IndexScores&, std::int64_t row, const std::vector<std::int64_t>& list);

}  // namespace dsakit::debug
