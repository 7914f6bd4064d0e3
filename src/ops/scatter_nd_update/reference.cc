// SPDX-License-Identifier: Apache-2.0
#include "ops/scatter_nd_update/problem.hpp"

namespace dsakit::reference {
namespace {

using scatter_nd_update_op::Problem;

void run(const Problem& p) {
  copy_elements(p.self, p.copied);
  std::int64_t width = 1;
  for (int axis = p.depth; axis < p.self.rank; ++axis) width *= p.self.shape[axis];
  for (std::int64_t r = 0; r < p.indices.count; ++r)
    for (std::int64_t i = 0; i < width && !p.skipped(r); ++i)
      move_element(p.self, offset_of(p.self, p.place(r) * width + i), p.updates.tensor,
                   offset_of(p.updates.tensor, r * width + i));
}

}  // namespace

void scatter_nd_update_(const ScatterNdUpdateInPlaceArgs& a, const ScatterNdUpdateInPlaceOuts& o) {
  run(scatter_nd_update_op::check(a, o));
}

void scatter_nd_update(const ScatterNdUpdateArgs& a, const ScatterNdUpdateOuts& o) {
  run(scatter_nd_update_op::check(a, o));
}

}  // namespace dsakit::reference
