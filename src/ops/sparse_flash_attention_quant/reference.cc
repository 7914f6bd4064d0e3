// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/reference.hpp"
#include "ops/sparse_flash_attention_quant/problem.hpp"

void dsakit::reference::sparse_flash_attention_quant(const SparseFlashAttentionQuantArgs& args,
                                                     const SparseFlashAttentionQuantOuts& outs,
                                                     ProbabilityRounding rounding) {
  const auto problem = sparse_flash_attention_quant_op::check(args, outs);
  problem.each_token([&](std::int64_t t, const attention::sparse::Token& token) {
    attention::sparse::reference(problem.attention, t, token, rounding);
  });
}
