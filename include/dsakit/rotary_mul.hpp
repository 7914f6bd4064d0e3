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

/// Two fp32 products and one sum, rounded once. The order of the elements stays.
struct RotaryMulArgs {
  Tensor x;
  Tensor r1;
  Tensor r2;
  std::string_view rotary_mode = "half";
  Tensor rotate{};
  Level level = Level::portable;
};

struct RotaryMulOuts {
  Tensor y;
};

void rotary_mul(const RotaryMulArgs&, const RotaryMulOuts&, Context& = default_context());
void infer(const RotaryMulArgs&, RotaryMulOuts&);

template <class A, class O, class V>
requires std::same_as<std::remove_const_t<A>, RotaryMulArgs>
constexpr void for_each_field(A& a, O& o, V&& v) {
  v({"x", Role::in, Kind::data, "bfloat16, float16, float32",
     "rank 3 or 4, last axis D even; strict: D < 896, axes 0 and 1 < 1000", "rows to rotate"},
    a.x);
  v({"r1", Role::in, Kind::data, "dtype of x", "rank of x, every axis that of x, or 1 but for the last", "cosines"},
    a.r1);
  v({"r2", Role::in, Kind::data, "dtype of x", "like r1, on its own", "sines"}, a.r2);
  v({"rotary_mode", Role::attribute, Kind::mode, "str", "half, interleave",
     "which elements turn together: j and j + D/2, or 2j and 2j + 1"},
    a.rotary_mode);
  v({"rotate", Role::in_opt, Kind::data, "dtype of x", "[D, D]; strict: absent",
     "what turns a row in place of rotary_mode, from the right"}, a.rotate);
  v(kLevelField, a.level);
  v({"y", Role::out, Kind::data, "dtype of x", "shape of x", "rotated rows, in the order of x"}, o.y);
}
constexpr Description describe(const RotaryMulArgs&) {
  return {.summary = "Rotate rows by position, each element where it was",
          .formula =
              "y = x * r1 + rot(x) * r2\n"
              "half:       rot(x) = [-x[D/2 ..], x[.. D/2]]\n"
              "interleave: pairs (x[2i], x[2i+1]) become (-x[2i+1], x[2i])\n"
              "with rotate: rot(x) = x @ rotate in fp32; rotary_mode has no effect",
          .errors =
              "INVALID_ARGUMENT: a tensor is missing, rotary_mode is unknown\n"
              "UNSUPPORTED: strict: rotate is given, D or a leading axis beyond the chip\n"
              "INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed",
          .source = "torch_npu.npu_rotary_mul",
          .page = "rope.md",
          .family = Family::torch_npu,
          .positional = 5};
}

namespace reference {
void rotary_mul(const RotaryMulArgs&, const RotaryMulOuts&);
}

}  // namespace dsakit
