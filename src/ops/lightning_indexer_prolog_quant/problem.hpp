// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "core/check.hpp"
#include "dsakit/lightning_indexer_prolog_quant.hpp"
#include "ops/prolog/door.hpp"
#include "ops/prolog/indexer.hpp"
#include "run/call.hpp"

namespace dsakit::lightning_indexer_prolog_quant_op {

using Problem = prolog::IndexerProblem;

Problem check(const LightningIndexerPrologQuantArgs&, const LightningIndexerPrologQuantOuts&);
void check_values(const LightningIndexerPrologQuantArgs&, const Problem&);

// ---- the parts of check(), for the operator that contains this one -------------------------------------------------

void check_weight_values(const Check&, const Problem&);

/// How the called operator spells what the two spell differently.
struct Names {
  const char *x = "x", *k_cache = "k_cache", *k_scale_cache = "k_scale_cache", *k_cache_index = "k_cache_index",
             *rope_layout = "rope_layout";
};
struct Sizes {
  std::int64_t tokens, hidden, rank, heads, dim, rope;
  prolog::CacheShape cache;
};
void check_hadamard_presence(const Check&, const LightningIndexerPrologQuantArgs&);
/// `rank`: Hcq where there is no q_norm, else 0.
Sizes check_shapes(const Check&, const LightningIndexerPrologQuantArgs&, const LightningIndexerPrologQuantOuts&,
                   const Names&, std::int64_t rank);
void check_dtypes(const Check&, const LightningIndexerPrologQuantArgs&, const LightningIndexerPrologQuantOuts&,
                  const Names&);
void check_outs(const Check&, const LightningIndexerPrologQuantOuts&, const Sizes&, const Names&);
/// Limits of the chip, epsilon, RoPE layout, slots.
void check_attributes(const Check&, const LightningIndexerPrologQuantArgs&, const Sizes&, const Names&);
Problem resolve(const Check&, const LightningIndexerPrologQuantArgs&, const LightningIndexerPrologQuantOuts&,
                const Sizes&);

}  // namespace dsakit::lightning_indexer_prolog_quant_op
