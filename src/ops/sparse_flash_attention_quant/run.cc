// SPDX-License-Identifier: Apache-2.0
#include "ops/sparse_flash_attention_quant/problem.hpp"

namespace dsakit::sparse_flash_attention_quant_op {

std::size_t workspace(const Problem& p, int threads, bool same_products) {
  Carver measure;
  measure.take<attention::Token>(p.attention.tokens);
  return measure.bytes() + attention::workspace(p.attention, threads, same_products);
}

void run(const Problem& p, Call& call, std::byte* memory) noexcept {
  Carver carver(memory);
  attention::Token* token = carver.take<attention::Token>(p.attention.tokens);
  for (std::int64_t t = 0; t < p.attention.tokens; ++t) token[t] = p.token(t);
  attention::run(p.attention, token, call, memory + carver.bytes());
}

}  // namespace dsakit::sparse_flash_attention_quant_op

namespace dsakit {

void sparse_flash_attention_quant(const SparseFlashAttentionQuantArgs& args, const SparseFlashAttentionQuantOuts& outs,
                                  Context& context) {
  namespace op = sparse_flash_attention_quant_op;
  const op::Problem problem = op::check(args, outs);
  if (context.check_values()) op::check_values(args, problem);
  Call call(context, "sparse_flash_attention_quant", [&](int threads) {
    return op::workspace(problem, threads, context.same_products());
  });
  op::run(problem, call, call.memory());
  call.finish();
}

}  // namespace dsakit
