// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "core/view.hpp"
#include "ops/prolog/formula.hpp"
#include "ops/rms_norm/problem.hpp"

namespace dsakit::rms_norm_op {
namespace {

using prolog::formula::Row;

/// Row r of as many tensors' rows as it has pieces.
Row row_of(const Problem& p, const Rows& rows, std::int64_t r) {
  Row x;
  for (std::int64_t i = 0; i < p.row_width(); ++i)
    x.push_back(float_at(rows.tensor, rows.offset(r * p.pieces + i / p.width) + i % p.width));
  return x;
}

/// Rounds the row to the tensor's dtype, and puts it there.
void put(const Problem& p, const Rows& rows, std::int64_t r, Row& x) {
  for (std::int64_t i = 0; i < p.row_width(); ++i) {
    float& v = x[std::size_t(i)];
    const std::int64_t at = rows.offset(r * p.pieces + i / p.width) + i % p.width;
    store(rows.tensor, at, v);
    v = float_at(rows.tensor, at);
  }
}

}  // namespace

void reference(const Problem& p) {
  if (p.rows == 0) return;
  const Row gamma = row_of(p, p.gamma, 0), beta = p.beta.tensor.data ? row_of(p, p.beta, 0) : Row();
  for (std::int64_t r = 0; r < p.rows; ++r) {
    Row x = row_of(p, p.x, r);
    if (p.adds) {
      const Row x2 = row_of(p, p.x2, r);
      for (std::size_t i = 0; i < x.size(); ++i) x[i] = x[i] + x2[i];
      put(p, p.sum, r, x);
    }
    Row squares = x;
    for (float& v : squares) v = v * v;
    const float mean = prolog::formula::canonical_sum(squares) * (1.0f / float(x.size()));
    const float rstd = 1.0f / std::sqrt(mean + p.epsilon);
    *p.rstd.row<float>(r) = rstd;
    for (float& v : x) v = v * rstd;
    if (p.adds) put(p, p.y, r, x);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = x[i] * gamma[i];
    if (!beta.empty() && p.y.tensor.dtype == DType::f16) put(p, p.y, r, x);
    for (std::size_t i = 0; i < beta.size(); ++i) x[i] = x[i] + beta[i];
    put(p, p.y, r, x);
  }
}

}  // namespace dsakit::rms_norm_op
