// SPDX-License-Identifier: Apache-2.0
#include <limits>
#include <string>

#include "ops/indexer/problem.hpp"
#include "ops/weight.hpp"

namespace dsakit::indexer {
namespace {

using std::to_string;

std::int64_t pages_for(std::int64_t keys, std::int64_t page) { return (keys + page - 1) / page; }

/// Stride of the axis along which a row of `t` extends; the others have length 1.
Grid grid(const Rows& rows) {
  const Tensor& t = rows.tensor;
  Grid g{rows};
  for (int a = t.rank - rows.row_axes; a < t.rank; ++a)
    if (t.shape[a] != 1) g.step = t.stride[a];
  return g;
}

/// One call at the door; its questions carry the numbers of the documented table.
struct Door {
  const Check& c;
  const Arguments& a;
  const bool folded = a.layout_query == "TND", folded_keys = a.layout_key == "TND", paged = a.layout_key == "PA_BSND";
  const bool fill_indices = a.infer && !a.indices, fill_values = a.infer && a.values && !*a.values;
  std::int64_t batch = 0, s1 = 0, rows = 0, heads = 0, dims = 0;  // s1: query rows of a sequence, TND: of all
  std::int64_t pages = 0, s2 = 0;                                 // s2: keys of a sequence, a page, or (TND) of all
  Problem p{};

  bool has_values() const { return a.values && a.return_value; }

  void presence_and_layouts() {  // 1, 2
    c.required(a.query, "query");
    c.required(a.key, "key");
    c.required(a.weights, "weights");
    if (a.quantised) {
      c.required(a.query_scale, "query_dequant_scale");
      c.required(a.key_scale, "key_dequant_scale");
    }
    if (!a.infer) {
      c.required(a.indices, "sparse_indices");
      if (has_values()) c.required(*a.values, "sparse_values");
    }
    c.one_of(a.layout_query, "layout_query", {"BSND", "TND"});
    c.one_of(a.layout_key, "layout_key", {"BSND", "TND", "PA_BSND"});
    if (!paged && a.layout_key != a.layout_query)
      c.fail(Status::invalid_argument, "layout_key", "", "is '" + std::string(a.layout_key) + "'",
             std::string(a.layout_query) + " or PA_BSND", "layout_query is " + std::string(a.layout_query));
    if (paged) required(a.block_table, "block_table", "layout_key is PA_BSND");
    else c.absent(a.block_table, "block_table", "layout_key is not PA_BSND");
    if (folded) required(a.lengths_query, "actual_seq_lengths_query", "layout_query is TND");
    if (folded_keys) required(a.lengths_key, "actual_seq_lengths_key", "layout_key is TND");
    if (paged) required(a.lengths_key, "actual_seq_lengths_key", "layout_key is PA_BSND");
  }

  void required(const Tensor& t, const char* name, const char* why) const {
    if (!t) c.fail(Status::invalid_argument, name, "", "is missing", "a tensor", why);
  }

  void plain(const Tensor& t, const char* name) const {
    c.sizes(t, name);
    if (t.format != Format::ND) c.fail(Status::invalid_argument, name, "", "is a packed weight", "a strided tensor");
  }

  /// One row of `width` per query token; `folded` is the shape with the tokens as one axis.
  Grid per_token(const Tensor& t, const char* name, std::initializer_list<std::int64_t> width, const char* why,
                 const char* why_folded) const {
    if (!folded) {
      std::int64_t shape[8] = {batch, s1};
      std::copy(width.begin(), width.end(), shape + 2);
      const int rank = 2 + int(width.size());
      const bool exact = t.rank == rank && std::equal(shape, shape + rank, t.shape.begin());
      if (exact) return grid(Rows(t, int(width.size())));
      if (c.strict())
        c.fail(Status::invalid_shape, name, "", "has shape " + brackets({t.shape.data(), std::size_t(t.rank)}),
               brackets({shape, std::size_t(rank)}), why);
    }
    return grid(c.rows(t, name, rows, width, folded ? why_folded : why));
  }

  void shapes() {  // 3
    const Tensor* inputs[] = {&a.query,     &a.key,           &a.weights,     &a.query_scale,
                              &a.key_scale, &a.lengths_query, &a.lengths_key, &a.block_table};
    const char* names[] = {"query",
                           "key",
                           "weights",
                           "query_dequant_scale",
                           "key_dequant_scale",
                           "actual_seq_lengths_query",
                           "actual_seq_lengths_key",
                           "block_table"};
    for (int i = 0; i < 8; ++i)
      if (*inputs[i]) plain(*inputs[i], names[i]);

    const Tensor &q = a.query, &k = a.key;
    c.rank(q, "query", folded ? 3 : 4, folded ? "T, N1, D" : "B, S1, N1, D");
    heads = q.shape[q.rank - 2], dims = q.shape[q.rank - 1];
    s1 = q.shape[folded ? 0 : 1], rows = folded ? s1 : q.shape[0] * s1;
    if (a.lengths_query) c.rank(a.lengths_query, "actual_seq_lengths_query", 1, "one per sequence");
    if (a.lengths_key) c.rank(a.lengths_key, "actual_seq_lengths_key", 1, "one per sequence");
    batch = folded ? a.lengths_query.shape[0] : q.shape[0];

    c.rank(k, "key", folded_keys ? 3 : 4,
           paged         ? "block_num, block_size, 1, D"
           : folded_keys ? "T, 1, D"
                         : "B, S2, 1, D");
    pages = k.shape[0], s2 = k.shape[folded_keys ? 0 : 1];
    if (folded_keys) c.shape(k, "key", {s2, 1, dims}, "T of key, one key head, D of query");
    else
      c.shape(k, "key", {paged ? pages : batch, s2, 1, dims},
              paged ? "block_num, block_size, one key head, D of query" : "B of query, S2, one key head, D of query");
    if (!paged && !a.lengths_key && s2 > std::numeric_limits<std::int32_t>::max())
      c.fail(Status::invalid_shape, "key", "", "has " + to_string(s2) + " positions", "at most 2147483647");

    p.weights = per_token(a.weights, "weights", {heads}, "B, S1 and N1 of query", "T and N1 of query");
    if (a.quantised) {
      p.query_scale =
          per_token(a.query_scale, "query_dequant_scale", {heads}, "B, S1 and N1 of query", "T and N1 of query");
      key_scale_shape();
    }
    if (paged) {
      c.rank(a.block_table, "block_table", 2, "B, pages of a sequence");
      // Lengths that disagree about B are their own mistake, reported below.
      if (!folded || a.lengths_key.shape[0] == batch)
        c.shape(a.block_table, "block_table", {batch, a.block_table.shape[1]}, "B sequences");
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
    plain(a.indices, "sparse_indices");
    p.indices = per_token(a.indices, "sparse_indices", {1, a.sparse_count}, why, why);
    if (!a.values || !*a.values) return;
    plain(*a.values, "sparse_values");
    if (a.return_value) p.values = per_token(*a.values, "sparse_values", {1, a.sparse_count}, why, why);
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
    if (c.strict()) {
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

  void dtypes() {  // 4
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
    if (a.lengths_query) c.dtype(a.lengths_query, "actual_seq_lengths_query", {DType::i32});
    if (a.lengths_key) c.dtype(a.lengths_key, "actual_seq_lengths_key", {DType::i32});
    if (paged) c.dtype(a.block_table, "block_table", {DType::i32});
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
    chip(heads <= 64, "query", "has heads: ", heads, "at most 64");
    if (heads < 1) c.fail(Status::invalid_shape, "query", "", "has no heads", "at least 1");
    c.at_least(a.sparse_count, "sparse_count", 1);
    const std::int64_t k = a.sparse_count;
    if (a.quantised) chip(k <= 2048, "sparse_count", "is ", k, "at most 2048");
    else
      chip(k <= 2048 || (k <= 8192 && k % 1024 == 0), "sparse_count", "is ", k,
           "at most 2048 or a multiple of 1024 up to 8192");
  }

  void modes() {  // 10, 11
    if (a.sparse_mode != 0 && a.sparse_mode != 3)
      c.fail(Status::invalid_argument, "sparse_mode", "", "is " + to_string(a.sparse_mode), "0 or 3");
    window(a.pre_tokens, "pre_tokens");
    window(a.next_tokens, "next_tokens");
    if (a.quantised) {
      quant_mode(a.query_quant_mode, "query_quant_mode");
      quant_mode(a.key_quant_mode, "key_quant_mode");
    }
    c.one_of(a.numerics, "numerics", {"fp32", a.quantised ? "device" : "fast"});
    if (!paged) return;
    if (s2 < 1) c.fail(Status::invalid_shape, "key", "", "has block_size 0", "at least 1");
    chip(s2 % 16 == 0 && s2 <= 1024, "key", "has block_size ", s2, "a multiple of 16 up to 1024");
  }

  void window(std::int64_t value, const char* name) const {
    if (value != kAllTokens)
      c.fail(Status::invalid_argument, name, "", "is " + to_string(value), to_string(kAllTokens));
  }
  void quant_mode(std::int64_t value, const char* name) const {
    if (value != 0)
      c.fail(Status::invalid_argument, name, "", "is " + to_string(value), "0", "per token and head, the only mode");
  }

  /// Reads one length vector: `limit` bounds a count, or the last running total.
  Lengths lengths(const Tensor& t, const char* name, bool totals, std::int64_t whole, std::int64_t limit,
                  const char* limit_is) const {
    if (!t) return {nullptr, false, whole};
    if (t.shape[0] != batch)
      c.fail(Status::invalid_seqlen, name, "", "has " + to_string(t.shape[0]) + " entries", to_string(batch),
             folded ? "entries of actual_seq_lengths_query" : "B of query");
    c.readable(t, name);
    const auto* v = static_cast<const std::int32_t*>(t.data);
    for (std::int64_t b = 0, low = 0; b < batch; ++b) {
      if (v[b] >= low && v[b] <= limit) {
        if (totals) low = v[b];
        continue;
      }
      const bool decreases = totals && v[b] >= 0 && v[b] < low;
      c.fail(Status::invalid_seqlen, name, subscript({b}), "is " + to_string(v[b]),
             decreases ? "at least " + to_string(low) : "0.." + to_string(limit),
             decreases ? "running totals must not decrease" : limit_is);
    }
    return {v, totals, whole};
  }

  void lengths_and_pages() {  // 12, 13
    Sequences& s = p.sequences;
    s.batch = batch, s.total_rows = rows, s.causal = a.sparse_mode == 3;
    s.query =
        lengths(a.lengths_query, "actual_seq_lengths_query", folded, s1, s1, folded ? "T of query" : "S1 of query");
    if (!paged) {
      s.key =
          lengths(a.lengths_key, "actual_seq_lengths_key", folded_keys, s2, s2, folded_keys ? "T of key" : "S2 of key");
      return;
    }
    const std::int64_t columns = a.block_table.shape[1];
    std::int64_t limit = 0;
    if (__builtin_mul_overflow(columns, s2, &limit)) limit = INT64_MAX;
    s.key = lengths(a.lengths_key, "actual_seq_lengths_key", false, 0, limit,
                    "columns of block_table times block_size of key");
    c.readable(a.block_table, "block_table");
    const auto table = view<const std::int32_t, 2>(a.block_table);
    for (std::int64_t b = 0; b < batch; ++b) {
      const std::int64_t used = pages_for(s.key.count(b), s2);
      const std::int32_t* row = table.data + b * table.stride[0];
      for (std::int64_t i = 0; i < used; ++i)
        if (row[i] < 0 || row[i] >= pages)
          c.fail(Status::invalid_block, "block_table", subscript({b, i}), "is " + to_string(row[i]),
                 pages > 0 ? "0.." + to_string(pages - 1) : "no page in use",
                 "pages of key; sequence " + to_string(b) + ", positions " + to_string(i * s2) + ".." +
                     to_string(std::min((i + 1) * s2, s.key.count(b)) - 1));
    }
  }

  void chip_calls() {  // 14, 15
    if (!c.strict()) return;
    c.chip(!(a.return_value && paged), "return_value", "is true", "false with layout_key PA_BSND");
    for (auto [t, name] : {std::pair{&a.query, "query"}, {&a.key, "key"}})
      if (t->elements() == 0) c.chip(false, name, "has no elements", "at least one");
  }

  void memory() {  // 16
    c.readable(a.query, "query");
    c.readable(a.key, "key", paged);
    c.readable(a.weights, "weights");
    if (a.quantised) {
      c.readable(a.query_scale, "query_dequant_scale");
      c.readable(a.key_scale, "key_dequant_scale", paged);
    }
    if (!fill_indices) separate(a.indices, "sparse_indices");
    if (has_values() && !fill_values) {
      separate(*a.values, "sparse_values");
      if (!fill_indices) c.no_overlap(a.indices, "sparse_indices", *a.values, "sparse_values");
    }
  }

  void separate(const Tensor& out, const char* name) const {
    c.writable(out, name);
    c.no_overlap(out, name, a.query, "query");
    c.no_overlap(out, name, a.key, "key");
    c.no_overlap(out, name, a.weights, "weights");
    c.no_overlap(out, name, a.query_scale, "query_dequant_scale");
    c.no_overlap(out, name, a.key_scale, "key_dequant_scale");
    c.no_overlap(out, name, a.lengths_query, "actual_seq_lengths_query");
    c.no_overlap(out, name, a.lengths_key, "actual_seq_lengths_key");
    c.no_overlap(out, name, a.block_table, "block_table");
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

Problem check(const Check& c, const Arguments& a) {
  Door door{c, a};
  door.presence_and_layouts();
  door.shapes();
  door.dtypes();
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
