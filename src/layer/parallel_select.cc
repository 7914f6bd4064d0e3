// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>

#include "kernels/order.hpp"
#include "layer/costs.hpp"
#include "layer/parallel_chunk.hpp"
#include "parallel/selection.hpp"
#include "shards/select.hpp"

// The best K positions of all shards of the index keys: the selection of one process, for any number of them.
namespace dsakit {
namespace {

/// Rows that see more than K positions are the last ones of a chunk.
struct Scored {
  const SharedChunk& s;
  const Ownership owner = s.parallel.index_rows();
  const std::int64_t k = s.chunk.selection.width;
  const std::int64_t first = [&] {
    std::int64_t i = 0;
    while (i < s.chunk.rows && s.position(i) < k) ++i;
    return i;
  }();
  const std::int64_t count = s.chunk.rows - first;
};

/// This rank's candidates [rows, K], of positions of all. The blocks of rows are sequences that share their keys.
void score(const Scored& all, std::uint64_t* candidates) {
  const Chunk& m = all.s.chunk;
  LayerCache::State& cache = all.s.cache.index_keys;
  std::vector<std::int32_t> queries, keys, lists(std::size_t(all.count * all.k));
  for (const ChunkPart& part : all.s.parts(cache)) {
    if (part.row + part.rows <= all.first) continue;
    queries.push_back(std::int32_t(part.row + part.rows - all.first));
    keys.push_back(std::int32_t(part.first + part.rows));
  }
  const std::int64_t blocks = std::int64_t(queries.size());
  double sum = 0;
  for (std::int64_t i = 0; i < all.count; ++i) sum += double(all.owner.below(all.s.position(all.first + i) + 1));
  Tensor table = cache.block_table();
  table.shape[0] = blocks, table.stride[0] = 0;
  const Tensor query = slice(m.index_query, all.first, all.count), weights = slice(m.index_weights, all.first, all.count),
               indices = tensor(lists.data(), {all.count, 1, all.k});
  Timed timed(m.costs, m.quantised() ? "quant_lightning_indexer" : "lightning_indexer",
              sum * double(cache.index_key.row_bytes() + cache.index_scale.row_bytes()) / double(all.count));
  if (m.quantised()) {
    Tensor query_scale = slice(m.index_query_scale, all.first, all.count), key_scale = cache.pages_of(cache.index_scale);
    query_scale.rank = 2, key_scale.rank = 3;  // without the axis of size 1
    shards::find_candidates(
        QuantLightningIndexerArgs{
            .query = query,
            .key = cache.pages_of(cache.index_key),
            .weights = weights,
            .query_dequant_scale = query_scale,
            .key_dequant_scale = key_scale,
            .actual_seq_lengths_query = tensor(queries.data(), {blocks}),
            .actual_seq_lengths_key = tensor(keys.data(), {blocks}),
            .block_table = table,
            .layout_query = "TND",
            .layout_key = "PA_BSND",
            .sparse_count = all.k,
        },
        QuantLightningIndexerOuts{.sparse_indices = indices}, all.owner, candidates, m.context);
  } else {
    bf16 none{};
    shards::find_candidates(
        LightningIndexerArgs{
            .query = query,
            .key = cache.pages_of(cache.index_key),
            .weights = weights,
            .actual_seq_lengths_query = tensor(queries.data(), {blocks}),
            .actual_seq_lengths_key = tensor(keys.data(), {blocks}),
            .block_table = table,
            .layout_query = "TND",
            .layout_key = "PA_BSND",
            .sparse_count = all.k,
        },
        LightningIndexerOuts{.sparse_indices = indices, .sparse_values = tensor(&none, {0})}, all.owner, candidates, m.context);
  }
}

}  // namespace

SelectionUnderway::SelectionUnderway(const SharedChunk& s) : s_(s) {
  Peers& p = s.parallel;
  const Chunk& m = s.chunk;
  if (!m.scores()) return;
  const Scored all{s};
  first_ = all.first;
  for (std::int64_t i = 0; i < all.first; ++i) {
    std::int32_t* list = m.selection.row(i);
    std::iota(list, list + s.position(i) + 1, 0);
  }
  if (all.count == 0) return;
  candidates_.resize(std::size_t(all.count * all.k));
  p.talk.work([&] { score(all, candidates_.data()); });
  // Where nobody has shards, ranks that share rows still have to know that a list of one of them is none.
  const bool copies = all.owner.ranks == 1 && p.kv->size() > 1;
  if (copies) p.talk.all_gather(*p.kv, "candidates", {}, std::vector<std::size_t>(std::size_t(p.kv->size())), nullptr);
  for (std::int64_t i = all.first; i < m.rows; ++i) visible_.push_back(s.position(i) + 1);
  merged_.emplace(p.talk, p.index_group(), p.options.merge, SharedRows{all.k, all.owner, visible_}, candidates_.data());
}

void SelectionUnderway::finish() {
  if (!merged_) return;
  const Chunk& m = s_.chunk;
  const std::int64_t k = m.selection.width;
  Timed timed(m.costs, "merge_selection", 0);
  const auto list = [&](std::int64_t row) { return m.selection.row(first_ + row); };
  const bool well = merged_->finish([&](std::int64_t row, std::span<const std::uint64_t> best) {
    std::ranges::transform(best, list(row), [](std::uint64_t c) { return std::int32_t(position_of(c)); });
  });
  if (well) return;  // else lists like any other: exchanges have the sizes of lists
  for (std::int64_t i = 0; i < m.rows - first_; ++i) std::iota(list(i), list(i) + k, 0);
}

}  // namespace dsakit
