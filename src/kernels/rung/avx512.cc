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

}  // namespace

void use_avx512(Kernels& k) { fill_pairs<Vec512, DotBf16>(k); }

}  // namespace dsakit
