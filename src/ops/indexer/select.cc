// SPDX-License-Identifier: Apache-2.0
#include "ops/indexer/select.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <utility>

namespace dsakit::indexer {
namespace {

constexpr int kBuckets = 1 << Histogram::kBits;

}  // namespace

std::uint32_t keep_best(std::uint64_t* data, std::int64_t n, std::int64_t keep, Histogram& h) noexcept {
  std::uint32_t least = ~0u, most = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    least = std::min(least, key_of(data[i]));
    most = std::max(most, key_of(data[i]));
  }
  // Find a number that exactly `keep` candidates reach: cut the range in equal buckets, go on with the one that holds
  // the last of them, until all of it is wanted.
  std::uint64_t low = std::uint64_t(least) << 32, high = std::uint64_t(most) << 32 | ~0u;
  for (std::int64_t wanted = keep;;) {
    const int shift = std::max(int(std::bit_width(high - low)) - Histogram::kBits, 0);
    std::uint32_t* count = h.count[0];
    std::memset(count, 0, sizeof h.count[0]);
    for (std::int64_t i = 0; i < n; ++i) {
      const std::uint64_t above = data[i] - low;
      if (above <= high - low) ++count[above >> shift];
    }
    std::uint64_t bucket = (high - low) >> shift;
    for (; wanted > count[bucket]; --bucket) wanted -= count[bucket];
    low += bucket << shift;
    if (wanted == count[bucket]) break;
    high = std::min(high, low + ((std::uint64_t{1} << shift) - 1));
  }
  std::uint64_t* out = data;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint64_t x = data[i];
    *out = x;
    out += x >= low;
  }
  return key_of(low) + 1;  // a later candidate with the key of `low` loses to all that are kept
}

void sort_best_first(std::uint64_t* data, std::int64_t n, std::uint64_t* scratch, Histogram& h) noexcept {
  if (n > kSortWithScratch) return std::sort(data, data + n, std::greater{});
  // Stable passes over the inverted key, lowest digit first.
  std::memset(&h, 0, sizeof h);
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint32_t key = ~key_of(data[i]);
    ++h.count[0][key % kBuckets];
    ++h.count[1][key / kBuckets % kBuckets];
    ++h.count[2][key / kBuckets / kBuckets];
  }
  std::uint64_t *from = data, *to = scratch;
  for (int pass = 0; pass < 3; ++pass) {
    std::uint32_t* count = h.count[pass];
    const int shift = pass * Histogram::kBits;
    if (n == 0 || count[(~key_of(from[0]) >> shift) % kBuckets] == n) continue;  // one value: nothing to do
    std::uint32_t before = 0;
    for (int b = 0; b < kBuckets; ++b) before += std::exchange(count[b], before);
    for (std::int64_t i = 0; i < n; ++i) to[count[(~key_of(from[i]) >> shift) % kBuckets]++] = from[i];
    std::swap(from, to);
  }
  if (from != data) std::copy(from, from + n, data);
}

}  // namespace dsakit::indexer
