// SPDX-License-Identifier: Apache-2.0
#include "core/hash.hpp"

#include <cstring>

namespace dsakit {

std::uint64_t hash_of(const void* bytes, std::size_t count, std::uint64_t seed) {
  const auto* at = static_cast<const unsigned char*>(bytes);
  const auto mix = [](std::uint64_t h, std::uint64_t word) {
    h = (h ^ word) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 32;
  };
  std::uint64_t lane[4] = {seed ^ count, ~seed, seed + 1, seed - 1};  // four chains: memory is faster than one
  std::size_t i = 0;
  for (; i + 32 <= count; i += 32)
    for (std::size_t l = 0; l < 4; ++l) {
      std::uint64_t word;
      std::memcpy(&word, at + i + 8 * l, 8);
      lane[l] = mix(lane[l], word);
    }
  for (; i < count; ++i) lane[0] = mix(lane[0], at[i]);
  return mix(mix(mix(lane[0], lane[1]), lane[2]), lane[3]);
}

}  // namespace dsakit
