// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "dsakit/context.hpp"
#include "layer/cache.hpp"

namespace dsakit {

/// sparse_flash_attention_quant over every visible position of a bf16 cache, without writing the positions down: row i
/// attends to 0..first+i, with the bits that the operator gives for that list.
struct DenseAttention {
  bf16 *query_nope, *query_rope;  // [rows, heads, Hckv], [rows, heads, Dr]
  std::int64_t rows, first, heads;
  double scale;
  bf16* out;  // [rows, heads, Hckv]
};
void dense_attention(const DenseAttention& d, LayerCache::State& cache, Context& context);

}  // namespace dsakit
