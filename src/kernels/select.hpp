// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "kernels/vec/base.hpp"

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

}  // namespace
}  // namespace dsakit
