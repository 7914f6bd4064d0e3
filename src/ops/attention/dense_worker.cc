// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/dense_worker.hpp"

#include <cmath>
#include <limits>
#include <optional>

#include "core/float16.hpp"

// A tile meets its chunks, one after the other, and becomes output.
namespace dsakit::attention::dense {
namespace {

/// x = f(x, offset, scale) for each of n columns.
template <class F>
void with_columns(const Parameter& offset, const Parameter& scale, std::int64_t b, std::int64_t head, int n, float* x,
                  F f) {
  constexpr int kSome = 128;
  float offsets[kSome], scales[kSome];
  for (int first = 0; first < n; first += kSome) {
    const int some = std::min(kSome, n - first);
    columns_of(offset, b, head, first, some, 0, offsets);
    columns_of(scale, b, head, first, some, 1, scales);
    for (int c = 0; c < some; ++c) x[first + c] = f(x[first + c], offsets[c], scales[c]);
  }
}

}  // namespace

bool Worker::is_gemv(int rows) const { return rows <= k_.gemv_rows; }

bool Worker::gemv_scores() const {
  return plan_.products == Products::int8 ? is_gemv(tile_.rows() * plan_.query_digits) && p_.width <= kGemvCodes
                                          : is_gemv(tile_.rows()) && p_.width <= kSumBlock;
}

bool Worker::gemv_values() const {
  return plan_.products == Products::int8 ? is_gemv(tile_.rows() * plan_.probability_digits)
                                          : is_gemv(tile_.rows()) && now_->whole;
}

void Worker::attend(Visit<Queries> visit, Visit<Queries> next, const Partial& all) {
  q_ = visit.queries, tile_ = q_->tile;
  std::swap(now_, next_);
  if (now_->number != visit.chunk || now_->owner != q_) locate(visit, *now_);
  if (now_->count == 0) return;
  fetch_keys();
  next_->number = -1, next_->count = 0;
  if (gemv_scores() && next.queries) locate(next, *next_);  // these kernels prefetch what comes next
  make_panels();
  if (!now_->whole && plan_.products != Products::int8) find_hidden_infinities();
  std::optional<ShapesKept> kept;
  if (!plan_.taps) kept.emplace(k_);  // who looks on may want tiles
  for (int r = 0; r < tile_.rows(); r += kBlockRows) attend_block({r, std::min(r + kBlockRows, tile_.rows())}, all);
}

void Worker::attend_block(Block block, const Partial& all) {
  block_ = block;
  const int step = gemv_scores() && !p_.rope ? kChunk : kPanel;
  for (int j = 0; j < now_->count; j += step) score(j, std::min(step, now_->count - j));
  softmax(all);
  const int most = int(part_pitch());
  const bool straight = p_.value % kPanel == 0 && !gemv_values() && begins();
  for (int c = 0; c < p_.value; c += most) {
    const int columns = std::min(most, p_.value - c);
    sums_ = straight ? Sums{all.values + block.first * plan_.value_pitch + c, plan_.value_pitch} : Sums{s_.part, most};
    multiply_values(c, columns);
    if (!straight) blend(c, columns, all);
  }
}

/// Whether products with values are all that the rows of the block are left with: nothing of what was before, nothing
/// beside them. So it is with the first chunk.
bool Worker::begins() const {
  for (int r = block_.first; r < block_.end; ++r)
    if (rescale_[r] != std::pair(0.0f, 1.0f) || outliers_[r - block_.first] > 0) return false;
  return true;
}

void Worker::merge(const Partial& all, const Partial& later, int r) const {
  const auto [mine, theirs] = all.merge(r, later.max[r], later.sum[r], later.shift[r]);
  if (theirs == 0 && mine == 1) return;
  const std::ptrdiff_t row = r * plan_.value_pitch;
  k_.blend(later.values + row, 1, theirs, p_.value, mine, all.values + row);
}

void Worker::finish(const Tile& tile, const Partial& all, int r) const {
  prefetch_row<true>(p_.out, p_.out_type, p_.value, tile, r + kRowsAhead);
  const Sequence& s = p_.sequence[tile.b];
  const std::int64_t query = tile.first + r / tile.heads, head = tile.query_head(p_, r % tile.heads);
  float *o = all.values + r * plan_.value_pitch, sum = all.sum[r], max = all.max[r];
  float sink = -std::numeric_limits<float>::infinity(), share = 1;  // of the keys, in the sum
  if (p_.sink.data && sum != 0) columns_of(p_.sink, 0, head, 0, 1, sink, &sink);
  if (sink > -std::numeric_limits<float>::infinity()) {
    const float larger = std::max(max, sink), keep = std::exp(max - larger), keys = sum * keep;
    sum = keys + (sink == larger ? 1 : std::exp(sink - larger)), max = larger, share = keys / sum;
    for (int c = 0; c < p_.value; ++c) o[c] *= keep;
    all.shift[r] *= keep;
  }
  if (plan_.taps && sum != 0) {
    plan_.taps->row("2.max", DType::f32, tap_row(tile, r), 0, 1, &max);
    plan_.taps->row("3.sum", DType::f32, tap_row(tile, r), 0, 1, &sum);
  }
  if (p_.lse.data)
    *address<float>(p_.lse, s, tile.b, query, head) = sum != 0      ? max + std::log(sum)
                                                      : s.keys == 0 ? p_.lse_of_no_keys
                                                                    : std::numeric_limits<float>::infinity();
  if (sum == 0) {
    std::fill_n(o, p_.value, 0.0f), sum = 1;
  } else if (plan_.keyed_values) {
    for (int c = 0; c < p_.value; ++c) o[c] += all.shift[r];
  } else if (plan_.products == Products::int8) {
    k_.divide(o, sum, p_.value, o), sum = 1;
    with_columns(p_.value_offset, p_.value_scale, tile.b, tile.g, p_.value, o,
                 [=](float x, float offset, float scale) { return (x + offset * share) * scale; });
  }
  switch (p_.out_type) {
    case DType::bf16:
      return k_.divide(o, sum, p_.value, address<bf16>(p_.out, s, tile.b, query, head));
    case DType::f16:
      return k_.divide(o, sum, p_.value, address<f16>(p_.out, s, tile.b, query, head));
    case DType::i8:
      k_.divide(o, sum, p_.value, o);
      with_columns(p_.out_offset, p_.out_scale, 0, head, p_.value, o,
                   [](float x, float offset, float scale) { return x * scale + offset; });
      return k_.quantize(o, p_.value, 1, address<std::int8_t>(p_.out, s, tile.b, query, head));
    default:
      k_.divide(o, sum, p_.value, address<float>(p_.out, s, tile.b, query, head));
  }
}

}  // namespace dsakit::attention::dense
