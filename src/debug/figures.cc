// SPDX-License-Identifier: Apache-2.0
#include "debug/figures.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace dsakit::debug {

SelectionFigures selection_figures(const IndexScores& scores, std::int64_t row, const std::vector<std::int64_t>& list) {
  SelectionFigures f{.row = row, .visible = scores.visible(row)};
  std::vector<char> selected(std::size_t(f.visible));
  for (const std::int64_t key : list) {
    if (key < 0 || key >= f.visible) continue;
    ++f.selected;
    selected[std::size_t(key)] = 1;
    f.sink += key < 4, f.recent += key >= f.visible - 64;
  }
  if (f.selected > 0) f.sink /= double(f.selected), f.recent /= double(f.selected);
  std::vector<double> score;
  f.cut = std::numeric_limits<double>::infinity(), f.next = -f.cut;
  for (std::int64_t key = 0; key < f.visible; ++key) {
    score.push_back(scores.score(row, key));
    f.zero += score.back() == 0;
    if (selected[std::size_t(key)]) f.cut = std::min(f.cut, score.back());
    else f.next = std::max(f.next, score.back());
  }
  for (std::int64_t key = 0; key < f.visible; ++key) {
    const double far = std::abs(score[std::size_t(key)] - f.cut);
    f.tied += far == 0, f.tied_kept += far == 0 && selected[std::size_t(key)];
    f.near += far <= 0x1p-10 * std::abs(f.cut), f.near_percent += far <= 0.01 * std::abs(f.cut);
  }
  return f;
}

}  // namespace dsakit::debug
