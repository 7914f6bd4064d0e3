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

/// Static quantisation, per tensor or along one axis:
///
///   div_mode         q = sat(rint(fp32(input / scale)) + zero_point)
///   not div_mode     q = sat(rint(fp32(fp32(input * scale) + zero_point)))
///
/// rint rounds half to even; sat clamps to the range of the output; NaN becomes 0. docs/operators/quantize.md
struct QuantizeArgs {
  Tensor input;              // f32 f16 bf16, rank >= 1, any strides with the last 1
  Tensor scales;             // [n of axis] or [1]; div_mode: f32, or bf16 with bf16 input; else dtype of input, also
                             // of input's rank with the other axes 1
  Tensor zero_points{};      // shape of scales; div_mode: i8 u8 i32 bf16 (rounded to an integer); else as scales
  std::string_view dtype = "";  // div_mode: qint8 int8, quint8 uint8, qint32 int32; else qint8, quint4x2
  std::int64_t axis = 1;     // negative: from the end. Not div_mode: -2, or anything else for the last
  bool div_mode = true;
  Level level = Level::portable;
};

struct QuantizeOuts {
  Tensor y;                  // i8, u8 or i32, shape of input; quint4x2: i32, last axis / 8, the first code lowest
};

void quantize(const QuantizeArgs&, const QuantizeOuts&, Context& = default_context());
void infer(const QuantizeArgs&, QuantizeOuts&);

template <class A, class O, class V>
  requires std::same_as<std::remove_const_t<A>, QuantizeArgs>
constexpr void for_each_field(A& a, O& o, V&& v) {
  v("input", a.input, Role::in);
  v("scales", a.scales, Role::in);
  v("zero_points", a.zero_points, Role::in_opt);
  v("dtype", a.dtype, Role::attribute);
  v("axis", a.axis, Role::attribute);
  v("div_mode", a.div_mode, Role::attribute);
  v("level", a.level, Role::attribute);
  v("y", o.y, Role::out);
}
constexpr int positional(const QuantizeArgs&) { return 6; }

namespace reference {
void quantize(const QuantizeArgs&, const QuantizeOuts&);
}

}  // namespace dsakit
