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

/// One tile of a * w: rows first_row .. +rows, columns 64*panel .. of matrix `matrix`, fp32.
/// bf16 rows use the instruction set's bf16 product, or the fma product where the context wants the same products
/// everywhere; fp32 rows always the fma product. The bits of a row depend on that row and the weight alone.
template <class A>
void product_tile(const Call& call, const Weight& w, std::int64_t matrix, std::int64_t panel, const A* a,
                  std::int64_t a_stride, std::int64_t rows, float* tile) {
  const bf16* columns = w.panel_bf16(matrix, panel, nullptr);
  if constexpr (std::is_same_v<A, float>) {
    call.kernels().product(a, a_stride, int(rows), columns, int(w.k), tile, kPanel, false);
  } else if (!call.same_products()) {
    call.kernels().product(a, a_stride, int(rows), columns, int(w.k), tile, kPanel, false);
  } else {
    constexpr std::int64_t kRows = 8;
    alignas(64) float wide[kRows * kSumBlock];
    for (std::int64_t r = 0; r < rows; r += kRows) {
      const std::int64_t some = std::min(kRows, rows - r);
      for (std::int64_t k = 0; k < w.k; k += kSumBlock) {
        const std::int64_t block = std::min<std::int64_t>(kSumBlock, w.k - k);
        for (std::int64_t i = 0; i < some; ++i)
          call.kernels().widen(a + (r + i) * a_stride + k, block, wide + i * kSumBlock);
        call.kernels().product(wide, kSumBlock, int(some), columns + Panel<bf16>::row(k), int(block),
                                   tile + r * kPanel, kPanel, k > 0);
      }
    }
  }
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
