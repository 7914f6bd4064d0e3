// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "core/view.hpp"
#include "ops/swiglu/problem.hpp"

namespace dsakit::reference {

void swiglu(const SwigluArgs& args, const SwigluOuts& outs) {
  const auto p = swiglu_op::check(args, outs);
  for (std::int64_t r = 0; r < p.rows; ++r)
    for (std::int64_t i = 0; i < p.width; ++i) {
      const float a = float_at(p.gate.tensor, p.gate.offset(r) + i),
                  b = float_at(p.value.tensor, p.value.offset(r) + i);
      const float e = float(std::exp(-double(a)));
      store(p.y.tensor, p.y.offset(r) + i, a / (1.0f + e) * b);
    }
}

}  // namespace dsakit::reference
