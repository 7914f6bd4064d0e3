// SPDX-License-Identifier: Apache-2.0
#include "dsakit/scatter_pa_kv_cache.hpp"

#include <gtest/gtest.h>

#include "core/float16.hpp"
#include "ops/moves_cases.hpp"

namespace dsakit {
namespace {

using moves::Filled;
using Args = ScatterPaKvCacheArgs;

struct Data {
  std::int64_t tokens, pages, page;
  bool nz;
  Filled key, value, key_cache, value_cache;
  std::vector<std::int64_t> slots;

  Data(Random& r, DType d, bool nz, std::int64_t tokens, std::int64_t heads, std::int64_t dk, std::int64_t dv,
       std::int64_t pages, std::int64_t page, std::int64_t gap)
      : tokens(tokens),
        pages(pages),
        page(page),
        nz(nz),
        key(d, {tokens, heads, dk}, r, gap),
        value(d, {tokens, heads, dv}, r, gap),
        key_cache(d, cache(d, heads, dk), r, gap),
        value_cache(d, cache(d, heads, dv), r, gap) {
    for (std::int64_t t = 0; t < tokens; ++t) slots.push_back(std::int64_t(r.uniform(-3, float(pages * page) - 0.01f)));
  }
  std::vector<std::int64_t> cache(DType d, std::int64_t heads, std::int64_t width) const {
    const std::int64_t c0 = 32 / size_of(d);
    if (nz) return {pages, heads * width / c0, page, c0};
    return {pages, page, heads, width};
  }
  Args args() {
    return {.key = key.tensor(),
            .value = value.tensor(),
            .key_cache = key_cache.tensor(),
            .value_cache = value_cache.tensor(),
            .slot_mapping = tensor(slots.data(), {tokens}),
            .cache_mode = nz ? "PA_NZ" : "Norm"};
  }
};

void expect_everywhere(const Args& a) {
  moves::expect_as_reference<Args, ScatterPaKvCacheOuts>(a, {}, scatter_pa_kv_cache, reference::scatter_pa_kv_cache);
}

TEST(ScatterPaKvCache, EqualsTheReference) {
  Random r(1);
  for (bool nz : {false, true})
    for (DType d : {DType::i8, DType::bf16, DType::f32, DType::i64})
      for (std::int64_t gap : {0, 5}) {
        SCOPED_TRACE(std::string(nz ? "NZ " : "Norm ") + name_of(d));
        expect_everywhere(Data(r, d, nz, 37, 1, 64, 32, 5, 8, gap).args());
        expect_everywhere(Data(r, d, nz, 37, 4, 24, 8, 5, 7, gap).args());  // panels across heads
        expect_everywhere(Data(r, d, nz, 0, 4, 24, 8, 5, 7, gap).args());
        expect_everywhere(Data(r, d, nz, 9, 4, 0, 8, 5, 7, gap).args());
      }
}

TEST(ScatterPaKvCache, LastTokenWinsOnAnyNumberOfThreads) {
  Random r(2);
  for (bool nz : {false, true}) expect_everywhere(Data(r, DType::bf16, nz, 3000, 1, 512, 64, 6, 128, 0).args());
  // Streamed, and rows that end in the middle of sixteen bytes.
  for (bool nz : {false, true}) expect_everywhere(Data(r, DType::bf16, nz, 4000, 1, 512, 64, 6, 128, 0).args());
  expect_everywhere(Data(r, DType::i8, false, 4000, 1, 1050, 9, 6, 128, 0).args());
  expect_everywhere(Data(r, DType::bf16, true, 4000, 24, 24, 8, 6, 128, 0).args());
}

TEST(ScatterPaKvCache, FunctionalLeavesTheCachesAlone) {
  Random r(3);
  for (bool nz : {false, true}) {
    Data d(r, DType::bf16, nz, 37, 2, 32, 16, 5, 8, 3);
    const ScatterPaKvCacheFunctionalArgs a{d.args()};
    ScatterPaKvCacheFunctionalOuts o{};
    infer(a, o);
    std::vector<bf16> keys(std::size_t(o.key_cache_out.elements())), values(std::size_t(o.value_cache_out.elements()));
    o.key_cache_out.data = keys.data(), o.value_cache_out.data = values.data();
    const auto before = d.key_cache.memory;
    moves::expect_as_reference<ScatterPaKvCacheFunctionalArgs, ScatterPaKvCacheFunctionalOuts>(
        a, o, scatter_pa_kv_cache_functional, reference::scatter_pa_kv_cache_functional);
    EXPECT_EQ(d.key_cache.memory, before);
  }
}

/// Column j of slot s in NZ: ((s / block_size * panels + j / c0) * block_size + s % block_size) * c0 + j % c0.
TEST(ScatterPaKvCache, PlacesOfNz) {
  float key[2 * 16], value[2 * 8], keys[2 * 2 * 3 * 8] = {}, values[2 * 1 * 3 * 8] = {};
  for (int i = 0; i < 32; ++i) key[i] = float(100 + i);
  for (int i = 0; i < 16; ++i) value[i] = float(200 + i);
  const std::int32_t slots[] = {4, -1};
  scatter_pa_kv_cache({.key = tensor(key, {2, 2, 8}),
                       .value = tensor(value, {2, 2, 4}),
                       .key_cache = tensor(keys, {2, 2, 3, 8}),
                       .value_cache = tensor(values, {2, 1, 3, 8}),
                       .slot_mapping = tensor(slots, {2})},
                      {});
  for (int i = 0; i < 96; ++i) {
    const int page = i / 48, panel = i / 24 % 2, place = i / 8 % 3;
    EXPECT_EQ(keys[i], page == 1 && place == 1 ? float(100 + panel * 8 + i % 8) : 0) << i;
  }
  for (int i = 0; i < 48; ++i) EXPECT_EQ(values[i], i / 8 == 4 ? float(200 + i % 8) : 0) << i;
}

TEST(ScatterPaKvCache, Refusals) {
  const auto refused = [](Status status, const char* parameter, const char* position, bool nz, auto change) {
    Random r(4);
    Data d(r, DType::bf16, nz, 3, 2, 16, 24, 5, 8, 0);
    d.slots = {0, -1, 39};
    Args a = d.args();
    change(a, d.slots.data());
    moves::expect_refused<Args, ScatterPaKvCacheOuts>(a, {}, scatter_pa_kv_cache, reference::scatter_pa_kv_cache,
                                                      status, parameter, position);
  };
  using P = std::int64_t*;
  for (bool nz : {false, true}) {
    refused(Status::invalid_argument, "key", "", nz, [](Args& a, P) { a.key = {}; });
    refused(Status::invalid_argument, "slot_mapping", "", nz, [](Args& a, P) { a.slot_mapping = {}; });
    refused(Status::invalid_argument, "cache_mode", "", nz, [](Args& a, P) { a.cache_mode = "PA"; });
    refused(Status::unsupported, "key", "", nz, [](Args& a, P) { a.key.rank = 4; });
    refused(Status::invalid_shape, "key", "", nz, [](Args& a, P) { a.key.rank = 2; });
    refused(Status::invalid_shape, "value", "", nz, [](Args& a, P) { a.value.shape[0] = 2; });
    refused(Status::invalid_shape, "value", "", nz, [](Args& a, P) { a.value.shape[1] = 1; });
    refused(Status::invalid_shape, "key_cache", "", nz, [](Args& a, P) { a.key_cache.shape[3] -= 1; });
    refused(Status::invalid_shape, "value_cache", "", nz, [](Args& a, P) { a.value_cache.shape[0] = 4; });
    refused(Status::invalid_shape, "slot_mapping", "", nz, [](Args& a, P) { a.slot_mapping.shape[0] = 2; });
    refused(Status::invalid_dtype, "key", "", nz, [](Args& a, P) { a.key.dtype = DType::other; });
    refused(Status::invalid_dtype, "value", "", nz, [](Args& a, P) { a.value.dtype = DType::f16; });
    refused(Status::invalid_dtype, "value_cache", "", nz, [](Args& a, P) { a.value_cache.dtype = DType::i16; });
    refused(Status::invalid_dtype, "slot_mapping", "", nz, [](Args& a, P) { a.slot_mapping.dtype = DType::i16; });
    refused(Status::aliased, "key_cache", "", nz, [](Args& a, P) { a.key_cache.data = a.value_cache.data; });
    refused(Status::invalid_device, "value_cache", "", nz, [](Args& a, P) { a.value_cache.read_only = true; });
    refused(Status::invalid_slot, "slot_mapping", "[2]", nz, [](Args&, P p) { p[2] = 40; });
    refused(Status::invalid_slot, "slot_mapping", "[0]", nz, [](Args&, P p) { p[0] = INT64_MAX; });
  }
  refused(Status::invalid_shape, "key", "", true, [](Args& a, P) { a.key.shape[2] = 9; });
}

}  // namespace
}  // namespace dsakit
