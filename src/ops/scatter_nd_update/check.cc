// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>

#include "ops/row_operator.hpp"
#include "ops/scatter_nd_update/problem.hpp"

namespace dsakit {
namespace scatter_nd_update_op {
namespace {

using Args = ScatterNdUpdateInPlaceArgs;

/// Everything but the values of indices; returns how many axes they name.
int check_inputs(const Check& check, const Args& a, const Tensors& inputs) {
  check_given(check, inputs);
  check_countable(check, inputs);
  if (a.self.rank < 1) check.fail(Status::invalid_shape, "self", "", shape_text(a.self), "rank 1 or more");
  if (a.indices.rank < 1) check.fail(Status::invalid_shape, "indices", "", shape_text(a.indices), "rank 1 or more");
  const std::int64_t depth = a.indices.shape[a.indices.rank - 1];
  if (depth < 1 || depth > a.self.rank)
    check.fail(Status::invalid_shape, "indices", "", shape_text(a.indices),
               "a last axis of 1 to " + std::to_string(a.self.rank), "the rank of self");
  std::int64_t wanted[16];
  auto end = std::copy_n(a.indices.shape.begin(), a.indices.rank - 1, wanted);
  end = std::copy(a.self.shape.begin() + depth, a.self.shape.begin() + a.self.rank, end);
  if (a.updates.rank != end - wanted || !std::equal(wanted, end, a.updates.shape.begin()))
    check.fail(Status::invalid_shape, "updates", "", shape_text(a.updates),
               brackets({wanted, std::size_t(end - wanted)}),
               "axes of indices but the last, then those of self behind");
  check.dtype(a.self, "self", {DType::f32, DType::f16, DType::bf16, DType::i64, DType::i8, DType::boolean});
  check.dtype(a.indices, "indices", {DType::i32, DType::i64});
  check.dtype(a.updates, "updates", {a.self.dtype}, "dtype of self");
  check_memory(check, inputs, Caches::free_first_axis);
  return int(depth);
}

Problem resolve(const Check& check, const Args& a, const Tensor& self, int depth) {
  Problem p{.self = self,
            .indices = Rows(a.indices, 1),
            .updates = Rows(a.updates, self.rank - depth),
            .depth = depth,
            .copy = BlockCopy(self, depth, a.updates, a.indices.rank - 1)};
  for (std::int64_t r = 0; r < p.indices.count; ++r)
    for (int axis = 0; axis < depth; ++axis) {
      const std::int64_t i = p.index(r, axis);
      if (i < self.shape[axis] && (i >= 0 || depth == 1)) continue;
      check.fail(Status::invalid_index, "indices", subscript(a.indices, r * depth + axis), "is " + std::to_string(i),
                 (depth == 1 ? "below " : "0.. below ") + std::to_string(self.shape[axis]),
                 "axis " + std::to_string(axis) + " of self" + (depth == 1 ? "; negative: skipped" : ""));
    }
  return p;
}

}  // namespace

Problem check(const ScatterNdUpdateInPlaceArgs& a, const ScatterNdUpdateInPlaceOuts& o) {
  const Check check("scatter_nd_update_", a.level);
  const Tensors tensors(a, o);
  const int depth = check_inputs(check, a, tensors);
  check_separate(check, tensors);
  return resolve(check, a, a.self, depth);
}

Problem check(const ScatterNdUpdateArgs& a, const ScatterNdUpdateOuts& o) {
  const Check check("scatter_nd_update", a.level);
  const int depth = check_inputs(check, a, Tensors::inputs<ScatterNdUpdateOuts>(a));
  check_out(check, o.out, "out", like(a.self, a.self.dtype), "shape of self");
  check_separate(check, Tensors(a, o));
  Problem p = resolve(check, a, o.out, depth);
  p.copied = a.self;
  return p;
}

}  // namespace scatter_nd_update_op

void infer(const ScatterNdUpdateInPlaceArgs& a, ScatterNdUpdateInPlaceOuts&) {
  scatter_nd_update_op::check_inputs(Check("scatter_nd_update_", a.level), a,
                                     Tensors::inputs<ScatterNdUpdateInPlaceOuts>(a));
}

void infer(const ScatterNdUpdateArgs& a, ScatterNdUpdateOuts& o) {
  scatter_nd_update_op::check_inputs(Check("scatter_nd_update", a.level), a, Tensors::inputs<ScatterNdUpdateOuts>(a));
  if (!o.out) o.out = like(a.self, a.self.dtype);
}

}  // namespace dsakit
