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

/// Symmetric quantisation of each row: a = max |z|, code = rint(z * fp32(127/a)), scale = fp32(a/127), z = input * smooth.
/// int4 ("quint4x2"): 7 in place of 127, eight codes in an int32, low nibble first. A zero row (or one so small that
/// 127/a overflows) has codes 0 and scale 0. docs/operators/dynamic_quant.md
struct DynamicQuantArgs {
  Tensor input;            // bf16 f16 (portable: f32) [..., n], rank >= 2, any strides with the last 1
  Tensor smooth_scales{};  // dtype of input, [n]; [G, n] with group_index
  Tensor group_index{};    // i32 [G], non-decreasing end rows over the flattened rows
  std::string_view dst_type = "";  // "", "int8", "qint8": int8; "quint4x2": int4
  std::string_view quant_mode = "pertoken";
  double dst_type_max = 0;
  Level level = Level::portable;
};

struct DynamicQuantOuts {
  Tensor y;                // i8, shape of input; int4: i32, last axis / 8
  Tensor scale;            // f32, shape of input without its last axis
};

void dynamic_quant(const DynamicQuantArgs&, const DynamicQuantOuts&, Context& = default_context());
void infer(const DynamicQuantArgs&, DynamicQuantOuts&);

template <class A, class O, class V>
  requires std::same_as<std::remove_const_t<A>, DynamicQuantArgs>
constexpr void for_each_field(A& a, O& o, V&& v) {
  v("input", a.input, Role::in);
  v("smooth_scales", a.smooth_scales, Role::in_opt);
  v("group_index", a.group_index, Role::in_opt);
  v("dst_type", a.dst_type, Role::attribute);
  v("quant_mode", a.quant_mode, Role::attribute);
  v("dst_type_max", a.dst_type_max, Role::attribute);
  v("level", a.level, Role::attribute);
  v("y", o.y, Role::out);
  v("scale", o.scale, Role::out);
}
constexpr int positional(const DynamicQuantArgs&) { return 1; }

namespace reference {
void dynamic_quant(const DynamicQuantArgs&, const DynamicQuantOuts&);
}

}  // namespace dsakit
