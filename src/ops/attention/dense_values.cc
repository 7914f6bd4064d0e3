// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/dense_worker.hpp"

// Values: their products with probabilities, to `part`.
namespace dsakit::attention::dense {
namespace {

constexpr int kBlockRows = 24;  // rows whose values are summed over the same keys

}  // namespace

/// Some columns of the values, for all rows.
void Worker::multiply_values(int column, int columns) {
  if (gemv_values()) {
    gemv(column, columns);
  } else {
    interleave(now_->value, column, columns);
    if (now_->whole || plan_.products == Products::int8) multiply(0, tile_.rows(), 0, now_->count, 0, n_precise_);
    else multiply_visible(column, columns);
  }
  if (plan_.products == Products::int8) add_outliers(column, columns);
}

void Worker::gemv(int column, int columns) const {
  const int rows = tile_.rows(), digits = plan_.probability_digits;
  const std::byte* const* next = next_->count ? next_->key : now_->value;
  if (plan_.products == Products::int8) {
    k_.gemv_sums(s_.digits, kScorePitch, rows * digits, now_->value, now_->count, column, columns, s_.dots, next);
    join_digits(0, rows, digits, kPanel, probability_unit_, s_.part, kPanel);
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
void Worker::multiply(int row, int rows, int low, int high, int precise, int n_precise) const {
  const std::ptrdiff_t at = row * kScorePitch + low;
  float* const part = s_.part + row * kPanel;
  if (plan_.products == Products::int8) {
    const int digits = plan_.probability_digits;
    k_.product(s_.digits + at * digits, kScorePitch, rows * digits, reinterpret_cast<const std::int8_t*>(s_.panel),
               s_.column_sums, int(Panel<std::int8_t>::depth(high)), s_.dots, kPanel);
    return join_digits(row, rows, digits, kPanel, probability_unit_, s_.part, kPanel);
  }
  const bool pairs = plan_.products == Products::bf16;
  multiply_panel({pairs ? s_.high + at : nullptr, s_.scores + at, kScorePitch}, rows, plan_.type, low, high - low, part,
                 kPanel, false);
  if (!pairs || n_precise == 0) return;
  multiply_panel({s_.low + precise * kScorePitch + low, nullptr, kScorePitch}, n_precise, plan_.type, low, high - low,
                 s_.part_low, kPanel, false);
  add_low(precise, n_precise);
}

/// The lower halves of probabilities that are two bf16.
void Worker::add_low(int precise, int n_precise) const {
  for (int i = 0; i < n_precise; ++i)
    for (int c = 0; c < kPanel; ++c) s_.part[precise_[precise + i] * kPanel + c] += s_.part_low[i * kPanel + c];
}

/// Where rows see different keys: in blocks of rows, over the keys that a block sees.
void Worker::multiply_visible(int column, int columns) const {
  const int rows = tile_.rows();
  for (int r = 0, precise = 0; r < rows; r += kBlockRows) {
    const int end = std::min(r + kBlockRows, rows);
    int low = now_->count, high = 0, next = precise;
    for (int i = r / tile_.heads; i <= (end - 1) / tile_.heads; ++i)
      if (const Visible& visible = now_->visible[i]; visible.any())
        low = std::min(low, lanes_below(visible.low)), high = std::max(high, visible.high);
    while (next < n_precise_ && precise_[next] < end) ++next;
    if (low < high) multiply(r, end - r, low, high, precise, next - precise);
    precise = next;
  }
  for (int r = 0; r < rows && any_infinite_; ++r) {
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
  interleave(own, column, columns);
  const int precise = int(std::lower_bound(precise_, precise_ + n_precise_, r) - precise_);
  multiply(r, 1, 0, now_->count, precise, precise < n_precise_ && precise_[precise] == r ? 1 : 0);
}

void Worker::add_outliers(int column, int columns) const {
  for (int r = 0; r < tile_.rows(); ++r)
    for (int i = 0; i < outliers_[r]; ++i) {
      const auto [key, probability] = outlier_[r][i];
      const auto* value = reinterpret_cast<const std::int8_t*>(now_->value[key]) + column;
      for (int c = 0; c < columns; ++c) s_.part[r * kPanel + c] += probability * float(value[c]);
    }
}

}  // namespace dsakit::attention::dense
