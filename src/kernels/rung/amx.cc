// SPDX-License-Identifier: Apache-2.0
// avx512 with the tiles of AMX-INT8 and AMX-BF16 (Sapphire Rapids and later).
#include "kernels/tiles.hpp"
#include "kernels/vec/x86_512.hpp"

namespace dsakit {

void use_amx(Kernels& k) { fill_tiles<Vec512, Tiles>(k); }

}  // namespace dsakit
