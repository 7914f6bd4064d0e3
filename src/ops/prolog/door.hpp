// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <initializer_list>

#include "core/check.hpp"
#include "core/view.hpp"
#include "ops/door.hpp"
#include "ops/weight.hpp"

// What the doors of the prologs have in common beyond ops/door.hpp: paged caches, the values of weights.
namespace dsakit::prolog {

/// The shape of a paged cache [block_num, block_size, 1, width]. In portable the rows may be folded otherwise, see
/// Check::rows; then block_size is -1.
struct CacheShape {
  std::int64_t rows = 0, block_num = -1, block_size = -1;
};
/// Unless `like` is null: as many rows, in the same blocks where both show them.
CacheShape check_cache_shape(const Check& check, const Tensor& t, const char* name, std::int64_t width,
                             const CacheShape* like, const char* why);

/// Every slot is below `cache.rows`; negative ones skip their token. Not looked at when the cache has no rows.
void check_slots(const Check& check, const Tensor& index, const char* name, const CacheShape& cache);

/// An NZ cache [block_num, block_size, 1, width]: its columns come in groups of 32 bytes, its blocks have no gaps.
void check_nz(const Check& check, const Tensor& t, const char* name);
void check_nz_strides(const Check& check, const Tensor& t, const char* name);

/// Value checking: finite weights, whatever their format: their padding does not count.
struct NamedWeight {
  const Weight& weight;
  const char* name;
  bool stack = false;  // a position has three subscripts
};
void check_finite(const Check& check, std::initializer_list<NamedWeight> weights);

/// The rows of width `width` of a tensor that has been checked: flat, whatever its axes.
inline Rows flat_rows(const Tensor& t, std::int64_t width) { return Rows(t, width == 1 ? 0 : 1); }
inline std::byte* row_bytes(const Rows& rows, std::int64_t r) {
  return static_cast<std::byte*>(rows.tensor.data) + rows.offset(r) * size_of(rows.tensor.dtype);
}

}  // namespace dsakit::prolog
