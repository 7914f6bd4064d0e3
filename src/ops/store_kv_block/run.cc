// SPDX-License-Identifier: Apache-2.0
#include "ops/store_kv_block/problem.hpp"

#include "ops/direct.hpp"

namespace dsakit {

void direct::store_kv_block_metadata(const StoreKvBlockMetadataArgs& a, const StoreKvBlockMetadataOuts& o,
                                     Context& context) {
  const store_kv_block_op::Runs p = store_kv_block_op::check(a, o);
  Call call(context, "store_kv_block_metadata", std::size_t(0));
  std::int64_t runs = 0;
  for (std::int64_t t = 0; t < p.count; ++t) {
    const std::int32_t slot = p.slots[t];
    if (slot < 0) continue;
    const bool follows = t > 0 && p.slots[t - 1] == slot - 1 && slot > 0;
    if (follows && (p.block_size == 0 || slot % p.block_size != 0)) ++p.length[runs - 1];
    else p.length[runs] = 1, p.row[runs] = std::int32_t(t), p.slot[runs] = slot, ++runs;
  }
  for (std::int32_t* rest : {p.length, p.row, p.slot}) std::fill(rest + runs, rest + p.count, 0);
  call.finish();
}

void direct::store_kv_block(const StoreKvBlockArgs& a, const StoreKvBlockOuts& o, Context& context) {
  const store_kv_block_op::Problem p = store_kv_block_op::check(a, o);
  Call call(context, "store_kv_block", std::size_t(0));
  const BlockCopy copy(p.cache.tensor, p.cache.tensor.rank - p.cache.row_axes, p.rows, 1);
  const auto walk = [&](auto&& write) {
    for (std::int64_t g = 0; g < p.count; ++g)
      for (std::int64_t i = 0; i < p.length[g]; ++i) write(std::int64_t(p.slot[g]) + i, p.row[g] + i);
  };
  scatter(call, p.total, copy.bytes(), walk, [&] {
    return [&p, move = Mover(copy, p.total * copy.bytes())](std::int64_t slot, std::int64_t row) mutable {
      move(bytes_at(p.cache.tensor, p.cache.offset(slot)), bytes_at(p.rows, row * p.rows.stride[0]));
    };
  });
  call.finish();
}

}  // namespace dsakit
