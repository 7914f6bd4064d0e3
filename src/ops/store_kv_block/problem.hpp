// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "core/view.hpp"
#include "dsakit/store_kv_block.hpp"
#include "ops/moves.hpp"

namespace dsakit::store_kv_block_op {

/// Slots and where their runs go.
struct Runs {
  std::int64_t count, block_size;
  const std::int32_t* slots;
  std::int32_t *length, *row, *slot;
};

/// Rows, runs and the cache.
struct Problem {
  Tensor rows;
  Rows cache;  // one row per slot
  std::int64_t count;
  const std::int32_t *length, *row, *slot;
  std::int64_t total = 0;  // rows
};

Runs check(const StoreKvBlockMetadataArgs&, const StoreKvBlockMetadataOuts&);
Problem check(const StoreKvBlockArgs&, const StoreKvBlockOuts&);

}  // namespace dsakit::store_kv_block_op
