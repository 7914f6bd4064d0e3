// SPDX-License-Identifier: Apache-2.0
#include "kernels/pack.hpp"

#include <algorithm>
#include <cstring>

namespace dsakit {
namespace {

/// Row k of the panel's columns: where it starts, and how far apart its runs of `run` contiguous columns are.
/// ND has one run; FRACTAL_NZ has runs of 32 bytes, each in its own column panel of c0.
template <class T>
struct Rows {
  const T* base;
  std::ptrdiff_t row_stride, run_stride;
  int run;

  Rows(const MatrixSource& w, std::int64_t first_column) {
    constexpr int c0 = 32 / sizeof(T);
    const T* data = static_cast<const T*>(w.data);
    if (w.nz) {
      const std::int64_t padded = (w.k + 15) / 16 * 16;
      base = data + first_column / c0 * padded * c0, row_stride = c0, run_stride = padded * c0, run = c0;
    } else {
      base = data + first_column, row_stride = w.row_stride, run_stride = kPanel, run = kPanel;
    }
  }

  void copy(std::int64_t k, int columns, T* out) const {
    const T* row = base + k * row_stride;
    if (columns == kPanel && run == kPanel) {  // by far the most frequent: a copy of known size
      std::memcpy(out, row, sizeof(T) * kPanel);
      return;
    }
    for (int c = 0; c < columns; c += run, row += run_stride)
      std::memcpy(out + c, row, sizeof(T) * std::size_t(std::min(run, columns - c)));
  }
  /// Rows lie far apart: no hardware prefetcher follows.
  void prefetch(std::int64_t k) const {
    __builtin_prefetch(base + k * row_stride);
    __builtin_prefetch(base + k * row_stride + run_stride - 1);
  }
};

/// A group of rows side by side, as 32-bit words with the first row in the low bits (machines here are little-endian).
void interleave(const bf16 (&group)[2][kPanel], bf16* out) {
  std::uint16_t row[2][kPanel];
  std::uint32_t words[kPanel];
  std::memcpy(row, group, sizeof row);
  for (int c = 0; c < kPanel; ++c) words[c] = std::uint32_t(row[0][c]) | std::uint32_t(row[1][c]) << 16;
  std::memcpy(out, words, sizeof words);
}

void interleave(const std::int8_t (&group)[4][kPanel], std::int8_t* out) {
  std::uint8_t row[4][kPanel];
  std::uint16_t low[kPanel], high[kPanel];
  std::uint32_t words[kPanel];
  std::memcpy(row, group, sizeof row);
  for (int c = 0; c < kPanel; ++c) low[c] = std::uint16_t(row[0][c] | row[1][c] << 8);
  for (int c = 0; c < kPanel; ++c) high[c] = std::uint16_t(row[2][c] | row[3][c] << 8);
  for (int c = 0; c < kPanel; ++c) words[c] = std::uint32_t(low[c]) | std::uint32_t(high[c]) << 16;
  std::memcpy(out, words, sizeof words);
}

/// Calls also(group) for every group of rows.
template <class T, int Group, class Also>
void pack_panel(const MatrixSource& w, std::int64_t panel, T* out, Also also) {
  constexpr std::int64_t kAhead = 16;  // rows
  const int columns = int(std::min<std::int64_t>(kPanel, w.n - panel * kPanel));
  const Rows<T> rows(w, panel * kPanel);
  T group[Group][kPanel];
  std::memset(group, 0, sizeof group);
  for (std::int64_t k = 0; k < w.k; k += Group, out += Group * kPanel) {
    for (int g = 0; g < Group; ++g) {
      if (k + g + kAhead < w.k && columns == kPanel) rows.prefetch(k + g + kAhead);
      if (k + g < w.k) rows.copy(k + g, columns, group[g]);
      else std::memset(group[g], 0, sizeof group[g]);
    }
    interleave(group, out);
    also(group);
  }
}

}  // namespace

void pack_panel_bf16(const MatrixSource& w, std::int64_t panel, bf16* out) noexcept {
  pack_panel<bf16, 2>(w, panel, out, [](const auto&) {});
}

void pack_panel_i8(const MatrixSource& w, std::int64_t panel, std::int8_t* out, std::int32_t* column_sums) noexcept {
  std::fill_n(column_sums, kPanel, 0);
  pack_panel<std::int8_t, 4>(w, panel, out, [&](const auto& group) {
    for (int c = 0; c < kPanel; ++c)
      column_sums[c] += std::int16_t(std::int16_t(group[0][c] + group[1][c]) + std::int16_t(group[2][c] + group[3][c]));
  });
}

}  // namespace dsakit
