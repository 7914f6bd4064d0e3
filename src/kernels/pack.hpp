// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>

#include "dsakit/tensor.hpp"
#include "kernels/kernels.hpp"

namespace dsakit {

// Weights, as callers hold them, to panels (panel.hpp).

/// A [K, N] matrix as the caller holds it.
struct MatrixSource {
  const void* data;
  std::ptrdiff_t row_stride;  // ND: elements from row to row
  bool nz;                    // FRACTAL_NZ
  std::int64_t k, n;
};

void pack_panel_bf16(const MatrixSource& w, std::int64_t panel, bf16* out) noexcept;
void pack_panel_i8(const MatrixSource& w, std::int64_t panel, std::int8_t* out, std::int32_t* column_sums) noexcept;

}  // namespace dsakit
