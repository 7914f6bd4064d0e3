// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "debug/case.hpp"

// How far two recordings of one call are apart: codes count as what they are worth, whatever the other side has.
namespace dsakit::debug {

/// Of one tensor or step: rms of the difference over rms, of selections the share of entries that the other lacks.
struct Apart {
  std::string name;  // of a step "3.query_norm"
  double distance = 0;
};

/// The tensors of a group ("in", "out", "tap"; "out" has "after" with it) that both have in one size, in the order of
/// a, steps in their own.
std::vector<Apart> apart(const Case& a, const Case& b, std::string_view group);

/// The largest of these; nothing where no two can be compared.
std::optional<double> distance(const std::vector<Apart>&);

/// What codes lose, row by row, beside numbers that are no codes.
struct RowLoss {
  std::int64_t row = 0;         // the worst
  double sqnr = 0, median = 0;  // dB
  std::int64_t channel = 0;     // the largest of the row, and the SQNR without it
  double without = 0;
  double zeros = 0;             // share of the row's codes
  double scale = 0, times = 0;  // what a code of the row is worth, and that over the median
  bool is_loss() const { return sqnr < 20 || sqnr < median - 10; }
};
/// Of one tensor or step of these names, if one of the two has codes with a scale for each row, and the other none.
std::optional<RowLoss> row_loss(const Case& a, const Case& b, std::string_view group, std::string_view name);

}  // namespace dsakit::debug
