// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

// What all attention kernels have in common: softmax in parts of fixed size, merged in order.
namespace dsakit::attention {

/// Positions per partial softmax. Part of the contract: chunks are counted from the start of the list (or the keys) and
/// merged in ascending order, so bits depend on nothing else.
inline constexpr int kChunk = 256;

inline constexpr std::ptrdiff_t kScorePitch = kChunk + 16;  // rows of scores must not share cache sets

/// Takes the maximum and sum of exponentials of a later part into `most` and `sum` (`none_before`: there are none yet).
/// Returns what to multiply the values by: those so far, and the part's.
inline std::pair<float, float> take_in(float& most, float& sum, float later_most, float later_sum, bool none_before) {
  if (none_before) {
    most = later_most, sum = later_sum;
    return {0, 1};
  }
  const float larger = std::max(most, later_most);
  const float mine = std::exp(most - larger), theirs = std::exp(later_most - larger);
  most = larger;
  sum = sum * mine + later_sum * theirs;
  return {mine, theirs};
}

}  // namespace dsakit::attention
