// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <concepts>
#include <type_traits>

#include "dsakit/context.hpp"
#include "dsakit/field.hpp"
#include "dsakit/modes.hpp"
#include "dsakit/tensor.hpp"

namespace dsakit {

/// rms_norm of a sum that is kept. The normalised row is rounded to its dtype before gamma: one rounding more than
/// rms_norm has.
struct AddRmsNormArgs {
  Tensor x1;
  Tensor x2;
  Tensor gamma;
  double epsilon = 1e-6;
  Level level = Level::portable;
};

struct AddRmsNormOuts {
  Tensor y;
  Tensor rstd;
  Tensor x;
};

/// The same with beta added at the end; in float16 the product with gamma is rounded before that.
struct AddRmsNormBiasArgs {
  Tensor x1;
  Tensor x2;
  Tensor gamma;
  Tensor beta{};
  double epsilon = 1e-6;
  Level level = Level::portable;
};

using AddRmsNormBiasOuts = AddRmsNormOuts;

void add_rms_norm(const AddRmsNormArgs&, const AddRmsNormOuts&, Context& = default_context());
void add_rms_norm_bias(const AddRmsNormBiasArgs&, const AddRmsNormBiasOuts&, Context& = default_context());
void infer(const AddRmsNormArgs&, AddRmsNormOuts&);
void infer(const AddRmsNormBiasArgs&, AddRmsNormBiasOuts&);

template <class A, class O, class V>
requires std::same_as<std::remove_const_t<A>, AddRmsNormArgs> ||
    std::same_as<std::remove_const_t<A>, AddRmsNormBiasArgs>
constexpr void for_each_field(A& a, O& o, V&& v) {
  v({"x1", Role::in, Kind::data, "bfloat16, float16, float32", "[..., row], row the shape of gamma",
     "rows to normalise, any strides with the last 1"},
    a.x1);
  v({"x2", Role::in, Kind::data, "dtype of x1", "shape of x1", "what is added to them"}, a.x2);
  v({"gamma", Role::in, Kind::data, "dtype of x1", "the last axes of x1, one or more", "weights of the norm"}, a.gamma);
  if constexpr (requires { a.beta; })
    v({"beta", Role::in_opt, Kind::data, "dtype of x1", "shape of gamma", "added to the normalised rows"}, a.beta);
  v({"epsilon", Role::attribute, Kind::number, "float", "> 0", "added to the mean of the squares"}, a.epsilon);
  v(kLevelField, a.level);
  v({"y", Role::out, Kind::data, "dtype of x1", "shape of x1", "normalised rows"}, o.y);
  v({"rstd", Role::out, Kind::data, "float32", "shape of x1, 1 on the axes of gamma",
     "what each row of x was multiplied by"},
    o.rstd);
  v({"x", Role::out, Kind::data, "dtype of x1", "shape of x1", "the sums x1 + x2"}, o.x);
}
constexpr Description describe(const AddRmsNormArgs&) {
  return {.summary = "Add rows, and divide each sum by its root mean square and multiply it by weights",
          .formula =
              "x = round(x1 + x2), to the dtype of x1\n"
              "rstd = 1 / sqrt(mean(x^2) + epsilon)\n"
              "y = round(x * rstd) * gamma",
          .errors =
              "INVALID_ARGUMENT: a tensor is missing, epsilon is not finite or not above 0\n"
              "INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed, a row has no elements",
          .source = "torch_npu.npu_add_rms_norm",
          .page = "rms_norm.md",
          .family = Family::torch_npu,
          .positional = 4};
}
constexpr Description describe(const AddRmsNormBiasArgs&) {
  Description d = describe(AddRmsNormArgs{});
  d.summary = "Add rows, divide each sum by its root mean square, multiply it by weights and add a bias";
  d.formula =
      "x = round(x1 + x2), to the dtype of x1\n"
      "rstd = 1 / sqrt(mean(x^2) + epsilon)\n"
      "y = round(x * rstd) * gamma + beta; float16: round(round(x * rstd) * gamma) + beta";
  d.source = "torch.ops._C_ascend.npu_add_rms_norm_bias";
  d.positional = 5;
  return d;
}

namespace reference {
void add_rms_norm(const AddRmsNormArgs&, const AddRmsNormOuts&);
void add_rms_norm_bias(const AddRmsNormBiasArgs&, const AddRmsNormBiasOuts&);
}  // namespace reference

}  // namespace dsakit
