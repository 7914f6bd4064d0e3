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
    for (int c = 0; c < columns; c += run, row += run_stride)
      std::memcpy(out + c, row, sizeof(T) * std::size_t(std::min(run, columns - c)));
  }
};

template <class T, int Group>
void pack_panel(const MatrixSource& w, std::int64_t panel, T* out) {
  const int columns = int(std::min<std::int64_t>(kPanel, w.n - panel * kPanel));
  const Rows<T> rows(w, panel * kPanel);
  T group[Group][kPanel];
  std::memset(group, 0, sizeof group);
  for (std::int64_t k = 0; k < w.k; k += Group, out += Group * kPanel) {
    for (int g = 0; g < Group; ++g)
      if (k + g < w.k) rows.copy(k + g, columns, group[g]);
      else std::memset(group[g], 0, sizeof group[g]);
    for (int c = 0; c < kPanel; ++c)
      for (int g = 0; g < Group; ++g) out[c * Group + g] = group[g][c];
  }
}

}  // namespace

void pack_panel_bf16(const MatrixSource& w, std::int64_t panel, bf16* out) noexcept {
  pack_panel<bf16, 2>(w, panel, out);
}

void pack_panel_i8(const MatrixSource& w, std::int64_t panel, std::int8_t* out, std::int32_t* column_sums) noexcept {
  pack_panel<std::int8_t, 4>(w, panel, out);
  std::fill_n(column_sums, kPanel, 0);
  const std::int64_t groups = (w.k + 3) / 4;
  for (std::int64_t g = 0; g < groups; ++g, out += 4 * kPanel)
    for (int c = 0; c < kPanel; ++c) column_sums[c] += out[4 * c] + out[4 * c + 1] + out[4 * c + 2] + out[4 * c + 3];
}

}  // namespace dsakit
