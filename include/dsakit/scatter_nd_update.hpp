// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <concepts>
#include <type_traits>

#include "dsakit/context.hpp"
#include "dsakit/field.hpp"
#include "dsakit/modes.hpp"
#include "dsakit/tensor.hpp"

// Rows to places of a tensor, in the order in which they are given: the last row for a place wins.
// docs/operators/scatter_nd_update.md
namespace dsakit {

/// In place.
struct ScatterNdUpdateInPlaceArgs {
  Tensor self;
  Tensor indices;
  Tensor updates;
  Level level = Level::portable;
};

struct ScatterNdUpdateInPlaceOuts {};

void scatter_nd_update_(const ScatterNdUpdateInPlaceArgs&, const ScatterNdUpdateInPlaceOuts&,
                        Context& = default_context());
void infer(const ScatterNdUpdateInPlaceArgs&, ScatterNdUpdateInPlaceOuts&);

/// On a copy of self.
struct ScatterNdUpdateArgs : ScatterNdUpdateInPlaceArgs {};

struct ScatterNdUpdateOuts {
  Tensor out;
};

void scatter_nd_update(const ScatterNdUpdateArgs&, const ScatterNdUpdateOuts&, Context& = default_context());
void infer(const ScatterNdUpdateArgs&, ScatterNdUpdateOuts&);

template <class A, class V>
constexpr void for_each_scatter_nd_update_input(A& a, bool functional, V&& v) {
  v({"self", functional ? Role::in : Role::inout, Kind::cache, "float32, float16, bfloat16, int64, int8, bool",
     "any rank from 1 on", "where rows go"},
    a.self);
  v({"indices", Role::in, Kind::index, "int32, int64", "[.., a], 1 <= a <= rank of self",
     "place of each row in the first a axes of self; a = 1: a negative one skips its row"},
    a.indices);
  v({"updates", Role::in, Kind::data, "dtype of self", "axes of indices but the last, then axes a .. of self", "rows"},
    a.updates);
  v(kLevelField, a.level);
}

template <class A, class O, class V>
requires std::same_as<std::remove_const_t<A>, ScatterNdUpdateInPlaceArgs>
constexpr void for_each_field(A& a, O&, V&& v) { for_each_scatter_nd_update_input(a, false, v); }
constexpr Description describe(const ScatterNdUpdateInPlaceArgs&) {
  return {.summary = "Write rows to places of a tensor, in place",
          .formula = "self[indices[i]] = updates[i] for ascending i",
          .errors =
              "INVALID_ARGUMENT: a tensor is missing\n"
              "INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed\n"
              "INVALID_INDEX: a place outside self",
          .source = "torch_npu.npu_scatter_nd_update_",
          .page = "scatter_nd_update.md",
          .family = Family::torch_npu,
          .positional = 3};
}

template <class A, class O, class V>
requires std::same_as<std::remove_const_t<A>, ScatterNdUpdateArgs>
constexpr void for_each_field(A& a, O& o, V&& v) {
  for_each_scatter_nd_update_input(a, true, v);
  v({"out", Role::out, Kind::cache, "dtype of self", "shape of self", "a copy of self with the rows"}, o.out);
}
constexpr Description describe(const ScatterNdUpdateArgs&) {
  return {.summary = "Write rows to places of a copy of a tensor",
          .formula = "out = self, then out[indices[i]] = updates[i] for ascending i",
          .errors =
              "INVALID_ARGUMENT: a tensor is missing\n"
              "INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed\n"
              "INVALID_INDEX: a place outside self",
          .source = "torch_npu.npu_scatter_nd_update",
          .page = "scatter_nd_update.md",
          .family = Family::torch_npu,
          .positional = 3};
}

namespace reference {
void scatter_nd_update_(const ScatterNdUpdateInPlaceArgs&, const ScatterNdUpdateInPlaceOuts&);
void scatter_nd_update(const ScatterNdUpdateArgs&, const ScatterNdUpdateOuts&);
}  // namespace reference

}  // namespace dsakit
