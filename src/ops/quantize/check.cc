// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <string>

#include "core/text.hpp"
#include "ops/direct.hpp"
#include "ops/quantize/problem.hpp"
#include "ops/row_operator.hpp"

namespace dsakit {
namespace quantize_op {
namespace {

bool is_int4(const QuantizeArgs& a) { return a.dtype == "quint4x2"; }

DType output_of(const QuantizeArgs& a) {
  if (a.dtype == "qint8" || a.dtype == "int8") return DType::i8;
  return a.dtype == "quint8" || a.dtype == "uint8" ? DType::u8 : DType::i32;
}

void check_dtype_argument(const Check& check, const QuantizeArgs& a) {
  if (a.dtype.empty()) check.fail(Status::invalid_argument, "dtype", "", "is missing", "the dtype of the codes");
  if (a.dtype.starts_with("float8") || a.dtype.starts_with("hifloat8"))
    check.fail(Status::unsupported, "dtype", "", "is '" + printable(a.dtype) + "'", "an integer dtype",
               "8-bit floats are reserved");
  if (a.div_mode) check.one_of(a.dtype, "dtype", {"qint8", "int8", "quint8", "uint8", "qint32", "int32"});
  else check.one_of(a.dtype, "dtype", {"qint8", "quint4x2"});
}

/// The axis that channels run along, from the front.
int axis_of(const Check& check, const QuantizeArgs& a) {
  const int rank = a.input.rank;
  if (a.axis < -rank || a.axis >= rank)
    check.fail(Status::invalid_argument, "axis", "", "is " + std::to_string(a.axis),
               std::to_string(-rank) + ".." + std::to_string(rank - 1), "axes of input");
  if (!a.div_mode) return a.axis == -2 ? rank - 2 : rank - 1;
  return int(a.axis < 0 ? a.axis + rank : a.axis);
}

/// [n], [1], or (not div_mode) the rank of input with all axes but one of length 1. Elements between channels; 0: one
/// value for all.
std::int64_t check_channels(const Check& check, const QuantizeArgs& a, const Tensor& t, const char* name, int axis) {
  const std::int64_t n = a.input.shape[axis];
  if (t.rank == 1 && (t.shape[0] == n || t.shape[0] == 1)) return t.shape[0] == 1 ? 0 : t.stride[0];
  bool unfolded = !a.div_mode && t.rank == a.input.rank;
  for (int i = 0; unfolded && i < t.rank; ++i) unfolded = t.shape[i] == 1 || (i == axis && t.shape[i] == n);
  if (!unfolded)
    check.fail(
        Status::invalid_shape, name, "", shape_text(t), "[" + std::to_string(n) + "] or [1]",
        "axis " + std::to_string(axis) + " of input " + brackets({a.input.shape.data(), std::size_t(a.input.rank)}));
  return t.shape[axis] == 1 ? 0 : t.stride[axis];
}

struct Channels {
  int axis;
  std::int64_t scale_step, zero_step;
};

Channels check_inputs(const Check& check, const QuantizeArgs& a) {
  const Tensors inputs = Tensors::inputs<QuantizeOuts>(a);
  check_given(check, inputs);
  check_dtype_argument(check, a);
  check_countable(check, inputs);
  if (a.input.rank < 1) check.fail(Status::invalid_shape, "input", "", shape_text(a.input), "rank 1 or more");
  Channels c{axis_of(check, a), 0, 0};
  if (is_int4(a) && a.input.shape[a.input.rank - 1] % 8 != 0)
    check.fail(Status::invalid_shape, "input", "", shape_text(a.input), "a last axis of a multiple of 8",
               "eight int4 codes in an int32");
  c.scale_step = check_channels(check, a, a.scales, "scales", c.axis);
  if (a.zero_points) {
    c.zero_step = check_channels(check, a, a.zero_points, "zero_points", c.axis);
    if (a.zero_points.elements() != a.scales.elements() || (!a.div_mode && a.zero_points.rank != a.scales.rank))
      check.fail(Status::invalid_shape, "zero_points", "", shape_text(a.zero_points),
                 brackets({a.scales.shape.data(), std::size_t(a.scales.rank)}), "shape of scales");
  }
  check.dtype(a.input, "input", {DType::f32, DType::f16, DType::bf16});
  if (!a.div_mode) check.dtype(a.scales, "scales", {a.input.dtype}, "dtype of input");
  else if (a.input.dtype == DType::bf16) check.dtype(a.scales, "scales", {DType::f32, DType::bf16});
  else if (a.input.dtype == DType::f32 && !check.strict())
    check.dtype(a.scales, "scales", {DType::f32, DType::f16, DType::bf16});  // widening is exact
  else check.dtype(a.scales, "scales", {DType::f32}, "bfloat16 scales go with a bfloat16 input");
  if (a.zero_points && a.div_mode) {
    check.dtype(a.zero_points, "zero_points", {DType::i8, DType::u8, DType::i32, DType::bf16});
    check.chip(a.zero_points.dtype != DType::bf16 || a.input.dtype == DType::bf16, "zero_points", "is bfloat16",
               "an integer, or bfloat16 with a bfloat16 input");
  } else if (a.zero_points) {
    check.dtype(a.zero_points, "zero_points", {a.scales.dtype}, "dtype of scales");
  }
  check_memory(check, inputs);
  return c;
}

Tensor wanted(const QuantizeArgs& a) {
  Tensor y = like(a.input, output_of(a));
  if (is_int4(a)) y.shape[y.rank - 1] /= 8, make_contiguous(y);
  return y;
}

}  // namespace

Problem check(const QuantizeArgs& a, const QuantizeOuts& o) {
  const Check check("quantize", a.level);
  const Channels c = check_inputs(check, a);
  check_out(check, o.y, "y", wanted(a), is_int4(a) ? "input with its last axis divided by 8" : "shape of input");
  check_separate(check, Tensors(a, o));
  const int last = a.input.rank - 1;
  Problem p{.input = Rows(a.input, 1),
            .y = Rows(o.y, 1),
            .rows = 1,
            .width = a.input.shape[last],
            .divides = a.div_mode,
            .int4 = is_int4(a),
            .scales = a.scales,
            .zero_points = a.zero_points,
            .scale_step = c.scale_step,
            .zero_step = c.zero_step};
  for (int axis = 0; axis < last; ++axis) p.rows *= a.input.shape[axis];
  if (p.width == 0) p.rows = 0;  // as many as may be
  p.channels = a.input.shape[c.axis], p.inner = c.axis == last;
  for (int axis = c.axis + 1; axis < last; ++axis) p.repeat *= a.input.shape[axis];
  return p;
}

/// Value checking: finite numbers, and scales that are not negative and can be divided by.
void check_values(const QuantizeArgs& a) {
  const Check check("quantize", a.level);
  check_finite(check, Tensors::inputs<QuantizeOuts>(a));
  for (std::int64_t i = 0; a.div_mode && i < a.scales.elements(); ++i)
    if (const float x = float_at(a.scales, offset_of(a.scales, i)); x == 0)
      check.fail(Status::invalid_value, "scales", subscript(a.scales, i), "is " + std::to_string(x), "above 0");
}

}  // namespace quantize_op

void infer(const QuantizeArgs& a, QuantizeOuts& o) {
  quantize_op::check_inputs(Check("quantize", a.level), a);
  if (!o.y) o.y = quantize_op::wanted(a);
}

void direct::quantize(const QuantizeArgs& a, const QuantizeOuts& o, Context& context) {
  using namespace quantize_op;
  const Problem problem = check(a, o);
  if (context.check_values()) check_values(a);
  Call call(context, "quantize", workspace(problem));
  run(problem, call);
  call.finish();
}

}  // namespace dsakit
