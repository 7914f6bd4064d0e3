// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <concepts>
#include <type_traits>

#include "dsakit/context.hpp"
#include "dsakit/field.hpp"
#include "dsakit/modes.hpp"
#include "dsakit/tensor.hpp"

namespace dsakit {

/// The rotation of MLA queries and keys. Two fp32 products and one sum, rounded once.
struct InterleaveRopeArgs {
  Tensor x;
  Tensor cos;
  Tensor sin;
  Level level = Level::portable;
};

struct InterleaveRopeOuts {
  Tensor y;
};

void interleave_rope(const InterleaveRopeArgs&, const InterleaveRopeOuts&, Context& = default_context());
void infer(const InterleaveRopeArgs&, InterleaveRopeOuts&);

template <class A, class O, class V>
requires std::same_as<std::remove_const_t<A>, InterleaveRopeArgs>
constexpr void for_each_field(A& a, O& o, V&& v) {
  v({"x", Role::in, Kind::data, "bfloat16, float16", "[B, N, S, Dr], Dr even; strict: Dr = 64", "rows to rotate"}, a.x);
  v({"cos", Role::in, Kind::data, "dtype of x", "[B, 1, S or 1, Dr]", "cosines, both halves used as given"}, a.cos);
  v({"sin", Role::in, Kind::data, "dtype of x", "[B, 1, S or 1, Dr]", "sines, likewise"}, a.sin);
  v(kLevelField, a.level);
  v({"y", Role::out, Kind::data, "dtype of x", "shape of x", "rotated rows, in halves"}, o.y);
}
constexpr Description describe(const InterleaveRopeArgs&) {
  return {.summary = "Rotate rows by position: pairs in, halves out",
          .formula =
              "with m = Dr/2 and j < m:\n"
              "y[j]     = x[2j] * cos[j] - x[2j+1] * sin[j]\n"
              "y[m + j] = x[2j+1] * cos[m + j] + x[2j] * sin[m + j]",
          .errors =
              "INVALID_ARGUMENT: a tensor is missing\n"
              "INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed\n"
              "UNSUPPORTED: strict: Dr is not 64",
          .source = "torch_npu.npu_interleave_rope",
          .page = "rope.md",
          .family = Family::torch_npu,
          .positional = 3};
}

namespace reference {
void interleave_rope(const InterleaveRopeArgs&, const InterleaveRopeOuts&);
}

}  // namespace dsakit
