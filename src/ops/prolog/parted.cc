// SPDX-License-Identifier: Apache-2.0
#include "ops/prolog/parted.hpp"

namespace dsakit::prolog {
namespace {

struct MlaParts {
  HiddenTile hidden;
  MlaProlog prolog;

  MlaParts(const MlaProblem& p, const Call& call, Carver& memory)
      : hidden(p.x, p.hidden, p.numerics.halves_first_sum, call, memory), prolog(p, hidden, call, memory) {}
};

struct IndexerParts {
  HiddenTile hidden;
  IndexerProlog prolog;

  IndexerParts(const IndexerProblem& p, const Call& call, Carver& memory)
      : hidden(p.x, p.hidden, false, call, memory), prolog(p, hidden, nullptr, call, memory) {}
};

template <class Parts, class Problem>
void run_parts(const char* op, const Problem& p, Context& context) {
  Call call(context, op, [&](const Call& c) { return bytes_of<Parts>(p, c); });
  Carver memory(call.memory());
  Parts parts(p, call, memory);
  run_tiles(call, p.tokens, parts.hidden, parts.prolog);
  call.finish();
}

}  // namespace

void run(const char* op, const MlaProblem& p, Context& context) { run_parts<MlaParts>(op, p, context); }
void run(const char* op, const IndexerProblem& p, Context& context) { run_parts<IndexerParts>(op, p, context); }

}  // namespace dsakit::prolog
