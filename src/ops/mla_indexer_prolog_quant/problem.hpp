// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "dsakit/mla_indexer_prolog_quant.hpp"
#include "ops/prolog/indexer.hpp"
#include "ops/prolog/mla.hpp"
#include "run/call.hpp"

namespace dsakit::mla_indexer_prolog_quant_op {

/// Both halves; the codes of the low-rank query go from one to the other tile by tile.
struct Problem {
  prolog::MlaProblem mla;
  prolog::IndexerProblem indexer;
};

Problem check(const MlaIndexerPrologQuantArgs&, const MlaIndexerPrologQuantOuts&);
void check_values(const MlaIndexerPrologQuantArgs&, const Problem&);

}  // namespace dsakit::mla_indexer_prolog_quant_op
