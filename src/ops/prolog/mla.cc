// SPDX-License-Identifier: Apache-2.0
#include "ops/prolog/mla.hpp"

#include <algorithm>
#include <cstring>

namespace dsakit::prolog {

MlaProlog::MlaProlog(const MlaProblem& problem, const Kernels& kernels, const HiddenTile& hidden, bool same_products,
                     int threads, Carver& memory)
    : p_(problem),
      kernels_(kernels),
      hidden_(hidden),
      codes_stride_((p_.rank + 3) / 4 * 4),
      q_width_(p_.heads * (p_.nope + p_.rope)),
      same_products_(same_products) {
  gamma_cq_ = memory.take<float>(p_.rank);
  gamma_ckv_ = memory.take<float>(p_.latent);
  cos_ = memory.take<float>(kTile * p_.rope);
  sin_ = memory.take<float>(kTile * p_.rope);
  scales_ = memory.take<float>(kTile);
  c_ = memory.take<bf16>(kTile * p_.rank);
  kv_ = memory.take<bf16>(kTile * (p_.latent + p_.rope));
  q_ = memory.take<bf16>(kTile * q_width_);
  codes_ = p_.quantised ? memory.take<std::uint8_t>(kTile * codes_stride_) : nullptr;
  q_norm_ = p_.quantised ? nullptr : memory.take<bf16>(kTile * p_.rank);
  q_norm_wide_ = !p_.quantised && same_products ? memory.take<float>(kTile * p_.rank) : nullptr;
  Carver one;
  carve(one);
  scratch_bytes_ = std::int64_t(one.bytes());
  scratch_ = memory.take<std::byte>(scratch_bytes_ * threads);
}

MlaProlog::Scratch MlaProlog::carve(Carver& memory) const {
  const std::int64_t panel = std::max(
      {p_.w_dq.scratch_bytes(), p_.w_dkv_kr.scratch_bytes(), p_.w_uq_qr.scratch_bytes(), p_.w_uk.scratch_bytes()});
  return {memory.take<std::byte>(panel), memory.take<float>(kTile * kPanel), memory.take<float>(kTile * kPanel),
          memory.take<float>(2 * std::max(p_.rank, p_.latent + p_.rope)),
          memory.take<float>(same_products_ ? kTile * p_.nope : 0)};
}

void MlaProlog::begin(std::int64_t first, int count) {
  if (first == 0) {
    kernels_.widen_bf16(p_.gamma_cq, p_.rank, gamma_cq_);
    kernels_.widen_bf16(p_.gamma_ckv, p_.latent, gamma_ckv_);
  }
  first_ = first, count_ = count;
  for (int r = 0; r < count; ++r) {
    kernels_.widen_bf16(p_.cos.row<const bf16>(first + r), p_.rope, cos_ + r * p_.rope);
    kernels_.widen_bf16(p_.sin.row<const bf16>(first + r), p_.rope, sin_ + r * p_.rope);
  }
  slots_ = TileSlots(p_.cache_index, p_.kv_cache.count > 0, first, count);
}

std::int64_t MlaProlog::tasks(Stage stage) const {
  switch (stage) {
    case Stage::hidden_products:
      return p_.w_dq.panels() + p_.w_dkv_kr.panels();
    case Stage::rows:
      return 2 * count_;
    case Stage::query_products:
      return p_.w_uq_qr.panels();
    case Stage::heads:
      return p_.heads;
  }
  return 0;
}

double MlaProlog::time(Stage stage) const {
  switch (stage) {
    case Stage::hidden_products: {
      const double weights = double(p_.hidden) * double(p_.rank + p_.latent + p_.rope);
      return product_time(weights * 2, weights * count_);
    }
    case Stage::rows:
      return double(count_ * (p_.rank + p_.latent + p_.rope));
    case Stage::query_products: {
      const double weights = double(p_.rank) * double(q_width_);
      return product_time(weights * (p_.quantised ? 1 : 2), weights * count_);
    }
    case Stage::heads: {
      const double weights = double(p_.heads) * double(p_.nope * p_.latent);
      return product_time(weights * 2, weights * count_) + double(count_ * p_.heads * p_.rope);
    }
  }
  return 0;
}

void MlaProlog::task(Stage stage, std::int64_t i, int thread) const {
  Carver memory(scratch_ + thread * scratch_bytes_);
  const Scratch s = carve(memory);
  switch (stage) {
    case Stage::hidden_products:
      return hidden_panel(i, s);
    case Stage::rows:
      return i < count_ ? query_row(int(i), s) : key_row(int(i - count_), s);
    case Stage::query_products:
      return query_panel(i, s);
    case Stage::heads:
      return head(i, s);
  }
}

/// A panel of [w_dq | w_dkv_kr], which both multiply the hidden states. Steps 1 and 7.
void MlaProlog::hidden_panel(std::int64_t i, const Scratch& s) const {
  const bool query = i < p_.w_dq.panels();
  if (!query) i -= p_.w_dq.panels();
  const Weight& w = query ? p_.w_dq : p_.w_dkv_kr;
  const bf16* panel = w.panel_bf16(0, i, s.panel);
  const std::int64_t columns = std::min<std::int64_t>(kPanel, w.n - i * kPanel);
  if (query && p_.numerics.halves_first_sum && hidden_.split() > 0) {
    hidden_.all().times(kernels_, count_, panel, 0, hidden_.split(), s.sum);
    hidden_.second().times(kernels_, count_, panel, hidden_.second_from(), p_.hidden - hidden_.second_from(), s.sum2);
    for (std::int64_t j = 0; j < count_ * kPanel; ++j) s.sum[j] += s.sum2[j];
  } else {
    hidden_.all().times(kernels_, count_, panel, 0, p_.hidden, s.sum);
  }
  bf16* out = (query ? c_ : kv_) + i * kPanel;
  for (int r = 0; r < count_; ++r) kernels_.round_bf16(s.sum + r * kPanel, columns, out + r * w.n);
}

/// Steps 2 and 3.
void MlaProlog::query_row(int r, const Scratch& s) const {
  const std::int64_t n = p_.rank, token = first_ + r;
  float *x = s.row, *y = s.row + n;
  kernels_.widen_bf16(c_ + r * n, n, x);
  rms_norm(kernels_, p_.numerics, x, n, gamma_cq_, p_.epsilon_cq, y);
  if (!p_.quantised) {
    kernels_.round_bf16(y, n, q_norm_ + r * n);
    std::memcpy(p_.q_norm.row<bf16>(token), q_norm_ + r * n, std::size_t(n) * sizeof(bf16));
    if (q_norm_wide_) kernels_.widen_bf16(q_norm_ + r * n, n, q_norm_wide_ + r * n);
    return;
  }
  if (p_.numerics.rounds_before_quantising) {
    auto* rounded = reinterpret_cast<bf16*>(x);
    kernels_.round_bf16(y, n, rounded);
    kernels_.widen_bf16(rounded, n, y);
  }
  auto* codes = reinterpret_cast<std::int8_t*>(x);
  scales_[r] = quantise(kernels_, p_.numerics, y, n, codes);
  bias_codes(codes, n, codes_ + r * codes_stride_);
  if (!p_.q_norm.tensor.data) return;
  std::memcpy(p_.q_norm.row<std::int8_t>(token), codes, std::size_t(n));
  *p_.q_norm_scale.row<float>(token) = scales_[r];
}

/// Steps 8 and 9.
void MlaProlog::key_row(int r, const Scratch& s) const {
  const std::int64_t slot = slots_[r], n = p_.latent;
  if (slot < 0) return;
  float *x = s.row, *y = s.row + n + p_.rope;
  auto* rounded = reinterpret_cast<bf16*>(x);
  kernels_.widen_bf16(kv_ + r * (n + p_.rope), n + p_.rope, x);
  rope(RopeLayout::interleaved_to_half, x + n, cos_ + r * p_.rope, sin_ + r * p_.rope, p_.rope / 2, y);
  kernels_.round_bf16(y, p_.rope, p_.kr_cache.row<bf16>(slot));
  rms_norm(kernels_, p_.numerics, x, n, gamma_ckv_, p_.epsilon_ckv, y);
  if (!p_.quantised) return kernels_.round_bf16(y, n, p_.kv_cache.row<bf16>(slot));
  if (p_.numerics.rounds_before_quantising) {
    kernels_.round_bf16(y, n, rounded);
    kernels_.widen_bf16(rounded, n, y);
  }
  auto* codes = p_.kv_cache.row<std::int8_t>(slot);
  auto* scale = p_.k_scale_cache.row<float>(slot);
  const std::int64_t width = n / p_.groups;
  for (std::int64_t g = 0; g < p_.groups; ++g)
    scale[g] = quantise(kernels_, p_.numerics, y + g * width, width, codes + g * width);
}

/// Step 4.
void MlaProlog::query_panel(std::int64_t i, const Scratch& s) const {
  const std::int64_t columns = std::min<std::int64_t>(kPanel, q_width_ - i * kPanel);
  bf16* out = q_ + i * kPanel;
  if (p_.quantised) {
    const auto panel = p_.w_uq_qr.panel_i8(i, s.panel);
    auto* acc = reinterpret_cast<std::int32_t*>(s.sum2);
    kernels_.product_i8(codes_, codes_stride_, count_, panel.codes, panel.column_sums, int(codes_stride_), acc, kPanel);
    float scale[kPanel];
    for (std::int64_t j = 0; j < columns; ++j) scale[j] = *p_.channel_scale.row<const float>(i * kPanel + j);
    for (int r = 0; r < count_; ++r) {
      kernels_.dequantize(acc + r * kPanel, columns, scales_[r], scale, s.sum);
      kernels_.round_bf16(s.sum, columns, out + r * q_width_);
    }
    return;
  }
  const Operand operand = {q_norm_, q_norm_wide_, p_.rank};
  operand.times(kernels_, count_, p_.w_uq_qr.panel_bf16(0, i, s.panel), 0, p_.rank, s.sum);
  for (int r = 0; r < count_; ++r) kernels_.round_bf16(s.sum + r * kPanel, columns, out + r * q_width_);
}

/// Steps 5 and 6.
void MlaProlog::head(std::int64_t h, const Scratch& s) const {
  const std::int64_t head_width = p_.nope + p_.rope;
  const bf16* q = q_ + h * head_width;
  Operand operand = {q, nullptr, q_width_};
  if (same_products_) {
    for (int r = 0; r < count_; ++r) kernels_.widen_bf16(q + r * q_width_, p_.nope, s.wide + r * p_.nope);
    operand = {nullptr, s.wide, p_.nope};
  }
  for (std::int64_t i = 0; i < p_.w_uk.panels(); ++i) {
    const std::int64_t columns = std::min<std::int64_t>(kPanel, p_.latent - i * kPanel);
    operand.times(kernels_, count_, p_.w_uk.panel_bf16(h, i, s.panel), 0, p_.nope, s.sum);
    for (int r = 0; r < count_; ++r)
      kernels_.round_bf16(s.sum + r * kPanel, columns,
                          p_.query_nope.row<bf16>((first_ + r) * p_.heads + h) + i * kPanel);
  }
  float *x = s.row, *y = s.row + p_.rope;
  for (int r = 0; r < count_; ++r) {
    kernels_.widen_bf16(q + r * q_width_ + p_.nope, p_.rope, x);
    rope(RopeLayout::interleaved_to_half, x, cos_ + r * p_.rope, sin_ + r * p_.rope, p_.rope / 2, y);
    kernels_.round_bf16(y, p_.rope, p_.query_rope.row<bf16>((first_ + r) * p_.heads + h));
  }
}

}  // namespace dsakit::prolog
