// SPDX-License-Identifier: Apache-2.0
#include "ops/prolog/indexer.hpp"

#include <algorithm>
#include <cstring>

#include "core/float16.hpp"

namespace dsakit::prolog {
namespace {

/// A [n, n] matrix in panels; `rows` has room for n addresses.
void pack_square(const Kernels& kernels, const Tensor& matrix, std::int64_t n, const bf16** rows, bf16* panels) {
  for (std::int64_t k = 0; k < n; ++k) rows[k] = static_cast<const bf16*>(matrix.data) + k * matrix.stride[0];
  kernels.interleave(rows, int(n), int(n), panels);
}

}  // namespace

IndexerProlog::IndexerProlog(const IndexerProblem& problem, const HiddenTile& hidden, const MlaProlog* query,
                             const Call& call, Carver& memory)
    : p_(problem),
      kernels_(call.kernels()),
      hidden_(hidden),
      query_(query),
      codes_stride_(Panel<std::int8_t>::depth(p_.rank)),
      q_width_(p_.heads * p_.dim),
      same_products_(call.same_products()) {
  gamma_ = memory.take<float>(p_.dim);
  beta_ = memory.take<float>(p_.dim);
  cos_ = memory.take<float>(kTile * p_.rope);
  sin_ = memory.take<float>(kTile * p_.rope);
  k_ = memory.take<float>(kTile * p_.dim);
  q_ = memory.take<bf16>(kTile * q_width_);
  scales_ = query ? nullptr : memory.take<float>(kTile);
  codes_ = query ? nullptr : memory.take<std::uint8_t>(kTile * codes_stride_);
  const std::int64_t square = Panels<bf16>::elements(p_.dim, p_.dim);
  hadamard_q_ = p_.hadamard_q ? memory.take<bf16>(square) : nullptr;
  hadamard_k_ = p_.hadamard_k ? memory.take<bf16>(square) : nullptr;
  Carver one;
  carve(one);
  scratch_bytes_ = std::int64_t(one.bytes());
  scratch_ = memory.take<std::byte>(scratch_bytes_ * call.threads());
}

IndexerProlog::Scratch IndexerProlog::carve(Carver& memory) const {
  Scratch s;
  s.panel = memory.take<std::byte>(std::max({p_.wk.scratch_bytes(), p_.w_proj.scratch_bytes(), p_.w_qb.scratch_bytes(),
                                             p_.dim * std::int64_t(sizeof(const bf16*))}));
  s.sum = memory.take<float>(kTile * kPanel);
  s.y = memory.take<float>(kTile * kPanel);
  s.row = memory.take<float>(2 * p_.dim);
  s.wide = memory.take<float>(same_products_ ? kHeads * p_.dim : 0);
  s.in = memory.take<bf16>(p_.dim);
  s.out = memory.take<bf16>(kHeads * p_.dim);
  return s;
}

void IndexerProlog::begin(std::int64_t first, int count) {
  first_ = first, count_ = count;
  if (p_.sums.made()) return;
  if (first == 0) {
    for (std::int64_t c = 0; c < p_.dim; ++c) gamma_[c] = float_at(p_.gamma, c), beta_[c] = float_at(p_.beta, c);
    Carver memory(scratch_);
    auto* rows = reinterpret_cast<const bf16**>(carve(memory).panel);
    if (hadamard_q_) pack_square(kernels_, p_.hadamard_q, p_.dim, rows, hadamard_q_);
    if (hadamard_k_) pack_square(kernels_, p_.hadamard_k, p_.dim, rows, hadamard_k_);
  }
  for (int r = 0; r < count; ++r) {
    kernels_.widen(p_.cos.row<const bf16>(first + r), p_.rope, cos_ + r * p_.rope);
    kernels_.widen(p_.sin.row<const bf16>(first + r), p_.rope, sin_ + r * p_.rope);
    if (!query_) scales_[r] = *p_.q_norm_scale.row<const float>(first + r);
  }
  slots_ = TileSlots(p_.cache_index, p_.k_cache.count > 0, first, count);
}

std::int64_t IndexerProlog::tasks(Stage stage) const {
  if (p_.sums.made() && stage != Stage::hidden_products) return 0;
  switch (stage) {
    case Stage::hidden_products:
      return p_.sums.given() ? count_ : p_.wk.panels() + p_.w_proj.panels();
    case Stage::rows:
      return query_ ? count_ : 2 * count_;
    case Stage::query_products:
      return p_.w_qb.panels();
    case Stage::heads:
      return count_ * ((p_.heads + kHeads - 1) / kHeads);
  }
  return 0;
}

Work IndexerProlog::work(Stage stage) const {
  const double rotations = hadamard_q_ ? double(p_.dim * p_.dim) : 0;  // products of a row with a matrix
  switch (stage) {
    case Stage::hidden_products:
      if (p_.sums.given()) return {.elements = double(count_ * (p_.dim + p_.all_heads))};
      return product_work(count_, double(p_.hidden) * double(p_.dim + p_.all_heads), false);
    case Stage::rows:
      return Work{.products = rotations, .elements = double(p_.rank + 8 * p_.dim) / 4} * count_;
    case Stage::query_products:
      return product_work(count_, double(p_.rank) * double(q_width_), true);
    case Stage::heads:
      return Work{.products = rotations, .elements = double(p_.dim)} * double(count_ * p_.heads);
  }
  return {};
}

void IndexerProlog::task(Stage stage, std::int64_t i, int thread) const {
  Carver memory(scratch_ + thread * scratch_bytes_);
  const Scratch s = carve(memory);
  switch (stage) {
    case Stage::hidden_products:
      return p_.sums.given() ? take_sums(i) : hidden_panel(i, s);
    case Stage::rows:
      if (i < count_) return key_row(int(i), s);
      i -= count_;
      return bias_codes(p_.q_norm.row<const std::int8_t>(first_ + i), p_.rank, codes_ + i * codes_stride_);
    case Stage::query_products:
      return query_panel(i, s);
    case Stage::heads:
      return head_block(i, s);
  }
}

/// A panel of [wk | w_proj]. Steps K1, W1, W2.
void IndexerProlog::hidden_panel(std::int64_t i, const Scratch& s) const {
  const bool key = i < p_.wk.panels();
  if (!key) i -= p_.wk.panels();
  const Weight& w = key ? p_.wk : p_.w_proj;
  const std::int64_t columns = std::min<std::int64_t>(kPanel, w.n - i * kPanel);
  hidden_.all().times(kernels_, count_, {w, 0, i, s.panel}, p_.hidden, s.sum);
  const HiddenSums& sums = p_.sums;
  for (int r = 0; r < count_; ++r) {
    const float* sum = s.sum + r * kPanel;
    if (sums.made()) {
      float* to = key ? sums.first + (first_ + r) * sums.first_stride : sums.second + (first_ + r) * sums.second_stride;
      std::memcpy(to + i * kPanel, sum, std::size_t(columns) * sizeof(float));
    } else if (key) {
      std::memcpy(k_ + r * p_.dim + i * kPanel, sum, std::size_t(columns) * sizeof(float));
    } else {
      write_weights(r, i * kPanel, sum, columns);
    }
  }
}

/// What hidden_panel would leave of one token, from sums that are there.
void IndexerProlog::take_sums(std::int64_t r) const {
  const HiddenSums& sums = p_.sums;
  std::memcpy(k_ + r * p_.dim, sums.first + (first_ + r) * sums.first_stride, std::size_t(p_.dim) * sizeof(float));
  write_weights(r, 0, sums.second + (first_ + r) * sums.second_stride, p_.all_heads);
}

/// Steps W1 and W2 behind the sums.
void IndexerProlog::write_weights(std::int64_t r, std::int64_t first, const float* sums, std::int64_t n) const {
  f16* out = p_.weights.row<f16>(first_ + r) + first;
  for (std::int64_t j = 0; j < n; ++j) out[j] = to_f16(to_float(to_bf16(sums[j])) * p_.head_scale);
}

/// RoPE on the first dims of a bf16 row, in place.
void IndexerProlog::rotate_first(bf16* row, int r, const Scratch& s) const {
  float *x = s.row, *y = s.row + p_.dim;
  kernels_.widen(row, p_.rope, x);
  rotate(p_.layout, x, cos_ + r * p_.rope, sin_ + r * p_.rope, p_.rope / 2, y);
  kernels_.round(y, p_.rope, row);
}

/// bf16(rows times the matrix), [rows][dim]; the rows themselves without one.
const bf16* IndexerProlog::transformed(const bf16* in, int rows, const bf16* hadamard, const Scratch& s) const {
  if (!hadamard) return in;
  Operand operand = {in, nullptr, p_.dim};
  if (same_products_) {
    kernels_.widen(in, rows * p_.dim, s.wide);
    operand = {nullptr, s.wide, p_.dim};
  }
  for (std::int64_t c = 0; c < p_.dim; c += kPanel) {
    operand.times(kernels_, rows, hadamard + Panels<bf16>::panel(p_.dim, c / kPanel), 0, p_.dim, s.sum);
    const std::int64_t columns = std::min<std::int64_t>(kPanel, p_.dim - c);
    for (int r = 0; r < rows; ++r) kernels_.round(s.sum + r * kPanel, columns, s.out + r * p_.dim + c);
  }
  return s.out;
}

/// Steps K2 to K5.
void IndexerProlog::key_row(int r, const Scratch& s) const {
  const std::int64_t slot = slots_[r];
  if (slot < 0) return;
  const auto tap = [&](const char* step, const bf16* k) {
    if (taps_) taps_->row(step, DType::bf16, first_ + r, 0, p_.dim, k);
  };
  if (taps_) taps_->row("K1.k", DType::f32, first_ + r, 0, p_.dim, k_ + r * p_.dim);
  layer_norm(kernels_, k_ + r * p_.dim, p_.dim, gamma_, beta_, p_.epsilon, s.row);
  kernels_.round(s.row, p_.dim, s.in);
  tap("K2.k", s.in);
  rotate_first(s.in, r, s);
  tap("K3.k", s.in);
  const bf16* k = transformed(s.in, 1, hadamard_k_, s);
  tap("K4.k", k);
  kernels_.widen(k, p_.dim, s.row);
  const float scale = quantise(kernels_, kPyPto, s.row, p_.dim, p_.k_cache.row<std::int8_t>(slot));
  if (p_.k_scale_cache.tensor.dtype == DType::f16) *p_.k_scale_cache.row<f16>(slot) = to_f16(scale);
  else *p_.k_scale_cache.row<float>(slot) = scale;
}

/// Steps Q1 and Q2.
void IndexerProlog::query_panel(std::int64_t i, const Scratch& s) const {
  const std::int64_t columns = std::min<std::int64_t>(kPanel, q_width_ - i * kPanel);
  const auto panel = p_.w_qb.panel_i8(i, s.panel);
  const float* scales = query_ ? query_->query_scales() : scales_;
  auto* acc = reinterpret_cast<std::int32_t*>(s.sum);
  kernels_.product(query_ ? query_->query_codes() : codes_, codes_stride_, count_, panel.codes, panel.column_sums,
                      int(codes_stride_), acc, kPanel);
  float scale[kPanel];
  for (std::int64_t j = 0; j < columns; ++j) scale[j] = *p_.channel_scale.row<const float>(i * kPanel + j);
  for (int r = 0; r < count_; ++r) {
    kernels_.dequantize(acc + r * kPanel, columns, scales[r], scale, s.y);
    kernels_.round(s.y, columns, q_ + r * q_width_ + i * kPanel);
  }
}

/// Sixteen heads of a token. Steps Q3 to Q5.
void IndexerProlog::head_block(std::int64_t i, const Scratch& s) const {
  const std::int64_t blocks = (p_.heads + kHeads - 1) / kHeads, h0 = i % blocks * kHeads;
  const int r = int(i / blocks), heads = int(std::min<std::int64_t>(kHeads, p_.heads - h0));
  bf16* q = q_ + r * q_width_ + h0 * p_.dim;
  const auto tap = [&](const char* step, const bf16* rows) {
    if (taps_) taps_->row(step, DType::bf16, first_ + r, h0 * p_.dim, heads * p_.dim, rows);
  };
  tap("Q2.q", q);
  for (int h = 0; h < heads; ++h) rotate_first(q + h * p_.dim, r, s);
  tap("Q3.q", q);
  const bf16* rows = transformed(q, heads, hadamard_q_, s);
  tap("Q4.q", rows);
  for (int h = 0; h < heads; ++h) {
    const std::int64_t out = (first_ + r) * p_.heads + h0 + h;
    kernels_.widen(rows + h * p_.dim, p_.dim, s.row);
    *p_.q_scale.row<f16>(out) = to_f16(quantise(kernels_, kPyPto, s.row, p_.dim, p_.q_int8.row<std::int8_t>(out)));
  }
}

}  // namespace dsakit::prolog
