// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/dense_worker.hpp"

// Scores: products of query rows and keys.
namespace dsakit::attention::dense {

/// Scores of `count` keys from `first` on, for the rows of the block that may see them.
void Worker::score(int first, int count) const {
  int from = tile_.queries, to = -1, seen = 0;
  for (int i = block_.first / tile_.heads; i <= (block_.end - 1) / tile_.heads; ++i)
    if (now_->visible[i].low < first + count && now_->visible[i].high > first)
      from = std::min(from, i), to = i, seen = std::max(seen, now_->visible[i].high - first);
  if (to < from) return;
  count = std::min(count, seen);
  const int row = std::max(from * tile_.heads, block_.first),
            rows = std::min((to + 1) * tile_.heads, block_.end) - row;
  if (plan_.products == Products::int8) score_codes(first, count, row, rows);
  else score_floats(first, count, row, rows);
  if (p_.rope) {
    const std::ptrdiff_t at = row * plan_.rope_pitch;
    multiply_panel({plan_.rope_bf16 ? q_->rope_bf16 + at : nullptr, q_->rope_f32 + at, plan_.rope_pitch}, rows,
                   plan_.rope_panels, panels_->rope[first / kPanel], 0, p_.rope, count, scores(row) + first, kScorePitch,
                   plan_.products != Products::int8);
  }
  if (plan_.products == Products::int8) dequantize_scores(first, count, row, rows);
}

/// Beside rope dots to `part`, else to where scores are.
void Worker::score_codes(int first, int count, int row, int rows) const {
  const std::ptrdiff_t pitch = p_.rope ? part_pitch() : kScorePitch;
  float* const x = p_.rope ? part(row) : scores(row) + first;
  if (gemv_scores())
    return k_.gemv_dots(q_->gemv, tile_.rows(), plan_.query_digits, now_->key + first, count, p_.width, q_->row_unit,
                        p_.rope ? s_.part : s_.scores + first, pitch, now_->value + first, p_.value);
  multiply_codes(q_->digits + row * plan_.query_digits * plan_.query_pitch, plan_.query_pitch, rows * plan_.query_digits,
                 panels_->keys[first / kPanel], p_.width, p_.width);
  join_digits(rows, plan_.query_digits, count, q_->row_unit + row, x, pitch);
}

/// dots = rows of a x the first `depth` rows of a panel that was made for `width`. Like all panels it is here again soon.
void Worker::multiply_codes(const std::uint8_t* a, std::ptrdiff_t pitch, int rows, const std::byte* panel, int width,
                            int depth) const {
  const auto* codes = reinterpret_cast<const std::int8_t*>(panel);
  k_.product(a, pitch, rows, codes, Panels<std::int8_t>::sums(codes, width, kPanel),
             int(Panel<std::int8_t>::depth(depth)), s_.dots, kPanel, Ahead::nothing());
}

void Worker::score_floats(int first, int count, int row, int rows) const {
  const bool bf16_dots = plan_.products == Products::bf16;
  if (gemv_scores() && bf16_dots)
    return k_.gemv_dots(q_->gemv, tile_.rows(), now_->key + first, count, p_.width, s_.scores + first, kScorePitch,
                        now_->value + first, p_.value);
  if (gemv_scores())
    return k_.gemv_dots(q_->gemv, tile_.rows(), kept(plan_.type), now_->key + first, count, p_.width, s_.scores + first,
                        kScorePitch, now_->value + first, p_.value);
  const std::ptrdiff_t at = row * plan_.query_pitch;
  multiply_panel({bf16_dots ? q_->rows_bf16 + at : nullptr, q_->rows_f32 + at, plan_.query_pitch}, rows, plan_.panels,
                 panels_->keys[first / kPanel], 0, p_.width, count, scores(row) + first, kScorePitch, false);
}

/// c = rows of a x the first columns of the panel, of bf16 or fp32, from its row `from` on; with `add`, +=.
void Worker::multiply_panel(const Left& a, int rows, DType panels, const std::byte* panel, int from, int depth,
                            int columns, float* c, std::ptrdiff_t c_pitch, bool add) const {
  const auto* pairs = reinterpret_cast<const bf16*>(panel) + Panel<bf16>::row(from);
  const auto* wide = reinterpret_cast<const float*>(panel) + Panel<float>::row(from);
  constexpr Ahead kNothing = Ahead::nothing();
  if (a.pairs) k_.product(a.pairs, a.pitch, rows, pairs, depth, c, c_pitch, add, kNothing, columns);
  else if (panels == DType::bf16) k_.product(a.wide, a.pitch, rows, pairs, depth, c, c_pitch, add, kNothing, columns);
  else k_.product(a.wide, a.pitch, rows, wide, depth, c, c_pitch, add, kNothing, columns);
}

/// The products of codes that were just made, as numbers.
void Worker::join_digits(int rows, int digits, int count, const float* unit, float* x, std::ptrdiff_t pitch) const {
  for (int r = 0; r < rows; ++r)
    k_.join_codes(s_.dots + std::ptrdiff_t(r) * digits * kPanel, kPanel, count, digits, unit[r], x + r * pitch);
}

/// Dots of codes with their parameters, and with the rope dots where there are such (else the dots are in place).
void Worker::dequantize_scores(int first, int count, int row, int rows) const {
  const float *scale = s_.key.scale + first, *offset = s_.key.offset + first;
  for (int r = row; r < row + rows; ++r) {
    float* c = scores(r) + first;
    float* x = p_.rope ? part(r) : c;
    if (p_.query_type == DType::i8) {
      const float factor = q_->row_factor[r], key = q_->key.scale[0];
      for (int j = 0; j < count && p_.rope; ++j) c[j] += x[j];
      for (int j = 0; j < count; ++j) c[j] = c[j] * factor * key;
      continue;
    }
    if (plan_.keyed_keys) {
      const float sum = q_->row_sum[r];
      for (int j = 0; j < count; ++j) x[j] = (x[j] + sum * offset[j]) * scale[j];
    } else if (const float constant = q_->row_constant[r]; constant != 0) {
      for (int j = 0; j < count; ++j) x[j] += constant;
    }
    for (int j = 0; j < count && p_.rope; ++j) c[j] += x[j];
  }
}

}  // namespace dsakit::attention::dense
