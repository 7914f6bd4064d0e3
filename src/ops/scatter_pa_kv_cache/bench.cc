// SPDX-License-Identifier: Apache-2.0
#include "bench.hpp"
#include "dsakit/scatter_pa_kv_cache.hpp"

namespace dsakit {
namespace {

constexpr std::int64_t kTokens = 16384, kPages = 128, kPage = 128, kLatent = 512, kRope = 64;

/// The latent and rope rows of a chunk of tokens into the cache of a layer.
void add(std::vector<BenchCase>& cases, const char* op, const char* mode, bool functional) {
  const bool nz = std::string_view(mode) == "PA_NZ";
  const double rows = double(2 * kTokens * (kLatent + kRope) * 2);
  cases.push_back(
      {.op = op,
       .size = std::string("t=16384 d=512+64 ") + mode,
       .bytes = functional ? 2 * rows : rows,
       .prepare = [=] {
         struct Data {
           std::vector<bf16> key, value, caches[4];
           std::vector<std::int64_t> slots;
         };
         Random r(1);
         auto d = std::make_shared<Data>();
         d->key = random_bf16(r, kTokens * kLatent), d->value = random_bf16(r, kTokens * kRope);
         for (int i = 0; i < 4; ++i) d->caches[i].resize(std::size_t(kTokens * (i % 2 ? kRope : kLatent)));
         for (std::int64_t t = 0; t < kTokens; ++t)  // pages in any order
           d->slots.push_back(t / kPage * 37 % kPages * kPage + t % kPage);
         return [=](Context& c) {
           const auto cache = [&](int i) {
             const std::int64_t width = i % 2 ? kRope : kLatent;
             bf16* memory = d->caches[i].data();
             return nz ? tensor(memory, {kPages, width / 16, kPage, 16}) : tensor(memory, {kPages, kPage, 1, width});
           };
           const ScatterPaKvCacheArgs a{.key = tensor(d->key.data(), {kTokens, 1, kLatent}),
                                        .value = tensor(d->value.data(), {kTokens, 1, kRope}),
                                        .key_cache = cache(0),
                                        .value_cache = cache(1),
                                        .slot_mapping = tensor(d->slots.data(), {kTokens}),
                                        .cache_mode = mode};
           if (functional) scatter_pa_kv_cache_functional({a}, {cache(2), cache(3)}, c);
           else scatter_pa_kv_cache(a, {}, c);
         };
       }});
}

}  // namespace

void bench_scatter_pa_kv_cache(std::vector<BenchCase>& cases) {
  add(cases, "scatter_pa_kv_cache", "Norm", false);
  add(cases, "scatter_pa_kv_cache", "PA_NZ", false);
}
void bench_scatter_pa_kv_cache_functional(std::vector<BenchCase>& cases) {
  add(cases, "scatter_pa_kv_cache_functional", "Norm", true);
}

}  // namespace dsakit
