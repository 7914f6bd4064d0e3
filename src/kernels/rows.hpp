// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "dsakit/tensor.hpp"
#include "kernels/kernels.hpp"
#include "kernels/vec/base.hpp"

// The row kernels: plain loops where the compiler makes vectors of them, the vocabulary where it does not. A plain
// expression has the same bits on every rung, since contraction is off.
namespace dsakit {
namespace {

DSAKIT_INLINE float folded(float (&lane)[16]) {
  for (int half = 8; half > 0; half /= 2)
    for (int l = 0; l < half; ++l) lane[l] += lane[l + half];
  return lane[0];
}

/// Lane l takes term(x[i]) for i = l, l + 16, ... ascending; then the lanes fold in halves.
template <class V, class Term>
DSAKIT_INLINE float canonical_sum(const float* x, std::int64_t n, Term term) {
  typename V::F sum[V::kParts] = {};
  std::int64_t i = 0;
  for (; i + 16 <= n; i += 16)
#pragma GCC unroll 4
    for (int r = 0; r < V::kParts; ++r) sum[r] += term(V::load_float(x + i + r * V::kLanes));
  float lane[16];
  __builtin_memcpy(lane, sum, sizeof lane);
  for (int l = 0; i < n; ++i, ++l) lane[l] += term(x[i]);
  return folded(lane);
}

template <class V>
float sum_squares(const float* x, std::int64_t n, float each) noexcept {
  return canonical_sum<V>(x, n, [each](auto v) __attribute__((always_inline)) { return v * v * each; });
}

template <class V>
float sum(const float* x, std::int64_t n, float each) noexcept {
  return canonical_sum<V>(x, n, [each](auto v) __attribute__((always_inline)) { return v * each; });
}

/// The largest element that is not NaN, or `least`; so many chains that latency does not count.
template <class V, class Value>
DSAKIT_INLINE float maximum(const float* x, std::int64_t n, float least, Value value) {
  using F = typename V::F;
  constexpr int kChains = V::kLanes == 16 ? 4 : 8;
  F most[kChains];
#pragma GCC unroll 8
  for (int r = 0; r < kChains; ++r) most[r] = V::set_float(least);
  std::int64_t i = 0;
  for (; i + kChains * V::kLanes <= n; i += kChains * V::kLanes)
#pragma GCC unroll 8
    for (int r = 0; r < kChains; ++r) most[r] = V::max(value(V::load_float(x + i + r * V::kLanes)), most[r]);
  for (; i + V::kLanes <= n; i += V::kLanes) most[0] = V::max(value(V::load_float(x + i)), most[0]);
#pragma GCC unroll 8
  for (int half = kChains / 2; half > 0; half /= 2)
#pragma GCC unroll 8
    for (int r = 0; r < half; ++r) most[r] = V::max(most[r], most[r + half]);
  least = V::max_of_lanes(most[0]);
  for (; i < n; ++i) {
    const float v = value(x[i]);
    least = v > least ? v : least;
  }
  return least;
}

template <class V>
float max_abs(const float* x, std::int64_t n) noexcept {
  return maximum<V>(x, n, 0.0f, [](auto v) __attribute__((always_inline)) { return v < 0 ? -v : v; });
}

template <class V>
void quantize(const float* x, std::int64_t n, float multiplier, std::int8_t* codes) noexcept {
  std::int64_t i = 0;
  for (; i + V::kLanes <= n; i += V::kLanes) V::store_codes(codes + i, V::load_float(x + i) * multiplier, V::kLanes);
  if (i < n) V::store_codes(codes + i, V::load_floats(x + i, int(n - i)) * multiplier, int(n - i));
}

template <class V>
void dequantize(const std::int32_t* __restrict acc, std::int64_t n, float row_scale,
                const float* __restrict column_scale, float* __restrict y) noexcept {
  for (std::int64_t j = 0; j < n; ++j) y[j] = static_cast<float>(acc[j]) * row_scale * column_scale[j];
}

DSAKIT_INLINE float widen(bf16 x) { return __builtin_bit_cast(float, std::uint32_t(x.bits) << 16); }

DSAKIT_INLINE std::uint16_t nearest_bf16(float x) {
  const std::uint32_t u = __builtin_bit_cast(std::uint32_t, x);
  const std::uint32_t nearest = (u + 0x7fff + (u >> 16 & 1)) >> 16;
  return static_cast<std::uint16_t>(x == x ? nearest : u >> 16 | 0x40);
}

template <class V>
void widen(const bf16* __restrict x, std::int64_t n, float* __restrict y) noexcept {
  for (std::int64_t i = 0; i < n; ++i) y[i] = widen(x[i]);
}

template <class V>
void widen(const f16* x, std::int64_t n, float* y) noexcept {
  std::int64_t i = 0;
  for (; i + V::kLanes <= n; i += V::kLanes) V::store_float(y + i, V::load_f16(x + i, V::kLanes));
  if (i < n) V::store_floats(y + i, V::load_f16(x + i, int(n - i)), int(n - i));
}

template <class V>
void round(const float* __restrict x, std::int64_t n, bf16* __restrict y) noexcept {
  for (std::int64_t i = 0; i < n; ++i) y[i].bits = nearest_bf16(x[i]);
}

/// Below 2^-14 the result is a multiple of 2^-24, the last place of floats beside 0.5.
template <class V>
void round(const float* __restrict x, std::int64_t n, f16* __restrict y) noexcept {
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint32_t u = __builtin_bit_cast(std::uint32_t, x[i]), m = u & 0x7fffffff;
    const std::uint32_t half = __builtin_bit_cast(std::uint32_t, __builtin_bit_cast(float, m) + 0.5f) - 0x3f000000;
    std::uint32_t bits = (m - 0x38000000 + 0xfff + (m >> 13 & 1)) >> 13;
    bits = m < 0x38800000 ? half : bits;
    bits = m >= 0x477ff000 ? 0x7c00 : bits;  // 65520 and above
    bits = m > 0x7f800000 ? 0x7e00 : bits;
    y[i].bits = static_cast<std::uint16_t>(bits | (u >> 16 & 0x8000));
  }
}

/// a * b + c, with one rounding where that costs nothing: only where bits may differ from rung to rung.
DSAKIT_INLINE float multiply_add(float a, float b, float c) {
#if defined(__FMA__)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

/// exp(x) = y * 2^n with 0.7 < y < 1.42; n in the low bits of `shifted`. x = n ln 2 + r, |r| <= ln 2 / 2; ln 2 =
/// 0.693359375 (9 bits: n times it is exact) - 2.1219444e-4. exp(r) = 1 + r + r^2 p(r), p minimax of degree 4: relative
/// error 3.2e-9 before rounding.
template <class V, bool Fma>
DSAKIT_INLINE typename V::F exp_mantissa(typename V::F x, typename V::F& shifted) {
  using F = typename V::F;
  const auto fma = [](F a, F b, F c) __attribute__((always_inline)) {
    if constexpr (Fma) return V::fma(a, b, c);
    else return a * b + c;
  };
  const auto c = [](float v) __attribute__((always_inline)) { return V::set_float(v); };
  const F magic = c(12582912.0f);
  shifted = fma(x, c(1.44269504f), magic);
  const F n = shifted - magic;
  const F r = fma(n, c(2.12194440e-4f), fma(n, c(-0.693359375f), x));
  F p = fma(r, c(1.3814320e-3f), c(8.3688507e-3f));
  p = fma(r, p, c(4.1668400e-2f));
  p = fma(r, p, c(1.6666520e-1f));
  p = fma(r, p, c(4.9999994e-1f));
  return fma(r * r, p, r) + c(1);
}

/// exp(x), x <= 0. Below -87.3, where 2^n would be subnormal, 0.
template <class V>
DSAKIT_INLINE typename V::F exp_of(typename V::F x) {
  using F = typename V::F;
  using U = typename V::U;  // far below, where it is not taken, the sum wraps
  F shifted;
  const F y = exp_mantissa<V, V::kFma>(x, shifted);
  return F(V::where_not_less(x, V::set_float(-87.3f), typename V::I(U(y) + (U(shifted) << 23))));
}

/// Without fma: the bits go into a result.
template <class V>
void swiglu(const float* a, const float* b, std::int64_t n, float* y) noexcept {
  using F = typename V::F;
  using I = typename V::I;
  const auto of = [](F a, F b) __attribute__((always_inline)) {
    // exp(-a) only meets 1, so that less than exp(-40) is as good as that. 2^n in two steps: it may overflow.
    F shifted;
    const F m = exp_mantissa<V, false>(V::min(V::max(-a, V::set_float(-40)), V::set_float(89)), shifted);
    const F e = F(I(m) + ((I(shifted) - 1) << 23)) * 2.0f;
    return a / (e + 1.0f) * b;
  };
  std::int64_t i = 0;
  for (; i + V::kLanes <= n; i += V::kLanes) V::store_float(y + i, of(V::load_float(a + i), V::load_float(b + i)));
  if (const int left = int(n - i); left > 0)
    V::store_floats(y + i, of(V::load_floats(a + i, left), V::load_floats(b + i, left)), left);
}

template <class V>
float softmax(float* x, int n, float scale, float* largest) noexcept {
  using F = typename V::F;
  *largest = maximum<V>(x, n, -__builtin_inff(), [scale](auto v) __attribute__((always_inline)) { return v * scale; });
  const F s = V::set_float(scale), most = V::set_float(*largest);
  const auto exp_at = [&](float* p, int some) __attribute__((always_inline)) {
    const F e = exp_of<V>(V::load_floats(p, some) * s - most);
    V::store_floats(p, e, some);
    return e;
  };
  F sum[V::kParts] = {};
  int i = 0;
  for (; i + 16 <= n; i += 16)
#pragma GCC unroll 4
    for (int r = 0; r < V::kParts; ++r) sum[r] += exp_at(x + i + r * V::kLanes, V::kLanes);
  float lane[16];
  __builtin_memcpy(lane, sum, sizeof lane);
  for (int j = i; j < n; j += V::kLanes) exp_at(x + j, n - j);
  for (int l = 0; i < n; ++i, ++l) lane[l] += x[i];
  return folded(lane);
}

template <class V>
void multiply_add(const float* __restrict x, const float* __restrict scale, int n, float* __restrict y) noexcept {
  for (int i = 0; i < n; ++i) y[i] = multiply_add(x[i], scale[i], y[i]);
}

template <class V>
void multiply_round(const float* __restrict x, const float* __restrict scale, int n, bf16* __restrict y) noexcept {
  if (scale == nullptr) return round<V>(x, n, y);
  for (int i = 0; i < n; ++i) y[i].bits = nearest_bf16(x[i] * scale[i]);
}

template <class V>
void multiply_split(const float* __restrict x, const float* __restrict scale, int n, bf16* __restrict high,
                    bf16* __restrict low) noexcept {
  const auto split = [&](int i, float v) __attribute__((always_inline)) {
    high[i].bits = nearest_bf16(v);
    low[i].bits = nearest_bf16(v - widen(high[i]));
  };
  if (scale == nullptr)
    for (int i = 0; i < n; ++i) split(i, x[i]);
  else
    for (int i = 0; i < n; ++i) split(i, x[i] * scale[i]);
}

template <class V>
void blend(const float* __restrict x, float unit, float factor, int n, float keep, float* __restrict y) noexcept {
  if (keep == 0)
    for (int i = 0; i < n; ++i) y[i] = x[i] * unit * factor;
  else
    for (int i = 0; i < n; ++i) y[i] = y[i] * keep + x[i] * unit * factor;
}

/// Every digit but the first is the low byte as a signed number, which what is left has to make up for.
template <int Digits>
DSAKIT_INLINE void split_codes(const float* __restrict x, int n, float per_unit,
                                               std::uint8_t* __restrict codes, std::ptrdiff_t pitch) {
  for (int i = 0; i < n; ++i) {
    std::uint32_t left = __builtin_bit_cast(std::uint32_t, x[i] * per_unit + 12582912.0f) - 0x4b400000u;
    for (int d = Digits - 1; d >= 0; --d) {
      left += 128;  // biased digit in the low byte
      codes[d * pitch + i] = static_cast<std::uint8_t>(left);
      left = static_cast<std::uint32_t>(static_cast<std::int32_t>(left) >> 8);
    }
  }
}

template <class V>
void split_codes(const float* x, int n, float per_unit, int digits, std::uint8_t* codes,
                 std::ptrdiff_t pitch) noexcept {
  if (digits == 1) split_codes<1>(x, n, per_unit, codes, pitch);
  if (digits == 2) split_codes<2>(x, n, per_unit, codes, pitch);
  if (digits == 3) split_codes<3>(x, n, per_unit, codes, pitch);
}

/// Times 256 is exact, so an fma would have the same bits.
template <class V>
void join_codes(const std::int32_t* __restrict products, std::ptrdiff_t pitch, int n, int digits, float unit,
                float* __restrict y) noexcept {
  const std::int32_t *second = products + pitch, *third = second + pitch;
  if (digits == 1)
    for (int i = 0; i < n; ++i) y[i] = static_cast<float>(products[i]) * unit;
  if (digits == 2)
    for (int i = 0; i < n; ++i)
      y[i] = (static_cast<float>(products[i]) * 256.0f + static_cast<float>(second[i])) * unit;
  if (digits == 3)
    for (int i = 0; i < n; ++i)
      y[i] = ((static_cast<float>(products[i]) * 256.0f + static_cast<float>(second[i])) * 256.0f +
              static_cast<float>(third[i])) *
             unit;
}

}  // namespace
}  // namespace dsakit
