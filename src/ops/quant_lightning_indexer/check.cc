// SPDX-License-Identifier: Apache-2.0
#include "ops/quant_lightning_indexer/problem.hpp"

namespace dsakit {
namespace quant_lightning_indexer_op {

Problem check(const QuantLightningIndexerArgs& a, QuantLightningIndexerOuts& o, bool infer, bool check_values,
              const Ownership& shard) {
  return indexer::check(Check("quant_lightning_indexer", a.level), Tensors::inputs<QuantLightningIndexerOuts>(a),
                        Tensors(a, o),
                        {.quantised = true,
                         .query = a.query,
                         .key = a.key,
                         .weights = a.weights,
                         .query_scale = a.query_dequant_scale,
                         .key_scale = a.key_dequant_scale,
                         .query_quant_mode = a.query_quant_mode,
                         .key_quant_mode = a.key_quant_mode,
                         .lengths_query = a.actual_seq_lengths_query,
                         .lengths_key = a.actual_seq_lengths_key,
                         .block_table = a.block_table,
                         .layout_query = a.layout_query,
                         .layout_key = a.layout_key,
                         .sparse_count = a.sparse_count,
                         .sparse_mode = a.sparse_mode,
                         .pre_tokens = a.pre_tokens,
                         .next_tokens = a.next_tokens,
                         .return_value = false,
                         .numerics = a.numerics,
                         .indices = o.sparse_indices,
                         .values = nullptr,
                         .infer = infer,
                         .check_values = check_values,
                         .shard = shard});
}

}  // namespace quant_lightning_indexer_op

void infer(const QuantLightningIndexerArgs& args, QuantLightningIndexerOuts& outs) {
  quant_lightning_indexer_op::check(args, outs, true, false);
}

}  // namespace dsakit
