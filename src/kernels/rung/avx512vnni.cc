// SPDX-License-Identifier: Apache-2.0
// AVX-512 F, BW, VL, DQ with VNNI (Cascade Lake, Ice Lake and later): int8 dots; bf16 is widened to fp32.
#include "kernels/fill.hpp"
#include "kernels/vec/x86_512.hpp"

namespace dsakit {
namespace {

struct Dot4 {
  DSAKIT_INLINE static Vec512::I dot4(Vec512::I sum, Vec512::I u, Vec512::I s) {
    return Vec512::of(_mm512_dpbusd_epi32(Vec512::raw(sum), Vec512::raw(u), Vec512::raw(s)));
  }
  /// The same of a word in memory, one operation: gcc 12 makes two of it, and some machines begin four in a cycle.
  DSAKIT_INLINE static void dot4_of_word(Vec512::I& sum, Vec512::I u, const std::int32_t* word) {
    asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(u), "m"(*word));
  }
};

}  // namespace

void use_avx512vnni(Kernels& k) { fill<Vec512, DotI8<Vec512, Dot4>, FmaPairs<Vec512, bf16>>(k, kGemvRows); }

}  // namespace dsakit
