// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>

#include "ops/rms_norm/problem.hpp"
#include "ops/row_operator.hpp"

namespace dsakit::rms_norm_op {
namespace {

void check_shapes(const Check& check, const Inputs& in) {
  const Tensor &x = in.x, &gamma = in.gamma;
  if (x.rank < 1) check.fail(Status::invalid_shape, in.x_name, "", shape_text(x), "rank 1 or more");
  const int leading = x.rank - gamma.rank;
  if (gamma.rank < 1 || leading < 0 ||
      !std::equal(gamma.shape.begin(), gamma.shape.begin() + gamma.rank, x.shape.begin() + leading))
    check.fail(Status::invalid_shape, "gamma", "", shape_text(gamma), std::string("the last axes of ") + in.x_name,
               in.x_name + (" " + shape_text(x)));
  if (gamma.elements() == 0)
    check.fail(Status::invalid_shape, "gamma", "", shape_text(gamma), "at least one element", "a row has a mean");
  const auto like = [&](const Tensor& t, const char* name, const Tensor& wanted, const char* why) {
    if (t.rank != wanted.rank || !std::equal(t.shape.begin(), t.shape.begin() + t.rank, wanted.shape.begin()))
      check.fail(Status::invalid_shape, name, "", shape_text(t),
                 brackets({wanted.shape.data(), std::size_t(wanted.rank)}), why);
  };
  if (in.x2) like(*in.x2, "x2", x, "shape of x1");
  if (in.beta && *in.beta) like(*in.beta, "beta", gamma, "shape of gamma");
}

}  // namespace

void check_inputs(const Check& check, const Tensors& tensors, const Inputs& in) {
  check_given(check, tensors);
  check.positive(float(in.epsilon), "epsilon");
  check_countable(check, tensors);
  check_shapes(check, in);
  const DType dtype = in.x.dtype;
  check.dtype(in.x, in.x_name, {DType::bf16, DType::f16, DType::f32});
  if (in.x2) check.dtype(*in.x2, "x2", {dtype}, "dtype of x1");
  if (in.x2 || dtype == DType::f32) check.dtype(in.gamma, "gamma", {dtype}, in.x2 ? "dtype of x1" : "dtype of self");
  else check.dtype(in.gamma, "gamma", {dtype, DType::f32}, "dtype of self, or float32");
  if (in.beta && *in.beta) check.dtype(*in.beta, "beta", {dtype}, "dtype of x1");
  check_memory(check, tensors);
}

Tensor wanted_y(const Inputs& in) { return like(in.x, in.x.dtype); }

Tensor wanted_rstd(const Inputs& in) {
  Tensor rstd = like(in.x, DType::f32);
  std::fill(rstd.shape.begin() + (rstd.rank - in.gamma.rank), rstd.shape.begin() + rstd.rank, 1);
  make_contiguous(rstd);
  return rstd;
}

Problem resolve(const Check& check, const Tensors& tensors, const Inputs& in, const Outputs& out) {
  check_out(check, out.y, "y", wanted_y(in), in.x2 ? "shape of x1" : "shape of self");
  check_out(check, out.rstd, "rstd", wanted_rstd(in), in.x2 ? "x1 and gamma" : "self and gamma");
  if (out.sum) check_out(check, *out.sum, "x", wanted_y(in), "shape of x1");
  check_separate(check, tensors);
  const Tensor none{.rank = 0};
  const std::int64_t width = in.x.shape[in.x.rank - 1], pieces = in.gamma.elements() / width;
  return {.rows = out.rstd.elements(),
          .pieces = pieces,
          .width = width,
          .epsilon = float(in.epsilon),
          .adds = in.x2 != nullptr,
          .x = Rows(in.x, 1),
          .x2 = Rows(in.x2 ? *in.x2 : none, in.x2 ? 1 : 0),
          .sum = Rows(out.sum ? *out.sum : none, out.sum ? 1 : 0),
          .gamma = Rows(in.gamma, 1),
          .beta = Rows(in.beta && *in.beta ? *in.beta : none, in.beta && *in.beta ? 1 : 0),
          .y = Rows(out.y, 1),
          .rstd = Rows(out.rstd, 0)};
}

}  // namespace dsakit::rms_norm_op
