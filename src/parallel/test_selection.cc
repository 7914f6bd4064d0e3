// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/random.hpp"
#include "dsakit/ownership.hpp"
#include "kernels/order.hpp"
#include "parallel/exchanges.hpp"
#include "parallel/selection.hpp"

namespace dsakit {
namespace {

TEST(Ownership, AgreesWithLoops) {
  const Ownership example{3, 0, 2};  // rank 0 owns 0, 1, 6, 7, 12
  EXPECT_EQ(example.local(12), 4);
  EXPECT_EQ(example.below(6, 2), 2);
  for (const std::int64_t ranks : {1, 2, 3, 4, 5, 7, 8, 64})
    for (const std::int64_t interleave : {1, 2, 16, 128, 300}) {
      std::vector<std::int64_t> count(static_cast<std::size_t>(ranks));
      for (std::int64_t x = 0; x < 1500; ++x) {
        const Ownership any{ranks, 0, interleave};
        const std::int64_t r = x / interleave % ranks;
        const Ownership own{ranks, r, interleave};
        ASSERT_EQ(any.owner(x), r);
        ASSERT_TRUE(own.owns(x));
        for (std::int64_t o = 0; o < ranks; ++o) ASSERT_EQ(any.below(x, o), count[std::size_t(o)]);
        ASSERT_EQ(own.local(x), count[std::size_t(r)]);
        ASSERT_EQ(own.global(count[std::size_t(r)]), x);
        ++count[std::size_t(r)];
      }
    }
}

/// Scores that are hard on a merge, V11 to V13 among them.
std::vector<float> scores(int kind, std::int64_t n, Random& r) {
  std::vector<float> s(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) {
    const float x = r.uniform(-1, 1);
    const float kinds[] = {x, 0, float(r.below(4)), float(i), float(-i), i % 7 == 0 ? NAN : x, i % 3 == 0 ? -0.0f : 0.0f,
                           i < n / 8 ? 1 + x : x};
    s[std::size_t(i)] = kinds[kind];
  }
  return s;
}

TEST(MergedSelection, IsThatOfOneProcess) {
  Random r(5);
  for (const std::int64_t ranks : {1, 2, 3, 4, 5, 7, 8, 64})
    for (const std::int64_t k : {1, 7, 128, 2048})
      for (int kind = 0; kind < 8; ++kind) {
        const std::int64_t n = k + r.below(3 * k + 50), step = sample_step(k);
        const std::int64_t interleave = 1 + r.below(3) * r.below(100);
        const std::vector<float> all = scores(kind, n, r);
        std::vector<std::uint64_t> whole;
        std::vector<std::vector<std::uint64_t>> lists(static_cast<std::size_t>(ranks));
        for (std::int64_t x = 0; x < n; ++x) {
          whole.push_back(candidate(order_key(all[std::size_t(x)]), std::uint32_t(x)));
          lists[std::size_t(Ownership{ranks, 0, interleave}.owner(x))].push_back(whole.back());
        }
        std::sort(whole.begin(), whole.end(), std::greater<>());
        whole.resize(std::size_t(k));
        std::vector<std::uint64_t> samples, one, two, best(whole.size()), scratch;
        std::vector<std::int64_t> count, send(lists.size());
        for (auto& list : lists) {
          std::sort(list.begin(), list.end(), std::greater<>());
          list.resize(std::min(list.size(), std::size_t(k)));
          count.push_back(std::int64_t(list.size()));
          one.insert(one.end(), list.begin(), list.end());
          const std::size_t at = samples.size();
          samples.resize(at + std::size_t(samples_of(count.back(), step)));
          take_samples(list, step, samples.data() + at);
        }
        merge_candidates(one, count, k, best.data(), scratch);
        ASSERT_EQ(best, whole) << ranks << " " << k << " " << kind;
        candidates_to_send(samples, count, k, step, send.data());
        std::int64_t sent = 0;
        for (std::size_t i = 0; i < lists.size(); ++i) {
          two.insert(two.end(), lists[i].begin(), lists[i].begin() + send[i]);
          sent += send[i];
        }
        ASSERT_LT(sent, k + ranks * step);
        ASSERT_LE(sent, most_candidates(count, k));
        std::fill(best.begin(), best.end(), 0);
        merge_candidates(two, send, k, best.data(), scratch);
        ASSERT_EQ(best, whole) << ranks << " " << k << " " << kind;
      }
}

}  // namespace
}  // namespace dsakit
