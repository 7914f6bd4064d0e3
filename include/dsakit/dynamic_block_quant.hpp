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

/// Symmetric quantisation of blocks of one row by col_block_size columns, the last of a row possibly shorter:
/// a = max |x|, m = fp32(fp32(1/a) * 127), y = sat8(rint(fp32(x * m))), scale = fp32(a * fp32(1/127)). With
/// min_scale > 0: m is at least min_scale, scale at most fp32(1/min_scale). A zero block (or one so small that m
/// overflows) has codes 0 and scale 0. docs/operators/dynamic_block_quant.md
struct DynamicBlockQuantArgs {
  Tensor x;                            // bf16 f16 [rows, n] or [b, rows, n], any strides with the last 1
  double min_scale = 0;
  std::string_view round_mode = "rint";
  std::int64_t dst_type = 1;           // 1: int8
  std::int64_t row_block_size = 1;
  std::int64_t col_block_size = 128;
  double dst_type_max = 0;
  Level level = Level::portable;
};

struct DynamicBlockQuantOuts {
  Tensor y;                            // i8, shape of x
  Tensor scale;                        // f32, last axis ceil(n / col_block_size)
};

void dynamic_block_quant(const DynamicBlockQuantArgs&, const DynamicBlockQuantOuts&, Context& = default_context());
void infer(const DynamicBlockQuantArgs&, DynamicBlockQuantOuts&);

template <class A, class O, class V>
  requires std::same_as<std::remove_const_t<A>, DynamicBlockQuantArgs>
constexpr void for_each_field(A& a, O& o, V&& v) {
  v("x", a.x, Role::in);
  v("min_scale", a.min_scale, Role::attribute);
  v("round_mode", a.round_mode, Role::attribute);
  v("dst_type", a.dst_type, Role::attribute);
  v("row_block_size", a.row_block_size, Role::attribute);
  v("col_block_size", a.col_block_size, Role::attribute);
  v("dst_type_max", a.dst_type_max, Role::attribute);
  v("level", a.level, Role::attribute);
  v("y", o.y, Role::out);
  v("scale", o.scale, Role::out);
}
constexpr int positional(const DynamicBlockQuantArgs&) { return 1; }

namespace reference {
void dynamic_block_quant(const DynamicBlockQuantArgs&, const DynamicBlockQuantOuts&);
}

}  // namespace dsakit
