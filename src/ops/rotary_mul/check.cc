// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <string>

#include "dsakit/rotary_mul.hpp"
#include "ops/direct.hpp"
#include "ops/rotation/problem.hpp"
#include "ops/row_operator.hpp"

namespace dsakit {
namespace {

void check_broadcast(const Check& check, const Tensor& x, const Tensor& t, const char* name) {
  bool fits = t.rank == x.rank;
  for (int axis = 0; fits && axis < x.rank; ++axis)
    fits = t.shape[axis] == x.shape[axis] || (t.shape[axis] == 1 && axis + 1 < x.rank);
  if (!fits)
    check.fail(Status::invalid_shape, name, "", shape_text(t), brackets({x.shape.data(), std::size_t(x.rank)}),
               "shape of x, or 1 on an axis but the last");
}

void check_inputs(const Check& check, const RotaryMulArgs& a) {
  const Tensors inputs = Tensors::inputs<RotaryMulOuts>(a);
  check_given(check, inputs);
  check.one_of(a.rotary_mode, "rotary_mode", {"half", "interleave"});
  check_countable(check, inputs);
  if (a.x.rank != 3 && a.x.rank != 4) check.fail(Status::invalid_shape, "x", "", shape_text(a.x), "rank 3 or 4");
  const std::int64_t width = a.x.shape[a.x.rank - 1];
  if (width % 2 != 0) check.fail(Status::invalid_shape, "x", "", shape_text(a.x), "an even last axis");
  check_broadcast(check, a.x, a.r1, "r1");
  check_broadcast(check, a.x, a.r2, "r2");
  if (a.rotate) {
    check.chip(false, "rotate", "is given", "absent");
    check.shape(a.rotate, "rotate", {width, width}, "D, D of x");
  }
  if (check.strict() && width >= 896) check.chip(false, "x", shape_text(a.x), "a last axis below 896");
  if (check.strict() && (a.x.shape[0] >= 1000 || a.x.shape[1] >= 1000))
    check.chip(false, "x", shape_text(a.x), "B and N below 1000");
  check.dtype(a.x, "x", {DType::bf16, DType::f16, DType::f32});
  for (const auto& [t, name] : {std::pair(&a.r1, "r1"), std::pair(&a.r2, "r2")})
    check.dtype(*t, name, {a.x.dtype}, "dtype of x");
  if (a.rotate) check.dtype(a.rotate, "rotate", {a.x.dtype}, "dtype of x");
  check_memory(check, inputs);
}

rotation::Problem check(const RotaryMulArgs& a, const RotaryMulOuts& o) {
  const Check check("rotary_mul", a.level);
  check_inputs(check, a);
  const auto kind = a.rotary_mode == "half" ? rotation::Kind::half : rotation::Kind::interleave;
  rotation::Problem problem = rotation::resolve(check, kind, a.x, a.r1, a.r2, o.y);
  problem.matrix = a.rotate;
  check_separate(check, Tensors(a, o));
  return problem;
}

}  // namespace

void infer(const RotaryMulArgs& a, RotaryMulOuts& o) {
  check_inputs(Check("rotary_mul", a.level), a);
  if (!o.y) o.y = like(a.x, a.x.dtype);
}

void direct::rotary_mul(const RotaryMulArgs& a, const RotaryMulOuts& o, Context& context) {
  const rotation::Problem problem = check(a, o);
  if (context.check_values()) check_finite(Check("rotary_mul", a.level), Tensors::inputs<RotaryMulOuts>(a));
  Call call(context, "rotary_mul", [&](int threads) { return rotation::workspace(problem, threads); });
  rotation::run(problem, call);
  call.finish();
}

void reference::rotary_mul(const RotaryMulArgs& a, const RotaryMulOuts& o) { rotation::reference(check(a, o)); }

}  // namespace dsakit
