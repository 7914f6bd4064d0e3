// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "core/view.hpp"
#include "dsakit/scatter_nd_update.hpp"
#include "ops/moves.hpp"

namespace dsakit::scatter_nd_update_op {

/// Row r of `updates` goes to the place in the first `depth` axes of `self` that row r of `indices` names.
struct Problem {
  Tensor self, copied{};  // copied: what self is a copy of
  Rows indices, updates;
  int depth;
  BlockCopy copy;

  std::int64_t index(std::int64_t r, int axis) const {
    return integer_at(indices.tensor, indices.offset(r) + axis * indices.tensor.stride[indices.tensor.rank - 1]);
  }
  bool skipped(std::int64_t r) const { return depth == 1 && index(r, 0) < 0; }
  /// Row-major number of the place.
  std::int64_t place(std::int64_t r) const {
    std::int64_t number = 0;
    for (int axis = 0; axis < depth; ++axis) number = number * self.shape[axis] + index(r, axis);
    return number;
  }
  /// Its offset in self, in elements.
  std::int64_t offset(std::int64_t r) const {
    std::int64_t offset = 0;
    for (int axis = 0; axis < depth; ++axis) offset += index(r, axis) * self.stride[axis];
    return offset;
  }
};

Problem check(const ScatterNdUpdateInPlaceArgs&, const ScatterNdUpdateInPlaceOuts&);
Problem check(const ScatterNdUpdateArgs&, const ScatterNdUpdateOuts&);

}  // namespace dsakit::scatter_nd_update_op
