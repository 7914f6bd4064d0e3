// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <string>

#include "dsakit/interleave_rope.hpp"
#include "ops/direct.hpp"
#include "ops/rotation/problem.hpp"
#include "ops/row_operator.hpp"

namespace dsakit {
namespace {

void check_inputs(const Check& check, const InterleaveRopeArgs& a) {
  const Tensors inputs = Tensors::inputs<InterleaveRopeOuts>(a);
  check_given(check, inputs);
  check_countable(check, inputs);
  check.rank(a.x, "x", 4, "B, N, S, Dr");
  const std::int64_t width = a.x.shape[3];
  if (width % 2 != 0) check.fail(Status::invalid_shape, "x", "", shape_text(a.x), "an even last axis");
  if (check.strict() && width != 64) check.chip(false, "x", shape_text(a.x), "a last axis of 64");
  for (const auto& [t, name] : {std::pair(&a.cos, "cos"), std::pair(&a.sin, "sin")}) {
    const std::int64_t tokens = t->rank == 4 && t->shape[2] == 1 ? 1 : a.x.shape[2];
    check.shape(*t, name, {a.x.shape[0], 1, tokens, width}, "B, 1, S or 1, Dr of x");
  }
  check.dtype(a.x, "x", {DType::bf16, DType::f16});
  for (const auto& [t, name] : {std::pair(&a.cos, "cos"), std::pair(&a.sin, "sin")})
    check.dtype(*t, name, {a.x.dtype}, "dtype of x");
  check_memory(check, inputs);
}

rotation::Problem check(const InterleaveRopeArgs& a, const InterleaveRopeOuts& o) {
  const Check check("interleave_rope", a.level);
  check_inputs(check, a);
  const rotation::Problem problem = rotation::resolve(check, rotation::Kind::to_half, a.x, a.cos, a.sin, o.y);
  check_separate(check, Tensors(a, o));
  return problem;
}

}  // namespace

void infer(const InterleaveRopeArgs& a, InterleaveRopeOuts& o) {
  check_inputs(Check("interleave_rope", a.level), a);
  if (!o.y) o.y = like(a.x, a.x.dtype);
}

void direct::interleave_rope(const InterleaveRopeArgs& a, const InterleaveRopeOuts& o, Context& context) {
  const rotation::Problem problem = check(a, o);
  if (context.check_values()) check_finite(Check("interleave_rope", a.level), Tensors::inputs<InterleaveRopeOuts>(a));
  Call call(context, "interleave_rope", [&](int threads) { return rotation::workspace(problem, threads); });
  rotation::run(problem, call);
  call.finish();
}

void reference::interleave_rope(const InterleaveRopeArgs& a, const InterleaveRopeOuts& o) {
  rotation::reference(check(a, o));
}

}  // namespace dsakit
