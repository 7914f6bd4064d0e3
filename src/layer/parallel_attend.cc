// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "layer/costs.hpp"
#include "layer/parallel_chunk.hpp"
#include "shards/attend.hpp"

namespace dsakit {
namespace {

namespace sparse = attention::sparse;

constexpr char kOp[] = "attention_layer";

sparse::Keys keys_of(const Chunk& m, LayerCache::State& cache) {
  sparse::Keys keys{.rows = {.data = nullptr, .page_stride = cache.page_size, .row_stride = 1, .page_size = cache.page_size,
                             .table = cache.table.data(), .table_stride = 0, .table_step = 1},
                    .latent = Rows(cache.rows_of(cache.latent), 1)};
  const std::int64_t latent = m.config.kv_lora_rank, rope = m.config.qk_rope_head_dim;
  if (m.quantised()) keys.tile = int(latent_group(latent));
  if (m.packed()) {
    keys.rope_from = int(latent), keys.scales_from = int(latent + 2 * rope);
  } else {
    keys.rope = Rows(cache.rows_of(cache.rope), 1);
    if (m.quantised()) keys.scales = Rows(cache.rows_of(cache.latent_scale), 1);
  }
  return keys;
}

/// Positions that row i attends to.
std::int64_t listed(const SharedChunk& s, std::int64_t i) {
  const std::int64_t visible = s.position(i) + 1;
  return s.chunk.sparse() ? std::min(visible, s.chunk.config.index_topk) : visible;
}

void count_positions(const SharedChunk& s) {
  if (!s.chunk.costs) return;
  for (std::int64_t i = 0; i < s.chunk.rows; ++i) {
    s.chunk.costs->selected += double(listed(s, i));
    s.chunk.costs->visible += double(s.position(i) + 1);
  }
}

shards::Attention attention_of(const SharedChunk& s) {
  const Chunk& m = s.chunk;
  shards::Attention all{.talk = s.parallel.talk,
                        .group = *s.parallel.kv,
                        .owner = s.parallel.latent_rows(),
                        .problem = {.query = Rows(m.query_nope, 1),
                                    .query_rope = Rows(m.query_rope, 1),
                                    .keys = keys_of(m, s.cache.latents),
                                    .out = Rows(m.attended, 1),
                                    .tokens = m.rows,
                                    .heads = m.config.num_attention_heads,
                                    .latent = int(m.config.kv_lora_rank),
                                    .rope = int(m.config.qk_rope_head_dim),
                                    .scale = float(m.layer.scale)},
                        .tokens = {}};
  for (std::int64_t i = 0; i < m.rows; ++i)
    all.tokens.push_back({.sequence = 0,
                          .list = m.sparse() ? m.selection.row(i) : nullptr,
                          .count = listed(s, i)});
  return all;
}

void attend_rows(const SharedChunk& s) {
  const shards::Attention all = attention_of(s);
  const std::int64_t step = all.step();
  for (std::int64_t from = 0; from < s.chunk.rows; from += step) {
    const shards::FetchedRows fetched(all, from, std::min(from + step, s.chunk.rows));
    if (all.problem.heads == 0) continue;
    s.parallel.talk.work([&] {
      Timed timed(s.chunk.costs, "sparse_attention", double(fetched.count()) * double(s.cache.latents.latent.row_bytes()));
      fetched.attend(kOp, s.chunk.context);
    });
  }
}

void attend_parts(const SharedChunk& s) {
  const Peers& p = s.parallel;
  std::vector<std::int64_t> heads;  // of the ranks of the kv group
  for (int c = 0; c < p.kv->size(); ++c)
    heads.push_back(
        slice_of(s.chunk.layer.all_heads, std::int64_t(p.h) * p.options.grid.kv + c, p.replica->size()).size());
  const shards::Attention all = attention_of(s);
  shards::SharedParts parts(all, heads);
  s.parallel.talk.work([&] {
    const LayerCache::State& cache = s.cache.latents;
    Timed timed(s.chunk.costs, "partial_attention", double(cache.length) * double(cache.latent.row_bytes()));
    parts.attend(kOp, s.chunk.context);
  });
  parts.merge();
}

}  // namespace

void attend(const SharedChunk& s) {
  const Chunk& m = s.chunk;
  if (s.parallel.kv->size() == 1) {
    if (m.config.num_attention_heads > 0)
      s.parallel.talk.work([&] {
        for (const ChunkPart& part : s.parts(s.cache.latents)) attend(m, part);
      });
    return;
  }
  count_positions(s);
  if (s.parallel.merges_parts(m.cache.mode)) attend_parts(s);
  else attend_rows(s);
}

}  // namespace dsakit
