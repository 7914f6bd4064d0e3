// SPDX-License-Identifier: Apache-2.0
#include "bench.hpp"
#include "core/random.hpp"
#include "dsakit/mla_prolog_quant.hpp"
#include "dsakit/packed_weight.hpp"

namespace dsakit {

void bench_mla_prolog_quant(std::vector<BenchCase>& cases) {
  const std::int64_t He = 7168, Hcq = 1536, N = 128, D = 128, Dr = 64, Hckv = 512, G = 4, blocks = 64, block = 128;
  const std::int64_t wide = N * (D + Dr);
  for (std::int64_t t : {1, 8, 32, 128})
    cases.push_back(
        {.op = "mla_prolog_quant",
         .size = "t=" + std::to_string(t),
         .bytes = double(2 * He * (Hcq + Hckv + Dr) + Hcq * wide + 2 * N * D * Hckv),
         .i8_ops = double(2 * t * Hcq * wide),
         .bf16_flops = double(2 * t * (He * (Hcq + Hckv + Dr) + N * D * Hckv)),
         .prepare = [=] {
           struct Data {
             PackedWeight w_dq, w_uq_qr, w_uk, w_dkv_kr;
             std::vector<bf16> x, gamma_cq, gamma_ckv, cos, sin, kr_cache, query_nope, query_rope;
             std::vector<float> dequant_scale, k_scale, q_norm_scale;
             std::vector<std::int64_t> slots;
             std::vector<std::int8_t> kv_cache, q_norm;
           };
           Random r(1);
           auto d = std::make_shared<Data>(Data{
               PackedWeight(tensor(random_bf16(r, He * Hcq, -0.02f, 0.02f).data(), {He, Hcq})),
               PackedWeight(tensor(random_i8(r, Hcq * wide).data(), {Hcq, wide})),
               PackedWeight(tensor(random_bf16(r, N * D * Hckv, -0.05f, 0.05f).data(), {N, D, Hckv})),
               PackedWeight(tensor(random_bf16(r, He * (Hckv + Dr), -0.02f, 0.02f).data(), {He, Hckv + Dr})),
               random_bf16(r, t * He), random_bf16(r, Hcq, 0.5f, 1.5f), random_bf16(r, Hckv, 0.5f, 1.5f),
               random_bf16(r, t * Dr), random_bf16(r, t * Dr), std::vector<bf16>(std::size_t(blocks * block * Dr)),
               std::vector<bf16>(std::size_t(t * N * Hckv)), std::vector<bf16>(std::size_t(t * N * Dr)),
               random_f32(r, wide, 0.0001f, 0.001f), std::vector<float>(std::size_t(blocks * block * G)),
               std::vector<float>(std::size_t(t)), std::vector<std::int64_t>(std::size_t(t)),
               std::vector<std::int8_t>(std::size_t(blocks * block * Hckv)),
               std::vector<std::int8_t>(std::size_t(t * Hcq))});
           for (std::int64_t i = 0; i < t; ++i) d->slots[std::size_t(i)] = 17 * i;
           return [=](Context& c) {
             mla_prolog_quant({.token_x = tensor(d->x.data(), {t, He}),
                               .w_dq = d->w_dq,
                               .w_uq_qr = d->w_uq_qr,
                               .dequant_scale = tensor(d->dequant_scale.data(), {wide, 1}),
                               .w_uk = d->w_uk,
                               .w_dkv_kr = d->w_dkv_kr,
                               .gamma_cq = tensor(d->gamma_cq.data(), {Hcq}),
                               .gamma_ckv = tensor(d->gamma_ckv.data(), {Hckv}),
                               .cos = tensor(d->cos.data(), {t, Dr}),
                               .sin = tensor(d->sin.data(), {t, Dr}),
                               .cache_index = tensor(d->slots.data(), {t}),
                               .kv_cache = tensor(d->kv_cache.data(), {blocks, block, 1, Hckv}),
                               .kr_cache = tensor(d->kr_cache.data(), {blocks, block, 1, Dr}),
                               .k_scale_cache = tensor(d->k_scale.data(), {blocks, block, 1, G})},
                              {.q_norm_out = tensor(d->q_norm.data(), {t, Hcq}),
                               .q_norm_scale_out = tensor(d->q_norm_scale.data(), {t, 1}),
                               .query_nope_out = tensor(d->query_nope.data(), {t, N, Hckv}),
                               .query_rope_out = tensor(d->query_rope.data(), {t, N, Dr})},
                              c);
           };
         }});
}

}  // namespace dsakit
