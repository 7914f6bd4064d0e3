// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "kernels/order.hpp"

// The best of a stream of scores. Candidates (order.hpp) arrive with ascending positions: later ones need a better key,
// and a stable sort by key alone puts equal scores in order.
namespace dsakit::indexer {

/// Counters of the radix passes.
struct Histogram {
  static constexpr int kBits = 11;
  std::uint32_t count[3][1 << kBits];
};

/// Removes all but the `keep` best of data[0..n-1], n > keep > 0, without reordering. Returns a key that
/// a later candidate must reach to belong to them.
std::uint32_t keep_best(std::uint64_t* data, std::int64_t n, std::int64_t keep, Histogram& h) noexcept;

/// Longer lists are sorted in place.
inline constexpr std::int64_t kSortWithScratch = 1 << 16;

/// Best first. `scratch` has room for min(n, kSortWithScratch).
void sort_best_first(std::uint64_t* data, std::int64_t n, std::uint64_t* scratch, Histogram& h) noexcept;

}  // namespace dsakit::indexer
