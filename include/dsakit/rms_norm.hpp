// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <concepts>
#include <type_traits>

#include "dsakit/context.hpp"
#include "dsakit/field.hpp"
#include "dsakit/modes.hpp"
#include "dsakit/tensor.hpp"

namespace dsakit {

/// A row is what the axes of gamma span: the last ones of `self`. Every fp32 operation rounds once, y once more.
struct RmsNormArgs {
  Tensor self;
  Tensor gamma;
  double epsilon = 1e-6;
  Level level = Level::portable;
};

struct RmsNormOuts {
  Tensor y;
  Tensor rstd;
};

void rms_norm(const RmsNormArgs&, const RmsNormOuts&, Context& = default_context());
void infer(const RmsNormArgs&, RmsNormOuts&);

template <class A, class O, class V>
requires std::same_as<std::remove_const_t<A>, RmsNormArgs>
constexpr void for_each_field(A& a, O& o, V&& v) {
  v({"self", Role::in, Kind::data, "bfloat16, float16, float32", "[..., row], row the shape of gamma",
     "rows to normalise, any strides with the last 1"},
    a.self);
  v({"gamma", Role::in, Kind::data, "dtype of self, or float32", "the last axes of self, one or more",
     "weights of the norm"},
    a.gamma);
  v({"epsilon", Role::attribute, Kind::number, "float", "> 0", "added to the mean of the squares"}, a.epsilon);
  v(kLevelField, a.level);
  v({"y", Role::out, Kind::data, "dtype of self", "shape of self", "normalised rows"}, o.y);
  v({"rstd", Role::out, Kind::data, "float32", "shape of self, 1 on the axes of gamma",
     "what each row was multiplied by"},
    o.rstd);
}
constexpr Description describe(const RmsNormArgs&) {
  return {.summary = "Divide each row by its root mean square and multiply it by weights",
          .formula =
              "rstd = 1 / sqrt(mean(self^2) + epsilon)\n"
              "y = self * rstd * gamma",
          .errors =
              "INVALID_ARGUMENT: a tensor is missing, epsilon is not finite or not above 0\n"
              "INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed, a row has no elements",
          .source = "torch_npu.npu_rms_norm",
          .page = "rms_norm.md",
          .family = Family::torch_npu,
          .positional = 3};
}

namespace reference {
void rms_norm(const RmsNormArgs&, const RmsNormOuts&);
}

}  // namespace dsakit
