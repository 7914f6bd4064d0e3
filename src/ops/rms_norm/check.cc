// SPDX-License-Identifier: Apache-2.0
#include "dsakit/rms_norm.hpp"

#include "ops/direct.hpp"
#include "ops/rms_norm/problem.hpp"

namespace dsakit {
namespace {

rms_norm_op::Inputs inputs_of(const RmsNormArgs& a) {
  return {.x = a.self, .gamma = a.gamma, .x_name = "self", .epsilon = a.epsilon};
}

rms_norm_op::Problem check(const RmsNormArgs& a, const RmsNormOuts& o) {
  const Check check("rms_norm", a.level);
  check_inputs(check, Tensors::inputs<RmsNormOuts>(a), inputs_of(a));
  return resolve(check, Tensors(a, o), inputs_of(a), {o.y, o.rstd});
}

}  // namespace

void infer(const RmsNormArgs& a, RmsNormOuts& o) {
  check_inputs(Check("rms_norm", a.level), Tensors::inputs<RmsNormOuts>(a), inputs_of(a));
  if (!o.y) o.y = wanted_y(inputs_of(a));
  if (!o.rstd) o.rstd = wanted_rstd(inputs_of(a));
}

void direct::rms_norm(const RmsNormArgs& a, const RmsNormOuts& o, Context& context) {
  const rms_norm_op::Problem problem = check(a, o);
  if (context.check_values()) check_finite(Check("rms_norm", a.level), Tensors::inputs<RmsNormOuts>(a));
  Call call(context, "rms_norm", [&](int threads) { return rms_norm_op::workspace(problem, threads); });
  rms_norm_op::run(problem, call);
  call.finish();
}

void reference::rms_norm(const RmsNormArgs& a, const RmsNormOuts& o) { rms_norm_op::reference(check(a, o)); }

}  // namespace dsakit
