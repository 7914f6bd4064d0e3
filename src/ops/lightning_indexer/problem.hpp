// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "dsakit/lightning_indexer.hpp"
#include "ops/indexer/problem.hpp"

namespace dsakit::lightning_indexer_op {

using indexer::Problem;

/// Absent outputs: an error, or (infer) given dtype and shape. `shard`: of keys, where several ranks have some.
Problem check(const LightningIndexerArgs&, LightningIndexerOuts&, bool infer, bool check_values, const Ownership& shard = {});

/// The operator behind its door.
void run(const Problem&, Context&);
/// The operator; with `candidates` [T, sparse_count] also what the lists were made from, best first.
void run(const LightningIndexerArgs&, const LightningIndexerOuts&, std::uint64_t* candidates, Context&);

}  // namespace dsakit::lightning_indexer_op
