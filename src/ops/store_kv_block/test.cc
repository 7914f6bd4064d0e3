// SPDX-License-Identifier: Apache-2.0
#include "dsakit/store_kv_block.hpp"

#include <gtest/gtest.h>

#include "dsakit/scatter_nd_update.hpp"
#include "ops/moves_cases.hpp"

namespace dsakit {
namespace {

using moves::Filled;
using Ints = std::vector<std::int32_t>;
using Args = StoreKvBlockArgs;
using MetadataArgs = StoreKvBlockMetadataArgs;

struct Runs {
  Ints length, row, slot;

  Runs(Ints& slots, std::int64_t block_size) : length(slots.size(), 99), row(slots.size(), 99), slot(slots.size(), 99) {
    moves::expect_as_reference<MetadataArgs, StoreKvBlockMetadataOuts>(
        args(slots, block_size), {}, store_kv_block_metadata, reference::store_kv_block_metadata);
  }
  std::int64_t count() const { return std::int64_t(length.size()); }
  MetadataArgs args(Ints& slots, std::int64_t block_size) {
    return {.slot_mapping = tensor(slots.data(), {count()}),
            .group_len = tensor(length.data(), {count()}),
            .group_key_idx = tensor(row.data(), {count()}),
            .group_key_cache_idx = tensor(slot.data(), {count()}),
            .block_size = block_size};
  }
  Args store(const Tensor& rows, const Tensor& cache, std::int64_t block_size) {
    return {.key_in = rows,
            .key_cache_in = cache,
            .group_len = tensor(length.data(), {count()}),
            .group_key_idx = tensor(row.data(), {count()}),
            .group_key_cache_idx = tensor(slot.data(), {count()}),
            .block_size = block_size};
  }
};

void expect_everywhere(const Args& a) {
  moves::expect_as_reference<Args, StoreKvBlockOuts>(a, {}, store_kv_block, reference::store_kv_block);
}

TEST(StoreKvBlock, DocumentedExample) {
  Ints slots{2, 3, 4, 5, -1, 9};
  const Runs runs(slots, 4);
  EXPECT_EQ(runs.length, (Ints{2, 2, 1, 0, 0, 0}));
  EXPECT_EQ(runs.row, (Ints{0, 2, 5, 0, 0, 0}));
  EXPECT_EQ(runs.slot, (Ints{2, 4, 9, 0, 0, 0}));
  EXPECT_EQ(Runs(slots, 0).length, (Ints{4, 1, 0, 0, 0, 0}));  // without pages
}

/// A row that is not stored, and a slot that is not the next, end a run.
TEST(StoreKvBlock, RunsAreRowsBesideEachOther) {
  Ints slots{2, -1, 3, -1, 0, 1, 1, 0, INT32_MAX};
  const Runs runs(slots, 8);
  EXPECT_EQ(runs.length, (Ints{1, 1, 2, 1, 1, 1, 0, 0, 0}));
  EXPECT_EQ(runs.row, (Ints{0, 2, 4, 6, 7, 8, 0, 0, 0}));
  EXPECT_EQ(runs.slot, (Ints{2, 3, 0, 1, 0, INT32_MAX, 0, 0, 0}));
  Ints none;
  EXPECT_EQ(Runs(none, 8).count(), 0);
}

/// The runs of any slots store what a scatter by slot stores.
TEST(StoreKvBlock, IsScatterBySlot) {
  Random r(1);
  for (std::int64_t page : {0, 1, 4, 16})
    for (std::int64_t gap : {0, 3}) {
      Ints slots;
      for (int next = 0, i = 0; i < 60; ++i) {
        if (r.uniform(0, 1) < 0.3f) next = int(r.uniform(-2, 47));
        slots.push_back(next < 48 ? next++ : -1);
      }
      Filled rows(DType::bf16, {60, 3, 5}, r, gap), cache(DType::bf16, {48, 3, 5}, r, gap);
      auto scattered = cache;
      Runs runs(slots, page);
      const Args a = runs.store(rows.tensor(), cache.tensor(), page);
      expect_everywhere(a);
      scatter_nd_update_(
          {.self = scattered.tensor(), .indices = tensor(slots.data(), {60, 1}), .updates = rows.tensor()}, {});
      EXPECT_EQ(cache.memory, scattered.memory);
    }
}

TEST(StoreKvBlock, LastRowWinsOnAnyNumberOfThreads) {
  Random r(2);
  Ints slots;
  for (int next = 0, i = 0; i < 4000; ++i) {
    if (i % 37 == 0) next = int(r.uniform(0, 460));
    slots.push_back(next++);
  }
  Filled rows(DType::bf16, {4000, 576}, r), cache(DType::bf16, {500, 576}, r);
  Runs runs(slots, 16);
  expect_everywhere(runs.store(rows.tensor(), cache.tensor(), 16));
}

TEST(StoreKvBlock, PagesAndFoldedCaches) {
  Random r(3);
  Ints slots{5, 6, 7, 0, 3};
  Filled rows(DType::i8, {5, 6}, r), cache(DType::i8, {2, 4, 6}, r, 2);
  Runs runs(slots, 4);
  expect_everywhere(runs.store(rows.tensor(), cache.tensor(), 4));
  expect_everywhere(runs.store(rows.tensor(), cache.tensor(), 0));
  Filled single(DType::f32, {5}, r), slots_of(DType::f32, {8}, r);
  expect_everywhere(runs.store(single.tensor(), slots_of.tensor(), 4));
}

TEST(StoreKvBlock, Refusals) {
  const auto refused = [](Status status, const char* parameter, const char* position, auto change) {
    Random r(4);
    Ints slots{2, 3, 4, 5, -1, 7};
    Filled rows(DType::bf16, {6, 3}, r), cache(DType::bf16, {8, 3}, r);
    Runs runs(slots, 4);
    Args a = runs.store(rows.tensor(), cache.tensor(), 4);
    change(a, runs);
    moves::expect_refused<Args, StoreKvBlockOuts>(a, {}, store_kv_block, reference::store_kv_block, status, parameter,
                                                  position);
  };
  refused(Status::invalid_argument, "key_in", "", [](Args& a, Runs&) { a.key_in = {}; });
  refused(Status::invalid_argument, "block_size", "", [](Args& a, Runs&) { a.block_size = -1; });
  refused(Status::invalid_argument, "block_size", "", [](Args& a, Runs&) {
    a.key_cache_in = tensor(static_cast<bf16*>(a.key_cache_in.data), {4, 2, 3});
  });
  refused(Status::invalid_shape, "key_in", "", [](Args& a, Runs&) { a.key_in.rank = 0; });
  refused(Status::invalid_shape, "key_cache_in", "", [](Args& a, Runs&) { a.key_cache_in.shape[1] = 2; });
  refused(Status::invalid_shape, "group_len", "", [](Args& a, Runs&) { a.group_len.rank = 0; });
  refused(Status::invalid_shape, "group_key_idx", "", [](Args& a, Runs&) { a.group_key_idx.shape[0] = 5; });
  refused(Status::invalid_dtype, "key_in", "", [](Args& a, Runs&) { a.key_in.dtype = DType::other; });
  refused(Status::invalid_dtype, "key_cache_in", "", [](Args& a, Runs&) { a.key_cache_in.dtype = DType::f16; });
  refused(Status::invalid_dtype, "group_len", "", [](Args& a, Runs&) { a.group_len.dtype = DType::f32; });
  refused(Status::invalid_device, "key_cache_in", "", [](Args& a, Runs&) { a.key_cache_in.read_only = true; });
  refused(Status::aliased, "key_cache_in", "", [](Args& a, Runs&) { a.key_in.data = a.key_cache_in.data; });
  refused(Status::invalid_index, "group_key_idx", "[1]", [](Args&, Runs& runs) { runs.row[1] = 5; });
  refused(Status::invalid_index, "group_key_idx", "[0]", [](Args&, Runs& runs) { runs.row[0] = -1; });
  refused(Status::invalid_slot, "group_key_cache_idx", "[2]", [](Args&, Runs& runs) { runs.slot[2] = 8; });
  refused(Status::invalid_slot, "group_key_cache_idx", "[1]", [](Args&, Runs& runs) { runs.slot[1] = -1; });
  refused(Status::invalid_slot, "group_key_cache_idx", "[0]", [](Args&, Runs& runs) { runs.slot[0] = 3; });
}

TEST(StoreKvBlock, MetadataRefusals) {
  const auto refused = [](Status status, const char* parameter, auto change) {
    Ints slots{2, 3, 4};
    Runs runs(slots, 4);
    MetadataArgs a = runs.args(slots, 4);
    change(a);
    moves::expect_refused<MetadataArgs, StoreKvBlockMetadataOuts>(
        a, {}, store_kv_block_metadata, reference::store_kv_block_metadata, status, parameter);
  };
  using A = MetadataArgs;
  refused(Status::invalid_argument, "group_len", [](A& a) { a.group_len = {}; });
  refused(Status::invalid_argument, "block_size", [](A& a) { a.block_size = -4; });
  refused(Status::invalid_shape, "slot_mapping", [](A& a) { a.slot_mapping.rank = 0; });
  refused(Status::invalid_shape, "group_key_idx", [](A& a) { a.group_key_idx.shape[0] = 2; });
  refused(Status::invalid_dtype, "slot_mapping", [](A& a) { a.slot_mapping.dtype = DType::f32; });
  refused(Status::invalid_dtype, "group_key_cache_idx", [](A& a) { a.group_key_cache_idx.dtype = DType::f32; });
  refused(Status::aliased, "group_len", [](A& a) { a.group_key_idx.data = a.group_len.data; });
  refused(Status::invalid_device, "group_key_cache_idx", [](A& a) { a.group_key_cache_idx.read_only = true; });
}

}  // namespace
}  // namespace dsakit
