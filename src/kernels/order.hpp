// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <bit>
#include <cstdint>

namespace dsakit {

/// Maps a score to an integer of the same order: -0 equals +0, NaN is 0, below -inf.
inline std::uint32_t order_key(float score) {
  if (score != score) return 0;
  const std::uint32_t u = score == 0 ? 0 : std::bit_cast<std::uint32_t>(score);
  return u >> 31 ? ~u : u ^ 0x80000000u;
}

/// (score descending, position ascending) as one integer, larger is better.
inline std::uint64_t candidate(std::uint32_t key, std::uint32_t position) {
  return std::uint64_t(key) << 32 | std::uint32_t(~position);
}
inline std::uint32_t position_of(std::uint64_t candidate) { return ~std::uint32_t(candidate); }
inline std::uint32_t key_of(std::uint64_t candidate) { return std::uint32_t(candidate >> 32); }

/// The score back from its key (NaN for key 0).
inline float score_of(std::uint32_t key) {
  if (key == 0) return std::bit_cast<float>(0x7fc00000u);
  return std::bit_cast<float>(key >> 31 ? key ^ 0x80000000u : ~key);
}

}  // namespace dsakit
