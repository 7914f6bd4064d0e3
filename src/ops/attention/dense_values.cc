// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/dense_worker.hpp"

// Values: their products with probabilities, to `sums_`.
namespace dsakit::attention::dense {

/// Some columns of the values, for the rows of the block.
void Worker::multiply_values(int column, int columns) {
  if (gemv_values()) gemv(column, columns);
  else if (!now_->whole && plan_.products != Products::int8) multiply_visible(column, columns);
  else multiply(block_.first, block_.rows(), panels_->values[column / kPanel], 0, now_->count);
}

void Worker::gemv(int column, int columns) const {
  const int rows = tile_.rows();
  const std::byte* const* next = next_->count ? next_->key : now_->value;
  if (plan_.products == Products::int8) {
    k_.gemv_sums(s_.digits, kScorePitch, rows, plan_.probability_digits, now_->value, now_->count, column, columns,
                 probability_unit_, s_.part, next);
  } else if (plan_.products == Products::fp32) {
    k_.gemv_sums(s_.scores, kScorePitch, rows, kept(plan_.type), now_->value, now_->count, column, columns, s_.part,
                 next);
  } else {
    k_.gemv_sums(s_.rounded, kScorePitch, rows, now_->value, now_->count, column, columns, s_.part, next);
  }
}

/// Rows that need no key outside [low, high).
void Worker::multiply(int row, int rows, const std::byte* panel, int low, int high) const {
  const std::ptrdiff_t at = (row - block_.first) * kScorePitch + low;
  if (plan_.products == Products::int8) {
    const int digits = plan_.probability_digits;
    multiply_codes(s_.digits + at * digits, kScorePitch, rows * digits, panel, kChunk, high);
    return join_digits(rows, digits, kPanel, probability_unit_ + row, sums_.row(row - block_.first), sums_.pitch);
  }
  const bool pairs = plan_.products == Products::bf16;
  multiply_panel({pairs ? s_.rounded + at : nullptr, s_.scores + at, kScorePitch}, rows, plan_.panels, panel, low,
                 high - low, kPanel, sums_.row(row - block_.first), sums_.pitch, false);
}

/// Where rows see different keys: over those that the block sees.
void Worker::multiply_visible(int column, int columns) const {
  int low = now_->count, high = 0;
  for (int i = block_.first / tile_.heads; i <= (block_.end - 1) / tile_.heads; ++i)
    if (const Visible& visible = now_->visible[i]; visible.any())
      low = std::min(low, lanes_below(visible.low)), high = std::max(high, visible.high);
  if (low < high) multiply(block_.first, block_.rows(), panels_->values[column / kPanel], low, high);
  for (int r = block_.first; r < block_.end && any_infinite_; ++r) {
    const Visible& visible = now_->visible[r / tile_.heads];
    bool hidden = false;
    for (int j = 0; j < now_->count && visible.any(); ++j) hidden = hidden || (infinite_[j] && !visible.sees(j));
    if (hidden) multiply_alone(r, column, columns);
  }
}

/// For a row that must not see an infinity: without the keys that are hidden from it.
void Worker::multiply_alone(int r, int column, int columns) const {
  const std::byte* own[kChunk];
  const Visible& visible = now_->visible[r / tile_.heads];
  for (int j = 0; j < now_->count; ++j) own[j] = visible.sees(j) ? now_->value[j] : s_.zeros;
  interleave(own, column, columns, s_.own_values);
  multiply(r, 1, s_.own_values, 0, now_->count);
}

/// What `multiply_values` and the outliers make, to the sums of values of the rows of the block.
void Worker::blend(int column, int columns, const Partial& all) const {
  for (int r = block_.first; r < block_.end; ++r) {
    const auto [keep, factor] = rescale_[r];
    if (factor == 0 && keep == 1) continue;
    float* y = all.values + r * plan_.value_pitch + column;
    const int row = r - block_.first, outliers = plan_.products == Products::fp32 ? 0 : outliers_[row];
    if (outliers == 0) k_.blend(part(r), 1, factor, columns, keep, y);
    else if (plan_.products == Products::int8) blend<std::int8_t>(row, outliers, factor, column, columns, keep, y);
    else blend<bf16>(row, outliers, factor, column, columns, keep, y);
  }
}

template <class T>
void Worker::blend(int row, int outliers, float factor, int column, int columns, float keep, float* y) const {
  const T* value[kManyKeys];
  float probability[kManyKeys];
  for (int i = 0; i < outliers; ++i) {
    value[i] = reinterpret_cast<const T*>(now_->value[outlier_[row][i].key]) + column;
    probability[i] = outlier_[row][i].probability;
  }
  k_.blend(part(block_.first + row), value, probability, outliers, 1, factor, columns, keep, y);
}

}  // namespace dsakit::attention::dense
