// SPDX-License-Identifier: Apache-2.0
// neon_i8mm with dots of bf16, and products of 2 x 4 and 4 x 2 (bf16: Neoverse V1, N2 and later, Apple M2). The architecture
// defines the second as two of the first, one after the other, so the bits of a row are the same by either.
#include "kernels/fill.hpp"
#include "kernels/vec/neon.hpp"

namespace dsakit {
namespace {

struct DotBf16 {
  using I = VecNeon::I;
  using Sum = VecNeon::F;
  using Row = bf16;
  static constexpr int kSteps = 1, kOddBytes = 2;

  DSAKIT_INLINE static I column(I x, int) { return x; }
  DSAKIT_INLINE static Sum dot(Sum sum, I row, I column) {
    return Sum(vbfdotq_f32(float32x4_t(sum), bfloat16x8_t(row), bfloat16x8_t(column)));
  }
  DSAKIT_INLINE static Sum square(Sum sum, I rows, I columns) {
    return Sum(vbfmmlaq_f32(float32x4_t(sum), bfloat16x8_t(rows), bfloat16x8_t(columns)));
  }
};

}  // namespace

void use_neon_bf16(Kernels& k) { fill_pairs<VecNeon, DotBf16>(k); }

}  // namespace dsakit
