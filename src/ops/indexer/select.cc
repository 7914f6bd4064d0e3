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
  // Find the keep-th largest key: cut the range that holds it into equal buckets, until a bucket is one key wide.
  std::uint32_t low = ~0u, high = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    low = std::min(low, key_of(data[i]));
    high = std::max(high, key_of(data[i]));
  }
  std::int64_t wanted = keep;  // of the keys in low..high
  for (;;) {
    const int shift = std::max(int(std::bit_width(high - low)) - Histogram::kBits, 0);
    std::uint32_t* count = h.count[0];
    std::memset(count, 0, sizeof h.count[0]);
    for (std::int64_t i = 0; i < n; ++i) {
      const std::uint32_t above = key_of(data[i]) - low;
      if (above <= high - low) ++count[above >> shift];
    }
    std::uint32_t bucket = (high - low) >> shift;
    for (; wanted > count[bucket]; --bucket) wanted -= count[bucket];
    low += bucket << shift;
    if (shift == 0) break;
    high = std::min(high, low + ((1u << shift) - 1));
  }
  // All above `low`, and the first `wanted` of those equal to it.
  std::uint64_t* out = data;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint64_t x = data[i];
    const std::uint32_t key = key_of(x);
    *out = x;
    const bool tie = key == low && wanted > 0;
    wanted -= tie;
    out += (key > low) | tie;
  }
  return low + 1;
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
