// SPDX-License-Identifier: Apache-2.0
#include "core/view.hpp"
#include "ops/rotation/problem.hpp"

namespace dsakit::rotation {

void reference(const Problem& p) {
  const std::int64_t m = p.width / 2;
  for (std::int64_t r = 0; r < p.rows; ++r)
    for (std::int64_t i = 0; i < p.width; ++i) {
      // Output i is x[from] * cos + (sign * x[partner]) * sin.
      std::int64_t from = i, partner = i < m ? i + m : i - m;
      bool negative = i < m;
      if (p.kind == Kind::interleave) partner = i ^ 1, negative = i % 2 == 0;
      if (p.kind == Kind::to_half) from = i < m ? 2 * i : 2 * (i - m) + 1, partner = from ^ 1;
      auto x = [&](std::int64_t j) { return float_at(p.x.tensor, p.x.offset(r) + j); };
      const float cos = float_at(p.cos.tensor, p.cos.offset(r) + i);
      const float sin = float_at(p.sin.tensor, p.sin.offset(r) + i);
      float turned = negative ? -x(partner) : x(partner);
      if (p.matrix) {
        from = i, turned = 0;
        for (std::int64_t k = 0; k < p.width; ++k)
          turned = turned + x(k) * float_at(p.matrix, k * p.matrix.stride[0] + i * p.matrix.stride[1]);
      }
      const float along = x(from) * cos, across = turned * sin;
      store(p.y.tensor, p.y.offset(r) + i, along + across);
    }
}

}  // namespace dsakit::rotation
