// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "core/check.hpp"
#include "core/view.hpp"
#include "kernels/kernels.hpp"
#include "ops/weight.hpp"

// The right operand of a matmul as callers hold it: a stack of [k, n] matrices, strided (transposed views too),
// FRACTAL_NZ or packed.
namespace dsakit {

struct Matrices {
  DType dtype = DType::bf16;
  std::int64_t k = 0, n = 0;
  Format format = Format::ND;
  bool transposed = false;  // neighbours within a column, not within a row, are neighbours in memory
  std::int64_t pitch = 0;   // ND: elements from row to row; transposed: from column to column
  Tensor stack;             // leading axes and memory; strides in elements

  /// Address of matrix b of the leading axes.
  const std::byte* matrix(std::int64_t b) const {
    return static_cast<const std::byte*>(stack.data) + offset_of(stack, b) * size_of(dtype);
  }
  /// From a column on, a multiple of 64; not of a transposed or packed one.
  template <class T>
  Strip<T> strip(std::int64_t b, std::int64_t column) const {
    const T* from = reinterpret_cast<const T*>(matrix(b)) + at(0, column);
    if (format != Format::NZ) return {from, pitch};
    return {from, Strip<T>::kRun, at(0, Strip<T>::kRun)};
  }
  /// Offset of an element within its matrix.
  std::int64_t at(std::int64_t row, std::int64_t column) const {
    if (format == Format::packed)
      return dtype == DType::i8 ? Panels<std::int8_t>::at(k, row, column) : Panels<bf16>::at(k, row, column);
    if (format == Format::NZ) return nz_offset(k, size_of(dtype), row, column);
    return transposed ? column * pitch + row : row * pitch + column;
  }
};

/// `t` with its last two axes in the order in which they lie in memory.
Tensor as_it_lies(const Tensor& t);
/// These operators take numbers, not 8-bit floats with scales.
inline void refuse_scaled(const Check& check, const Tensor& t, const char* name) {
  if (t.format == Format::scaled)
    check.fail(Status::unsupported, name, "", "is packed from 8-bit floats and scales", "bfloat16 numbers");
}
/// The stack that `t` is; its rank, shape, dtype and memory (as_it_lies) have been checked.
Matrices matrices_of(const Tensor& t);

/// A part of a matrix that is packed at once: neighbouring panels of at most kPartRows rows.
inline constexpr std::int64_t kPartRows = 4 * kSumBlock;
struct PanelRange {
  std::int64_t panel, panels, row, rows;
};
/// The panels of a part of matrix b, one behind the other, unless the stack is packed: int8 with the sums of their
/// columns; bfloat16; float16 or float32 as float32.
void pack_panels(const Kernels&, const Matrices&, std::int64_t b, const PanelRange&, std::int8_t* out,
                 std::int32_t* column_sums);
void pack_panels(const Kernels&, const Matrices&, std::int64_t b, const PanelRange&, bf16* out);
void pack_panels(const Kernels&, const Matrices&, std::int64_t b, const PanelRange&, float* out);
/// Makes the leading axes of `t` those of `shape` (rank `rank`): missing ones and those of length 1 repeat.
Tensor broadcast_to(const Tensor& t, int rank, const std::int64_t* shape);

}  // namespace dsakit
