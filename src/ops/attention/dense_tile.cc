// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/dense_tile.hpp"

#include <cmath>
#include <cstring>
#include <limits>

#include "core/float16.hpp"
#include "kernels/pack.hpp"

namespace dsakit::attention::dense {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

/// A row whose chunk is decided by fewer keys than this (sum^2 / sum of squares) gets probabilities of 16 bits; among
/// more, the roundings to 8 bits of the documented form average out.
constexpr float kMany = 8;
constexpr float kTop = 32512;   // two codes: 127 * 256
constexpr float kFlat = 8;      // a row whose sum is larger than this times its largest has no peaks
constexpr float kPeak = 16;     // peaks are larger than this times the largest other
constexpr int kBlockRows = 24;  // rows whose values are summed over the same keys

Kept kept(DType type) { return type == DType::bf16 ? Kept::bf16 : type == DType::f16 ? Kept::f16 : Kept::f32; }

/// f(column, offset, scale) for each of n columns.
template <class F>
void with_columns(const Parameter& offset, const Parameter& scale, std::int64_t b, std::int64_t head, int n, F f) {
  constexpr int kSome = 128;
  float offsets[kSome], scales[kSome];
  for (int first = 0; first < n; first += kSome) {
    const int some = std::min(kSome, n - first);
    columns_of(offset, b, head, first, some, 0, offsets);
    columns_of(scale, b, head, first, some, 1, scales);
    for (int c = 0; c < some; ++c) f(first + c, offsets[c], scales[c]);
  }
}

/// First of n (a multiple of 16) elements whose absolute value is `most`; n: none.
int first_of(const float* x, int n, float most) {
  int at = 0;
  for (bool any = false; at < n; at += 16) {
    for (int i = 0; i < 16; ++i) any |= std::fabs(x[at + i]) == most;
    if (any) break;
  }
  while (at < n && std::fabs(x[at]) != most) ++at;
  return at;
}

}  // namespace

std::pair<float, float> Partial::rescale(int r, float later_most, float later_sum, float later_shift) const {
  const bool none_before = sum[r] == 0;
  const auto [mine, theirs] = take_in(most[r], sum[r], later_most, later_sum, none_before);
  shift[r] = none_before ? later_shift : shift[r] * mine + later_shift * theirs;
  return {mine, theirs};
}

// ---- scores -------------------------------------------------------------------------------------------------------

/// Scores of `count` keys from `first` on, for the rows that may see them.
void Worker::score(int first, int count) const {
  int from = tile_.queries, to = -1;
  for (int i = 0; i < tile_.queries; ++i)
    if (now_->seen[i].low < first + count && now_->seen[i].high > first) from = std::min(from, i), to = i;
  if (to < from) return;
  const int row = from * tile_.heads, rows = (to - from + 1) * tile_.heads;
  float* const c = s_.scores + row * kScorePitch + first;
  const auto* pairs = reinterpret_cast<const bf16*>(s_.panel);
  const auto* wide = reinterpret_cast<const float*>(s_.panel);

  const std::ptrdiff_t at = row * plan_.query_pitch;
  if (plan_.way == Way::codes) {
    const std::ptrdiff_t pitch = p_.rope ? kPanel : kScorePitch;
    float* const x = p_.rope ? s_.part : s_.scores + first;
    if (few_query()) {
      k_.gemv_dots(rows_->few_query, tile_.rows(), plan_.query_digits, now_->key + first, count, p_.width,
                     rows_->row_unit, x, pitch, now_->value + first, p_.value);
    } else {
      auto* codes = reinterpret_cast<std::int8_t*>(s_.panel);
      k_.transpose(Typed<std::int8_t>(now_->key + first, count, 0).row, count, p_.width, codes, s_.column_sums);
      k_.product(rows_->query_codes + at * plan_.query_digits, plan_.query_pitch, rows * plan_.query_digits, codes,
                    s_.column_sums, (p_.width + 3) / 4 * 4, s_.products, kPanel);
      join(row, rows, plan_.query_digits, count, rows_->row_unit, x, pitch);
    }
  } else if (few_query() && plan_.way == Way::pairs) {
    k_.gemv_dots(rows_->few_query, tile_.rows(), now_->key + first, count, p_.width, s_.scores + first, kScorePitch,
                     now_->value + first, p_.value);
  } else if (few_query()) {
    k_.gemv_dots(rows_->few_query, tile_.rows(), kept(plan_.type), now_->key + first, count, p_.width,
                     s_.scores + first, kScorePitch, now_->value + first, p_.value);
  } else {
    transpose(plan_.type, now_->key + first, count, p_.width);
    if (plan_.way == Way::pairs)
      k_.product(rows_->query_pairs + at, plan_.query_pitch, rows, pairs, p_.width, c, kScorePitch, false);
    else if (plan_.type == DType::bf16)
      k_.product(rows_->query_wide + at, plan_.query_pitch, rows, pairs, p_.width, c, kScorePitch, false);
    else k_.product(rows_->query_wide + at, plan_.query_pitch, rows, wide, p_.width, c, kScorePitch, false);
  }
  if (p_.rope) {
    transpose(p_.rope_type, now_->rope + first, count, p_.rope);
    const std::ptrdiff_t at = row * plan_.rope_pitch;
    const bool add = plan_.way != Way::codes;
    if (plan_.rope_pairs)
      k_.product(rows_->rope_pairs + at, plan_.rope_pitch, rows, pairs, p_.rope, c, kScorePitch, add);
    else if (p_.rope_type == DType::bf16)
      k_.product(rows_->rope_wide + at, plan_.rope_pitch, rows, pairs, p_.rope, c, kScorePitch, add);
    else k_.product(rows_->rope_wide + at, plan_.rope_pitch, rows, wide, p_.rope, c, kScorePitch, add);
  }
  if (plan_.way == Way::codes) combine(first, count, row, rows);
}

/// Products of codes to numbers: rows [row, row + rows) of x.
void Worker::join(int row, int rows, int digits, int count, const float* unit, float* x, std::ptrdiff_t pitch) const {
  const std::int32_t* products = s_.products;
  for (int r = row; r < row + rows; ++r, products += digits * kPanel)
    k_.join_codes(products, kPanel, count, digits, unit[r], x + r * pitch);
}

/// Dots of codes with their parameters, and with the rope dots where there are such (else the dots are in place).
void Worker::combine(int first, int count, int row, int rows) const {
  const float *scale = s_.key.scale + first, *offset = s_.key.offset + first;
  for (int r = row; r < row + rows; ++r) {
    float* c = s_.scores + r * kScorePitch + first;
    float* x = p_.rope ? s_.part + r * kPanel : c;
    if (p_.query_type == DType::i8) {
      const float factor = rows_->row_factor[r], key = rows_->key.scale[0];
      for (int j = 0; j < count && p_.rope; ++j) c[j] += x[j];
      for (int j = 0; j < count; ++j) c[j] = c[j] * factor * key;
      continue;
    }
    if (plan_.keyed_keys) {
      const float sum = rows_->row_sum[r];
      for (int j = 0; j < count; ++j) x[j] = (x[j] + sum * offset[j]) * scale[j];
    } else if (const float constant = rows_->row_constant[r]; constant != 0) {
      for (int j = 0; j < count; ++j) x[j] += constant;
    }
    for (int j = 0; j < count && p_.rope; ++j) c[j] += x[j];
  }
}

/// Scale, bias and mask, where softmax alone does not do; returns the scale that is left to softmax. NaN if the row
/// turns out to have only scores of minus infinity.
float Worker::scale_and_hide(int r, const Seen& seen) const {
  const int low = seen.low / 16 * 16;
  if (!p_.bias.data && !seen.hidden && seen.low == low) return p_.scale;
  float* x = s_.scores + r * kScorePitch;
  for (int j = seen.low; j < seen.high; ++j) x[j] *= p_.scale;
  if (p_.bias.data) {
    const std::ptrdiff_t at = p_.bias.sequence * tile_.b + p_.bias.token * (tile_.first + r / tile_.heads) +
                              p_.bias.head * tile_.query_head(p_, r % tile_.heads) + now_->first;
    const auto add = [&](const auto* bias) {
      for (int j = seen.low; j < seen.high; ++j) x[j] += to_float(bias[j]);
    };
    if (p_.query_type == DType::bf16) add(static_cast<const bf16*>(p_.bias.data) + at);
    else if (p_.query_type == DType::f16) add(static_cast<const f16*>(p_.bias.data) + at);
    else add(static_cast<const float*>(p_.bias.data) + at);
  }
  std::fill(x + low, x + seen.low, -kInfinity);
  if (seen.hidden)
    for (int j = seen.low; j < seen.high; ++j)
      if (seen.hidden[j]) x[j] = -kInfinity;
  const bool none = p_.bias.data && std::all_of(x + low, x + seen.high, [](float v) { return v == -kInfinity; });
  return none ? kNaN : 1;
}

// ---- probabilities ------------------------------------------------------------------------------------------------

void Worker::soften(const Partial& all) {
  n_few_ = 0;
  const int padded = (now_->count + 15) / 16 * 16;
  for (int r = 0; r < tile_.rows(); ++r) {
    const Seen& seen = now_->seen[r / tile_.heads];
    float *x = s_.scores + r * kScorePitch, most = 0;
    const int low = seen.low / 16 * 16;
    const float scale = seen.any() ? scale_and_hide(r, seen) : kNaN;
    if (scale != scale) {  // nothing to see here
      std::fill_n(x, padded, 0.0f);
      weigh(r, {0, 0, nullptr}, 0);
      weight_[r] = {1, 0};
      continue;
    }
    const float sum = k_.softmax(x + low, seen.high - low, scale, &most);
    std::fill_n(x, low, 0.0f), std::fill(x + seen.high, x + padded, 0.0f);
    float shift = 0;
    if (plan_.keyed_values) {
      std::fill(x + low, x + seen.low, 0.0f);
      for (int j = seen.low; j < seen.high; ++j) x[j] *= s_.value.scale[j];
      if (seen.hidden)
        for (int j = seen.low; j < seen.high; ++j)
          if (seen.hidden[j]) x[j] = 0;
      double offsets = 0;
      for (int j = seen.low; j < seen.high && p_.value_offset.data; ++j)
        if (!seen.hidden || !seen.hidden[j]) offsets += double(x[j]) * s_.value.offset[j];
      shift = float(offsets);
    }
    if (plan_.way == Way::pairs && sum * sum < kMany * k_.sum_squares(x + low, seen.high - low, 1)) few_[n_few_++] = r;
    weigh(r, seen, sum);
    weight_[r] = all.rescale(r, most, sum, shift);
  }
}

/// Probabilities (times scales) as the products want them; `sum` of the probabilities.
void Worker::weigh(int r, const Seen& seen, float sum) {
  float* x = s_.scores + r * kScorePitch;
  const int padded = (now_->count + 15) / 16 * 16;
  if (plan_.way == Way::pairs) {
    bf16* high = s_.high + r * kScorePitch;
    if (seen.any() && n_few_ > 0 && few_[n_few_ - 1] == r)
      k_.multiply_split(x, nullptr, padded, high, s_.low + (n_few_ - 1) * kScorePitch);
    else k_.multiply_round(x, nullptr, padded, high);
  } else if (plan_.way == Way::codes) {
    std::uint8_t* codes = s_.weight_codes + std::ptrdiff_t(r) * plan_.weight_digits * kScorePitch;
    float largest = sum > 0 ? 1 : 0;  // the largest probability is exp(0)
    if (plan_.keyed_values) largest = k_.max_abs(x, padded), sum = k_.sum(x, padded, 1);
    const float most = std::max(take_peaks(r, x, padded, sum, largest), 0x1p-100f);
    const float top = plan_.weight_digits == 2 ? kTop : 0x1p21f;
    k_.split_codes(x, padded, top / most, plan_.weight_digits, codes, kScorePitch);
    weight_unit_[r] = std::isfinite(sum) ? most / top : kNaN;
  }
}

/// Codes share a unit, so one key that stands out (an attention sink) would leave few bits to the others, which may
/// decide the sum: few such keys become zeros here and are added in fp32. Returns the largest of the others.
float Worker::take_peaks(int r, float* x, int count, float sum, float most) {
  Peak* peak = peak_[r];
  float top[kPeaks + 1] = {most};
  int n = 0;
  for (float rest = sum; n < kPeaks && top[n] > 0 && rest < kFlat * top[n]; ++n) {
    const int key = first_of(x, count, top[n]);
    if (key == count) break;  // NaN
    peak[n] = {key, x[key]};
    rest -= x[key], x[key] = 0;
    top[n + 1] = k_.max_abs(x, count);
  }
  int peaks = n;
  while (peaks > 0 && top[peaks - 1] <= kPeak * top[peaks]) --peaks;
  for (int i = peaks; i < n; ++i) x[peak[i].key] = peak[i].weight;
  peaks_[r] = peaks;
  return top[peaks];
}

// ---- values -------------------------------------------------------------------------------------------------------

/// part = probabilities x values of some columns, for rows that need no key outside [low, high).
void Worker::multiply(int row, int rows, int low, int high, int few, int n_few) const {
  const std::ptrdiff_t at = row * kScorePitch + low;
  float* const part = s_.part + row * kPanel;
  const auto* pairs = reinterpret_cast<const bf16*>(s_.panel) + std::ptrdiff_t(low) * kPanel;
  const auto* wide = reinterpret_cast<const float*>(s_.panel) + std::ptrdiff_t(low) * kPanel;
  if (plan_.way == Way::codes) {
    k_.product(s_.weight_codes + at * plan_.weight_digits, kScorePitch, rows * plan_.weight_digits,
                  reinterpret_cast<const std::int8_t*>(s_.panel), s_.column_sums, (high + 3) / 4 * 4, s_.products,
                  kPanel);
    join(row, rows, plan_.weight_digits, kPanel, weight_unit_, s_.part, kPanel);
  } else if (plan_.way == Way::pairs) {
    k_.product(s_.high + at, kScorePitch, rows, pairs, high - low, part, kPanel, false);
    if (n_few == 0) return;
    k_.product(s_.low + few * kScorePitch + low, kScorePitch, n_few, pairs, high - low, s_.part_low, kPanel,
                    false);
    add_low(few, n_few);
  } else if (plan_.type == DType::bf16) {
    k_.product(s_.scores + at, kScorePitch, rows, pairs, high - low, part, kPanel, false);
  } else {
    k_.product(s_.scores + at, kScorePitch, rows, wide, high - low, part, kPanel, false);
  }
}

/// The lower halves of probabilities that are split in two.
void Worker::add_low(int few, int n_few) const {
  for (int i = 0; i < n_few; ++i)
    for (int c = 0; c < kPanel; ++c) s_.part[few_[few + i] * kPanel + c] += s_.part_low[i * kPanel + c];
}

/// For a row that must not see an infinity: without the keys that are hidden from it.
void Worker::multiply_apart(int r, int column, int columns) {
  const std::byte* own[kChunk];
  const Seen& seen = now_->seen[r / tile_.heads];
  for (int j = 0; j < now_->count; ++j) own[j] = seen.sees(j) ? now_->value[j] : s_.zeros;
  interleave(own, column, columns);
  int few = 0;
  while (few < n_few_ && few_[few] < r) ++few;
  multiply(r, 1, 0, now_->count, few, few < n_few_ && few_[few] == r ? 1 : 0);
}

void Worker::add_peaks(int column, int columns) const {
  if (plan_.way != Way::codes) return;
  for (int r = 0; r < tile_.rows(); ++r)
    for (int i = 0; i < peaks_[r]; ++i) {
      const auto [key, weight] = peak_[r][i];
      const auto* value = reinterpret_cast<const std::int8_t*>(now_->value[key]) + column;
      for (int c = 0; c < columns; ++c) s_.part[r * kPanel + c] += weight * float(value[c]);
    }
}

void Worker::multiply_values(int column, int columns) {
  const int rows = tile_.rows();
  if (few_weights()) {
    const std::byte* const* later = next_->count ? next_->key : now_->value;
    if (plan_.way == Way::codes) {
      k_.gemv_sums(s_.weight_codes, kScorePitch, rows * plan_.weight_digits, now_->value, now_->count, column,
                     columns, s_.products, later);
      join(0, rows, plan_.weight_digits, kPanel, weight_unit_, s_.part, kPanel);
      return add_peaks(column, columns);
    }
    if (plan_.way == Way::wide)
      return k_.gemv_sums(s_.scores, kScorePitch, rows, kept(plan_.type), now_->value, now_->count, column, columns,
                              s_.part, later);
    k_.gemv_sums(s_.high, kScorePitch, rows, now_->value, now_->count, column, columns, s_.part, later);
    if (n_few_ == 0) return;
    k_.gemv_sums(s_.low, kScorePitch, n_few_, now_->value, now_->count, column, columns, s_.part_low, now_->value);
    return add_low(0, n_few_);
  }
  interleave(now_->value, column, columns);
  if (now_->whole || plan_.way == Way::codes) {
    multiply(0, rows, 0, now_->count, 0, n_few_);
    return add_peaks(column, columns);
  }
  for (int r = 0, few = 0; r < rows; r += kBlockRows) {
    const int end = std::min(r + kBlockRows, rows);
    int low = now_->count, high = 0, next = few;
    for (int i = r / tile_.heads; i <= (end - 1) / tile_.heads; ++i)
      if (const Seen& seen = now_->seen[i]; seen.any())
        low = std::min(low, seen.low / 16 * 16), high = std::max(high, seen.high);
    while (next < n_few_ && few_[next] < end) ++next;
    if (low < high) multiply(r, end - r, low, high, few, next - few);
    few = next;
  }
  if (!any_infinite_) return;
  for (int r = 0; r < rows; ++r) {
    const Seen& seen = now_->seen[r / tile_.heads];
    bool apart = false;
    for (int j = 0; j < now_->count && seen.any(); ++j) apart = apart || (infinite_[j] && !seen.sees(j));
    if (apart) multiply_apart(r, column, columns);
  }
}

// ---- all of it ----------------------------------------------------------------------------------------------------

void Worker::attend(Visit visit, Visit later, const Partial& all) {
  rows_ = visit.rows, tile_ = rows_->tile;
  std::swap(now_, next_);
  if (now_->number != visit.chunk || now_->owner != rows_) find(visit, *now_);
  if (now_->count == 0) return;
  fetch_keys();
  next_->number = -1, next_->count = 0;
  if (few_query()) {  // their kernels ask for what comes next
    if (later.chunk >= 0) find(later, *next_);
    const int step = p_.rope ? kPanel : kChunk;
    for (int j = 0; j < now_->count; j += step) score(j, std::min(step, now_->count - j));
  } else {
    for (int j = 0; j < now_->count; j += kPanel) {
      ask_for(now_->key, j + kPanel, p_.width);
      if (j + kPanel >= now_->count) ask_for(now_->value, 0, p_.value);
      score(j, std::min(kPanel, now_->count - j));
    }
  }
  soften(all);
  for (int c = 0; c < p_.value; c += kPanel) {
    const int columns = std::min(kPanel, p_.value - c);
    multiply_values(c, columns);
    for (int r = 0; r < tile_.rows(); ++r)
      if (const auto [mine, theirs] = weight_[r]; theirs != 0 || mine != 1)
        k_.blend(s_.part + r * kPanel, 1, theirs, columns, mine, all.values + r * plan_.value_pitch + c);
  }
}

void Worker::merge(const Partial& all, const Partial& chunk, int r) const {
  if (chunk.sum[r] == 0) return;
  const auto [mine, theirs] = all.rescale(r, chunk.most[r], chunk.sum[r], chunk.shift[r]);
  if (theirs == 0 && mine == 1) return;
  const std::ptrdiff_t row = r * plan_.value_pitch;
  k_.blend(chunk.values + row, 1, theirs, p_.value, mine, all.values + row);
}

void Worker::finish(const Tile& tile, const Partial& all, int r) const {
  const Sequence& s = p_.sequence[tile.b];
  const std::int64_t query = tile.first + r / tile.heads, head = tile.query_head(p_, r % tile.heads);
  float* o = all.values + r * plan_.value_pitch;
  const float sum = all.sum[r];
  if (p_.lse.data)
    *address<float>(p_.lse, s, tile.b, query, head) = sum != 0      ? all.most[r] + std::log(sum)
                                                      : s.keys == 0 ? p_.lse_of_no_keys
                                                                    : kInfinity;
  if (sum == 0) {
    std::fill_n(o, p_.value, 0.0f);
  } else if (plan_.keyed_values) {
    for (int c = 0; c < p_.value; ++c) o[c] = (o[c] + all.shift[r]) / sum;
  } else {
    for (int c = 0; c < p_.value; ++c) o[c] /= sum;
    if (plan_.way == Way::codes)
      with_columns(p_.value_offset, p_.value_scale, tile.b, tile.g, p_.value,
                   [&](int c, float offset, float scale) { o[c] = (o[c] + offset) * scale; });
  }
  switch (p_.out_type) {
    case DType::bf16:
      return k_.round(o, p_.value, address<bf16>(p_.out, s, tile.b, query, head));
    case DType::f16: {
      f16* out = address<f16>(p_.out, s, tile.b, query, head);
      for (int c = 0; c < p_.value; ++c) out[c] = to_f16(o[c]);
      return;
    }
    case DType::i8: {
      std::int8_t* out = address<std::int8_t>(p_.out, s, tile.b, query, head);
      with_columns(p_.out_offset, p_.out_scale, 0, head, p_.value,
                   [&](int c, float offset, float scale) { o[c] = o[c] * scale + offset; });
      return k_.quantize(o, p_.value, 1, out);
    }
    default:
      std::memcpy(address<float>(p_.out, s, tile.b, query, head), o, sizeof(float) * std::size_t(p_.value));
  }
}

}  // namespace dsakit::attention::dense
