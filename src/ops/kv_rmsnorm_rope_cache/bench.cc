// SPDX-License-Identifier: Apache-2.0
#include "bench.hpp"
#include "core/random.hpp"
#include "dsakit/kv_rmsnorm_rope_cache.hpp"

namespace dsakit {
namespace {

constexpr std::int64_t kLatent = 512, kRope = 64, kBlock = 128;

struct Data {
  std::int64_t t;
  std::vector<bf16> kv, gamma, cos, sin, k_cache, ckv_cache, k_copy, ckv_copy;
  std::vector<std::int64_t> index;

  explicit Data(std::int64_t t) : t(t), k_cache(std::size_t(t * kRope)), ckv_cache(std::size_t(t * kLatent)) {
    Random r(1);
    k_copy = k_cache, ckv_copy = ckv_cache;
    kv = random_bf16(r, t * (kLatent + kRope)), gamma = random_bf16(r, kLatent);
    cos = random_bf16(r, t * kRope), sin = random_bf16(r, t * kRope);
    for (std::int64_t i = 0; i < t; ++i)
      index.push_back(t - kBlock - i / kBlock * kBlock + i % kBlock);  // last page first
  }
  KvRmsnormRopeCacheArgs args() {
    return {.kv = tensor(kv.data(), {t, 1, 1, kLatent + kRope}),
            .gamma = tensor(gamma.data(), {kLatent}),
            .cos = tensor(cos.data(), {t, 1, 1, kRope}),
            .sin = tensor(sin.data(), {t, 1, 1, kRope}),
            .index = tensor(index.data(), {t}),
            .k_cache = tensor(k_cache.data(), {t / kBlock, kBlock, 1, kRope}),
            .ckv_cache = tensor(ckv_cache.data(), {t / kBlock, kBlock, 1, kLatent}),
            .cache_mode = "PA"};
  }
};

constexpr double rows(std::int64_t t) { return double(2 * t * (kLatent + kRope)); }  // bytes of a cache of t slots

template <class Run>
void add(std::vector<BenchCase>& cases, const char* op, std::int64_t t, double copied, Run run) {
  cases.push_back({.op = op,
                   .size = "t=" + std::to_string(t),
                   .bytes = 2 * rows(t) + double(4 * t * kRope + 8 * t) + copied,
                   .prepare = [=] {
                     auto d = std::make_shared<Data>(t);
                     return [=](Context& c) { run(*d, c); };
                   }});
}

}  // namespace

void bench_kv_rmsnorm_rope_cache(std::vector<BenchCase>& cases) {
  for (std::int64_t t : {128, 4096})
    add(cases, "kv_rmsnorm_rope_cache", t, 0, [](Data& d, Context& c) { kv_rmsnorm_rope_cache(d.args(), {}, c); });
}

void bench_kv_rmsnorm_rope_cache_v2(std::vector<BenchCase>& cases) {
  add(cases, "kv_rmsnorm_rope_cache_v2", 4096, 0,
      [](Data& d, Context& c) { kv_rmsnorm_rope_cache_v2({d.args()}, {}, c); });
}

void bench_kv_rmsnorm_rope_cache_v2_functional(std::vector<BenchCase>& cases) {
  add(cases, "kv_rmsnorm_rope_cache_v2_functional", 4096, 2 * rows(4096), [](Data& d, Context& c) {
    const KvRmsnormRopeCacheV2FunctionalArgs a{d.args()};
    KvRmsnormRopeCacheV2FunctionalOuts o{};
    infer(a, o);
    o.k_cache_out.data = d.k_copy.data(), o.ckv_cache_out.data = d.ckv_copy.data();
    kv_rmsnorm_rope_cache_v2_functional(a, o, c);
  });
}

}  // namespace dsakit
