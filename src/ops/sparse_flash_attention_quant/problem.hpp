// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cstdint>

#include "dsakit/ownership.hpp"
#include "dsakit/sparse_flash_attention_quant.hpp"
#include "ops/attention/sparse.hpp"

namespace dsakit::sparse_flash_attention_quant_op {

struct Problem {
  attention::sparse::Problem attention;
  Rows lists;                       // i32, one per query row
  const std::int32_t* act;          // visible positions of sequence b at act[b * act_step]
  std::int64_t act_step, s1, topk;

  /// The whole masking rule: row t uses the first so many entries of its list.
  attention::sparse::Token token(std::int64_t t) const {
    const std::int64_t b = t / s1, i = t % s1;
    const std::int64_t seen = std::max<std::int64_t>(act[b * act_step] - s1 + 1 + i, 0);
    return {.sequence = b, .list = lists.row<const std::int32_t>(t), .count = std::min(seen, topk)};
  }
  /// f(row, token) for every query row, ascending.
  template <class F>
  void each_token(F f) const {
    for (std::int64_t t = 0; t < attention.tokens; ++t) f(t, token(t));
  }
};

/// All of docs/operators/sparse_flash_attention.md, "Errors"; throws before anything is written. `shard`: of keys, where
/// several ranks have some; lengths and lists are those of whole sequences then, and so are the tokens that come of them.
Problem check(const SparseFlashAttentionQuantArgs&, const SparseFlashAttentionQuantOuts&, const Ownership& shard = {});
/// Value checking: finite queries and attended keys, scales of at least 0.
void check_values(const SparseFlashAttentionQuantArgs&, const Problem&, const Ownership& shard = {});

}  // namespace dsakit::sparse_flash_attention_quant_op
