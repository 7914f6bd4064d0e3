// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

// Rotary position embedding of a row. Every operation is one fp32 rounding, in the order written.
namespace dsakit {

/// Which elements are a pair: (j, j + half), or (2j, 2j + 1); the result of the last lies in halves.
enum class RopeLayout { half, interleaved, interleaved_to_half };

/// y = rotated x, 2 * half values; cos and sin are used at all of them as given. y is not x.
inline void rotate(RopeLayout layout, const float* __restrict x, const float* __restrict cos,
                   const float* __restrict sin, std::int64_t half, float* __restrict y) {
  switch (layout) {
    case RopeLayout::half:
      for (std::int64_t j = 0; j < half; ++j) {
        y[j] = x[j] * cos[j] - x[j + half] * sin[j];
        y[j + half] = x[j + half] * cos[j + half] + x[j] * sin[j + half];
      }
      break;
    case RopeLayout::interleaved:
      for (std::int64_t j = 0; j < half; ++j) {
        y[2 * j] = x[2 * j] * cos[j] - x[2 * j + 1] * sin[j];
        y[2 * j + 1] = x[2 * j + 1] * cos[j + half] + x[2 * j] * sin[j + half];
      }
      break;
    case RopeLayout::interleaved_to_half:
      for (std::int64_t j = 0; j < half; ++j) {
        y[j] = x[2 * j] * cos[j] - x[2 * j + 1] * sin[j];
        y[j + half] = x[2 * j + 1] * cos[j + half] + x[2 * j] * sin[j + half];
      }
      break;
  }
}

}  // namespace dsakit
