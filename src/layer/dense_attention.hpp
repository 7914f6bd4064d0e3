// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "dsakit/context.hpp"
#include "layer/cache.hpp"

namespace dsakit {

/// Attention to every visible position of a bf16 cache: row i attends to 0..first+i, as accurately as
/// sparse_flash_attention_quant does for that list. A row's bits do not depend on the rows beside it.
struct DenseAttention {
  bf16 *query_nope, *query_rope;  // [rows, heads, Hckv], [rows, heads, Dr]
  std::int64_t rows, first, heads;
  double scale;
  bf16* out;  // [rows, heads, Hckv]
};
void dense_attention(const DenseAttention& d, LayerCache::State& cache, Context& context);

}  // namespace dsakit
