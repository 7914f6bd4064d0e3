// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "dsakit/context.hpp"
#include "ops/prolog/indexer.hpp"
#include "ops/prolog/mla.hpp"

// The prologs in two halves, for those who share the products of the hidden states with other processes: the problem's
// HiddenSums say which half. Together they have the bits of the whole.
namespace dsakit::prolog {

void run(const char* op, const MlaProblem&, Context&);
void run(const char* op, const IndexerProblem&, Context&);

}  // namespace dsakit::prolog
