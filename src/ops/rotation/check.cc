// SPDX-License-Identifier: Apache-2.0
#include "ops/rotation/problem.hpp"
#include "ops/row_operator.hpp"

namespace dsakit::rotation {
namespace {

/// `t` as if it had the shape of `x`.
Rows broadcast(const Tensor& t, const Tensor& x) {
  Tensor wide = t;
  for (int axis = 0; axis < x.rank; ++axis)
    if (t.shape[axis] == 1) wide.stride[axis] = 0;
  wide.shape = x.shape;
  return Rows(wide, 1);
}

}  // namespace

Problem resolve(const Check& check, Kind kind, const Tensor& x, const Tensor& cos, const Tensor& sin, const Tensor& y) {
  check_out(check, y, "y", like(x, x.dtype), "shape of x");
  const int last = x.rank - 1;
  Problem p{.kind = kind,
            .x = Rows(x, 1),
            .y = Rows(y, 1),
            .cos = broadcast(cos, x),
            .sin = broadcast(sin, x),
            .rows = 1,
            .width = x.shape[last]};
  for (int axis = 0; axis < last; ++axis) p.rows *= x.shape[axis];
  if (p.width == 0) p.rows = 0;  // as many as may be
  return p;
}

}  // namespace dsakit::rotation
