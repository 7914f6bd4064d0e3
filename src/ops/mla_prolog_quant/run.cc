// SPDX-License-Identifier: Apache-2.0
#include "ops/mla_prolog_quant/problem.hpp"

#include "ops/direct.hpp"

namespace dsakit {
namespace {

struct Parts {
  prolog::HiddenTile hidden;
  prolog::MlaProlog mla;

  Parts(const prolog::MlaProblem& p, const Call& call, Carver& memory)
      : hidden(p.x, p.hidden, p.numerics.halves_first_sum, call, memory), mla(p, hidden, call, memory) {}
};

}  // namespace

void direct::mla_prolog_quant(const MlaPrologQuantArgs& a, const MlaPrologQuantOuts& o, Context& context) {
  using namespace mla_prolog_quant_op;
  const Problem p = check(a, o);
  if (context.check_values()) check_values(a, p);
  Call call(context, "mla_prolog_quant", [&](const Call& c) { return bytes_of<Parts>(p.mla, c); });
  for (int i = 0; i < p.copy_count; ++i) prolog::copy_rows(call, p.copies[i].from, p.copies[i].to, p.copies[i].width);
  Carver memory(call.memory());
  Parts parts(p.mla, call, memory);
  prolog::run_tiles(call, p.mla.tokens, parts.hidden, parts.mla);
  call.finish();
}

}  // namespace dsakit
