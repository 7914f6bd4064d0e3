// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>

#include "core/random.hpp"
#include "ops/indexer/select.hpp"

namespace dsakit::indexer {
namespace {

std::vector<float> plateau(Random& r, std::int64_t n, int kind) {
  std::vector<float> s(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) {
    float& x = s[std::size_t(i)];
    switch (kind) {
      case 0:
        x = r.uniform(-1, 1);
        break;
      case 1:
        x = float(r.below(5)) - 2;
        break;
      case 2:
        x = r.below(2) ? 0.f : -0.f;
        break;
      case 3:
        x = float(i);
        break;
      case 4:
        x = float(-i);
        break;
      case 5:
        x = std::bit_cast<float>(std::uint32_t(r.next()));
        break;  // NaN, infinities, subnormals
      default:
        x = r.below(3) ? -std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
    }
  }
  return s;
}

TEST(IndexerSelect, EqualsASort) {
  Random r(1);
  auto h = std::make_unique<Histogram>();
  for (int kind = 0; kind < 7; ++kind)
    for (std::int64_t n : {1, 2, 100, 5000, 70000})
      for (std::int64_t keep : {std::int64_t{1}, n / 3, n - 1, n}) {
        if (keep < 1) continue;
        std::vector<std::uint64_t> data;
        const std::vector<float> scores = plateau(r, n, kind);
        for (std::int64_t i = 0; i < n; ++i)
          data.push_back(candidate(order_key(scores[std::size_t(i)]), std::uint32_t(i)));
        std::vector<std::uint64_t> wanted = data, scratch(static_cast<std::size_t>(std::min(n, kSortWithScratch)));
        std::sort(wanted.begin(), wanted.end(), std::greater{});
        if (keep < n) {
          const std::uint32_t floor = keep_best(data.data(), n, keep, *h);
          // Behind everything seen so far, an equal score loses and a better one wins.
          EXPECT_LE(floor, key_of(wanted[std::size_t(keep - 1)]) + 1);
          if (kind == 2) {
            EXPECT_EQ(floor, order_key(0) + 1);
          }
        }
        wanted.resize(std::size_t(keep)), data.resize(std::size_t(keep));
        EXPECT_TRUE(
            std::is_sorted(data.begin(), data.end(), [](auto a, auto b) { return position_of(a) < position_of(b); }));
        sort_best_first(data.data(), keep, scratch.data(), *h);
        ASSERT_EQ(data, wanted) << "kind " << kind << ", n " << n << ", keep " << keep;
      }
}

TEST(IndexerSelect, SortsNothing) {
  auto h = std::make_unique<Histogram>();
  sort_best_first(nullptr, 0, nullptr, *h);
}

}  // namespace
}  // namespace dsakit::indexer
