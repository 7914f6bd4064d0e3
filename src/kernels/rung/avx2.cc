// SPDX-License-Identifier: Apache-2.0
// AVX2 with FMA and F16C: no dots, so int8 is widened to 16 bits and bf16 to fp32.
#include "kernels/fill.hpp"
#include "kernels/vec/x86_256.hpp"

namespace dsakit {

// GEMV kernels up to as many rows as two tiles of theirs hold: each tile transposes keys anew.
void use_avx2(Kernels& k) { fill<Vec256, WidenedI8<Vec256>, FmaPairs<Vec256, bf16>>(k, 12); }

}  // namespace dsakit
