// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <concepts>
#include <cstdint>
#include <type_traits>

#include "dsakit/context.hpp"
#include "dsakit/field.hpp"
#include "dsakit/modes.hpp"
#include "dsakit/tensor.hpp"

namespace dsakit {

/// Every operation is one in fp32, y is rounded once.
struct SwigluArgs {
  Tensor self;
  std::int64_t dim = -1;
  Level level = Level::portable;
};

struct SwigluOuts {
  Tensor y;
};

void swiglu(const SwigluArgs&, const SwigluOuts&, Context& = default_context());
void infer(const SwigluArgs&, SwigluOuts&);

template <class A, class O, class V>
requires std::same_as<std::remove_const_t<A>, SwigluArgs>
constexpr void for_each_field(A& a, O& o, V&& v) {
  v({"self", Role::in, Kind::data, "bfloat16, float16, float32", "rank >= 1, axis dim even",
     "gates, and behind them along dim as many values, any strides with the last 1"},
    a.self);
  v({"dim", Role::attribute, Kind::number, "int", "an axis of self, negative from the end",
     "the axis that holds both halves"},
    a.dim);
  v(kLevelField, a.level);
  v({"y", Role::out, Kind::data, "dtype of self", "shape of self, half of it along dim", "gated values"}, o.y);
}
constexpr Description describe(const SwigluArgs&) {
  return {.summary = "Multiply one half of the values by SiLU of the other",
          .formula =
              "a, b = the halves of self along dim\n"
              "y = a / (1 + exp(-a)) * b",
          .errors =
              "INVALID_ARGUMENT: self is missing, dim is none of its axes\n"
              "INVALID_SHAPE, INVALID_DTYPE: self is not as listed",
          .source = "torch_npu.npu_swiglu",
          .page = "swiglu.md",
          .family = Family::torch_npu,
          .positional = 2};
}

namespace reference {
void swiglu(const SwigluArgs&, const SwigluOuts&);
}

}  // namespace dsakit
