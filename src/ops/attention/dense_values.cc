// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/dense_worker.hpp"

// Values: their products with probabilities, to `part`.
namespace dsakit::attention::dense {

/// Some columns of the values, for the rows of the block.
void Worker::multiply_values(int column, int columns) {
  if (gemv_values()) gemv(column, columns);
  else if (!now_->whole && plan_.products != Products::int8) multiply_visible(column, columns);
  else multiply(block_.first, block_.rows(), s_.value_panels[column / kPanel], 0, now_->count, 0, n_precise_);
  if (plan_.products == Products::int8) add_outliers(column, columns);
}

void Worker::gemv(int column, int columns) const {
  const int rows = tile_.rows(), digits = plan_.probability_digits;
  const std::byte* const* next = next_->count ? next_->key : now_->value;
  if (plan_.products == Products::int8) {
    k_.gemv_sums(s_.digits, kScorePitch, rows * digits, now_->value, now_->count, column, columns, s_.dots, next);
    join_digits(rows, digits, kPanel, probability_unit_, s_.part, kPanel);
  } else if (plan_.products == Products::fp32) {
    k_.gemv_sums(s_.scores, kScorePitch, rows, kept(plan_.type), now_->value, now_->count, column, columns, s_.part,
                 next);
  } else {
    k_.gemv_sums(s_.high, kScorePitch, rows, now_->value, now_->count, column, columns, s_.part, next);
    if (n_precise_ == 0) return;
    k_.gemv_sums(s_.low, kScorePitch, n_precise_, now_->value, now_->count, column, columns, s_.part_low, now_->value);
    add_low(0, n_precise_);
  }
}

/// Rows that need no key outside [low, high); `n_precise` of them, from `precise` on, have a lower half.
void Worker::multiply(int row, int rows, const std::byte* panel, int low, int high, int precise, int n_precise) const {
  const std::ptrdiff_t at = (row - block_.first) * kScorePitch + low;
  if (plan_.products == Products::int8) {
    const int digits = plan_.probability_digits;
    multiply_codes(s_.digits + at * digits, kScorePitch, rows * digits, panel, kChunk, high);
    return join_digits(rows, digits, kPanel, probability_unit_ + row, part(row), kPanel);
  }
  const bool pairs = plan_.products == Products::bf16;
  multiply_panel({pairs ? s_.high + at : nullptr, s_.scores + at, kScorePitch}, rows, plan_.type, panel, low, high - low,
                 part(row), kPanel, false);
  if (!pairs || n_precise == 0) return;
  multiply_panel({s_.low + precise * kScorePitch + low, nullptr, kScorePitch}, n_precise, plan_.type, panel, low,
                 high - low, s_.part_low, kPanel, false);
  add_low(precise, n_precise);
}

/// The lower halves of probabilities that are two bf16.
void Worker::add_low(int precise, int n_precise) const {
  for (int i = 0; i < n_precise; ++i)
    for (int c = 0; c < kPanel; ++c) part(precise_[precise + i])[c] += s_.part_low[i * kPanel + c];
}

/// Where rows see different keys: over those that the block sees.
void Worker::multiply_visible(int column, int columns) const {
  int low = now_->count, high = 0;
  for (int i = block_.first / tile_.heads; i <= (block_.end - 1) / tile_.heads; ++i)
    if (const Visible& visible = now_->visible[i]; visible.any())
      low = std::min(low, lanes_below(visible.low)), high = std::max(high, visible.high);
  if (low < high) multiply(block_.first, block_.rows(), s_.value_panels[column / kPanel], low, high, 0, n_precise_);
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
  const int precise = int(std::lower_bound(precise_, precise_ + n_precise_, r) - precise_);
  multiply(r, 1, s_.own_values, 0, now_->count, precise, precise < n_precise_ && precise_[precise] == r ? 1 : 0);
}

void Worker::add_outliers(int column, int columns) const {
  for (int r = block_.first; r < block_.end; ++r)
    for (int i = 0; i < outliers_[r]; ++i) {
      const auto [key, probability] = outlier_[r][i];
      const auto* value = reinterpret_cast<const std::int8_t*>(now_->value[key]) + column;
      for (int c = 0; c < columns; ++c) part(r)[c] += probability * float(value[c]);
    }
}

}  // namespace dsakit::attention::dense
