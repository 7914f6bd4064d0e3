// SPDX-License-Identifier: Apache-2.0
#include "bench.hpp"
#include "core/random.hpp"
#include "dsakit/mla_indexer_prolog_quant.hpp"
#include "dsakit/packed_weight.hpp"

namespace dsakit {

void bench_mla_indexer_prolog_quant(std::vector<BenchCase>& cases) {
  const std::int64_t He = 7168, Hcq = 1536, N = 128, D = 128, Dr = 64, Hckv = 512, G = 4, Ni = 64, Di = 128;
  const std::int64_t blocks = 64, block = 128, wide = N * (D + Dr);
  for (std::int64_t t : {1, 8, 32, 128})
    cases.push_back(
        {.op = "mla_indexer_prolog_quant",
         .size = "t=" + std::to_string(t),
         .bytes = double(2 * He * (Hcq + Hckv + Dr + Di + Ni) + Hcq * (wide + Ni * Di) + 2 * N * D * Hckv),
         .i8_ops = double(2 * t * Hcq * (wide + Ni * Di)),
         .bf16_flops = double(2 * t * (He * (Hcq + Hckv + Dr + Di + Ni) + N * D * Hckv)),
         .prepare = [=] {
           struct Data {
             PackedWeight w_dq, w_uq_qr, w_uk, w_dkv_kr, w_qb, wk, w_proj;
             std::vector<bf16> x{}, gamma_cq{}, gamma_ckv{}, gamma_k{}, beta_k{}, cos{}, sin{}, hadamard{}, kr_cache{},
                 query_nope{}, query_rope{};
             std::vector<float> dequant_scale{}, w_qb_scale{}, k_scale{};
             std::vector<std::int64_t> slots{};
             std::vector<std::int8_t> kv_cache{}, q_int8{}, ip_k_cache{};
             std::vector<f16> q_scale{}, ip_k_scale{}, weights{};
           };
           Random r(1);
           auto packed = [&](std::int64_t k, std::int64_t n) {
             return PackedWeight(tensor(random_bf16(r, k * n, -0.02f, 0.02f).data(), {k, n}));
           };
           auto d = std::make_shared<Data>(
               Data{packed(He, Hcq), PackedWeight(tensor(random_i8(r, Hcq * wide).data(), {Hcq, wide})),
                    PackedWeight(tensor(random_bf16(r, N * D * Hckv, -0.05f, 0.05f).data(), {N, D, Hckv})),
                    packed(He, Hckv + Dr), PackedWeight(tensor(random_i8(r, Hcq * Ni * Di).data(), {Hcq, Ni * Di})),
                    packed(He, Di), packed(He, Ni)});
           d->x = random_bf16(r, t * He), d->gamma_cq = random_bf16(r, Hcq), d->gamma_ckv = random_bf16(r, Hckv);
           d->gamma_k = random_bf16(r, Di), d->beta_k = random_bf16(r, Di);
           d->cos = random_bf16(r, t * Dr), d->sin = random_bf16(r, t * Dr);
           for (std::int64_t i = 0; i < Di; ++i)
             for (std::int64_t j = 0; j < Di; ++j)
               d->hadamard.push_back(to_bf16(__builtin_popcountll(std::uint64_t(i & j)) % 2 ? -0.08838835f : 0.08838835f));
           d->dequant_scale = random_f32(r, wide, 0.0001f, 0.001f), d->w_qb_scale = random_f32(r, Ni * Di, 0.0001f, 0.001f);
           for (std::int64_t i = 0; i < t; ++i) d->slots.push_back(17 * i);
           const std::size_t slots = std::size_t(blocks * block), tokens = std::size_t(t);
           d->kv_cache.resize(slots * Hckv), d->kr_cache.resize(slots * Dr), d->k_scale.resize(slots * G);
           d->ip_k_cache.resize(slots * Di), d->ip_k_scale.resize(slots);
           d->query_nope.resize(tokens * N * Hckv), d->query_rope.resize(tokens * N * Dr);
           d->q_int8.resize(tokens * Ni * Di), d->q_scale.resize(tokens * Ni), d->weights.resize(tokens * Ni);
           return [=](Context& c) {
             mla_indexer_prolog_quant({.token_x = tensor(d->x.data(), {t, He}),
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
                                       .w_qb = d->w_qb,
                                       .w_qb_scale = tensor(d->w_qb_scale.data(), {Ni * Di, 1}),
                                       .wk = d->wk,
                                       .w_proj = d->w_proj,
                                       .ln_gamma_k = tensor(d->gamma_k.data(), {Di}),
                                       .ln_beta_k = tensor(d->beta_k.data(), {Di}),
                                       .hadamard_q = tensor(d->hadamard.data(), {Di, Di}),
                                       .hadamard_k = tensor(d->hadamard.data(), {Di, Di})},
                                      {.query_nope = tensor(d->query_nope.data(), {t, N, Hckv}),
                                       .query_rope = tensor(d->query_rope.data(), {t, N, Dr}),
                                       .kv_cache = tensor(d->kv_cache.data(), {blocks, block, 1, Hckv}),
                                       .kr_cache = tensor(d->kr_cache.data(), {blocks, block, 1, Dr}),
                                       .k_scale_cache = tensor(d->k_scale.data(), {blocks, block, 1, G}),
                                       .q_int8 = tensor(d->q_int8.data(), {t, Ni, Di}),
                                       .q_scale = tensor(d->q_scale.data(), {t, Ni, 1}),
                                       .ip_k_cache = tensor(d->ip_k_cache.data(), {blocks, block, 1, Di}),
                                       .ip_k_scale_cache = tensor(d->ip_k_scale.data(), {blocks, block, 1, 1}),
                                       .weights = tensor(d->weights.data(), {t, Ni})},
                                      c);
           };
         }});
}

}  // namespace dsakit
