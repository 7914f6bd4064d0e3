// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "ops/indexer/problem.hpp"
#include "ops/weight.hpp"

namespace dsakit::indexer {
namespace {

using std::to_string;

std::int64_t pages_for(std::int64_t keys, std::int64_t page) { return keys > 0 ? (keys - 1) / page + 1 : 0; }

/// Stride of the axis along which a row of `t` extends; the others have length 1.
Grid grid(const Rows& rows) {
  const Tensor& t = rows.tensor;
  Grid g{rows};
  for (int a = t.rank - rows.row_axes; a < t.rank; ++a)
    if (t.shape[a] != 1) g.step = t.stride[a];
  return g;
}

/// One call at the door; its questions carry the numbers of the documented table.
struct Door : BatchDoor {
  const Tensors& inputs;
  Tensors all;
  const Arguments& a;
  const bool fill_indices = a.infer && !a.indices, fill_values = a.infer && a.values && !*a.values;
  Problem p{};

  bool has_values() const { return a.values && a.return_value; }

  void presence_and_layouts() {  // 1, 2
    check_given(c, inputs);
    if (!a.infer) {
      c.required(a.indices, "sparse_indices");
      if (has_values()) c.required(*a.values, "sparse_values");
    }
    layouts();
    presence();
  }

  Grid each(const Tensor& t, const char* name, std::initializer_list<std::int64_t> width, const char* why,
            const char* why_folded) const {
    return grid(per_token(t, name, width, why, why_folded));
  }

  void all_shapes() {  // 3
    check_countable(c, inputs);
    query_shape(a.query);
    key_shape(a.key, dims,
              paged         ? "block_num, block_size, one key head, D of query"
              : folded_keys ? "T of key, one key head, D of query"
                            : "B of query, S2, one key head, D of query");

    p.weights = each(a.weights, "weights", {heads}, "B, S1 and N1 of query", "T and N1 of query");
    if (a.quantised) {
      Tensor scale = a.query_scale;  // as a prolog leaves it: one more axis, of 1
      if (c.strict() && scale.rank == (folded ? 3 : 4) && scale.shape[scale.rank - 1] == 1) --scale.rank;
      p.query_scale = each(scale, "query_dequant_scale", {heads}, "B, S1 and N1 of query", "T and N1 of query");
      key_scale_shape();
    }
    outputs();
  }

  void outputs() {
    std::int64_t slots = 0;
    if (a.sparse_count < 1) return;  // refused by 8
    if (__builtin_mul_overflow(std::max<std::int64_t>(rows, 1), a.sparse_count, &slots) || slots > INT64_MAX / 8)
      c.fail(Status::invalid_shape, "sparse_indices", "", "has " + to_string(a.sparse_count) + " slots for each row",
             "at most 2^63-1 bytes");
    auto list = [&](DType dtype) {
      return folded ? shaped(dtype, {rows, 1, a.sparse_count}) : shaped(dtype, {batch, s1, 1, a.sparse_count});
    };
    if (fill_indices) a.indices = list(DType::i32);
    if (fill_values) *a.values = a.return_value ? list(a.query.dtype) : shaped(a.query.dtype, {0});
    const char* why = "query tokens, one key head, sparse_count";
    plain(c, a.indices, "sparse_indices");
    p.indices = each(a.indices, "sparse_indices", {1, a.sparse_count}, why, why);
    if (!a.values || !*a.values) return;
    plain(c, *a.values, "sparse_values");
    if (a.return_value) p.values = each(*a.values, "sparse_values", {1, a.sparse_count}, why, why);
    else if (a.values->elements() != 0)
      c.fail(Status::invalid_shape, "sparse_values", "",
             "has shape " + brackets({a.values->shape.data(), std::size_t(a.values->rank)}), "[0]",
             "return_value is false");
  }

  /// The key scale as pages, whatever its axes: the documented two, more of length 1, or everything in one.
  void key_scale_shape() {
    const Tensor& t = a.key_scale;
    const std::int64_t n = folded_keys ? s2 : pages * s2;
    const char* why = paged ? "block_num and block_size of key" : folded_keys ? "T of key" : "B and S2 of key";
    if (c.strict() || t.elements() != n) {
      if (folded_keys) c.shape(t, "key_dequant_scale", {s2, 1}, why);
      else c.shape(t, "key_dequant_scale", {pages, s2, 1}, why);
    }
    const bool documented = !folded_keys && t.rank >= 2 && t.shape[0] == pages && t.shape[1] == s2;
    if (!documented || t.elements() != n) {
      const Rows r = c.strict() ? Rows(t, 0) : c.rows(t, "key_dequant_scale", n, {1}, why);
      if (r.uniform_stride < 0)
        c.fail(Status::invalid_stride, "key_dequant_scale", "",
               "has strides " + brackets({t.stride.data(), std::size_t(t.rank)}), "evenly spaced elements");
      p.key_scales = {t.data, r.uniform_stride * s2, r.uniform_stride, s2};
    } else {
      p.key_scales = {t.data, t.stride[0], t.stride[1], s2};
    }
    if (folded_keys) p.key_scales.page_stride = 0;
  }

  void all_dtypes() {  // 4
    const bool q8 = a.quantised;
    if (q8) {
      for (auto [t, name] : {std::pair{&a.query, "query"}, {&a.key, "key"}})
        if (t->dtype == DType::f8_e4m3 || t->dtype == DType::f8_e5m2)
          c.fail(Status::unsupported, name, "", std::string("has dtype ") + name_of(t->dtype), "int8",
                 "float8 and hifloat8 operands exist on Atlas 950 only");
      c.dtype(a.query, "query", {DType::i8});
      c.dtype(a.key, "key", {DType::i8});
      c.dtype(a.weights, "weights", {DType::f16, DType::bf16, DType::f32});
      c.dtype(a.query_scale, "query_dequant_scale", {DType::f16, DType::f32});
      c.dtype(a.key_scale, "key_dequant_scale", {DType::f16, DType::f32});
      if (a.numerics == "device") {
        c.dtype(a.weights, "weights", {DType::f16}, "numerics is 'device'");
        c.dtype(a.query_scale, "query_dequant_scale", {DType::f16}, "numerics is 'device'");
        c.dtype(a.key_scale, "key_dequant_scale", {DType::f16}, "numerics is 'device'");
      }
    } else {
      c.dtype(a.query, "query", {DType::bf16, DType::f16});
      c.dtype(a.key, "key", {a.query.dtype}, "dtype of query");
      c.dtype(a.weights, "weights", {a.query.dtype, DType::f32}, "dtype of query, or float32");
    }
    BatchDoor::dtypes();
    if (a.indices) c.dtype(a.indices, "sparse_indices", {DType::i32});
    if (a.values && *a.values) c.dtype(*a.values, "sparse_values", {a.query.dtype}, "dtype of query");
    if (q8) {
      half(a.weights, "weights");
      half(a.query_scale, "query_dequant_scale");
      half(a.key_scale, "key_dequant_scale");
    }
  }

  void half(const Tensor& t, const char* name) const {
    if (c.strict() && t.dtype != DType::f16)
      c.chip(false, name, std::string("has dtype ") + name_of(t.dtype), "float16");
  }

  void chip(bool holds, const char* name, const char* what, std::int64_t got, const char* wanted) const {
    if (c.strict() && !holds) c.chip(false, name, what + to_string(got), wanted);
  }

  void widths_and_counts() {  // 5 to 9
    if (dims < 1) c.fail(Status::invalid_shape, "query", "", "has width 0", "at least 1");
    chip(dims == 128, "query", "has width ", dims, "128");
    if (a.quantised && dims > kMaxInnerI8)
      c.fail(Status::invalid_shape, "query", "", "has width " + to_string(dims), "at most " + to_string(kMaxInnerI8),
             "dots are int32");
    std::int64_t per_token = 0;
    if (__builtin_mul_overflow(heads, dims, &per_token) || per_token > INT32_MAX)
      c.fail(Status::invalid_shape, "query", "", "has " + to_string(heads) + " heads of " + to_string(dims),
             "at most 2147483647 elements of a token");
    if (heads < 1) c.fail(Status::invalid_shape, "query", "", "has no heads", "at least 1");
    if (a.quantised) chip(heads == 64, "query", "has heads: ", heads, "64");
    else chip(heads <= 64, "query", "has heads: ", heads, "at most 64");
    c.at_least(a.sparse_count, "sparse_count", 1);
    const std::int64_t k = a.sparse_count;
    if (a.quantised) chip(k <= 2048, "sparse_count", "is ", k, "at most 2048");
    else
      chip(k <= 2048 || (k <= 8192 && k % 1024 == 0), "sparse_count", "is ", k,
           "at most 2048 or a multiple of 1024 up to 8192");
  }

  void modes() {  // 10, 11
    mask(a.sparse_mode, a.pre_tokens, a.next_tokens);
    if (a.quantised) {
      quant_mode(a.query_quant_mode, "query_quant_mode");
      quant_mode(a.key_quant_mode, "key_quant_mode");
    }
    c.one_of(a.numerics, "numerics", {"fp32", a.quantised ? "device" : "fast"});
    block_size();
  }

  void quant_mode(std::int64_t value, const char* name) const {
    if (value != 0)
      c.fail(Status::invalid_argument, name, "", "is " + to_string(value), "0", "per token and head, the only mode");
  }

  void lengths_and_pages() {  // 12, 13
    p.sequences = sequences(a.sparse_mode);
    p.sequences.shard = shard;
    if (folded_keys && batch > 0) p.rows_behind_keys = behind(p.sequences.key, s2);
    if (folded && batch > 0 && !c.strict()) p.rows_behind_queries = behind(p.sequences.query, rows);
    if (p.rows_behind_keys && c.strict())
      c.fail(Status::invalid_seqlen, "actual_seq_lengths_key", subscript({batch - 1}),
             "is " + to_string(p.sequences.key.data[batch - 1]), to_string(s2),
             "lengths in TND are running totals; the last must be the number of rows, " + to_string(s2));
    if (!paged) return;
    for (std::int64_t b = 0; b < batch; ++b) {
      const std::int64_t keys = p.sequences.at(b).keys, used = pages_for(keys, s2);
      const std::int32_t* row = static_cast<const std::int32_t*>(a.block_table.data) + b * a.block_table.stride[0];
      for (std::int64_t i = 0; i < used; ++i)
        if (row[i] < 0 || row[i] >= pages) bad_page(b, i, keys);
    }
  }

  /// `rows` if the last running total does not reach them, else 0.
  std::int64_t behind(const Lengths& lengths, std::int64_t rows) const {
    return lengths.data[batch - 1] < rows ? rows : 0;
  }

  void chip_calls() {  // 14, 15
    if (!c.strict()) return;
    c.chip(!(a.return_value && paged), "return_value", "is true", "false with layout_key PA_BSND");
    for (auto [t, name] : {std::pair{&a.query, "query"}, {&a.key, "key"}})
      if (t->elements() == 0) c.chip(false, name, "has no elements", "at least one");
    if (batch == 0) c.chip(false, "actual_seq_lengths_query", "has no entries", "at least one");
  }

  void memory() {  // 16
    if (fill_indices) all.forget("sparse_indices");
    if (fill_values || !has_values()) all.forget("sparse_values");
    check_memory(c, all, paged ? Caches::free_first_axis : Caches::contiguous);
    check_separate(c, all);
  }

  void resolve() {
    const Tensor &q = a.query, &k = a.key;
    p.heads = heads, p.dims = dims, p.count = a.sparse_count, p.type = q.dtype;
    p.query = Rows(q, 2), p.head_stride = q.stride[q.rank - 2];
    p.keys = {k.data, folded_keys ? 0 : k.stride[0], k.stride[folded_keys ? 0 : 1], s2};
    p.key_scale = a.key_scale;
    if (paged) {
      p.keys.table = p.key_scales.table = static_cast<const std::int32_t*>(a.block_table.data);
      p.keys.table_stride = p.key_scales.table_stride = a.block_table.stride[0];
    }
    p.other_numerics = a.numerics != "fp32";
  }
};

}  // namespace

Problem check(const Check& c, const Tensors& inputs, const Tensors& all, const Arguments& a) {
  Door door{{.c = c,
             .layout_query = a.layout_query,
             .layout_key = a.layout_key,
             .lengths_query = a.lengths_query,
             .lengths_key = a.lengths_key,
             .block_table = a.block_table,
             .layout_key_name = "layout_key",
             .lengths_key_name = "actual_seq_lengths_key",
             .shard = a.shard},
            inputs,
            all,
            a};
  door.presence_and_layouts();
  door.all_shapes();
  door.all_dtypes();
  door.widths_and_counts();
  door.modes();
  door.lengths_and_pages();
  door.chip_calls();
  door.memory();
  door.resolve();
  if (a.check_values) check_numbers(c, a, door.p);
  return door.p;
}

}  // namespace dsakit::indexer
