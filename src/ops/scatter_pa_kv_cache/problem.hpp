// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <cstdint>

#include "core/view.hpp"
#include "dsakit/scatter_pa_kv_cache.hpp"
#include "ops/moves.hpp"

namespace dsakit::scatter_pa_kv_cache_op {

/// Keys, or values: rows [T, h, d] and the pages they go to.
struct Part {
  Tensor rows, cache, copied{};  // copied: what cache is a copy of
};

struct Problem {
  bool nz;
  std::int64_t block_size;
  Tensor slots;
  std::array<Part, 2> parts;

  std::int64_t tokens() const { return slots.shape[0]; }
  /// Negative: the token is not stored.
  std::int64_t slot(std::int64_t token) const { return integer_at(slots, token * slots.stride[0]); }
  /// Of a slot in a cache, in elements: its first column.
  std::int64_t place(const Tensor& cache, std::int64_t slot) const {
    return slot / block_size * cache.stride[0] + slot % block_size * cache.stride[nz ? 2 : 1];
  }
};

Problem check(const ScatterPaKvCacheArgs&, const ScatterPaKvCacheOuts&);
Problem check(const ScatterPaKvCacheFunctionalArgs&, const ScatterPaKvCacheFunctionalOuts&);

}  // namespace dsakit::scatter_pa_kv_cache_op
