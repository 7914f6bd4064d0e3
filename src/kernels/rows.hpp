// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "dsakit/tensor.hpp"
#include "kernels/kernels.hpp"
#include "kernels/kept.hpp"

// The row kernels: plain loops where the compiler makes vectors of them, the vocabulary where it does not. A plain
// expression has the same bits on every rung, since contraction is off.
namespace dsakit {
namespace {

/// Sixteen lanes in halves: 8, 4, 2, 1.
template <class V>
DSAKIT_INLINE float folded(const typename V::F (&sum)[V::kParts]) {
  typename V::Block lanes[4];
  __builtin_memcpy(lanes, sum, sizeof lanes);
  const typename V::Block four = (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
  return (four[0] + four[2]) + (four[1] + four[3]);
}

/// Lane l takes element i = l, l + 16, ... of what term(i, some) gives for a register, ascending; then the lanes fold in
/// halves. Beyond `some` it gives 0, which changes no sum from +0.
template <class V, class Term>
DSAKIT_INLINE float canonical_sum(std::int64_t n, Term term) {
  typename V::F sum[V::kParts] = {};
  std::int64_t i = 0;
  for (; i + 16 <= n; i += 16)
#pragma GCC unroll 4
    for (int r = 0; r < V::kParts; ++r) sum[r] += term(i + r * V::kLanes, V::kLanes);
#pragma GCC unroll 4
  for (int r = 0; r < V::kParts; ++r, i += V::kLanes)
    if (i < n) sum[r] += term(i, least(int(n - i), V::kLanes));
  return folded<V>(sum);
}

template <class V>
float sum_squares(const float* x, std::int64_t n, float each) noexcept {
  return canonical_sum<V>(n, [=](std::int64_t i, int some) __attribute__((always_inline)) {
    const typename V::F v = V::load_floats(x + i, some);
    return v * v * each;
  });
}

template <class V>
float sum(const float* x, std::int64_t n, float each) noexcept {
  return canonical_sum<V>(
      n, [=](std::int64_t i, int some) __attribute__((always_inline)) { return V::load_floats(x + i, some) * each; });
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
#pragma GCC unroll 4
  for (int r = 0; r < V::kParts; ++r, i += V::kLanes) {
    if (i >= n) break;
    exp_at(x + i, least(n - i, V::kLanes));
    sum[r] += V::load_floats(x + i, least(n - i, V::kLanes));
  }
  return folded<V>(sum);
}

template <class V>
void multiply_add(const float* __restrict x, const float* __restrict scale, int n, float* __restrict y) noexcept {
  for (int i = 0; i < n; ++i) y[i] = multiply_add(x[i], scale[i], y[i]);
}

template <class V>
void multiply_round(const float* x, const float* scale, int n, bf16* y) noexcept {
  if (scale == nullptr) return round<V>(x, n, y);
  each_register<V>(n, [=](std::int64_t i, int some) __attribute__((always_inline)) {
    store_kept<V>(y + i, keep<V, bf16>(V::load_floats(x + i, some) * V::load_floats(scale + i, some)), some);
  });
}

template <class V>
void multiply_split(const float* x, const float* scale, int n, bf16* high, bf16* low) noexcept {
  each_register<V>(n, [=](std::int64_t i, int some) __attribute__((always_inline)) {
    typename V::F v = V::load_floats(x + i, some);
    if (scale) v *= V::load_floats(scale + i, some);
    const auto upper = keep<V, bf16>(v);
    store_kept<V>(high + i, upper, some);
    store_kept<V>(low + i, keep<V, bf16>(v - unkept<V, bf16>(upper)), some);
  });
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

/// Without fma: the bits go into a result.
template <class V, class T>
void swiglu(const T* a, const T* b, std::int64_t n, T* y) noexcept {
  using F = typename V::F;
  using I = typename V::I;
  each_register<V>(n, [=](std::int64_t i, int some) __attribute__((always_inline)) {
    const F x = load_row<V>(a + i, some);
    // exp(-x) only meets 1, so that less than exp(-40) is as good as that. 2^n in two steps: it may overflow.
    F shifted;
    const F m = exp_mantissa<V, false>(V::min(V::max(-x, V::set_float(-40)), V::set_float(89)), shifted);
    const F e = F(I(m) + ((I(shifted) - 1) << 23)) * 2.0f;
    store_kept<V>(y + i, keep<V, T>(x / (e + 1.0f) * load_row<V>(b + i, some)), some);
  });
}

DSAKIT_INLINE float inverse_root(float sum, std::int64_t n, float epsilon) {
  return 1.0f / __builtin_sqrtf(sum * (1.0f / static_cast<float>(n)) + epsilon);
}

template <class V, class T>
float rms_norm(const T* x, const float* gamma, std::int64_t n, float epsilon, T* y) noexcept {
  const float sum = canonical_sum<V>(n, [=](std::int64_t i, int some) __attribute__((always_inline)) {
    const typename V::F v = load_row<V>(x + i, some);
    return v * v;
  });
  const float rstd = inverse_root(sum, n, epsilon);
  each_register<V>(n, [=](std::int64_t i, int some) __attribute__((always_inline)) {
    prefetch_l2(x + n + i);  // of the next row
    store_kept<V>(y + i, keep<V, T>(load_row<V>(x + i, some) * rstd * V::load_floats(gamma + i, some)), some);
  });
  return rstd;
}

template <class V, class T>
float add_rms_norm(const T* a, const T* b, const float* gamma, const float* beta, std::int64_t n, float epsilon, T* x,
                   T* y) noexcept {
  using F = typename V::F;
  const float sum = canonical_sum<V>(n, [=](std::int64_t i, int some) __attribute__((always_inline)) {
    const auto kept = keep<V, T>(load_row<V>(a + i, some) + load_row<V>(b + i, some));
    store_kept<V>(x + i, kept, some);
    const F v = unkept<V, T>(kept);
    return v * v;
  });
  const float rstd = inverse_root(sum, n, epsilon);
  each_register<V>(n, [=](std::int64_t i, int some) __attribute__((always_inline)) {
    prefetch_l2(a + n + i), prefetch_l2(b + n + i);  // of the next rows
    F v = unkept<V, T>(keep<V, T>(load_row<V>(x + i, some) * rstd)) * V::load_floats(gamma + i, some);
    if (beta) {
      if constexpr (__is_same(T, f16)) v = unkept<V, T>(keep<V, T>(v));
      v += V::load_floats(beta + i, some);
    }
    store_kept<V>(y + i, keep<V, T>(v), some);
  });
  return rstd;
}

template <class V, class T>
void weighted_sum(const T* const* rows, const float* weights, int count, std::int64_t n, T* y) noexcept {
  using F = typename V::F;
  constexpr int kAtOnce = 4;  // registers
  std::int64_t i = 0;
  for (; i + kAtOnce * V::kLanes <= n; i += kAtOnce * V::kLanes) {
    F sum[kAtOnce] = {};
    for (int j = 0; j < count; ++j)
#pragma GCC unroll 4
      for (int r = 0; r < kAtOnce; ++r) sum[r] += load_row<V>(rows[j] + i + r * V::kLanes, V::kLanes) * weights[j];
#pragma GCC unroll 4
    for (int r = 0; r < kAtOnce; ++r) store_kept<V>(y + i + r * V::kLanes, keep<V, T>(sum[r]), V::kLanes);
  }
  each_register<V>(n - i, [=](std::int64_t rest, int some) __attribute__((always_inline)) {
    F sum{};
    for (int j = 0; j < count; ++j) sum += load_row<V>(rows[j] + i + rest, some) * weights[j];
    store_kept<V>(y + i + rest, keep<V, T>(sum), some);
  });
}

}  // namespace
}  // namespace dsakit
