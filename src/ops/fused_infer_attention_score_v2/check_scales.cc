// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <initializer_list>
#include <string>
#include <tuple>
#include <utility>

#include "core/view.hpp"
#include "ops/fused_infer_attention_score_v2/door.hpp"

namespace dsakit::fused_infer_attention_score_v2_op {
namespace {

using std::to_string;

bool is_shape(const Tensor& t, std::initializer_list<std::int64_t> wanted) {
  return t.rank == int(wanted.size()) && std::equal(wanted.begin(), wanted.end(), t.shape.begin());
}

/// S-52: a scale of mode `mode` for heads of width `width`, the documented shapes and nothing else.
void scale_shape(const Door& d, const Tensor& t, const char* name, std::int64_t mode, std::int64_t width) {
  const Sizes& s = d.s;
  const std::int64_t n = s.kv_heads, all = n * width, b = s.batch, w = s.key_columns;
  const auto columns = [&](int axis) { return t.rank == axis + 1 && t.shape[axis] >= w; };
  switch (mode) {
    case 0:
      if (is_shape(t, {1}) || is_shape(t, {1, n, 1, width}) || is_shape(t, {1, 1, n, width}) ||
          is_shape(t, {1, n, width}) || is_shape(t, {n, 1, width}) || is_shape(t, {n, width}) ||
          is_shape(t, {1, all}) || is_shape(t, {all}))
        return;
      d.wrong_shape(t, name, brackets(std::initializer_list<std::int64_t>{n, width}),
                    "a scale per channel: N and D, with axes of 1 or as one axis; or [1]");
    case 1:
      if ((columns(1) && t.shape[0] == b) || (columns(2) && t.shape[0] == 1 && t.shape[1] == b)) return;
      d.wrong_shape(t, name, "[" + to_string(b) + ", >= " + to_string(w) + "]", "a scale per token: B, key positions");
    case 2:
      if (is_shape(t, {n})) return;
      d.wrong_shape(t, name, "[" + to_string(n) + "]", "a scale per head");
    case 3:
      if (columns(2) && t.shape[0] == b && t.shape[1] == n) return;
      d.wrong_shape(t, name, "[" + to_string(b) + ", " + to_string(n) + ", >= " + to_string(w) + "]",
                    "a scale per token and head: B, N, key positions");
    case 4:
      if (is_shape(t, {s.pages, s.page_rows})) return;
      d.wrong_shape(t, name, brackets(std::initializer_list<std::int64_t>{s.pages, s.page_rows}),
                    "a scale per token: pages of key");
    default:
      if (is_shape(t, {s.pages, n, s.page_rows})) return;
      d.wrong_shape(t, name, brackets(std::initializer_list<std::int64_t>{s.pages, n, s.page_rows}),
                    "a scale per token and head: pages of key");
  }
}

/// A number for each row and head, rows evenly spaced, folded or not, with or without axes of 1.
bool rows_of_heads(const Tensor& t, std::int64_t rows, std::int64_t heads) {
  if (t.elements() != rows * heads) return false;
  int axis = t.rank;
  while (heads != 1 && axis > 0 && t.shape[axis - 1] == 1) --axis;
  if (heads != 1 && (axis == 0 || t.shape[--axis] != heads)) return false;
  return Rows(t, t.rank - axis).uniform_stride >= 0;
}

}  // namespace

void Door::scales() const {
  static constexpr const char* kReserved[] = {"per token group", "fp8 per block", "per channel group"};
  for (const auto& [mode, name] :
       {std::pair{a.key_quant_mode, "key_quant_mode"}, {a.value_quant_mode, "value_quant_mode"}})
    if (mode >= 6 && mode <= 8)
      c.fail(Status::unsupported, name, "", "is " + to_string(mode) + " (" + kReserved[mode - 6] + ")", "0..5",
             "reserved: newer chips have it");
  if (s.full) fully_quantised();
  else dequantisation();
  quantised_output();
}

void Door::dequantisation() const {
  const Tensor &ks = a.dequant_scale_key, &ko = a.dequant_offset_key, &vs = a.dequant_scale_value,
               &vo = a.dequant_offset_value;
  const auto mode_in_vain = [&](const char* name, std::int64_t mode, const char* why) {
    if (mode != 0) c.fail(Status::invalid_argument, name, "", "is " + to_string(mode), "0", why);
  };
  // S-49, S-50, S-62
  if (s.quantised) {
    for (const auto& [t, name] : {std::pair{&ks, "dequant_scale_key"}, {&vs, "dequant_scale_value"}})
      if (!*t) c.fail(Status::invalid_argument, name, "", "is missing", "a tensor", "key and value are quantised");
    for (const auto& [t, other, name] :
         {std::tuple{&ko, &vo, "dequant_offset_key"}, {&vo, &ko, "dequant_offset_value"}})
      if (!*t && *other)
        c.fail(Status::invalid_argument, name, "", "is missing", "a tensor", "the other offset is given");
  } else {
    const char* why = "key and value are not quantised";
    for (const auto& [t, name] : {std::pair{&ks, "dequant_scale_key"},
                                  {&ko, "dequant_offset_key"},
                                  {&vs, "dequant_scale_value"},
                                  {&vo, "dequant_offset_value"}})
      if (*t) c.fail(Status::invalid_argument, name, "", "is given", "absent", why);
    mode_in_vain("key_quant_mode", a.key_quant_mode, why);
    mode_in_vain("value_quant_mode", a.value_quant_mode, why);
  }
  mode_in_vain("query_quant_mode", a.query_quant_mode, "query is not quantised");
  if (a.dequant_scale_query)  // S-56
    c.fail(Status::invalid_argument, "dequant_scale_query", "", "is given", "absent", "query is not int8");
  if (!s.quantised) return;

  // S-51, S-53, S-54
  const std::int64_t km = a.key_quant_mode, vm = a.value_quant_mode;
  for (const auto& [mode, name] : {std::pair{km, "key_quant_mode"}, {vm, "value_quant_mode"}})
    if (mode < 0 || mode > 5) c.fail(Status::invalid_argument, name, "", "is " + to_string(mode), "0..5");
  if (km != vm && !(km == 0 && vm == 1))
    c.fail(Status::invalid_argument, "value_quant_mode", "", "is " + to_string(vm), km == 0 ? "0 or 1" : to_string(km),
           "key_quant_mode is " + to_string(km));
  if (km >= 4 && !s.paged)
    c.fail(Status::invalid_argument, "block_table", "", "is missing", "a tensor",
           "key_quant_mode " + to_string(km) + " is by page");
  dequantisation_on_chip();

  // S-52, S-55
  for (const auto& [t, o, name, offset_name, mode, width] :
       {std::tuple{&ks, &ko, "dequant_scale_key", "dequant_offset_key", km, s.width},
        {&vs, &vo, "dequant_scale_value", "dequant_offset_value", vm, s.value_width}}) {
    scale_shape(*this, *t, name, mode, width);
    c.dtype(*t, name, {DType::f32, DType::f16, DType::bf16});
    const DType wanted = mode == 0 || mode == 2 ? a.query.dtype : DType::f32;
    limit(
        t->dtype == wanted, Status::invalid_dtype, name,
        [t = t] { return std::string("has dtype ") + name_of(t->dtype); },
        mode == 0 || mode == 2 ? "the dtype of query" : "float32");
    if (!*o) continue;
    if (o->rank != t->rank || !std::equal(o->shape.begin(), o->shape.begin() + o->rank, t->shape.begin()))
      wrong_shape(*o, offset_name, brackets({t->shape.data(), std::size_t(t->rank)}), "shape of its scale");
    c.dtype(*o, offset_name, {t->dtype}, "dtype of its scale");
  }
  const int axes = km == 0 ? ks.rank - 1 : ks.rank;                          // D and Dv may differ
  const bool channels = s.kv_heads * std::min(s.width, s.value_width) != 1;  // else [1] may also be per channel
  if (km == vm && (ks.rank != vs.rank || (channels && is_shape(ks, {1}) != is_shape(vs, {1})) ||
                   !std::equal(ks.shape.begin(), ks.shape.begin() + axes, vs.shape.begin())))
    wrong_shape(vs, "dequant_scale_value", "the shape of dequant_scale_key",
                brackets({ks.shape.data(), std::size_t(ks.rank)}));
}

void Door::dequantisation_on_chip() const {
  if (!c.strict()) return;
  const std::int64_t km = a.key_quant_mode, vm = a.value_quant_mode;
  const bool several = s.s1 != 1 || s.folded, per_tensor = km == 0 && a.dequant_scale_key.elements() == 1;
  const bool bf16 = a.query.dtype == DType::bf16;
  const auto mode_is = is(km);
  if (s.int4) limit(!per_tensor && (km == 1 || km == 3 || km == 0), "key_quant_mode", mode_is, "0, 1 or 3 with int4");
  else
    limit(vm == km || a.query.dtype == DType::f16, "value_quant_mode", is(vm), "that of key unless query is float16");
  const auto dtype_is = [&] { return std::string("has dtype ") + name_of(a.query.dtype); };
  const auto rows_are = [&] { return "has rows: " + to_string(s.longest_query); };
  if (nz()) {
    limit(bf16, "query", dtype_is, "bfloat16 with int8 pages of rank 5");
    limit(
        s.width == 128, "query", [&] { return "has width " + to_string(s.width); }, "128 with int8 pages of rank 5");
    limit(km == 0 && vm == 0, "key_quant_mode", mode_is, "0 with int8 pages of rank 5");
    limit(
        !a.dequant_offset_key, "dequant_offset_key", [] { return std::string("is given"); },
        "absent with int8 pages of rank 5");
    limit(!s.folded && s.s1 >= 1 && s.s1 <= 16, "query", rows_are, "1..16 with int8 pages of rank 5");
    limit(
        s.layout->in == s.layout->out, "input_layout", [&] { return "is '" + std::string(s.layout->name) + "'"; },
        "BSH, BSND or BNSD with int8 pages of rank 5");
    limit((s.heads == 10 && s.kv_heads == 1) || (s.heads == 64 && s.kv_heads == 8) ||
              (s.heads == 80 && s.kv_heads == 8) || (s.heads == 128 && s.kv_heads == 16),
          "num_query_heads", is(s.heads), "10/1, 64/8, 80/8 or 128/16 heads with int8 pages of rank 5");
    limit(s.page_rows == 128 || s.page_rows == 512, "block_size", is(s.page_rows),
          "128 or 512 with int8 pages of rank 5");
    limit(a.inner_precise == 1, "inner_precise", is(a.inner_precise), "1 with int8 pages of rank 5");
    limit(s.s1 == 1 ? s.mode == 0 && !a.atten_mask : s.mode == 3, "sparse_mode", is(s.mode),
          s.s1 == 1 ? "0 without atten_mask for a single token" : "3 for several tokens");
    limit(
        !a.return_softmax_lse, "return_softmax_lse", [] { return std::string("is true"); },
        "false with int8 pages of rank 5");
    limit(
        !a.quant_scale_out, "quant_scale_out", [] { return std::string("is given"); },
        "absent with int8 pages of rank 5");
  } else if (several) {
    limit(
        !s.int4, "key", [] { return std::string("has dtype int32"); }, "int8 with several rows of queries");
    limit(km == vm && (km == 0 || km == 1), "key_quant_mode", mode_is, "0 or 1 with several rows of queries");
    limit(s.longest_query <= 16 && (s.folded || s.s1 <= 16), "query", rows_are, "at most 16 with quantised keys");
    limit(bf16, "query", dtype_is, "bfloat16 with quantised keys and several rows");
    limit(
        !a.quant_scale_out, "quant_scale_out", [] { return std::string("is given"); },
        "absent with quantised keys and several rows");
    limit(
        km != 1 || a.dequant_scale_key.rank == 2, Status::invalid_shape, "dequant_scale_key",
        [&] { return "has rank " + to_string(a.dequant_scale_key.rank); }, "2 with several rows of queries");
  }
}

void Door::fully_quantised() const {
  // S-56
  const Tensor &sq = a.dequant_scale_query, &sk = a.dequant_scale_key, &sv = a.dequant_scale_value, &q = a.query;
  for (const auto& [t, name] :
       {std::pair{&sq, "dequant_scale_query"}, {&sk, "dequant_scale_key"}, {&sv, "dequant_scale_value"}})
    if (!*t) c.fail(Status::invalid_argument, name, "", "is missing", "a tensor", "query is int8");
  for (const auto& [mode, wanted, name] : {std::tuple{a.query_quant_mode, 3, "query_quant_mode"},
                                           {a.key_quant_mode, 0, "key_quant_mode"},
                                           {a.value_quant_mode, 0, "value_quant_mode"}})
    if (mode != wanted)
      c.fail(Status::invalid_argument, name, "", "is " + to_string(mode), to_string(wanted), "query is int8");
  const Axes in = s.layout->in;
  const bool by_rows = in == Axes::BSH || in == Axes::BSND || in == Axes::TND;  // mla_prolog_v3 gives [rows, Nq, 1]
  const bool fits =
      by_rows && !c.strict() && rows_of_heads(sq, in == Axes::TND ? s.s1 : q.shape[0] * q.shape[1], s.heads);
  if (!fits && in == Axes::BSH) c.shape(sq, "dequant_scale_query", {q.shape[0], q.shape[1], s.heads}, "B, S1, Nq");
  else if (!fits &&
           (sq.rank != q.rank - 1 || !std::equal(sq.shape.begin(), sq.shape.begin() + sq.rank, q.shape.begin())))
    wrong_shape(sq, "dequant_scale_query", brackets({q.shape.data(), std::size_t(q.rank - 1)}),
                "query without its last axis");
  c.shape(sk, "dequant_scale_key", {1}, "one for the tensor");
  c.shape(sv, "dequant_scale_value", {1}, "one for the tensor");
  c.dtype(sq, "dequant_scale_query", {DType::f32});
  c.dtype(sk, "dequant_scale_key", {DType::f32});
  c.dtype(sv, "dequant_scale_value", {DType::f32});
  // S-57
  for (const auto& [t, name] : {std::pair{&a.dequant_offset_key, "dequant_offset_key"},
                                {&a.dequant_offset_value, "dequant_offset_value"},
                                {&a.quant_scale_out, "quant_scale_out"},
                                {&a.quant_offset_out, "quant_offset_out"},
                                {&a.pse_shift, "pse_shift"}})
    if (*t) c.fail(Status::unsupported, name, "", "is given", "absent", "query is int8");
  limit(
      nz(), "key", [&] { return "has rank " + to_string(a.key.rank); }, "pages of rank 5 with an int8 query");
  limit(
      s.width == 512, "query", [&] { return "has width " + to_string(s.width); }, "512 with an int8 query");
}

void Door::quantised_output() const {
  const Tensor &scale = a.quant_scale_out, &offset = a.quant_offset_out;
  // S-58, S-59
  if (offset && !scale)
    c.fail(Status::invalid_shape, "quant_scale_out", "", "is missing", "a tensor", "quant_offset_out is given");
  if (!scale) return;
  const std::int64_t n = s.heads, d = s.out_width, all = n * d;
  for (const auto& [t, name] : {std::pair{&scale, "quant_scale_out"}, {&offset, "quant_offset_out"}}) {
    if (!*t) continue;
    const bool bsh = s.layout->out == Axes::BSH;
    const bool fits =
        t->elements() == 1 || (bsh ? is_shape(*t, {all}) || is_shape(*t, {1, all}) || is_shape(*t, {1, 1, all})
                                   : is_shape(*t, {n, d}) || is_shape(*t, {1, n, d}) || is_shape(*t, {1, n, 1, d}) ||
                                         is_shape(*t, {n, 1, d}) || is_shape(*t, {1, 1, n, d}));
    if (!fits || t->elements() == 0)
      wrong_shape(*t, name, bsh ? "[" + to_string(all) + "]" : "[" + to_string(n) + ", " + to_string(d) + "]",
                  "Nq and Dv, with axes of 1; or one element");
    c.dtype(*t, name, {DType::f32, DType::bf16});
    limit(
        t->dtype == DType::f32 || a.query.dtype == DType::bf16, Status::invalid_dtype, name,
        [] { return std::string("has dtype bfloat16"); }, "float32 unless query is bfloat16");
  }
  if (offset) {
    if (offset.elements() != scale.elements())
      wrong_shape(offset, "quant_offset_out", to_string(scale.elements()) + " elements", "quant_scale_out");
    c.dtype(offset, "quant_offset_out", {scale.dtype}, "dtype of quant_scale_out");
  }
  // S-37, S-60, S-61
  const auto given = [] { return std::string("is given"); };
  limit(s.mode != 4 || (s.pre >= 0 && s.next >= 0), "quant_scale_out", given,
        "absent in sparse_mode 4 with a negative pre_tokens or next_tokens");
  const bool channels = scale.elements() > 1;
  limit(!channels || !a.return_softmax_lse, "quant_scale_out", given, "one element beside softmax_lse");
  limit(!channels || d % 32 == 0, "quant_scale_out", given, "one element unless Dv is a multiple of 32");
  limit(!s.rope && !s.folded && !s.int4, "quant_scale_out", given,
        "absent beside rope tensors, token-folded layouts and int4");
}

}  // namespace dsakit::fused_infer_attention_score_v2_op
