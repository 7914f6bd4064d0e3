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

/// y = x * r1 + rot(x) * r2 in fp32, two products and one sum, rounded once. rot(x), D elements of a row:
///
///   half         [-x[D/2 ..], x[.. D/2]]
///   interleave   pairs (x[2i], x[2i+1]) become (-x[2i+1], x[2i])
///
/// The order of the elements stays. docs/operators/rope.md
struct RotaryMulArgs {
  Tensor x;                              // bf16 f16 f32, rank 3 or 4, last axis even
  Tensor r1;                             // cos: dtype and rank of x, every axis that of x, or 1 but for the last
  Tensor r2;                             // sin
  std::string_view rotary_mode = "half";  // half, interleave
  Tensor rotate{};                       // reserved
  Level level = Level::portable;
};

struct RotaryMulOuts {
  Tensor y;                              // as x
};

void rotary_mul(const RotaryMulArgs&, const RotaryMulOuts&, Context& = default_context());
void infer(const RotaryMulArgs&, RotaryMulOuts&);

template <class A, class O, class V>
  requires std::same_as<std::remove_const_t<A>, RotaryMulArgs>
constexpr void for_each_field(A& a, O& o, V&& v) {
  v("x", a.x, Role::in);
  v("r1", a.r1, Role::in);
  v("r2", a.r2, Role::in);
  v("rotary_mode", a.rotary_mode, Role::attribute);
  v("rotate", a.rotate, Role::in_opt);
  v("level", a.level, Role::attribute);
  v("y", o.y, Role::out);
}
constexpr int positional(const RotaryMulArgs&) { return 5; }

namespace reference {
void rotary_mul(const RotaryMulArgs&, const RotaryMulOuts&);
}

}  // namespace dsakit
