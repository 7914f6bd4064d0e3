// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

// How the ranks of one model share its work: which one has what. Everything here follows from numbers that all ranks
// know, so that no rank has to ask another.
namespace dsakit {

/// Whole numbers begin .. end-1.
struct Slice {
  std::int64_t begin = 0, end = 0;

  std::int64_t size() const { return end - begin; }
  bool operator==(const Slice&) const = default;
};

/// The part of 0..n-1 that is the j-th of `parts`: sizes differ by one at most, and may be 0.
inline Slice slice_of(std::int64_t n, std::int64_t j, std::int64_t parts) {
  return {n * j / parts, n * (j + 1) / parts};
}

/// The same for columns of a weight, which are not parted inside a panel.
inline constexpr std::int64_t kPanelColumns = 64;
inline Slice columns_of(std::int64_t columns, std::int64_t j, std::int64_t parts) {
  const Slice panels = slice_of((columns + kPanelColumns - 1) / kPanelColumns, j, parts);
  return {std::min(columns, panels.begin * kPanelColumns), std::min(columns, panels.end * kPanelColumns)};
}

/// kv * heads * query ranks; rank = (q * kv + c) * heads + h. A replica has all weights once: its ranks share heads,
/// columns and, split further, cached rows. A kv group has all latent rows once, a query group has replicas of the same
/// weights.
struct Grid {
  int kv = 1, heads = 1, query = 1;

  int ranks() const { return kv * heads * query; }
  int replica_ranks() const { return kv * heads; }
  int c(int rank) const { return rank / heads % kv; }
  int h(int rank) const { return rank % heads; }
  int q(int rank) const { return rank / replica_ranks(); }
  /// Its number within its replica; those of one h, a kv group, are neighbours.
  int replica_rank(int rank) const { return h(rank) * kv + c(rank); }
  bool operator==(const Grid&) const = default;
};

/// "kv=2,heads=4": without what is 1; "kv=1" of one rank.
std::string text_of(const Grid&);
/// Keys in any order, absent: 1. Refused unless the product is `ranks`; `op` is who asks.
Grid grid_of(std::string_view text, int ranks, std::string_view op);
/// All grids of so many ranks.
std::vector<Grid> grids_of(int ranks);

/// What travels of attention over a kv group: selected rows, or partial results.
enum class AttentionExchange { rows, partials };
/// Who has the index rows of a token: one rank of the replica, one of the kv group (and so each h), or every rank.
enum class IndexShards { all, kv, copy };
/// How shards' candidates meet: all at once, samples first, or whichever is predicted to be faster.
enum class MergeSteps { automatic, one, two };
/// First products of a layer: by columns, or all of them on every rank.
enum class Prolog { split, copy };

struct ParallelOptions {
  Grid grid;
  AttentionExchange exchange = AttentionExchange::rows;
  IndexShards index = IndexShards::all;
  MergeSteps merge = MergeSteps::automatic;
  Prolog prolog = Prolog::split;
  std::int64_t interleave = 1;  // tokens in a row of one owner
  double timeout = 20;          // seconds that an exchange may take

  bool operator==(const ParallelOptions&) const = default;
};

/// The same as a user says it.
struct ParallelWords {
  std::string parallel{}, exchange = "rows", index = "all", merge = "auto", prolog = "split";
  std::int64_t interleave = 1;
  double timeout = 20;
};

/// INVALID_ARGUMENT, naming the parameter, for what is unknown or out of range. Without `parallel` the grid is left
/// to the caller, as it is made.
ParallelOptions parallel_options_of(const ParallelWords&, int ranks, std::string_view op);

}  // namespace dsakit
