// SPDX-License-Identifier: Apache-2.0
#include "ops/lightning_indexer_prolog_quant/problem.hpp"

namespace dsakit::lightning_indexer_prolog_quant_op {
namespace {

struct Parts {
  prolog::HiddenTile hidden;
  prolog::IndexerProlog indexer;

  Parts(const Problem& p, const Kernels& kernels, bool same_products, int threads, Carver& memory)
      : hidden(p.x, p.hidden, false, same_products, memory),
        indexer(p, kernels, hidden, nullptr, same_products, threads, memory) {}
};

}  // namespace

std::size_t workspace(const Problem& p, const Kernels& kernels, bool same_products, int threads) {
  Carver measure;
  Parts(p, kernels, same_products, threads, measure);
  return measure.bytes();
}

void run(const Problem& p, Call& call) {
  Carver memory(call.memory());
  Parts parts(p, call.kernels(), call.same_products(), call.threads(), memory);
  prolog::run_tiles(call, p.tokens, parts.hidden, parts.indexer);
}

}  // namespace dsakit::lightning_indexer_prolog_quant_op
