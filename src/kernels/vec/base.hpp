// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "dsakit/tensor.hpp"
#include "kernels/tuning.hpp"

// The kernels' algorithms are templates over a vocabulary: one struct per register width that says how to load, broadcast,
// transpose, convert. Every rung compiles them with its own flags: hence anonymous namespaces throughout, and no function
// of the standard library that is not a template of constants (an inline function compiled here for AVX-512 must not win
// at link time). Contraction is off, so a plain expression has the same bits on every rung.
#define DSAKIT_INLINE [[gnu::always_inline]] inline

namespace dsakit {
namespace {

/// What all vocabularies share: vectors of the compiler, whose operators need no words of their own.
template <int Bytes>
struct VecBase {
  static constexpr int kBytes = Bytes, kLanes = Bytes / 4;
  static constexpr int kParts = 16 / kLanes;  // registers of sixteen lanes
  typedef float F __attribute__((vector_size(Bytes)));
  typedef std::int32_t I __attribute__((vector_size(Bytes)));
  typedef std::uint32_t U __attribute__((vector_size(Bytes)));
  typedef std::int16_t H __attribute__((vector_size(Bytes)));
  typedef std::uint16_t U16 __attribute__((vector_size(Bytes)));
  typedef std::int8_t B __attribute__((vector_size(Bytes)));
  typedef float Block __attribute__((vector_size(16)));

  DSAKIT_INLINE static I load(const void* p) {
    I x;
    __builtin_memcpy(&x, p, sizeof x);
    return x;
  }
  DSAKIT_INLINE static void store(void* p, I x) { __builtin_memcpy(p, &x, sizeof x); }
  DSAKIT_INLINE static F load_float(const float* p) { return F(load(p)); }
  DSAKIT_INLINE static void store_float(float* p, F x) { store(p, I(x)); }
  /// The lower half of each word, and the upper one, of pairs of bf16, as fp32.
  DSAKIT_INLINE static I low_bf16(I pairs) { return pairs << 16; }
  DSAKIT_INLINE static I high_bf16(I pairs) { return pairs & int(0xffff0000); }
  /// 32-bit numbers in halves, `upper` and `lower`, as bf16: to nearest, ties to even; of a NaN the upper half.
  DSAKIT_INLINE static I rounded_halves(I upper, I lower) {
    const H high = H(upper), low = H(lower) ^ H(I{} + int(0x80008000));  // in the order of signed numbers
    const H up = low > -(high & 1), nan = (high & 0x7fff) > 0x7f80;
    return I(high - (up & ~nan));
  }
  /// Codes biased by +128, or back.
  DSAKIT_INLINE static I biased(I codes) { return codes ^ int(0x80808080); }
  /// The 128-bit block b.
  DSAKIT_INLINE static Block block(I x, int b) {
    Block y;
    __builtin_memcpy(&y, reinterpret_cast<const char*>(&x) + 16 * b, 16);
    return y;
  }
  DSAKIT_INLINE static void store_block(void* p, I x, int b) {
    const Block y = block(x, b);
    __builtin_memcpy(p, &y, 16);
  }
};

constexpr float kEighthsMagic = 1572864.0f;  // 1.5 * 2^20: what is added to it is rounded to eighths

/// The bits of 2^(b / 8), less b << 20: so the bits of 2^(n / 8) are those of b = n mod 8, plus n << 20. Twice, for
/// registers of sixteen lanes.
struct Eighths {
  std::int32_t bits[16];
};
constexpr Eighths kEighths = [] {
  constexpr float kPower[8] = {1.0f,       1.0905077f, 1.1892071f, 1.2968396f,
                               1.4142135f, 1.5422108f, 1.6817929f, 1.8340081f};
  Eighths eighths{};
  for (int i = 0; i < 16; ++i) eighths.bits[i] = __builtin_bit_cast(std::int32_t, kPower[i % 8]) - (i % 8 << 20);
  return eighths;
}();

/// Keeps x in its register here: the compiler must not load, split or reorder what makes it.
template <class X>
DSAKIT_INLINE void pin(X& x) {
#if defined(__x86_64__)
  asm("" : "+v"(x));
#else
  asm("" : "+w"(x));
#endif
}
/// What has been loaded, unless it is in use: gcc 12 loads it once for all that follows, or too early, and spills.
DSAKIT_INLINE void forget() { asm("" ::: "memory"); }

/// x is wanted: what makes it is not left out.
template <class X>
DSAKIT_INLINE void use(const X& x) {
#if defined(__x86_64__)
  asm volatile("" ::"v"(x));
#else
  asm volatile("" ::"w"(x));
#endif
}

DSAKIT_INLINE std::int32_t load32(const void* p) {
  std::int32_t x;
  __builtin_memcpy(&x, p, 4);
  return x;
}

/// Codes of a register of numbers in the low bytes: nearest, ties to even, saturated; NaN is 0. Clamped before it is
/// rounded: the bounds are integers, so the code is the same. Adding 1.5 * 2^23 rounds to the nearest integer.
template <class V>
DSAKIT_INLINE typename V::I low_byte_codes(typename V::F x) {
  const typename V::F clamped = V::min(V::max(x, V::set_float(-128)), V::set_float(127));
  return V::where_number(x, typename V::I(clamped + 12582912.0f));
}

/// The first n (1 to 3) bytes of four, the rest 0.
DSAKIT_INLINE std::int32_t load_some(const void* p, int n) {
  const auto* x = static_cast<const std::uint8_t*>(p);
  const unsigned second = n > 1 ? x[1] : 0, third = n > 2 ? x[2] : 0;
  return std::int32_t(x[0] | second << 8 | third << 16);
}

DSAKIT_INLINE constexpr int least(int a, int b) { return a < b ? a : b; }

/// The sums of n times sixteen lanes.
template <class V>
DSAKIT_INLINE void store_folded(const typename V::F* lane, int n, float* sums) {
  for (; n >= 4; n -= 4, sums += 4, lane += 4 * V::kParts) V::store_block(sums, typename V::I(V::folded(lane)), 0);
  const typename V::F rest = n > 0 ? V::folded(lane) : typename V::F{};
  for (int i = 0; i < n; ++i) sums[i] = rest[i];
}

/// f.operator()<0>() ... f.operator()<N - 1>()
template <int N, class F>
DSAKIT_INLINE void unrolled(F f) {
  [&]<int... I>(std::integer_sequence<int, I...>) __attribute__((always_inline)) {
    (f.template operator()<I>(), ...);
  }
  (std::make_integer_sequence<int, N>{});
}

/// f.operator()<n>() for n of Least..Most.
template <int Most, int Least = 1, class F>
DSAKIT_INLINE void with_constant(int n, F f) {
  if constexpr (Most >= Least) {
    if (n == Most) return f.template operator()<Most>();
    with_constant<Most - 1, Least>(n, f);
  }
}

/// Asks for a line of memory to come to L1, or to L2 and no nearer.
DSAKIT_INLINE void prefetch_l1(const void* p) { __builtin_prefetch(p, 0, 3); }
DSAKIT_INLINE void prefetch_l2(const void* p) { __builtin_prefetch(p, 0, 2); }
/// To L1, as this core's own: what is written is read first.
DSAKIT_INLINE void prefetch_to_write(const void* p) { __builtin_prefetch(p, 1, 3); }

/// The sums of the lanes of four registers, of each block of four lanes: (0 + 2) + (1 + 3).
template <class V, class X>
DSAKIT_INLINE X fold_fours(const X* x) {
  using I = typename V::I;
  const auto pair = [](X a, X b) __attribute__((always_inline)) {
    return X(V::unpack_low32(I(a), I(b))) + X(V::unpack_high32(I(a), I(b)));
  };
  const I a = I(pair(x[0], x[1])), b = I(pair(x[2], x[3]));
  return X(V::unpack_low64(a, b)) + X(V::unpack_high64(a, b));
}

/// For what is read next, and how many bytes ahead of a stream: registers of whole lines leave most of it to the hardware,
/// which requests for L1 disturb; smaller ones are slower without those (docs/notes/0024-prefetch.md).
template <class V>
DSAKIT_INLINE void prefetch(const void* p) {
  if constexpr (V::kBytes == 64) prefetch_l2(p);
  else prefetch_l1(p);
}
template <class V>
DSAKIT_INLINE int stream_ahead() {
  return V::kBytes == 64 ? tuning.stream_ahead : 4096;
}

}  // namespace
}  // namespace dsakit
