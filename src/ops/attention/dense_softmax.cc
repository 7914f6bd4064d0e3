// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>

#include "core/float16.hpp"
#include "ops/attention/dense_worker.hpp"

// Online softmax over a chunk: scores to probabilities, as the products with values want them.
namespace dsakit::attention::dense {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

constexpr float kTop = 32512;        // two digits: 127 * 256
constexpr int kCodeOutliers = 4;     // of a row, at most
constexpr float kFlat = 8;           // a row whose sum is larger than this times its largest has no outliers
constexpr float kOutlierRatio = 16;  // outliers are larger than this times the largest other

/// First of n (a multiple of kLanes) elements whose absolute value is `max`; n: none.
int first_of(const float* x, int n, float max) {
  int at = 0;
  for (bool any = false; at < n; at += kLanes) {
    for (int i = 0; i < kLanes; ++i) any |= std::fabs(x[at + i]) == max;
    if (any) break;
  }
  while (at < n && std::fabs(x[at]) != max) ++at;
  return at;
}

}  // namespace

/// Scale, bias and mask, where softmax alone does not do; returns the scale that is left to softmax. NaN if the row
/// turns out to have only scores of minus infinity.
float Worker::scale_and_mask(int r, const Visible& visible) const {
  const int low = lanes_below(visible.low);
  if (!p_.bias.data && !visible.hidden && visible.low == low) return p_.scale;
  float* x = scores(r);
  for (int j = visible.low; j < visible.high; ++j) x[j] *= p_.scale;
  if (p_.bias.data) {
    const std::ptrdiff_t at = p_.bias.sequence * tile_.b + p_.bias.token * (tile_.first + r / tile_.heads) +
                              p_.bias.head * tile_.query_head(p_, r % tile_.heads) + now_->first;
    const auto add = [&](const auto* bias) {
      for (int j = visible.low; j < visible.high; ++j) x[j] += to_float(bias[j]);
    };
    if (p_.query_type == DType::bf16) add(static_cast<const bf16*>(p_.bias.data) + at);
    else if (p_.query_type == DType::f16) add(static_cast<const f16*>(p_.bias.data) + at);
    else add(static_cast<const float*>(p_.bias.data) + at);
  }
  std::fill(x + low, x + visible.low, -kInfinity);
  if (visible.hidden)
    for (int j = visible.low; j < visible.high; ++j)
      if (visible.hidden[j]) x[j] = -kInfinity;
  const bool none = p_.bias.data && std::all_of(x + low, x + visible.high, [](float v) { return v == -kInfinity; });
  return none ? kNaN : 1;
}

std::int64_t Worker::tap_row(const Tile& tile, int r) const {
  std::int64_t query = tile.first + r / tile.heads;
  for (std::int64_t b = 0; b < tile.b; ++b) query += p_.sequence[b].queries;
  return query * p_.kv_heads * p_.group + tile.query_head(p_, r % tile.heads);
}

void Worker::show_scores(int r, const Visible& visible, float scale) const {
  for (int j = visible.low; j < visible.high; ++j) {
    if (visible.hidden && visible.hidden[j]) continue;
    const float score = scores(r)[j] * scale;
    plan_.taps->row("1.scores", DType::f32, tap_row(tile_, r), now_->first + j, 1, &score);
  }
}

void Worker::softmax(const Partial& all) {
  const int padded = lanes_above(now_->count);
  SoftmaxRow row[kBlockRows], *end = row;  // of those that see something
  for (int r = block_.first; r < block_.end; ++r) {
    const Visible& visible = now_->visible[r / tile_.heads];
    const int low = lanes_below(visible.low);
    const float scale = visible.any() ? scale_and_mask(r, visible) : kNaN;
    rescale_[r] = {1, 0};
    if (scale != scale) continue;
    if (plan_.taps) show_scores(r, visible, scale);
    *end++ = {scores(r) + low, visible.high - low, scale, 0, 0};
  }
  k_.softmax(row, int(end - row));
  const SoftmaxRow* next = row;
  for (int r = block_.first; r < block_.end; ++r) {
    const Visible& visible = now_->visible[r / tile_.heads];
    float* const x = scores(r);
    const int low = lanes_below(visible.low);
    if (next == end || next->x != x + low) {  // nothing to see here
      std::fill_n(x, padded, 0.0f);
      round_probabilities(r, {0, 0, nullptr}, 0);
      continue;
    }
    const auto& [from, n, scale, max, sum] = *next++;
    std::fill_n(x, low, 0.0f), std::fill(x + visible.high, x + padded, 0.0f);
    const float shift = plan_.keyed_values ? scale_by_value(x, visible) : 0;
    round_probabilities(r, visible, sum);
    rescale_[r] = all.merge(r, max, sum, shift);
  }
}

/// Values with scales of their own per key: those go on the probabilities. Returns the sum of the offsets.
float Worker::scale_by_value(float* x, const Visible& visible) const {
  std::fill(x + lanes_below(visible.low), x + visible.low, 0.0f);
  for (int j = visible.low; j < visible.high; ++j) x[j] *= s_.value.scale[j];
  if (visible.hidden)
    for (int j = visible.low; j < visible.high; ++j)
      if (visible.hidden[j]) x[j] = 0;
  double offsets = 0;
  for (int j = visible.low; j < visible.high && p_.value_offset.data; ++j)
    if (!visible.hidden || !visible.hidden[j]) offsets += double(x[j]) * s_.value.offset[j];
  return float(offsets);
}

/// Probabilities (times scales) as the products want them; `sum` of the probabilities.
void Worker::round_probabilities(int r, const Visible& visible, float sum) {
  float* x = scores(r);
  const int padded = lanes_above(now_->count), row = r - block_.first;
  outliers_[row] = 0;
  if (plan_.products == Products::bf16) {
    int decide[kManyKeys];
    const int n = visible.any() ? deciding_keys(k_, x, padded, sum, decide) : 0;
    float exact[kManyKeys];
    for (int i = 0; i < n; ++i) exact[i] = x[decide[i]];
    bf16* const rounded = s_.rounded + row * kScorePitch;
    k_.multiply(x, nullptr, padded, rounded);
    for (int i = 0; i < n; ++i)
      if (const float rest = exact[i] - to_float(rounded[decide[i]]); rest != 0)
        outlier_[row][outliers_[row]++] = {decide[i], rest};
  } else if (plan_.products == Products::int8) {
    std::uint8_t* digits = s_.digits + std::ptrdiff_t(row) * plan_.probability_digits * kScorePitch;
    float largest = sum > 0 ? 1 : 0;  // the largest probability is exp(0)
    if (plan_.keyed_values) largest = k_.max_abs(x, padded), sum = k_.sum(x, padded, 1);
    const float max = std::max(take_outliers(r, x, padded, sum, largest), 0x1p-100f);
    const float top = plan_.probability_digits == 2 ? kTop : 0x1p21f;
    k_.split_codes(x, padded, top / max, plan_.probability_digits, digits, kScorePitch);
    probability_unit_[r] = std::isfinite(sum) ? max / top : kNaN;
  }
}

/// Digits share a unit, so one key that stands out (an attention sink) would leave few bits to the others, which may
/// decide the sum: a few such outliers become zeros here and are added in fp32. Returns the largest of the others.
float Worker::take_outliers(int r, float* x, int count, float sum, float max) {
  Outlier* outlier = outlier_[r - block_.first];
  float top[kCodeOutliers + 1] = {max};
  int n = 0;
  for (float rest = sum; n < kCodeOutliers && top[n] > 0 && rest < kFlat * top[n]; ++n) {
    const int key = first_of(x, count, top[n]);
    if (key == count) break;  // NaN
    outlier[n] = {key, x[key]};
    rest -= x[key], x[key] = 0;
    top[n + 1] = k_.max_abs(x, count);
  }
  int outliers = n;
  while (outliers > 0 && top[outliers - 1] <= kOutlierRatio * top[outliers]) --outliers;
  for (int i = outliers; i < n; ++i) x[outlier[i].key] = outlier[i].probability;
  outliers_[r - block_.first] = outliers;
  return top[outliers];
}

}  // namespace dsakit::attention::dense
