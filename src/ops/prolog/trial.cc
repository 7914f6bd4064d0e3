// SPDX-License-Identifier: Apache-2.0
#include "ops/prolog/trial.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "core/float16.hpp"
#include "ops/prolog/door.hpp"

namespace dsakit::prolog {
namespace {

Rows rows_of(void* data, DType dtype, std::int64_t count, std::int64_t width) {
  Tensor t = shaped(dtype, {count, width});
  t.data = data;
  return flat_rows(t, width);
}

/// 0 stands for a group of zeros only.
bool in_range(f16 scale, const std::int8_t* codes, std::int64_t n) {
  const float x = to_float(scale);
  return std::isfinite(x) && (x > 0 || std::all_of(codes, codes + n, [](std::int8_t c) { return c == 0; }));
}

void refuse(const Check& check, const char* name, const Rows& scales, std::int64_t row, f16 scale) {
  check.fail(Status::invalid_value, name, subscript(scales.tensor, row), "becomes " + std::to_string(to_float(scale)),
             "a scale within the range of float16", "value checking");
}

}  // namespace

Trial::Trial(const IndexerProblem& given)
    : given_(given),
      mine_(given),
      q_codes_(std::size_t(given.tokens * given.heads * given.dim)),
      k_codes_(std::size_t(given.tokens * given.dim)),
      q_scales_(std::size_t(given.tokens * given.heads)),
      weights_(std::size_t(given.tokens * given.heads)),
      k_scales_(std::size_t(given.tokens)),
      rows_(std::size_t(given.tokens)) {
  const std::int64_t t = given.tokens;
  for (std::int64_t i = 0; i < t; ++i) {
    const bool stored = given.k_cache.count > 0 && *given.cache_index.row<const std::int64_t>(i) >= 0;
    rows_[std::size_t(i)] = stored ? i : -1;
  }
  mine_.cache_index = rows_of(rows_.data(), DType::i64, t, 1);
  mine_.q_int8 = rows_of(q_codes_.data(), DType::i8, t * given.heads, given.dim);
  mine_.q_scale = rows_of(q_scales_.data(), DType::f16, t * given.heads, 1);
  mine_.weights = rows_of(weights_.data(), DType::f16, t, given.heads);
  mine_.k_cache = rows_of(k_codes_.data(), DType::i8, t, given.dim);
  mine_.k_scale_cache = rows_of(k_scales_.data(), given.k_scale_cache.tensor.dtype, t, 1);
}

void Trial::check_scales(const Check& check, const char* q_scale, const char* k_scale_cache) const {
  const std::int64_t dim = given_.dim;
  for (std::int64_t i = 0; i < given_.tokens * given_.heads; ++i)
    if (const f16 scale = q_scales_[std::size_t(i)]; !in_range(scale, q_codes_.data() + i * dim, dim))
      refuse(check, q_scale, given_.q_scale, i, scale);
  if (given_.k_scale_cache.tensor.dtype != DType::f16) return;
  for (std::int64_t i = 0; i < given_.tokens; ++i)
    if (const f16 scale = *mine_.k_scale_cache.row<const f16>(i);
        rows_[std::size_t(i)] >= 0 && !in_range(scale, k_codes_.data() + i * dim, dim))
      refuse(check, k_scale_cache, given_.k_scale_cache, *given_.cache_index.row<const std::int64_t>(i), scale);
}

}  // namespace dsakit::prolog
