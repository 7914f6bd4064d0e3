// SPDX-License-Identifier: Apache-2.0
#include "ops/direct.hpp"
#include "ops/lightning_indexer_prolog_quant/problem.hpp"
#include "ops/prolog/parted.hpp"
#include "ops/prolog/trial.hpp"

namespace dsakit {

static constexpr char kOp[] = "lightning_indexer_prolog_quant";

void direct::lightning_indexer_prolog_quant(const LightningIndexerPrologQuantArgs& a,
                                            const LightningIndexerPrologQuantOuts& o, Context& context) {
  using namespace lightning_indexer_prolog_quant_op;
  const Problem p = check(a, o);
  if (context.check_values()) {
    check_values(a, p);
    const prolog::Trial trial(p);
    prolog::run(kOp, trial.problem(), context);
    trial.check_scales(Check(kOp, a.level), "q_scale", "k_scale_cache");
  }
  prolog::run(kOp, p, context);
}

}  // namespace dsakit
