// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "core/check.hpp"
#include "dsakit/mla_prolog_quant.hpp"
#include "ops/prolog/door.hpp"
#include "ops/prolog/mla.hpp"
#include "run/call.hpp"

namespace dsakit::mla_prolog_quant_op {

struct Problem {
  prolog::MlaProblem mla;
  struct Copy {  // an out cache of its own: receives the input's rows first
    Tensor from, to;
    std::int64_t width;
  };
  Copy copies[3]{};
  int copy_count = 0;
};

Problem check(const MlaPrologQuantArgs&, const MlaPrologQuantOuts&);
/// Value checking, where a context asks for it.
void check_values(const MlaPrologQuantArgs&, const Problem&);

// ---- the parts of check(), for the operator that contains this one -------------------------------------------------

struct Sizes {
  bool quantised;
  std::int64_t tokens, hidden, rank, heads, nope, rope, latent, groups;
  prolog::CacheShape cache;
};
void check_cache_mode(const Check&, std::string_view cache_mode);
Sizes check_shapes(const Check&, const MlaPrologQuantArgs&);
void check_dtypes(const Check&, const MlaPrologQuantArgs&, const Sizes&);
void check_weight_values(const Check&, const prolog::MlaProblem&);
/// Everything but what the outputs decide.
prolog::MlaProblem resolve(const Check&, const MlaPrologQuantArgs&, const Sizes&);

}  // namespace dsakit::mla_prolog_quant_op
