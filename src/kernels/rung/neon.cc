// SPDX-License-Identifier: Apache-2.0
// NEON as every AArch64 has it: no dots, so int8 is widened to 16 bits and bf16 to fp32.
#include "kernels/fill.hpp"
#include "kernels/vec/neon.hpp"

namespace dsakit {

// GEMV kernels serve what one tile of six sums holds; beyond that keys would be transposed anew for every tile.
void use_neon(Kernels& k) { fill<VecNeon, WidenedI8<VecNeon>, FmaPairs<VecNeon, bf16>>(k, 6); }

}  // namespace dsakit
