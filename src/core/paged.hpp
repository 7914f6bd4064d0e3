// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

namespace dsakit {

/// Rows of a key or value cache, wherever they live. A contiguous cache is one page per sequence: no table,
/// page_stride the distance between sequences (or, for token-folded keys, `first` rows into one run).
struct PagedRows {
  const void* data;
  std::int64_t page_stride, row_stride;  // elements
  std::int64_t page_size;
  const std::int32_t* table = nullptr;   // entry (b, p) at table[b * table_stride + p * table_step]
  std::int64_t table_stride = 0, table_step = 1;

  /// Offset of row s of sequence b, in elements.
  std::int64_t offset(std::int64_t b, std::int64_t s) const {
    if (!table) return b * page_stride + s * row_stride;
    const std::int64_t page = table[b * table_stride + s / page_size * table_step];
    return page * page_stride + s % page_size * row_stride;
  }
  /// How many rows from s on lie at row_stride from each other.
  std::int64_t run(std::int64_t s) const { return table ? page_size - s % page_size : INT64_MAX; }
};

}  // namespace dsakit
