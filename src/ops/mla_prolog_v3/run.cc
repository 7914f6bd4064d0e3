// SPDX-License-Identifier: Apache-2.0
#include "ops/mla_prolog_v3/problem.hpp"
#include "ops/prolog/mla.hpp"

namespace dsakit::mla_prolog_v3_op {

void Slots::fill(std::int64_t tokens, std::int64_t* slot) const {
  if (kind != Kind::pages) {
    for (std::int64_t t = 0; t < tokens; ++t) slot[t] = kind == Kind::own ? t : *index.row<const std::int64_t>(t);
    return;
  }
  const Rows totals(ends ? ends : Tensor{.rank = 0}, 0);
  std::int64_t page = 0, begin = 0;
  for (std::int64_t b = 0; begin < tokens; ++b) {
    const std::int64_t end = ends ? *totals.row<const std::int32_t>(b) : begin + sequence;
    for (std::int64_t t = begin; t < end; ++t) {
      const std::int64_t p = t - begin, id = *index.row<const std::int64_t>(page + p / block_size);
      slot[t] = id < 0 ? -1 : id * block_size + p % block_size;
    }
    page += (end - begin + block_size - 1) / block_size;
    begin = end;
  }
}

namespace {

struct Parts {
  std::int64_t* slots;
  prolog::MlaProblem problem;
  prolog::HiddenTile hidden;
  prolog::MlaProlog mla;

  Parts(const Problem& p, const Kernels& kernels, bool same_products, int threads, Carver& memory)
      : slots(memory.take<std::int64_t>(p.mla.tokens)),
        problem(p.mla),
        hidden(problem.x, problem.hidden, problem.numerics.halves_first_sum, same_products, memory),
        mla(problem, kernels, hidden, same_products, threads, memory) {
    problem.cache_index = Rows(tensor(slots, {problem.tokens}), 0);
  }
};

}  // namespace

std::size_t workspace(const Problem& p, const Kernels& kernels, bool same_products, int threads) {
  Carver measure;
  Parts(p, kernels, same_products, threads, measure);
  return measure.bytes();
}

void run(const Problem& p, Call& call) {
  for (int i = 0; i < p.copy_count; ++i) prolog::copy_rows(call, p.copies[i].from, p.copies[i].to, p.copies[i].width);
  if (p.zero) *static_cast<float*>(p.zero.data) = 0;
  Carver memory(call.memory());
  Parts parts(p, call.kernels(), call.same_products(), call.threads(), memory);
  if (p.mla.kv_cache.count() > 0) p.slots.fill(p.mla.tokens, parts.slots);
  prolog::run_tiles(call, p.mla.tokens, parts.hidden, parts.mla);
}

}  // namespace dsakit::mla_prolog_v3_op
