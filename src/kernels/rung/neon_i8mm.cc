// SPDX-License-Identifier: Apache-2.0
// neon_dotprod with products of 2 x 8 and 8 x 2 codes (i8mm: Neoverse V1, N2 and later, Apple M2).
#include "kernels/fill.hpp"
#include "kernels/vec/neon.hpp"

namespace dsakit {
namespace {

struct Squares4 : SignedI8<VecNeon, NeonDot4> {
  DSAKIT_INLINE static I square(I sum, I rows, I columns) {
    return I(vmmlaq_s32(int32x4_t(sum), int8x16_t(rows), int8x16_t(columns)));
  }
};

}  // namespace

void use_neon_i8mm(Kernels& k) { fill_codes<VecNeon, Squares4>(k); }

}  // namespace dsakit
