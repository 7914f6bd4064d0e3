// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "kernels/dot.hpp"
#include "kernels/kernels.hpp"

// What a rung's dots can do at most: independent chains in registers.
namespace dsakit {
namespace {

/// Twelve chains, sixteen where there are registers: more than latency times throughput anywhere.
template <class V, class D>
DSAKIT_INLINE double spin(int rounds, typename V::I row, typename V::I column) {
  using Sum = typename D::Sum;
  constexpr int kChains = V::kRegisters == 32 ? 16 : 12;
  Sum sum[kChains];
  pin(row), pin(column);
#pragma GCC unroll 16
  for (int i = 0; i < kChains; ++i) {
    sum[i] = Sum{};
    pin(sum[i]);  // else the compiler makes them one
  }
  for (int r = 0; r < rounds; ++r)
#pragma GCC unroll 16
    for (int i = 0; i < kChains; ++i) {
      if constexpr (Squares<D>) sum[i] = D::square(sum[i], row, column);
      else sum[i] = D::dot(sum[i], row, column);
      pin(sum[i]);
      pin(row);  // a product is made anew for every chain
    }
#pragma GCC unroll 16
  for (int i = 0; i < kChains; ++i) use(sum[i]);
  constexpr int kElements = std::same_as<typename D::Row, std::uint8_t> ? 4 : std::same_as<typename D::Row, bf16> ? 2 : 1;
  return 2.0 * rounds * kChains * V::kLanes * kElements * (Squares<D> ? 2 : 1) / D::kSteps;
}

// Rows and columns of ones.
template <class V, class D>
double peak_of_codes(int rounds) noexcept {
  return spin<V, D>(rounds, V::set(0x01010101), V::set(0x01010101));
}
template <class V, class D>
double peak_of_pairs(int rounds) noexcept {
  return spin<V, D>(rounds, V::set(0x3f803f80), V::set(0x3f803f80));
}
template <class V>
double peak_of_floats(int rounds) noexcept {
  return spin<V, Fma<V>>(rounds, typename V::I(V::set_float(1)), typename V::I(V::set_float(1)));
}

}  // namespace
}  // namespace dsakit
