// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <immintrin.h>

#include "kernels/vec/base.hpp"

namespace dsakit {
namespace {

/// AVX2, FMA and F16C.
struct Vec256 : VecBase<32> {
  static constexpr int kRegisters = 16;
  static constexpr bool kFma = true;

  DSAKIT_INLINE static I of(__m256i x) { return I(x); }
  DSAKIT_INLINE static __m256i raw(I x) { return __m256i(x); }
  DSAKIT_INLINE static __m128i load16(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }

  DSAKIT_INLINE static I set(std::int32_t x) { return of(_mm256_set1_epi32(x)); }
  DSAKIT_INLINE static F set_float(float x) { return _mm256_set1_ps(x); }
  /// As a float: an integer broadcast from memory is two operations on Zen.
  DSAKIT_INLINE static I broadcast(const void* p) {
    float x;
    __builtin_memcpy(&x, p, 4);
    return I(_mm256_set1_ps(x));
  }
  /// Sixteen bytes in both halves.
  DSAKIT_INLINE static I broadcast_half(const void* p) { return of(_mm256_broadcastsi128_si256(load16(p))); }
  DSAKIT_INLINE static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  DSAKIT_INLINE static F max(F a, F b) { return _mm256_max_ps(a, b); }
  DSAKIT_INLINE static F min(F a, F b) { return _mm256_min_ps(a, b); }
  DSAKIT_INLINE static I max(I a, I b) { return of(_mm256_max_epi32(raw(a), raw(b))); }
  DSAKIT_INLINE static F to_float(I x) { return _mm256_cvtepi32_ps(raw(x)); }
  DSAKIT_INLINE static I where_number(F x, I bits) { return bits & I(_mm256_cmp_ps(x, x, _CMP_ORD_Q)); }
  DSAKIT_INLINE static F power_of_eighths(F shifted) {
    const __m256i power = _mm256_permutevar8x32_epi32(raw(load(kEighths.bits)), raw(I(shifted)));
    return F(U(power) + (U(shifted) << 20));
  }
  DSAKIT_INLINE static F unless_less(F x, float than, F y) {
    return _mm256_and_ps(y, _mm256_cmp_ps(x, set_float(than), _CMP_NLT_UQ));
  }

  /// Of the first n bytes; the rest is 0.
  DSAKIT_INLINE static I load_bytes(const void* p, int n) {
    if (n >= 32) return load(p);
    I x{};
    if (n <= 0) return x;
    if (n % 4 == 0) {
      static constexpr std::int32_t kMask[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
      return of(_mm256_maskload_epi32(static_cast<const int*>(p), raw(load(kMask + 8 - n / 4))));
    }
    copy_bytes(&x, p, n);
    return x;
  }
  DSAKIT_INLINE static F load_floats(const float* p, int n) { return F(load_bytes(p, 4 * n)); }
  DSAKIT_INLINE static void store_floats(float* p, F x, int n) {
    if (n >= 8) return store_float(p, x);
    if (n > 0) copy_bytes(p, &x, 4 * n);
  }
  DSAKIT_INLINE static I load_words(const void* p, int n) { return of(_mm256_cvtepu16_epi32(load_few(p, 2 * n))); }
  /// Words of 16 bits.
  DSAKIT_INLINE static void store_words(void* p, I x, int n) {
    const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(raw(x)), _mm256_extracti128_si256(raw(x), 1));
    if (n >= 8) _mm_storeu_si128(static_cast<__m128i*>(p), words);
    else copy_bytes(p, &words, 2 * n);
  }
  // Halves of the words of a, then of those of b, in an order of their own, and from that to where they belong.
  DSAKIT_INLINE static I upper_halves(I a, I b) {
    return of(_mm256_packus_epi32(_mm256_srli_epi32(raw(a), 16), _mm256_srli_epi32(raw(b), 16)));
  }
  DSAKIT_INLINE static I lower_halves(I a, I b) {
    const __m256i zero = _mm256_setzero_si256();
    return of(_mm256_packus_epi32(_mm256_blend_epi16(raw(a), zero, 0xaa), _mm256_blend_epi16(raw(b), zero, 0xaa)));
  }
  DSAKIT_INLINE static I halves_in_order(I x) { return of(_mm256_permute4x64_epi64(raw(x), 0xd8)); }
  DSAKIT_INLINE static I load_codes(const void* p, int n) {
    if (n >= 8) return of(_mm256_cvtepi8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p))));
    return of(_mm256_cvtepi8_epi32(load_few(p, n)));
  }
  /// Up to sixteen codes as 16-bit integers; the rest is 0.
  DSAKIT_INLINE static I load_short_codes(const void* p, int n) { return of(_mm256_cvtepi8_epi16(load_few(p, n))); }
  DSAKIT_INLINE static F load_f16(const void* p, int n) { return _mm256_cvtph_ps(load_few(p, 2 * n)); }
  DSAKIT_INLINE static F low_f16(I x) {
    const __m256i order = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, -1, -1, -1, -1, -1, -1, -1, -1,  //
                                           0, 1, 4, 5, 8, 9, 12, 13, -1, -1, -1, -1, -1, -1, -1, -1);
    const __m256i words = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(raw(x), order), 0x08);
    return _mm256_cvtph_ps(_mm256_castsi256_si128(words));
  }
  DSAKIT_INLINE static void store_codes(std::int8_t* p, F v, int n) {
    const I x = low_byte_codes<Vec256>(v);
    const __m256i order = _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,  //
                                           0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    const __m256i y = _mm256_shuffle_epi8(raw(x), order);
    const __m128i eight = _mm_unpacklo_epi32(_mm256_castsi256_si128(y), _mm256_extracti128_si256(y, 1));
    if (n >= 8) _mm_storel_epi64(reinterpret_cast<__m128i*>(p), eight);
    else copy_bytes(p, &eight, n);
  }
  /// The conversion makes what it cannot hold, NaN and too large a number, the smallest integer, and so do codes of 16
  /// bits with theirs: where none is seen, as a rule, nothing was to be clamped.
  DSAKIT_INLINE static void store_codes(std::int8_t* p, const F (&x)[4]) {
    __m256i y[4];
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) y[r] = _mm256_cvtps_epi32(x[r]);
    __m256i low = _mm256_packs_epi32(y[0], y[1]), high = _mm256_packs_epi32(y[2], y[3]);
    const __m256i least = _mm256_cmpeq_epi16(_mm256_min_epi16(low, high), _mm256_set1_epi16(-32768));
    if (_mm256_movemask_epi8(least)) [[unlikely]] {
#pragma GCC unroll 4
      for (int r = 0; r < 4; ++r)
        y[r] = raw(where_number(x[r], of(_mm256_cvtps_epi32(_mm256_min_ps(x[r], _mm256_set1_ps(127))))));
      low = _mm256_packs_epi32(y[0], y[1]), high = _mm256_packs_epi32(y[2], y[3]);
    }
    const __m256i codes = _mm256_packs_epi16(low, high);
    store(p, of(_mm256_permutevar8x32_epi32(codes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7))));
  }
  DSAKIT_INLINE static float max_of_lanes(F x) {
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
  }
  DSAKIT_INLINE static std::int32_t sum_of_lanes(I x) {
    const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(raw(x)), _mm256_extracti128_si256(raw(x), 1));
    const __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 0xb1)));
  }

  DSAKIT_INLINE static I unpack_low8(I a, I b) { return of(_mm256_unpacklo_epi8(raw(a), raw(b))); }
  DSAKIT_INLINE static I unpack_high8(I a, I b) { return of(_mm256_unpackhi_epi8(raw(a), raw(b))); }
  DSAKIT_INLINE static I unpack_low16(I a, I b) { return of(_mm256_unpacklo_epi16(raw(a), raw(b))); }
  DSAKIT_INLINE static I unpack_high16(I a, I b) { return of(_mm256_unpackhi_epi16(raw(a), raw(b))); }
  DSAKIT_INLINE static I unpack_low32(I a, I b) { return of(_mm256_unpacklo_epi32(raw(a), raw(b))); }
  DSAKIT_INLINE static I unpack_high32(I a, I b) { return of(_mm256_unpackhi_epi32(raw(a), raw(b))); }
  DSAKIT_INLINE static I unpack_low64(I a, I b) { return of(_mm256_unpacklo_epi64(raw(a), raw(b))); }
  DSAKIT_INLINE static I unpack_high64(I a, I b) { return of(_mm256_unpackhi_epi64(raw(a), raw(b))); }
  DSAKIT_INLINE static I spread(I x) {
    return of(_mm256_permutevar8x32_epi32(raw(x), _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7)));
  }

  /// The sum of the 128-bit blocks of a, then that of b.
  template <class X>
  DSAKIT_INLINE static X add_blocks(X a, X b) {
    const __m256i x = __m256i(a), y = __m256i(b);
    return X(_mm256_permute2x128_si256(x, y, 0x20)) + X(_mm256_permute2x128_si256(x, y, 0x31));
  }

  DSAKIT_INLINE static void transpose(I (&x)[8]) {
    I y[8];
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) y[i] = unpack_low32(x[i], x[i + 1]), y[i + 1] = unpack_high32(x[i], x[i + 1]);
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {
      x[i] = unpack_low64(y[i], y[i + 2]), x[i + 1] = unpack_high64(y[i], y[i + 2]);
      x[i + 2] = unpack_low64(y[i + 1], y[i + 3]), x[i + 3] = unpack_high64(y[i + 1], y[i + 3]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __m256i low = _mm256_permute2x128_si256(raw(x[i]), raw(x[i + 4]), 0x20);
      x[i + 4] = of(_mm256_permute2x128_si256(raw(x[i]), raw(x[i + 4]), 0x31));
      x[i] = of(low);
    }
  }

  /// Sixteen lanes folded in halves, 8, 4, 2, 1, of four rows: the first four lanes.
  DSAKIT_INLINE static F folded(const F* lane) {
    F row[4];
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) row[k] = lane[2 * k] + lane[2 * k + 1];
    const F ac = add_blocks(row[0], row[2]), bd = add_blocks(row[1], row[3]);
    const F two = _mm256_add_ps(_mm256_unpacklo_ps(ac, bd), _mm256_unpackhi_ps(ac, bd));
    const F one = _mm256_add_ps(two, _mm256_permute_ps(two, 0x4e));
    return F(_mm256_permute4x64_pd(_mm256_castps_pd(one), 0x08));
  }

  DSAKIT_INLINE static unsigned at_least(I key, I floor, int n) {
    const __m256i pass = _mm256_cmpeq_epi32(_mm256_max_epu32(raw(key), raw(floor)), raw(key));
    const unsigned inside = n >= 8 ? 255 : (1u << n) - 1;
    return unsigned(_mm256_movemask_ps(_mm256_castsi256_ps(pass))) & inside;
  }
  DSAKIT_INLINE static int append(I high, I low, unsigned chosen, std::uint64_t* out) {
    std::uint32_t h[8], l[8];
    store(h, high), store(l, low);
    int n = 0;
    for (; chosen; chosen &= chosen - 1) {
      const int i = __builtin_ctz(chosen);
      out[n++] = std::uint64_t(h[i]) << 32 | l[i];
    }
    return n;
  }

  /// The numbers of the e4m3 codes of exponents 0 and 1, byte by byte; every two further exponents add 1 to the upper
  /// byte, as long as all are normal.
  struct E4m3 {
    static constexpr int kCount = 16;
    __m256i low, high, low_subnormal, high_subnormal;

    DSAKIT_INLINE static bool can(float scale) {
      const float size = scale < 0 ? -scale : scale;
      return size >= 0x1p-110f && size <= 0x1p110f;
    }
    DSAKIT_INLINE explicit E4m3(const bf16* of) {
      // Of exponent 1, and as if 0 were one too.
      const __m128i subnormal = load16(of), one = load16(of + 8), zero = _mm_sub_epi16(one, _mm_set1_epi16(0x80));
      low = lower(zero, one), high = lower(_mm_srli_epi16(zero, 8), _mm_srli_epi16(one, 8));
      low_subnormal = lower(subnormal, subnormal);
      high_subnormal = lower(_mm_srli_epi16(subnormal, 8), _mm_srli_epi16(subnormal, 8));
    }
    DSAKIT_INLINE void pairs(I codes, I& first, I& second) const {
      const __m256i x = raw(codes), size = _mm256_and_si256(x, _mm256_set1_epi8(0x7f));
      const __m256i is_subnormal = _mm256_sub_epi8(size, _mm256_set1_epi8(8));  // as a sign
      const __m256i l = of_size(size, is_subnormal, low, low_subnormal);
      const __m256i exponent = _mm256_and_si256(_mm256_srli_epi16(x, 4), _mm256_set1_epi8(7));
      const __m256i u = _mm256_xor_si256(_mm256_add_epi8(of_size(size, is_subnormal, high, high_subnormal), exponent),
                                         _mm256_and_si256(x, _mm256_set1_epi8(char(0x80))));
      const __m256i odd = _mm256_set1_epi16(short(0xff00));
      first = of(_mm256_blendv_epi8(l, _mm256_slli_epi16(u, 8), odd));
      second = of(_mm256_blendv_epi8(_mm256_srli_epi16(l, 8), u, odd));
    }

   private:
    /// The lower bytes of two times eight half words, in each half.
    DSAKIT_INLINE static __m256i lower(__m128i a, __m128i b) {
      const __m128i byte = _mm_set1_epi16(255);
      return _mm256_broadcastsi128_si256(_mm_packus_epi16(_mm_and_si128(a, byte), _mm_and_si128(b, byte)));
    }
    DSAKIT_INLINE static __m256i of_size(__m256i size, __m256i is_subnormal, __m256i normals, __m256i subnormals) {
      return _mm256_blendv_epi8(_mm256_shuffle_epi8(normals, size), _mm256_shuffle_epi8(subnormals, size), is_subnormal);
    }
  };

  DSAKIT_INLINE static I add_codes(I sum, I codes) {
    return sum + of(_mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), raw(codes)), _mm256_set1_epi16(1)));
  }
  /// Codes of half a register as 16-bit integers.
  DSAKIT_INLINE static I widened(const void* p) { return of(_mm256_cvtepi8_epi16(load16(p))); }
  DSAKIT_INLINE static I multiply_pairs(I a, I b) { return of(_mm256_madd_epi16(raw(a), raw(b))); }
  /// Sixteen codes, times `flip` where they are biased, as 16-bit integers; of four 0 1 2 3 in the order 0 2 1 3.
  DSAKIT_INLINE static void widen_codes(const void* codes, int flip, std::int16_t* out) {
    const __m128i order = _mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15);
    const __m128i x = _mm_xor_si128(load16(codes), _mm_set1_epi8(char(flip)));
    store(out, of(_mm256_cvtepi8_epi16(_mm_shuffle_epi8(x, order))));
  }

 private:
  DSAKIT_INLINE static void copy_bytes(void* to, const void* from, int n) {
    for (int i = 0; i < n; ++i) static_cast<char*>(to)[i] = static_cast<const char*>(from)[i];
  }
  /// Sixteen bytes, the first n of which exist.
  DSAKIT_INLINE static __m128i load_few(const void* p, int n) {
    if (n >= 16) return load16(p);
    __m128i x{};
    if (n > 0) copy_bytes(&x, p, n);
    return x;
  }
};

}  // namespace
}  // namespace dsakit
