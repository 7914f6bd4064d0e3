// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>

#include "dsakit/kv_quant_sparse_flash_attention.hpp"
#include "dsakit/lightning_indexer.hpp"
#include "dsakit/quant_lightning_indexer.hpp"
#include "dsakit/sparse_flash_attention_quant.hpp"
#include "layer/chunk.hpp"
#include "layer/costs.hpp"
#include "layer/dense_attention.hpp"

namespace dsakit {
namespace {

double row_bytes(const LayerCache::State& cache) {
  return double(cache.latent.row_bytes() + cache.rope.row_bytes() + cache.latent_scale.row_bytes());
}

Tensor rows_of(const ChunkPart& part, const Tensor& t) { return slice(t, part.row, part.rows); }

void attend_dense(const Chunk& m, const ChunkPart& part) {
  Timed timed(m.costs, "dense_attention", double(part.total) * row_bytes(m.cache));
  dense_attention({.query_nope = data_of<bf16>(rows_of(part, m.query_nope)),
                   .query_rope = data_of<bf16>(rows_of(part, m.query_rope)),
                   .rows = part.rows,
                   .first = part.first,
                   .heads = m.config.num_attention_heads,
                   .scale = m.layer.scale,
                   .out = data_of<bf16>(rows_of(part, m.attended))},
                  *part.cache, m.context);
}

/// `listed`: positions of all rows' selections, as in the next.
void attend_sparse(const Chunk& m, const ChunkPart& part, double listed) {
  Timed timed(m.costs, "sparse_flash_attention_quant", listed * row_bytes(m.cache));
  const std::int64_t n = m.config.num_attention_heads, k = m.selection.width, latent = m.config.kv_lora_rank;
  const std::int32_t keys = std::int32_t(part.total);
  LayerCache::State& cache = *part.cache;
  sparse_flash_attention_quant(
      {
          .query_nope = reshaped(rows_of(part, m.query_nope), {part.rows * n, latent}),
          .query_rope = reshaped(rows_of(part, m.query_rope), {part.rows * n, m.config.qk_rope_head_dim}),
          .key_nope_2d = cache.rows_of(cache.latent),
          .key_rope_2d = cache.rows_of(cache.rope),
          .k_nope_scales = cache.rows_of(cache.latent_scale),
          .topk_indices = tensor(m.selection.row(part.row), {part.rows, k}),
          .block_table = cache.block_table(),
          .kv_act_seqs = tensor(&keys, {1}),
          .b = 1,
          .s1 = part.rows,
          .nq = n,
          .softmax_scale = m.layer.scale,
          .topk = k,
          .block_size = cache.page_size,
      },
      {.attention_out = reshaped(rows_of(part, m.attended), {1, part.rows, n, latent})}, m.context);
}

void attend_packed(const Chunk& m, const ChunkPart& part, double listed) {
  Timed timed(m.costs, "kv_quant_sparse_flash_attention", listed * row_bytes(m.cache));
  const std::int64_t n = m.config.num_attention_heads, k = m.selection.width;
  std::int32_t* selection = m.selection.row(part.row);
  for (std::int64_t i = 0; i < part.rows && part.first + i + 1 < k; ++i)
    selection[i * k + part.first + i + 1] = -1;  // the end of a list that is not full
  const std::int32_t queries = std::int32_t(part.rows), keys = std::int32_t(part.total);
  const Tensor key = part.cache->pages_of(part.cache->latent);
  kv_quant_sparse_flash_attention(
      {
          .query = reshaped(rows_of(part, m.query_nope),
                            {part.rows, n, m.config.kv_lora_rank + m.config.qk_rope_head_dim}),
          .key = key,
          .value = key,
          .sparse_indices = tensor(selection, {part.rows, 1, k}),
          .scale_value = m.layer.scale,
          .key_quant_mode = 2,
          .value_quant_mode = 2,
          .block_table = part.cache->block_table(),
          .actual_seq_lengths_query = tensor(&queries, {1}),
          .actual_seq_lengths_kv = tensor(&keys, {1}),
          .layout_query = "TND",
          .layout_kv = "PA_BSND",
          .attention_mode = 2,
          .tile_size = latent_group(m.config.kv_lora_rank),
          .rope_head_dim = m.config.qk_rope_head_dim,
      },
      {.attention_out = rows_of(part, m.attended)}, m.context);
}

}  // namespace

/// Rows that see at most K positions take them all, in order; the others are scored.
void select(const Chunk& m, const ChunkPart& part) {
  const std::int64_t k = m.selection.width, all = std::clamp<std::int64_t>(k - part.first, 0, part.rows);
  const std::int64_t scored = part.rows - all, at = part.row + all;
  LayerCache::State& cache = *part.cache;
  for (std::int64_t i = 0; i < all; ++i) {
    std::int32_t* list = m.selection.row(part.row + i);
    std::iota(list, list + part.first + i + 1, 0);
  }
  if (scored == 0) return;
  const std::int32_t queries = std::int32_t(scored), keys = std::int32_t(part.total);
  const Tensor query = slice(m.index_query, at, scored), weights = slice(m.index_weights, at, scored);
  const Tensor query_length = tensor(&queries, {1}), key_length = tensor(&keys, {1});
  const Tensor indices = tensor(m.selection.row(at), {scored, 1, k});
  Timed timed(m.costs, m.quantised() ? "quant_lightning_indexer" : "lightning_indexer",
              double(part.total) * double(cache.index_key.row_bytes() + cache.index_scale.row_bytes()));
  if (m.quantised()) {
    Tensor query_scale = slice(m.index_query_scale, at, scored), key_scale = cache.pages_of(cache.index_scale);
    query_scale.rank = 2, key_scale.rank = 3;  // without the axis of size 1
    quant_lightning_indexer(
        {
            .query = query,
            .key = cache.pages_of(cache.index_key),
            .weights = weights,
            .query_dequant_scale = query_scale,
            .key_dequant_scale = key_scale,
            .actual_seq_lengths_query = query_length,
            .actual_seq_lengths_key = key_length,
            .block_table = cache.block_table(),
            .layout_query = "TND",
            .layout_key = "PA_BSND",
            .sparse_count = k,
        },
        {.sparse_indices = indices}, m.context);
  } else {
    bf16 none{};
    lightning_indexer(
        {
            .query = query,
            .key = cache.pages_of(cache.index_key),
            .weights = weights,
            .actual_seq_lengths_query = query_length,
            .actual_seq_lengths_key = key_length,
            .block_table = cache.block_table(),
            .layout_query = "TND",
            .layout_key = "PA_BSND",
            .sparse_count = k,
        },
        {.sparse_indices = indices, .sparse_values = tensor(&none, {0})}, m.context);
  }
}

void attend(const Chunk& m, const ChunkPart& part) {
  const double rows = double(part.rows), visible = rows * double(part.first) + 0.5 * rows * (rows + 1);
  double listed = visible;
  if (m.sparse()) {
    listed = 0;
    for (std::int64_t i = 0; i < part.rows; ++i) listed += double(std::min(part.first + i + 1, m.config.index_topk));
  }
  if (m.costs) m.costs->selected += listed, m.costs->visible += visible;
  if (!m.sparse()) attend_dense(m, part);
  else if (m.packed()) attend_packed(m, part, listed);
  else attend_sparse(m, part, listed);
}

}  // namespace dsakit
