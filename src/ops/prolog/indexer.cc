// SPDX-License-Identifier: Apache-2.0
#include "ops/prolog/indexer.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "core/float16.hpp"

namespace dsakit::prolog {
namespace {

RopePairs pairs_of(RopeLayout layout) {
  if (layout == RopeLayout::half) return RopePairs::half;
  return layout == RopeLayout::interleaved ? RopePairs::adjacent : RopePairs::adjacent_to_half;
}

/// The s of a [n, n] matrix whose element i, j is s, or -s if i and j share an odd number of bits: row k, b its highest bit,
/// is row k - b with the other sign where the column has bit b.
std::optional<float> scale_of_sylvester(const Tensor& matrix, std::int64_t n) {
  if (n < kHadamardLeast || n > kHadamardMost || !std::has_single_bit(std::uint64_t(n))) return {};
  const auto row = [&](std::int64_t k) { return static_cast<const bf16*>(matrix.data) + k * matrix.stride[0]; };
  const bf16* const first = row(0);
  std::uint16_t sign[kHadamardMost] = {}, different = 0;
  for (std::int64_t j = 0; j < n; ++j) different |= first[j].bits ^ first->bits;
  for (std::int64_t b = 1; b < n && different == 0; b *= 2) {
    for (std::int64_t j = 0; j < n; ++j) sign[j] = j & b ? 0x8000 : 0;
    for (std::int64_t k = b; k < 2 * b; ++k) {
      const bf16 *const like = row(k - b), *const here = row(k);
      for (std::int64_t j = 0; j < n; ++j) different |= here[j].bits ^ like[j].bits ^ sign[j];
    }
  }
  const float scale = to_float(*first);
  return different == 0 && std::isfinite(scale) ? std::optional(scale) : std::nullopt;
}

}  // namespace

IndexerProlog::IndexerProlog(const IndexerProblem& problem, const HiddenTile& hidden, const MlaProlog* query,
                             const Call& call, Carver& memory)
    : p_(problem),
      kernels_(call.kernels()),
      hidden_(hidden),
      query_(query),
      threads_(call.threads()),
      codes_stride_(Panel<std::int8_t>::depth(p_.rank)),
      widens_(call.same_products() || call.kernels().widens_rows) {
  gamma_ = memory.take<float>(p_.dim);
  beta_ = memory.take<float>(p_.dim);
  cos_ = memory.take<bf16>(kTile * p_.rope);
  sin_ = memory.take<bf16>(kTile * p_.rope);
  k_ = memory.take<float>(kTile * p_.dim);
  scales_ = query ? nullptr : memory.take<float>(kTile);
  codes_ = query ? nullptr : memory.take<std::uint8_t>(kTile * codes_stride_);
  const std::int64_t square = Panels<bf16>::elements(p_.dim, p_.dim);
  hadamard_q_.panels = p_.hadamard_q ? memory.take<bf16>(square) : nullptr;
  hadamard_k_.panels = p_.hadamard_k ? memory.take<bf16>(square) : nullptr;
  Carver one;
  carve(one);
  scratch_bytes_ = std::int64_t(one.bytes());
  scratch_ = memory.take<std::byte>(scratch_bytes_ * call.threads());
}

IndexerProlog::Scratch IndexerProlog::carve(Carver& memory) const {
  Scratch s;
  s.panel = memory.take<std::byte>(std::max({p_.wk.scratch_bytes(), p_.w_proj.scratch_bytes(), p_.w_qb.scratch_bytes(),
                                             p_.dim * std::int64_t(sizeof(const bf16*))}));
  s.sum = memory.take<float>(most_rows() * kPanel);
  s.row = memory.take<float>(p_.dim);
  s.wide = memory.take<float>(widens_ ? most_rows() * p_.dim : 0);
  s.in = memory.take<bf16>(most_rows() * p_.dim);
  s.rotated = memory.take<bf16>(kTile * p_.rope);
  s.out = memory.take<bf16>(most_rows() * p_.dim);
  return s;
}

/// As given, the factors of the first elements of the pairs and then those of the second; here they lie where the
/// elements do.
void IndexerProlog::factors_of_elements(const bf16* given, bf16* factors) const {
  const std::int64_t half = p_.rope / 2;
  for (std::int64_t j = 0; j < p_.rope; ++j)
    factors[j] = given[p_.layout == RopeLayout::interleaved ? j % 2 * half + j / 2 : j];
}

void IndexerProlog::begin(std::int64_t first, int count) {
  first_ = first, count_ = count;
  if (p_.sums.made()) return;
  if (first == 0) {
    for (std::int64_t c = 0; c < p_.dim; ++c) gamma_[c] = float_at(p_.gamma, c), beta_[c] = float_at(p_.beta, c);
    Carver memory(scratch_);
    auto* rows = reinterpret_cast<const bf16**>(carve(memory).panel);
    take_hadamard(p_.hadamard_q, rows, hadamard_q_);
    take_hadamard(p_.hadamard_k, rows, hadamard_k_);
  }
  for (int r = 0; r < count; ++r) {
    factors_of_elements(p_.cos.row<const bf16>(first + r), cos_ + r * p_.rope);
    factors_of_elements(p_.sin.row<const bf16>(first + r), sin_ + r * p_.rope);
    if (!query_) scales_[r] = *p_.q_norm_scale.row<const float>(first + r);
  }
  slots_ = TileSlots(p_.cache_index, p_.k_cache.count > 0, first, count);
}

std::int64_t IndexerProlog::tasks(Stage stage) const {
  if (p_.sums.made() && stage != Stage::hidden_products) return 0;
  switch (stage) {
    case Stage::hidden_products:
      if (p_.sums.given()) return count_;
      return (p_.wk.panels() + p_.w_proj.panels()) * ((count_ + hidden_rows() - 1) / hidden_rows());
    case Stage::rows:
      return query_ ? count_ : 2 * count_;
    case Stage::heads:
      return (p_.heads + heads_of_task() - 1) / heads_of_task();
  }
  return 0;
}

Work IndexerProlog::work(Stage stage) const {
  // Products of a row with a matrix; sums and differences instead are little.
  const double rotations = hadamard_q_.panels && !hadamard_q_.scale ? double(p_.dim * p_.dim) : 0;
  switch (stage) {
    case Stage::hidden_products:
      if (p_.sums.given()) return {.elements = double(count_ * (p_.dim + p_.all_heads))};
      return product_work(count_, double(p_.hidden) * double(p_.dim + p_.all_heads), false);
    case Stage::rows:
      return Work{.products = rotations, .elements = double(p_.rank + 8 * p_.dim) / 4} * count_;
    case Stage::heads:
      return product_work(count_, double(p_.rank) * double(p_.heads * p_.dim), true) +
             Work{.products = rotations, .elements = double(p_.dim)} * double(count_ * p_.heads);
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
    case Stage::heads:
      return query_heads(i, s);
  }
}

/// A panel of [wk | w_proj] and some tokens: there are few panels. Steps K1, W1, W2.
void IndexerProlog::hidden_panel(std::int64_t i, const Scratch& s) const {
  const std::int64_t panels = p_.wk.panels() + p_.w_proj.panels();
  const int begin = int(i / panels) * hidden_rows(), count = std::min(hidden_rows(), count_ - begin);
  i %= panels;
  const bool key = i < p_.wk.panels();
  if (!key) i -= p_.wk.panels();
  const Weight& w = key ? p_.wk : p_.w_proj;
  const std::int64_t columns = std::min<std::int64_t>(kPanel, w.n - i * kPanel);
  hidden_.all().from(begin).times(kernels_, count, {w, 0, i, s.panel}, p_.hidden, s.sum);
  const HiddenSums& sums = p_.sums;
  for (int r = begin; r < begin + count; ++r) {
    const float* sum = s.sum + (r - begin) * kPanel;
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

/// RoPE on the first dims of rows of neighbouring tokens, in place.
void IndexerProlog::rotate_first(bf16* rows, int token, int count, const Scratch& s) const {
  kernels_.rotate({.pairs = pairs_of(p_.layout),
                   .x = rows,
                   .x_stride = p_.dim,
                   .cos = cos_ + token * p_.rope,
                   .cos_stride = p_.rope,
                   .sin = sin_ + token * p_.rope,
                   .sin_stride = p_.rope,
                   .y = s.rotated,
                   .y_stride = p_.rope,
                   .rows = count,
                   .half = p_.rope / 2});
  for (int r = 0; r < count; ++r)
    std::memcpy(rows + r * p_.dim, s.rotated + r * p_.rope, std::size_t(p_.rope) * sizeof(bf16));
}

/// `rows` has room for dim addresses.
void IndexerProlog::take_hadamard(const Tensor& matrix, const bf16** rows, Hadamard& to) const {
  if (!to.panels) return;
  to.scale = scale_of_sylvester(matrix, p_.dim);
  if (to.scale) return;
  for (std::int64_t k = 0; k < p_.dim; ++k) rows[k] = static_cast<const bf16*>(matrix.data) + k * matrix.stride[0];
  kernels_.interleave(rows, int(p_.dim), int(p_.dim), to.panels);
}

/// bf16(rows times the matrix), [rows][dim]; the rows themselves without one.
const bf16* IndexerProlog::transformed(const bf16* in, int rows, const Hadamard& hadamard, const Scratch& s) const {
  if (!hadamard.panels) return in;
  if (hadamard.scale) {
    kernels_.hadamard(in, rows, int(p_.dim), *hadamard.scale, s.out);
    return s.out;
  }
  Operand operand = {in, nullptr, p_.dim};
  if (widens_) {
    kernels_.widen(in, rows * p_.dim, s.wide);
    operand = {nullptr, s.wide, p_.dim};
  }
  for (std::int64_t c = 0; c < p_.dim; c += kPanel) {
    operand.times(kernels_, rows, hadamard.panels + Panels<bf16>::panel(p_.dim, c / kPanel), 0, p_.dim, s.sum);
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
  rotate_first(s.in, r, 1, s);
  tap("K3.k", s.in);
  const bf16* k = transformed(s.in, 1, hadamard_k_, s);
  tap("K4.k", k);
  const float scale = quantise(kernels_, kPyPto, k, p_.dim, p_.k_cache.row<std::int8_t>(slot));
  if (p_.k_scale_cache.tensor.dtype == DType::f16) *p_.k_scale_cache.row<f16>(slot) = to_f16(scale);
  else *p_.k_scale_cache.row<float>(slot) = scale;
}

/// So many that a matrix of steps Q4 meets more than a few rows, if that leaves tasks enough.
std::int64_t IndexerProlog::heads_of_task() const {
  constexpr std::int64_t kRows = 16;
  const std::int64_t least = heads_of_panels(p_.dim, p_.heads);
  return std::max(least, std::min(kRows / count_, p_.heads / (2 * threads_)) / least * least);
}

/// Steps Q1 and Q2: the columns that a panel has of heads first to end.
void IndexerProlog::query_panel(std::int64_t i, std::int64_t first, std::int64_t end, const Scratch& s) const {
  const auto panel = p_.w_qb.panel_i8(i, s.panel);
  const float* scales = query_ ? query_->query_scales() : scales_;
  auto* acc = reinterpret_cast<std::int32_t*>(s.sum);
  kernels_.product(query_ ? query_->query_codes() : codes_, codes_stride_, count_, panel.codes, panel.column_sums,
                      int(codes_stride_), acc, kPanel);
  const std::int64_t begin = std::max(i * kPanel, first * p_.dim), stop = std::min((i + 1) * kPanel, end * p_.dim);
  float scale[kPanel];
  for (std::int64_t j = begin; j < stop; ++j) scale[j - begin] = *p_.channel_scale.row<const float>(j);
  for (int r = 0; r < count_; ++r) {
    for (std::int64_t at = begin, n; at < stop; at += n) {  // those of one head
      const std::int64_t head = at / p_.dim, column = at % p_.dim;
      n = std::min(stop - at, p_.dim - column);
      kernels_.dequantize(acc + r * kPanel + (at - i * kPanel), n, scales[r], scale + (at - begin),
                          s.in + ((head - first) * count_ + r) * p_.dim + column);
    }
  }
}

/// Steps Q1 to Q5 of some heads.
void IndexerProlog::query_heads(std::int64_t i, const Scratch& s) const {
  const std::int64_t first = i * heads_of_task(), end = std::min(first + heads_of_task(), p_.heads);
  const auto tap = [&](const char* step, const bf16* rows) {
    for (std::int64_t h = first; h < end && taps_; ++h)
      for (int r = 0; r < count_; ++r, rows += p_.dim)
        taps_->row(step, DType::bf16, first_ + r, h * p_.dim, p_.dim, rows);
  };
  for (std::int64_t j = first * p_.dim / kPanel; j < panels_of(end * p_.dim); ++j) query_panel(j, first, end, s);
  tap("Q2.q", s.in);
  for (std::int64_t h = 0; h < end - first; ++h) rotate_first(s.in + h * count_ * p_.dim, 0, count_, s);
  tap("Q3.q", s.in);
  const bf16* rows = transformed(s.in, int(end - first) * count_, hadamard_q_, s);
  tap("Q4.q", rows);
  for (std::int64_t h = first; h < end; ++h)
    for (int r = 0; r < count_; ++r, rows += p_.dim) {
      const std::int64_t out = (first_ + r) * p_.heads + h;
      *p_.q_scale.row<f16>(out) = to_f16(quantise(kernels_, kPyPto, rows, p_.dim, p_.q_int8.row<std::int8_t>(out)));
    }
}

}  // namespace dsakit::prolog
