// SPDX-License-Identifier: Apache-2.0
#include "ops/lightning_indexer/problem.hpp"

namespace dsakit {
namespace lightning_indexer_op {

Problem check(const LightningIndexerArgs& a, LightningIndexerOuts& o, bool infer, bool check_values,
              const Ownership& shard) {
  const Tensor none;
  return indexer::check(Check("lightning_indexer", a.level), Tensors::inputs<LightningIndexerOuts>(a), Tensors(a, o),
                        {.quantised = false,
                         .query = a.query,
                         .key = a.key,
                         .weights = a.weights,
                         .query_scale = none,
                         .key_scale = none,
                         .query_quant_mode = 0,
                         .key_quant_mode = 0,
                         .lengths_query = a.actual_seq_lengths_query,
                         .lengths_key = a.actual_seq_lengths_key,
                         .block_table = a.block_table,
                         .layout_query = a.layout_query,
                         .layout_key = a.layout_key,
                         .sparse_count = a.sparse_count,
                         .sparse_mode = a.sparse_mode,
                         .pre_tokens = a.pre_tokens,
                         .next_tokens = a.next_tokens,
                         .return_value = a.return_value,
                         .numerics = a.numerics,
                         .indices = o.sparse_indices,
                         .values = &o.sparse_values,
                         .infer = infer,
                         .check_values = check_values,
                         .shard = shard});
}

}  // namespace lightning_indexer_op

void infer(const LightningIndexerArgs& args, LightningIndexerOuts& outs) {
  lightning_indexer_op::check(args, outs, true, false);
}

}  // namespace dsakit
