// SPDX-License-Identifier: Apache-2.0
// AVX2 with FMA and F16C: no dots, so int8 is widened to 16 bits and bf16 to fp32.
#include "kernels/fill.hpp"
#include "kernels/vec/x86_256.hpp"

namespace dsakit {

// GEMV kernels serve what two tiles of six sums hold; beyond that keys would be transposed anew for every tile.
void use_avx2(Kernels& k) { fill<Vec256, WidenedI8<Vec256>, FmaPairs<Vec256, bf16>>(k, 12); }

}  // namespace dsakit
