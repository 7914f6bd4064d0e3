// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "dsakit/ownership.hpp"
#include "parallel/channel.hpp"
#include "parallel/grid.hpp"

// The best K of candidates that lie on several ranks. A candidate is a score's key above its inverted position
// (kernels/order.hpp), so all are distinct and the larger one is better; each rank has its own best min(K, n), best first.
namespace dsakit {

/// How many samples of `count` candidates there are: candidates step (sample_step of exchanges.hpp), 2 step, .. and the last.
inline std::int64_t samples_of(std::int64_t count, std::int64_t step) { return (count + step - 1) / step; }
void take_samples(std::span<const std::uint64_t> candidates, std::int64_t step, std::uint64_t* samples);

/// How many of its candidates each rank sends, so that the best K of all are among them, by the samples of all ranks, rank
/// by rank; count[r]: candidates of rank r. With g_r(x) the largest sampled number of rank r whose sample is at least x, and
/// T the largest sample for which the g_r(T) add up to K: at least K candidates reach T, so every one of the best K does;
/// fewer than g_r(T) + step of rank r reach T, since its next sample does not. Together fewer than K + W step.
void candidates_to_send(std::span<const std::uint64_t> samples, std::span<const std::int64_t> count, std::int64_t k,
                        std::int64_t step, std::int64_t* send);

/// The best K of lists, each best first, one behind the other; sizes[r] in list r. Fewer where there are fewer. `scratch`
/// may be used again.
void merge_candidates(std::span<const std::uint64_t> lists, std::span<const std::int64_t> sizes, std::int64_t k,
                      std::uint64_t* best, std::vector<std::uint64_t>& scratch);

/// Query rows whose best K are wanted, as all ranks know them.
struct SharedRows {
  std::int64_t k;
  Ownership owner;                        // of positions
  std::span<const std::int64_t> visible;  // positions of all ranks that each row sees

  std::int64_t count() const { return std::int64_t(visible.size()); }
  /// How many candidates rank r has for a row.
  std::int64_t candidates(std::int64_t row, std::int64_t r) const {
    return std::min(k, owner.below(visible[std::size_t(row)], r));
  }
};

/// The best of each row on all ranks, from this rank's candidates [rows, K] and those of the others: exchanges "candidates",
/// and "samples" before where there are two steps.
class MergedRows {
 public:
  /// Starts. The candidates and what SharedRows refers to stay until it has finished.
  MergedRows(Conversation&, Group&, MergeSteps, const SharedRows&, const std::uint64_t* candidates);
  /// Moves it on; does not throw.
  void poll() noexcept;
  /// take(row, its best, best first) for each row. False, and nothing is taken, if a rank had failed before it sent something:
  /// all ranks know that alike, whatever has failed since. PEER_FAILED for positions that no rank can have sent.
  bool finish(const std::function<void(std::int64_t, std::span<const std::uint64_t>)>& take);

 private:
  /// Rows of candidates of several ranks, one rank's after the other's.
  struct Lists {
    std::int64_t rows, ranks;
    std::vector<std::int64_t> counts{}, begins{};  // [ranks][rows]
    std::vector<std::uint64_t> values{};

    Lists(const SharedRows& all, const std::function<std::int64_t(std::int64_t, std::int64_t)>& count);
    void row(std::int64_t i, std::vector<std::uint64_t>& all, std::vector<std::int64_t>& sizes) const;
  };
  void start(std::string_view name, const Lists&, const std::vector<std::uint64_t>& mine);
  void start_samples();
  void start_candidates(bool by_samples);

  Conversation& talk_;
  Group& group_;
  const SharedRows all_;
  const std::uint64_t* const candidates_;
  bool well_;
  std::optional<Lists> samples_, lists_;
  std::exception_ptr error_;  // while polled
  std::unique_ptr<Underway> under_;
};

}  // namespace dsakit
