// SPDX-License-Identifier: Apache-2.0
#include "bench.hpp"

#include <algorithm>

#include "core/random.hpp"
#include "dsakit/sparse_flash_attention.hpp"

namespace dsakit {

namespace {

/// t tokens over `listed` of the positions of one sequence, 128 heads on a latent of 512 + 64. Scores spread by 1.1 or,
/// wide, by 3.3, so that few keys decide.
BenchCase sparse(std::int64_t t, std::int64_t context, bool wide = false) {
  const float most = wide ? 3 : 1;
  const std::int64_t heads = 128, latent = 512, rope = 64, listed = std::min<std::int64_t>(2048, context), block = 128;
  return {.op = "sparse_flash_attention",
          .size = "t=" + std::to_string(t) + " context=" + std::to_string(context) + (wide ? " wide scores" : ""),
          .bytes = double(t * listed * (2 * latent + 2 * rope)),
          .bf16_flops = double(2 * t * heads * listed * (2 * latent + rope)),
          .prepare = [=] {
            struct Data {
              std::vector<bf16> query, query_rope, key, key_rope, out;
              std::vector<std::int32_t> indices, block_table, queries, keys;
            };
            Random r(1);
            auto d = std::make_shared<Data>(Data{random_bf16(r, t * heads * latent, -most, most),
                                                 random_bf16(r, t * heads * rope, -most, most),
                                                 random_bf16(r, context * latent),
                                                 random_bf16(r, context * rope),
                                                 std::vector<bf16>(std::size_t(t * heads * latent)),
                                                 std::vector<std::int32_t>(std::size_t(t * listed)),
                                                 std::vector<std::int32_t>(std::size_t(context / block)),
                                                 {std::int32_t(t)},
                                                 {std::int32_t(context)}});
            // t query rows of one sequence: row i may name any position before its own.
            for (auto& x : d->indices) x = std::int32_t(r.below(context - t + 1));
            for (std::size_t b = 0; b < d->block_table.size(); ++b)
              d->block_table[b] = std::int32_t(d->block_table.size() - 1 - b);
            return [=](Context& c) {
              const Tensor key = tensor(d->key.data(), {context / block, block, 1, latent});
              sparse_flash_attention(
                  {.query = tensor(d->query.data(), {t, heads, latent}),
                   .key = key,
                   .value = key,
                   .sparse_indices = tensor(d->indices.data(), {t, 1, listed}),
                   .scale_value = 0.1352338,
                   .block_table = tensor(d->block_table.data(), {1, context / block}),
                   .actual_seq_lengths_query = tensor(d->queries.data(), {1}),
                   .actual_seq_lengths_kv = tensor(d->keys.data(), {1}),
                   .query_rope = tensor(d->query_rope.data(), {t, heads, rope}),
                   .key_rope = tensor(d->key_rope.data(), {context / block, block, 1, rope}),
                   .layout_query = "TND",
                   .layout_kv = "PA_BSND",
                   .attention_mode = 2},
                  {.attention_out = tensor(d->out.data(), {t, heads, latent})}, c);
            };
          }};
}

}  // namespace

void bench_sparse_flash_attention(std::vector<BenchCase>& cases) {
  for (const std::int64_t t : {1, 4, 32}) cases.push_back(sparse(t, 32768));
  cases.push_back(sparse(4, 32768, true));
  for (const std::int64_t context : kContexts) {
    cases.push_back(sparse(1, context));
    cases.back().of_contexts = true;
  }
}

}  // namespace dsakit
