// SPDX-License-Identifier: Apache-2.0
#include "bench.hpp"
#include "core/random.hpp"
#include "dsakit/lightning_indexer_prolog_quant.hpp"
#include "dsakit/packed_weight.hpp"

namespace dsakit {

void bench_lightning_indexer_prolog_quant(std::vector<BenchCase>& cases) {
  const std::int64_t He = 7168, Hcq = 1536, Ni = 64, Di = 128, Dr = 64, blocks = 64, block = 128;
  for (std::int64_t t : {1, 8, 32, 128})
    cases.push_back(
        {.op = "lightning_indexer_prolog_quant",
         .size = "t=" + std::to_string(t),
         .bytes = double(Hcq * Ni * Di + 2 * He * (Di + Ni)),
         .i8_ops = double(2 * t * Hcq * Ni * Di),
         .bf16_flops = double(2 * t * He * (Di + Ni)),
         .prepare = [=] {
           // 15 MB of weights would stay in the cache between two calls, which no model lets happen: calls take turns
           // on several copies.
           struct Weights {
             PackedWeight w_qb, wk, w_proj;
           };
           struct Data {
             std::vector<Weights> copies;
             std::vector<bf16> x, gamma, beta, cos, sin, hadamard;
             std::vector<std::int8_t> q_norm, q, k_cache;
             std::vector<float> q_norm_scale, w_qb_scale;
             std::vector<std::int64_t> slots;
             std::vector<f16> q_scale, k_scale, weights;
             std::size_t calls = 0;
           };
           Random r(1);
           auto d = std::make_shared<Data>();
           for (int i = 0; i < 5; ++i)
             d->copies.push_back({PackedWeight(tensor(random_i8(r, Hcq * Ni * Di).data(), {Hcq, Ni * Di})),
                                  PackedWeight(tensor(random_bf16(r, He * Di, -0.02f, 0.02f).data(), {He, Di})),
                                  PackedWeight(tensor(random_bf16(r, He * Ni, -0.02f, 0.02f).data(), {He, Ni}))});
           d->x = random_bf16(r, t * He), d->gamma = random_bf16(r, Di), d->beta = random_bf16(r, Di);
           d->cos = random_bf16(r, t * Dr), d->sin = random_bf16(r, t * Dr);
           for (std::int64_t i = 0; i < Di; ++i)
             for (std::int64_t j = 0; j < Di; ++j)
               d->hadamard.push_back(to_bf16(__builtin_popcountll(std::uint64_t(i & j)) % 2 ? -0.08838835f : 0.08838835f));
           d->q_norm = random_i8(r, t * Hcq);
           d->q_norm_scale = random_f32(r, t, 0.01f, 0.02f), d->w_qb_scale = random_f32(r, Ni * Di, 0.0001f, 0.001f);
           for (std::int64_t i = 0; i < t; ++i) d->slots.push_back(17 * i);
           d->q.resize(std::size_t(t * Ni * Di)), d->k_cache.resize(std::size_t(blocks * block * Di));
           d->q_scale.resize(std::size_t(t * Ni)), d->k_scale.resize(std::size_t(blocks * block));
           d->weights.resize(std::size_t(t * Ni));
           return [=](Context& c) {
             const Weights& w = d->copies[d->calls++ % d->copies.size()];
             lightning_indexer_prolog_quant({.x = tensor(d->x.data(), {t, He}),
                                             .q_norm = tensor(d->q_norm.data(), {t, Hcq}),
                                             .q_norm_scale = tensor(d->q_norm_scale.data(), {t, 1}),
                                             .w_qb = w.w_qb,
                                             .w_qb_scale = tensor(d->w_qb_scale.data(), {Ni * Di, 1}),
                                             .wk = w.wk,
                                             .w_proj = w.w_proj,
                                             .ln_gamma_k = tensor(d->gamma.data(), {Di}),
                                             .ln_beta_k = tensor(d->beta.data(), {Di}),
                                             .cos = tensor(d->cos.data(), {t, Dr}),
                                             .sin = tensor(d->sin.data(), {t, Dr}),
                                             .hadamard_q = tensor(d->hadamard.data(), {Di, Di}),
                                             .hadamard_k = tensor(d->hadamard.data(), {Di, Di}),
                                             .k_cache_index = tensor(d->slots.data(), {t})},
                                            {.q_int8 = tensor(d->q.data(), {t, Ni, Di}),
                                             .q_scale = tensor(d->q_scale.data(), {t, Ni, 1}),
                                             .k_cache = tensor(d->k_cache.data(), {blocks, block, 1, Di}),
                                             .k_scale_cache = tensor(d->k_scale.data(), {blocks, block, 1, 1}),
                                             .weights = tensor(d->weights.data(), {t, Ni})},
                                            c);
           };
         }});
}

}  // namespace dsakit
