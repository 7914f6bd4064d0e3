// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "kernels/kernels.hpp"
#include "run/carver.hpp"

// Online softmax: over the keys of a row in parts of fixed size, which are merged in order.
namespace dsakit::attention {

/// Positions per partial softmax. Part of the contract: chunks are counted from the start of the list (or the keys) and
/// merged in ascending order, so bits depend on nothing else.
inline constexpr int kChunk = 256;

inline constexpr std::ptrdiff_t kScorePitch = kChunk + 16;  // rows of scores must not share cache sets

/// Probabilities are rounded to bf16 (8 bits) unless the rung widens rows (Kernels::widens_rows). That is as good as the
/// documented form and averages out over many keys; where fewer than so many decide (by sum^2 / sum of squares), those
/// that do meet their values once more, in fp32, with what the rounding has left.
inline constexpr int kManyKeys = 32;

/// Those of a row; at most kManyKeys. The largest probability is 1, and the sum NaN where any is.
inline int deciding_keys(const Kernels& k, const float* probabilities, int n, float sum, int* keys) {
  return sum <= kManyKeys ? k.deciding(probabilities, n, sum, kManyKeys, keys) : 0;
}

/// Softmax of the rows of a tile over some of their keys: maximum and sum of exponentials per row (sum 0: no key yet),
/// the unnormalised sum of values, and that of value offsets, where values have such per key.
struct Partial {
  float *max, *sum, *shift, *values;

  Partial() = default;
  Partial(Carver& memory, std::int64_t rows, std::int64_t value_pitch)
      : max(memory.take<float>(rows)),
        sum(memory.take<float>(rows)),
        shift(memory.take<float>(rows)),
        values(memory.take<float>(rows * value_pitch)) {}
  void clear(int rows) const { std::fill_n(sum, rows, 0.0f); }

  /// Merges a later part of row r, but for its values. Returns what to rescale values by: these, and that part's.
  /// One instance: the compiler orders the operands of a sum, and with them the bits of NaN, where it inlines.
  [[gnu::noinline]] std::pair<float, float> merge(int r, float later_max, float later_sum, float later_shift) const {
    if (sum[r] == 0) {
      max[r] = later_max, sum[r] = later_sum, shift[r] = later_shift;
      return {0, 1};
    }
    const float larger = std::max(max[r], later_max);
    const auto scale = [=](float x) { return x - larger == 0 ? 1.0f : std::exp(x - larger); };  // NaN of infinities
    const float mine = scale(max[r]), theirs = scale(later_max);
    max[r] = larger;
    sum[r] = sum[r] * mine + later_sum * theirs;
    shift[r] = shift[r] * mine + later_shift * theirs;
    return {mine, theirs};
  }
};

}  // namespace dsakit::attention
