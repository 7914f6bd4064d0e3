// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
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

/// take(row, its best, best first) for each row, from this rank's candidates [rows, K] and those of the others: exchanges
/// "candidates", and "samples" before where there are two steps. Nothing is taken once the call has failed.
void merge_rows(Conversation&, Group&, MergeSteps, const SharedRows&, const std::uint64_t* candidates,
                const std::function<void(std::int64_t, std::span<const std::uint64_t>)>& take);

}  // namespace dsakit
