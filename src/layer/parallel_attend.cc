// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "layer/costs.hpp"
#include "layer/parallel_chunk.hpp"
#include "ops/attention/sparse.hpp"

// Attention over latent rows that lie on several ranks. Either the selected rows travel to all ranks of the kv group, each of
// which attends to them for its own heads in the order of the list (the bits of one process), or each rank attends to its own
// positions for all heads of the group, and what comes out is merged in the order of the ranks.
namespace dsakit {
namespace {

namespace sparse = attention::sparse;

struct Checked {
  sparse::Problem attention;
  const std::vector<sparse::Token>& tokens;

  template <class F>
  void each_token(F f) const {
    for (std::size_t t = 0; t < tokens.size(); ++t) f(std::int64_t(t), tokens[t]);
  }
};

/// Latent rows where they lie, one kind behind the other or in packed rows.
struct LatentRows {
  Tensor latent, rope, scale;  // [count, width]; absent where the mode has none
};

sparse::Keys keys_of(const Chunk& m, const LatentRows& rows) {
  sparse::Keys keys{.rows = {.data = nullptr, .page_stride = 0, .row_stride = 1, .page_size = 1},
                    .latent = Rows(rows.latent, 1)};
  const std::int64_t latent = m.config.kv_lora_rank, rope = m.config.qk_rope_head_dim;
  if (m.quantised()) keys.tile = int(latent_group(latent));
  if (m.packed()) {
    keys.rope_from = int(latent), keys.scales_from = int(latent + 2 * rope);
  } else {
    keys.rope = Rows(rows.rope, 1);
    if (m.quantised()) keys.scales = Rows(rows.scale, 1);
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

// ---- rows travel

/// Which positions rows from .. to - 1 attend to, by owner and in the order in which the lists name them; where each lies
/// behind the others, by position.
struct Distinct {
  std::vector<std::vector<std::int32_t>> of_rank;  // positions
  std::vector<std::int32_t> place;                 // of a position, or -1

  Distinct(const SharedChunk& s, std::int64_t from, std::int64_t to, const Ownership& owner)
      : of_rank(std::size_t(owner.ranks)), place(std::size_t(s.end()), -1) {
    const std::int64_t k = s.chunk.config.index_topk;
    for (std::int64_t i = from; i < to; ++i)
      for (const std::int32_t *x = s.chunk.selection + i * k, *end = x + listed(s, i); x != end; ++x)
        if (place[std::size_t(*x)] < 0) {
          place[std::size_t(*x)] = 0;
          of_rank[std::size_t(owner.owner(*x))].push_back(*x);
        }
    std::int32_t next = 0;
    for (const auto& positions : of_rank)
      for (const std::int32_t x : positions) place[std::size_t(x)] = next++;
  }
  std::int64_t count() const {
    return std::accumulate(of_rank.begin(), of_rank.end(), std::int64_t{0},
                           [](std::int64_t n, const auto& positions) { return n + std::int64_t(positions.size()); });
  }
};

/// Rows of a cache that all ranks of the kv group have now.
class Fetched {
 public:
  Fetched(const SharedChunk& s, const Distinct& distinct) : count_(distinct.count()) {
    Peers& p = s.parallel;
    LayerCache::State& cache = s.cache.latents;
    const CachePool* const pools[] = {&cache.latent, &cache.rope, &cache.latent_scale};
    std::int64_t bytes = 0;
    for (const CachePool* pool : pools) bytes += pool->row_bytes();
    p.sizes.clear();
    for (const auto& positions : distinct.of_rank) p.sizes.push_back(positions.size() * std::size_t(bytes));
    p.mine.resize(p.sizes[std::size_t(p.c)]);
    p.all.resize(std::size_t(count_ * bytes));
    const Ownership owner = p.latent_rows();
    std::byte* to = p.mine.data();
    for (const CachePool* pool : pools) {
      const std::int64_t width = pool->row_bytes();
      for (const std::int32_t x : distinct.of_rank[std::size_t(p.c)])
        if (width > 0) to = std::copy_n(pool->memory.data() + cache.slot(owner.local(x)) * width, width, to);
    }
    p.talk.all_gather(*p.kv, "attention", p.mine, p.sizes, p.all.data());
    const std::byte* from = p.all.data();
    Tensor* const tensors[] = {&rows_.latent, &rows_.rope, &rows_.scale};
    for (std::size_t i = 0; i < 3; ++i) memory_[i].resize(std::size_t(count_ * pools[i]->row_bytes()));
    std::int64_t first = 0;
    for (const auto& positions : distinct.of_rank) {
      for (std::size_t i = 0; i < 3; ++i) {
        const std::size_t width = std::size_t(pools[i]->row_bytes()), some = positions.size() * width;
        std::copy_n(from, some, memory_[i].data() + std::size_t(first) * width);
        from += some;
      }
      first += std::int64_t(positions.size());
    }
    for (std::size_t i = 0; i < 3; ++i) {
      if (pools[i]->width == 0) continue;
      *tensors[i] = shaped(pools[i]->dtype, {count_, pools[i]->width});
      tensors[i]->data = memory_[i].data();
    }
  }
  const LatentRows& rows() const { return rows_; }

 private:
  std::int64_t count_;
  std::vector<std::byte> memory_[3];
  LatentRows rows_;
};

void attend_fetched(const SharedChunk& s, std::int64_t from, std::int64_t to) {
  const Chunk& m = s.chunk;
  const Distinct distinct(s, from, to, s.parallel.latent_rows());
  const Fetched fetched(s, distinct);
  const std::int64_t heads = m.config.num_attention_heads, k = m.config.index_topk;
  if (heads == 0) return;
  s.parallel.talk.work([&] {
    Timed timed(m.costs, "sparse_attention", double(distinct.count()) * double(m.cache.latent.row_bytes()));
    std::vector<std::int32_t> lists(std::size_t((to - from) * k));
    std::vector<sparse::Token> tokens;
    for (std::int64_t i = from; i < to; ++i) {
      const std::int32_t* list = m.selection + i * k;
      std::int32_t* const here = lists.data() + (i - from) * k;
      for (std::int64_t j = 0; j < listed(s, i); ++j) here[j] = distinct.place[std::size_t(list[j])];
      tokens.push_back({.sequence = 0, .list = here, .count = listed(s, i)});
    }
    const auto rows = [&](const Tensor& t) { return Rows(slice(t, from, to - from), 1); };
    const sparse::Problem problem{.query = rows(m.query_nope),
                                  .query_rope = rows(m.query_rope),
                                  .keys = keys_of(m, fetched.rows()),
                                  .out = rows(m.attended),
                                  .tokens = to - from,
                                  .heads = heads,
                                  .latent = int(m.config.kv_lora_rank),
                                  .rope = int(m.config.qk_rope_head_dim),
                                  .scale = float(m.layer.scale)};
    sparse::run("attention_layer", Checked{problem, tokens}, m.context);
  });
}

/// A group of rows at a time, so that what travels stays bounded.
void attend_rows(const SharedChunk& s) {
  constexpr std::int64_t kMost = std::int64_t(256) << 20;  // bytes
  const LayerCache::State& cache = s.cache.latents;
  const std::int64_t row = cache.latent.row_bytes() + cache.rope.row_bytes() + cache.latent_scale.row_bytes();
  const std::int64_t fits = kMost / row, k = s.chunk.config.index_topk;
  const std::int64_t step = s.end() <= fits ? s.chunk.rows : std::max<std::int64_t>(fits / k, 1);
  for (std::int64_t from = 0; from < s.chunk.rows; from += step) attend_fetched(s, from, std::min(from + step, s.chunk.rows));
}

// ---- parts travel

/// Heads of the ranks of a kv group: neighbours.
Slice heads_of(const SharedChunk& s, int c) {
  const Peers& p = s.parallel;
  return slice_of(s.chunk.layer.all_heads, std::int64_t(p.h) * p.options.grid.kv + c, p.replica->size());
}

/// Queries of all heads of the group, [rows, heads, width].
std::vector<bf16> gather_queries(const SharedChunk& s, std::int64_t heads) {
  Peers& p = s.parallel;
  const Chunk& m = s.chunk;
  const std::int64_t latent = m.config.kv_lora_rank, rope = m.config.qk_rope_head_dim, width = latent + rope,
                     first = heads_of(s, 0).begin;
  p.sizes.clear();
  for (int c = 0; c < p.kv->size(); ++c)
    p.sizes.push_back(std::size_t(m.rows * heads_of(s, c).size() * width) * sizeof(bf16));
  std::vector<bf16> mine(p.sizes[std::size_t(p.c)] / sizeof(bf16)), all(std::size_t(m.rows * heads * width)), sorted(all.size());
  const Rows nope(m.query_nope, 1), ropes(m.query_rope, 1);
  const std::int64_t own = heads_of(s, p.c).size();
  for (std::int64_t r = 0; r < m.rows * own; ++r) {
    std::copy_n(nope.row<const bf16>(r), latent, mine.data() + r * width);
    std::copy_n(ropes.row<const bf16>(r), rope, mine.data() + r * width + latent);
  }
  p.talk.all_gather(*p.kv, "queries", std::as_bytes(std::span(mine)), p.sizes, reinterpret_cast<std::byte*>(all.data()));
  const bf16* from = all.data();
  for (int c = 0; c < p.kv->size(); ++c) {
    const Slice part = heads_of(s, c);
    for (std::int64_t i = 0; i < m.rows; ++i, from += part.size() * width)
      std::copy_n(from, part.size() * width, sorted.data() + (i * heads + part.begin - first) * width);
  }
  return sorted;
}

/// Of rows and heads: what attention to some positions gives.
struct Partials {
  std::vector<float> max, sum, values;  // [rows * heads], [rows * heads, Hckv]

  Partials(std::int64_t count, std::int64_t latent)
      : max(std::size_t(count)), sum(std::size_t(count)), values(std::size_t(count * latent)) {}
};

void attend_own(const SharedChunk& s, std::int64_t heads, const std::vector<bf16>& queries, Partials& out) {
  const Chunk& m = s.chunk;
  LayerCache::State& cache = s.cache.latents;
  const Ownership owner = s.parallel.latent_rows();
  const std::int64_t latent = m.config.kv_lora_rank, rope = m.config.qk_rope_head_dim, k = m.config.index_topk;
  std::vector<std::int32_t> lists(m.sparse() ? std::size_t(m.rows * k) : 0);
  std::vector<sparse::Token> tokens;
  for (std::int64_t i = 0; i < m.rows; ++i) {
    sparse::Token token{.sequence = 0, .count = owner.below(s.position(i) + 1)};
    if (m.sparse()) {
      std::int32_t *here = lists.data() + i * k, *end = here;
      for (const std::int32_t *x = m.selection + i * k, *last = x + listed(s, i); x != last; ++x)
        if (owner.owns(*x)) *end++ = std::int32_t(owner.local(*x));
      token.list = here, token.count = end - here;
    }
    tokens.push_back(token);
  }
  Tensor query = tensor(queries.data(), {m.rows * heads, latent + rope}), query_rope = query;
  query.shape[1] = latent, query_rope.shape[1] = rope;
  query_rope.data = data_of<bf16>(query) + latent;
  sparse::Keys keys = keys_of(m, {cache.rows_of(cache.latent), cache.rows_of(cache.rope), cache.rows_of(cache.latent_scale)});
  keys.rows = {.data = nullptr, .page_stride = cache.page_size, .row_stride = 1, .page_size = cache.page_size,
               .table = cache.table.data(), .table_stride = 0, .table_step = 1};
  const sparse::Problem problem{.query = Rows(query, 1),
                                .query_rope = Rows(query_rope, 1),
                                .keys = keys,
                                .wide_out = out.values.data(),
                                .max = Rows(tensor(out.max.data(), {m.rows * heads}), 0),
                                .sum = Rows(tensor(out.sum.data(), {m.rows * heads}), 0),
                                .tokens = m.rows,
                                .heads = heads,
                                .latent = int(latent),
                                .rope = int(rope),
                                .scale = float(m.layer.scale)};
  Timed timed(m.costs, "partial_attention", double(cache.length) * double(cache.latent.row_bytes()));
  sparse::run("attention_layer", Checked{problem, tokens}, m.context);
}

/// Each rank's part of the same rows and heads, ranks ascending; those without positions are not there.
void merge(const std::vector<float>& parts, std::int64_t ranks, std::int64_t count, std::int64_t latent, bf16* out) {
  const std::int64_t width = latent + 2, all = count * width;
  std::vector<float> sum(static_cast<std::size_t>(latent));
  for (std::int64_t i = 0; i < count; ++i) {
    const auto part = [&](std::int64_t r) { return parts.data() + r * all + i * width; };
    float max = -INFINITY, total = 0;
    for (std::int64_t r = 0; r < ranks; ++r)
      if (part(r)[1] > 0) max = std::max(max, part(r)[0]);
    std::fill(sum.begin(), sum.end(), 0.0f);
    for (std::int64_t r = 0; r < ranks; ++r) {
      const float* x = part(r);
      if (!(x[1] > 0)) continue;
      const float weight = x[1] * std::exp(x[0] - max);
      total += weight;
      for (std::int64_t j = 0; j < latent; ++j) sum[std::size_t(j)] += weight * x[2 + j];
    }
    for (std::int64_t j = 0; j < latent; ++j)
      out[i * latent + j] = to_bf16(total > 0 ? sum[std::size_t(j)] / total : 0);
  }
}

void attend_parts(const SharedChunk& s) {
  Peers& p = s.parallel;
  const Chunk& m = s.chunk;
  const int ranks = p.kv->size();
  const std::int64_t latent = m.config.kv_lora_rank, width = latent + 2, own = heads_of(s, p.c).size(),
                     first = heads_of(s, 0).begin, heads = heads_of(s, ranks - 1).end - first;
  const std::vector<bf16> queries = gather_queries(s, heads);
  Partials mine(m.rows * heads, latent);
  if (heads > 0) p.talk.work([&] { attend_own(s, heads, queries, mine); });
  // To the rank of each head: maximum, sum and values of [rows, its heads].
  std::vector<float> out, in(std::size_t(ranks * m.rows * own * width));
  std::vector<std::size_t> to, from(std::size_t(ranks), std::size_t(m.rows * own * width) * sizeof(float));
  for (int c = 0; c < ranks; ++c) {
    const Slice part = heads_of(s, c);
    to.push_back(std::size_t(m.rows * part.size() * width) * sizeof(float));
    for (std::int64_t i = 0; i < m.rows; ++i)
      for (std::int64_t h = part.begin - first; h < part.end - first; ++h) {
        const std::size_t at = std::size_t(i * heads + h);
        out.push_back(mine.max[at]), out.push_back(mine.sum[at]);
        const float* values = mine.values.data() + at * std::size_t(latent);
        out.insert(out.end(), values, values + latent);
      }
  }
  p.talk.all_to_all(*p.kv, "attention", reinterpret_cast<const std::byte*>(out.data()), to,
                    reinterpret_cast<std::byte*>(in.data()), from);
  if (!p.talk.failed()) merge(in, ranks, m.rows * own, latent, data_of<bf16>(m.attended));
}

}  // namespace

void attend(const SharedChunk& s) {
  const Chunk& m = s.chunk;
  if (s.parallel.kv->size() == 1) {
    if (m.config.num_attention_heads > 0)
      s.parallel.talk.work([&] {
        for (const Part& part : s.parts(s.cache.latents)) attend(m, part);
      });
    return;
  }
  count_positions(s);
  if (s.parallel.merges_parts(m.cache.mode)) attend_parts(s);
  else attend_rows(s);
}

}  // namespace dsakit
