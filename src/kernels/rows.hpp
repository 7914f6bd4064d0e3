// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "dsakit/tensor.hpp"
#include "kernels/kernels.hpp"

// The row kernels, as plain loops that every rung compiles with its own flags: hence the anonymous namespace, and no
// function of the standard library (an inline function compiled here for AVX-512 must not win at link time).
// Contraction is off, so a plain expression has the same bits on every rung.
namespace dsakit {
namespace {

#if defined(__AVX512F__)
constexpr int kWidth = 16;
#elif defined(__AVX2__)
constexpr int kWidth = 8;
#else
constexpr int kWidth = 4;  // SSE2, NEON
#endif
typedef float Vector __attribute__((vector_size(4 * kWidth)));

/// Sixteen floats in as many registers as that takes, always handled register by register (gcc 12 copies a larger
/// vector through memory in pieces that stall).
struct Lanes {
  Vector r[16 / kWidth];
};

[[gnu::always_inline]] inline Vector load(const float* x) {
  Vector y;
  __builtin_memcpy(&y, x, sizeof y);
  return y;
}

/// Lane l takes term(x[i]) for i = l, l + 16, ... ascending; then the lanes fold in halves.
template <class Term>
[[gnu::always_inline]] inline float canonical_sum(const float* x, std::int64_t n, Term term) {
  Lanes sum{};
  std::int64_t i = 0;
  for (; i + 16 <= n; i += 16)
#pragma GCC unroll 4
    for (int r = 0; r < 16 / kWidth; ++r) sum.r[r] += term(load(x + i + r * kWidth));
  float lane[16];
  __builtin_memcpy(lane, &sum, sizeof lane);
  for (int l = 0; i < n; ++i, ++l) lane[l] += term(x[i]);
  for (int half = 8; half > 0; half /= 2)
    for (int l = 0; l < half; ++l) lane[l] += lane[l + half];
  return lane[0];
}

float sum_squares(const float* x, std::int64_t n, float each) noexcept {
  return canonical_sum(x, n, [each](auto v) { return v * v * each; });
}

float sum(const float* x, std::int64_t n, float each) noexcept {
  return canonical_sum(x, n, [each](auto v) { return v * each; });
}

/// The largest element that is not NaN, or `least`.
template <class Value>
[[gnu::always_inline]] inline float maximum(const float* x, std::int64_t n, float least, Value value) {
  constexpr int kChains = 4;
  float lane[kChains * 16];
  for (float& l : lane) l = least;
  std::int64_t i = 0;
  if (n >= kChains * 16) {
    Vector most[kChains * 16 / kWidth];
    __builtin_memcpy(most, lane, sizeof most);
    for (; i + kChains * 16 <= n; i += kChains * 16)
#pragma GCC unroll 16
      for (int r = 0; r < kChains * 16 / kWidth; ++r) {
        const Vector v = value(load(x + i + r * kWidth));
        most[r] = v > most[r] ? v : most[r];
      }
    __builtin_memcpy(lane, most, sizeof lane);
  }
  for (int l = 0; i < n; ++i, ++l) {
    const float v = value(x[i]);
    lane[l] = v > lane[l] ? v : lane[l];
  }
  for (int half = kChains * 8; half > 0; half /= 2)
    for (int l = 0; l < half; ++l) lane[l] = lane[l + half] > lane[l] ? lane[l + half] : lane[l];
  return lane[0];
}

float max_abs(const float* x, std::int64_t n) noexcept {
  return maximum(x, n, 0.0f, [](auto v) { return v < 0 ? -v : v; });
}

/// Clamped before it is rounded: the bounds are integers, so the code is the same. Adding 1.5 * 2^23 rounds to the
/// nearest integer, ties to even, and leaves it in the low bits.
void quantize(const float* __restrict x, std::int64_t n, float multiplier, std::int8_t* __restrict codes) noexcept {
  for (std::int64_t i = 0; i < n; ++i) {
    float v = x[i] * multiplier;
    v = v < -128.0f ? -128.0f : v;
    v = v > 127.0f ? 127.0f : v;
    v = v == v ? v : 0.0f;
    codes[i] = static_cast<std::int8_t>(__builtin_bit_cast(std::int32_t, v + 12582912.0f));
  }
}

void dequantize(const std::int32_t* __restrict acc, std::int64_t n, float row_scale,
                const float* __restrict column_scale, float* __restrict y) noexcept {
  for (std::int64_t j = 0; j < n; ++j) y[j] = static_cast<float>(acc[j]) * row_scale * column_scale[j];
}

[[gnu::always_inline]] inline float widen(bf16 x) { return __builtin_bit_cast(float, std::uint32_t(x.bits) << 16); }

[[gnu::always_inline]] inline std::uint16_t nearest_bf16(float x) {
  const std::uint32_t u = __builtin_bit_cast(std::uint32_t, x);
  const std::uint32_t nearest = (u + 0x7fff + (u >> 16 & 1)) >> 16;
  return static_cast<std::uint16_t>(x == x ? nearest : u >> 16 | 0x40);
}

void widen_bf16(const bf16* __restrict x, std::int64_t n, float* __restrict y) noexcept {
  for (std::int64_t i = 0; i < n; ++i) y[i] = widen(x[i]);
}

void round_bf16(const float* __restrict x, std::int64_t n, bf16* __restrict y) noexcept {
  for (std::int64_t i = 0; i < n; ++i) y[i].bits = nearest_bf16(x[i]);
}

/// Below 2^-14 the result is a multiple of 2^-24, the last place of floats beside 0.5.
void round_f16(const float* __restrict x, std::int64_t n, f16* __restrict y) noexcept {
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
[[gnu::always_inline]] inline float multiply_add(float a, float b, float c) {
#if defined(__FMA__)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

/// exp(x), x <= 0. x = n ln 2 + r, |r| <= ln 2 / 2; ln 2 = 0.693359375 (9 bits: n times it is exact) - 2.1219444e-4.
/// exp(r) = 1 + r + r^2 p(r), p minimax of degree 4: relative error 3.2e-9 before rounding. Below -87.3, where 2^n
/// would be subnormal, 0.
[[gnu::always_inline]] inline float exp_of(float x) {
  const float shifted = multiply_add(x, 1.44269504f, 12582912.0f);  // n in the low bits
  const float n = shifted - 12582912.0f;
  const float r = multiply_add(n, 2.12194440e-4f, multiply_add(n, -0.693359375f, x));
  float p = multiply_add(r, 1.3814320e-3f, 8.3688507e-3f);
  p = multiply_add(r, p, 4.1668400e-2f);
  p = multiply_add(r, p, 1.6666520e-1f);
  p = multiply_add(r, p, 4.9999994e-1f);
  const float y = multiply_add(r * r, p, r) + 1.0f;
  const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, y) + (__builtin_bit_cast(std::uint32_t, shifted) << 23);
  const std::uint32_t some = x < -87.3f ? 0u : ~0u;  // a choice between floats would keep gcc 12 from vectorising
  return __builtin_bit_cast(float, bits & some);
}

float softmax(float* x, int n, float scale, float* largest) noexcept {
  for (int i = 0; i < n; ++i) x[i] *= scale;
  const float most = maximum(x, n, -__builtin_inff(), [](auto v) { return v; });
  for (int i = 0; i < n; ++i) x[i] = exp_of(x[i] - most);
  *largest = most;
  return canonical_sum(x, n, [](auto v) { return v; });
}

void multiply_add(const float* __restrict x, const float* __restrict scale, int n, float* __restrict y) noexcept {
  for (int i = 0; i < n; ++i) y[i] = multiply_add(x[i], scale[i], y[i]);
}

void multiply_round(const float* __restrict x, const float* __restrict scale, int n, bf16* __restrict y) noexcept {
  if (scale == nullptr) return round_bf16(x, n, y);
  for (int i = 0; i < n; ++i) y[i].bits = nearest_bf16(x[i] * scale[i]);
}

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

void blend(const float* __restrict x, float unit, float factor, int n, float keep, float* __restrict y) noexcept {
  if (keep == 0)
    for (int i = 0; i < n; ++i) y[i] = x[i] * unit * factor;
  else
    for (int i = 0; i < n; ++i) y[i] = y[i] * keep + x[i] * unit * factor;
}

/// Every digit but the first is the low byte as a signed number, which what is left has to make up for.
template <int Digits>
[[gnu::always_inline]] inline void split_codes(const float* __restrict x, int n, float per_unit,
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

void split_codes(const float* x, int n, float per_unit, int digits, std::uint8_t* codes,
                 std::ptrdiff_t pitch) noexcept {
  if (digits == 1) split_codes<1>(x, n, per_unit, codes, pitch);
  if (digits == 2) split_codes<2>(x, n, per_unit, codes, pitch);
  if (digits == 3) split_codes<3>(x, n, per_unit, codes, pitch);
}

/// Times 256 is exact, so an fma would have the same bits.
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

void use_rows(Kernels& k) {
  k.sum_squares = sum_squares;
  k.sum = sum;
  k.max_abs = max_abs;
  k.quantize = quantize;
  k.dequantize = dequantize;
  k.widen_bf16 = widen_bf16;
  k.round_bf16 = round_bf16;
  k.round_f16 = round_f16;
  k.softmax = softmax;
  k.multiply_add = multiply_add;
  k.multiply_round = multiply_round;
  k.multiply_split = multiply_split;
  k.blend = blend;
  k.split_codes = split_codes;
  k.join_codes = join_codes;
}

}  // namespace
}  // namespace dsakit
