// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstring>
#include <limits>

#include "ops/attention/dense_worker.hpp"

// The query rows of a tile, as the products want them.
namespace dsakit::attention::dense {

void Worker::load(const Tile& tile, Queries& queries) {
  queries.tile = tile_ = tile;
  q_ = &queries;
  std::memset(s_.zeros, 0, std::size_t(p_.value * plan_.element));
  const auto channels = [&](const Parameter& scale, const Parameter& offset, int width, const ScaleOffset& to) {
    if (scale.per_key) return;
    columns_of(scale, tile.b, tile.g, 0, width, 1, to.scale);
    columns_of(offset, tile.b, tile.g, 0, width, 0, to.offset);
  };
  if (plan_.quantised) {
    channels(p_.key_scale, p_.key_offset, p_.width, queries.key);
    channels(p_.value_scale, p_.value_offset, p_.value, queries.value);
  }
  for (int i = 0, r = 0; i < tile.queries; ++i)
    for (int h = 0; h < tile.heads; ++h, ++r) load_row(r, tile.first + i, tile.query_head(p_, h));
  if (gemv_scores()) arrange_gemv_query();
  now_->number = next_->number = -1;
}

/// Rows, which are padded, as a GemvQuery. Its codes are signed.
void Worker::arrange_gemv_query() const {
  const bool codes = plan_.products == Products::int8;
  const int rows = tile_.rows() * (codes ? plan_.query_digits : 1), words = plan_.gemv_words;
  constexpr std::uint32_t kBias = 0x01010101u * kCodeBias;
  for (int r = 0; r < rows; ++r) {
    const std::ptrdiff_t at = r * plan_.query_pitch;
    const void* const row = codes                              ? static_cast<const void*>(q_->digits + at)
                            : plan_.products == Products::bf16 ? static_cast<const void*>(q_->rows_bf16 + at)
                                                               : q_->rows_f32 + at;
    std::int32_t sum = 0;
    for (int i = 0; i < 4 * words && codes; ++i) sum += static_cast<const std::uint8_t*>(row)[i] - kCodeBias;
    q_->gemv[GemvQuery::start(r)] = -kCodeBias * sum;
    for (int i = 0; i < words; ++i) {
      std::uint32_t x;
      std::memcpy(&x, static_cast<const std::byte*>(row) + 4 * i, 4);
      q_->gemv[GemvQuery::at(rows, r, i)] = std::int32_t(codes ? x ^ kBias : x);
    }
  }
}

void Worker::load_row(int r, std::int64_t query, std::int64_t head) const {
  prefetch_row<false>(p_.query, p_.query_type, p_.width, tile_, r + kRowsAhead);
  const Sequence& s = p_.sequence[tile_.b];
  const auto widen = [&](DType type, const Grid& g, int width, float* out) {
    if (type == DType::bf16) k_.widen(address<const bf16>(g, s, tile_.b, query, head), width, out);
    else if (type == DType::f16) k_.widen(address<const f16>(g, s, tile_.b, query, head), width, out);
    else std::memcpy(out, address<const float>(g, s, tile_.b, query, head), sizeof(float) * std::size_t(width));
  };
  if (plan_.products == Products::bf16) {
    bf16* row = q_->rows_bf16 + r * plan_.query_pitch;
    std::copy_n(address<const bf16>(p_.query, s, tile_.b, query, head), p_.width, row);
    std::fill(row + p_.width, row + plan_.query_pitch, bf16{});
  } else if (p_.query_type == DType::i8) {
    const auto* x = address<const std::uint8_t>(p_.query, s, tile_.b, query, head);
    std::uint8_t* codes = q_->digits + r * plan_.query_pitch;
    for (int d = 0; d < p_.width; ++d) codes[d] = x[d] ^ kCodeBias;
    std::memset(codes + p_.width, kCodeBias, std::size_t(plan_.query_pitch - p_.width));
    q_->row_unit[r] = 1;
    q_->row_factor[r] = *address<const float>(p_.query_scale, s, tile_.b, query, head);
  } else {
    const bool codes = plan_.products == Products::int8;
    float* row = q_->rows_f32 + (codes ? 0 : r * plan_.query_pitch);
    widen(p_.query_type, p_.query, p_.width, row);
    if (codes) split_query(row, r);
    else std::fill(row + p_.width, row + plan_.query_pitch, 0.0f);
  }
  if (p_.rope == 0) return;
  if (plan_.rope_bf16)
    std::memcpy(q_->rope_bf16 + r * plan_.rope_pitch, address<const bf16>(p_.query_rope, s, tile_.b, query, head),
                sizeof(bf16) * std::size_t(p_.rope));
  else widen(p_.rope_type, p_.query_rope, p_.rope, q_->rope_f32 + r * plan_.rope_pitch);
}

/// q . ((k + offset) * scale): a scale per channel, or one for all, goes into the query, and its offset adds a
/// constant to all scores of the row. What a key has for itself comes after the dot, the offset times the sum of q.
void Worker::split_query(float* q, int r) const {
  q_->row_sum[r] = k_.sum(q, p_.width, 1);
  double constant = 0;
  if (!plan_.keyed_keys)
    for (int d = 0; d < p_.width; ++d) {
      q[d] *= q_->key.scale[d];
      constant += double(q[d]) * q_->key.offset[d];
    }
  q_->row_constant[r] = float(constant);
  bool finite = true;
  for (int d = 0; d < p_.width; ++d) finite = finite && std::isfinite(q[d]);
  int exponent = 0;
  std::frexp(k_.max_abs(q, p_.width), &exponent);
  exponent = finite ? std::max(exponent, -100) : 0;
  std::uint8_t* codes = q_->digits + std::ptrdiff_t(r) * plan_.query_digits * plan_.query_pitch;
  k_.split_codes(q, p_.width, std::ldexp(1.0f, 21 - exponent), plan_.query_digits, codes, plan_.query_pitch);
  for (int i = 0; i < plan_.query_digits; ++i)
    std::memset(codes + i * plan_.query_pitch + p_.width, kCodeBias, std::size_t(plan_.query_pitch - p_.width));
  q_->row_unit[r] = finite ? std::ldexp(1.0f, exponent - 21) : std::numeric_limits<float>::quiet_NaN();
}

}  // namespace dsakit::attention::dense
