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

/// A zero row (or one so small that 127/a overflows) has codes 0 and scale 0.
struct DynamicQuantArgs {
  Tensor input;
  Tensor smooth_scales{};
  Tensor group_index{};
  std::string_view dst_type = "";
  std::string_view quant_mode = "pertoken";
  double dst_type_max = 0;
  Level level = Level::portable;
};

struct DynamicQuantOuts {
  Tensor y;
  Tensor scale;
};

void dynamic_quant(const DynamicQuantArgs&, const DynamicQuantOuts&, Context& = default_context());
void infer(const DynamicQuantArgs&, DynamicQuantOuts&);

template <class A, class O, class V>
requires std::same_as<std::remove_const_t<A>, DynamicQuantArgs>
constexpr void for_each_field(A& a, O& o, V&& v) {
  v({"input", Role::in, Kind::data, "bfloat16, float16; portable: float32", "[..., n], rank >= 2",
     "rows to quantise, any strides with the last 1"},
    a.input);
  v({"smooth_scales", Role::in_opt, Kind::data, "dtype of input", "[n]; with group_index [G, n]; perchannel: [axis -2]",
     "factors of the columns (perchannel: of the rows), applied first"},
    a.smooth_scales);
  v({"group_index", Role::in_opt, Kind::index, "int32", "[G]",
     "where the rows of each group end, not decreasing, the last the number of rows"},
    a.group_index);
  v({"dst_type", Role::attribute, Kind::dtype, "dtype", "None, int8, qint8: int8; quint4x2: int4", "type of the codes"},
    a.dst_type);
  v({"quant_mode", Role::attribute, Kind::mode, "str", "pertoken; portable: perchannel, pertensor",
     "what has a scale of its own: a row, a column of the last two axes, everything"}, a.quant_mode);
  v({"dst_type_max", Role::attribute, Kind::number, "float", "0", "reserved"}, a.dst_type_max);
  v(kLevelField, a.level);
  v({"y", Role::out, Kind::data, "int8; int4: int32", "shape of input; int4: last axis / 8",
     "the codes; int4: eight in an int32, the first in the lowest bits"},
    o.y);
  v({"scale", Role::out, Kind::scale, "float32", "shape of input without its last axis; perchannel: without axis -2; pertensor: [1]",
     "what a code of the row, column or tensor is worth"},
    o.scale);
}
constexpr Description describe(const DynamicQuantArgs&) {
  return {
      .summary = "Quantise symmetrically to int8 or int4, with the scale of each row, each column or the whole tensor",
      .formula =
          "z = input * smooth, a = max |z| of what has a scale of its own\n"
          "y = rint(z * fp32(127/a)), scale = fp32(a/127); int4: 7 in place of 127",
      .errors =
          "INVALID_ARGUMENT: input is missing, quant_mode or dst_type is unknown, group_index without smooth_scales "
          "or with another mode than pertoken\n"
          "UNSUPPORTED: an 8-bit float, dst_type_max other than 0; strict: float32, quant_mode perchannel or pertensor\n"
          "INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed\n"
          "INVALID_SEQLEN: group_index decreases or does not end at the number of rows",
      .source = "torch_npu.npu_dynamic_quant",
      .page = "dynamic_quant.md",
      .family = Family::torch_npu,
      .positional = 1};
}

namespace reference {
void dynamic_quant(const DynamicQuantArgs&, const DynamicQuantOuts&);
}

}  // namespace dsakit
