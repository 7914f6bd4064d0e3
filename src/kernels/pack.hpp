// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>

#include "dsakit/tensor.hpp"
#include "kernels/kernels.hpp"

namespace dsakit {

// The one place that knows how a weight lies in panels of 64 columns:
//   bf16  [ceil(n/64)] panels of [ceil(k/2)][64][2]
//   int8  [ceil(n/64)] panels of [ceil(k/4)][64][4], then the column sums, int32 [ceil(n/64)*64]
// Everything past k and n is 0. A panel starts on a multiple of 128 (256) bytes of the packed block.

/// A [K, N] matrix as the caller holds it.
struct MatrixSource {
  const void* data;
  std::ptrdiff_t row_stride;  // ND: elements from row to row
  bool nz;                    // FRACTAL_NZ
  std::int64_t k, n;
};

constexpr std::int64_t panels_of(std::int64_t n) { return (n + kPanel - 1) / kPanel; }
/// Elements of one panel.
constexpr std::int64_t panel_elements_bf16(std::int64_t k) { return (k + 1) / 2 * 2 * kPanel; }
constexpr std::int64_t panel_elements_i8(std::int64_t k) { return (k + 3) / 4 * 4 * kPanel; }
/// Bytes of a whole packed matrix, a multiple of 64.
constexpr std::int64_t packed_bytes_bf16(std::int64_t k, std::int64_t n) { return panels_of(n) * panel_elements_bf16(k) * 2; }
constexpr std::int64_t packed_bytes_i8(std::int64_t k, std::int64_t n) {
  return panels_of(n) * (panel_elements_i8(k) + kPanel * 4);
}

void pack_panel_bf16(const MatrixSource& w, std::int64_t panel, bf16* out) noexcept;
void pack_panel_i8(const MatrixSource& w, std::int64_t panel, std::int8_t* out, std::int32_t* column_sums) noexcept;

}  // namespace dsakit
