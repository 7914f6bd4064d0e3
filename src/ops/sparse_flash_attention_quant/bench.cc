// SPDX-License-Identifier: Apache-2.0
#include "bench.hpp"
#include "core/random.hpp"
#include "dsakit/sparse_flash_attention_quant.hpp"

namespace dsakit {

void bench_sparse_flash_attention_quant(std::vector<BenchCase>& cases) {
  const std::int64_t heads = 128, latent = 512, rope = 64, groups = 4, topk = 2048, context = 32768, block = 128;
  for (std::int64_t t : {1, 4, 32})
    cases.push_back(
        {.op = "sparse_flash_attention_quant",
         .size = "t=" + std::to_string(t) + " context=32768",
         .bytes = double(t * topk * (latent + 2 * rope + 4 * groups)),
         .bf16_flops = double(2 * t * heads * topk * (2 * latent + rope)),
         .prepare = [=] {
           struct Data {
             std::vector<bf16> query, query_rope, key_rope, out;
             std::vector<std::int8_t> key;
             std::vector<float> scales;
             std::vector<std::int32_t> indices, block_table, lengths;
           };
           Random r(1);
           auto d = std::make_shared<Data>(
               Data{random_bf16(r, t * heads * latent), random_bf16(r, t * heads * rope), random_bf16(r, context * rope),
                    std::vector<bf16>(std::size_t(t * heads * latent)), random_i8(r, context * latent),
                    random_f32(r, context * groups, 0.001f, 0.01f), std::vector<std::int32_t>(std::size_t(t * topk)),
                    std::vector<std::int32_t>(std::size_t(context / block)), {std::int32_t(context)}});
           // t query rows of one sequence: row i may name any position before its own.
           for (auto& x : d->indices) x = std::int32_t(r.below(context - t + 1));
           for (std::size_t b = 0; b < d->block_table.size(); ++b)
             d->block_table[b] = std::int32_t(d->block_table.size() - 1 - b);
           return [=](Context& c) {
             sparse_flash_attention_quant({.query_nope = tensor(d->query.data(), {t * heads, latent}),
                                           .query_rope = tensor(d->query_rope.data(), {t * heads, rope}),
                                           .key_nope_2d = tensor(d->key.data(), {context, latent}),
                                           .key_rope_2d = tensor(d->key_rope.data(), {context, rope}),
                                           .k_nope_scales = tensor(d->scales.data(), {context, groups}),
                                           .topk_indices = tensor(d->indices.data(), {t, topk}),
                                           .block_table = tensor(d->block_table.data(), {1, context / block}),
                                           .kv_act_seqs = tensor(d->lengths.data(), {1}),
                                           .b = 1,
                                           .s1 = t,
                                           .nq = heads,
                                           .softmax_scale = 0.1352338,
                                           .topk = topk,
                                           .block_size = block},
                                          {.attention_out = tensor(d->out.data(), {1, t, heads, latent})}, c);
           };
         }});
}

}  // namespace dsakit
