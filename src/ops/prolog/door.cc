// SPDX-License-Identifier: Apache-2.0
#include "ops/prolog/door.hpp"

#include <cmath>
#include <string>

namespace dsakit::prolog {
namespace {

std::string shape_text(const Tensor& t) { return "has shape " + brackets({t.shape.data(), std::size_t(t.rank)}); }

}  // namespace

CacheShape check_cache_shape(const Check& check, const Tensor& t, const char* name, std::int64_t width,
                             const CacheShape* like, const char* why) {
  CacheShape cache;
  if (t.rank == 4 || check.strict()) {
    if (t.rank != 4 || t.shape[2] != 1 || t.shape[3] != width)
      check.fail(Status::invalid_shape, name, "", shape_text(t),
                 "[block_num, block_size, 1, " + std::to_string(width) + "]");
    cache = {t.shape[0] * t.shape[1], t.shape[0], t.shape[1]};
    if (cache.block_size < 1) check.fail(Status::invalid_shape, name, "", "has block_size 0", "at least 1");
  } else {
    cache.rows = t.elements() / width;
    check.rows(t, name, cache.rows, {width}, why);
  }
  if (!like) return cache;
  const bool both = cache.block_size >= 0 && like->block_size >= 0;
  if (cache.rows == like->rows && (!both || cache.block_size == like->block_size)) return cache;
  if (both) check.shape(t, name, {like->block_num, like->block_size, 1, width}, why);
  check.rows(t, name, like->rows, {width}, why);
  return cache;
}

void check_slots(const Check& check, const Tensor& index, const char* name, const CacheShape& cache) {
  if (cache.rows == 0) return;
  const Rows slots = flat_rows(index, 1);
  for (std::int64_t i = 0, n = slots.count; i < n; ++i) {
    const std::int64_t slot = *slots.row<const std::int64_t>(i);
    if (slot < cache.rows) continue;
    std::string wanted = "below " + std::to_string(cache.rows);
    if (cache.block_size > 0)
      wanted += " (" + std::to_string(cache.block_num) + " pages of " + std::to_string(cache.block_size) + ")";
    check.fail(Status::invalid_slot, name, subscript(index, i), "is " + std::to_string(slot),
               wanted + "; negative entries skip the token");
  }
}

void check_nz(const Check& check, const Tensor& t, const char* name) {
  const std::int64_t width = t.shape[3], c0 = 32 / size_of(t.dtype);
  if (width % c0 != 0)
    check.fail(Status::invalid_shape, name, "", "has width " + std::to_string(width),
               "a multiple of " + std::to_string(c0), "NZ blocks hold columns in groups of 32 bytes");
}

void check_nz_strides(const Check& check, const Tensor& t, const char* name) {
  if (t.elements() > 0 && t.shape[1] > 1 && t.stride[1] != t.shape[3])
    check.fail(Status::invalid_stride, name, "", "has strides " + brackets({t.stride.data(), 4}), "contiguous blocks",
               "NZ");
}

void check_finite(const Check& check, std::initializer_list<NamedWeight> weights) {
  for (const auto& [w, name, stack] : weights) {
    if (w.dtype != DType::bf16) continue;
    for (std::int64_t b = 0; b < w.batch; ++b)
      for (std::int64_t i = 0; i < w.k; ++i)
        for (std::int64_t j = 0; j < w.n; ++j) {
          const float x = w.at(b, i, j);
          if (std::isfinite(x)) continue;
          check.fail(Status::invalid_value, name, stack ? subscript({b, i, j}) : subscript({i, j}),
                     "is " + std::to_string(x), "a finite number");
        }
  }
}

}  // namespace dsakit::prolog
