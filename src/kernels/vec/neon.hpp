// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <arm_neon.h>

#include "kernels/vec/plain.hpp"

namespace dsakit {
namespace {

/// NEON, as every AArch64 has it: 128-bit vectors of the compiler, and the instructions that it does not find by itself.
struct VecNeon : Vec128 {
  static constexpr int kRegisters = 32;
  static constexpr bool kFma = true;

  DSAKIT_INLINE static F fma(F a, F b, F c) {
    return F(vfmaq_f32(float32x4_t(c), float32x4_t(a), float32x4_t(b)));
  }

  DSAKIT_INLINE static F power_of_eighths(F shifted) {
    const U at = (U(shifted) & 7) * 0x04040404u + 0x03020100u;  // of bytes
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(kEighths.bits);
    const uint8x16x2_t table = {{vld1q_u8(bytes), vld1q_u8(bytes + 16)}};
    return F(U(vqtbl2q_u8(table, uint8x16_t(at))) + (U(shifted) << 20));
  }

  DSAKIT_INLINE static I load_words(const void* p, int n) {
    return n >= 4 ? I(vmovl_u16(load8<uint16x4_t>(p))) : Vec128::load_words(p, n);
  }
  DSAKIT_INLINE static void store_words(void* p, I x, int n) {
    const uint16x4_t words = vmovn_u32(uint32x4_t(x));
    if (n >= 4) __builtin_memcpy(p, &words, 8);
    else if (n > 0) __builtin_memcpy(p, &words, std::size_t(2 * n));
  }
  DSAKIT_INLINE static I load_codes(const void* p, int n) {
    if (n < 4) return Vec128::load_codes(p, n);
    return I(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(load32(p)))))));
  }
  DSAKIT_INLINE static F load_f16(const void* p, int n) { return low_f16(load_words(p, n)); }
  DSAKIT_INLINE static F low_f16(I x) { return F(vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(uint32x4_t(x))))); }
  /// The conversion saturates, and makes NaN 0.
  DSAKIT_INLINE static void store_codes(std::int8_t* p, F v, int n) {
    const int16x4_t words = vqmovn_s32(vcvtnq_s32_f32(float32x4_t(v)));
    const int8x8_t codes = vqmovn_s16(vcombine_s16(words, words));
    if (n >= 4) __builtin_memcpy(p, &codes, 4);
    else if (n > 0) __builtin_memcpy(p, &codes, std::size_t(n));
  }
  DSAKIT_INLINE static void store_codes(std::int8_t* p, const F (&x)[4]) {
    int16x4_t words[4];
    for (int r = 0; r < 4; ++r) words[r] = vqmovn_s32(vcvtnq_s32_f32(float32x4_t(x[r])));
    const int8x8_t low = vqmovn_s16(vcombine_s16(words[0], words[1]));
    store(p, I(vqmovn_high_s16(low, vcombine_s16(words[2], words[3]))));
  }
  DSAKIT_INLINE static std::int32_t sum_of_lanes(I x) { return vaddvq_s32(int32x4_t(x)); }

  DSAKIT_INLINE static I unpack_low32(I a, I b) { return __builtin_shufflevector(a, b, 0, 4, 1, 5); }
  DSAKIT_INLINE static I unpack_high32(I a, I b) { return __builtin_shufflevector(a, b, 2, 6, 3, 7); }
  DSAKIT_INLINE static I unpack_low64(I a, I b) { return __builtin_shufflevector(a, b, 0, 1, 4, 5); }
  DSAKIT_INLINE static I unpack_high64(I a, I b) { return __builtin_shufflevector(a, b, 2, 3, 6, 7); }
  /// Eight bytes of each.
  DSAKIT_INLINE static I load_halves(const void* low, const void* high) {
    return I(vcombine_s32(load8<int32x2_t>(low), load8<int32x2_t>(high)));
  }

  DSAKIT_INLINE static unsigned at_least(I key, I floor, int n) {
    const U bit = {1, 2, 4, 8};
    return vaddvq_u32(uint32x4_t(U(U(key) >= U(floor)) & bit)) & (n >= 4 ? 15 : (1u << n) - 1);
  }

  /// The numbers of the e4m3 codes of exponents 0 and 1, byte by byte; every further exponent adds 1 to that of the
  /// result, as long as all are normal.
  struct E4m3 {
    static constexpr int kCount = 16;
    uint8x16_t low, high;

    DSAKIT_INLINE static bool can(float scale) {
      const float size = scale < 0 ? -scale : scale;
      return size >= 0x1p-110f && size <= 0x1p110f;
    }
    DSAKIT_INLINE explicit E4m3(const bf16* of) {
      const uint16x8_t subnormal = uint16x8_t(load(of));
      const uint16x8_t normal = vsubq_u16(uint16x8_t(load(of + 8)), vdupq_n_u16(0x80));
      low = vuzp1q_u8(uint8x16_t(normal), uint8x16_t(subnormal));
      high = vuzp2q_u8(uint8x16_t(normal), uint8x16_t(subnormal));
    }
    DSAKIT_INLINE void pairs(I codes, I& first, I& second) const {
      const uint8x16_t x = uint8x16_t(codes), exponent = vandq_u8(x, vdupq_n_u8(0x78));
      const uint8x16_t is_subnormal = vceqzq_u8(exponent);
      const uint8x16_t entry = vbslq_u8(vdupq_n_u8(7), x, vandq_u8(is_subnormal, vdupq_n_u8(8)));
      const uint8x16_t lower = vqtbl1q_u8(low, entry), upper = vqtbl1q_u8(high, entry);
      first = number(vtrn1q_u8(lower, upper), vshlq_n_u16(uint16x8_t(exponent), 4), vshlq_n_u16(uint16x8_t(x), 8));
      second = number(vtrn2q_u8(lower, upper), vshrq_n_u16(uint16x8_t(exponent), 4), uint16x8_t(x));
    }

   private:
    /// bits + exponent in its place, with the sign of `sign`.
    DSAKIT_INLINE static I number(uint8x16_t bits, uint16x8_t exponent, uint16x8_t sign) {
      const uint16x8_t sum = vaddq_u16(uint16x8_t(bits), vandq_u16(exponent, vdupq_n_u16(0x0780)));
      return I(veorq_u16(sum, vandq_u16(sign, vdupq_n_u16(0x8000))));
    }
  };

  DSAKIT_INLINE static I add_codes(I sum, I codes) {
    return I(vpadalq_s16(int32x4_t(sum), vpaddlq_s8(int8x16_t(codes))));
  }
  DSAKIT_INLINE static I multiply_pairs(I a, I b) {
    const int16x8_t x = int16x8_t(a), y = int16x8_t(b);
    return I(vpaddq_s32(vmull_s16(vget_low_s16(x), vget_low_s16(y)), vmull_high_s16(x, y)));
  }

 private:
  template <class Half>
  DSAKIT_INLINE static Half load8(const void* p) {
    Half x;
    __builtin_memcpy(&x, p, sizeof x);
    return x;
  }
};

#if defined(__ARM_FEATURE_DOTPROD)
/// i8 x i8.
struct NeonDot4 {
  DSAKIT_INLINE static VecNeon::I dot4(VecNeon::I sum, VecNeon::I a, VecNeon::I b) {
    return VecNeon::I(vdotq_s32(int32x4_t(sum), int8x16_t(a), int8x16_t(b)));
  }
};
#endif

}  // namespace
}  // namespace dsakit
