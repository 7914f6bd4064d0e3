// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstring>
#include <limits>

#include "ops/attention/dense_tile.hpp"

// The rows of a tile and of a chunk, from where they are to where the products want them.
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
void straighten(const Cache& cache, const std::byte* row, int width, int element, std::byte* to) {
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

}  // namespace

void Worker::load(const Tile& tile, Rows& rows) {
  rows.tile = tile_ = tile;
  rows_ = &rows;
  std::memset(s_.zeros, 0, std::size_t(p_.value * plan_.element));
  const auto numbers = [&](const Parameter& scale, const Parameter& offset, int width, const Numbers& to) {
    if (scale.per_key) return;
    columns_of(scale, tile.b, tile.g, 0, width, 1, to.scale);
    columns_of(offset, tile.b, tile.g, 0, width, 0, to.offset);
  };
  if (plan_.quantised) {
    numbers(p_.key_scale, p_.key_offset, p_.width, rows.key);
    numbers(p_.value_scale, p_.value_offset, p_.value, rows.value);
  }
  for (int i = 0, r = 0; i < tile.queries; ++i)
    for (int h = 0; h < tile.heads; ++h, ++r) load_row(r, tile.first + i, tile.query_head(p_, h));
  if (few_query()) arrange_query();
  now_->number = next_->number = -1;
}

bool Worker::few_query() const {
  return plan_.way == Way::codes ? tile_.rows() * plan_.query_digits <= k_.gemv_rows
                                 : tile_.rows() <= k_.gemv_rows && p_.width <= kSumBlock;
}

bool Worker::few_weights() const {
  return plan_.way == Way::codes ? tile_.rows() * plan_.weight_digits <= k_.gemv_rows : tile_.rows() <= k_.gemv_rows && now_->whole;
}

/// Rows, which are padded, to the words that gemv_dots wants.
void Worker::arrange_query() const {
  const bool codes = plan_.way == Way::codes;
  const int rows = tile_.rows() * (codes ? plan_.query_digits : 1), bytes = (p_.width * plan_.element + 31) / 32 * 32;
  const int words = plan_.way == Way::wide ? bytes / plan_.element : bytes / 4;
  for (int r = 0; r < rows; ++r) {
    const std::ptrdiff_t at = r * plan_.query_pitch;
    const void* const row = codes                     ? static_cast<const void*>(rows_->query_codes + at)
                            : plan_.way == Way::pairs ? static_cast<const void*>(rows_->query_pairs + at)
                                                      : rows_->query_wide + at;
    std::int32_t sum = 0, *word = rows_->few_query + r;
    for (int i = 0; i < bytes && codes; ++i) sum += static_cast<const std::uint8_t*>(row)[i] - 128;
    *word = -128 * sum;
    for (int i = 0; i < words; ++i) {
      std::uint32_t x;
      std::memcpy(&x, static_cast<const std::byte*>(row) + 4 * i, 4);
      *(word += rows) = std::int32_t(codes ? x ^ 0x80808080u : x);
    }
  }
}

void Worker::load_row(int r, std::int64_t query, std::int64_t head) {
  const Sequence& s = p_.sequence[tile_.b];
  const auto widen = [&](DType type, const Grid& g, int width, float* out) {
    if (type == DType::bf16) k_.widen(address<const bf16>(g, s, tile_.b, query, head), width, out);
    else if (type == DType::f16) k_.widen(address<const f16>(g, s, tile_.b, query, head), width, out);
    else std::memcpy(out, address<const float>(g, s, tile_.b, query, head), sizeof(float) * std::size_t(width));
  };
  if (plan_.way == Way::pairs) {
    bf16* row = rows_->query_pairs + r * plan_.query_pitch;
    std::copy_n(address<const bf16>(p_.query, s, tile_.b, query, head), p_.width, row);
    std::fill(row + p_.width, row + plan_.query_pitch, bf16{});
  } else if (p_.query_type == DType::i8) {
    const auto* x = address<const std::uint8_t>(p_.query, s, tile_.b, query, head);
    std::uint8_t* codes = rows_->query_codes + r * plan_.query_pitch;
    for (int d = 0; d < p_.width; ++d) codes[d] = x[d] ^ 0x80;
    std::memset(codes + p_.width, 128, std::size_t(plan_.query_pitch - p_.width));
    rows_->row_unit[r] = 1;
    rows_->row_factor[r] = *address<const float>(p_.query_scale, s, tile_.b, query, head);
  } else {
    float* row = rows_->query_wide + (plan_.way == Way::wide ? r * plan_.query_pitch : 0);
    widen(p_.query_type, p_.query, p_.width, row);
    if (plan_.way == Way::wide) std::fill(row + p_.width, row + plan_.query_pitch, 0.0f);
    if (plan_.way == Way::codes) split_query(row, r);
  }
  if (p_.rope == 0) return;
  if (plan_.rope_pairs)
    std::memcpy(rows_->rope_pairs + r * plan_.rope_pitch, address<const bf16>(p_.query_rope, s, tile_.b, query, head),
                sizeof(bf16) * std::size_t(p_.rope));
  else widen(p_.rope_type, p_.query_rope, p_.rope, rows_->rope_wide + r * plan_.rope_pitch);
}

/// q . ((k + offset) * scale): a scale per channel, or one for all, goes into the query, and its offset adds a
/// constant to all scores of the row. What a key has for itself comes after the dot, the offset times the sum of q.
void Worker::split_query(float* q, int r) const {
  rows_->row_sum[r] = k_.sum(q, p_.width, 1);
  double constant = 0;
  if (!plan_.keyed_keys)
    for (int d = 0; d < p_.width; ++d) {
      q[d] *= rows_->key.scale[d];
      constant += double(q[d]) * rows_->key.offset[d];
    }
  rows_->row_constant[r] = float(constant);
  bool finite = true;
  for (int d = 0; d < p_.width; ++d) finite = finite && std::isfinite(q[d]);
  int exponent = 0;
  std::frexp(k_.max_abs(q, p_.width), &exponent);
  exponent = finite ? std::max(exponent, -100) : 0;
  std::uint8_t* codes = rows_->query_codes + std::ptrdiff_t(r) * plan_.query_digits * plan_.query_pitch;
  k_.split_codes(q, p_.width, std::ldexp(1.0f, 21 - exponent), plan_.query_digits, codes, plan_.query_pitch);
  for (int i = 0; i < plan_.query_digits; ++i)
    std::memset(codes + i * plan_.query_pitch + p_.width, 128, std::size_t(plan_.query_pitch - p_.width));
  rows_->row_unit[r] = finite ? std::ldexp(1.0f, exponent - 21) : std::numeric_limits<float>::quiet_NaN();
}

// ---- key rows -----------------------------------------------------------------------------------------------------

/// Rows that lie in blocks of columns, that are int4, or that fp32 products need as they are meant, one after the other
/// in `to`; rows nobody sees are zeros.
void Worker::gather(const Cache& cache, int width, const Numbers* keyed, const Numbers& channels, std::byte* to,
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
    else if (cache.block) straighten(cache, row, width, plan_.stored_element, straight), row = straight;
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
void Worker::find(Visit visit, Chunk& chunk) const {
  const Tile& tile = visit.rows->tile;
  chunk.look(p_, tile, visit.chunk);
  chunk.number = visit.chunk, chunk.owner = visit.rows;
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
  const auto numbers = [&](const Parameter& scale, const Parameter& offset, const Numbers& to) {
    if (scale.per_key) elements_of(p_, scale, tile_, *now_, to.scale), elements_of(p_, offset, tile_, *now_, to.offset);
  };
  numbers(p_.key_scale, p_.key_offset, s_.key), numbers(p_.value_scale, p_.value_offset, s_.value);
  const bool changed = plan_.type != p_.kv_type;
  const auto keyed = [](const Parameter& scale, const Numbers& n) { return scale.per_key ? &n : nullptr; };
  if (changed || p_.key.block) gather(p_.key, p_.width, keyed(p_.key_scale, s_.key), rows_->key, s_.keys, now_->key);
  if (changed || p_.values.block)
    gather(p_.values, p_.value, keyed(p_.value_scale, s_.value), rows_->value, s_.values, now_->value);
  std::byte* to = s_.rope;
  for (int j = 0; p_.key_rope.block && j < now_->count; ++j, to += p_.rope * plan_.rope_element) {
    straighten(p_.key_rope, now_->rope[j], p_.rope, plan_.rope_element, to);
    now_->rope[j] = to;
  }
  if (now_->whole) return;
  for (int j = 0; j < now_->count; ++j)
    if (!now_->used[j]) now_->value[j] = s_.zeros;
  if (plan_.way != Way::codes) find_unseen_infinities();
}

/// A probability of 0 does not keep a NaN or an infinity away: which keys hold one that some row must not see?
void Worker::find_unseen_infinities() {
  any_infinite_ = false;
  for (int j = 0; j < now_->count; ++j) {
    infinite_[j] = false;
    if (!now_->used[j] || now_->shared[j]) continue;
    const std::byte* x = now_->value[j];
    infinite_[j] = plan_.type == DType::bf16  ? any_infinite(as<bf16>(x), p_.value)
                   : plan_.type == DType::f16 ? any_infinite(as<f16>(x), p_.value)
                                              : any_infinite(as<float>(x), p_.value);
    any_infinite_ = any_infinite_ || infinite_[j];
  }
}

void Worker::transpose(DType type, const std::byte* const* rows, int count, int dims) const {
  auto* wide = reinterpret_cast<float*>(s_.panel);
  if (type == DType::bf16)
    k_.transpose(Typed<bf16>(rows, count, 0).row, count, dims, reinterpret_cast<bf16*>(s_.panel));
  else if (type == DType::f16) k_.transpose(Typed<f16>(rows, count, 0).row, count, dims, wide);
  else k_.transpose(Typed<float>(rows, count, 0).row, count, dims, wide);
}

void Worker::interleave(const std::byte* const* rows, std::ptrdiff_t column, int columns) const {
  const int n = now_->count;
  auto* wide = reinterpret_cast<float*>(s_.panel);
  if (plan_.type == DType::bf16)
    k_.interleave(Typed<bf16>(rows, n, column).row, n, columns, reinterpret_cast<bf16*>(s_.panel));
  else if (plan_.type == DType::f16) k_.interleave(Typed<f16>(rows, n, column).row, n, columns, wide);
  else if (plan_.type == DType::f32) k_.interleave(Typed<float>(rows, n, column).row, n, columns, wide);
  else
    k_.interleave(Typed<std::int8_t>(rows, n, column).row, n, columns, reinterpret_cast<std::int8_t*>(s_.panel),
                        s_.column_sums);
}

/// The kernels ask for what lies a few rows ahead in a panel; these are rows from `first` on that come next.
void Worker::ask_for(const std::byte* const* rows, int first, int columns) const {
  for (int j = first; j < std::min(first + kAhead, now_->count); ++j)
    for (int c = 0; c < columns * plan_.element; c += 64) __builtin_prefetch(rows[j] + c);
}

}  // namespace dsakit::attention::dense
