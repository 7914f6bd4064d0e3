// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <concepts>
#include <cstdint>
#include <type_traits>

#include "dsakit/context.hpp"
#include "dsakit/field.hpp"
#include "dsakit/modes.hpp"
#include "dsakit/tensor.hpp"

// Rows of new tokens into a paged cache by runs of neighbouring slots: the runs are found once, and used for every
// layer. docs/operators/store_kv_block.md
namespace dsakit {

/// Slots to runs. The three results are the caller's, all written.
struct StoreKvBlockMetadataArgs {
  Tensor slot_mapping;
  Tensor group_len;
  Tensor group_key_idx;
  Tensor group_key_cache_idx;
  std::int64_t block_size = 0;
  Level level = Level::portable;
};

struct StoreKvBlockMetadataOuts {};

void store_kv_block_metadata(const StoreKvBlockMetadataArgs&, const StoreKvBlockMetadataOuts&,
                             Context& = default_context());
void infer(const StoreKvBlockMetadataArgs&, StoreKvBlockMetadataOuts&);

/// Rows by these runs.
struct StoreKvBlockArgs {
  Tensor key_in;
  Tensor key_cache_in;
  Tensor group_len;
  Tensor group_key_idx;
  Tensor group_key_cache_idx;
  std::int64_t block_size = 0;
  Level level = Level::portable;
};

struct StoreKvBlockOuts {};

void store_kv_block(const StoreKvBlockArgs&, const StoreKvBlockOuts&, Context& = default_context());
void infer(const StoreKvBlockArgs&, StoreKvBlockOuts&);

template <class A, class O, class V>
requires std::same_as<std::remove_const_t<A>, StoreKvBlockMetadataArgs>
constexpr void for_each_field(A& a, O&, V&& v) {
  v({"slot_mapping", Role::in, Kind::index, "int32", "[T]", "slot of each row; negative: not stored"}, a.slot_mapping);
  v({"group_len", Role::inout, Kind::index, "int32", "[T]", "rows of each run, then 0"}, a.group_len);
  v({"group_key_idx", Role::inout, Kind::index, "int32", "[T]", "first row of each run, then 0"}, a.group_key_idx);
  v({"group_key_cache_idx", Role::inout, Kind::index, "int32", "[T]", "first slot of each run, then 0"},
    a.group_key_cache_idx);
  v({"block_size", Role::attribute, Kind::number, "int", ">= 0", "slots of a page, which no run leaves; 0: no pages"},
    a.block_size);
  v(kLevelField, a.level);
}
constexpr Description describe(const StoreKvBlockMetadataArgs&) {
  return {.summary = "Runs of rows whose slots follow each other within a page",
          .formula =
              "a run = as many neighbouring rows as possible, each slot one more than that before it, in one page\n"
              "group_len, group_key_idx, group_key_cache_idx = its rows, its first row, its first slot",
          .errors =
              "INVALID_ARGUMENT: a tensor is missing, block_size is negative\n"
              "INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed",
          .source = "torch.ops._C_ascend.store_kv_block_metadata",
          .page = "store_kv_block.md",
          .family = Family::vllm_ascend,
          .positional = 5};
}

template <class A, class O, class V>
requires std::same_as<std::remove_const_t<A>, StoreKvBlockArgs>
constexpr void for_each_field(A& a, O&, V&& v) {
  v({"key_in", Role::in, Kind::data, "bfloat16, float16, float32, int8 or any other", "[T, ..]",
     "rows: what follows axis 0"},
    a.key_in);
  v({"key_cache_in", Role::inout, Kind::cache, "dtype of key_in", "[slots, ..] or [block_num, block_size, ..]",
     "cache of such rows"},
    a.key_cache_in);
  v({"group_len", Role::in, Kind::index, "int32", "[G]", "rows of each run; below 1: none"}, a.group_len);
  v({"group_key_idx", Role::in, Kind::index, "int32", "[G]", "first row of each run"}, a.group_key_idx);
  v({"group_key_cache_idx", Role::in, Kind::index, "int32", "[G]", "first slot of each run"}, a.group_key_cache_idx);
  v({"block_size", Role::attribute, Kind::number, "int", ">= 0",
     "slots of a page, which no run leaves; 0: that of key_cache_in, or no pages"},
    a.block_size);
  v(kLevelField, a.level);
}
constexpr Description describe(const StoreKvBlockArgs&) {
  return {.summary = "Store rows in a paged cache by runs of neighbouring slots, in place",
          .formula = "key_cache_in[group_key_cache_idx[g] + i] = key_in[group_key_idx[g] + i], i < group_len[g]",
          .errors =
              "INVALID_ARGUMENT: a tensor is missing, block_size is negative or not that of the cache\n"
              "INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed\n"
              "INVALID_INDEX: a run leaves key_in\n"
              "INVALID_SLOT: a run leaves its page or the cache",
          .source = "torch.ops._C_ascend.store_kv_block",
          .page = "store_kv_block.md",
          .family = Family::vllm_ascend,
          .positional = 6};
}

namespace reference {
void store_kv_block_metadata(const StoreKvBlockMetadataArgs&, const StoreKvBlockMetadataOuts&);
void store_kv_block(const StoreKvBlockArgs&, const StoreKvBlockOuts&);
}  // namespace reference

}  // namespace dsakit
