// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/panel.hpp"
#include "ops/weight.hpp"
#include "run/call.hpp"

// Products of rows with packed weights, tile by tile.
namespace dsakit {

inline constexpr std::int64_t kTileRows = 64;

/// A panel from row `first` on, a multiple of kSumBlock.
template <class B>
const B* panel_from(const B* panel, std::int64_t first) {
  return panel + Panel<B>::row(first);
}
inline ScaledPanel panel_from(const ScaledPanel& panel, std::int64_t first) { return panel.from(first); }

/// Rows of 16 bits times a panel, widened block of sums by block of sums: fma chains.
template <class A, class B>
void product_widened(const Kernels& kernels, const A* a, std::int64_t a_stride, std::int64_t rows, B panel,
                     std::int64_t k, float* tile, bool add) {
  constexpr std::int64_t kSome = 8;
  alignas(64) float wide[kSome * kSumBlock];
  for (std::int64_t r = 0; r < rows; r += kSome) {
    const std::int64_t some = std::min(kSome, rows - r);
    for (std::int64_t first = 0; first < k; first += kSumBlock) {
      const std::int64_t block = std::min<std::int64_t>(kSumBlock, k - first);
      for (std::int64_t i = 0; i < some; ++i)
        kernels.widen(a + (r + i) * a_stride + first, block, wide + i * kSumBlock);
      kernels.product(wide, kSumBlock, int(some), panel_from(panel, first), int(block), tile + r * kPanel, kPanel,
                      add || first > 0);
    }
  }
}

/// One tile of a times a panel of k rows, fp32; with `add` on top of what it holds (Kernels::product).
/// bf16 rows use the instruction set's bf16 product, or the fma product where the call wants the same products
/// everywhere; f16 and fp32 rows always the fma product. The bits of a row depend on that row and the panel alone.
template <class A, class B>
void product_of_panel(const Call& call, const A* a, std::int64_t a_stride, std::int64_t rows, const B* panel,
                      std::int64_t k, float* tile, bool add, Ahead ahead = {}) {
  if (sizeof(A) == 2 && (call.same_products() || std::is_same_v<A, f16>)) {
    if constexpr (sizeof(A) == 2) product_widened(call.kernels(), a, a_stride, rows, panel, k, tile, add);
  } else if constexpr (!std::is_same_v<A, f16>) {
    call.kernels().product(a, a_stride, int(rows), panel, int(k), tile, kPanel, add, ahead);
  }
}

/// The same of all of k: columns 64*panel .. of matrix `matrix` of a packed weight.
template <class A>
void product_tile(const Call& call, const Weight& w, std::int64_t matrix, std::int64_t panel, const A* a,
                  std::int64_t a_stride, std::int64_t rows, float* tile) {
  if (!w.scales)
    return product_of_panel(call, a, a_stride, rows, w.panel_bf16(matrix, panel, nullptr), w.k, tile, false);
  const ScaledPanel codes = w.scaled_panel(panel);
  if constexpr (sizeof(A) == 2)
    if (call.same_products()) return product_widened(call.kernels(), a, a_stride, rows, codes, w.k, tile, false);
  call.kernels().product(a, a_stride, int(rows), codes, int(w.k), tile, kPanel, false);
}

/// Of `rows` rows times all of w.
inline Work product_work(std::int64_t rows, const Weight& w) {
  return product_work(double(rows), double(w.k * w.n * w.batch), w.dtype == DType::i8);
}

/// f(matrix, row, rows, column, columns, tile) for every tile of a_m * w_m, m < w.batch, in parallel; a_m begins
/// a_batch_stride elements after a_(m-1). tile is [rows][64].
template <class A, class F>
void for_each_tile(Call& call, const Weight& w, const A* a, std::int64_t a_stride, std::int64_t a_batch_stride,
                   std::int64_t rows, F&& f) {
  const std::int64_t row_tiles = (rows + kTileRows - 1) / kTileRows, per_panel = row_tiles * w.batch;
  call.parallel_for(w.panels() * per_panel, product_work(rows, w), [&](std::int64_t i, int) {
    alignas(64) float tile[kTileRows * kPanel];
    const std::int64_t row = i % row_tiles * kTileRows, panel = i / row_tiles % w.panels(),
                       matrix = i / row_tiles / w.panels();
    const std::int64_t some = std::min(kTileRows, rows - row), column = panel * kPanel;
    product_tile(call, w, matrix, panel, a + matrix * a_batch_stride + row * a_stride, a_stride, some, tile);
    f(matrix, row, some, column, std::min<std::int64_t>(kPanel, w.n - column), tile);
  });
}

}  // namespace dsakit
