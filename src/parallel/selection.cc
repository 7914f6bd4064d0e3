// SPDX-License-Identifier: Apache-2.0
#include "parallel/selection.hpp"

#include <algorithm>

#include "parallel/exchanges.hpp"

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

namespace {

/// Whether samples first takes less time, as plans foretell it: from what all ranks know.
bool in_two(const SharedRows& all, MergeSteps steps) {
  MergeLoad load(int(all.owner.ranks), all.k);
  std::vector<std::int64_t> visible(static_cast<std::size_t>(all.owner.ranks));
  for (const std::int64_t positions : all.visible) {
    for (std::int64_t r = 0; r < all.owner.ranks; ++r) visible[std::size_t(r)] = all.owner.below(positions, r);
    load.add_row(visible);
  }
  return load.in_two(steps);
}

}  // namespace

MergedRows::Lists::Lists(const SharedRows& all, const std::function<std::int64_t(std::int64_t, std::int64_t)>& count)
    : rows(all.count()), ranks(all.owner.ranks) {
  std::int64_t at = 0;
  for (std::int64_t r = 0; r < ranks; ++r)
    for (std::int64_t i = 0; i < rows; ++i) {
      counts.push_back(count(i, r)), begins.push_back(at);
      at += counts.back();
    }
  values.resize(std::size_t(at));
}

/// Of all ranks, one rank's behind the other's.
void MergedRows::Lists::row(std::int64_t i, std::vector<std::uint64_t>& all, std::vector<std::int64_t>& sizes) const {
  all.clear(), sizes.clear();
  for (std::int64_t at = i; at < ranks * rows; at += rows) {
    const auto from = values.begin() + begins[std::size_t(at)];
    sizes.push_back(counts[std::size_t(at)]);
    all.insert(all.end(), from, from + sizes.back());
  }
}

MergedRows::MergedRows(Conversation& talk, Group& group, MergeSteps steps, const SharedRows& all,
                       const std::uint64_t* candidates)
    : talk_(talk), group_(group), all_(all), candidates_(candidates), well_(!talk.failed()) {
  if (all.owner.ranks > 1 && in_two(all, steps)) start_samples();
  else start_candidates(false);
}

/// This rank's rows, which are one behind the other, to all.
void MergedRows::start(std::string_view name, const Lists& lists, const std::vector<std::uint64_t>& mine) {
  std::vector<std::size_t> sizes(std::size_t(lists.ranks));
  for (std::size_t at = 0; at < lists.counts.size(); ++at)
    sizes[at / std::size_t(lists.rows)] += std::size_t(lists.counts[at]) * sizeof(std::uint64_t);
  under_ = talk_.start_all_gather(group_, name, std::as_bytes(std::span(mine)), sizes,
                                  reinterpret_cast<std::byte*>(const_cast<std::uint64_t*>(lists.values.data())));
}

void MergedRows::start_samples() {
  const std::int64_t step = sample_step(all_.k);
  samples_.emplace(all_, [&](std::int64_t i, std::int64_t r) { return samples_of(all_.candidates(i, r), step); });
  std::vector<std::uint64_t> mine;
  for (std::int64_t i = 0; i < all_.count(); ++i) {
    const std::int64_t n = all_.candidates(i, all_.owner.rank);
    mine.resize(mine.size() + std::size_t(samples_of(n, step)));
    take_samples({candidates_ + i * all_.k, std::size_t(n)}, step, mine.data() + mine.size() - samples_of(n, step));
  }
  start("samples", *samples_, mine);
}

/// As many as samples say, or all of them.
void MergedRows::start_candidates(bool by_samples) {
  const std::int64_t ranks = all_.owner.ranks, rows = all_.count();
  std::vector<std::int64_t> send(by_samples ? std::size_t(ranks * rows) : 0);
  if (by_samples) {
    std::vector<std::int64_t> count(static_cast<std::size_t>(ranks)), sent(count), sizes;
    std::vector<std::uint64_t> row;
    for (std::int64_t i = 0; i < rows; ++i) {
      samples_->row(i, row, sizes);
      for (std::int64_t r = 0; r < ranks; ++r) count[std::size_t(r)] = all_.candidates(i, r);
      candidates_to_send(row, count, all_.k, sample_step(all_.k), sent.data());
      for (std::int64_t r = 0; r < ranks; ++r) send[std::size_t(r * rows + i)] = sent[std::size_t(r)];
    }
  }
  lists_.emplace(all_, [&](std::int64_t i, std::int64_t r) {
    return by_samples ? send[std::size_t(r * rows + i)] : all_.candidates(i, r);
  });
  std::vector<std::uint64_t> mine;
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::uint64_t* row = candidates_ + i * all_.k;
    mine.insert(mine.end(), row, row + lists_->counts[std::size_t(all_.owner.rank * rows + i)]);
  }
  if (ranks > 1) start("candidates", *lists_, mine);
  else lists_->values = std::move(mine);
}

void MergedRows::poll() noexcept {
  if (!under_ || error_ || !under_->poll() || lists_) return;
  try {
    well_ &= under_->finish();
    start_candidates(well_);
  } catch (...) {
    error_ = std::current_exception();
  }
}

bool MergedRows::finish(const std::function<void(std::int64_t, std::span<const std::uint64_t>)>& take) {
  if (error_) std::rethrow_exception(error_);
  if (under_) well_ &= under_->finish();
  if (!lists_) {
    start_candidates(well_);
    well_ &= under_->finish();
  }
  if (!well_) return false;
  std::vector<std::uint64_t> row, best, scratch;
  std::vector<std::int64_t> sizes;
  for (std::int64_t i = 0; i < all_.count(); ++i) {
    lists_->row(i, row, sizes);
    best.resize(std::min(row.size(), std::size_t(all_.k)));
    merge_candidates(row, sizes, all_.k, best.data(), scratch);
    for (const std::uint64_t c : best)
      if (const auto position = ~std::uint32_t(c); position >= all_.visible[std::size_t(i)])
        throw Error(Status::peer_failed, "parallel", "candidates", "", "have position " + std::to_string(position),
                    "below " + std::to_string(all_.visible[std::size_t(i)]), "damaged on its way");
    take(i, best);
  }
  return true;
}

}  // namespace dsakit
