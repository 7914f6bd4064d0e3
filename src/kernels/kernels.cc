// SPDX-License-Identifier: Apache-2.0
#include "kernels/kernels.hpp"

#include <array>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace dsakit {
namespace {

struct Ladder {
  std::array<Kernels, 3> rung{};
  std::array<const Kernels*, 3> supported{};
  std::size_t count = 0;

  void add(bool present, const char* isa, void (*use)(Kernels&)) {
    if (!present) return;
    Kernels& k = rung[count];
    if (count > 0) k = rung[count - 1];
    use(k);
    k.isa = isa;
    supported[count++] = &k;
  }

  Ladder() {
    add(true, "generic", use_generic);
#if defined(__x86_64__)
    __builtin_cpu_init();
    unsigned a, b, c = 0, d;  // clang 14 does not know f16c by name
    const bool f16c = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && f16c;
    add(avx2, "avx2", use_avx2);
    add(avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
            __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
            __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16"),
        "avx512", use_avx512);
#endif
  }
};

const Ladder& ladder() {
  static const Ladder ladder;
  return ladder;
}

}  // namespace

std::span<const Kernels* const> supported_kernels() { return {ladder().supported.data(), ladder().count}; }

const Kernels* find_kernels(std::string_view isa) {
  for (const Kernels* k : supported_kernels())
    if (isa == k->isa) return k;
  return nullptr;
}

}  // namespace dsakit
