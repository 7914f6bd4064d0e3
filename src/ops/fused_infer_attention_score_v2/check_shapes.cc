// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>
#include <tuple>
#include <utility>

#include "ops/fused_infer_attention_score_v2/door.hpp"

namespace dsakit::fused_infer_attention_score_v2_op {
namespace {

using std::to_string;

constexpr std::int64_t kWidest = 1 << 24;  // of a head, so that a row fits the kernels' counts

/// Sizes of a tensor of keys, contiguous or in pages.
struct KeyShape {
  std::int64_t batch = 0, rows = 0, heads = 0, width = 0, columns = 0;  // columns: of the last axis that hold a head
};

KeyShape key_shape(const Tensor& t, const Sizes& s, std::int64_t codes) {
  const auto& d = t.shape;
  if (!s.paged) {
    const Heads h(t, s.layout->in, s.kv_heads);
    return {h.batch, h.rows, h.heads, h.width * codes};
  }
  if (t.rank == 3) return {d[0], d[1], s.kv_heads, d[2] / s.kv_heads * codes};
  if (t.rank == 4) return {d[0], d[2], d[1], d[3] * codes};
  return {d[0], d[3], d[1], d[2] * d[4]};
}

/// Whether the heads share the last axis with the width.
bool merged_heads(const Tensor& t, const Sizes& s) { return s.paged ? t.rank == 3 : s.layout->in == Axes::BSH; }

/// `x` is `like` but for its width.
bool same_but_width(const Tensor& x, const Tensor& like) {
  if (x.rank != like.rank) return false;
  const int width_axis = x.rank == 5 ? 2 : x.rank - 1;
  for (int axis = 0; axis < x.rank; ++axis)
    if (axis != width_axis && !(x.rank == 5 && axis == 4) && x.shape[axis] != like.shape[axis]) return false;
  return true;
}

void nz_columns(const Door& d, const Tensor& t, const char* name) {
  const int wanted = 32 / std::max(size_of(t.dtype), 1);
  if (t.shape[4] != wanted)
    d.wrong_shape(t, name, "last axis " + to_string(wanted), std::string("32 bytes of ") + name_of(t.dtype));
}

}  // namespace

void Door::shapes() {
  // S-1, and shapes at all
  const Tensors inputs = Tensors::inputs<Outs>(a);
  check_given(c, inputs);
  check_countable(c, inputs);
  layout_and_ranks();
  heads();
  keys_and_values();
  widths();
  dtypes();
  if (s.rope) rope();
  s.mode = a.sparse_mode;
  const Axes in = s.layout->in;
  s.decode =
      (in == Axes::BSH || in == Axes::BSND || in == Axes::BNSD) && s.s1 == 1 && !s.rope && s.width == s.out_width;
}

/// S-2..S-4
void Door::layout_and_ranks() {
  for (const Layout& layout : kLayouts)
    if (layout.name == a.input_layout) s.layout = &layout;
  if (!s.layout)
    c.one_of(a.input_layout, "input_layout",
             {"BSH", "BSND", "BNSD", "BNSD_BSND", "BSH_NBSD", "BSND_NBSD", "BNSD_NBSD", "TND", "TND_NTD", "NTD_TND",
              "NTD", "BSH_BNSD", "BSND_BNSD", "NSD"});
  limit(
      !s.layout->portable_only, "input_layout", [&] { return "is '" + std::string(a.input_layout) + "'"; },
      "a layout of the device");
  const Axes in = s.layout->in;
  s.folded = in == Axes::TND || in == Axes::NTD;
  s.paged = bool(a.block_table);
  s.rope = a.query_rope && a.key_rope;

  const Tensor &q = a.query, &k = a.key, &v = a.value;
  if (q.rank != rank_of(in))
    wrong_shape(q, "query", "rank " + to_string(rank_of(in)), "input_layout '" + std::string(s.layout->name) + "'");
  if (s.paged && (k.rank < 3 || k.rank > 5)) wrong_shape(k, "key", "rank 3, 4 or 5", "pages");
  if (!s.paged && k.rank != q.rank) wrong_shape(k, "key", "rank " + to_string(q.rank), "rank of query");
  if (v.rank != k.rank) wrong_shape(v, "value", "rank " + to_string(k.rank), "rank of key");
}

/// S-5..S-7
void Door::heads() {
  const Axes in = s.layout->in;
  const Tensor &q = a.query, &k = a.key, &v = a.value;
  const auto bad_heads = [&](const char* name, std::int64_t value, std::string wanted, const char* why) {
    c.fail(Status::invalid_shape, name, "", "is " + to_string(value), std::move(wanted), why);
  };
  s.heads = a.num_query_heads;
  if (s.heads <= 0) bad_heads("num_query_heads", s.heads, "at least 1", "");
  const Heads query(q, in, s.heads);
  if (in == Axes::BSH && q.shape[2] % s.heads != 0)
    bad_heads("num_query_heads", s.heads, "a divisor of " + to_string(q.shape[2]), "last axis of query");
  if (query.heads != s.heads) bad_heads("num_query_heads", s.heads, to_string(query.heads), "N of query");
  if (a.num_key_value_heads < 0) bad_heads("num_key_value_heads", a.num_key_value_heads, "at least 0", "");
  s.kv_heads = a.num_key_value_heads ? a.num_key_value_heads : s.heads;
  s.int4 = k.dtype == DType::i32;
  for (const auto& [t, name, of] : {std::tuple{&k, "key", "last axis of key"}, {&v, "value", "last axis of value"}}) {
    const std::int64_t last = t->shape[t->rank - 1];
    if (merged_heads(*t, s) && last % s.kv_heads != 0)
      bad_heads("num_key_value_heads", s.kv_heads, "a divisor of " + to_string(last), of);
    if (const std::int64_t n = key_shape(*t, s, 1).heads; n != s.kv_heads)
      bad_heads("num_key_value_heads", s.kv_heads, to_string(n), name[0] == 'k' ? "N of key" : "N of value");
  }
  if (s.heads % s.kv_heads != 0)
    bad_heads("num_key_value_heads", s.kv_heads, "a divisor of " + to_string(s.heads), "num_query_heads");
}

/// S-10
void Door::keys_and_values() const {
  const Tensor &q = a.query, &k = a.key, &v = a.value;
  if (!same_but_width(v, k))
    wrong_shape(v, "value", brackets({k.shape.data(), std::size_t(k.rank)}) + " but for its width", "shape of key");
  if (v.dtype != k.dtype) c.dtype(v, "value", {k.dtype}, "dtype of key");
  if (k.rank == 5) nz_columns(*this, k, "key"), nz_columns(*this, v, "value");
  if (k.rank == 5 && s.int4)
    c.fail(Status::unsupported, "key", "", "has dtype int32 in pages of rank 5", "int4 in pages of rank 3 or 4",
           "the column block of int4 pages is not defined");
  for (const auto& [t, name] : {std::pair{&q, "query"}, {&k, "key"}, {&v, "value"}, {&a.key_rope, "key_rope"}})
    if (*t && t->rank > 0 && (t->shape[t->rank - 1] > kWidest || (t->rank == 5 && t->shape[2] > kWidest)))
      wrong_shape(*t, name, "rows of at most 16777216");
}

/// S-9, S-11
void Door::widths() {
  const Axes in = s.layout->in;
  const Tensor &k = a.key, &v = a.value;
  const Heads query(a.query, in, s.heads);
  const std::int64_t codes = s.int4 ? 8 : 1;
  const KeyShape key = key_shape(k, s, codes), value = key_shape(v, s, codes);
  s.width = query.width, s.value_width = value.width;
  if (key.width != s.width) wrong_shape(k, "key", "heads of width " + to_string(s.width), "D of query");
  s.batch = query.batch, s.s1 = query.rows;
  if (in == Axes::NSD) s.batch = 1;
  if (!s.paged && key.batch != query.batch) wrong_shape(k, "key", "B " + to_string(query.batch), "B of query");
  if (s.paged) s.pages = key.batch, s.page_rows = key.rows;
  else s.s2 = key.rows;
  if (s.value_width == 0 && k.elements() != 0) wrong_shape(v, "value", "columns", "key has some");
  s.out_width = s.value_width == 0 ? s.width : s.value_width;
  std::int64_t out = 1;
  bool overflow = false;
  for (std::int64_t n : {query.batch, s.s1, s.heads, std::max<std::int64_t>(s.out_width, 1), std::int64_t{4}})
    overflow |= __builtin_mul_overflow(out, n, &out);
  if (overflow) wrong_shape(v, "value", "an attention_out of at most 2^63-1 bytes");
}

/// S-12..S-14
void Door::dtypes() {
  const Tensor &q = a.query, &k = a.key;
  c.dtype(q, "query", {DType::f16, DType::bf16, DType::f32, DType::i8});
  s.full = q.dtype == DType::i8;
  if (s.full) c.dtype(k, "key", {DType::i8}, "query is int8");
  else c.dtype(k, "key", {q.dtype, DType::i8, DType::i32}, "dtype of query, or quantised");
  s.quantised = !s.full && k.dtype != q.dtype;

  for (const auto& [t, other, name] :
       {std::tuple{&a.query_rope, &a.key_rope, "query_rope"}, {&a.key_rope, &a.query_rope, "key_rope"}}) {
    if (s.full && !*t) c.fail(Status::invalid_argument, name, "", "is missing", "a tensor", "query is int8");
    if (*other && !*t)
      c.fail(Status::invalid_argument, name, "", "is missing", "a tensor", "the other rope tensor is given");
  }
}

/// S-15
void Door::rope() {
  const Axes in = s.layout->in;
  const Tensor &q = a.query, &k = a.key;
  const Tensor &qr = a.query_rope, &kr = a.key_rope;
  if (!same_but_width(qr, q))
    wrong_shape(qr, "query_rope", brackets({q.shape.data(), std::size_t(q.rank)}) + " but for its width",
                "shape of query");
  if (!same_but_width(kr, k))
    wrong_shape(kr, "key_rope", brackets({k.shape.data(), std::size_t(k.rank)}) + " but for its width", "shape of key");
  const DType wanted = s.full ? DType::bf16 : q.dtype;
  const char* why = s.full ? "query is int8" : "dtype of query";
  if (in == Axes::BSH && qr.shape[2] % s.heads != 0)
    wrong_shape(qr, "query_rope", "a multiple of " + to_string(s.heads) + " columns", "num_query_heads");
  if (merged_heads(kr, s) && kr.shape[2] % s.kv_heads != 0)
    wrong_shape(kr, "key_rope", "a multiple of " + to_string(s.kv_heads) + " columns", "num_key_value_heads");
  s.rope_width = Heads(qr, in, s.heads).width;
  if (s.rope_width > kWidest) wrong_shape(qr, "query_rope", "rows of at most 16777216");
  c.dtype(qr, "query_rope", {wanted}, why);
  c.dtype(kr, "key_rope", {wanted}, why);
  if (kr.rank == 5) nz_columns(*this, kr, "key_rope");
  if (key_shape(kr, s, 1).width != s.rope_width)
    wrong_shape(kr, "key_rope", "heads of width " + to_string(s.rope_width), "query_rope");
}

}  // namespace dsakit::fused_infer_attention_score_v2_op
