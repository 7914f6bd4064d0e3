// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>

#include "core/check.hpp"
#include "kernels/pack.hpp"

namespace dsakit {

/// Offset of an element of a FRACTAL_NZ matrix of k rows, whose elements have `size` bytes.
constexpr std::int64_t nz_offset(std::int64_t k, std::int64_t size, std::int64_t row, std::int64_t column) {
  const std::int64_t c0 = 32 / size, padded = (k + 15) / 16 * 16;
  return column / c0 * padded * c0 + row * c0 + column % c0;
}

/// A weight as the operators see it, whatever format it came in: a stack of [k, n] matrices cut in panels of 64
/// columns. Packed panels are read where they lie; others are packed, panel by panel, into the caller's scratch. Panels
/// of e4m3 codes may be asked for as such.
struct Weight {
  DType dtype = DType::bf16;
  std::int64_t k = 0, n = 0, batch = 1;
  const std::byte* packed = nullptr;
  const float* scales = nullptr;  // of e4m3 codes: packed are these, and their numbers bf16
  MatrixSource source{};
  std::ptrdiff_t batch_stride = 0;  // bytes from matrix to matrix

  std::int64_t panels() const { return panels_of(n); }
  /// Scratch that a panel may need; 0 for a packed weight, but for codes that are widened.
  std::int64_t scratch_bytes() const;

  const bf16* panel_bf16(std::int64_t matrix, std::int64_t panel, std::byte* scratch) const;
  /// Of e4m3 codes.
  ScaledPanel scaled_panel(std::int64_t panel) const {
    return {reinterpret_cast<const e4m3*>(packed) + Panels<e4m3>::panel(k, panel),
            scales + panel * Panels<e4m3>::scales_of_panel(k)};
  }
  struct PanelI8 {
    const std::int8_t* codes;
    const std::int32_t* column_sums;
  };
  PanelI8 panel_i8(std::int64_t panel, std::byte* scratch) const;

  /// Element by element, for the references: row-major copy as float (or the code), unpacked the slow way.
  float at(std::int64_t matrix, std::int64_t row, std::int64_t column) const;
};

/// The weight `t` is if it is [k, n] (`batch` > 0: [batch, k, n]) of `dtype`: row-major, FRACTAL_NZ by tag or as rank-4
/// storage [ceil(n/c0), ceil(k/16), 16, c0] (not for stacks), or packed; otherwise an Error. strict: only NZ, except
/// for stacks, which stay row-major. `why` names the sizes.
Weight check_weight(const Check& check, const Tensor& t, const char* name, DType dtype, std::int64_t batch,
                    std::int64_t k, std::int64_t n, const char* why);

/// The part of check_weight that concerns the shape, for doors that look at every shape before any dtype.
void check_weight_shape(const Check& check, const Tensor& t, const char* name, DType dtype, std::int64_t batch,
                        std::int64_t k, std::int64_t n, const char* why);

/// The part that only the chip asks: not row-major.
void check_weight_format(const Check& check, const Tensor& t, const char* name);

/// Inner sizes up to which an int32 sum of int8 products is exact.
inline constexpr std::int64_t kMaxInnerI8 = 131071;

}  // namespace dsakit
