// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "dsakit/tensor.hpp"

// Orders in which the elements of rows and matrices may lie.
namespace dsakit::debug {

inline std::int64_t last_axis(const Tensor& t) { return t.rank > 0 ? t.shape[t.rank - 1] : 1; }

/// Where column j of `width` lies if the halves of a row are pairs, and the other way round.
inline std::int64_t from_pairs(std::int64_t j, std::int64_t width) {
  return j < width / 2 ? 2 * j : 2 * (j - width / 2) + 1;
}
inline std::int64_t from_halves(std::int64_t j, std::int64_t width) { return j / 2 + j % 2 * (width / 2); }

/// A matrix in columns of `c0` (FRACTAL_NZ without padding): where its row-major element i lies, and back.
struct Fractal {
  std::int64_t rows, columns, c0;
  std::int64_t at(std::int64_t i) const {
    const std::int64_t row = i / columns, column = i % columns;
    return (column / c0 * rows + row) * c0 + column % c0;
  }
  std::int64_t of(std::int64_t i) const {
    const std::int64_t column = i / (rows * c0) * c0 + i % c0, row = i % (rows * c0) / c0;
    return row * columns + column;
  }
};

}  // namespace dsakit::debug
