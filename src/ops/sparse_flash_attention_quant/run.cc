// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/sparse.hpp"
#include "ops/direct.hpp"
#include "ops/sparse_flash_attention_quant/problem.hpp"

namespace dsakit {

void direct::sparse_flash_attention_quant(const SparseFlashAttentionQuantArgs& args,
                                          const SparseFlashAttentionQuantOuts& outs, Context& context) {
  namespace op = sparse_flash_attention_quant_op;
  const op::Problem problem = op::check(args, outs);
  if (context.check_values()) op::check_values(args, problem);
  attention::sparse::run("sparse_flash_attention_quant", problem, context);
}

}  // namespace dsakit
