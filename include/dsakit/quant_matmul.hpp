// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <concepts>
#include <string_view>
#include <type_traits>

#include "dsakit/context.hpp"
#include "dsakit/field.hpp"
#include "dsakit/modes.hpp"
#include "dsakit/tensor.hpp"

namespace dsakit {

/// int8 matrices, multiplied exactly; what becomes of the int32 sums depends on output_dtype and pertoken_scale.
/// output_dtype "": int8. docs/operators/quant_matmul.md
struct QuantMatmulArgs {
  Tensor x1;
  Tensor x2;
  Tensor scale{};
  Tensor offset{};
  Tensor pertoken_scale{};
  Tensor bias{};
  std::string_view output_dtype{};
  Level level = Level::portable;
};

struct QuantMatmulOuts {
  Tensor y;
};

void quant_matmul(const QuantMatmulArgs&, const QuantMatmulOuts&, Context& = default_context());
void infer(const QuantMatmulArgs&, QuantMatmulOuts&);

template <class A, class O, class V>
requires std::same_as<std::remove_const_t<A>, QuantMatmulArgs>
constexpr void for_each_field(A& a, O& o, V&& v) {
  v({"x1", Role::in, Kind::data, "int8", "[.., m, k], k <= 131071", "codes of rows"}, a.x1);
  v({"x2", Role::in, Kind::weight, "int8", "[.., k, n], leading axes as those of x1, or 1, or fewer",
     "codes of a weight"},
    a.x2);
  v({"scale", Role::in_opt, Kind::scale, "float32, bfloat16", "[n] or [1]; int32 output: may be None, has no effect",
     "what a column is worth", kWithoutDefault},
    a.scale);
  v({"offset", Role::in_opt, Kind::data, "float32", "[n] or [1], int8 output only", "added before rounding to int8"},
    a.offset);
  v({"pertoken_scale", Role::in_opt, Kind::scale, "float32", "[m], bfloat16 and float16 output only",
     "what a row is worth"},
    a.pertoken_scale);
  v({"bias", Role::in_opt, Kind::data, "int32; beside pertoken_scale float32", "[n], not with int32 output",
     "added to the sums; beside pertoken_scale to the scaled values"},
    a.bias);
  v({"output_dtype", Role::attribute, Kind::dtype, "dtype", "int8 (None), float16, bfloat16, int32", "type of y"},
    a.output_dtype);
  v({"x1_dtype", Role::reserved, Kind::dtype, "dtype", "", "reserved"}, kAbsent);
  v({"x2_dtype", Role::reserved, Kind::dtype, "dtype", "", "reserved"}, kAbsent);
  v({"pertoken_scale_dtype", Role::reserved, Kind::dtype, "dtype", "", "reserved"}, kAbsent);
  v({"scale_dtype", Role::reserved, Kind::dtype, "dtype", "", "reserved"}, kAbsent);
  v({"group_sizes", Role::reserved, Kind::reserved, "", "", "reserved"}, kAbsent);
  v({"y_scale", Role::reserved, Kind::reserved, "", "", "reserved"}, kAbsent);
  v(kLevelField, a.level);
  v({"y", Role::out, Kind::data, "output_dtype", "[.., m, n]", "product"}, o.y);
}
constexpr Description describe(const QuantMatmulArgs&) {
  return {
      .summary = "Product of int8 matrices, exact in int32, then scaled, or quantised again",
      .formula =
          "s = x1 x2 in int32, every operation behind it rounded to float32:\n"
          "pertoken_scale: y = s * pertoken_scale[m] * scale[n] + bias[n]\n"
          "without it:     y = (s + bias[n]) * scale[n]; int8: y = sat8(rint((s + bias[n]) * scale[n] + offset[n]))\n"
          "int32:          y = s",
      .errors =
          "INVALID_ARGUMENT: a tensor is missing or does not belong to the output, output_dtype is unknown\n"
          "UNSUPPORTED: int64 scales, int4 codes in int32\n"
          "INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed",
      .source = "torch_npu.npu_quant_matmul",
      .page = "quant_matmul.md",
      .family = Family::torch_npu,
      .positional = 3};
}

namespace reference {
void quant_matmul(const QuantMatmulArgs&, const QuantMatmulOuts&);
}

}  // namespace dsakit
