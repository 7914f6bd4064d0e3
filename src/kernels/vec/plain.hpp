// SPDX-License-Identifier: Apache-2.0
#pragma once
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "kernels/vec/base.hpp"

namespace dsakit {
namespace {

/// What every compiler makes of 128-bit vectors: SSE2, NEON, or neither.
struct Vec128 : VecBase<16> {
  static constexpr int kRegisters = 16;
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
  static constexpr bool kFma = true;
#else
  static constexpr bool kFma = false;  // fma() is a call for each element
#endif

  DSAKIT_INLINE static I set(std::int32_t x) { return I{x, x, x, x}; }
  DSAKIT_INLINE static F set_float(float x) { return F{x, x, x, x}; }
  DSAKIT_INLINE static I broadcast(const void* p) { return set(load32(p)); }
  DSAKIT_INLINE static F fma(F a, F b, F c) { return kFma ? fused(a, b, c) : fused_apart(a, b, c); }
  DSAKIT_INLINE static F max(F a, F b) { return a > b ? a : b; }
  DSAKIT_INLINE static F min(F a, F b) { return a < b ? a : b; }
  DSAKIT_INLINE static I max(I a, I b) { return a > b ? a : b; }
  DSAKIT_INLINE static F to_float(I x) { return __builtin_convertvector(x, F); }
  DSAKIT_INLINE static I where_number(F x, I bits) { return bits & I(x == x); }
  /// 2^(n / 8), -1008 <= n < 1024, of kEighthsMagic + n / 8.
  DSAKIT_INLINE static F power_of_eighths(F shifted) {
    const I at = I(shifted) & 7;
    const std::int32_t* const bits = kEighths.bits;
    const I power = {bits[at[0]], bits[at[1]], bits[at[2]], bits[at[3]]};
    return F(U(power) + (U(shifted) << 20));
  }
  /// y, but 0 where x is less.
  DSAKIT_INLINE static F unless_less(F x, float than, F y) { return F(I(y) & ~I(x < than)); }

  DSAKIT_INLINE static I load_bytes(const void* p, int n) {
    if (n >= 16) return load(p);
    I x{};
    if (n > 0) __builtin_memcpy(&x, p, std::size_t(n));
    return x;
  }
  DSAKIT_INLINE static F load_floats(const float* p, int n) { return F(load_bytes(p, 4 * n)); }
  DSAKIT_INLINE static void store_floats(float* p, F x, int n) {
    if (n >= 4) return store_float(p, x);
    if (n > 0) __builtin_memcpy(p, &x, std::size_t(4 * n));
  }
  DSAKIT_INLINE static I load_words(const void* p, int n) { return extended<std::uint16_t>(p, n); }
  DSAKIT_INLINE static void store_words(void* p, I x, int n) {
    const H words = __builtin_shufflevector(H(x), H(x), 0, 2, 4, 6, 0, 2, 4, 6);  // little-endian, as all of panel.hpp
    if (n >= 4) __builtin_memcpy(p, &words, 8);
    else if (n > 0) __builtin_memcpy(p, &words, std::size_t(2 * n));
  }
  DSAKIT_INLINE static I load_codes(const void* p, int n) { return extended<std::int8_t>(p, n); }
  DSAKIT_INLINE static F load_f16(const void* p, int n) { return low_f16(load_words(p, n)); }
  /// A subnormal is its fraction times 2^-24; a NaN becomes quiet, as the instruction makes it.
  DSAKIT_INLINE static F low_f16(I x) {
    const I sign = (x & 0x8000) << 16, exponent = x >> 10 & 31, fraction = x & 1023;
    const I subnormal = I(to_float(fraction) * 0x1p-24f);
    const I infinite = (fraction << 13) | 0x7f800000 | (I(fraction != 0) & 0x400000);
    const I normal = ((exponent + 112) << 23) | (fraction << 13);
    return F(sign | (exponent == 0 ? subnormal : exponent == 31 ? infinite : normal));
  }
  DSAKIT_INLINE static void store_codes(std::int8_t* p, F v, int n) {
    const I x = low_byte_codes<Vec128>(v);
    for (int i = 0; i < 4 && i < n; ++i) p[i] = std::int8_t(x[i]);
  }
  DSAKIT_INLINE static void store_codes(std::int8_t* p, const F (&x)[4]) {
    for (int r = 0; r < 4; ++r) store_codes(p + 4 * r, x[r], 4);
  }
  DSAKIT_INLINE static float max_of_lanes(F x) {
    const float a = x[0] > x[1] ? x[0] : x[1], b = x[2] > x[3] ? x[2] : x[3];
    return a > b ? a : b;
  }
  DSAKIT_INLINE static std::int32_t sum_of_lanes(I x) { return x[0] + x[1] + x[2] + x[3]; }

  DSAKIT_INLINE static I unpack_low8(I a, I b) {
    return I(__builtin_shufflevector(B(a), B(b), 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23));
  }
  DSAKIT_INLINE static I unpack_high8(I a, I b) {
    return I(__builtin_shufflevector(B(a), B(b), 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31));
  }
  DSAKIT_INLINE static I upper_halves(I a, I b) {
    return I(__builtin_shufflevector(H(a), H(b), 1, 3, 5, 7, 9, 11, 13, 15));
  }
  DSAKIT_INLINE static I lower_halves(I a, I b) {
    return I(__builtin_shufflevector(H(a), H(b), 0, 2, 4, 6, 8, 10, 12, 14));
  }
  DSAKIT_INLINE static I halves_in_order(I x) { return x; }
  DSAKIT_INLINE static I unpack_low16(I a, I b) {
    return I(__builtin_shufflevector(H(a), H(b), 0, 8, 1, 9, 2, 10, 3, 11));
  }
  DSAKIT_INLINE static I unpack_high16(I a, I b) {
    return I(__builtin_shufflevector(H(a), H(b), 4, 12, 5, 13, 6, 14, 7, 15));
  }
  DSAKIT_INLINE static I unpack_low32(I a, I b) { return __builtin_shufflevector(a, b, 0, 4, 1, 5); }
  DSAKIT_INLINE static I unpack_high32(I a, I b) { return __builtin_shufflevector(a, b, 2, 6, 3, 7); }
  DSAKIT_INLINE static I unpack_low64(I a, I b) { return __builtin_shufflevector(a, b, 0, 1, 4, 5); }
  DSAKIT_INLINE static I unpack_high64(I a, I b) { return __builtin_shufflevector(a, b, 2, 3, 6, 7); }
  DSAKIT_INLINE static I spread(I x) { return x; }  // one block

  DSAKIT_INLINE static void transpose(I (&x)[4]) {
    const I a = unpack_low32(x[0], x[1]), b = unpack_high32(x[0], x[1]);
    const I c = unpack_low32(x[2], x[3]), d = unpack_high32(x[2], x[3]);
    x[0] = unpack_low64(a, c), x[1] = unpack_high64(a, c);
    x[2] = unpack_low64(b, d), x[3] = unpack_high64(b, d);
  }

  /// Sixteen lanes folded in halves, 8, 4, 2, 1, of four rows.
  DSAKIT_INLINE static F folded(const F* lane) {
    F sums;
    for (int k = 0; k < 4; ++k, lane += 4) {
      const F four = (lane[0] + lane[2]) + (lane[1] + lane[3]);
      sums[k] = (four[0] + four[2]) + (four[1] + four[3]);
    }
    return sums;
  }

  DSAKIT_INLINE static unsigned at_least(I key, I floor, int n) {
    const I pass = I(U(key) >= U(floor));
    unsigned mask = 0;
    for (int i = 0; i < 4 && i < n; ++i) mask |= unsigned(pass[i] & 1) << i;
    return mask;
  }
  DSAKIT_INLINE static int append(I high, I low, unsigned chosen, std::uint64_t* out) {
    int n = 0;
    for (int i = 0; i < 4; ++i)
      if (chosen >> i & 1) out[n++] = std::uint64_t(std::uint32_t(high[i])) << 32 | std::uint32_t(low[i]);
    return n;
  }

  DSAKIT_INLINE static I add_codes(I sum, I codes) {
    const I pairs = I((H(codes) << 8 >> 8) + (H(codes) >> 8));
    return sum + (pairs << 16 >> 16) + (pairs >> 16);
  }
  DSAKIT_INLINE static I multiply_pairs(I a, I b) {
#if defined(__SSE2__)
    return I(_mm_madd_epi16(__m128i(a), __m128i(b)));
#else
    return (a << 16 >> 16) * (b << 16 >> 16) + (a >> 16) * (b >> 16);
#endif
  }
  /// Codes of half a register as 16-bit integers.
  DSAKIT_INLINE static I widened(const void* p) {
    std::int64_t codes;
    __builtin_memcpy(&codes, p, sizeof codes);
    typedef std::int64_t Two __attribute__((vector_size(16)));
    const I x = I(Two{codes, 0});
    return I(H(unpack_low8(x, x)) >> 8);
  }
  DSAKIT_INLINE static void widen_codes(const void* codes, int flip, std::int16_t* out) {
    const auto* x = static_cast<const std::int8_t*>(codes);
    for (int i = 0; i < 16; i += 4) {
      out[i] = std::int8_t(x[i] ^ flip), out[i + 1] = std::int8_t(x[i + 2] ^ flip);
      out[i + 2] = std::int8_t(x[i + 1] ^ flip), out[i + 3] = std::int8_t(x[i + 3] ^ flip);
    }
  }

 private:
  DSAKIT_INLINE static F fused(F a, F b, F c) {
    F y;
    for (int i = 0; i < 4; ++i) y[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return y;
  }
  [[gnu::noinline]] static F fused_apart(F a, F b, F c) { return fused(a, b, c); }

  template <class T>
  DSAKIT_INLINE static I extended(const void* p, int n) {
    T x[4] = {};
    if (n >= 4) __builtin_memcpy(x, p, sizeof x);
    else if (n > 0) __builtin_memcpy(x, p, std::size_t(n) * sizeof(T));
    return I{x[0], x[1], x[2], x[3]};
  }
};

}  // namespace
}  // namespace dsakit
