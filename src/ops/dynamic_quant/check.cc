// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <string>

#include "core/text.hpp"
#include "ops/direct.hpp"
#include "ops/dynamic_quant/problem.hpp"
#include "ops/row_operator.hpp"

namespace dsakit {
namespace dynamic_quant_op {
namespace {

struct Sizes {
  std::int64_t rows = 1, width = 0;
  bool int4 = false;
  Mode mode = Mode::token;
};

Mode mode_of(const DynamicQuantArgs& a) {
  return a.quant_mode == "perchannel" ? Mode::channel : a.quant_mode == "pertensor" ? Mode::tensor : Mode::token;
}

void check_mode(const Check& check, const DynamicQuantArgs& a) {
  check.one_of(a.quant_mode, "quant_mode", {"pertoken", "perchannel", "pertensor"});
  check.chip(a.quant_mode == "pertoken", "quant_mode", "is '" + std::string(a.quant_mode) + "'",
             "pertoken: the others are Atlas 950's");
  if (a.dst_type.starts_with("float8") || a.dst_type.starts_with("hifloat8"))
    check.fail(Status::unsupported, "dst_type", "", "is '" + printable(a.dst_type) + "'",
               "int8, qint8 or quint4x2", "8-bit floats are reserved");
  if (!a.dst_type.empty()) check.one_of(a.dst_type, "dst_type", {"int8", "qint8", "quint4x2"});
  if (a.dst_type_max != 0)
    check.fail(Status::unsupported, "dst_type_max", "", "is " + std::to_string(a.dst_type_max), "0", "reserved");
}

void check_groups(const Check& check, const Tensor& ends, std::int64_t rows) {
  const auto end = view<const std::int32_t, 1>(ends);
  std::int64_t before = 0;
  for (std::int64_t g = 0; g < ends.shape[0]; before = end(g++)) {
    const bool last = g + 1 == ends.shape[0];
    if (end(g) >= before && end(g) <= rows && (!last || end(g) == rows)) continue;
    check.fail(Status::invalid_seqlen, "group_index", subscript({g}), "is " + std::to_string(end(g)),
               last ? std::to_string(rows) : std::to_string(before) + ".." + std::to_string(rows),
               "end rows do not decrease, and the last is the number of rows");
  }
}

Sizes check_inputs(const Check& check, const DynamicQuantArgs& a) {
  const Tensors inputs = Tensors::inputs<DynamicQuantOuts>(a);
  check_given(check, inputs);
  check_mode(check, a);
  check_countable(check, inputs);
  if (a.input.rank < 2) check.fail(Status::invalid_shape, "input", "", shape_text(a.input), "rank 2 or more");
  Sizes s;
  s.width = a.input.shape[a.input.rank - 1], s.int4 = a.dst_type == "quint4x2", s.mode = mode_of(a);
  for (int axis = 0; axis + 1 < a.input.rank; ++axis) s.rows *= a.input.shape[axis];
  if (s.width < 1) check.fail(Status::invalid_shape, "input", "", shape_text(a.input), "a last axis of at least 1");
  if (s.int4 && s.width % 8 != 0)
    check.fail(Status::invalid_shape, "input", "", shape_text(a.input), "a last axis of a multiple of 8",
               "eight int4 codes in an int32");
  if (a.group_index) {
    if (!a.smooth_scales)
      check.fail(Status::invalid_argument, "group_index", "", "is given without smooth_scales", "both or neither");
    if (s.mode != Mode::token)
      check.fail(Status::invalid_argument, "group_index", "", "is given", "absent", "groups go with pertoken");
    check.rank(a.group_index, "group_index", 1, "one end row per group");
  }
  if (a.smooth_scales) {
    if (a.group_index)
      check.shape(a.smooth_scales, "smooth_scales", {a.group_index.shape[0], s.width},
                  "G of group_index, last axis of input");
    else if (s.mode == Mode::channel)
      check.shape(a.smooth_scales, "smooth_scales", {a.input.shape[a.input.rank - 2]}, "axis -2 of input: perchannel");
    else check.shape(a.smooth_scales, "smooth_scales", {s.width}, "last axis of input");
  }
  check.dtype(a.input, "input", {DType::bf16, DType::f16, DType::f32});
  check.chip(a.input.dtype != DType::f32, "input", "is float32", "bfloat16 or float16");
  if (a.smooth_scales) check.dtype(a.smooth_scales, "smooth_scales", {a.input.dtype}, "input");
  if (a.group_index) check.dtype(a.group_index, "group_index", {DType::i32});
  check_memory(check, inputs);
  if (a.group_index) {
    if (a.group_index.shape[0] == 0 && s.rows > 0)
      check.fail(Status::invalid_shape, "group_index", "", "has shape [0]", "at least one group");
    check_groups(check, a.group_index, s.rows);
  }
  return s;
}

/// The outputs as they are wanted.
DynamicQuantOuts wanted(const DynamicQuantArgs& a, const Sizes& s) {
  DynamicQuantOuts o{like(a.input, s.int4 ? DType::i32 : DType::i8), like(a.input, DType::f32)};
  if (s.int4) o.y.shape[o.y.rank - 1] /= 8;
  --o.scale.rank;
  if (s.mode == Mode::channel) o.scale.shape[o.scale.rank - 1] = s.width;
  if (s.mode == Mode::tensor) o.scale.rank = 1, o.scale.shape[0] = 1;
  for (Tensor* t : {&o.y, &o.scale}) make_contiguous(*t);
  return o;
}

}  // namespace

Problem check(const DynamicQuantArgs& a, const DynamicQuantOuts& o) {
  const Check check("dynamic_quant", a.level);
  const Sizes s = check_inputs(check, a);
  const DynamicQuantOuts expected = wanted(a, s);
  check_out(check, o.y, "y", expected.y, "shape of input");
  check_out(check, o.scale, "scale", expected.scale, s.mode == Mode::tensor ? "one for all" : "shape of input");
  check_separate(check, Tensors(a, o));
  Problem p{.input = Rows(a.input, 1),
            .y = Rows(o.y, 1),
            .scale = Rows(o.scale, 0),
            .rows = s.rows,
            .width = s.width,
            .int4 = s.int4,
            .mode = s.mode,
            .length = a.input.shape[a.input.rank - 2],
            .smooth = a.smooth_scales};
  if (a.group_index) {
    p.ends = static_cast<const std::int32_t*>(a.group_index.data);
    p.ends_stride = a.group_index.stride[0], p.groups = a.group_index.shape[0];
  }
  return p;
}

/// Value checking.
void check_values(const DynamicQuantArgs& a) {
  check_finite(Check("dynamic_quant", a.level), Tensors::inputs<DynamicQuantOuts>(a));
}

}  // namespace dynamic_quant_op

void infer(const DynamicQuantArgs& a, DynamicQuantOuts& o) {
  const Check check("dynamic_quant", a.level);
  const DynamicQuantOuts wanted = dynamic_quant_op::wanted(a, dynamic_quant_op::check_inputs(check, a));
  if (!o.y) o.y = wanted.y;
  if (!o.scale) o.scale = wanted.scale;
}

void direct::dynamic_quant(const DynamicQuantArgs& a, const DynamicQuantOuts& o, Context& context) {
  using namespace dynamic_quant_op;
  const Problem problem = check(a, o);
  if (context.check_values()) check_values(a);
  Call call(context, "dynamic_quant", [&](int threads) { return workspace(problem, threads); });
  run(problem, call);
  call.finish();
}

}  // namespace dsakit
