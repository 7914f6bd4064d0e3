// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <utility>

#include "kernels/kernels.hpp"
#include "kernels/kept.hpp"

// Sylvester's Hadamard matrix, whose element i, j is -1 to the number of bits that i and j share: a product with it is sums
// and differences of elements 1, 2, 4 .. apart (the fast Walsh-Hadamard transform), log2 n for each element instead of n.
namespace dsakit {
namespace {

/// Of elements Far lanes apart the first becomes their sum and the second their difference.
template <class V, int Far>
DSAKIT_INLINE typename V::F butterfly_of_lanes(typename V::F x) {
  return [&]<int... L>(std::integer_sequence<int, L...>) __attribute__((always_inline)) {
    const typename V::F other = __builtin_shufflevector(x, x, (L ^ Far)...);
    if constexpr (V::kFma) return V::fma(x, typename V::F{(L & Far ? -1.0f : 1.0f)...}, other);
    const typename V::I sign = {(L & Far ? INT32_MIN : 0)...};
    return other + typename V::F(typename V::I(x) ^ sign);
  }
  (std::make_integer_sequence<int, V::kLanes>{});
}

template <class F>
DSAKIT_INLINE void butterfly(F& a, F& b) {
  const F sum = a + b;
  b = a - b, a = sum;
}

template <class V>
void hadamard(const bf16* x, int rows, int n, float scale, bf16* y) noexcept {
  using F = typename V::F;
  constexpr int kLanes = V::kLanes, kSome = 8, kRun = kSome * kLanes;  // registers that stay registers
  static_assert(kHadamardLeast % kRun == 0);
  const F unit = V::set_float(scale);
  float row[kHadamardMost];
  for (; rows > 0; --rows, x += n, y += n) {
    for (int i = 0; i < n; i += kRun) {
      F part[kSome];
      unrolled<kSome>([&]<int R>() __attribute__((always_inline)) {
        part[R] = load_row<V>(x + i + R * kLanes, kLanes) * unit;
        unrolled<__builtin_ctz(kLanes)>(
            [&]<int Stage>() __attribute__((always_inline)) { part[R] = butterfly_of_lanes<V, 1 << Stage>(part[R]); });
      });
      unrolled<__builtin_ctz(kSome)>([&]<int Stage>() __attribute__((always_inline)) {
        unrolled<kSome>([&]<int R>() __attribute__((always_inline)) {
          if constexpr (!(R >> Stage & 1)) butterfly(part[R], part[R + (1 << Stage)]);
        });
      });
      unrolled<kSome>([&]<int R>() __attribute__((always_inline)) { V::store_float(row + i + R * kLanes, part[R]); });
    }
    for (int far = kRun; far < n; far *= 2)
      for (int i = 0; i < n; i += kLanes) {
        if (i & far) continue;
        F a = V::load_float(row + i), b = V::load_float(row + i + far);
        butterfly(a, b);
        V::store_float(row + i, a), V::store_float(row + i + far, b);
      }
    store_row<V>(y, n, [&](std::int64_t i, int) __attribute__((always_inline)) { return V::load_float(row + i); });
  }
}

}  // namespace
}  // namespace dsakit
