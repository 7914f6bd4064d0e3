// SPDX-License-Identifier: Apache-2.0
#include "bench.hpp"
#include "core/random.hpp"
#include "dsakit/mla_prolog_v2.hpp"
#include "dsakit/mla_prolog_v3.hpp"
#include "dsakit/packed_weight.hpp"

namespace dsakit {
namespace {

constexpr std::int64_t He = 7168, Hcq = 1536, N = 128, D = 128, Dr = 64, Hckv = 512, kBlocks = 64, kBlock = 128;
constexpr std::int64_t kWide = N * (D + Dr), kDown = Hckv + Dr;

/// A call at the sizes of DeepSeek-V3.2: bf16 or int8 hidden states, int8 query projection.
struct Data {
  std::int64_t t;
  bool full, packed;
  PackedWeight w_dq, w_uq_qr, w_uk, w_dkv_kr;
  std::vector<bf16> x, gamma_cq, gamma_ckv, sin, cos, query, query_rope;
  std::vector<std::int8_t> codes, query_norm;
  std::vector<float> x_scale, dq_scale, uq_qr_scale, dkv_kr_scale, norm_scale;
  std::vector<std::byte> kv_cache, kr_cache, kv_copy;
  std::vector<std::int64_t> slots;
  float alpha = 1, unused = 0;

  Data(std::int64_t t, bool full, bool packed) : Data(Random(1), t, full, packed) {}

  MlaPrologV3Args args() {
    const DType cache = packed ? DType::i8 : DType::bf16;
    MlaPrologV3Args a{.token_x = full ? tensor(codes.data(), {t, He}) : tensor(x.data(), {t, He}),
                      .weight_dq = w_dq,
                      .weight_uq_qr = w_uq_qr,
                      .weight_uk = w_uk,
                      .weight_dkv_kr = w_dkv_kr,
                      .rmsnorm_gamma_cq = tensor(gamma_cq.data(), {Hcq}),
                      .rmsnorm_gamma_ckv = tensor(gamma_ckv.data(), {Hckv}),
                      .rope_sin = tensor(sin.data(), {t, Dr}),
                      .rope_cos = tensor(cos.data(), {t, Dr}),
                      .kv_cache = shaped(cache, {kBlocks, kBlock, 1, packed ? 656 : Hckv}),
                      .kr_cache = packed ? shaped(DType::bf16, {0}) : shaped(DType::bf16, {kBlocks, kBlock, 1, Dr}),
                      .cache_index = tensor(slots.data(), {t}),
                      .dequant_scale_w_uq_qr = tensor(uq_qr_scale.data(), {1, kWide}),
                      .query_norm_flag = packed,
                      .weight_quant_mode = full ? 2 : 1,
                      .kv_cache_quant_mode = packed ? 3 : 0,
                      .ckvkr_repo_mode = packed,
                      .quant_scale_repo_mode = packed};
    a.kv_cache.data = kv_cache.data(), a.kr_cache.data = kr_cache.data();
    if (packed) a.k_nope_clip_alpha = tensor(&alpha, {1});
    if (!full) return a;
    a.dequant_scale_x = tensor(x_scale.data(), {t, 1}), a.dequant_scale_w_dq = tensor(dq_scale.data(), {1, Hcq});
    a.dequant_scale_w_dkv_kr = tensor(dkv_kr_scale.data(), {1, kDown});
    return a;
  }
  MlaPrologV3Outs outs() {
    return {.query = tensor(query.data(), {t, N, Hckv}),
            .query_rope = tensor(query_rope.data(), {t, N, Dr}),
            .query_norm = tensor(query_norm.data(), {t, Hcq}),
            .dequant_scale_q_norm = tensor(norm_scale.data(), {t, 1})};
  }

 private:
  static PackedWeight weight(Random& r, std::int64_t k, std::int64_t n, bool codes) {
    if (codes) return PackedWeight(tensor(random_i8(r, k * n).data(), {k, n}));
    return PackedWeight(tensor(random_bf16(r, k * n, -0.02f, 0.02f).data(), {k, n}));
  }
  Data(Random r, std::int64_t t, bool full, bool packed)
      : t(t),
        full(full),
        packed(packed),
        w_dq(weight(r, He, Hcq, full)),
        w_uq_qr(weight(r, Hcq, kWide, true)),
        w_uk(tensor(random_bf16(r, N * D * Hckv, -0.05f, 0.05f).data(), {N, D, Hckv})),
        w_dkv_kr(weight(r, He, kDown, full)),
        x(random_bf16(r, t * He)),
        gamma_cq(random_bf16(r, Hcq, 0.5f, 1.5f)),
        gamma_ckv(random_bf16(r, Hckv, 0.5f, 1.5f)),
        sin(random_bf16(r, t * Dr)),
        cos(random_bf16(r, t * Dr)),
        query(std::size_t(t * N * Hckv)),
        query_rope(std::size_t(t * N * Dr)),
        codes(random_i8(r, t * He)),
        query_norm(std::size_t(t * Hcq)),
        x_scale(random_f32(r, t, 0.001f, 0.01f)),
        dq_scale(random_f32(r, Hcq, 0.0001f, 0.001f)),
        uq_qr_scale(random_f32(r, kWide, 0.0001f, 0.001f)),
        dkv_kr_scale(random_f32(r, kDown, 0.0001f, 0.001f)),
        norm_scale(std::size_t(t)),
        kv_cache(std::size_t(kBlocks * kBlock * (packed ? 656 : 2 * Hckv))),
        kr_cache(std::size_t(packed ? 0 : kBlocks * kBlock * 2 * Dr)) {
    for (std::int64_t i = 0; i < t; ++i) slots.push_back(17 * i);
  }
};

BenchCase one(const char* op, std::int64_t t, bool full, bool packed,
              std::function<std::function<void(Context&)>(std::shared_ptr<Data>)> call) {
  const double hidden = double(He * (Hcq + kDown)), query = double(Hcq * kWide), heads = double(N * D * Hckv);
  const int row = full ? (packed ? 7 : 5) : packed ? 4 : 2;
  return {.op = op,
          .size = "R" + std::to_string(row) + " t=" + std::to_string(t),
          .bytes = hidden * (full ? 1 : 2) + query + 2 * heads,
          .i8_ops = 2 * double(t) * (query + (full ? hidden : 0)),
          .bf16_flops = 2 * double(t) * (heads + (full ? 0 : hidden)),
          .prepare = [=] { return call(std::make_shared<Data>(t, full, packed)); }};
}

}  // namespace

void bench_mla_prolog_v3(std::vector<BenchCase>& cases) {
  const auto call = [](std::shared_ptr<Data> d) { return [=](Context& c) { mla_prolog_v3(d->args(), d->outs(), c); }; };
  for (const bool full : {false, true})
    for (const std::int64_t t : {1, 128}) cases.push_back(one("mla_prolog_v3", t, full, true, call));
}

void bench_mla_prolog_v3_functional(std::vector<BenchCase>& cases) {
  BenchCase c = one("mla_prolog_v3_functional", 128, false, true, [](std::shared_ptr<Data> d) {
    d->kv_copy.resize(d->kv_cache.size());
    return [=](Context& c) {
      const MlaPrologV3FunctionalArgs a{d->args()};
      MlaPrologV3FunctionalOuts o{d->outs()};
      o.kv_cache_out = a.kv_cache, o.kv_cache_out.data = d->kv_copy.data();
      mla_prolog_v3_functional(a, o, c);
    };
  });
  c.bytes += 2.0 * kBlocks * kBlock * 656;
  cases.push_back(std::move(c));
}

void bench_mla_prolog_v2(std::vector<BenchCase>& cases) {
  cases.push_back(one("mla_prolog_v2", 128, false, false, [](std::shared_ptr<Data> d) {
    return [=](Context& c) {
      const MlaPrologV3Args a = d->args();
      const MlaPrologV3Outs o = d->outs();
      mla_prolog_v2({.token_x = a.token_x,
                     .weight_dq = a.weight_dq,
                     .weight_uq_qr = a.weight_uq_qr,
                     .weight_uk = a.weight_uk,
                     .weight_dkv_kr = a.weight_dkv_kr,
                     .rmsnorm_gamma_cq = a.rmsnorm_gamma_cq,
                     .rmsnorm_gamma_ckv = a.rmsnorm_gamma_ckv,
                     .rope_sin = a.rope_sin,
                     .rope_cos = a.rope_cos,
                     .cache_index = a.cache_index,
                     .kv_cache = a.kv_cache,
                     .kr_cache = a.kr_cache,
                     .dequant_scale_w_uq_qr = a.dequant_scale_w_uq_qr},
                    {.query = o.query, .query_rope = o.query_rope, .dequant_scale_q_nope = tensor(&d->unused, {1})}, c);
    };
  }));
}

}  // namespace dsakit
