// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "dsakit/tensor.hpp"

// How the operands of the products lie in memory: the only place where these layouts are spelled.
namespace dsakit {

inline constexpr int kPanel = 64;       // columns of a panel
inline constexpr int kSumBlock = 512;   // rows of a panel per partial sum of a floating-point product
inline constexpr int kScaleRows = 128;  // rows of a panel of e4m3 codes that share a scale
inline constexpr int kHeadBlock = 16;   // index heads side by side
inline constexpr int kGemvStep = 32;    // bytes of a key that the GEMV kernels take at a time
inline constexpr int kGemvRows = 24;    // rows at most that the GEMV kernels serve
inline constexpr int kGemvColumns = 2 * kPanel;  // of sums at most
inline constexpr int kGemvCodes = 640;  // elements at most of a row of codes there
inline constexpr int kStripRows = 32;    // rows at most that meet a matrix as it lies
inline constexpr int kStripSums = 8 * 4096;  // of them and its columns
inline constexpr int kColumnRows = 12;   // rows at most that meet the columns of a transposed matrix as they lie
inline constexpr int kGemvKeys = 16;    // keys are addressed in multiples of this many

/// A code of eight bits: sign, 4 bits of exponent, 3 of mantissa. A type of its own, which no int8 is taken for.
struct e4m3 {
  std::uint8_t bits;
};

/// 64 columns of a matrix [k, n] as a dot instruction wants them: the elements of a column in groups of four bytes (4
/// int8, 2 bf16, 1 float), [ceil(k/group)][64][group]. What lies past k and n is 0. A group of 64 columns is 256 bytes:
/// four AVX-512 registers, a row of four AMX tiles. e4m3 codes 0 1 2 3 of a group are kept as 0 2 1 3: the lower bytes
/// of its half words become a pair of bf16 in place, and so do the upper ones.
template <class T>
struct Panel {
  static constexpr int kGroup = 4 / int(sizeof(T));

  static constexpr std::int64_t groups(std::int64_t k) { return (k + kGroup - 1) / kGroup; }
  /// k rounded up to whole groups.
  static constexpr std::int64_t depth(std::int64_t k) { return groups(k) * kGroup; }
  static constexpr std::int64_t elements(std::int64_t k) { return depth(k) * kPanel; }
  /// Where row p begins, a multiple of the group.
  static constexpr std::ptrdiff_t row(std::int64_t p) { return std::ptrdiff_t(p) * kPanel; }
  static constexpr std::ptrdiff_t at(std::int64_t p, int column) {
    return row(p / kGroup * kGroup) + column * kGroup + place(int(p % kGroup));
  }
  /// Where element p of a group is.
  static constexpr int place(int p) { return std::is_same_v<T, e4m3> ? p / 2 + p % 2 * 2 : p; }
};

/// A matrix [k, n] as panels one after the other; behind the last one int8 has the sums of all columns, int32, and e4m3
/// the scales of each panel, fp32, [panels][ceil(k/128)].
template <class T>
struct Panels {
  static constexpr bool kSums = std::is_same_v<T, std::int8_t>, kScales = std::is_same_v<T, e4m3>;

  static constexpr std::int64_t count(std::int64_t n) { return (n + kPanel - 1) / kPanel; }
  /// n rounded up to whole panels.
  static constexpr std::int64_t columns(std::int64_t n) { return count(n) * kPanel; }
  static constexpr std::int64_t elements(std::int64_t k, std::int64_t n) { return count(n) * Panel<T>::elements(k); }
  /// A multiple of 64.
  static constexpr std::int64_t bytes(std::int64_t k, std::int64_t n) {
    return elements(k, n) * std::int64_t(sizeof(T)) + (kSums ? columns(n) * 4 : kScales ? (scales(k, n) * 4 + 63) / 64 * 64 : 0);
  }
  static constexpr std::int64_t scales_of_panel(std::int64_t k) { return (k + kScaleRows - 1) / kScaleRows; }
  static constexpr std::int64_t scales(std::int64_t k, std::int64_t n) { return count(n) * scales_of_panel(k); }
  static constexpr std::ptrdiff_t panel(std::int64_t k, std::int64_t i) { return i * Panel<T>::elements(k); }
  static constexpr std::ptrdiff_t at(std::int64_t k, std::int64_t p, std::int64_t column) {
    return panel(k, column / kPanel) + Panel<T>::at(p, int(column % kPanel));
  }
  static const std::int32_t* sums(const T* panels, std::int64_t k, std::int64_t n) {
    return reinterpret_cast<const std::int32_t*>(panels + elements(k, n));
  }
  static const float* scales(const T* panels, std::int64_t k, std::int64_t n) {
    return reinterpret_cast<const float*>(panels + elements(k, n));
  }
  static float* scales(T* panels, std::int64_t k, std::int64_t n) {
    return reinterpret_cast<float*>(panels + elements(k, n));
  }
  static std::int32_t* sums(T* panels, std::int64_t k, std::int64_t n) {
    return reinterpret_cast<std::int32_t*>(panels + elements(k, n));
  }
};

/// A panel of codes, every one of which stands for bf16(fp32(code * scale of its 128 rows)).
struct ScaledPanel {
  const e4m3* codes;
  const float* scales;

  /// From row p on, a multiple of 128.
  ScaledPanel from(std::int64_t p) const { return {codes + Panel<e4m3>::row(p), scales + p / kScaleRows}; }
};

constexpr std::int64_t panels_of(std::int64_t n) { return (n + kPanel - 1) / kPanel; }

/// An index query: heads in blocks of 16 (missing heads: code 128 or value 0, weight 0), dims in groups of four bytes
/// (missing dims of codes: any): [blocks][ceil(dims/group)][16][group] of codes biased by +128 (T = uint8), so that u8 x
/// i8 dot instructions apply, or of float.
template <class T>
struct IndexQueryLayout {
  static constexpr int kGroup = 4 / int(sizeof(T));

  static constexpr std::int64_t blocks(std::int64_t heads) { return (heads + kHeadBlock - 1) / kHeadBlock; }
  /// heads rounded up to whole blocks: so many weights.
  static constexpr std::int64_t heads(std::int64_t heads) { return blocks(heads) * kHeadBlock; }
  /// Elements of a block of heads.
  static constexpr std::ptrdiff_t block(std::int64_t dims) {
    return std::ptrdiff_t((dims + kGroup - 1) / kGroup) * (kGroup * kHeadBlock);
  }
  static constexpr std::int64_t elements(std::int64_t heads, std::int64_t dims) { return blocks(heads) * block(dims); }
  static constexpr std::ptrdiff_t at(std::int64_t dims, std::int64_t head, std::int64_t dim) {
    return head / kHeadBlock * block(dims) + (dim / kGroup * kHeadBlock + head % kHeadBlock) * kGroup + dim % kGroup;
  }
};

/// One index query, arranged for every instruction set at once; 64-byte aligned.
template <class T>
struct IndexQuery {
  const T* values;      // as IndexQueryLayout has them
  const float* weight;  // [head_blocks * 16], w[h], times scale_q[h] of codes
  int head_blocks;
  int dims;
};
using IndexQueryI8 = IndexQuery<std::uint8_t>;
using IndexQueryF32 = IndexQuery<float>;

/// The rows of a GEMV in 32-bit words that are broadcast as they are read, [1 + words][rows]: word 0 of a row is where
/// its sums begin (codes: -128 times their sum; floats: any), then four bytes of the row each (or a float, whatever the
/// keys are kept as), 0 past its dims.
struct GemvQuery {
  /// Words of a row of `dims` elements that meet keys of `key_size` bytes per element; `word_elements`: 4 codes, 2 bf16
  /// or 1 float.
  static constexpr int words(int dims, int key_size, int word_elements) {
    const int padded = (dims * key_size + kGemvStep - 1) / kGemvStep * kGemvStep / key_size;
    return padded / word_elements;
  }
  /// int32 of `rows` rows.
  static constexpr std::int64_t elements(int rows, int words) { return std::int64_t(rows) * (1 + words); }
  static constexpr std::ptrdiff_t at(int rows, int row, int word) { return std::ptrdiff_t(1 + word) * rows + row; }
  static constexpr std::ptrdiff_t start(int row) { return row; }
};

}  // namespace dsakit
