// SPDX-License-Identifier: Apache-2.0
#include "ops/prolog/mla.hpp"

#include <algorithm>
#include <cstring>

namespace dsakit::prolog {

namespace {

/// The multipliers of `columns` columns: one each, or one for all.
void read_scales(const Rows& scales, std::int64_t columns, float* out) {
  for (std::int64_t c = 0; c < columns; ++c) out[c] = *scales.row<const float>(scales.count == 1 ? 0 : c);
}

void multiply(float* x, const float* factors, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) x[i] *= factors[i];
}
void multiply(float* x, float factor, std::int64_t n) {
  if (factor == 1) return;
  for (std::int64_t i = 0; i < n; ++i) x[i] *= factor;
}

}  // namespace

MlaProlog::MlaProlog(const MlaProblem& problem, const HiddenTile& hidden, const Call& call, Carver& memory)
    : p_(problem),
      kernels_(call.kernels()),
      hidden_(hidden),
      threads_(call.threads()),
      codes_stride_(Panel<std::int8_t>::depth(p_.rank)),
      heads_of_task_(heads_of_panels(head_width(), p_.heads)),
      keeps_rope_(p_.quantised_query() && !p_.numerics.rounds_before_rope),
      widens_(call.same_products() || call.kernels().widens_rows) {
  const bool codes = p_.quantised_query();
  auto floats = [&](bool wanted, std::int64_t n) { return wanted ? memory.take<float>(n) : nullptr; };
  gamma_cq_ = memory.take<float>(p_.rank);
  gamma_ckv_ = memory.take<float>(p_.latent);
  cos_ = memory.take<float>(kTile * p_.rope);
  sin_ = memory.take<float>(kTile * p_.rope);
  scales_ = memory.take<float>(kTile);
  x_scales_ = floats(p_.quantised_hidden() && !p_.sums.given(), kTile);
  smooth_ = floats(p_.smooth.tensor.data, p_.rank);
  latent_scale_ = floats(p_.latent_store == Store::given_scale, p_.latent);
  key_scale_ = floats(p_.key_store == Store::given_scale, p_.rope);
  c_ = memory.take<float>(kTile * p_.rank);
  kv_ = memory.take<float>(kTile * (p_.latent + p_.rope));
  codes_ = codes ? memory.take<std::uint8_t>(kTile * codes_stride_) : nullptr;
  q_norm_ = codes ? nullptr : memory.take<bf16>(kTile * p_.rank);
  q_norm_wide_ = floats(!codes && widens_, kTile * p_.rank);
  Carver one;
  carve(one);
  scratch_bytes_ = std::int64_t(one.bytes());
  scratch_ = memory.take<std::byte>(scratch_bytes_ * call.threads());
}

MlaProlog::Scratch MlaProlog::carve(Carver& memory) const {
  const std::int64_t panel = std::max(
      {p_.w_dq.scratch_bytes(), p_.w_dkv_kr.scratch_bytes(), p_.w_uq_qr.scratch_bytes(), p_.w_uk.scratch_bytes()});
  return {memory.take<std::byte>(panel),
          memory.take<float>(kPanelsAtOnce * kTile * kPanel),
          memory.take<float>(kPanelsAtOnce * kTile * kPanel),
          memory.take<std::byte>(Operand::kBlockElements * std::int64_t(widens_ ? sizeof(float) : sizeof(bf16))),
          memory.take<float>(2 * std::max(p_.rank, p_.latent + p_.rope)),
          memory.take<float>(widens_ ? kTile * p_.nope : 0),
          memory.take<bf16>(heads_of_task_ * kTile * head_width()),
          memory.take<float>((keeps_rope_ ? heads_of_task_ : 1) * kTile * p_.rope),
          memory.take<float>(kTile * p_.rope),
          memory.take<std::byte>(2 * std::max(p_.latent, p_.rope)),
          memory.take<bf16>(p_.query_codes() || streamed() ? kTile * p_.latent : 0)};
}

void MlaProlog::begin(std::int64_t first, int count) {
  first_ = first, count_ = count;
  for (int r = 0; r < count && x_scales_; ++r) x_scales_[r] = *p_.x_scale.row<const float>(first + r);
  if (p_.sums.made()) return;
  if (first == 0) {
    kernels_.widen(p_.gamma_cq, p_.rank, gamma_cq_);
    kernels_.widen(p_.gamma_ckv, p_.latent, gamma_ckv_);
    if (smooth_) read_scales(p_.smooth, p_.rank, smooth_);
    if (latent_scale_) read_scales(p_.latent_scale, p_.latent, latent_scale_);
    if (key_scale_) read_scales(p_.key_scale, p_.rope, key_scale_);
  }
  for (int r = 0; r < count; ++r) {
    kernels_.widen(p_.cos.row<const bf16>(first + r), p_.rope, cos_ + r * p_.rope);
    kernels_.widen(p_.sin.row<const bf16>(first + r), p_.rope, sin_ + r * p_.rope);
  }
  slots_ = TileSlots(p_.cache_index, p_.kv_cache.count() > 0, first, count);
}

std::int64_t MlaProlog::tasks(Stage stage) const {
  if (p_.sums.made() && stage != Stage::hidden_products) return 0;
  switch (stage) {
    case Stage::hidden_products:
      if (p_.sums.given()) return 2 * count_;
      return tasks_of_panels(p_.w_dq, count_, threads_) + tasks_of_panels(p_.w_dkv_kr, count_, threads_);
    case Stage::rows:
      return 2 * count_;
    case Stage::heads:
      return (p_.heads + heads_of_task_ - 1) / heads_of_task_;
  }
  return 0;
}

Work MlaProlog::work(Stage stage) const {
  switch (stage) {
    case Stage::hidden_products:
      if (p_.sums.given()) return {.elements = double(count_ * (p_.rank + p_.latent + p_.rope))};
      return product_work(count_, double(p_.hidden) * double(p_.rank + p_.latent + p_.rope), p_.quantised_hidden());
    case Stage::rows:
      return {.elements = double(count_ * (p_.rank + p_.latent + p_.rope))};
    case Stage::heads: {
      const std::int64_t row = p_.rope + (p_.query_codes() ? p_.latent : 0);
      return product_work(count_, double(p_.rank) * double(p_.heads * head_width()), p_.quantised_query()) +
             product_work(count_, double(p_.heads) * double(p_.nope * p_.latent), false) +
             Work{.elements = double(count_ * p_.heads * row)};
    }
  }
  return {};
}

void MlaProlog::task(Stage stage, std::int64_t i, int thread) const {
  Carver memory(scratch_ + thread * scratch_bytes_);
  const Scratch s = carve(memory);
  switch (stage) {
    case Stage::hidden_products:
      return p_.sums.given() ? take_sums(i) : hidden_panels(i, s);
    case Stage::rows:
      return i < count_ ? query_row(int(i), s) : key_row(int(i - count_), s);
    case Stage::heads:
      return query_heads(i, s);
  }
}

/// y = the tile's rows of codes times a panel, dequantised; as many columns as the weight has there.
void MlaProlog::product_of_codes(const std::uint8_t* codes, std::int64_t stride, const Weight& w, std::int64_t i,
                                 const float* token_scale, const Rows& column_scale, const Scratch& s, float* y,
                                 std::int64_t y_stride) const {
  const std::int64_t columns = std::min<std::int64_t>(kPanel, w.n - i * kPanel);
  const auto panel = w.panel_i8(i, s.panel);
  auto* acc = reinterpret_cast<std::int32_t*>(s.sum2);
  kernels_.product(codes, stride, count_, panel.codes, panel.column_sums, int(stride), acc, kPanel);
  float scale[kPanel];
  for (std::int64_t j = 0; j < columns; ++j) scale[j] = *column_scale.row<const float>(i * kPanel + j);
  for (int r = 0; r < count_; ++r)
    kernels_.dequantize(acc + r * kPanel, columns, token_scale[r], scale, y + r * y_stride);
}

/// Panels of [w_dq | w_dkv_kr], which both multiply the hidden states. Steps 1 and 7.
void MlaProlog::hidden_panels(std::int64_t i, const Scratch& s) const {
  const std::int64_t of_query = tasks_of_panels(p_.w_dq, count_, threads_);
  const bool query = i < of_query;
  if (!query) i -= of_query;
  const Weight& w = query ? p_.w_dq : p_.w_dkv_kr;
  const std::int64_t most = panels_at_once(w, count_, threads_), first = i * most;
  const std::int64_t panels = std::min(most, w.panels() - first);
  float* out = (query ? c_ : kv_) + first * kPanel;
  std::int64_t pitch = w.n;
  if (p_.sums.made()) {
    pitch = query ? p_.sums.first_stride : p_.sums.second_stride;
    out = (query ? p_.sums.first : p_.sums.second) + first_ * pitch + first * kPanel;
  }
  if (p_.quantised_hidden())
    return product_of_codes(hidden_.codes(), hidden_.codes_stride(), w, first, x_scales_,
                            query ? p_.dq_scale : p_.dkv_kr_scale, s, out, pitch);
  const auto times = [&](const Operand& rows, std::int64_t from, std::int64_t depth, float* sums) {
    if (panels == 1) rows.times(kernels_, count_, Operand::Panel{w, 0, first, s.panel, from}, depth, sums);
    else rows.times(kernels_, count_, w, first, panels, from, depth, s.block, sums);
  };
  if (query && p_.numerics.halves_first_sum && hidden_.split() > 0) {
    times(hidden_.all(), 0, hidden_.split(), s.sum);
    times(hidden_.second(), hidden_.second_from(), p_.hidden - hidden_.second_from(), s.sum2);
    for (std::int64_t p = 0; p < panels; ++p)
      for (std::int64_t j = p * kTile * kPanel, end = j + count_ * kPanel; j < end; ++j) s.sum[j] += s.sum2[j];
  } else {
    times(hidden_.all(), 0, p_.hidden, s.sum);
  }
  for (std::int64_t p = 0; p < panels; ++p, out += kPanel) {
    const std::int64_t columns = std::min<std::int64_t>(kPanel, w.n - (first + p) * kPanel);
    for (int r = 0; r < count_; ++r) {
      const float* sums = s.sum + (p * kTile + r) * kPanel;
      if (p_.sums.made()) std::memcpy(out + r * pitch, sums, std::size_t(columns) * sizeof(float));
      else round_to_bf16(sums, columns, out + r * pitch);
    }
  }
}

/// What hidden_panels would leave of one token, half of it, from sums that are there.
void MlaProlog::take_sums(std::int64_t i) const {
  const bool query = i < count_;
  const std::int64_t r = query ? i : i - count_, n = query ? p_.rank : p_.latent + p_.rope;
  const float* sums = query ? p_.sums.first + (first_ + r) * p_.sums.first_stride
                            : p_.sums.second + (first_ + r) * p_.sums.second_stride;
  float* out = (query ? c_ : kv_) + r * n;
  if (p_.quantised_hidden()) std::memcpy(out, sums, std::size_t(n) * sizeof(float));
  else round_to_bf16(sums, n, out);
}

/// bf16(x), as fp32.
void MlaProlog::round_to_bf16(const float* x, std::int64_t n, float* y) const {
  bf16 rounded[kPanel];
  for (std::int64_t i = 0; i < n; i += kPanel) {
    const std::int64_t some = std::min<std::int64_t>(kPanel, n - i);
    kernels_.round(x + i, some, rounded);
    kernels_.widen(rounded, some, y + i);
  }
}

/// Steps 2 and 3.
void MlaProlog::query_row(int r, const Scratch& s) const {
  const std::int64_t n = p_.rank, token = first_ + r;
  float* y = s.row;
  rms_norm(kernels_, p_.numerics.norm, c_ + r * n, n, gamma_cq_, p_.epsilon_cq, y);
  multiply(y, p_.query_factor, n);
  if (taps_) taps_->row("1.c", DType::f32, token, 0, n, c_ + r * n), taps_->row("2.cq", DType::f32, token, 0, n, y);
  if (!p_.quantised_query()) {
    kernels_.round(y, n, q_norm_ + r * n);
    if (taps_) taps_->row("3.query_norm", DType::bf16, token, 0, n, q_norm_ + r * n);
    if (p_.q_norm.tensor.data) std::memcpy(p_.q_norm.row<bf16>(token), q_norm_ + r * n, std::size_t(n) * sizeof(bf16));
    if (q_norm_wide_) kernels_.widen(q_norm_ + r * n, n, q_norm_wide_ + r * n);
    return;
  }
  if (smooth_) multiply(y, smooth_, n);
  if (p_.numerics.rounds_before_quantising) {
    auto* rounded = reinterpret_cast<bf16*>(y + n);
    kernels_.round(y, n, rounded);
    kernels_.widen(rounded, n, y);
  }
  auto* codes = reinterpret_cast<std::int8_t*>(y + n);
  scales_[r] = quantise(kernels_, p_.numerics, y, n, codes);
  bias_codes(codes, n, codes_ + r * codes_stride_);
  if (taps_) {
    taps_->row("3.query_norm", DType::i8, token, 0, n, codes);
    taps_->row("3.query_norm_scale", DType::f32, token, 0, 1, scales_ + r);
  }
  if (!p_.q_norm.tensor.data) return;
  std::memcpy(p_.q_norm.row<std::int8_t>(token), codes, std::size_t(n));
  *p_.q_norm_scale.row<float>(token) = scales_[r];
}

/// Steps 8 to 10.
void MlaProlog::key_row(int r, const Scratch& s) const {
  const std::int64_t slot = slots_[r], n = p_.latent;
  if (slot < 0) return;
  const float* x = kv_ + r * (n + p_.rope);
  float* y = s.row;
  const bool pypto = p_.numerics.rounds_before_quantising;  // where the pages number differently
  rotate(RopeLayout::interleaved_to_half, x + n, cos_ + r * p_.rope, sin_ + r * p_.rope, p_.rope / 2, y);
  if (taps_) {
    taps_->row("7.kv", DType::f32, first_ + r, 0, n + p_.rope, x);
    taps_->row(pypto ? "8.kr" : "9.kr", DType::f32, first_ + r, 0, p_.rope, y);
  }
  store_key(slot, y, s);
  rms_norm(kernels_, p_.numerics.norm, x, n, gamma_ckv_, p_.epsilon_ckv, y);
  multiply(y, p_.latent_factor, n);
  if (taps_) taps_->row(pypto ? "9.ckv" : "8.ckv", DType::f32, first_ + r, 0, n, y);
  store_latent(slot, y, s);
}

void MlaProlog::store_key(std::int64_t slot, float* y, const Scratch& s) const {
  auto* rounded = reinterpret_cast<bf16*>(s.stored);
  kernels_.round(y, p_.rope, rounded);
  if (p_.key_store == Store::bf16) return p_.kr_cache.store(slot, rounded, p_.rope * std::int64_t(sizeof(bf16)));
  kernels_.widen(rounded, p_.rope, y);
  multiply(y, key_scale_, p_.rope);
  kernels_.quantize(y, p_.rope, 1, reinterpret_cast<std::int8_t*>(s.stored));
  p_.kr_cache.store(slot, s.stored, p_.rope);
}

void MlaProlog::store_latent(std::int64_t slot, float* y, const Scratch& s) const {
  const std::int64_t n = p_.latent, width = n / p_.groups;
  auto* rounded = reinterpret_cast<bf16*>(s.stored);
  auto* codes = reinterpret_cast<std::int8_t*>(s.stored);
  float* scales = y + n;
  switch (p_.latent_store) {
    case Store::bf16:
      kernels_.round(y, n, rounded);
      return p_.kv_cache.store(slot, rounded, n * std::int64_t(sizeof(bf16)));
    case Store::given_scale:
      multiply(y, latent_scale_, n);
      kernels_.quantize(y, n, 1, codes);
      return p_.kv_cache.store(slot, codes, n);
    case Store::groups:
      if (p_.numerics.rounds_before_quantising) {
        kernels_.round(y, n, rounded);
        kernels_.widen(rounded, n, y);
      }
      for (std::int64_t g = 0; g < p_.groups; ++g)
        scales[g] = quantise_group(kernels_, p_.numerics, p_.clip, y + g * width, width, codes + g * width);
      p_.kv_cache.store(slot, codes, n);
      p_.k_scale_cache.store(slot, scales, p_.groups * std::int64_t(sizeof(float)));
  }
}

/// Steps 4 to 6 of some heads.
void MlaProlog::query_heads(std::int64_t i, const Scratch& s) const {
  const std::int64_t first = i * heads_of_task_, end = std::min(first + heads_of_task_, p_.heads);
  for (std::int64_t j = first * head_width() / kPanel; j < panels_of(end * head_width()); ++j)
    query_panel(j, first, end, s);
  for (std::int64_t h = first; h < end; ++h) head(h, h - first, s);
}

/// Step 4, with the rounding of step 5a: the columns that a panel has of heads first to end.
void MlaProlog::query_panel(std::int64_t i, std::int64_t first, std::int64_t end, const Scratch& s) const {
  if (p_.quantised_query()) {
    product_of_codes(codes_, codes_stride_, p_.w_uq_qr, i, scales_, p_.uq_qr_scale, s, s.sum, kPanel);
  } else {
    const Operand operand = {q_norm_, q_norm_wide_, p_.rank};
    operand.times(kernels_, count_, {p_.w_uq_qr, 0, i, s.panel}, p_.rank, s.sum);
  }
  const std::int64_t begin = std::max(i * kPanel, first * head_width()),
                     stop = std::min((i + 1) * kPanel, end * head_width());
  for (std::int64_t at = begin, n; at < stop; at += n) {  // those of one head
    const std::int64_t h = at / head_width() - first, column = at % head_width();
    n = std::min(stop - at, head_width() - column);
    const std::int64_t rope = std::clamp<std::int64_t>(p_.nope - column, 0, n);  // from here on, of these
    for (int r = 0; r < count_; ++r) {
      const float* sums = s.sum + r * kPanel + (at - i * kPanel);
      kernels_.round(sums, n, s.q + (h * kTile + r) * head_width() + column);
      if (keeps_rope_ && rope < n)
        std::memcpy(s.rope + (h * kTile + r) * p_.rope + (column + rope - p_.nope), sums + rope,
                    std::size_t(n - rope) * sizeof(float));
    }
  }
}

/// Steps 5 and 6 of the head that is number `slot` of the task.
void MlaProlog::head(std::int64_t h, std::int64_t slot, const Scratch& s) const {
  const bf16* q = s.q + slot * kTile * head_width();
  query_products(h, q, s);
  const float* input = s.rope + (keeps_rope_ ? slot * kTile * p_.rope : 0);
  for (int r = 0; r < count_ && !keeps_rope_; ++r)
    kernels_.widen(q + r * head_width() + p_.nope, p_.rope, s.rope + r * p_.rope);
  kernels_.rotate({.pairs = RopePairs::adjacent_to_half,
                   .x = input,
                   .x_stride = p_.rope,
                   .cos = cos_,
                   .cos_stride = p_.rope,
                   .sin = sin_,
                   .sin_stride = p_.rope,
                   .y = s.rotated,
                   .y_stride = p_.rope,
                   .rows = count_,
                   .half = p_.rope / 2});
  for (int r = 0; r < count_; ++r) {
    const std::int64_t out = (first_ + r) * p_.heads + h;
    float* y = s.rotated + r * p_.rope;
    bf16* rotated = p_.query_rope.row<bf16>(out);
    kernels_.round(y, p_.rope, rotated);
    if (taps_) {
      taps_->row("4.q_nope", DType::bf16, first_ + r, h * p_.nope, p_.nope, q + r * head_width());
      taps_->row("4.q_rope", DType::f32, first_ + r, h * p_.rope, p_.rope, input + r * p_.rope);
      const bf16* query = p_.query_codes() ? s.query + r * p_.latent : p_.query_nope.row<bf16>(out);
      taps_->row("5.query", DType::bf16, out, 0, p_.latent, query);
      taps_->row("6.query_rope", DType::bf16, out, 0, p_.rope, rotated);
    }
    if (!p_.query_codes()) continue;
    // The query's codes and the latent's have scales; attention adds the rope's products before it takes them off.
    const float scale = code_query(out, s.query + r * p_.latent, s);
    kernels_.widen(rotated, p_.rope, y);
    const float factor = scale != 0 ? latent_scale_[0] / scale : 0;
    for (std::int64_t j = 0; j < p_.rope; ++j) y[j] = scale != 0 ? y[j] * factor : 0;
    kernels_.round(y, p_.rope, rotated);
  }
}

/// The absorbed query of a head, to the output or, where that holds codes, to s.query.
void MlaProlog::query_products(std::int64_t h, const bf16* q, const Scratch& s) const {
  Operand operand = {q, nullptr, head_width()};
  if (widens_) {
    for (int r = 0; r < count_; ++r) kernels_.widen(q + r * head_width(), p_.nope, s.wide + r * p_.nope);
    operand = {nullptr, s.wide, p_.nope};
  }
  const auto output = [&](int r) { return p_.query_nope.row<bf16>((first_ + r) * p_.heads + h); };
  const bool aside = p_.query_codes() || streamed();
  for (std::int64_t i = 0; i < p_.w_uk.panels(); ++i) {
    const std::int64_t columns = std::min<std::int64_t>(kPanel, p_.latent - i * kPanel);
    operand.times(kernels_, count_, {p_.w_uk, h, i, s.panel}, p_.nope, s.sum);
    for (int r = 0; r < count_; ++r) {
      bf16* to = aside ? s.query + r * p_.latent : output(r);
      kernels_.round(s.sum + r * kPanel, columns, to + i * kPanel);
    }
  }
  if (p_.query_codes() || !aside) return;
  std::byte* to[kTile];
  const std::byte* from[kTile];
  for (int r = 0; r < count_; ++r)
    to[r] = reinterpret_cast<std::byte*>(output(r)), from[r] = reinterpret_cast<const std::byte*>(s.query + r * p_.latent);
  stream_rows(to, from, count_, std::size_t(p_.latent) * sizeof(bf16));
  stream_fence();
}

/// Step 5c for one head of a token: codes and scale, which is the result.
float MlaProlog::code_query(std::int64_t out, const bf16* query, const Scratch& s) const {
  const std::int64_t n = p_.latent;
  auto* codes = p_.query_nope.row<std::int8_t>(out);
  kernels_.widen(query, n, s.row);
  const float largest = kernels_.max_abs(s.row, n), multiplier = 127.0f / largest;
  const bool tiny = !std::isfinite(multiplier);
  for (std::int64_t i = 0; i < n; ++i) codes[i] = tiny ? std::int8_t{0} : code_away(s.row[i] * multiplier);
  const float scale = tiny ? 0 : largest / 127.0f;
  *p_.query_scale.row<float>(out) = scale;
  return scale;
}

}  // namespace dsakit::prolog
