// SPDX-License-Identifier: Apache-2.0
#include "core/view.hpp"
#include "ops/prolog/formula.hpp"
#include "ops/quant_matmul/problem.hpp"

namespace dsakit {

void reference::quant_matmul(const QuantMatmulArgs& a, const QuantMatmulOuts& o) {
  using namespace quant_matmul_op;
  const Problem p = check(a, o);
  for (std::int64_t r = 0; r < p.total; ++r) {
    const auto* row = p.x1.row<const std::int8_t>(r);
    const auto* matrix = reinterpret_cast<const std::int8_t*>(p.x2.matrix(p.rows > 0 ? r / p.rows : 0));
    for (std::int64_t j = 0; j < p.n(); ++j) {
      std::int64_t sum = 0;
      for (std::int64_t i = 0; i < p.k(); ++i) sum += std::int64_t(row[i]) * matrix[p.x2.at(i, j)];
      const std::int64_t at = p.y.offset(r) + j;
      if (o.y.dtype == DType::i32) {
        static_cast<std::int32_t*>(o.y.data)[at] = std::int32_t(sum);
        continue;
      }
      const float scale = float_at(p.scale, at_or_only(p.scale, j));
      float v;
      if (p.pertoken_scale) {
        v = float(sum) * p.pertoken(r);
        v = v * scale;
        if (p.bias) v = v + static_cast<const float*>(p.bias.data)[j];
      } else {
        if (p.bias) sum += static_cast<const std::int32_t*>(p.bias.data)[j];
        v = float(sum) * scale;
      }
      if (o.y.dtype != DType::i8) {
        store(o.y, at, v);
        continue;
      }
      if (p.offset) v = v + float_at(p.offset, at_or_only(p.offset, j));
      static_cast<std::int8_t*>(o.y.data)[at] = prolog::formula::i8(v);
    }
  }
}

}  // namespace dsakit
