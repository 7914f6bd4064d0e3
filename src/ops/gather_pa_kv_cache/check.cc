// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "ops/gather_pa_kv_cache/problem.hpp"
#include "ops/row_operator.hpp"

namespace dsakit {
namespace gather_pa_kv_cache_op {
namespace {

using Args = GatherPaKvCacheArgs;

/// Running totals of B sequences begin with the first one's, or with 0.
bool begins_with_zero(const Args& a) {
  return a.is_seq_lens_cumsum && a.seq_lens.rank == 1 && a.seq_lens.shape[0] == a.block_tables.shape[0] + 1;
}

/// Everything but the values of lengths, offsets and pages.
void check_inputs(const Check& check, const Args& a, const Tensors& inputs) {
  check_given(check, inputs);
  check_countable(check, inputs);
  check.rank(a.key_cache, "key_cache", 4, "block_num, block_size, h, dk");
  check.rank(a.value_cache, "value_cache", 4, "block_num, block_size, h, dv");
  const auto& cache = a.key_cache.shape;
  check.shape(a.value_cache, "value_cache", {cache[0], cache[1], cache[2], a.value_cache.shape[3]},
              "pages and h of key_cache");
  check.rank(a.block_tables, "block_tables", 2, "B, pages per sequence");
  const std::int64_t batch = a.block_tables.shape[0];
  if (!begins_with_zero(a)) check.shape(a.seq_lens, "seq_lens", {batch}, "B of block_tables");
  check.rank(a.key, "key", 3, "T, h, dk");
  check.shape(a.key, "key", {a.key.shape[0], cache[2], cache[3]}, "h and dk of key_cache");
  check.shape(a.value, "value", {a.key.shape[0], cache[2], a.value_cache.shape[3]},
              "T of key, h and dv of value_cache");
  if (a.seq_offset) check.shape(a.seq_offset, "seq_offset", {batch}, "B of block_tables");
  check_any_dtype(check, a.key_cache, "key_cache");
  check.dtype(a.value_cache, "value_cache", {a.key_cache.dtype}, "dtype of key_cache");
  check.dtype(a.block_tables, "block_tables", {DType::i32});
  check.dtype(a.seq_lens, "seq_lens", {DType::i32});
  check.dtype(a.key, "key", {a.key_cache.dtype}, "dtype of key_cache");
  check.dtype(a.value, "value", {a.key_cache.dtype}, "dtype of key_cache");
  if (a.seq_offset) check.dtype(a.seq_offset, "seq_offset", {DType::i32});
  check_memory(check, inputs, Caches::free_first_axis);
}

Problem resolve(const Check& check, const Args& a, const Tensor& keys, const Tensor& values) {
  const Tensor& table = a.block_tables;
  const std::int64_t shift = begins_with_zero(a), block_size = a.key_cache.shape[1], blocks = a.key_cache.shape[0];
  const auto* lengths = static_cast<const std::int32_t*>(a.seq_lens.data);
  Problem p{.pages = {static_cast<const std::int32_t*>(table.data), table.stride[0], table.stride[1], block_size},
            .batch = table.shape[0],
            .lengths = lengths + shift,
            .totals = a.is_seq_lens_cumsum,
            .offsets = static_cast<const std::int32_t*>(a.seq_offset.data),
            .parts = {Part{a.key_cache, keys}, Part{a.value_cache, values}}};
  const auto refuse = [&](Status status, const char* name, std::string position, std::int64_t got, std::string wanted,
                          std::string why) {
    check.fail(status, name, std::move(position), "is " + std::to_string(got), std::move(wanted), std::move(why));
  };
  if (shift && lengths[0] != 0)
    refuse(Status::invalid_seqlen, "seq_lens", "[0]", lengths[0], "0", "B + 1 running totals");
  std::int64_t total = 0;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const std::int64_t length = p.length(b), offset = p.offset(b), end = offset + length;
    const std::string sequence = "sequence " + std::to_string(b);
    if (length < 0)
      refuse(Status::invalid_seqlen, "seq_lens", subscript({b + shift}), p.lengths[b],
             "at least " + std::to_string(p.lengths[b] - length), p.totals ? "running totals" : "");
    if (offset < 0) refuse(Status::invalid_seqlen, "seq_offset", subscript({b}), offset, "at least 0", "");
    if (length > 0 && end > table.shape[1] * block_size)
      refuse(Status::invalid_seqlen, "seq_lens", subscript({b + shift}), p.lengths[b],
             "rows up to position " + std::to_string(table.shape[1] * block_size),
             sequence + " ends at " + std::to_string(end) + ", block_tables has " + std::to_string(table.shape[1]) +
                 " pages of " + std::to_string(block_size));
    if (total += length; total > keys.shape[0])
      refuse(Status::invalid_seqlen, "seq_lens", subscript({b + shift}), p.lengths[b],
             "at most " + std::to_string(keys.shape[0]) + " rows in all", "T of key");
    for (std::int64_t i = length > 0 ? offset / block_size : 0; length > 0 && i * block_size < end; ++i)
      if (const std::int64_t page = p.pages.table[b * p.pages.sequence + i * p.pages.step]; page < 0 || page >= blocks)
        refuse(Status::invalid_block, "block_tables", subscript({b, i}), page, "0.." + std::to_string(blocks - 1),
               "pages of key_cache; " + sequence + ", positions " + std::to_string(i * block_size) + ".." +
                   std::to_string((i + 1) * block_size - 1));
  }
  return p;
}

}  // namespace

Problem check(const GatherPaKvCacheArgs& a, const GatherPaKvCacheOuts& o) {
  const Check check("gather_pa_kv_cache", a.level);
  const Tensors tensors(a, o);
  check_inputs(check, a, tensors);
  check_separate(check, tensors);
  return resolve(check, a, a.key, a.value);
}

Problem check(const GatherPaKvCacheFunctionalArgs& a, const GatherPaKvCacheFunctionalOuts& o) {
  const Check check("gather_pa_kv_cache_functional", a.level);
  check_inputs(check, a, Tensors::inputs<GatherPaKvCacheFunctionalOuts>(a));
  check_out(check, o.key_out, "key_out", like(a.key, a.key.dtype), "shape of key");
  check_out(check, o.value_out, "value_out", like(a.value, a.key.dtype), "shape of value");
  check_separate(check, Tensors(a, o));
  Problem p = resolve(check, a, o.key_out, o.value_out);
  p.parts[0].copied = a.key, p.parts[1].copied = a.value;
  return p;
}

}  // namespace gather_pa_kv_cache_op

void infer(const GatherPaKvCacheArgs& a, GatherPaKvCacheOuts&) {
  gather_pa_kv_cache_op::check_inputs(Check("gather_pa_kv_cache", a.level), a, Tensors::inputs<GatherPaKvCacheOuts>(a));
}

void infer(const GatherPaKvCacheFunctionalArgs& a, GatherPaKvCacheFunctionalOuts& o) {
  gather_pa_kv_cache_op::check_inputs(Check("gather_pa_kv_cache_functional", a.level), a,
                                      Tensors::inputs<GatherPaKvCacheFunctionalOuts>(a));
  if (!o.key_out) o.key_out = like(a.key, a.key.dtype);
  if (!o.value_out) o.value_out = like(a.value, a.key.dtype);
}

}  // namespace dsakit
