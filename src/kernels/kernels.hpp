// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "dsakit/tensor.hpp"
#include "kernels/panel.hpp"

namespace dsakit {

/// How numbers are kept that become fp32.
enum class Kept { bf16, f16, f32 };

/// The kinds of product, for measuring the limit of each.
enum class Dot { i8, bf16, f32 };

/// Everything here that depends on an instruction set, on one screen. To port to a new CPU, write better
/// functions for some of these. Pointers, strides (in elements) and counts only; nothing here allocates,
/// throws or starts a thread. "Same bits" = on every rung.
struct Kernels {
  const char* isa;

  // ---- products with one panel of 64 columns: c[i][j] = sum_k a[i][k] * panel[k][j], i < m, j < 64 --------------
  // The sum over k is cut in blocks of kSumBlock, each starting at +0; block sums are added ascending. With `add`
  // they are added to what c holds. Rows of a are independent: the bits of a row do not depend on m.

  /// bf16 panel [ceil(k/2)][64][2], zero padded; a is not read past k. Bits per rung.
  void (*product_bf16)(const bf16* a, std::ptrdiff_t a_stride, int m, const bf16* panel, int k, float* c,
                       std::ptrdiff_t c_stride, bool add) noexcept;
  /// The same panel, fp32 a, one fma chain per block, k ascending. Same bits.
  void (*product_f32)(const float* a, std::ptrdiff_t a_stride, int m, const bf16* panel, int k, float* c,
                      std::ptrdiff_t c_stride, bool add) noexcept;
  /// The same with an fp32 panel [k][64]. Same bits.
  void (*product_wide)(const float* a, std::ptrdiff_t a_stride, int m, const float* panel, int k, float* c,
                       std::ptrdiff_t c_stride, bool add) noexcept;
  /// int8 panel [k/4][64][4], k a multiple of 4; a biased by +128; exact: the kernel takes 128 * column_sums off.
  void (*product_i8)(const std::uint8_t* a, std::ptrdiff_t a_stride, int m, const std::int8_t* panel,
                     const std::int32_t* column_sums, int k, std::int32_t* c, std::ptrdiff_t c_stride) noexcept;

  // ---- the indexer ------------------------------------------------------------------------------------------------
  // scores[s] = sum_h weight[h] * relu(dot(query[h], key[s])): sixteen fma lanes (head h in lane h mod 16, ascending)
  // folded in halves 8, 4, 2, 1. Same bits. A key is not read past dims.

  void (*index_scores_i8)(const IndexQueryI8& query, const std::int8_t* key, std::ptrdiff_t key_stride, int count,
                          float* scores) noexcept;
  /// Each dot is one fp32 fma chain from +0, dims ascending. relu keeps NaN.
  void (*index_scores_f32)(const IndexQueryF32& query, const float* key, std::ptrdiff_t key_stride, int count,
                           float* scores) noexcept;
  /// Appends candidate(order_key(scores[i]), first + i) (order.hpp) for every i with order_key >= floor, ascending i;
  /// returns how many. `out` has room for count.
  int (*append_candidates)(const float* scores, int count, std::uint32_t first, std::uint32_t floor,
                           std::uint64_t* out) noexcept;

  // ---- rows: same bits ----------------------------------------------------------------------------------------------
  // Canonical row sum: sixteen fp32 lanes from +0, element i in lane i mod 16, lane = lane + term, folded in halves.

  /// Canonical sum of fp32(fp32(x*x) * each).
  float (*sum_squares)(const float* x, std::int64_t n, float each) noexcept;
  /// Canonical sum of fp32(x * each).
  float (*sum)(const float* x, std::int64_t n, float each) noexcept;
  /// max |x|; NaN elements are passed over; 0 for n = 0.
  float (*max_abs)(const float* x, std::int64_t n) noexcept;
  /// codes = sat8(rint(fp32(x * multiplier))), NaN -> 0.
  void (*quantize)(const float* x, std::int64_t n, float multiplier, std::int8_t* codes) noexcept;
  /// y = fp32(fp32(float(acc) * row_scale) * column_scale[j]).
  void (*dequantize)(const std::int32_t* acc, std::int64_t n, float row_scale, const float* column_scale,
                     float* y) noexcept;
  void (*widen_bf16)(const bf16* x, std::int64_t n, float* y) noexcept;
  void (*widen_f16)(const f16* x, std::int64_t n, float* y) noexcept;
  /// Nearest, ties to even, subnormals kept, NaN stays NaN.
  void (*round_bf16)(const float* x, std::int64_t n, bf16* y) noexcept;
  void (*round_f16)(const float* x, std::int64_t n, f16* y) noexcept;

  // ---- attention over one chunk of list positions; bits per rung ----------------------------------------------------

  /// In place on one row of scores: x = fp32(x * scale), m = max, x = exp(x - m), returns the canonical sum of x.
  /// exp within 2 ulp; below -87.3 it may flush to 0.
  float (*softmax)(float* x, int n, float scale, float* maximum) noexcept;
  /// y += x * scale (fma), element-wise.
  void (*multiply_add)(const float* x, const float* scale, int n, float* y) noexcept;
  /// y = bf16(x * scale), element-wise; scale null: 1.
  void (*multiply_round)(const float* x, const float* scale, int n, bf16* y) noexcept;
  /// The same with twice the precision: high = bf16(x * scale), low = bf16(x * scale - high).
  void (*multiply_split)(const float* x, const float* scale, int n, bf16* high, bf16* low) noexcept;
  /// y = y * keep + (x * unit) * factor, element-wise, every operation rounded; with keep 0 y is not read. Same bits.
  void (*blend)(const float* x, float unit, float factor, int n, float keep, float* y) noexcept;
  /// Rows to the panel of their transpose: panel[c/2][j][c%2] = rows[j][c], j < count <= 64, c < dims; columns from
  /// count to 63 and an odd last c are 0. Every row pointer is valid. int8 codes become bf16 exactly.
  void (*transpose_bf16)(const bf16* const* rows, int count, int dims, bf16* panel) noexcept;
  void (*transpose_i8)(const std::int8_t* const* rows, int count, int dims, bf16* panel) noexcept;
  /// Rows to panels as a weight [count, dims]: panels[c/64][j/2][c%64][j%2] = rows[j][c]; j from count up to an even
  /// number and columns past dims are 0. Panel pitch ceil(count/2)*128 elements.
  void (*interleave_bf16)(const bf16* const* rows, int count, int dims, bf16* panels) noexcept;
  void (*interleave_i8)(const std::int8_t* const* rows, int count, int dims, bf16* panels) noexcept;
  /// The same for product_wide: panel[c][j] = rows[j][c], and panels[c/64][j][c%64] = rows[j][c] of pitch count*64.
  void (*transpose_f16)(const f16* const* rows, int count, int dims, float* panel) noexcept;
  void (*transpose_f32)(const float* const* rows, int count, int dims, float* panel) noexcept;
  void (*interleave_f16)(const f16* const* rows, int count, int dims, float* panels) noexcept;
  void (*interleave_f32)(const float* const* rows, int count, int dims, float* panels) noexcept;
  /// The same for product_i8, with the sums it wants: panel[c/4][j][c%4] = rows[j][c], sums[j]; and
  /// panels[c/64][j/4][c%64][j%4] = rows[j][c] of pitch ceil(count/4)*256, sums[c]. Zero filled up to whole groups and
  /// panels.
  void (*transpose_codes)(const std::int8_t* const* rows, int count, int dims, std::int8_t* panel,
                          std::int32_t* sums) noexcept;
  void (*interleave_codes)(const std::int8_t* const* rows, int count, int dims, std::int8_t* panels,
                           std::int32_t* sums) noexcept;
  /// Products of few rows of codes with codes where they lie, their digits (1 or 3) joined as join_codes does. Every
  /// pointer up to count rounded up to 16 is valid. Same bits. A rung has all six or none: null where panels are
  /// faster.
  ///
  /// y[r * pitch + j] = join_i(sum_c query[r][i][c] * keys[j][c]) * unit[r], j < count, and anything up to count
  /// rounded up to 16. The query's codes are signed: -128 times the sum of each row of codes (those in memory get a
  /// bias), then 32-bit words of four, [ceil(dims/32)*8][rows][digits], 0 past dims. Meanwhile asks for the first
  /// `columns` bytes of each row of `later`, as many as keys.
  void (*few_dots_i8)(const std::int32_t* query, int rows, int digits, const std::byte* const* keys, int count,
                      int dims, const float* unit, float* y, std::ptrdiff_t pitch, const std::byte* const* later,
                      int columns) noexcept;
  /// sums[r * kPanel + c] = sum_j (weights[r * pitch + j] - 128) * values[j][column + c], j < count <= 256, c < columns
  /// <= 64 (from there to 63: any); exact. Meanwhile asks for the same columns of `later`.
  void (*few_sums_i8)(const std::uint8_t* weights, std::ptrdiff_t pitch, int rows, const std::byte* const* values,
                      int count, std::ptrdiff_t column, int columns, std::int32_t* sums,
                      const std::byte* const* later) noexcept;
  /// The same for bf16 rows, with the bits of product_bf16 on panels of these rows (but for the sign of a zero dot),
  /// dims <= kSumBlock. The query in 32-bit words of two after a row of 0, [ceil(dims/16)*8][rows], 0 past dims;
  /// `column` and `columns` are elements; what follows an odd last weight is 0.
  void (*few_dots_bf16)(const std::int32_t* query, int rows, const std::byte* const* keys, int count, int dims,
                        float* y, std::ptrdiff_t pitch, const std::byte* const* later, int columns) noexcept;
  void (*few_sums_bf16)(const bf16* weights, std::ptrdiff_t pitch, int rows, const std::byte* const* values, int count,
                        std::ptrdiff_t column, int columns, float* sums, const std::byte* const* later) noexcept;
  /// The same with fp32 products of what is kept as bf16, f16 or f32, with the bits of product_f32 and product_wide:
  /// the query in the bits of floats, after a row of any, [ceil(size*dims/32)*32/size][rows], 0 past dims.
  void (*few_dots_wide)(const std::int32_t* query, int rows, Kept, const std::byte* const* keys, int count, int dims,
                        float* y, std::ptrdiff_t pitch, const std::byte* const* later, int columns) noexcept;
  void (*few_sums_wide)(const float* weights, std::ptrdiff_t pitch, int rows, Kept, const std::byte* const* values,
                        int count, std::ptrdiff_t column, int columns, float* sums,
                        const std::byte* const* later) noexcept;
  /// A row in `digits` (1 to 3) rows of codes biased by +128: rint(x * per_unit), |x * per_unit| < 2^(8*digits-1) -
  /// 2^14 and 2^22, is the sum of code * 256^i; the most significant first, `pitch` from row to row. NaN: any codes.
  /// Same bits.
  void (*split_codes)(const float* x, int n, float per_unit, int digits, std::uint8_t* codes,
                      std::ptrdiff_t pitch) noexcept;
  /// The other way, from products: y = (..(float(p[0]) * 256 + float(p[1])) * 256 ..) * unit. Same bits.
  void (*join_codes)(const std::int32_t* products, std::ptrdiff_t pitch, int n, int digits, float unit,
                     float* y) noexcept;

  // ---- the limit ----------------------------------------------------------------------------------------------------

  /// Does `rounds` rounds of independent multiply-adds in registers, the way this rung's products do them, and returns
  /// how many operations that were (two each). Null where there is no instruction to take as the limit.
  double (*peak)(Dot kind, int rounds) noexcept;
};

/// The rungs this machine can run, generic first: what tests and benchmarks walk.
std::span<const Kernels* const> supported_kernels();
/// By name; null when unknown or not supported here.
const Kernels* find_kernels(std::string_view isa);

// One per file in src/kernels/. Each rung starts from the one below and improves on it.
void use_generic(Kernels&);
void use_avx2(Kernels&);
void use_avx512(Kernels&);

}  // namespace dsakit
