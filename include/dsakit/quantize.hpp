// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <concepts>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "dsakit/context.hpp"
#include "dsakit/field.hpp"
#include "dsakit/modes.hpp"
#include "dsakit/tensor.hpp"

namespace dsakit {

struct QuantizeArgs {
  Tensor input;
  Tensor scales;
  Tensor zero_points{};
  std::string_view dtype = "";
  std::int64_t axis = 1;
  bool div_mode = true;
  Level level = Level::portable;
};

struct QuantizeOuts {
  Tensor y;
};

void quantize(const QuantizeArgs&, const QuantizeOuts&, Context& = default_context());
void infer(const QuantizeArgs&, QuantizeOuts&);

template <class A, class O, class V>
requires std::same_as<std::remove_const_t<A>, QuantizeArgs>
constexpr void for_each_field(A& a, O& o, V&& v) {
  v({"input", Role::in, Kind::data, "float32, float16, bfloat16", "rank >= 1",
     "values to quantise, any strides with the last 1"},
    a.input);
  v({"scales", Role::in, Kind::scale, "float32, or bfloat16 with bfloat16 input; portable: float16 and bfloat16 with float32 input; not div_mode: dtype "
     "of input",
     "[n] or [1], n the length of axis; not div_mode: also rank of input, the other axes 1",
     "what input is divided by, or not div_mode multiplied by"},
    a.scales);
  v({"zero_points", Role::in_opt, Kind::data,
     "int8, uint8, int32, bfloat16 (rounded to an integer); not div_mode: dtype of scales", "shape of scales",
     "added after scaling", kWithoutDefault},
    a.zero_points);
  v({"dtype", Role::attribute, Kind::dtype, "dtype",
     "qint8 int8, quint8 uint8, qint32 int32; not div_mode: qint8, quint4x2", "type of the codes", kWithoutDefault},
    a.dtype);
  v({"axis", Role::attribute, Kind::number, "int",
     "an axis of input, negative from the end; not div_mode: -2, or any other for the last",
     "the axis along which scales differ"},
    a.axis);
  v({"div_mode", Role::attribute, Kind::flag, "bool", "", "divide by the scales; otherwise multiply by them"},
    a.div_mode);
  v(kLevelField, a.level);
  v({"y", Role::out, Kind::data, "int8, uint8 or int32 as dtype says; quint4x2: int32",
     "shape of input; quint4x2: last axis / 8", "the codes; quint4x2: eight in an int32, the first in the lowest bits"},
    o.y);
}
constexpr Description describe(const QuantizeArgs&) {
  return {.summary = "Quantise with given scales, per tensor or along one axis",
          .formula =
              "div_mode:     y = sat(rint(fp32(input / scale)) + zero_point)\n"
              "not div_mode: y = sat(rint(fp32(fp32(input * scale) + zero_point)))\n"
              "rint rounds half to even; sat clamps to the range of y; NaN becomes 0",
          .errors =
              "INVALID_ARGUMENT: input, scales or dtype is missing, dtype is unknown or not of this div_mode, axis is "
              "none of input\n"
              "UNSUPPORTED: dtype is an 8-bit float; strict: bfloat16 zero points with another input\n"
              "INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed, the last axis is no multiple of 8 for quint4x2",
          .source = "torch_npu.npu_quantize",
          .page = "quantize.md",
          .family = Family::torch_npu,
          .positional = 6};
}

namespace reference {
void quantize(const QuantizeArgs&, const QuantizeOuts&);
}

}  // namespace dsakit
