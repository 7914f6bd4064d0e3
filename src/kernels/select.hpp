// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "kernels/rows.hpp"

// Which scores are candidates (order.hpp), in one pass that stores nothing where none is.
namespace dsakit {
namespace {

/// order_key of a register of scores: adding +0 makes -0 +0; NaN is 0.
template <class V>
DSAKIT_INLINE typename V::I order_keys(typename V::F score) {
  const auto u = typename V::I(score + typename V::F{});
  return V::where_number(score, u ^ (u >> 31 | int(0x80000000)));
}

template <class V>
int append_candidates(const float* scores, int count, std::uint32_t first, std::uint32_t floor,
                      std::uint64_t* out) noexcept {
  using I = typename V::I;
  const I least = V::set(int(floor));
  std::int32_t numbers[V::kLanes];
  for (int l = 0; l < V::kLanes; ++l) numbers[l] = l;
  const I iota = V::load(numbers);
  std::uint64_t* const begin = out;
  for (int i = 0; i < count; i += V::kLanes) {
    const I key = order_keys<V>(V::load_floats(scores + i, count - i));
    const unsigned pass = V::at_least(key, least, count - i);
    if (pass == 0) [[likely]]
      continue;
    out += V::append(key, ~(V::set(int(first + unsigned(i))) + iota), pass, out);
  }
  return int(out - begin);
}

/// Floats of 0 and more are in the order of their bits.
template <class V>
int deciding(const float* x, int n, float sum, int many, int* at) noexcept {
  using F = typename V::F;
  const auto least = V::set(__builtin_bit_cast(int, sum / float(many)));
  F squares[V::kParts] = {};
  std::uint64_t pass[4];
  const auto each_of_64 = [&](int first, auto some) __attribute__((always_inline)) {
    std::uint64_t bits = 0;
#pragma GCC unroll 16
    for (int j = 0; j < 64; j += V::kLanes)
      if (const int count = some(j); count > 0) {
        const F v = V::load_floats(x + first + j, count);
        squares[j / V::kLanes % V::kParts] += v * v;
        bits |= std::uint64_t(V::at_least(typename V::I(v), least, count)) << j;
      }
    pass[first / 64] = bits;
  };
  int i = 0;
  for (; i + 64 <= n; i += 64) each_of_64(i, [](int) __attribute__((always_inline)) { return V::kLanes; });
  if (i < n) each_of_64(i, [=](int j) __attribute__((always_inline)) { return n - i - j; });
  if (folded<V>(squares) * float(many) <= sum * sum) return 0;
  int* const begin = at;
  for (int first = 0; first < n; first += 64)
    for (std::uint64_t bits = pass[first / 64]; bits != 0; bits &= bits - 1) *at++ = first + __builtin_ctzll(bits);
  return int(at - begin);
}

}  // namespace
}  // namespace dsakit
