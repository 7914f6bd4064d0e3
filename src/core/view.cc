// SPDX-License-Identifier: Apache-2.0
#include "core/view.hpp"

namespace dsakit {

Rows::Rows(const Tensor& t, int row_axes) : tensor(t), row_axes(row_axes), count(1), uniform_stride(0) {
  std::int64_t step = 0;  // elements between neighbours once an axis longer than 1 has been seen
  for (int a = t.rank - row_axes - 1; a >= 0; --a) {
    if (t.shape[a] != 1) {
      if (count == 1) step = t.stride[a];
      else if (t.stride[a] != step * count) uniform_stride = -1;
    }
    count *= t.shape[a];
  }
  if (uniform_stride == 0) uniform_stride = step;
}

}  // namespace dsakit
