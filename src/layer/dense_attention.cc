// SPDX-License-Identifier: Apache-2.0
#include "layer/dense_attention.hpp"

#include "ops/attention/core.hpp"
#include "run/call.hpp"

namespace dsakit {

void dense_attention(const DenseAttention& d, LayerCache::State& cache, Context& context) {
  const std::int64_t latent = cache.latent.width, rope = cache.rope.width, queries = d.rows * d.heads;
  const attention::Problem problem{
      .query = Rows(tensor(d.query_nope, {queries, latent}), 1),
      .query_rope = Rows(tensor(d.query_rope, {queries, rope}), 1),
      .keys = {.rows = {.data = nullptr,
                        .page_stride = cache.page_size,
                        .row_stride = 1,
                        .page_size = cache.page_size,
                        .table = cache.table.data()},
               .latent = Rows(cache.rows_of(cache.latent), 1),
               .rope = Rows(cache.rows_of(cache.rope), 1),
               .scales = Rows(Tensor{}, 0)},
      .out = Rows(tensor(d.out, {queries, latent}), 1),
      .tokens = d.rows,
      .heads = d.heads,
      .latent = int(latent),
      .rope = int(rope),
      .scale = float(d.scale),
  };
  Carver lists;
  lists.take<attention::Token>(d.rows);
  Call call(context, "attention_layer", [&](int threads) {
    return lists.bytes() + attention::workspace(problem, threads, context.same_products());
  });
  auto* tokens = reinterpret_cast<attention::Token*>(call.memory());
  for (std::int64_t i = 0; i < d.rows; ++i) tokens[i] = {.sequence = 0, .count = d.first + i + 1};
  attention::run(problem, tokens, call, call.memory() + lists.bytes());
  call.finish();
}

}  // namespace dsakit
