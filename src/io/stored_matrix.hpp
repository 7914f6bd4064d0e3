// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <cstdint>
#include <string>

#include "dsakit/tensor.hpp"
#include "io/aligned_array.hpp"
#include "io/safetensors.hpp"

namespace dsakit::io {

inline constexpr std::int64_t kScaleBlock = 128;  // rows and columns that share one fp8 scale

constexpr std::int64_t scale_blocks(std::int64_t n) { return (n + kScaleBlock - 1) / kScaleBlock; }

enum class WeightFormat {
  floating,    // bf16, f16 or f32
  fp8_blocks,  // e4m3 codes, one scale per 128 x 128
  int8,        // one scale per row, for activations quantised per token
  int8_static  // for activations quantised by a fixed scale: the scale of a row is fp32(deq_scale / input_scale)
};

/// A tensor of a checkpoint; null where there is none.
struct Place {
  const SafetensorsFile* file = nullptr;
  const FileTensor* tensor = nullptr;

  explicit operator bool() const { return tensor != nullptr; }
  std::string shown() const;  // "a.safetensors: model.norm.weight"
};

/// A matrix of a checkpoint that has been found to be of the wanted shape and of a format that can be read: nothing of
/// it is in memory yet. The checkpoint outlives it.
struct StoredMatrix {
  Place weight;
  std::uint64_t offset = 0;  // bytes; not 0 within a stack of matrices
  std::int64_t rows = 0, cols = 0;
  std::int64_t first = 0;  // of what scales, offsets and biases count: not 0 for some rows of a matrix
  WeightFormat format = WeightFormat::floating;
  Place scale{};  // all but floating; static: deq_scale
  Place offsets{}, input_scale{}, input_offset{}, bias{};  // int8, where they are

  DType dtype() const { return weight.tensor->type->dtype; }
  /// Rows from .. from + count - 1.
  StoredMatrix part(std::int64_t from, std::int64_t count) const {
    StoredMatrix m = *this;
    m.offset += std::uint64_t(from) * std::uint64_t(cols) * std::uint64_t(size_of(dtype()));
    m.first += from, m.rows = count;
    return m;
  }
  std::uint64_t bytes() const { return std::uint64_t(rows) * std::uint64_t(cols) * std::uint64_t(size_of(dtype())); }
};

/// Codes [rows, cols] as they are stored, and their scales: of int8 one per row, of fp8 one for each block of 128 x 128 that
/// the rows touch.
struct QuantisedWeight {
  AlignedArray<std::byte> codes;
  AlignedArray<float> scales;

  const std::int8_t* i8() const { return reinterpret_cast<const std::int8_t*>(codes.data()); }
  const std::uint8_t* fp8() const { return reinterpret_cast<const std::uint8_t*>(codes.data()); }
};

/// float of every e4m3 code: sign, 4 exponent bits with bias 7, 3 mantissa bits; 0x7f and 0xff are NaN, nothing is
/// infinite.
const std::array<float, 256>& e4m3_values();

/// Row-major. Floats with one rounding; what is quantised is bf16(fp32(code * scale)).
AlignedArray<bf16> load_bf16(const StoredMatrix&);
AlignedArray<float> load_f32(const StoredMatrix&);
/// One row of a matrix of floats.
void load_row(const StoredMatrix&, std::int64_t row, bf16* out);
/// As it is stored. A NaN code is INVALID_FILE with its position.
QuantisedWeight load_codes(const StoredMatrix&);

/// Any number of floats, or of 8-bit powers of two (F8_E8M0), as fp32. Other types: UNSUPPORTED.
AlignedArray<float> load_floats(const Place&);

// For those who read rows of a matrix themselves.

/// The scales of a matrix: those of the blocks that its rows touch, or one per row. Empty for floats.
AlignedArray<float> scales_of(const StoredMatrix&);
/// Which row of scales_of() is that of row `row`, in fp8.
inline std::int64_t scale_row(const StoredMatrix& m, std::int64_t row) {
  return (m.first % kScaleBlock + row) / kScaleBlock;
}
/// Row `row`, whose bytes are given, as the numbers that it stands for.
void read_row(const StoredMatrix&, const AlignedArray<float>& scales, const std::byte* bytes, std::int64_t row,
              bf16* out);
/// Whether there is a NaN among e4m3 codes.
bool holds_nan(const std::uint8_t* codes, std::size_t count);
/// INVALID_FILE with the position of the first NaN among the e4m3 codes of rows first .. first + rows - 1.
void refuse_nan(const std::uint8_t* codes, std::int64_t first, std::int64_t rows, std::int64_t cols, const Place&);
/// UNSUPPORTED, if the int8 codes of these rows stand for something else than code * scale: an offset, or a bias hidden
/// in the sums.
void refuse_hidden_terms(const StoredMatrix&, const std::int8_t* codes, std::int64_t first, std::int64_t rows);

}  // namespace dsakit::io
