// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include "ops/mla_prolog_v3/door.hpp"
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

  Parts(const Problem& p, const Call& call, Carver& memory)
      : slots(memory.take<std::int64_t>(p.mla.tokens)),
        problem(p.mla),
        hidden(problem.x, problem.hidden, problem.numerics.halves_first_sum, call, memory),
        mla(problem, hidden, call, memory) {
    problem.cache_index = Rows(tensor(slots, {problem.tokens}), 0);
  }
};

}  // namespace

void run_call(const Check& check, const Tensors& inputs, const Problem& problem, Context& context) {
  if (context.check_values()) {
    const prolog::MlaProblem& p = problem.mla;
    check_finite(check, inputs);
    prolog::check_finite(check, {{p.w_dq, "weight_dq"},
                                 {p.w_uq_qr, "weight_uq_qr"},
                                 {p.w_uk, "weight_uk", true},
                                 {p.w_dkv_kr, "weight_dkv_kr"}});
  }
  if (problem.warns_ckv_scale) {
    char sentence[160];  // a warm call allocates nothing
    std::snprintf(sentence, sizeof sentence,
                  "%s: quant_scale_ckv is not used: with kv_cache_quant_mode 3 every tile makes its own scale",
                  check.op());
    context.warn(sentence);
  }
  Call call(context, check.op(), [&](const Call& c) { return bytes_of<Parts>(problem, c); });
  for (int i = 0; i < problem.copy_count; ++i)
    prolog::copy_rows(call, problem.copies[i].from, problem.copies[i].to, problem.copies[i].width);
  if (problem.zero) *static_cast<float*>(problem.zero.data) = 0;
  Carver memory(call.memory());
  Parts parts(problem, call, memory);
  if (problem.mla.kv_cache.count() > 0) problem.slots.fill(problem.mla.tokens, parts.slots);
  prolog::run_tiles(call, problem.mla.tokens, parts.hidden, parts.mla);
  call.finish();
}

}  // namespace dsakit::mla_prolog_v3_op
