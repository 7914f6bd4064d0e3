// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "dsakit/tensor.hpp"
#include "kernels/vec/base.hpp"

// Rows of bf16, f16 or fp32, register by register: fp32 where they are computed with, and one rounding, to nearest with
// ties to even, back to what they are kept in.
namespace dsakit {
namespace {

/// f(i, some) for every register of n elements: i is its first, and `some` of its lanes are elements.
template <class V, class F>
DSAKIT_INLINE void each_register(std::int64_t n, F f) {
  std::int64_t i = 0;
  for (; i + V::kLanes <= n; i += V::kLanes) f(i, V::kLanes);
  if (i < n) f(i, int(n - i));
}

template <class V>
DSAKIT_INLINE typename V::F load_row(const bf16* x, int some) { return typename V::F(V::load_words(x, some) << 16); }
template <class V>
DSAKIT_INLINE typename V::F load_row(const f16* x, int some) { return V::load_f16(x, some); }
template <class V>
DSAKIT_INLINE typename V::F load_row(const float* x, int some) { return V::load_floats(x, some); }

/// The bits to store, in the lower halves of words. NaN stays NaN.
template <class V>
DSAKIT_INLINE typename V::I bits_of_bf16(typename V::F x) {
  using I = typename V::I;
  using U = typename V::U;
  const U u = U(x);
  return x == x ? I((u + 0x7fff + (u >> 16 & 1)) >> 16) : I(u >> 16 | 0x40);
}

/// Below 2^-14 the result is a multiple of 2^-24, the last place of floats beside 0.5.
template <class V>
DSAKIT_INLINE typename V::I bits_of_f16(typename V::F x) {
  using F = typename V::F;
  using I = typename V::I;
  using U = typename V::U;
  const U u = U(x), m = u & 0x7fffffff;
  const I magnitude = I(m);
  I bits = I((m - 0x38000000 + 0xfff + (m >> 13 & 1)) >> 13);
  bits = magnitude < 0x38800000 ? I(F(m) + 0.5f) - 0x3f000000 : bits;
  bits = magnitude >= 0x477ff000 ? V::set(0x7c00) : bits;  // 65520 and above
  bits = magnitude > 0x7f800000 ? V::set(0x7e00) : bits;
  return bits | I(u >> 16 & 0x8000);
}

/// A register as T keeps it: rounded, and ready to be stored or to be computed with again.
template <class V, class T>
DSAKIT_INLINE auto keep(typename V::F x) {
  if constexpr (__is_same(T, bf16)) return bits_of_bf16<V>(x);
  else if constexpr (__is_same(T, f16)) return bits_of_f16<V>(x);
  else return x;
}
template <class V, class T, class Bits>
DSAKIT_INLINE typename V::F unkept(Bits x) {
  if constexpr (__is_same(T, bf16)) return typename V::F(x << 16);
  else if constexpr (__is_same(T, f16)) return V::low_f16(x);
  else return x;
}
template <class V, class T, class Bits>
DSAKIT_INLINE void store_kept(T* y, Bits x, int some) {
  if constexpr (__is_same(T, float)) V::store_floats(y, x, some);
  else V::store_words(y, x, some);
}

/// Two registers of numbers that were computed: a NaN among those is quiet, and what the upper half has of it stays.
template <class V, class T>
DSAKIT_INLINE void store_two(T* y, typename V::F a, typename V::F b) {
  using I = typename V::I;
  if constexpr (__is_same(T, bf16)) {
    const I halves = V::rounded_halves(V::upper_halves(I(a), I(b)), V::lower_halves(I(a), I(b)));
    V::store(y, V::halves_in_order(halves));
  } else {
    store_kept<V>(y, keep<V, T>(a), V::kLanes), store_kept<V>(y + V::kLanes, keep<V, T>(b), V::kLanes);
  }
}

/// y = value(i, some), a register of n numbers that are computed from the i-th on.
template <class V, class T, class Value>
DSAKIT_INLINE void store_row(T* y, std::int64_t n, Value value) {
  std::int64_t i = 0;
  for (; i + 2 * V::kLanes <= n; i += 2 * V::kLanes) {
    const typename V::F a = value(i, V::kLanes), b = value(i + V::kLanes, V::kLanes);
    store_two<V>(y + i, a, b);
  }
  each_register<V>(n - i, [=](std::int64_t rest, int some) __attribute__((always_inline)) {
    store_kept<V>(y + i + rest, keep<V, T>(value(i + rest, some)), some);
  });
}

template <class V, class T>
void widen(const T* x, std::int64_t n, float* y) noexcept {
  each_register<V>(n, [=](std::int64_t i, int some) __attribute__((always_inline)) {
    V::store_floats(y + i, load_row<V>(x + i, some), some);
  });
}

template <class V, class T>
void round(const float* x, std::int64_t n, T* y) noexcept {
  each_register<V>(n, [=](std::int64_t i, int some) __attribute__((always_inline)) {
    store_kept<V>(y + i, keep<V, T>(V::load_floats(x + i, some)), some);
  });
}

}  // namespace
}  // namespace dsakit
