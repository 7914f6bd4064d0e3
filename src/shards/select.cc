// SPDX-License-Identifier: Apache-2.0
#include "shards/select.hpp"

#include "kernels/order.hpp"
#include "ops/lightning_indexer/problem.hpp"
#include "ops/quant_lightning_indexer/problem.hpp"

namespace dsakit::shards {

indexer::Problem check(const QuantLightningIndexerArgs& args, const QuantLightningIndexerOuts& outs,
                       const Ownership& owner, const Context& context) {
  QuantLightningIndexerOuts given = outs;
  return quant_lightning_indexer_op::check(args, given, false, context.check_values(), owner);
}
indexer::Problem check(const LightningIndexerArgs& args, const LightningIndexerOuts& outs, const Ownership& owner,
                       const Context& context) {
  LightningIndexerOuts given = outs;
  return lightning_indexer_op::check(args, given, false, context.check_values(), owner);
}

void find_candidates(indexer::Problem problem, bool quantised, std::uint64_t* candidates, Context& context) {
  const std::int64_t slots = problem.sequences.total_rows * problem.count;
  const Ownership owner = problem.sequences.shard;
  problem.candidates = candidates;
  if (quantised) quant_lightning_indexer_op::run(problem, context);
  else lightning_indexer_op::run(problem, context);
  for (std::uint64_t* c = candidates; c != candidates + slots; ++c)
    if (*c != 0) *c = candidate(key_of(*c), std::uint32_t(owner.global(position_of(*c))));
}

void find_candidates(const QuantLightningIndexerArgs& args, const QuantLightningIndexerOuts& outs, const Ownership& owner,
                     std::uint64_t* candidates, Context& context) {
  find_candidates(check(args, outs, owner, context), true, candidates, context);
}
void find_candidates(const LightningIndexerArgs& args, const LightningIndexerOuts& outs, const Ownership& owner,
                     std::uint64_t* candidates, Context& context) {
  find_candidates(check(args, outs, owner, context), false, candidates, context);
}

}  // namespace dsakit::shards
