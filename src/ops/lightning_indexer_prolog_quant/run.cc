// SPDX-License-Identifier: Apache-2.0
#include "ops/lightning_indexer_prolog_quant/problem.hpp"
#include "ops/prolog/trial.hpp"

namespace dsakit {
namespace {

struct Parts {
  prolog::HiddenTile hidden;
  prolog::IndexerProlog indexer;

  Parts(const prolog::IndexerProblem& p, const Call& call, Carver& memory)
      : hidden(p.x, p.hidden, false, call, memory), indexer(p, hidden, nullptr, call, memory) {}
};

void run(const prolog::IndexerProblem& p, Context& context) {
  Call call(context, "lightning_indexer_prolog_quant", [&](const Call& c) { return bytes_of<Parts>(p, c); });
  Carver memory(call.memory());
  Parts parts(p, call, memory);
  prolog::run_tiles(call, p.tokens, parts.hidden, parts.indexer);
  call.finish();
}

}  // namespace

void lightning_indexer_prolog_quant(const LightningIndexerPrologQuantArgs& a, const LightningIndexerPrologQuantOuts& o,
                                    Context& context) {
  using namespace lightning_indexer_prolog_quant_op;
  const Problem p = check(a, o);
  if (context.check_values()) {
    check_values(a, p);
    const prolog::Trial trial(p);
    run(trial.problem(), context);
    trial.check_scales(Check("lightning_indexer_prolog_quant", a.level), "q_scale", "k_scale_cache");
  }
  run(p, context);
}

}  // namespace dsakit
