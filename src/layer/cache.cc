// SPDX-License-Identifier: Apache-2.0
#include "layer/cache.hpp"

#include <algorithm>
#include <cstring>

namespace dsakit {
namespace {

constexpr std::int64_t kMostPositions = INT32_MAX;  // lengths and selections are int32

CachePool copy_of(const CachePool& from) {
  CachePool to{from, io::AlignedArray<std::byte>(from.memory.size())};
  if (from.memory.size() > 0) std::memcpy(to.memory.data(), from.memory.data(), from.memory.size());
  return to;
}

}  // namespace

std::int64_t latent_group(std::int64_t latent) {
  std::int64_t group = std::min<std::int64_t>(latent, 128);
  while (latent % group != 0) --group;
  return group;
}

RowKinds::RowKinds(const io::ModelConfig& c, bool indexer, Mode mode) {
  const bool i8 = is_quantised(mode);
  const std::int64_t groups = c.kv_lora_rank / latent_group(c.kv_lora_rank);
  latent = {i8 ? DType::i8 : DType::bf16, c.kv_lora_rank};
  rope = {DType::bf16, c.qk_rope_head_dim};
  if (i8) latent_scale = {DType::f32, groups};
  if (is_packed(mode)) {
    latent.width += rope.row_bytes() + latent_scale.row_bytes();
    rope = latent_scale = {};
  }
  if (!is_sparse(mode) || !indexer) return;
  index_key = {i8 ? DType::i8 : DType::bf16, c.index_head_dim};
  if (i8) index_scale = {DType::f16, 1};
}

LayerCache::State::State(const RowKinds& kinds, Mode mode, std::int64_t page_size)
    : mode(mode),
      page_size(page_size),
      latent{kinds.latent, {}},
      rope{kinds.rope, {}},
      latent_scale{kinds.latent_scale, {}},
      index_key{kinds.index_key, {}},
      index_scale{kinds.index_scale, {}} {
  if (page_size < 1 || page_size > kMostPositions)
    throw Error(Status::invalid_argument, "model", "page_size", "", "is " + std::to_string(page_size), "1..2147483647");
}

LayerCache::State::State(const State& from)
    : mode(from.mode),
      page_size(from.page_size),
      length(from.length),
      latent(copy_of(from.latent)),
      rope(copy_of(from.rope)),
      latent_scale(copy_of(from.latent_scale)),
      index_key(copy_of(from.index_key)),
      index_scale(copy_of(from.index_scale)),
      table(from.table) {}

void LayerCache::State::reserve(std::int64_t positions) {
  if (positions > kMostPositions)
    throw Error(Status::invalid_argument, "model", "context", "", "is " + std::to_string(positions) + " tokens",
                "at most " + std::to_string(kMostPositions));
  const std::int64_t needed = (positions + page_size - 1) / page_size, old = pages();
  if (needed <= old) return;
  const std::int64_t grown = std::max(needed, old + old / 4);  // a quarter at a time: growing stays cheap
  for (CachePool* pool : pools()) {
    io::AlignedArray<std::byte> larger(grown * page_size * pool->row_bytes());
    if (pool->memory.size() > 0) std::memcpy(larger.data(), pool->memory.data(), pool->memory.size());
    pool->memory = std::move(larger);
  }
  for (std::int64_t p = old; p < grown; ++p) table.push_back(std::int32_t(p));
}

std::size_t LayerCache::State::bytes() const {
  return latent.memory.size() + rope.memory.size() + latent_scale.memory.size() + index_key.memory.size() +
         index_scale.memory.size();
}

bool LayerCache::State::holds(const RowKinds& kinds) const {
  return latent == kinds.latent && rope == kinds.rope && latent_scale == kinds.latent_scale &&
         index_key == kinds.index_key && index_scale == kinds.index_scale;
}

Tensor LayerCache::State::pages_of(CachePool& pool) const {
  if (pool.width == 0) return {};
  Tensor t = shaped(pool.dtype, {pages(), page_size, 1, pool.width});
  t.data = pool.memory.data();
  return t;
}

Tensor LayerCache::State::rows_of(CachePool& pool) const {
  if (pool.width == 0) return {};
  Tensor t = shaped(pool.dtype, {pages() * page_size, pool.width});
  t.data = pool.memory.data();
  return t;
}

Tensor LayerCache::State::block_table() { return tensor(table.data(), {1, pages()}); }

LayerCache::LayerCache(std::unique_ptr<State> state) : state_(std::move(state)) {}
LayerCache::LayerCache(const LayerCache& from) : state_(std::make_unique<State>(*from.state_)) {}
LayerCache::LayerCache(LayerCache&&) noexcept = default;
LayerCache& LayerCache::operator=(const LayerCache& from) { return *this = LayerCache(from); }
LayerCache& LayerCache::operator=(LayerCache&&) noexcept = default;
LayerCache::~LayerCache() = default;

std::string_view LayerCache::mode() const { return name_of(state_->mode); }
std::int64_t LayerCache::length() const { return state_->length; }
std::int64_t LayerCache::page_size() const { return state_->page_size; }
std::size_t LayerCache::bytes() const { return state_->bytes(); }
void LayerCache::reset() { state_->length = 0; }

}  // namespace dsakit
