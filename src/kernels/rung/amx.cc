// SPDX-License-Identifier: Apache-2.0
// avx512 with the tiles of AMX-INT8 and AMX-BF16 (Sapphire Rapids and later), and what every CPU that has them has.
#include "kernels/tiles.hpp"
#include "kernels/scaled.hpp"
#include "kernels/vec/x86_512.hpp"

namespace dsakit {
namespace {

struct VecAmx : Vec512 {
  /// The numbers of the e4m3 codes 0 to 127, their bytes apart: VBMI looks up 64 codes at a time among 128.
  struct E4m3 {
    static constexpr int kCount = 128;
    __m512i low[2], high[2];

    DSAKIT_INLINE static bool can(float) { return true; }
    DSAKIT_INLINE explicit E4m3(const bf16* of) {
      const auto bytes = [](__m512i a, __m512i b) __attribute__((always_inline)) {
        return _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi16_epi8(a)), _mm512_cvtepi16_epi8(b), 1);
      };
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i) {
        const __m512i a = _mm512_loadu_si512(of + 64 * i), b = _mm512_loadu_si512(of + 64 * i + 32);
        low[i] = bytes(a, b), high[i] = bytes(_mm512_srli_epi16(a, 8), _mm512_srli_epi16(b, 8));
      }
    }
    /// What the lower bytes of the half words stand for, and the upper ones.
    DSAKIT_INLINE void pairs(I codes, I& first, I& second) const {
      constexpr int kFlip = 0x78, kJoin = 0xf8;  // a ^ (b & c), a | (b & c)
      const __m512i x = raw(codes), l = _mm512_permutex2var_epi8(low[0], x, low[1]);
      const __m512i h = _mm512_ternarylogic_epi32(_mm512_permutex2var_epi8(high[0], x, high[1]), x,
                                                  _mm512_set1_epi8(char(0x80)), kFlip);
      first = of(_mm512_ternarylogic_epi32(_mm512_slli_epi16(h, 8), l, _mm512_set1_epi16(0xff), kJoin));
      second = of(_mm512_ternarylogic_epi32(_mm512_srli_epi16(l, 8), h, _mm512_set1_epi16(short(0xff00)), kJoin));
    }
  };
};

}  // namespace

void use_amx(Kernels& k) {
  k.widen_scaled = widen_scaled<VecAmx>;
  static_cast<Entry<ProductOfScaled<float>>&>(k.product) = {product_of_scaled<VecAmx, FmaPairs<VecAmx, float>>};
  fill_tiles<Vec512, Tiles>(k);
}

}  // namespace dsakit
