// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "ops/attention/core.hpp"

namespace dsakit::attention {

/// One call of an operator whose checked problem has `attention` and each_token(f).
template <class Problem>
void run(const char* op, const Problem& problem, Context& context) {
  Carver tokens;
  tokens.take<Token>(problem.attention.tokens);
  Call call(context, op, [&](int threads) {
    return tokens.bytes() + workspace(problem.attention, threads, context.same_products());
  });
  auto* token = reinterpret_cast<Token*>(call.memory());
  problem.each_token([&](std::int64_t t, const Token& attended) { token[t] = attended; });
  run(problem.attention, token, call, call.memory() + tokens.bytes());
  call.finish();
}

}  // namespace dsakit::attention
