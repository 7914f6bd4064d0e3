// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <cstdint>

#include "core/paged.hpp"
#include "dsakit/gather_pa_kv_cache.hpp"
#include "ops/moves.hpp"

namespace dsakit::gather_pa_kv_cache_op {

/// Keys, or values: pages, and the rows [T, h, d] that are written.
struct Part {
  Tensor cache, rows, copied{};  // copied: what rows is a copy of
};

struct Problem {
  Pages pages;
  std::int64_t batch;
  const std::int32_t* lengths;  // of the sequences, or running totals
  bool totals;
  const std::int32_t* offsets;  // null: 0
  std::array<Part, 2> parts;

  std::int64_t length(std::int64_t b) const {
    return std::int64_t(lengths[b]) - (totals && b > 0 ? lengths[b - 1] : 0);
  }
  /// Position in sequence b of its first row.
  std::int64_t offset(std::int64_t b) const { return offsets ? offsets[b] : 0; }
  std::int64_t total() const {
    std::int64_t rows = 0;
    for (std::int64_t b = 0; b < batch; ++b) rows += length(b);
    return rows;
  }
};

Problem check(const GatherPaKvCacheArgs&, const GatherPaKvCacheOuts&);
Problem check(const GatherPaKvCacheFunctionalArgs&, const GatherPaKvCacheFunctionalOuts&);

}  // namespace dsakit::gather_pa_kv_cache_op
