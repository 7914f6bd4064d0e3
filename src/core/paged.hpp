// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace dsakit {

/// Which page a position of a sequence lies in. Without a table every sequence is one page, its own.
struct Pages {
  const std::int32_t* table = nullptr;  // entry (b, i) at table[b * sequence + i * step]; null: contiguous
  std::ptrdiff_t sequence = 0, step = 1;
  std::int64_t block_size = 0;

  /// f(j, n, page, row) for each run of positions first + j .. first + j + n - 1, j + n <= count, that are rows
  /// row .. row + n - 1 of one page. The only walk over a block table.
  template <class F>
  void each_run(std::int64_t b, std::int64_t first, std::int64_t count, F f) const {
    if (!table) return count > 0 ? f(std::int64_t(0), count, b, first) : void();
    for (std::int64_t j = 0, n; j < count; j += n) {
      const std::int64_t i = (first + j) / block_size, row = (first + j) % block_size;
      n = std::min(count - j, block_size - row);
      f(j, n, std::int64_t(table[b * sequence + i * step]), row);
    }
  }
};

/// Positions to pages while lists are checked, where a division per entry would be most of the cost: with both below
/// 2^31, multiplying by 2^63 / size is exact.
class PageOf {
 public:
  explicit PageOf(std::int64_t page_size)
      : inverse_((std::uint64_t{1} << 63) / std::uint64_t(std::clamp<std::int64_t>(page_size, 1, INT32_MAX)) + 1) {}
  std::int64_t operator()(std::int64_t position) const {
    return std::int64_t(static_cast<unsigned __int128>(2 * position) * inverse_ >> 64);
  }

 private:
  std::uint64_t inverse_;
};

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
  /// f(j, n, offset of row first + j) for each run of n rows that lie at row_stride from each other.
  template <class F>
  void each_run(std::int64_t b, std::int64_t first, std::int64_t count, F f) const {
    Pages{table, table_stride, table_step, page_size}.each_run(
        b, first, count, [&](std::int64_t j, std::int64_t n, std::int64_t page, std::int64_t row) {
          f(j, n, page * page_stride + row * row_stride);
        });
  }
};

}  // namespace dsakit
