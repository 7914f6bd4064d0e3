// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>
#include <utility>

#include "ops/row_operator.hpp"
#include "ops/store_kv_block/problem.hpp"

namespace dsakit {
namespace store_kv_block_op {
namespace {

Runs check_inputs(const Check& check, const StoreKvBlockMetadataArgs& a, const Tensors& inputs) {
  check_given(check, inputs);
  check.at_least(a.block_size, "block_size", 0);
  check_countable(check, inputs);
  check.rank(a.slot_mapping, "slot_mapping", 1, "T");
  const std::int64_t count = a.slot_mapping.shape[0];
  const std::pair<const Tensor*, const char*> groups[] = {{&a.group_len, "group_len"},
                                                          {&a.group_key_idx, "group_key_idx"},
                                                          {&a.group_key_cache_idx, "group_key_cache_idx"}};
  for (const auto& [t, name] : groups) check.shape(*t, name, {count}, "T of slot_mapping");
  check.dtype(a.slot_mapping, "slot_mapping", {DType::i32});
  for (const auto& [t, name] : groups) check.dtype(*t, name, {DType::i32});
  check_memory(check, inputs);
  const auto memory = [](const Tensor& t) { return static_cast<std::int32_t*>(t.data); };
  return {.count = count,
          .block_size = a.block_size,
          .slots = memory(a.slot_mapping),
          .length = memory(a.group_len),
          .row = memory(a.group_key_idx),
          .slot = memory(a.group_key_cache_idx)};
}

/// Everything but the values of the runs; block_size becomes that of the pages, 0 without.
Problem check_inputs(const Check& check, const StoreKvBlockArgs& a, const Tensors& inputs, std::int64_t& block_size) {
  check_given(check, inputs);
  check.at_least(a.block_size, "block_size", 0);
  check_countable(check, inputs);
  const Tensor &rows = a.key_in, &cache = a.key_cache_in;
  if (rows.rank < 1) check.fail(Status::invalid_shape, "key_in", "", shape_text(rows), "rank 1 or more", "T, row");
  const int row_axes = rows.rank - 1, leading = cache.rank - row_axes;
  if ((leading != 1 && leading != 2) ||
      !std::equal(rows.shape.begin() + 1, rows.shape.begin() + rows.rank, cache.shape.begin() + leading))
    check.fail(Status::invalid_shape, "key_cache_in", "", shape_text(cache),
               "[slots, ..] or [block_num, block_size, ..]", "rows of key_in, which " + shape_text(rows));
  if (block_size = a.block_size; leading == 2 && block_size == 0) block_size = cache.shape[1];
  if (leading == 2 && block_size != cache.shape[1])
    check.fail(Status::invalid_argument, "block_size", "", "is " + std::to_string(a.block_size),
               std::to_string(cache.shape[1]) + ", or 0", "axis 1 of key_cache_in");
  check.rank(a.group_len, "group_len", 1, "G");
  const std::int64_t count = a.group_len.shape[0];
  check.shape(a.group_key_idx, "group_key_idx", {count}, "G of group_len");
  check.shape(a.group_key_cache_idx, "group_key_cache_idx", {count}, "G of group_len");
  check_any_dtype(check, rows, "key_in");
  check.dtype(cache, "key_cache_in", {rows.dtype}, "dtype of key_in");
  check.dtype(a.group_len, "group_len", {DType::i32});
  check.dtype(a.group_key_idx, "group_key_idx", {DType::i32});
  check.dtype(a.group_key_cache_idx, "group_key_cache_idx", {DType::i32});
  check_memory(check, inputs, Caches::free_first_axis);
  const auto memory = [](const Tensor& t) { return static_cast<const std::int32_t*>(t.data); };
  return {.rows = rows,
          .cache = Rows(cache, row_axes),
          .count = count,
          .length = memory(a.group_len),
          .row = memory(a.group_key_idx),
          .slot = memory(a.group_key_cache_idx)};
}

}  // namespace

Runs check(const StoreKvBlockMetadataArgs& a, const StoreKvBlockMetadataOuts& o) {
  const Check check("store_kv_block_metadata", a.level);
  const Tensors tensors(a, o);
  const Runs runs = check_inputs(check, a, tensors);
  check_separate(check, tensors);
  return runs;
}

Problem check(const StoreKvBlockArgs& a, const StoreKvBlockOuts& o) {
  const Check check("store_kv_block", a.level);
  const Tensors tensors(a, o);
  std::int64_t block_size = 0;
  Problem p = check_inputs(check, a, tensors, block_size);
  check_separate(check, tensors);
  const auto inside = [&](Status status, const char* name, std::int64_t g, std::int64_t first, std::int64_t end,
                          const char* what) {
    if (first >= 0 && first + p.length[g] <= end) return;
    check.fail(status, name, subscript({g}), "is " + std::to_string(first),
               "0.. with " + std::to_string(p.length[g]) + " rows below " + std::to_string(end), what);
  };
  for (std::int64_t g = 0; g < p.count; ++g) {
    if (p.length[g] <= 0) continue;
    inside(Status::invalid_index, "group_key_idx", g, p.row[g], p.rows.shape[0], "rows of key_in");
    inside(Status::invalid_slot, "group_key_cache_idx", g, p.slot[g], p.cache.count, "slots of key_cache_in");
    if (block_size > 0)
      inside(Status::invalid_slot, "group_key_cache_idx", g, p.slot[g], (p.slot[g] / block_size + 1) * block_size,
             "slots of its page");
    p.total += p.length[g];
  }
  return p;
}

}  // namespace store_kv_block_op

void infer(const StoreKvBlockMetadataArgs& a, StoreKvBlockMetadataOuts&) {
  store_kv_block_op::check_inputs(Check("store_kv_block_metadata", a.level), a,
                                  Tensors::inputs<StoreKvBlockMetadataOuts>(a));
}

void infer(const StoreKvBlockArgs& a, StoreKvBlockOuts&) {
  std::int64_t block_size = 0;
  store_kv_block_op::check_inputs(Check("store_kv_block", a.level), a, Tensors::inputs<StoreKvBlockOuts>(a),
                                  block_size);
}

}  // namespace dsakit
