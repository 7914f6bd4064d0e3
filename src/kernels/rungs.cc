// SPDX-License-Identifier: Apache-2.0
// The graph of instruction sets: what each needs of the CPU, and which it improves on.
#include <array>
#include <utility>

#include "kernels/kernels.hpp"
#include "kernels/self_test.hpp"
#include "kernels/tuning.hpp"
#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace dsakit {

// One per file in rung/.
void use_generic(Kernels&);
void use_avx2(Kernels&);
void use_avxvnni(Kernels&);
void use_avxvnni_evex(Kernels&);
void use_avx512vnni(Kernels&);
void use_avx512(Kernels&);
void use_amx(Kernels&);
void use_neon(Kernels&);
void use_neon_dotprod(Kernels&);
void use_neon_i8mm(Kernels&);
void use_neon_bf16(Kernels&);

Tuning tuning;

namespace {

#if defined(__x86_64__)
/// Bit `bit` of register `r` (0..3: eax, ebx, ecx, edx) of cpuid leaf 7, for what the compilers at hand do not know by
/// name.
bool cpuid7(unsigned subleaf, int r, int bit) {
  unsigned x[4] = {};
  return __get_cpuid_count(7, subleaf, &x[0], &x[1], &x[2], &x[3]) && (x[r] >> bit & 1);
}
bool has_avx2() {
  unsigned a, b, c = 0, d;  // clang 14 does not know f16c by name
  const bool f16c = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && f16c;
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vnni");
}
bool has_avxvnni() { return has_avx2() && cpuid7(1, 0, 4); }
bool has_bf16() { return has_avx512() && __builtin_cpu_supports("avx512bf16"); }

/// The first palette has the eight tiles of 16 rows of 64 bytes that the kernels know.
bool has_tiles() {
  unsigned sizes, names, rows, d;
  return cpuid7(0, 3, 24) && cpuid7(0, 3, 25) && cpuid7(0, 3, 22) &&
         __get_cpuid_count(0x1d, 1, &sizes, &names, &rows, &d) && (names & 0xffff) == 64 && names >> 16 >= 8 &&
         (rows & 0xffff) == 16;
}
/// Linux saves the tiles (bits 17 and 18 of XCR0) of processes that have asked for it: 8 KiB a thread.
bool may_use_tiles() {
#if defined(__linux__)
  constexpr int kAsk = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  unsigned low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (low >> 17 & 3) == 3 && syscall(SYS_arch_prctl, kAsk, kTileData) == 0;
#else
  return false;
#endif
}
#elif defined(__aarch64__)
bool has_dotprod() { return getauxval(AT_HWCAP) & HWCAP_ASIMDDP; }
bool has_i8mm() { return has_dotprod() && getauxval(AT_HWCAP2) & HWCAP2_I8MM; }
bool has_bf16() { return has_i8mm() && getauxval(AT_HWCAP2) & HWCAP2_BF16; }
#endif

struct Node {
  const char* isa;
  int base;  // which it starts from, -1: nothing
  void (*use)(Kernels&);
  bool supported;
  const char* needs;
  bool on_trial = false;  // it must pass a self-test first
};

struct Graph {
  static constexpr int kMost = 8;
  std::array<Kernels, kMost> table{};
  std::array<Rung, kMost> known{};
  std::array<const Kernels*, kMost> supported{};
  std::size_t rungs = 0, runnable = 0;

  void add(const Node& n) {
    Kernels& k = table[rungs];
    if (n.supported) {
      if (n.base >= 0) k = table[std::size_t(n.base)];
      n.use(k);
      k.isa = n.isa;
    }
    const bool fails = n.supported && n.on_trial && !passes_self_test(k, table[0]), runs = n.supported && !fails;
    if (runs) supported[runnable++] = &k;
    known[rungs++] = {n.isa, runs ? &k : nullptr, runs ? "" : fails ? "results that pass the self-test" : n.needs};
  }

  Graph() {
    add({"generic", -1, use_generic, true, ""});
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool evex = !has_avxvnni() && has_avx512();
    add({"avx2", 0, use_avx2, has_avx2(), "AVX2, FMA and F16C"});
    add({"avxvnni", 1, evex ? use_avxvnni_evex : use_avxvnni, evex || has_avxvnni(), "AVX-VNNI, or AVX-512 VNNI and VL"});
    add({"avx512vnni", 0, use_avx512vnni, has_avx512(), "AVX-512 F, BW, VL, DQ and VNNI"});
    add({"avx512", 3, use_avx512, has_bf16(), "AVX-512 BF16"});
    const bool tiles = has_bf16() && __builtin_cpu_supports("avx512vbmi") && has_tiles();
    add({"amx", 4, use_amx, tiles && may_use_tiles(),
         tiles ? "the system's permission to use AMX" : "AMX-INT8, AMX-BF16 and AVX-512 VBMI", true});
    // Measured on an Emerald Rapids, blocks and rows on a Cascade Lake too; on a Zen 4: docs/notes/0024-prefetch.md.
    if (__builtin_cpu_is("intel"))
      tuning = {.stream_ahead = 4 << 10, .run_ahead = 4 << 10, .column_ahead = 6 << 10, .code_block = 16 << 10};
    if (__builtin_cpu_is("amd")) tuning.rows_ahead = 16 << 10;
    // With 1 MiB of L2 wide keys were a tenth slower.
    const long l2 = sysconf(_SC_LEVEL2_CACHE_SIZE);
    if (l2 >= 2 << 20) tuning.wide_panels = 1280 << 10;
    if (l2 >= 1 << 20) tuning.strip_block = 64;
    // Intel's bf16 dots have half the rate of fp32 fma, so that widening is faster (docs/notes/0015-amx.md).
    if (supported[runnable - 1] == &table[4] && __builtin_cpu_is("intel"))
      std::swap(supported[runnable - 2], supported[runnable - 1]);
#elif defined(__aarch64__)
    add({"neon", 0, use_neon, true, ""});
    add({"neon_dotprod", 1, use_neon_dotprod, has_dotprod(), "dots of int8 (asimddp)"});
    add({"neon_i8mm", 2, use_neon_i8mm, has_i8mm(), "matrix products of int8 (i8mm)"});
    add({"neon_bf16", 3, use_neon_bf16, has_bf16(), "matrix products of bf16 (bf16)"});
#endif
  }
};

const Graph& graph() {
  static const Graph graph;
  return graph;
}

}  // namespace

std::span<const Rung> known_rungs() { return {graph().known.data(), graph().rungs}; }
std::span<const Kernels* const> supported_kernels() { return {graph().supported.data(), graph().runnable}; }

const Kernels* find_kernels(std::string_view isa) {
  for (const Kernels* k : supported_kernels())
    if (isa == k->isa) return k;
  return nullptr;
}

}  // namespace dsakit
