// SPDX-License-Identifier: Apache-2.0
#include "bench.hpp"
#include "core/random.hpp"
#include "dsakit/fused_infer_attention_score_v2.hpp"

namespace dsakit {
namespace {

/// Single tokens of t sequences, 32 query and 8 key heads of 128, int8 keys and values with a scale per channel.
BenchCase decode(std::int64_t t) {
  const std::int64_t context = 8192, heads = 32, groups = 8, width = 128, keys = t * groups * context * width;
  return {.op = "fused_infer_attention_score_v2",
          .size = "decode t=" + std::to_string(t) + " context=8192 int8",
          .bytes = double(2 * keys),
          .prepare = [=] {
            struct Data {
              std::vector<bf16> query, scale, out;
              OnPages<std::int8_t> key, value;
            };
            Random r(1);
            auto d = std::make_shared<Data>(Data{random_bf16(r, t * heads * width),
                                                 random_bf16(r, groups * width, 0.005f, 0.02f),
                                                 std::vector<bf16>(std::size_t(t * heads * width)),
                                                 on_huge_pages(random_i8(r, keys)),
                                                 on_huge_pages(random_i8(r, keys))});
            return [=](Context& c) {
              const Tensor scale = tensor(d->scale.data(), {groups, width});
              fused_infer_attention_score_v2({.query = tensor(d->query.data(), {t, heads, 1, width}),
                                              .key = tensor(d->key.data(), {t, groups, context, width}),
                                              .value = tensor(d->value.data(), {t, groups, context, width}),
                                              .dequant_scale_key = scale,
                                              .dequant_scale_value = scale,
                                              .num_query_heads = heads,
                                              .num_key_value_heads = groups,
                                              .softmax_scale = 0.088388,
                                              .input_layout = "BNSD"},
                                             {.attention_out = tensor(d->out.data(), {t, heads, 1, width})}, c);
            };
          }};
}

/// The same with bf16 keys and values, the heads of a key next to each other.
BenchCase decode_bf16(std::int64_t t) {
  const std::int64_t context = 8192, heads = 32, groups = 8, width = 128, keys = t * groups * context * width;
  return {.op = "fused_infer_attention_score_v2",
          .size = "decode t=" + std::to_string(t) + " context=8192 bf16",
          .bytes = double(4 * keys),
          .bf16_flops = double(4 * t * heads * context * width),
          .prepare = [=] {
            struct Data {
              std::vector<bf16> query, out;
              OnPages<bf16> key, value;
            };
            Random r(1);
            auto d = std::make_shared<Data>(Data{random_bf16(r, t * heads * width),
                                                 std::vector<bf16>(std::size_t(t * heads * width)),
                                                 on_huge_pages(random_bf16(r, keys)),
                                                 on_huge_pages(random_bf16(r, keys))});
            return [=](Context& c) {
              fused_infer_attention_score_v2({.query = tensor(d->query.data(), {t, 1, heads, width}),
                                              .key = tensor(d->key.data(), {t, context, groups, width}),
                                              .value = tensor(d->value.data(), {t, context, groups, width}),
                                              .num_query_heads = heads,
                                              .num_key_value_heads = groups,
                                              .softmax_scale = 0.088388,
                                              .input_layout = "BSND"},
                                             {.attention_out = tensor(d->out.data(), {t, 1, heads, width})}, c);
            };
          }};
}

/// Causal attention of n new tokens, 32 query and 8 key heads of 128, bf16. Scores spread by 0.33 or, wide, by 3.3.
BenchCase prefill(std::int64_t n, bool wide = false) {
  const float most = wide ? 10 : 1;
  const std::int64_t heads = 32, groups = 8, width = 128;
  return {.op = "fused_infer_attention_score_v2",
          .size = "causal prefill t=" + std::to_string(n) + (wide ? " wide scores" : ""),
          .bytes = double(2 * n * width * 2 * (heads + groups)),
          .bf16_flops = double(2 * n * (n + 1) * heads * width),
          .prepare = [=] {
            struct Data {
              std::vector<bf16> query, key, value, out;
              std::int64_t length;
            };
            Random r(1);
            auto d = std::make_shared<Data>(Data{random_bf16(r, n * heads * width, -most, most), random_bf16(r, n * groups * width),
                                                 random_bf16(r, n * groups * width),
                                                 std::vector<bf16>(std::size_t(n * heads * width)), n});
            return [=](Context& c) {
              fused_infer_attention_score_v2({.query = tensor(d->query.data(), {n, heads, width}),
                                              .key = tensor(d->key.data(), {n, groups, width}),
                                              .value = tensor(d->value.data(), {n, groups, width}),
                                              .actual_seq_qlen = tensor(&d->length, {1}),
                                              .actual_seq_kvlen = tensor(&d->length, {1}),
                                              .num_query_heads = heads,
                                              .num_key_value_heads = groups,
                                              .softmax_scale = 0.088388,
                                              .input_layout = "TND",
                                              .sparse_mode = 3},
                                             {.attention_out = tensor(d->out.data(), {n, heads, width})}, c);
            };
          }};
}

/// Absorbed MLA, 128 heads on one latent of 512 + 64, single tokens over pages of 128.
BenchCase absorbed(std::int64_t t, std::int64_t context) {
  const std::int64_t block = 128, pages = t * context / block, heads = 128, latent = 512, rope = 64;
  return {
      .op = "fused_infer_attention_score_v2",
      .size = "absorbed decode t=" + std::to_string(t) + " context=" + std::to_string(context),
      .bytes = double(2 * t * context * (latent + rope)),
      .bf16_flops = double(2 * t * heads * context * (2 * latent + rope)),
      .prepare = [=] {
        struct Data {
          std::vector<bf16> query, query_rope, key, key_rope, out;
          std::vector<std::int32_t> table;
          std::vector<std::int64_t> lengths;
        };
        Random r(1);
        auto d = std::make_shared<Data>(Data{
            random_bf16(r, t * heads * latent), random_bf16(r, t * heads * rope), random_bf16(r, t * context * latent),
            random_bf16(r, t * context * rope), std::vector<bf16>(std::size_t(t * heads * latent)),
            std::vector<std::int32_t>(static_cast<std::size_t>(pages)), std::vector(std::size_t(t), context)});
        for (std::int64_t i = 0; i < pages; ++i) d->table[i] = std::int32_t(pages - 1 - i);
        return [=](Context& c) {
          const Tensor key = tensor(d->key.data(), {pages, block, latent});
          fused_infer_attention_score_v2({.query = tensor(d->query.data(), {t, 1, heads, latent}),
                                          .key = key,
                                          .value = key,
                                          .query_rope = tensor(d->query_rope.data(), {t, 1, heads, rope}),
                                          .key_rope = tensor(d->key_rope.data(), {pages, block, rope}),
                                          .actual_seq_kvlen = tensor(d->lengths.data(), {t}),
                                          .block_table = tensor(d->table.data(), {t, context / block}),
                                          .num_query_heads = heads,
                                          .num_key_value_heads = 1,
                                          .softmax_scale = 0.1352338,
                                          .input_layout = "BSND_NBSD",
                                          .block_size = block},
                                         {.attention_out = tensor(d->out.data(), {heads, t, 1, latent})}, c);
        };
      }};
}

}  // namespace

void bench_fused_infer_attention_score_v2(std::vector<BenchCase>& cases) {
  for (const std::int64_t t : {1, 4, 16}) cases.push_back(decode(t));
  for (const std::int64_t t : {1, 8}) cases.push_back(decode_bf16(t));
  for (const std::int64_t n : {1024, 4096}) cases.push_back(prefill(n));
  cases.push_back(prefill(4096, true));
  for (const std::int64_t t : {1, 4}) cases.push_back(absorbed(t, 8192));
  for (const std::int64_t context : kContexts) {
    cases.push_back(absorbed(1, context));
    cases.back().of_contexts = true;
  }
}

}  // namespace dsakit
