// SPDX-License-Identifier: Apache-2.0
#include "dsakit/add_rms_norm.hpp"
#include "ops/direct.hpp"
#include "ops/rms_norm/problem.hpp"

// add_rms_norm and add_rms_norm_bias: a call with beta, and one that has no such parameter.
namespace dsakit {
namespace {

template <class Args>
rms_norm_op::Inputs inputs_of(const Args& a) {
  rms_norm_op::Inputs in{.x = a.x1, .gamma = a.gamma, .x_name = "x1", .epsilon = a.epsilon, .x2 = &a.x2};
  if constexpr (requires { a.beta; }) in.beta = &a.beta;
  return in;
}

template <class Args>
rms_norm_op::Problem check(const char* op, const Args& a, const AddRmsNormOuts& o) {
  const Check check(op, a.level);
  check_inputs(check, Tensors::inputs<AddRmsNormOuts>(a), inputs_of(a));
  return resolve(check, Tensors(a, o), inputs_of(a), {o.y, o.rstd, &o.x});
}

template <class Args>
void infer(const char* op, const Args& a, AddRmsNormOuts& o) {
  check_inputs(Check(op, a.level), Tensors::inputs<AddRmsNormOuts>(a), inputs_of(a));
  if (!o.y) o.y = wanted_y(inputs_of(a));
  if (!o.rstd) o.rstd = wanted_rstd(inputs_of(a));
  if (!o.x) o.x = wanted_y(inputs_of(a));
}

template <class Args>
void run(const char* op, const Args& a, const AddRmsNormOuts& o, Context& context) {
  const rms_norm_op::Problem problem = check(op, a, o);
  if (context.check_values()) check_finite(Check(op, a.level), Tensors::inputs<AddRmsNormOuts>(a));
  Call call(context, op, [&](int threads) { return rms_norm_op::workspace(problem, threads); });
  rms_norm_op::run(problem, call);
  call.finish();
}

}  // namespace

void infer(const AddRmsNormArgs& a, AddRmsNormOuts& o) { infer("add_rms_norm", a, o); }
void infer(const AddRmsNormBiasArgs& a, AddRmsNormBiasOuts& o) { infer("add_rms_norm_bias", a, o); }

void direct::add_rms_norm(const AddRmsNormArgs& a, const AddRmsNormOuts& o, Context& context) {
  run("add_rms_norm", a, o, context);
}
void direct::add_rms_norm_bias(const AddRmsNormBiasArgs& a, const AddRmsNormBiasOuts& o, Context& context) {
  run("add_rms_norm_bias", a, o, context);
}

void reference::add_rms_norm(const AddRmsNormArgs& a, const AddRmsNormOuts& o) {
  rms_norm_op::reference(check("add_rms_norm", a, o));
}
void reference::add_rms_norm_bias(const AddRmsNormBiasArgs& a, const AddRmsNormBiasOuts& o) {
  rms_norm_op::reference(check("add_rms_norm_bias", a, o));
}

}  // namespace dsakit
