// SPDX-License-Identifier: Apache-2.0
// AVX2 with the int8 dots of AVX-VNNI (Alder Lake and later without AVX-512; Zen 5). avxvnni_evex.cc is the same with
// another encoding.
#include "kernels/fill.hpp"
#include "kernels/vec/x86_256.hpp"

#ifndef DSAKIT_USE
#define DSAKIT_USE use_avxvnni
#endif

namespace dsakit {
namespace {

struct Dot4 {
  DSAKIT_INLINE static Vec256::I dot4(Vec256::I sum, Vec256::I u, Vec256::I s) {
    return Vec256::of(_mm256_dpbusd_epi32(Vec256::raw(sum), Vec256::raw(u), Vec256::raw(s)));
  }
};

}  // namespace

void DSAKIT_USE(Kernels& k) { fill_codes<Vec256, DotI8<Vec256, Dot4>>(k); }

}  // namespace dsakit
