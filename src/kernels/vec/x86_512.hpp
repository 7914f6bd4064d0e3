// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <immintrin.h>

#include "kernels/vec/base.hpp"

namespace dsakit {
namespace {

/// AVX-512 F, BW, VL, DQ and VNNI.
struct Vec512 : VecBase<64> {
  static constexpr int kRegisters = 32;
  static constexpr bool kFma = true;

  DSAKIT_INLINE static I of(__m512i x) { return I(x); }
  DSAKIT_INLINE static __m512i raw(I x) { return __m512i(x); }
  DSAKIT_INLINE static __mmask64 bytes(int n) { return n >= 64 ? ~__mmask64(0) : (__mmask64(1) << (n < 0 ? 0 : n)) - 1; }
  DSAKIT_INLINE static __mmask16 lanes(int n) { return __mmask16(bytes(n < 16 ? n : 16)); }

  DSAKIT_INLINE static I set(std::int32_t x) { return of(_mm512_set1_epi32(x)); }
  DSAKIT_INLINE static F set_float(float x) { return _mm512_set1_ps(x); }
  DSAKIT_INLINE static I broadcast(const void* p) { return set(load32(p)); }
  DSAKIT_INLINE static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  /// The second operand where one is NaN.
  DSAKIT_INLINE static F max(F a, F b) { return _mm512_max_ps(a, b); }
  DSAKIT_INLINE static F min(F a, F b) { return _mm512_min_ps(a, b); }
  DSAKIT_INLINE static I max(I a, I b) { return of(_mm512_max_epi32(raw(a), raw(b))); }
  DSAKIT_INLINE static F to_float(I x) { return _mm512_cvtepi32_ps(raw(x)); }
  /// bits where x is a number; else 0.
  DSAKIT_INLINE static I where_number(F x, I bits) {
    return of(_mm512_maskz_mov_epi32(_mm512_cmp_ps_mask(x, x, _CMP_ORD_Q), raw(bits)));
  }
  DSAKIT_INLINE static F power_of_eighths(F shifted) {
    const __m512i power = _mm512_permutexvar_epi32(raw(I(shifted)), raw(load(kEighths.bits)));
    return F(of(_mm512_add_epi32(power, raw(I(shifted) << 20))));
  }
  DSAKIT_INLINE static F unless_less(F x, float than, F y) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, set_float(than), _CMP_NLT_UQ), y);
  }

  // Of the first n bytes or elements; the rest is 0 (is left alone).
  DSAKIT_INLINE static I load_bytes(const void* p, int n) {
    return n >= 64 ? load(p) : of(_mm512_maskz_loadu_epi8(bytes(n), p));
  }
  DSAKIT_INLINE static F load_floats(const float* p, int n) {
    return n >= 16 ? load_float(p) : _mm512_maskz_loadu_ps(lanes(n), p);
  }
  DSAKIT_INLINE static void store_floats(float* p, F x, int n) {
    if (n >= 16) return store_float(p, x);
    _mm512_mask_storeu_ps(p, lanes(n), x);
  }
  /// 16-bit words, as they are, in 32 bits.
  DSAKIT_INLINE static I load_words(const void* p, int n) {
    if (n >= 16) return of(_mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p))));
    return of(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes(n), p)));
  }
  /// The lower halves of the first n words.
  DSAKIT_INLINE static void store_words(void* p, I x, int n) {
    const __m256i words = _mm512_cvtepi32_epi16(raw(x));
    if (n >= 16) _mm256_storeu_si256(static_cast<__m256i*>(p), words);
    else _mm256_mask_storeu_epi16(p, lanes(n), words);
  }
  // Halves of the words of a, then of those of b, in an order of their own, and from that to where they belong.
  DSAKIT_INLINE static I upper_halves(I a, I b) {
    return of(_mm512_packus_epi32(_mm512_srli_epi32(raw(a), 16), _mm512_srli_epi32(raw(b), 16)));
  }
  DSAKIT_INLINE static I lower_halves(I a, I b) {
    const __m512i half = _mm512_set1_epi32(0xffff);
    return of(_mm512_packus_epi32(_mm512_and_si512(raw(a), half), _mm512_and_si512(raw(b), half)));
  }
  DSAKIT_INLINE static I halves_in_order(I x) {
    return of(_mm512_permutexvar_epi64(_mm512_set_epi64(7, 5, 3, 1, 6, 4, 2, 0), raw(x)));
  }
  DSAKIT_INLINE static I rounded_halves(I upper, I lower) {
    const __m512i high = raw(upper), one = _mm512_set1_epi16(1);
    const __m512i tie = _mm512_sub_epi16(_mm512_set1_epi16(short(0x8000)), _mm512_and_si512(high, one));
    const __mmask32 up = _mm512_mask_cmple_epi16_mask(_mm512_cmpgt_epu16_mask(raw(lower), tie),
                                                      _mm512_and_si512(high, _mm512_set1_epi16(0x7fff)),
                                                      _mm512_set1_epi16(0x7f80));
    return of(_mm512_mask_add_epi16(high, up, high, one));
  }
  /// Codes, their sign extended.
  DSAKIT_INLINE static I load_codes(const void* p, int n) {
    if (n >= 16) return of(_mm512_cvtepi8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p))));
    return of(_mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(lanes(n), p)));
  }
  DSAKIT_INLINE static F load_f16(const void* p, int n) {
    if (n >= 16) return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(lanes(n), p));
  }
  /// The f16 in the lower half of each word.
  DSAKIT_INLINE static F low_f16(I x) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(raw(x))); }
  /// The first n codes: nearest, ties to even, saturated; NaN is 0. The conversion makes everything it cannot hold the
  /// smallest integer, which saturates to -128: right below, so only the upper side is clamped first.
  DSAKIT_INLINE static void store_codes(std::int8_t* p, F x, int n) {
    const __mmask16 number = _mm512_cmp_ps_mask(x, x, _CMP_ORD_Q);
    const __m128i codes =
        _mm512_cvtsepi32_epi8(_mm512_maskz_cvtps_epi32(number, _mm512_min_ps(x, _mm512_set1_ps(127))));
    if (n >= 16) _mm_storeu_si128(reinterpret_cast<__m128i*>(p), codes);
    else _mm512_mask_storeu_epi8(p, lanes(n), _mm512_castsi128_si512(codes));
  }
  /// Of four registers, all of them. Codes of 16 bits make what they cannot hold their smallest one, as the conversion does:
  /// where none is seen, as a rule, nothing was to be clamped.
  DSAKIT_INLINE static void store_codes(std::int8_t* p, const F (&x)[4]) {
    __m512i y[4];
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) y[r] = _mm512_cvtps_epi32(x[r]);
    __m512i low = _mm512_packs_epi32(y[0], y[1]), high = _mm512_packs_epi32(y[2], y[3]);
    if (_mm512_cmpeq_epi16_mask(_mm512_min_epi16(low, high), _mm512_set1_epi16(-32768))) [[unlikely]] {
#pragma GCC unroll 4
      for (int r = 0; r < 4; ++r)
        y[r] = _mm512_maskz_cvtps_epi32(_mm512_cmp_ps_mask(x[r], x[r], _CMP_ORD_Q), _mm512_min_ps(x[r], _mm512_set1_ps(127)));
      low = _mm512_packs_epi32(y[0], y[1]), high = _mm512_packs_epi32(y[2], y[3]);
    }
    const __m512i order = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
    store(p, of(_mm512_permutexvar_epi32(order, _mm512_packs_epi16(low, high))));
  }
  DSAKIT_INLINE static float max_of_lanes(F x) { return _mm512_reduce_max_ps(x); }
  DSAKIT_INLINE static std::int32_t sum_of_lanes(I x) { return _mm512_reduce_add_epi32(raw(x)); }

  /// 32 bytes of each.
  DSAKIT_INLINE static I load_halves(const void* low, const void* high) {
    return of(_mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256(static_cast<const __m256i*>(low))),
                                 _mm256_loadu_si256(static_cast<const __m256i*>(high)), 1));
  }

  /// Rows 0 and 1, and 2 and 3, of 32 codes each: the four of every column become a word.
  DSAKIT_INLINE static void interleave_rows8(I a, I b, I (&x)[2]) {
    const __m512i left = _mm512_set_epi32(27, 19, 11, 3, 26, 18, 10, 2, 25, 17, 9, 1, 24, 16, 8, 0);
    const __m512i right = _mm512_set_epi32(31, 23, 15, 7, 30, 22, 14, 6, 29, 21, 13, 5, 28, 20, 12, 4);
    const __m512i turned = _mm512_set4_epi32(0x0f0b0703, 0x0e0a0602, 0x0d090501, 0x0c080400);  // 4 x 4
    x[0] = of(_mm512_shuffle_epi8(_mm512_permutex2var_epi32(raw(a), left, raw(b)), turned));
    x[1] = of(_mm512_shuffle_epi8(_mm512_permutex2var_epi32(raw(a), right, raw(b)), turned));
  }
  /// Two rows of sixteen 16-bit numbers: the two of every column become a word.
  DSAKIT_INLINE static I interleave_rows16(I x) {
    const __m512i words = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i order = _mm512_or_si512(words, _mm512_slli_epi32(_mm512_add_epi32(words, _mm512_set1_epi32(16)), 16));
    return of(_mm512_permutexvar_epi16(order, raw(x)));
  }

  // Inside 128-bit blocks.
  DSAKIT_INLINE static I unpack_low8(I a, I b) { return of(_mm512_unpacklo_epi8(raw(a), raw(b))); }
  DSAKIT_INLINE static I unpack_high8(I a, I b) { return of(_mm512_unpackhi_epi8(raw(a), raw(b))); }
  DSAKIT_INLINE static I unpack_low16(I a, I b) { return of(_mm512_unpacklo_epi16(raw(a), raw(b))); }
  DSAKIT_INLINE static I unpack_high16(I a, I b) { return of(_mm512_unpackhi_epi16(raw(a), raw(b))); }
  DSAKIT_INLINE static I unpack_low32(I a, I b) { return of(_mm512_unpacklo_epi32(raw(a), raw(b))); }
  DSAKIT_INLINE static I unpack_high32(I a, I b) { return of(_mm512_unpackhi_epi32(raw(a), raw(b))); }
  DSAKIT_INLINE static I unpack_low64(I a, I b) { return of(_mm512_unpacklo_epi64(raw(a), raw(b))); }
  DSAKIT_INLINE static I unpack_high64(I a, I b) { return of(_mm512_unpackhi_epi64(raw(a), raw(b))); }

  /// Word i of block b becomes word (blocks * i + b): unpacking such registers leaves columns in order.
  DSAKIT_INLINE static I spread(I x) {
    const __m512i order = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
    return of(_mm512_permutexvar_epi32(order, raw(x)));
  }

  /// x[i][j] and x[j][i] change places, words.
  DSAKIT_INLINE static void transpose(I (&x)[16]) {
    I y[16];
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) y[i] = unpack_low32(x[i], x[i + 1]), y[i + 1] = unpack_high32(x[i], x[i + 1]);
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
      x[i] = unpack_low64(y[i], y[i + 2]), x[i + 1] = unpack_high64(y[i], y[i + 2]);
      x[i + 2] = unpack_low64(y[i + 1], y[i + 3]), x[i + 3] = unpack_high64(y[i + 1], y[i + 3]);
    }
    const auto even = [](I a, I b) __attribute__((always_inline)) {
      return of(_mm512_shuffle_i32x4(raw(a), raw(b), 0x88));
    };
    const auto odd = [](I a, I b) __attribute__((always_inline)) {
      return of(_mm512_shuffle_i32x4(raw(a), raw(b), 0xdd));
    };
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      y[i] = even(x[i], x[i + 4]), y[i + 4] = odd(x[i], x[i + 4]);
      y[i + 8] = even(x[i + 8], x[i + 12]), y[i + 12] = odd(x[i + 8], x[i + 12]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      x[i] = even(y[i], y[i + 8]), x[i + 8] = odd(y[i], y[i + 8]);
      x[i + 4] = even(y[i + 4], y[i + 12]), x[i + 12] = odd(y[i + 4], y[i + 12]);
    }
  }

  // 32 bytes of sixteen rows in eight registers, of which register i has rows i and i + 8.
  DSAKIT_INLINE static I load_row_pair(const std::byte* const* row, int i, std::ptrdiff_t at, int n) {
    const std::byte *a = row[i] + at, *b = row[i + 8] + at;
    if (n >= 32) return load_halves(a, b);
    const __mmask32 some = (1u << n) - 1;
    return of(_mm512_inserti64x4(_mm512_castsi256_si512(_mm256_maskz_loadu_epi8(some, a)),
                                 _mm256_maskz_loadu_epi8(some, b), 1));
  }
  /// The last step of their transposition: rows 0-3 and 8-11 would be next to 4-7 and 12-15 of the other.
  DSAKIT_INLINE static void join_blocks(I& a, I& b) {
    const __m512i low = _mm512_set_epi64(13, 12, 5, 4, 9, 8, 1, 0), high = _mm512_set_epi64(15, 14, 7, 6, 11, 10, 3, 2);
    const __m512i x = _mm512_permutex2var_epi64(raw(a), low, raw(b));
    b = of(_mm512_permutex2var_epi64(raw(a), high, raw(b)));
    a = of(x);
  }

  /// Sixteen lanes folded in halves, 8, 4, 2, 1, of four rows: the first four lanes.
  DSAKIT_INLINE static F folded(const F* lane) {
    const auto fold8 = [](F x, F y) __attribute__((always_inline)) {  // [x folded | y folded]
      return F(_mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x44), _mm512_shuffle_f32x4(x, y, 0xee)));
    };
    const F ab = fold8(lane[0], lane[1]), cd = fold8(lane[2], lane[3]);
    const F four = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
    const F two = _mm512_add_ps(four, _mm512_permute_ps(four, 0x4e));
    const F one = _mm512_add_ps(two, _mm512_permute_ps(two, 0xb1));
    const __m512i first = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12, 8, 4, 0);
    return _mm512_permutexvar_ps(first, one);
  }

  /// Which of the first n keys are at least `floor`, unsigned.
  DSAKIT_INLINE static unsigned at_least(I key, I floor, int n) {
    return _mm512_mask_cmpge_epu32_mask(lanes(n), raw(key), raw(floor));
  }
  /// Appends the chosen words of high and low as one 64-bit word each; returns how many.
  DSAKIT_INLINE static int append(I high, I low, unsigned chosen, std::uint64_t* out) {
    const auto half = [&](__m256i h, __m256i l, unsigned mask, std::uint64_t* to) __attribute__((always_inline)) {
      const __m512i all = _mm512_or_si512(_mm512_slli_epi64(_mm512_cvtepu32_epi64(h), 32), _mm512_cvtepu32_epi64(l));
      const int n = __builtin_popcount(mask);
      // Compressed in a register: storing compressed is microcode on Zen 4.
      _mm512_mask_storeu_epi64(to, __mmask8((1u << n) - 1), _mm512_maskz_compress_epi64(__mmask8(mask), all));
      return n;
    };
    const int n = half(_mm512_castsi512_si256(raw(high)), _mm512_castsi512_si256(raw(low)), chosen & 255, out);
    return n + half(_mm512_extracti64x4_epi64(raw(high), 1), _mm512_extracti64x4_epi64(raw(low), 1), chosen >> 8,
                    out + n);
  }

  /// The numbers of the e4m3 codes of exponents 0 and 1, byte by byte; every two further exponents add 1 to the upper
  /// byte, as long as all are normal. Two look-ups of pairs of bytes in 128 numbers take twice the time of the shuffles.
  struct E4m3 {
    static constexpr int kCount = 16;
    __m512i low, high, low_subnormal, high_subnormal;

    DSAKIT_INLINE static bool can(float scale) {
      const float size = scale < 0 ? -scale : scale;
      return size >= 0x1p-110f && size <= 0x1p110f;
    }
    DSAKIT_INLINE explicit E4m3(const bf16* of) {
      const __m256i numbers = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(of));
      const __m256i one = _mm256_permute2x128_si256(numbers, numbers, 0x11);  // of exponent 1, and as if 0 were one too
      const __m256i normal = _mm256_sub_epi16(one, _mm256_setr_m128i(_mm_set1_epi16(0x80), _mm_setzero_si128()));
      low = lower(normal), high = lower(_mm256_srli_epi16(normal, 8));
      low_subnormal = lower(numbers), high_subnormal = lower(_mm256_srli_epi16(numbers, 8));
    }
    /// What the lower bytes of the half words stand for, and the upper ones.
    DSAKIT_INLINE void pairs(I codes, I& first, I& second) const {
      constexpr int kInsert = 0xf8, kInsertOthers = 0xf4, kFlip = 0x78;  // a | (b & c), a | (b & ~c), a ^ (b & c)
      const __m512i x = raw(codes), entry = _mm512_and_si512(x, _mm512_set1_epi8(15)), even = _mm512_set1_epi16(255);
      const __mmask64 subnormal = _mm512_testn_epi8_mask(x, _mm512_set1_epi8(0x78));
      const __m512i exponent = _mm512_and_si512(_mm512_srli_epi16(x, 4), _mm512_set1_epi8(7));
      const __m512i l = _mm512_mask_shuffle_epi8(_mm512_shuffle_epi8(low, entry), subnormal, low_subnormal, entry);
      const __m512i size = _mm512_mask_shuffle_epi8(_mm512_shuffle_epi8(high, entry), subnormal, high_subnormal, entry);
      const __m512i h = _mm512_ternarylogic_epi32(_mm512_add_epi8(size, exponent), x, _mm512_set1_epi8(char(0x80)), kFlip);
      first = of(_mm512_ternarylogic_epi32(_mm512_slli_epi16(h, 8), l, even, kInsert));
      second = of(_mm512_ternarylogic_epi32(_mm512_srli_epi16(l, 8), h, even, kInsertOthers));
    }

   private:
    /// The lower bytes of sixteen half words, in each quarter.
    DSAKIT_INLINE static __m512i lower(__m256i x) { return _mm512_broadcast_i32x4(_mm256_cvtepi16_epi8(x)); }
  };

  /// sum += the four codes of each word; += products of pairs of 16-bit integers.
  DSAKIT_INLINE static I add_codes(I sum, I codes) {
    return of(_mm512_dpbusd_epi32(raw(sum), _mm512_set1_epi8(1), raw(codes)));
  }
};

}  // namespace
}  // namespace dsakit
