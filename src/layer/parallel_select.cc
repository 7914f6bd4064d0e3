// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>

#include "kernels/order.hpp"
#include "layer/costs.hpp"
#include "layer/parallel_chunk.hpp"
#include "ops/lightning_indexer/problem.hpp"
#include "ops/quant_lightning_indexer/problem.hpp"
#include "parallel/exchanges.hpp"
#include "parallel/selection.hpp"

// The best K positions of all shards of the index keys: the selection of one process, for any number of them.
namespace dsakit {
namespace {

/// Rows that see more than K positions, the last ones of a chunk, and what the ranks know of them.
struct Scored {
  const SharedChunk& s;
  const Ownership owner = s.parallel.index_rows();
  const std::int64_t k = s.chunk.config.index_topk;
  const std::int64_t first = [&] {
    std::int64_t i = 0;
    while (i < s.chunk.rows && s.position(i) < k) ++i;
    return i;
  }();
  const std::int64_t count = s.chunk.rows - first;

  std::int64_t visible(std::int64_t row) const { return s.position(first + row) + 1; }
  /// How many candidates rank r of the shards has for a row.
  std::int64_t candidates(std::int64_t row, std::int64_t r) const {
    return std::min(k, owner.below(visible(row), r));
  }
};

/// This rank's candidates [rows, K], of positions of all. Each row is a sequence of its own: of a shard it sees as many
/// positions as it sees, which is no diagonal.
void score(const Scored& all, std::uint64_t* candidates) {
  const Chunk& m = all.s.chunk;
  LayerCache::State& cache = all.s.cache.index_keys;
  std::vector<std::int32_t> queries(std::size_t(all.count)), keys(queries.size()),
      lists(std::size_t(all.count * all.k));
  std::iota(queries.begin(), queries.end(), 1);
  double sum = 0;
  for (std::int64_t i = 0; i < all.count; ++i)
    keys[std::size_t(i)] = std::int32_t(all.owner.below(all.visible(i))), sum += keys[std::size_t(i)];
  if (sum == 0) return;
  Tensor table = cache.block_table();
  table.shape[0] = all.count, table.stride[0] = 0;
  const Tensor query = slice(m.index_query, all.first, all.count), weights = slice(m.index_weights, all.first, all.count),
               indices = tensor(lists.data(), {all.count, 1, all.k});
  Timed timed(m.costs, m.quantised() ? "quant_lightning_indexer" : "lightning_indexer",
              sum * double(cache.index_key.row_bytes() + cache.index_scale.row_bytes()) / double(all.count));
  if (m.quantised()) {
    Tensor query_scale = slice(m.index_query_scale, all.first, all.count), key_scale = cache.pages_of(cache.index_scale);
    query_scale.rank = 2, key_scale.rank = 3;  // without the axis of size 1
    quant_lightning_indexer_op::run(
        {
            .query = query,
            .key = cache.pages_of(cache.index_key),
            .weights = weights,
            .query_dequant_scale = query_scale,
            .key_dequant_scale = key_scale,
            .actual_seq_lengths_query = tensor(queries.data(), {all.count}),
            .actual_seq_lengths_key = tensor(keys.data(), {all.count}),
            .block_table = table,
            .layout_query = "TND",
            .layout_key = "PA_BSND",
            .sparse_count = all.k,
            .sparse_mode = 0,
        },
        {.sparse_indices = indices}, candidates, m.context);
  } else {
    bf16 none{};
    lightning_indexer_op::run(
        {
            .query = query,
            .key = cache.pages_of(cache.index_key),
            .weights = weights,
            .actual_seq_lengths_query = tensor(queries.data(), {all.count}),
            .actual_seq_lengths_key = tensor(keys.data(), {all.count}),
            .block_table = table,
            .layout_query = "TND",
            .layout_key = "PA_BSND",
            .sparse_count = all.k,
            .sparse_mode = 0,
        },
        {.sparse_indices = indices, .sparse_values = tensor(&none, {0})}, candidates, m.context);
  }
  for (std::int64_t i = 0; i < all.count; ++i)
    for (std::int64_t j = 0; j < std::min<std::int64_t>(all.k, keys[std::size_t(i)]); ++j) {
      std::uint64_t& c = candidates[i * all.k + j];
      c = candidate(key_of(c), std::uint32_t(all.owner.global(position_of(c))));
    }
}

/// Rows of candidates of several ranks, one rank's after the other's.
struct Lists {
  std::vector<std::uint64_t> values;
  std::vector<std::int64_t> counts;  // [ranks][rows]
  std::vector<std::int64_t> begins;  // likewise

  Lists(const Scored& all, auto count) {
    std::int64_t at = 0;
    for (std::int64_t r = 0; r < all.owner.ranks; ++r)
      for (std::int64_t i = 0; i < all.count; ++i) {
        counts.push_back(count(i, r)), begins.push_back(at);
        at += counts.back();
      }
    values.resize(std::size_t(at));
  }
  std::span<std::uint64_t> row(const Scored& all, std::int64_t i, std::int64_t r) {
    const std::size_t at = std::size_t(r * all.count + i);
    return std::span(values).subspan(std::size_t(begins[at]), std::size_t(counts[at]));
  }
  /// This rank's rows, which are one behind the other, to all.
  void exchange(const Scored& all, std::string_view name, const std::vector<std::uint64_t>& mine) {
    Peers& p = all.s.parallel;
    p.sizes.assign(std::size_t(all.owner.ranks), 0);
    for (std::size_t at = 0; at < counts.size(); ++at)
      p.sizes[at / std::size_t(all.count)] += std::size_t(counts[at]) * sizeof(std::uint64_t);
    p.talk.all_gather(p.index_group(), name, std::as_bytes(std::span(mine)), p.sizes,
                      reinterpret_cast<std::byte*>(values.data()));
  }
};

/// How many candidates of each rank travel, if samples of them go first: [ranks][rows].
std::vector<std::int64_t> candidates_of_samples(const Scored& all, const std::uint64_t* candidates) {
  const std::int64_t step = sample_step(all.k), ranks = all.owner.ranks;
  Lists samples(all, [&](std::int64_t i, std::int64_t r) { return samples_of(all.candidates(i, r), step); });
  std::vector<std::uint64_t> mine;
  for (std::int64_t i = 0; i < all.count; ++i) {
    const std::int64_t n = all.candidates(i, all.owner.rank);
    mine.resize(mine.size() + std::size_t(samples_of(n, step)));
    take_samples({candidates + i * all.k, std::size_t(n)}, step, mine.data() + mine.size() - samples_of(n, step));
  }
  samples.exchange(all, "samples", mine);
  std::vector<std::int64_t> send(std::size_t(ranks * all.count)), count(static_cast<std::size_t>(ranks)), sent(count);
  std::vector<std::uint64_t> row;
  for (std::int64_t i = 0; i < all.count; ++i) {
    row.clear();
    for (std::int64_t r = 0; r < ranks; ++r) {
      const auto of_rank = samples.row(all, i, r);
      row.insert(row.end(), of_rank.begin(), of_rank.end());
      count[std::size_t(r)] = all.candidates(i, r);
    }
    candidates_to_send(row, count, all.k, step, sent.data());
    for (std::int64_t r = 0; r < ranks; ++r) send[std::size_t(r * all.count + i)] = sent[std::size_t(r)];
  }
  return send;
}

/// Whether samples first takes less time, as plans foretell it: from what all ranks know.
bool in_two(const Scored& all) {
  MergeLoad load(int(all.owner.ranks), all.k);
  std::vector<std::int64_t> visible(static_cast<std::size_t>(all.owner.ranks));
  for (std::int64_t i = 0; i < all.count; ++i) {
    for (std::int64_t r = 0; r < all.owner.ranks; ++r) visible[std::size_t(r)] = all.owner.below(all.visible(i), r);
    load.add_row(visible);
  }
  return load.in_two(all.s.parallel.options.merge);
}

}  // namespace

void select(const SharedChunk& s) {
  Peers& p = s.parallel;
  const Chunk& m = s.chunk;
  const Scored all{s};
  for (std::int64_t i = 0; i < all.first; ++i) {
    std::int32_t* list = m.selection + i * all.k;
    std::iota(list, list + s.position(i) + 1, 0);
  }
  if (all.count == 0) return;
  std::vector<std::uint64_t> candidates(std::size_t(all.count * all.k));
  p.talk.work([&] { score(all, candidates.data()); });
  Timed timed(m.costs, "merge_selection", 0);
  std::vector<std::int64_t> send;
  if (all.owner.ranks > 1 && in_two(all)) send = candidates_of_samples(all, candidates.data());
  if (p.talk.failed()) send.clear();
  Lists lists(all, [&](std::int64_t i, std::int64_t r) {
    return send.empty() ? all.candidates(i, r) : send[std::size_t(r * all.count + i)];
  });
  std::vector<std::uint64_t> mine;
  for (std::int64_t i = 0; i < all.count; ++i) {
    const std::uint64_t* row = candidates.data() + i * all.k;
    mine.insert(mine.end(), row, row + lists.counts[std::size_t(all.owner.rank * all.count + i)]);
  }
  // Where nobody has shards, ranks that share rows still have to know that a list of one of them is none.
  const bool copies = all.owner.ranks == 1 && p.kv->size() > 1;
  if (copies) p.talk.all_gather(*p.kv, "candidates", {}, std::vector<std::size_t>(std::size_t(p.kv->size())), nullptr);
  if (all.owner.ranks > 1) lists.exchange(all, "candidates", mine);
  else lists.values = mine;
  std::vector<std::uint64_t> row, best(static_cast<std::size_t>(all.k)), scratch;
  std::vector<std::int64_t> sizes;
  for (std::int64_t i = 0; i < all.count; ++i) {
    std::int32_t* list = m.selection + (all.first + i) * all.k;
    if (p.talk.failed()) {  // a list like any other: exchanges have the sizes of lists
      std::iota(list, list + all.k, 0);
      continue;
    }
    row.clear(), sizes.clear();
    for (std::int64_t r = 0; r < all.owner.ranks; ++r) {
      const auto of_rank = lists.row(all, i, r);
      row.insert(row.end(), of_rank.begin(), of_rank.end());
      sizes.push_back(std::int64_t(of_rank.size()));
    }
    merge_candidates(row, sizes, all.k, best.data(), scratch);
    for (std::int64_t j = 0; j < all.k; ++j) list[j] = std::int32_t(position_of(best[std::size_t(j)]));
  }
}

}  // namespace dsakit
