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

/// A zero block (or one so small that m overflows) has codes 0 and scale 0, min_scale or not.
struct DynamicBlockQuantArgs {
  Tensor x;
  double min_scale = 0;
  std::string_view round_mode = "rint";
  std::int64_t dst_type = 1;
  std::int64_t row_block_size = 1;
  std::int64_t col_block_size = 128;
  double dst_type_max = 0;
  Level level = Level::portable;
};

struct DynamicBlockQuantOuts {
  Tensor y;
  Tensor scale;
};

void dynamic_block_quant(const DynamicBlockQuantArgs&, const DynamicBlockQuantOuts&, Context& = default_context());
void infer(const DynamicBlockQuantArgs&, DynamicBlockQuantOuts&);

template <class A, class O, class V>
requires std::same_as<std::remove_const_t<A>, DynamicBlockQuantArgs>
constexpr void for_each_field(A& a, O& o, V&& v) {
  v({"x", Role::in, Kind::data, "bfloat16, float16", "[rows, n] or [b, rows, n]",
     "rows to quantise, any strides with the last 1"},
    a.x);
  v({"min_scale", Role::attribute, Kind::number, "float", "finite, >= 0",
     "above 0: the lowest factor of a block, and its reciprocal the largest scale"},
    a.min_scale);
  v({"round_mode", Role::attribute, Kind::mode, "str", "rint", "half to even"}, a.round_mode);
  v({"dst_type", Role::attribute, Kind::dtype, "int", "1: int8", "type of the codes; others are reserved"}, a.dst_type);
  v({"row_block_size", Role::attribute, Kind::number, "int", "1", "rows of a block; others are reserved"},
    a.row_block_size);
  v({"col_block_size", Role::attribute, Kind::number, "int", ">= 1; strict: 128",
     "columns of a block, the last of a row may be shorter"},
    a.col_block_size);
  v({"dst_type_max", Role::attribute, Kind::number, "float", "0", "reserved"}, a.dst_type_max);
  v(kLevelField, a.level);
  v({"y", Role::out, Kind::data, "int8", "shape of x", "the codes"}, o.y);
  v({"scale", Role::out, Kind::scale, "float32", "shape of x, last axis ceil(n / col_block_size)",
     "what a code of the block is worth"},
    o.scale);
}
constexpr Description describe(const DynamicBlockQuantArgs&) {
  return {.summary = "Quantise blocks of each row symmetrically to int8, with a scale each",
          .formula =
              "a = max |x| of the block, m = fp32(fp32(1/a) * 127)\n"
              "y = sat8(rint(fp32(x * m))), scale = fp32(a * fp32(1/127))\n"
              "min_scale > 0: m is at least min_scale, scale at most fp32(1/min_scale)",
          .errors =
              "INVALID_ARGUMENT: x is missing, min_scale is negative or not finite, round_mode is not rint, a block "
              "size is below 1\n"
              "UNSUPPORTED: dst_type other than int8, row_block_size other than 1, dst_type_max other than 0; strict: "
              "col_block_size other than 128\n"
              "INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed",
          .source = "torch_npu.npu_dynamic_block_quant",
          .page = "dynamic_block_quant.md",
          .family = Family::torch_npu,
          .positional = 1};
}

namespace reference {
void dynamic_block_quant(const DynamicBlockQuantArgs&, const DynamicBlockQuantOuts&);
}

}  // namespace dsakit
