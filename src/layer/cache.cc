// SPDX-License-Identifier: Apache-2.0
#include "layer/cache.hpp"

#include <algorithm>
#include <cstring>

#include "core/out_of_memory.hpp"
#include "io/file.hpp"

namespace dsakit {
namespace {

constexpr std::int64_t kMostPositions = INT32_MAX;  // lengths and selections are int32

std::int64_t checked(std::int64_t page_size) {
  if (page_size < 1 || page_size > kMostPositions)
    throw Error(Status::invalid_argument, "model", "page_size", "", "is " + std::to_string(page_size), "1..2147483647");
  return page_size;
}

/// f(pool, rows of its kind) for every kind.
template <class State, class F>
void each_kind(State& s, const NewRows& rows, F f) {
  f(s.latent, rows.latent);
  f(s.rope, rows.rope);
  f(s.latent_scale, rows.latent_scale);
  f(s.index_key, rows.index_key);
  f(s.index_scale, rows.index_scale);
}

}  // namespace

void ScratchMemory::grow(std::size_t bytes) {
  io::require_memory("scratch", bytes, io::memory_limit(), "model");
  memory_ = io::AlignedArray<std::byte>(bytes);
}

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

RowKinds RowKinds::latents() const {
  RowKinds kinds = *this;
  kinds.index_key = kinds.index_scale = {};
  return kinds;
}

RowKinds RowKinds::index_keys() const {
  RowKinds kinds = *this;
  kinds.latent = kinds.rope = kinds.latent_scale = {};
  return kinds;
}

PagePool::PagePool(const RowKinds& kinds, std::int64_t page_size)
    : page_size(checked(page_size)),
      latent{kinds.latent, {}},
      rope{kinds.rope, {}},
      latent_scale{kinds.latent_scale, {}},
      index_key{kinds.index_key, {}},
      index_scale{kinds.index_scale, {}} {}

void PagePool::require(std::int64_t count) {
  const std::int64_t old = pages(), missing = count - std::int64_t(unused.size());
  if (missing <= 0) return;
  const std::int64_t grown = old + std::max(missing, old / 4);  // a quarter at a time: growing stays cheap
  std::array<io::AlignedArray<std::byte>, 5> larger;
  for (std::size_t i = 0; i < larger.size(); ++i)
    larger[i] = io::AlignedArray<std::byte>(grown * page_size * pools()[i]->row_bytes());
  std::vector<std::int32_t> next;
  for (std::int64_t p = grown; p-- > old;) next.push_back(std::int32_t(p));
  owners.reserve(std::size_t(grown));
  unused.insert(unused.begin(), next.begin(), next.end());
  owners.resize(std::size_t(grown));
  for (std::size_t i = 0; i < larger.size(); ++i) {
    io::AlignedArray<std::byte>& memory = pools()[i]->memory;
    if (memory.size() > 0) std::memcpy(larger[i].data(), memory.data(), memory.size());
    memory = std::move(larger[i]);
  }
}

std::int32_t PagePool::take() {
  const std::int32_t page = unused.back();
  unused.pop_back();
  owners[page] = 1;
  return page;
}

std::int32_t PagePool::part_with(std::int32_t page, std::int64_t rows) {
  const std::int32_t own = take();
  --owners[page];
  for (CachePool* pool : pools()) {
    const std::int64_t bytes = page_size * pool->row_bytes();
    std::byte* memory = pool->memory.data();
    if (bytes > 0) std::memcpy(memory + own * bytes, memory + page * bytes, rows * pool->row_bytes());
  }
  return own;
}

void PagePool::give_back(std::int32_t page) {
  if (--owners[page] == 0) unused.push_back(page);
}

LayerCache::State::State(const RowKinds& kinds, Mode mode, std::int64_t page_size)
    : mode(mode), pool(std::make_shared<PagePool>(kinds, page_size)) {}

LayerCache::State::State(const State& from)
    : mode(from.mode),
      pool(from.pool),
      length(from.length),
      table(from.table.begin(), from.table.begin() + (from.length + page_size - 1) / page_size) {
  const std::lock_guard lock(pool->mutex);
  for (const std::int32_t page : table) ++pool->owners[page];
}

LayerCache::State::~State() { keep(0); }

void LayerCache::State::reserve(std::int64_t positions) {
  if (positions > kMostPositions)
    throw Error(Status::invalid_argument, "model", "context", "", "is " + std::to_string(positions) + " tokens",
                "at most " + std::to_string(kMostPositions));
  const std::int64_t needed = (positions + page_size - 1) / page_size, held = std::int64_t(table.size()),
                     last = length / page_size, rows = length % page_size;
  const std::lock_guard lock(pool->mutex);
  const bool shared = positions > length && rows > 0 && pool->owners[table[last]] > 1;
  pool->require(std::max<std::int64_t>(needed - held, 0) + shared);
  table.reserve(std::size_t(std::max(needed, held)));
  if (shared) table[last] = pool->part_with(table[last], rows);
  for (std::int64_t p = held; p < needed; ++p) table.push_back(pool->take());
}

void LayerCache::State::keep(std::int64_t positions) {
  const std::int64_t needed = (positions + page_size - 1) / page_size;
  length = positions;
  const std::lock_guard lock(pool->mutex);
  for (; std::int64_t(table.size()) > needed; table.pop_back()) pool->give_back(table.back());
}

void LayerCache::State::write(const NewRows& rows, std::int64_t row, std::int64_t count, std::int64_t at) {
  each_kind(*this, rows, [&](CachePool& to, const Tensor& from) {
    const std::int64_t bytes = to.row_bytes();
    for (std::int64_t i = 0; i < count && bytes > 0; ++i)
      std::memcpy(to.memory.data() + slot(at + i) * bytes, static_cast<std::byte*>(from.data) + (row + i) * bytes,
                  std::size_t(bytes));
  });
}

void LayerCache::State::read(const NewRows& rows) const {
  const std::shared_lock lock(pool->mutex);
  each_kind(*this, rows, [&](const CachePool& from, const Tensor& to) {
    const std::int64_t bytes = from.row_bytes();
    for (std::int64_t i = 0; i < length && bytes > 0; ++i)
      std::memcpy(static_cast<std::byte*>(to.data) + i * bytes, from.memory.data() + slot(i) * bytes,
                  std::size_t(bytes));
  });
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
  Tensor t = shaped(pool.dtype, {this->pool->pages(), page_size, 1, pool.width});
  t.data = pool.memory.data();
  return t;
}

Tensor LayerCache::State::rows_of(CachePool& pool) const {
  if (pool.width == 0) return {};
  Tensor t = shaped(pool.dtype, {this->pool->pages() * page_size, pool.width});
  t.data = pool.memory.data();
  return t;
}

Tensor LayerCache::State::block_table() { return tensor(table.data(), {1, std::int64_t(table.size())}); }

LayerCache::LayerCache(std::unique_ptr<State> state) : state_(std::move(state)) {}
LayerCache::LayerCache(const LayerCache& from) try : state_(std::make_unique<State>(*from.state_)) {
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}
LayerCache::LayerCache(LayerCache&&) noexcept = default;
LayerCache& LayerCache::operator=(const LayerCache& from) { return *this = LayerCache(from); }
LayerCache& LayerCache::operator=(LayerCache&&) noexcept = default;
LayerCache::~LayerCache() = default;

std::string_view LayerCache::mode() const { return name_of(state_->mode); }
std::int64_t LayerCache::length() const { return state_->length; }
std::int64_t LayerCache::page_size() const { return state_->page_size; }
std::size_t LayerCache::bytes() const { return state_->bytes(); }
void LayerCache::reset() { state_->keep(0); }
void LayerCache::crop(std::int64_t count) try {
  if (count < 0 || count > length())
    throw Error(Status::invalid_argument, "model", "count", "", "is " + std::to_string(count),
                "0.." + std::to_string(length()), "the tokens held");
  state_->keep(length() - count);
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

}  // namespace dsakit
