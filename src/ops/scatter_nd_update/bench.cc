// SPDX-License-Identifier: Apache-2.0
#include "bench.hpp"
#include "dsakit/scatter_nd_update.hpp"

namespace dsakit {
namespace {

constexpr std::int64_t kTokens = 16384, kSlots = 32768, kWidth = 576;

/// A chunk of tokens into the cache of a layer, in any order; `functional`: into a copy of it.
void add(std::vector<BenchCase>& cases, const char* op, bool functional) {
  const double rows = double(2 * kTokens * kWidth * 2), copy = functional ? double(2 * kSlots * kWidth * 2) : 0;
  cases.push_back({.op = op, .size = "t=16384 slots=32768 d=576", .bytes = rows + copy, .prepare = [=] {
                     struct Data {
                       std::vector<bf16> updates, cache, out;
                       std::vector<std::int64_t> slots;
                     };
                     Random r(1);
                     auto d =
                         std::make_shared<Data>(Data{random_bf16(r, kTokens * kWidth), random_bf16(r, kSlots * kWidth),
                                                     std::vector<bf16>(std::size_t(kSlots * kWidth)),
                                                     std::vector<std::int64_t>(std::size_t(kTokens))});
                     for (std::int64_t i = 0; i < kTokens; ++i) d->slots[std::size_t(i)] = i * 4097 % kSlots;
                     return [=](Context& c) {
                       const ScatterNdUpdateInPlaceArgs a{.self = tensor(d->cache.data(), {kSlots, kWidth}),
                                                          .indices = tensor(d->slots.data(), {kTokens, 1}),
                                                          .updates = tensor(d->updates.data(), {kTokens, kWidth})};
                       if (functional) scatter_nd_update({a}, {.out = tensor(d->out.data(), {kSlots, kWidth})}, c);
                       else scatter_nd_update_(a, {}, c);
                     };
                   }});
}

}  // namespace

void bench_scatter_nd_update_(std::vector<BenchCase>& cases) { add(cases, "scatter_nd_update_", false); }
void bench_scatter_nd_update(std::vector<BenchCase>& cases) { add(cases, "scatter_nd_update", true); }

}  // namespace dsakit
