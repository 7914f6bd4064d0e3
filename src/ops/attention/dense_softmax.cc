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
  const bool rounds = plan_.products == Products::bf16;
  SoftmaxRow row[kBlockRows], *end = row;  // of those that see something
  each_row([&](int r, const Visible& visible) {
    const int low = lanes_below(visible.low);
    const float scale = visible.any() ? scale_and_mask(r, visible) : kNaN;
    rescale_[r] = {1, 0}, outliers_[r - block_.first] = 0;
    if (scale != scale) return;
    if (plan_.taps) show_scores(r, visible, scale);
    *end++ = {scores(r) + low, visible.high - low, scale, 0, 0, rounds ? rounded(r) + low : nullptr};
  });
  k_.softmax(row, int(end - row));
  const SoftmaxRow* next = row;
  each_row([&](int r, const Visible& visible) {
    const int low = lanes_below(visible.low);
    const SoftmaxRow* const seen = next != end && next->x == scores(r) + low ? next++ : nullptr;
    const auto zero_around = [first = seen ? low : 0, last = seen ? visible.high : 0, padded]<class T>(T* x) {
      std::fill(x, x + first, T{}), std::fill(x + last, x + padded, T{});
    };
    float shift = 0;
    if (rounds) {
      zero_around(rounded(r));
      if (seen) keep_rests(r, *seen);
    } else {
      zero_around(scores(r));
      if (seen && plan_.keyed_values) shift = scale_by_value(scores(r), visible);
      if (plan_.products == Products::int8) split_probabilities(r, seen ? seen->sum : 0);
    }
    if (seen) rescale_[r] = all.merge(r, seen->largest, seen->sum, shift);
  });
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

/// What rounding leaves of the keys that decide.
void Worker::keep_rests(int r, const SoftmaxRow& row) {
  int decide[kManyKeys];
  const int n = deciding_keys(k_, row.x, row.n, row.sum, decide);
  Outlier* to = outlier_[r - block_.first];
  for (int i = 0; i < n; ++i)
    if (const float rest = row.x[decide[i]] - to_float(row.rounded[decide[i]]); rest != 0)
      *to++ = {int(row.x - scores(r)) + decide[i], rest};
  outliers_[r - block_.first] = int(to - outlier_[r - block_.first]);
}

/// Probabilities, times scales if values have such per key, as digits; `sum` of the probabilities.
void Worker::split_probabilities(int r, float sum) {
  float* x = scores(r);
  const int padded = lanes_above(now_->count), digits = plan_.probability_digits;
  float largest = sum > 0 ? 1 : 0;  // the largest probability is exp(0)
  if (plan_.keyed_values) largest = k_.max_abs(x, padded), sum = k_.sum(x, padded, 1);
  const float max = std::max(take_outliers(r, x, padded, sum, largest), 0x1p-100f);
  const float top = digits == 2 ? kTop : 0x1p21f;
  k_.split_codes(x, padded, top / max, digits, s_.digits + std::ptrdiff_t(r - block_.first) * digits * kScorePitch,
                 kScorePitch);
  probability_unit_[r] = std::isfinite(sum) ? max / top : kNaN;
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
