// SPDX-License-Identifier: Apache-2.0
#include "parallel/exchanges.hpp"

#include <algorithm>
#include <bit>
#include <numeric>

#include "dsakit/ownership.hpp"

namespace dsakit {
namespace {

constexpr std::int64_t kFp32 = 4, kBf16 = 2, kCandidate = 8;

/// Ranks 0 .. ranks-1, each with what f says of it.
template <class F>
Shares shares_of(int ranks, F f) {
  Shares shares;
  shares.reserve(std::size_t(ranks));
  for (int rank = 0; rank < ranks; ++rank) shares.push_back(std::size_t(f(rank)));
  return shares;
}

/// Columns of products beside each other, each parted on its own.
Shares column_shares(std::span<const std::int64_t> widths, int ranks, std::int64_t bytes) {
  return shares_of(ranks, [&](int rank) {
    std::int64_t columns = 0;
    for (const std::int64_t width : widths) columns += columns_of(width, rank, ranks).size();
    return columns * bytes;
  });
}

Shares column_shares(std::int64_t width, int ranks, std::int64_t bytes) {
  return column_shares(std::span(&width, 1), ranks, bytes);
}

std::int64_t kept(std::int64_t visible, std::int64_t topk) { return std::min(visible, topk); }

/// Sampled are number g, 2g, .. and the last of those that are kept.
std::int64_t sample_count(std::int64_t kept, std::int64_t step) { return (kept + step - 1) / step; }

/// How many of 0..n-1 are rank 0's, 1's, ..
std::vector<std::int64_t> owned(std::int64_t n, int ranks, std::int64_t interleave) {
  std::vector<std::int64_t> counts;
  for (int rank = 0; rank < ranks; ++rank) counts.push_back(Ownership{ranks, rank, interleave}.below(n));
  return counts;
}

std::vector<std::int64_t> parted(std::int64_t n, int ranks) {
  std::vector<std::int64_t> counts;
  for (int rank = 0; rank < ranks; ++rank) counts.push_back(slice_of(n, rank, ranks).size());
  return counts;
}

/// Adds one that each rank of a group has a share in; nobody exchanges anything with itself.
void add(std::vector<ForetoldExchange>& all, ExchangeKind what, int ranks, double bytes_of_all) {
  if (ranks > 1) all.push_back({what, ranks, bytes_of_all * (ranks - 1) / ranks, 1});
}
void add(std::vector<ForetoldExchange>& all, ExchangeKind what, const Shares& shares) {
  add(all, what, int(shares.size()), double(total(shares)));
}

}  // namespace

std::size_t total(const Shares& shares) { return std::accumulate(shares.begin(), shares.end(), std::size_t{0}); }

std::size_t received(const Shares& shares, int rank) { return total(shares) - shares[std::size_t(rank)]; }

Shares first_products(const ExchangeSizes& s, int ranks, std::int64_t rows, bool indexer) {
  std::vector<std::int64_t> widths = {s.q_lora, s.latent + s.rope};
  if (indexer) widths.insert(widths.end(), {s.index_dim, s.index_heads});
  if (indexer && s.float_index) widths.push_back(s.q_lora);
  if (indexer && s.index_rest) widths.push_back(s.index_heads);
  return column_shares(widths, ranks, rows * kFp32);
}

Shares index_queries(const ExchangeSizes& s, int ranks, std::int64_t rows) {
  return shares_of(ranks, [&](int rank) {
    return slice_of(s.index_heads, rank, ranks).size() * rows * s.index_row_bytes;
  });
}

Shares head_values(const ExchangeSizes& s, int ranks, std::int64_t rows) {
  return shares_of(ranks, [&](int rank) {
    return slice_of(s.heads, rank, ranks).size() * rows * s.value_dim * kBf16;
  });
}

Shares layer_output(const ExchangeSizes& s, int ranks, std::int64_t rows) {
  return column_shares(s.hidden, ranks, rows * kFp32);
}

Shares mlp_hidden(std::span<const std::int64_t> widths, int ranks, std::int64_t rows) {
  return column_shares(widths, ranks, rows * kFp32);
}

Shares logits(const ExchangeSizes& s, int ranks, std::int64_t wanted_rows) {
  return column_shares(s.vocab, ranks, wanted_rows * kFp32);
}

Shares embedding(const ExchangeSizes& s, std::span<const std::int64_t> rows_of_rank) {
  return shares_of(int(rows_of_rank.size()), [&](int rank) {
    return rows_of_rank[std::size_t(rank)] * s.hidden * kBf16;
  });
}

std::int64_t sample_step(std::int64_t topk) {
  return std::int64_t{1} << (std::bit_width(std::uint64_t(topk)) - 1) / 2;
}

Shares samples(std::span<const std::int64_t> visible, std::int64_t topk) {
  return shares_of(int(visible.size()), [&](int rank) {
    return kCandidate * sample_count(kept(visible[std::size_t(rank)], topk), sample_step(topk));
  });
}

Shares all_candidates(std::span<const std::int64_t> visible, std::int64_t topk) {
  return shares_of(int(visible.size()), [&](int rank) { return kCandidate * kept(visible[std::size_t(rank)], topk); });
}

Shares best_candidates(std::span<const std::int64_t> visible, std::span<const std::int64_t> reached,
                       std::int64_t topk) {
  return shares_of(int(visible.size()), [&](int rank) {
    const std::int64_t below_next = reached[std::size_t(rank)] + sample_step(topk) - 1;
    return kCandidate * std::min(below_next, kept(visible[std::size_t(rank)], topk));
  });
}

std::int64_t most_candidates(std::span<const std::int64_t> visible, std::int64_t topk) {
  std::int64_t all = 0;
  for (const std::int64_t n : visible) all += kept(n, topk);
  const std::int64_t step = sample_step(topk);
  return std::min(all, topk + step - 1 + std::int64_t(visible.size()) * (step - 1));
}

double Network::seconds(int ranks, double received_bytes) const {
  return latency * std::bit_width(unsigned(ranks - 1)) + received_bytes / bytes_per_second;
}

void MergeLoad::add_row(std::span<const std::int64_t> visible, std::int64_t times) {
  samples_ += times * std::int64_t(total(samples(visible, topk_)) / kCandidate);
  all_ += times * std::int64_t(total(all_candidates(visible, topk_)) / kCandidate);
  most_ += times * most_candidates(visible, topk_);
}

double MergeLoad::seconds(bool two) const {
  const Network network;
  const double others = double(shards_ - 1) / shards_;
  return (two ? network.seconds(shards_, others * double(sample_bytes(two))) : 0) +
         network.seconds(shards_, others * double(candidate_bytes(two))) + kMergeSeconds * double(candidates(two));
}

bool MergeLoad::in_two(MergeSteps steps) const {
  return steps == MergeSteps::two || (steps == MergeSteps::automatic && seconds(true) < seconds(false));
}

Shares queries(const ExchangeSizes& s, const Grid& grid, int h, std::int64_t rows) {
  return shares_of(grid.kv, [&](int c) {
    return heads_of(s, grid, h, c).size() * rows * (s.latent + s.rope) * kBf16;
  });
}

Shares selected_rows(const ExchangeSizes& s, std::span<const std::int64_t> rows_of_rank) {
  return shares_of(int(rows_of_rank.size()), [&](int rank) {
    return rows_of_rank[std::size_t(rank)] * s.latent_row_bytes;
  });
}

std::int64_t row_blocks(const ExchangeSizes& s, std::int64_t distinct_rows) {
  const std::int64_t rows = kRowsBlockBytes / s.latent_row_bytes;
  return (distinct_rows + rows - 1) / rows;
}

Shares partial_results(const ExchangeSizes& s, const Grid& grid, int h, int c, std::int64_t rows) {
  const std::int64_t maximum_sum_and_output = s.latent + 2;
  return shares_of(grid.kv, [&](int) {
    return heads_of(s, grid, h, c).size() * rows * maximum_sum_and_output * kFp32;
  });
}

Shares cache_rows(const ExchangeSizes& s, std::span<const std::int64_t> latent_rows,
                  std::span<const std::int64_t> index_rows) {
  return shares_of(int(latent_rows.size()), [&](int q) {
    return latent_rows[std::size_t(q)] * s.latent_row_bytes + index_rows[std::size_t(q)] * s.index_row_bytes;
  });
}

std::int64_t rows_of_replica(const Grid& grid, std::int64_t rows) {
  return rows < kLeastQueryRows * grid.query ? rows : (rows + grid.query - 1) / grid.query;
}

int index_shards(const ParallelOptions& options) {
  if (options.index == IndexShards::copy) return 1;
  return options.index == IndexShards::kv ? options.grid.kv : options.grid.replica_ranks();
}

bool exchanges_partials(const ParallelOptions& options, const ExchangeSizes& s) {
  return s.topk == 0 || options.exchange == AttentionExchange::partials;
}

MergeLoad merge_load(const ExchangeSizes& s, const ParallelOptions& options, const Step& step) {
  MergeLoad load(index_shards(options), s.topk);
  load.add_row(owned(step.visible, index_shards(options), options.interleave),
               rows_of_replica(options.grid, step.rows));
  return load;
}

std::vector<ForetoldExchange> attention_exchanges(const ExchangeSizes& s, const ParallelOptions& options,
                                                  const Step& step, bool indexer) {
  const Grid& grid = options.grid;
  const int replica = grid.replica_ranks();
  const std::int64_t rows = rows_of_replica(grid, step.rows);
  const bool selects = s.topk > 0 && step.visible > s.topk;
  std::vector<ForetoldExchange> all;
  if (options.prolog == Prolog::split) {
    add(all, ExchangeKind::first_products, first_products(s, replica, rows, indexer));
    if (indexer) add(all, ExchangeKind::index_queries, index_queries(s, replica, rows));
  }
  if (indexer && selects) {
    const MergeLoad load = merge_load(s, options, step);
    const bool two = load.in_two(options.merge);
    if (two) add(all, ExchangeKind::samples, index_shards(options), double(load.sample_bytes(two)));
    add(all, ExchangeKind::candidates, index_shards(options), double(load.candidate_bytes(two)));
  }
  if (exchanges_partials(options, s)) {
    // Columns differ by one head at most; the last has no fewer than any.
    const Shares own = partial_results(s, grid, grid.heads - 1, grid.kv - 1, rows);
    add(all, ExchangeKind::queries, queries(s, grid, grid.heads - 1, rows));
    if (grid.kv > 1) all.push_back({ExchangeKind::attention, grid.kv, double(received(own, grid.kv - 1)), 1});
  } else {
    const std::int64_t distinct = std::min(step.visible, rows * std::min(step.visible, s.topk));
    add(all, ExchangeKind::attention, selected_rows(s, parted(distinct, grid.kv)));
    if (grid.kv > 1) all.back().messages = row_blocks(s, distinct);
  }
  if (rows < step.rows) {
    const double of_a_row = double(s.latent_row_bytes) / grid.kv +
                            (indexer ? double(s.index_row_bytes) / index_shards(options) : 0);
    add(all, ExchangeKind::cache_rows, grid.query, double(step.rows) * of_a_row);
  }
  add(all, ExchangeKind::head_values, head_values(s, replica, rows));
  add(all, ExchangeKind::layer_output, layer_output(s, replica, rows));
  return all;
}

std::vector<ForetoldExchange> mlp_exchanges(const ExchangeSizes& s, const ParallelOptions& options, const Step& step,
                                            std::span<const std::int64_t> widths) {
  const int replica = options.grid.replica_ranks();
  const std::int64_t rows = rows_of_replica(options.grid, step.rows);
  std::vector<ForetoldExchange> all;
  add(all, ExchangeKind::mlp_hidden, mlp_hidden(widths, replica, rows));
  add(all, ExchangeKind::mlp_output, layer_output(s, replica, rows));
  return all;
}

std::vector<ForetoldExchange> model_exchanges(const ExchangeSizes& s, const ParallelOptions& options,
                                              const Step& step) {
  const int replica = options.grid.replica_ranks();
  const std::int64_t rows = rows_of_replica(options.grid, step.rows);
  std::vector<ForetoldExchange> all;
  add(all, ExchangeKind::embedding, embedding(s, parted(rows, replica)));
  add(all, ExchangeKind::logits, logits(s, replica, 1));
  return all;
}

}  // namespace dsakit
