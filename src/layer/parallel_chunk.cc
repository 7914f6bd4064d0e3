// SPDX-License-Identifier: Apache-2.0
#include "layer/parallel_chunk.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "layer/costs.hpp"
#include "run/background.hpp"

namespace dsakit {

void SharedChunk::take_arrays(Carver& carver) {
  const io::ModelConfig& c = chunk.config;
  const std::int64_t n = chunk.rows;
  const LayerShare share = parallel.share();
  const auto take = [&](DType dtype, std::initializer_list<std::int64_t> shape) {
    Tensor t = shaped(dtype, shape);
    t.data = carver.take<std::byte>(t.elements() * size_of(dtype));
    return t;
  };
  const auto keep = [&](const RowKind& kind) {
    return kind.width > 0 ? take(kind.dtype, {1, n, 1, kind.width}) : Tensor{};
  };
  // Sums of this rank's columns and of all; the same where each rank makes all.
  const auto take_sums = [&](float*& own, float*& all, std::int64_t width) {
    all = carver.take<float>(n * width);
    own = share.split_prolog ? carver.take<float>(n * share.prolog_columns(width).size()) : all;
  };
  take_sums(mine.c_q, sums.c_q, c.q_lora_rank);
  take_sums(mine.kv, sums.kv, c.kv_lora_rank + c.qk_rope_head_dim);
  if (chunk.scores()) {
    chunk.kept.index_key = keep(cache.index_keys.index_key), chunk.kept.index_scale = keep(cache.index_keys.index_scale);
    take_sums(mine.key, sums.key, c.index_head_dim);
    take_sums(mine.weights, sums.weights, c.index_n_heads);
    if (!chunk.quantised()) take_sums(mine.plain_c_q, sums.plain_c_q, c.q_lora_rank);
    if (!chunk.quantised() && chunk.layer.weights.has_rest) take_sums(mine.rest, sums.rest, c.index_n_heads);
    const std::int64_t heads = share.index_heads(c).size();
    own_index_query = chunk.index_query, own_index_scale = chunk.index_query_scale;
    if (share.split_prolog) {
      own_index_query = take(chunk.index_query.dtype, {n, heads, c.index_head_dim});
      if (chunk.quantised()) own_index_scale = take(DType::f16, {n, heads, 1});
    }
  }
  values = carver.take<bf16>(n * chunk.layer.all_heads * c.v_head_dim);
  own_out = carver.take<float>(n * share.columns(c.hidden_size).size());
}

std::vector<ChunkPart> SharedChunk::parts(LayerCache::State& latents) const {
  std::vector<ChunkPart> parts;
  std::int64_t row = 0;
  for (int i = 0; i < 2; ++i) {
    const Slice block = rows.block(parallel.q, i);
    if (block.size() == 0) continue;
    parts.push_back({.cache = &latents, .row = row, .rows = block.size(), .first = rows.first + block.begin});
    row += block.size();
  }
  return parts;
}

namespace {

/// f(bytes of a kind's rows, where row 0 lies) for each kind that is kept of a token.
template <class F>
void each_kind(const NewRows& rows, F f) {
  for (const Tensor* t : {&rows.latent, &rows.rope, &rows.latent_scale, &rows.index_key, &rows.index_scale})
    if (*t) f(std::size_t(t->shape[3] * size_of(t->dtype)), static_cast<std::byte*>(t->data));
}

NewRows latents_of(NewRows rows) {
  rows.index_key = rows.index_scale = {};
  return rows;
}
NewRows index_keys_of(NewRows rows) {
  rows.latent = rows.rope = rows.latent_scale = {};
  return rows;
}

std::size_t row_bytes(const NewRows& rows) {
  std::size_t sum = 0;
  each_kind(rows, [&](std::size_t bytes, std::byte*) { sum += bytes; });
  return sum;
}

/// Rows of one kind of shard, from the replicas that have made them to all that keep them.
struct Shard {
  NewRows rows;
  Ownership owner;
  LayerCache::State& cache;
};

/// f(shard, row of replica q, its number in the shard) for those that this rank keeps, in their order.
template <class F>
void each_owned(const SharedChunk& s, int q, F f) {
  const Peers& p = s.parallel;
  const Shard shards[] = {{latents_of(s.chunk.kept), p.latent_rows(), s.cache.latents},
                          {index_keys_of(s.chunk.kept), p.index_rows(), s.cache.index_keys}};
  for (std::int64_t i = 0; i < s.rows.count(q); ++i)
    for (const Shard& shard : shards)
      if (const std::int64_t x = s.rows.position(q, i); row_bytes(shard.rows) > 0 && shard.owner.owns(x))
        f(shard, i, shard.owner.local(x));
}

}  // namespace

NewCacheRows::NewCacheRows(const SharedChunk& s) : s_(s) {
  Peers& p = s.parallel;
  if (!s.rows.split()) {
    if (!p.talk.failed())
      each_owned(s, p.q, [](const Shard& shard, std::int64_t i, std::int64_t at) { shard.cache.write(shard.rows, i, 1, at); });
    return;
  }
  const int replicas = p.query->size();
  p.sizes.assign(std::size_t(replicas), 0);
  for (int q = 0; q < replicas; ++q)
    each_owned(s, q, [&](const Shard& shard, auto, auto) { p.sizes[std::size_t(q)] += row_bytes(shard.rows); });
  p.mine.resize(p.sizes[std::size_t(p.q)]);
  all_.resize(std::accumulate(p.sizes.begin(), p.sizes.end(), std::size_t{0}));
  std::byte* to = p.mine.data();
  each_owned(s, p.q, [&](const Shard& shard, std::int64_t i, auto) {
    each_kind(shard.rows, [&](std::size_t bytes, std::byte* row) {
      to = std::copy_n(row + std::size_t(i) * bytes, bytes, to);
    });
  });
  under_ = p.talk.start_all_gather(*p.query, "cache_rows", p.mine, p.sizes, all_.data());
}

void NewCacheRows::finish() {
  if (!under_) return;
  under_->finish();
  std::byte* from = all_.data();
  for (int q = 0; q < s_.parallel.query->size(); ++q)
    each_owned(s_, q, [&](const Shard& shard, auto, std::int64_t at) {
      NewRows one = shard.rows;
      for (Tensor* t : {&one.latent, &one.rope, &one.latent_scale, &one.index_key, &one.index_scale})
        if (*t) t->data = from, from += t->shape[3] * size_of(t->dtype);
      shard.cache.write(one, 0, 1, at);
    });
}

void project(const SharedChunk& s) {
  Peers& p = s.parallel;
  const Chunk& m = s.chunk;
  const std::int64_t heads = m.layer.all_heads, dv = m.config.v_head_dim, width = m.config.hidden_size;
  p.talk.work([&] { project_heads(m); });
  gather(p, "head_values", m.rows, {{m.values.data, s.values, heads, dv * std::int64_t(sizeof(bf16)), false}});
  const Slice own = p.columns(width);
  p.talk.work([&] { project_out(m, s.values, heads * dv, tensor(s.own_out, {m.rows, own.size()})); });
  gather(p, "layer_output", m.rows, {{s.own_out, m.out.data, width, sizeof(float)}});
}

namespace {

std::size_t take_all_arrays(Chunk& chunk, SharedChunk& s, std::byte* memory) {
  const std::size_t bytes = (chunk.take_arrays(memory) + 63) / 64 * 64;
  Carver carver(memory ? memory + bytes : nullptr);
  s.take_arrays(carver);
  return bytes + carver.bytes();
}

}  // namespace

std::size_t parallel_layer_bytes(Peers& p, const AttentionLayer::State& layer, const ChunkRows& rows,
                                 const ShardedCache& cache, bool selects, Context& context) {
  const ChunkPart kind{.cache = &cache.latents, .row = 0, .rows = rows.count(p.q), .first = rows.first};
  const Tensor hidden = shaped(DType::bf16, {kind.rows, layer.config.hidden_size});
  std::int32_t selection = 0;
  Chunk chunk{.layer = layer,
              .parts = {&kind, 1},
              .context = context,
              .costs = nullptr,
              .hidden = hidden,
              .out = hidden,
              .selection = {selects ? &selection : nullptr, 0}};
  SharedChunk s{p, chunk, rows, cache};
  return take_all_arrays(chunk, s, nullptr);
}

void forward_parallel(Peers& p, const AttentionLayer::State& layer, const Tensor& hidden, const Tensor& out,
                      const ChunkRows& rows, const ShardedCache& cache, Lists selection,
                      ScratchMemory& scratch, Context& context, Costs* costs) {
  const ChunkPart kind{.cache = &cache.latents, .row = 0, .rows = hidden.shape[0], .first = rows.first};
  Chunk chunk{.layer = layer,
              .parts = {&kind, 1},
              .context = context,
              .costs = costs,
              .hidden = hidden,
              .out = out,
              .selection = selection};
  SharedChunk s{p, chunk, rows, cache};
  take_all_arrays(chunk, s, scratch.require(take_all_arrays(chunk, s, nullptr)));
  std::iota(data_of<std::int64_t>(chunk.slots), data_of<std::int64_t>(chunk.slots) + chunk.rows, 0);
  const std::vector<ChunkPart> parts = s.parts(cache.latents);
  for (const ChunkPart& part : parts) {
    const std::int64_t at = part.row * layer.config.qk_rope_head_dim;
    layer.rope->copy(part.first, part.rows, data_of<bf16>(chunk.cos) + at, data_of<bf16>(chunk.sin) + at);
  }
  const auto queries_under = [&](auto& exchange, Slice some) {
    p.talk.work([&] {
      const Background moved_on([&] { exchange.poll(); });
      make_queries(s, some);
    });
  };
  run_prolog(s);
  NewCacheRows kept(s);
  gather_index_queries(s);
  const std::int64_t early = s.rows.split() ? chunk.rows / 2 : 0;
  queries_under(kept, {0, early});
  kept.finish();
  SelectionUnderway selection_of_rows(s);
  queries_under(selection_of_rows, {early, chunk.rows});
  selection_of_rows.finish();
  attend(s);
  project(s);
}

}  // namespace dsakit
