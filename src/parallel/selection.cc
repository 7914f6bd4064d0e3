// SPDX-License-Identifier: Apache-2.0
#include "parallel/selection.hpp"

#include <algorithm>

namespace dsakit {

void take_samples(std::span<const std::uint64_t> candidates, std::int64_t step, std::uint64_t* samples) {
  const std::int64_t n = std::int64_t(candidates.size());
  for (std::int64_t i = 0; i < samples_of(n, step); ++i) samples[i] = candidates[std::min((i + 1) * step, n) - 1];
}

void candidates_to_send(std::span<const std::uint64_t> samples, std::span<const std::int64_t> count, std::int64_t k,
                        std::int64_t step, std::int64_t* send) {
  // From the largest sample down, one rank's next at a time: each brings g_r(T) to its number.
  std::vector<std::int64_t> begin, next(count.size());
  std::int64_t at = 0, reached = 0;
  for (const std::int64_t n : count) begin.push_back(at), at += samples_of(n, step);
  const auto number = [&](std::size_t r) { return std::min(next[r] * step, count[r]); };
  while (reached < k) {
    std::size_t best = count.size();
    for (std::size_t r = 0; r < count.size(); ++r)
      if (next[r] < samples_of(count[r], step) &&
          (best == count.size() || samples[std::size_t(begin[r] + next[r])] > samples[std::size_t(begin[best] + next[best])]))
        best = r;
    if (best == count.size()) return void(std::copy(count.begin(), count.end(), send));  // not K altogether
    reached -= number(best);
    ++next[best];
    reached += number(best);
  }
  for (std::size_t r = 0; r < count.size(); ++r) send[r] = std::min(number(r) + step - 1, count[r]);
}

void merge_candidates(std::span<const std::uint64_t> lists, std::span<const std::int64_t> sizes, std::int64_t k,
                      std::uint64_t* best, std::vector<std::uint64_t>& scratch) {
  using Range = std::span<const std::uint64_t>;
  std::vector<Range> from, to;
  for (std::size_t r = 0, at = 0; r < sizes.size(); at += std::size_t(sizes[r]), ++r)
    from.push_back(lists.subspan(at, std::size_t(std::min(sizes[r], k))));
  // Pairs of lists, then pairs of what they became; each level has its half of the scratch memory.
  scratch.resize(2 * lists.size());
  for (int level = 0; from.size() > 1; ++level) {
    std::uint64_t* out = scratch.data() + (level % 2 == 0 ? 0 : lists.size());
    to.clear();
    for (std::size_t i = 0; i < from.size(); i += 2) {
      const Range a = from[i], b = i + 1 < from.size() ? from[i + 1] : Range();
      const std::size_t n = std::min(a.size() + b.size(), std::size_t(k));
      for (std::size_t o = 0, x = 0, y = 0; o < n; ++o) {
        const bool first = y == b.size() || (x < a.size() && a[x] > b[y]);
        out[o] = first ? a[x] : b[y];
        x += first, y += !first;
      }
      to.emplace_back(out, n);
      out += n;
    }
    from.swap(to);
  }
  if (!from.empty()) std::copy(from[0].begin(), from[0].end(), best);
}

}  // namespace dsakit
