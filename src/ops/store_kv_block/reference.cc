// SPDX-License-Identifier: Apache-2.0
#include "ops/store_kv_block/problem.hpp"

namespace dsakit::reference {

void store_kv_block_metadata(const StoreKvBlockMetadataArgs& a, const StoreKvBlockMetadataOuts& o) {
  const store_kv_block_op::Runs p = store_kv_block_op::check(a, o);
  const auto page = [&](std::int64_t slot) { return p.block_size > 0 ? slot / p.block_size : 0; };
  std::int64_t runs = 0;
  for (std::int64_t first = 0, end; first < p.count; first = end) {
    const std::int64_t slot = p.slots[first];
    end = first + 1;
    if (slot < 0) continue;
    while (end < p.count && p.slots[end] == slot + (end - first) && page(p.slots[end]) == page(slot)) ++end;
    p.length[runs] = std::int32_t(end - first), p.row[runs] = std::int32_t(first), p.slot[runs] = p.slots[first];
    ++runs;
  }
  for (; runs < p.count; ++runs) p.length[runs] = p.row[runs] = p.slot[runs] = 0;
}

void store_kv_block(const StoreKvBlockArgs& a, const StoreKvBlockOuts& o) {
  const store_kv_block_op::Problem p = store_kv_block_op::check(a, o);
  std::int64_t width = 1;
  for (int axis = 1; axis < p.rows.rank; ++axis) width *= p.rows.shape[axis];
  for (std::int64_t g = 0; g < p.count; ++g)
    for (std::int64_t i = 0; i < p.length[g] * width; ++i)
      move_element(p.cache.tensor, offset_of(p.cache.tensor, p.slot[g] * width + i), p.rows,
                   offset_of(p.rows, p.row[g] * width + i));
}

}  // namespace dsakit::reference
