// SPDX-License-Identifier: Apache-2.0
#include "dsakit/gather_pa_kv_cache.hpp"

#include <gtest/gtest.h>

#include "ops/moves_cases.hpp"

namespace dsakit {
namespace {

using moves::Filled;
using Args = GatherPaKvCacheArgs;
using Ints = std::vector<std::int32_t>;

struct Data {
  std::int64_t batch, columns;
  Filled key_cache, value_cache, key, value;
  Ints table, lengths, offsets;

  Data(Random& r, DType d, Ints lengths, Ints offsets, std::int64_t pages, std::int64_t page, std::int64_t rows,
       std::int64_t heads, std::int64_t dk, std::int64_t dv, std::int64_t gap)
      : batch(std::int64_t(lengths.size())),
        columns(0),
        key_cache(d, {pages, page, heads, dk}, r, gap),
        value_cache(d, {pages, page, heads, dv}, r, gap),
        key(d, {rows, heads, dk}, r, gap),
        value(d, {rows, heads, dv}, r, gap),
        lengths(lengths),
        offsets(offsets) {
    for (std::size_t b = 0; b < lengths.size(); ++b)
      columns = std::max<std::int64_t>(columns, (offsets[b] + lengths[b] + page - 1) / page + 1);
    for (std::int64_t i = 0; i < batch * columns; ++i)
      table.push_back(i % columns == columns - 1 ? -1 : std::int32_t(r.uniform(0, float(pages) - 0.01f)));
  }
  Args args() {
    return {.key_cache = key_cache.tensor(),
            .value_cache = value_cache.tensor(),
            .block_tables = tensor(table.data(), {batch, columns}),
            .seq_lens = tensor(lengths.data(), {batch}),
            .key = key.tensor(),
            .value = value.tensor(),
            .seq_offset = tensor(offsets.data(), {batch})};
  }
};

void expect_everywhere(const Args& a) {
  moves::expect_as_reference<Args, GatherPaKvCacheOuts>(a, {}, gather_pa_kv_cache, reference::gather_pa_kv_cache);
}

TEST(GatherPaKvCache, EqualsTheReference) {
  Random r(1);
  for (DType d : {DType::i8, DType::bf16, DType::f32, DType::i64})
    for (std::int64_t gap : {0, 3}) {
      expect_everywhere(Data(r, d, {5, 0, 17, 1}, {0, 3, 6, 8}, 7, 4, 30, 2, 5, 3, gap).args());
      expect_everywhere(Data(r, d, {0, 0}, {0, 0}, 7, 4, 3, 2, 5, 3, gap).args());
      expect_everywhere(Data(r, d, {6}, {1}, 7, 4, 6, 1, 0, 3, gap).args());
      Data whole(r, d, {6, 9}, {0, 0}, 7, 4, 15, 1, 8, 16, gap);
      Args a = whole.args();
      a.seq_offset = {};
      expect_everywhere(a);
    }
}

TEST(GatherPaKvCache, ManyRowsOnAnyNumberOfThreads) {
  Random r(2);
  expect_everywhere(Data(r, DType::bf16, {2000, 3, 0, 1900}, {0, 130, 0, 77}, 40, 128, 4000, 1, 512, 64, 0).args());
  expect_everywhere(Data(r, DType::i8, {2000, 3, 0, 1997}, {0, 130, 0, 77}, 40, 128, 4000, 1, 1050, 9, 0).args());
  expect_everywhere(Data(r, DType::bf16, {1000, 3, 0, 1500}, {0, 130, 0, 77}, 40, 128, 2600, 1, 512, 64, 0).args());
}

/// Running totals, with or without the 0 in front, say what counts say.
TEST(GatherPaKvCache, RunningTotals) {
  Random r(3);
  Data d(r, DType::f32, {5, 0, 17, 1}, {0, 3, 6, 8}, 7, 4, 30, 2, 5, 3, 0);
  Args a = d.args();
  gather_pa_kv_cache(a, {});
  const auto wanted = d.key.memory;
  Ints totals{0, 5, 5, 22, 23};
  for (int from : {0, 1}) {
    std::fill(d.key.memory.begin(), d.key.memory.begin() + 23 * 40, std::int8_t(1));
    a.seq_lens = tensor(totals.data() + from, {5 - from});
    a.is_seq_lens_cumsum = true;
    gather_pa_kv_cache(a, {});
    EXPECT_EQ(d.key.memory, wanted);
  }
}

/// Pages of two, of one sequence [2, 0], three rows from position 1 on: rows (2,1), (0,0), (0,1).
TEST(GatherPaKvCache, DocumentedExample) {
  float keys[] = {0, 1, 10, 11, 20, 21}, values[] = {5, 6, 15, 16, 25, 26}, key[] = {-1, -1, -1, -1}, value[4] = {};
  const std::int32_t table[] = {2, 0}, length[] = {3}, offset[] = {1};
  gather_pa_kv_cache({.key_cache = tensor(keys, {3, 2, 1, 1}),
                      .value_cache = tensor(values, {3, 2, 1, 1}),
                      .block_tables = tensor(table, {1, 2}),
                      .seq_lens = tensor(length, {1}),
                      .key = tensor(key, {4, 1, 1}),
                      .value = tensor(value, {4, 1, 1}),
                      .seq_offset = tensor(offset, {1})},
                     {});
  EXPECT_EQ(std::vector<float>(key, key + 4), (std::vector<float>{21, 0, 1, -1}));
  EXPECT_EQ(std::vector<float>(value, value + 4), (std::vector<float>{26, 5, 6, 0}));
}

TEST(GatherPaKvCache, FunctionalLeavesKeyAndValueAlone) {
  Random r(4);
  Data d(r, DType::bf16, {5, 0, 17, 1}, {0, 3, 6, 8}, 7, 4, 30, 2, 5, 3, 2);
  const GatherPaKvCacheFunctionalArgs a{d.args()};
  GatherPaKvCacheFunctionalOuts o{};
  infer(a, o);
  std::vector<bf16> key(std::size_t(o.key_out.elements())), value(std::size_t(o.value_out.elements()));
  o.key_out.data = key.data(), o.value_out.data = value.data();
  const auto before = d.key.memory;
  moves::expect_as_reference<GatherPaKvCacheFunctionalArgs, GatherPaKvCacheFunctionalOuts>(
      a, o, gather_pa_kv_cache_functional, reference::gather_pa_kv_cache_functional);
  EXPECT_EQ(d.key.memory, before);
}

TEST(GatherPaKvCache, Refusals) {
  const auto refused = [](Status status, const char* parameter, const char* position, auto change) {
    Random r(5);
    Data d(r, DType::bf16, {5, 0, 6}, {0, 3, 6}, 7, 4, 12, 2, 5, 3, 0);
    Args a = d.args();
    change(a, d);
    moves::expect_refused<Args, GatherPaKvCacheOuts>(a, {}, gather_pa_kv_cache, reference::gather_pa_kv_cache, status,
                                                     parameter, position);
  };
  using D = Data;
  refused(Status::invalid_argument, "block_tables", "", [](Args& a, D&) { a.block_tables = {}; });
  refused(Status::invalid_argument, "value", "", [](Args& a, D&) { a.value = {}; });
  refused(Status::invalid_shape, "key_cache", "", [](Args& a, D&) { a.key_cache.rank = 3; });
  refused(Status::invalid_shape, "value_cache", "", [](Args& a, D&) { a.value_cache.shape[1] = 3; });
  refused(Status::invalid_shape, "block_tables", "", [](Args& a, D&) { a.block_tables.rank = 1; });
  refused(Status::invalid_shape, "seq_lens", "", [](Args& a, D&) { a.seq_lens.shape[0] = 4; });
  refused(Status::invalid_shape, "seq_lens", "",
          [](Args& a, D&) { a.seq_lens.shape[0] = 2, a.is_seq_lens_cumsum = true; });
  refused(Status::invalid_shape, "key", "", [](Args& a, D&) { a.key.shape[2] = 4; });
  refused(Status::invalid_shape, "value", "", [](Args& a, D&) { a.value.shape[0] = 11; });
  refused(Status::invalid_shape, "seq_offset", "", [](Args& a, D&) { a.seq_offset.shape[0] = 2; });
  refused(Status::invalid_dtype, "value_cache", "", [](Args& a, D&) { a.value_cache.dtype = DType::f16; });
  refused(Status::invalid_dtype, "block_tables", "", [](Args& a, D&) { a.block_tables.dtype = DType::f32; });
  refused(Status::invalid_dtype, "seq_lens", "", [](Args& a, D&) { a.seq_lens.dtype = DType::f32; });
  refused(Status::invalid_dtype, "key", "", [](Args& a, D&) { a.key.dtype = DType::f16; });
  refused(Status::invalid_device, "value", "", [](Args& a, D&) { a.value.read_only = true; });
  refused(Status::aliased, "key", "", [](Args& a, D&) { a.value_cache.data = a.key.data; });
  refused(Status::invalid_seqlen, "seq_lens", "[1]", [](Args&, D& d) { d.lengths[1] = -1; });
  refused(Status::invalid_seqlen, "seq_offset", "[2]", [](Args&, D& d) { d.offsets[2] = -1; });
  refused(Status::invalid_seqlen, "seq_lens", "[2]", [](Args&, D& d) { d.lengths[2] = INT32_MAX; });
  refused(Status::invalid_seqlen, "seq_lens", "[2]", [](Args& a, D&) { a.key.shape[0] = a.value.shape[0] = 10; });
  refused(Status::invalid_seqlen, "seq_lens", "[1]", [](Args& a, D&) { a.is_seq_lens_cumsum = true; });
  refused(Status::invalid_block, "block_tables", "[2][1]",
          [](Args&, D& d) { d.table[2 * std::size_t(d.columns) + 1] = 7; });
  refused(Status::invalid_block, "block_tables", "[0][0]", [](Args&, D& d) { d.table[0] = -1; });
}

}  // namespace
}  // namespace dsakit
