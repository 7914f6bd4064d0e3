// SPDX-License-Identifier: Apache-2.0
// The rung every machine has: vectors of the compiler, 16 bytes wide.
#include "kernels/fill.hpp"
#include "kernels/vec/plain.hpp"

namespace dsakit {

void use_generic(Kernels& k) { fill<Vec128, WidenedI8<Vec128>, FmaPairs<Vec128, bf16>>(k, 0); }

}  // namespace dsakit
