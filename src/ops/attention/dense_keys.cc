// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <type_traits>

#include "ops/attention/dense_worker.hpp"

// The key and value rows of a chunk, from where they are to where the products want them.
namespace dsakit::attention::dense {
namespace {

template <class T>
const T* as(const std::byte* row) {
  return reinterpret_cast<const T*>(row);
}

/// Eight codes of a word, low bits first.
void unpack_int4(const std::byte* words, int n, std::int8_t* out) {
  const auto* x = as<std::uint8_t>(words);
  for (int i = 0; i < n / 2; ++i) {
    out[2 * i] = std::int8_t(std::int8_t(x[i] << 4) >> 4);
    out[2 * i + 1] = std::int8_t(std::int8_t(x[i]) >> 4);
  }
}

/// A row whose columns lie in blocks.
void join_blocks(const Cache& cache, const std::byte* row, int width, int element, std::byte* to) {
  for (int c = 0; c < width; c += cache.block)
    std::memcpy(to + c * element, row + c / cache.block * cache.block_stride * element,
                std::size_t(std::min(cache.block, width - c) * element));
}

/// NaN or infinity among n elements.
template <class T>
bool any_infinite(const T* x, int n) {
  using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint16_t>;
  constexpr Bits kExponent = std::is_same_v<T, float>  ? Bits(0x7f800000)
                             : std::is_same_v<T, bf16> ? Bits(0x7f80)
                                                       : Bits(0x7c00);
  Bits any = 0;
  for (int i = 0; i < n; ++i) {
    Bits bits;
    std::memcpy(&bits, x + i, sizeof bits);
    any |= Bits((bits & kExponent) == kExponent);
  }
  return any;
}

/// f(rows of their type from a column on, a panel of its type); bf16 and f16 may be widened.
template <class F>
void with_types(DType type, DType panels, const std::byte* const* rows, int count, std::ptrdiff_t column, std::byte* panel,
                F f) {
  const auto typed = [&]<class T, class To>() {
    f(static_cast<const T* const*>(Typed<T>(rows, count, column).row), reinterpret_cast<To*>(panel));
  };
  if (type == DType::i8) typed.template operator()<std::int8_t, std::int8_t>();
  else if (panels == DType::bf16) typed.template operator()<bf16, bf16>();
  else if (type == DType::bf16) typed.template operator()<bf16, float>();
  else if (type == DType::f16) typed.template operator()<f16, float>();
  else typed.template operator()<float, float>();
}

}  // namespace

/// Queries that lie in blocks of columns, that are int4, or that fp32 products need as they are meant, one after the
/// other in `to`; rows nobody sees are zeros.
void Worker::gather(const Cache& cache, int width, const ScaleOffset* keyed, const ScaleOffset& channels, std::byte* to,
                    const std::byte** rows) const {
  const std::size_t bytes = std::size_t(width * plan_.element);
  for (int j = 0; j < now_->count; ++j, to += bytes) {
    const std::byte* row = rows[j];
    rows[j] = to;
    if (!now_->whole && !now_->used[j]) {
      std::memset(to, 0, bytes);
      continue;
    }
    const bool widens = plan_.quantised && plan_.type == DType::f32;
    std::byte* straight = widens ? reinterpret_cast<std::byte*>(s_.code_row) : to;
    if (p_.kv_type == DType::i32) unpack_int4(row, width, reinterpret_cast<std::int8_t*>(straight)), row = straight;
    else if (cache.block) join_blocks(cache, row, width, plan_.stored_element, straight), row = straight;
    if (!widens) continue;
    const auto* codes = as<std::int8_t>(row);
    auto* out = reinterpret_cast<float*>(to);
    for (int d = 0; d < width; ++d)
      out[d] = keyed ? (float(codes[d]) + keyed->offset[j]) * keyed->scale[j]
                     : (float(codes[d]) + channels.offset[d]) * channels.scale[d];
  }
  std::fill(rows + now_->count, rows + kChunk, rows[now_->count - 1]);
}

/// What the tile sees of a chunk, and where that lies.
void Worker::locate(Visit<Queries> visit, Chunk& chunk) const {
  const Tile& tile = visit.queries->tile;
  chunk.apply_masks(p_, tile, visit.chunk);
  chunk.number = visit.chunk, chunk.owner = visit.queries;
  const auto rows = [&](const Cache& cache, int element, const std::byte** row) {
    find_rows(p_, cache, element, tile, chunk, row);
    std::fill(row + chunk.count, row + kChunk, row[chunk.count - 1]);
  };
  if (chunk.count == 0) return;
  rows(p_.key, plan_.stored_element, chunk.key), rows(p_.values, plan_.stored_element, chunk.value);
  if (p_.rope) rows(p_.key_rope, plan_.rope_element, chunk.rope);
}

/// What belongs to the keys of this chunk, and their rows where they cannot be used where they lie.
void Worker::fetch_keys() {
  const auto per_key = [&](const Parameter& scale, const Parameter& offset, const ScaleOffset& to) {
    if (scale.per_key) elements_of(p_, scale, tile_, *now_, to.scale), elements_of(p_, offset, tile_, *now_, to.offset);
  };
  per_key(p_.key_scale, p_.key_offset, s_.key), per_key(p_.value_scale, p_.value_offset, s_.value);
  const bool changed = plan_.type != p_.kv_type;
  const auto keyed = [](const Parameter& scale, const ScaleOffset& n) { return scale.per_key ? &n : nullptr; };
  if (changed || p_.key.block) gather(p_.key, p_.width, keyed(p_.key_scale, s_.key), q_->key, s_.keys, now_->key);
  if (changed || p_.values.block)
    gather(p_.values, p_.value, keyed(p_.value_scale, s_.value), q_->value, s_.values, now_->value);
  std::byte* to = s_.rope;
  for (int j = 0; p_.key_rope.block && j < now_->count; ++j, to += p_.rope * plan_.rope_element) {
    join_blocks(p_.key_rope, now_->rope[j], p_.rope, plan_.rope_element, to);
    now_->rope[j] = to;
  }
  if (now_->whole) return;
  for (int j = 0; j < now_->count; ++j)
    if (!now_->used[j]) now_->value[j] = s_.zeros;
}

/// A probability of 0 does not keep a NaN or an infinity away: which keys hold one that some row must not see? Where
/// values are in panels, a row of zeros times all of those from the first such key to the last says whether any does.
void Worker::find_hidden_infinities() {
  any_infinite_ = false;
  int first = now_->count, last = -1;
  for (int j = 0; j < now_->count; ++j) {
    infinite_[j] = false;
    if (now_->used[j] && !now_->shared[j]) first = std::min(first, j), last = j;
  }
  if (first > last) return;
  if (!gemv_values()) {
    alignas(64) static constexpr float kZeros[kChunk] = {};
    const bool pairs = plan_.products == Products::bf16;
    const int from = first / 2 * 2;  // where a pair begins
    float sum = 0;
    for (int c = 0; c < p_.value; c += kPanel) {
      float products[kPanel];
      multiply_panel({pairs ? reinterpret_cast<const bf16*>(kZeros) : nullptr, kZeros, kChunk}, 1, plan_.panels,
                     panels_->values[c / kPanel], from, last + 1 - from, kPanel, products, kPanel, false);
      sum += k_.sum(products, kPanel, 1);
    }
    if (sum == 0) return;
  }
  for (int j = first; j <= last; ++j) {
    if (!now_->used[j] || now_->shared[j]) continue;
    const std::byte* x = now_->value[j];
    infinite_[j] = plan_.type == DType::bf16  ? any_infinite(as<bf16>(x), p_.value)
                   : plan_.type == DType::f16 ? any_infinite(as<f16>(x), p_.value)
                                              : any_infinite(as<float>(x), p_.value);
    any_infinite_ = any_infinite_ || infinite_[j];
  }
}

/// What the products of this chunk want, unless a tile before has left it. Those that see most come first, and what they
/// see of the keys of others is in panels of its own. The first chunks, which most tiles see, have their places.
void Worker::make_panels() {
  const bool keys = !gemv_scores(), values = !gemv_values();
  panels_ = s_.panels + std::min<std::int64_t>(now_->number, plan_.held - 1);
  const bool all = keys && values && (now_->whole || !std::memchr(now_->used, 0, std::size_t(now_->count)));
  const ChunkPanels::Held wanted{tile_.b, tile_.g, now_->first, all ? now_->count : 0};
  if (is_held(wanted)) return;
  *panels_->held = wanted;
  for (int j = 0, i = 0; j < now_->count && (keys || p_.rope); j += kPanel, ++i) {
    const int count = std::min(kPanel, now_->count - j);
    if (keys) transpose(plan_.type, plan_.panels, now_->key + j, count, p_.width, panels_->keys[i]);
    if (p_.rope) transpose(p_.rope_type, plan_.rope_panels, now_->rope + j, count, p_.rope, panels_->rope[i]);
  }
  for (int c = 0; c < p_.value && values; c += kPanel)
    interleave(now_->value, c, std::min(kPanel, p_.value - c), panels_->values[c / kPanel]);
}

/// Whether its panels have these keys, or more: scores of others are columns nobody looks at, and their values are rows
/// behind the last one, unless that shares its group with the next, or codes have sums of all.
bool Worker::is_held(const ChunkPanels::Held& wanted) const {
  const ChunkPanels::Held& held = *panels_->held;
  if (wanted.count == 0 || held.b != wanted.b || held.g != wanted.g || held.first != wanted.first) return false;
  const bool cuts = plan_.panels == DType::f32 || (plan_.panels == DType::bf16 && wanted.count % 2 == 0);
  return held.count == wanted.count || (held.count > wanted.count && cuts);
}

void Worker::transpose(DType type, DType panels, const std::byte* const* rows, int count, int dims,
                       std::byte* panel) const {
  with_types(type, panels, rows, count, 0, panel, [&]<class T, class To>(const T* const* row, To* to) {
    if constexpr (std::is_same_v<To, std::int8_t>)
      k_.transpose(row, count, dims, to, Panels<To>::sums(to, dims, kPanel));
    else k_.transpose(row, count, dims, to);
  });
}

void Worker::interleave(const std::byte* const* rows, std::ptrdiff_t column, int columns, std::byte* panel) const {
  const int n = now_->count;
  with_types(plan_.type, plan_.panels, rows, n, column, panel, [&]<class T, class To>(const T* const* row, To* to) {
    if constexpr (std::is_same_v<To, std::int8_t>)
      k_.interleave(row, n, columns, to, Panels<To>::sums(to, kChunk, kPanel));
    else k_.interleave(row, n, columns, to);
  });
}

}  // namespace dsakit::attention::dense
