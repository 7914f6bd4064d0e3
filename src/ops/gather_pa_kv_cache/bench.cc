// SPDX-License-Identifier: Apache-2.0
#include "bench.hpp"
#include "dsakit/gather_pa_kv_cache.hpp"

namespace dsakit {
namespace {

constexpr std::int64_t kTokens = 16384, kSequences = 4, kPages = 128, kPage = 128, kLatent = 512, kRope = 64;

/// The latent and rope rows of four long sequences out of the cache of a layer.
void add(std::vector<BenchCase>& cases, const char* op, bool functional) {
  const double rows = double(2 * kTokens * (kLatent + kRope) * 2);
  cases.push_back(
      {.op = op, .size = "t=16384 b=4 d=512+64", .bytes = functional ? 2 * rows : rows, .prepare = [=] {
         struct Data {
           std::vector<bf16> caches[2], rows[4];
           std::vector<std::int32_t> table, lengths;
         };
         Random r(1);
         auto d = std::make_shared<Data>();
         for (int i = 0; i < 4; ++i) {
           const std::int64_t n = kTokens * (i % 2 ? kRope : kLatent);
           if (i < 2) d->caches[i] = random_bf16(r, n);
           d->rows[i].resize(std::size_t(n));
         }
         for (std::int64_t i = 0; i < kPages; ++i) d->table.push_back(std::int32_t(i * 37 % kPages));
         d->lengths.assign(kSequences, kTokens / kSequences);
         return [=](Context& c) {
           const auto cache = [&](int i) {
             return tensor(d->caches[i].data(), {kPages, kPage, 1, i ? kRope : kLatent});
           };
           const auto rows = [&](int i) { return tensor(d->rows[i].data(), {kTokens, 1, i % 2 ? kRope : kLatent}); };
           const GatherPaKvCacheArgs a{.key_cache = cache(0),
                                       .value_cache = cache(1),
                                       .block_tables = tensor(d->table.data(), {kSequences, kPages / kSequences}),
                                       .seq_lens = tensor(d->lengths.data(), {kSequences}),
                                       .key = rows(0),
                                       .value = rows(1)};
           if (functional) gather_pa_kv_cache_functional({a}, {rows(2), rows(3)}, c);
           else gather_pa_kv_cache(a, {}, c);
         };
       }});
}

}  // namespace

void bench_gather_pa_kv_cache(std::vector<BenchCase>& cases) { add(cases, "gather_pa_kv_cache", false); }
void bench_gather_pa_kv_cache_functional(std::vector<BenchCase>& cases) {
  add(cases, "gather_pa_kv_cache_functional", true);
}

}  // namespace dsakit
