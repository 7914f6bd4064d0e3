// SPDX-License-Identifier: Apache-2.0
#include "bench.hpp"
#include "dsakit/store_kv_block.hpp"

namespace dsakit {
namespace {

constexpr std::int64_t kTokens = 16384, kPages = 128, kPage = 128, kWidth = 576;

/// The rows of a chunk of tokens, whose pages are in any order.
struct Data {
  std::vector<bf16> rows, cache;
  std::vector<std::int32_t> slots, length, row, slot;

  Data() {
    Random r(1);
    rows = random_bf16(r, kTokens * kWidth), cache.resize(rows.size());
    for (std::int64_t t = 0; t < kTokens; ++t)
      slots.push_back(std::int32_t(t / kPage * 37 % kPages * kPage + t % kPage));
    length = row = slot = slots;
  }
  Tensor vector(std::vector<std::int32_t>& v) { return tensor(v.data(), {kTokens}); }
  void find_runs(Context& c) {
    store_kv_block_metadata({.slot_mapping = vector(slots),
                             .group_len = vector(length),
                             .group_key_idx = vector(row),
                             .group_key_cache_idx = vector(slot),
                             .block_size = kPage},
                            {}, c);
  }
};

}  // namespace

void bench_store_kv_block_metadata(std::vector<BenchCase>& cases) {
  cases.push_back({.op = "store_kv_block_metadata", .size = "t=16384", .bytes = double(4 * kTokens * 4), .prepare = [] {
                     return [d = std::make_shared<Data>()](Context& c) { d->find_runs(c); };
                   }});
}

void bench_store_kv_block(std::vector<BenchCase>& cases) {
  const double bytes = double(2 * kTokens * kWidth * 2);
  cases.push_back({.op = "store_kv_block", .size = "t=16384 d=576", .bytes = bytes, .prepare = [] {
                     auto d = std::make_shared<Data>();
                     d->find_runs(default_context());
                     return [d](Context& c) {
                       store_kv_block({.key_in = tensor(d->rows.data(), {kTokens, kWidth}),
                                       .key_cache_in = tensor(d->cache.data(), {kPages * kPage, kWidth}),
                                       .group_len = d->vector(d->length),
                                       .group_key_idx = d->vector(d->row),
                                       .group_key_cache_idx = d->vector(d->slot),
                                       .block_size = kPage},
                                      {}, c);
                     };
                   }});
}

}  // namespace dsakit
