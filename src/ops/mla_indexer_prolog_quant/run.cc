// SPDX-License-Identifier: Apache-2.0
#include "ops/mla_indexer_prolog_quant/problem.hpp"

namespace dsakit::mla_indexer_prolog_quant_op {
namespace {

struct Parts {
  prolog::HiddenTile hidden;
  prolog::MlaProlog mla;
  prolog::IndexerProlog indexer;

  Parts(const Problem& p, const Kernels& kernels, bool same_products, int threads, Carver& memory)
      : hidden(p.mla.x, p.mla.hidden, p.mla.numerics.halves_first_sum, same_products, memory),
        mla(p.mla, kernels, hidden, same_products, threads, memory),
        indexer(p.indexer, kernels, hidden, &mla, same_products, threads, memory) {}
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
  prolog::run_tiles(call, p.mla.tokens, parts.hidden, parts.mla, parts.indexer);
}

}  // namespace dsakit::mla_indexer_prolog_quant_op
