// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "run/carver.hpp"

namespace dsakit {

/// Rows that are stored by many threads at once, at slots that may repeat: of rows with one slot the last keeps it, the
/// others get a negative one.
class LastWins {
 public:
  LastWins(std::int64_t rows, Carver& memory) {
    while (size_ < 2 * rows) size_ *= 2;
    row_at_ = memory.take<std::int64_t>(size_);
  }

  void apply(std::int64_t* slots, std::int64_t rows) const {
    if (ascend(slots, rows)) return;  // as the slots of a sequence mostly do
    for (std::int64_t i = 0; i < size_; ++i) row_at_[i] = -1;
    for (std::int64_t r = rows - 1; r >= 0; --r) {
      if (slots[r] < 0) continue;
      std::int64_t at = std::int64_t(std::uint64_t(slots[r]) * 0x9e3779b97f4a7c15u >> 32) & (size_ - 1);
      while (row_at_[at] >= 0 && slots[row_at_[at]] != slots[r]) at = (at + 1) & (size_ - 1);
      if (row_at_[at] >= 0) slots[r] = -1;
      else row_at_[at] = r;
    }
  }

 private:
  static bool ascend(const std::int64_t* slots, std::int64_t rows) {
    std::int64_t before = -1;
    for (std::int64_t r = 0; r < rows; ++r) {
      if (slots[r] < 0) continue;
      if (slots[r] <= before) return false;
      before = slots[r];
    }
    return true;
  }

  std::int64_t size_ = 16, *row_at_;  // a table of rows by the hash of their slots, a power of two long
};

}  // namespace dsakit
