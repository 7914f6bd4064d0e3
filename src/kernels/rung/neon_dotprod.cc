// SPDX-License-Identifier: Apache-2.0
// neon with dots of int8 (asimddp: Neoverse N1, Apple, Cortex-A76 and later).
#include "kernels/fill.hpp"
#include "kernels/vec/neon.hpp"

namespace dsakit {

void use_neon_dotprod(Kernels& k) { fill_codes<VecNeon, SignedI8<VecNeon, NeonDot4>>(k); }

}  // namespace dsakit
