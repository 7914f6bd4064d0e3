// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "ops/direct.hpp"
#include "ops/mla_indexer_prolog_quant/problem.hpp"
#include "ops/prolog/door.hpp"
#include "ops/prolog/trial.hpp"

namespace dsakit {
namespace mla_indexer_prolog_quant_op {
namespace {

struct Parts {
  prolog::HiddenTile hidden;
  prolog::MlaProlog mla;
  prolog::IndexerProlog indexer;

  Parts(const Problem& p, const Call& call, Carver& memory)
      : hidden(p.mla.x, p.mla.hidden, p.mla.numerics.halves_first_sum, call, memory),
        mla(p.mla, hidden, call, memory),
        indexer(p.indexer, hidden, &mla, call, memory) {}
};

void run(const Problem& p, Context& context) {
  Call call(context, "mla_indexer_prolog_quant", [&](const Call& c) { return bytes_of<Parts>(p, c); });
  Carver memory(call.memory());
  Parts parts(p, call, memory);
  prolog::run_tiles(call, p.mla.tokens, parts.hidden, parts.mla, parts.indexer);
  call.finish();
}

/// The query half of a trial is thrown away, and stores nothing.
void check_scales(const MlaIndexerPrologQuantArgs& a, const Problem& problem, Context& context) {
  const prolog::Trial trial(problem.indexer);
  const auto& m = problem.mla;
  std::vector<bf16> nope(std::size_t(m.tokens * m.heads * m.latent)), rope(std::size_t(m.tokens * m.heads * m.rope));
  std::vector<std::int64_t> nowhere(std::size_t(m.tokens), -1);
  Problem p{m, trial.problem()};
  p.mla.query_nope = prolog::flat_rows(tensor(nope.data(), {m.tokens * m.heads, m.latent}), m.latent);
  p.mla.query_rope = prolog::flat_rows(tensor(rope.data(), {m.tokens * m.heads, m.rope}), m.rope);
  p.mla.cache_index = prolog::flat_rows(tensor(nowhere.data(), {m.tokens}), 1);
  run(p, context);
  trial.check_scales(Check("mla_indexer_prolog_quant", a.level), "q_scale", "ip_k_scale_cache");
}

}  // namespace
}  // namespace mla_indexer_prolog_quant_op

void direct::mla_indexer_prolog_quant(const MlaIndexerPrologQuantArgs& a, const MlaIndexerPrologQuantOuts& o,
                                      Context& context) {
  using namespace mla_indexer_prolog_quant_op;
  const Problem p = check(a, o);
  if (context.check_values()) {
    check_values(a, p);
    check_scales(a, p, context);
  }
  run(p, context);
}

}  // namespace dsakit
