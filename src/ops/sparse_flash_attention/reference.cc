// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/reference.hpp"
#include "dsakit/sparse_flash_attention.hpp"
#include "ops/sparse_attention/problem.hpp"

void dsakit::reference::sparse_flash_attention(const SparseFlashAttentionArgs& args,
                                               const SparseFlashAttentionOuts& outs, ProbabilityRounding rounding) {
  SparseFlashAttentionOuts given = outs;
  const auto problem = sparse_attention::check(args, given, false, false);
  problem.each_token([&](std::int64_t t, const attention::sparse::Token& token) {
    attention::sparse::reference(problem.attention, t, token, rounding);
  });
}
