// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "ops/mla_indexer_prolog_quant/parts.hpp"
#include "ops/mla_indexer_prolog_quant/problem.hpp"

namespace dsakit::reference {

void mla_indexer_prolog_quant(const MlaIndexerPrologQuantArgs& a, const MlaIndexerPrologQuantOuts& o) {
  const auto problem = mla_indexer_prolog_quant_op::check(a, o);
  const std::int64_t tokens = problem.mla.tokens, rank = problem.mla.rank;
  std::vector<std::int8_t> q_norm(std::size_t(tokens * rank));
  std::vector<float> q_norm_scale(static_cast<std::size_t>(tokens));
  const Tensor codes = tensor(q_norm.data(), {tokens, rank}), scale = tensor(q_norm_scale.data(), {tokens, 1});

  MlaPrologQuantArgs mla = mla_indexer_prolog_quant_op::mla_args(a, o);
  mla.level = Level::portable;  // the limits have been checked, under the name of the operator called
  reference::mla_prolog_quant(
      mla,
      {.q_norm_out = codes, .q_norm_scale_out = scale, .query_nope_out = o.query_nope, .query_rope_out = o.query_rope});
  LightningIndexerPrologQuantArgs indexer = mla_indexer_prolog_quant_op::indexer_args(a);
  indexer.q_norm = codes, indexer.q_norm_scale = scale, indexer.level = Level::portable;
  reference::lightning_indexer_prolog_quant(indexer, mla_indexer_prolog_quant_op::indexer_outs(o));
}

}  // namespace dsakit::reference
