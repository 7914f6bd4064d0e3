// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "ops/direct.hpp"
#include "ops/row_operator.hpp"
#include "ops/swiglu/problem.hpp"

namespace dsakit {
namespace swiglu_op {
namespace {

/// The axis of the halves, from the front.
int check_inputs(const Check& check, const SwigluArgs& a) {
  const Tensors inputs = Tensors::inputs<SwigluOuts>(a);
  check_given(check, inputs);
  check_countable(check, inputs);
  const int rank = a.self.rank;
  if (rank < 1) check.fail(Status::invalid_shape, "self", "", shape_text(a.self), "rank 1 or more");
  if (a.dim < -rank || a.dim >= rank)
    check.fail(Status::invalid_argument, "dim", "", "is " + std::to_string(a.dim),
               std::to_string(-rank) + ".." + std::to_string(rank - 1), "axes of self");
  const int axis = int(a.dim < 0 ? a.dim + rank : a.dim);
  if (a.self.shape[axis] % 2 != 0)
    check.fail(Status::invalid_shape, "self", "", shape_text(a.self), "an even axis " + std::to_string(axis),
               "it holds two halves");
  check.dtype(a.self, "self", {DType::bf16, DType::f16, DType::f32});
  check_memory(check, inputs);
  return axis;
}

Tensor wanted(const SwigluArgs& a, int axis) {
  Tensor y = like(a.self, a.self.dtype);
  y.shape[axis] /= 2;
  make_contiguous(y);
  return y;
}

}  // namespace

Problem check(const SwigluArgs& a, const SwigluOuts& o) {
  const Check check("swiglu", a.level);
  const int axis = check_inputs(check, a);
  check_out(check, o.y, "y", wanted(a, axis), "self with half of dim");
  check_separate(check, Tensors(a, o));
  Tensor gate = a.self, value = a.self;
  gate.shape[axis] /= 2, value.shape[axis] /= 2;
  if (value.elements() > 0)
    value.data = static_cast<std::byte*>(value.data) + value.shape[axis] * value.stride[axis] * size_of(value.dtype);
  Problem p{
      .gate = Rows(gate, 1), .value = Rows(value, 1), .y = Rows(o.y, 1), .rows = 1, .width = gate.shape[gate.rank - 1]};
  for (int i = 0; i + 1 < gate.rank; ++i) p.rows *= gate.shape[i];
  if (p.width == 0) p.rows = 0;  // as many as may be
  return p;
}

}  // namespace swiglu_op

void infer(const SwigluArgs& a, SwigluOuts& o) {
  const int axis = swiglu_op::check_inputs(Check("swiglu", a.level), a);
  if (!o.y) o.y = swiglu_op::wanted(a, axis);
}

void direct::swiglu(const SwigluArgs& a, const SwigluOuts& o, Context& context) {
  const swiglu_op::Problem problem = swiglu_op::check(a, o);
  if (context.check_values()) check_finite(Check("swiglu", a.level), Tensors::inputs<SwigluOuts>(a));
  Call call(context, "swiglu", std::size_t(0));
  swiglu_op::run(problem, call);
  call.finish();
}

}  // namespace dsakit
