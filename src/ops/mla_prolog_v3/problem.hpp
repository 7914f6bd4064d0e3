// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "core/check.hpp"
#include "dsakit/mla_prolog_v2.hpp"
#include "dsakit/mla_prolog_v3.hpp"
#include "ops/mla_prolog_v3/modes.hpp"
#include "ops/prolog/mla_problem.hpp"
#include "run/call.hpp"

// mla_prolog_v3, and its two other forms: mla_prolog_v3_functional and mla_prolog_v2.
namespace dsakit::mla_prolog_v3_op {

/// Which slot a token's rows go to.
struct Slots {
  enum class Kind { listed, pages, own } kind;
  Rows index;                   // i64. listed: a slot per token; pages: page ids
  std::int64_t block_size = 0;  // pages: every sequence starts on a page of its own
  Tensor ends{};                // pages: i32 running totals of the sequences' tokens; or, not given:
  std::int64_t sequence = 0;    // tokens of each sequence

  /// slot[t] for every token, negative if it is not stored.
  void fill(std::int64_t tokens, std::int64_t* slot) const;
};

struct Problem {
  prolog::MlaProblem mla;  // but cache_index, which is slots
  Slots slots;
  const Mode* mode;
  bool warns_ckv_scale = false;  // quant_scale_ckv is given to a mode that makes its own scales
  Tensor zero{};                 // f32 [1]: the v2 form's dequant_scale_q_nope without an int8 query
  struct Copy {                  // the functional form: receives the input's rows first
    Tensor from, to;
    std::int64_t width;
  };
  Copy copies[2]{};
  int copy_count = 0;
};

Problem check(const MlaPrologV3Args&, const MlaPrologV3Outs&);
Problem check(const MlaPrologV3FunctionalArgs&, const MlaPrologV3FunctionalOuts&);
Problem check(const MlaPrologV2Args&, const MlaPrologV2Outs&);

}  // namespace dsakit::mla_prolog_v3_op
