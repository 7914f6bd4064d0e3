// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "dsakit/lightning_indexer.hpp"
#include "dsakit/ownership.hpp"
#include "dsakit/quant_lightning_indexer.hpp"
#include "ops/indexer/problem.hpp"

// Lists of an indexer whose keys lie on several ranks.
namespace dsakit::shards {

/// This rank's best candidates [rows, sparse_count] (kernels/order.hpp), best first, then 0: with positions of whole
/// sequences, as the lengths are. The lists of the results are scratch memory.
void find_candidates(const QuantLightningIndexerArgs&, const QuantLightningIndexerOuts&, const Ownership&,
                     std::uint64_t* candidates, Context&);
void find_candidates(const LightningIndexerArgs&, const LightningIndexerOuts&, const Ownership&, std::uint64_t* candidates,
                     Context&);

/// The two steps of it: checked arguments, then the candidates.
indexer::Problem check(const QuantLightningIndexerArgs&, const QuantLightningIndexerOuts&, const Ownership&, const Context&);
indexer::Problem check(const LightningIndexerArgs&, const LightningIndexerOuts&, const Ownership&, const Context&);
void find_candidates(indexer::Problem, bool quantised, std::uint64_t* candidates, Context&);

}  // namespace dsakit::shards
