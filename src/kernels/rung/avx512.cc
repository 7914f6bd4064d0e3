// SPDX-License-Identifier: Apache-2.0
// avx512vnni with the dots of AVX-512 BF16 (Cooper Lake, Sapphire Rapids, Zen 4 and later).
#include "kernels/fill.hpp"
#include "kernels/vec/x86_512.hpp"

namespace dsakit {
namespace {

struct DotBf16 {
  using I = Vec512::I;
  using Sum = Vec512::F;
  using Row = bf16;
  static constexpr int kSteps = 1, kOddBytes = 2;

  DSAKIT_INLINE static I column(I x, int) { return x; }
  DSAKIT_INLINE static Sum dot(Sum sum, I row, I column) {
    return _mm512_dpbf16_ps(sum, (__m512bh)row, (__m512bh)column);
  }
};

/// By the instruction, to which subnormal numbers are 0.
struct ConvertToBf16 {
  using To = bf16;
  DSAKIT_INLINE static void store(bf16* y, Vec512::F x, int some) {
    const __m256i words = (__m256i)_mm512_cvtneps_pbh(x);
    if (some >= 16) _mm256_storeu_si256(reinterpret_cast<__m256i*>(y), words);
    else _mm256_mask_storeu_epi16(y, Vec512::lanes(some), words);
  }
};

}  // namespace

void use_avx512(Kernels& k) {
  fill_pairs<Vec512, DotBf16>(k);
  k.softmax = softmax<Vec512, ConvertToBf16>;
  static_cast<Entry<Multiply<bf16>>&>(k.multiply) = {multiply<Vec512, ConvertToBf16>};
}

}  // namespace dsakit
