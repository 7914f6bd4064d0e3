// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <concepts>
#include <type_traits>

#include "dsakit/context.hpp"
#include "dsakit/field.hpp"
#include "dsakit/modes.hpp"
#include "dsakit/tensor.hpp"

namespace dsakit {

/// The rotation of MLA queries and keys: pairs in, halves out, with m = Dr/2 and j < m
///
///   y[j]     = x[2j] * cos[j] - x[2j+1] * sin[j]
///   y[m + j] = x[2j+1] * cos[m + j] + x[2j] * sin[m + j]
///
/// in fp32, two products and one sum, rounded once. docs/operators/rope.md
struct InterleaveRopeArgs {
  Tensor x;    // bf16 f16 [B, N, S, Dr], Dr even
  Tensor cos;  // dtype of x, [B, 1, S or 1, Dr]
  Tensor sin;
  Level level = Level::portable;
};

struct InterleaveRopeOuts {
  Tensor y;    // as x
};

void interleave_rope(const InterleaveRopeArgs&, const InterleaveRopeOuts&, Context& = default_context());
void infer(const InterleaveRopeArgs&, InterleaveRopeOuts&);

template <class A, class O, class V>
  requires std::same_as<std::remove_const_t<A>, InterleaveRopeArgs>
constexpr void for_each_field(A& a, O& o, V&& v) {
  v("x", a.x, Role::in);
  v("cos", a.cos, Role::in);
  v("sin", a.sin, Role::in);
  v("level", a.level, Role::attribute);
  v("y", o.y, Role::out);
}
constexpr int positional(const InterleaveRopeArgs&) { return 3; }

namespace reference {
void interleave_rope(const InterleaveRopeArgs&, const InterleaveRopeOuts&);
}

}  // namespace dsakit
