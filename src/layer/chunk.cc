// SPDX-License-Identifier: Apache-2.0
#include "layer/chunk.hpp"

#include <algorithm>
#include <bit>
#include <numeric>
#include <set>
#include <shared_mutex>
#include <vector>

#include "layer/costs.hpp"
#include "ops/linear.hpp"

namespace dsakit {

std::size_t Chunk::take_arrays(std::byte* memory) {
  const io::ModelConfig& c = config;
  const std::int64_t n = c.num_attention_heads, dr = c.qk_rope_head_dim, latent = c.kv_lora_rank;
  Carver carver(memory);
  const auto take = [&](DType dtype, std::initializer_list<std::int64_t> shape) {
    Tensor t = shaped(dtype, shape);
    t.data = carver.take<std::byte>(t.elements() * size_of(dtype));
    return t;
  };
  const auto keep = [&](const RowKind& kind) {
    return kind.width > 0 ? take(kind.dtype, {1, rows, 1, kind.width}) : Tensor{};
  };
  slots = take(DType::i64, {rows});
  kept = {keep(cache.latent), keep(cache.rope), keep(cache.latent_scale), keep(cache.index_key),
          keep(cache.index_scale)};
  cos = take(DType::bf16, {rows, dr});
  sin = take(DType::bf16, {rows, dr});
  if (packed()) {
    hidden_i8 = take(DType::i8, {rows, c.hidden_size});
    hidden_scale = take(DType::f32, {rows, 1});
    const std::int64_t width = latent + dr;
    query_nope = take(DType::bf16, {rows, n, width});
    query_nope.shape[2] = latent;
    query_rope = query_nope;
    query_rope.shape[2] = dr;
    query_rope.data = data_of<bf16>(query_nope) + latent;
  } else {
    query_nope = take(DType::bf16, {rows, n, latent});
    query_rope = take(DType::bf16, {rows, n, dr});
  }
  c_q = take(quantised() ? DType::i8 : DType::bf16, {rows, c.q_lora_rank});
  c_q_scale = quantised() ? take(DType::f32, {rows, 1}) : take(DType::f32, {0});
  if (scores()) {
    index_query = take(quantised() ? DType::i8 : DType::bf16, {rows, c.index_n_heads, c.index_head_dim});
    index_weights = take(quantised() ? DType::f16 : DType::f32, {rows, c.index_n_heads});
    if (quantised()) index_query_scale = take(DType::f16, {rows, c.index_n_heads, 1});
  }
  attended = take(DType::bf16, {rows, n, latent});
  values = take(DType::bf16, {rows, n, c.v_head_dim});
  return carver.bytes();
}

void project_heads(const Chunk& m) {
  const LayerWeights& w = m.layer.weights;
  const std::int64_t n = m.config.num_attention_heads, dv = m.config.v_head_dim, latent = m.config.kv_lora_rank;
  if (n == 0) return;
  const bf16* attended = data_of<bf16>(m.attended);
  bf16* values = data_of<bf16>(m.values);
  Timed timed(m.costs, "output_projection", double(w.w_uv.bytes()));
  Call call(m.context, "attention_layer", 0);
  for_each_tile(call, w.w_uv.view(), attended, n * latent, latent, m.rows,
                [&](auto head, auto row, auto some, auto column, auto columns, const float* tile) {
                  for (std::int64_t i = 0; i < some; ++i)
                    call.kernels().round(tile + i * kPanel, columns, values + ((row + i) * n + head) * dv + column);
                });
  call.finish();
}

void project_out(const Chunk& m, const bf16* values, std::int64_t width, const Tensor& out) {
  const LayerWeights& w = m.layer.weights;
  if (!w.w_o) return;
  Timed timed(m.costs, "output_projection", double(w.w_o.bytes()));
  Call call(m.context, "attention_layer", 0);
  for_each_tile(call, w.w_o.view(), values, width, 0, m.rows,
                [&](auto, auto row, auto some, auto column, auto columns, const float* tile) {
                  for (std::int64_t i = 0; i < some; ++i) {
                    const std::int64_t at = (row + i) * out.stride[0] + column;
                    if (out.dtype == DType::f32) std::copy_n(tile + i * kPanel, columns, data_of<float>(out) + at);
                    else call.kernels().round(tile + i * kPanel, columns, data_of<bf16>(out) + at);
                  }
                });
  call.finish();
}

std::int64_t chunk_tokens(const io::ModelConfig& c) {
  constexpr std::int64_t kQueryElements = std::int64_t(8) << 20;  // 16 MiB of absorbed query, as much of results
  return std::clamp<std::int64_t>(kQueryElements / (c.num_attention_heads * c.kv_lora_rank), 16, 256);
}

std::int64_t list_width(const io::ModelConfig& c, std::int64_t positions) {
  return std::min(c.index_topk, std::int64_t(std::bit_ceil(std::uint64_t(positions))));
}

namespace {

/// Holds the pages of all parts where they are while it lives. In one order everywhere: nobody waits in a circle.
class PagesInUse {
 public:
  explicit PagesInUse(std::span<const ChunkPart> parts) {
    std::set<PagePool*> pools;
    for (const ChunkPart& part : parts) pools.insert(part.cache->pool.get());
    for (PagePool* pool : pools) locks_.emplace_back(pool->mutex);
  }

 private:
  std::vector<std::shared_lock<std::shared_mutex>> locks_;
};

}  // namespace

void forward_chunk(const AttentionLayer::State& layer, const Tensor& hidden, const Tensor& out,
                   std::span<const ChunkPart> parts, Lists selection, const Rotation& rotation,
                   ScratchMemory& scratch, Context& context, Costs* costs) {
  Chunk chunk{.layer = layer,
              .parts = parts,
              .context = context,
              .costs = costs,
              .hidden = hidden,
              .out = out,
              .selection = selection};
  chunk.take_arrays(scratch.require(chunk.take_arrays(nullptr)));
  std::iota(data_of<std::int64_t>(chunk.slots), data_of<std::int64_t>(chunk.slots) + chunk.rows, 0);
  for (const ChunkPart& part : parts) {
    part.cache->reserve(part.total);
    const std::int64_t at = part.row * layer.config.qk_rope_head_dim;
    if (!rotation.cos)
      layer.rope->copy(part.first, part.rows, data_of<bf16>(chunk.cos) + at, data_of<bf16>(chunk.sin) + at);
  }
  if (rotation.cos) chunk.cos = rotation.cos, chunk.sin = rotation.sin;
  run_prolog(chunk);
  {
    const PagesInUse pages(parts);
    for (const ChunkPart& part : parts) {
      part.cache->write(chunk.kept, part.row, part.rows, part.first);
      if (chunk.scores()) select(chunk, part);
      attend(chunk, part);
    }
  }
  project_heads(chunk);
  project_out(chunk, data_of<const bf16>(chunk.values), layer.config.num_attention_heads * layer.config.v_head_dim, out);
  for (const ChunkPart& part : parts) part.cache->length = part.total;
}

}  // namespace dsakit
