// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "dsakit/tensor.hpp"
#include "kernels/panel.hpp"

namespace dsakit {

inline constexpr int kHadamardLeast = 128, kHadamardMost = 1024;  // elements of a row

/// Which elements rotary embedding takes for a pair: x[i] and x[i + half], or x[2i] and x[2i + 1]; cos and sin have the
/// factors of each element where x or, the last, y has it.
enum class RopePairs { half, adjacent, adjacent_to_half };

/// Strides from row to row; those of cos and sin may be 0.
template <class T>
struct RotateRows {
  RopePairs pairs;
  const T* x;
  std::ptrdiff_t x_stride;
  const T* cos;
  std::ptrdiff_t cos_stride;
  const T* sin;
  std::ptrdiff_t sin_stride;
  T* y;
  std::ptrdiff_t y_stride;
  std::int64_t rows, half;
};

/// How numbers are kept that become fp32.
enum class Kept { bf16, f16, f32 };

/// The kinds of product, for measuring the limit of each.
enum class Dot { i8, bf16, f32 };

/// One function pointer for each kind of operand, called like an overloaded function.
template <class Pointer>
struct Entry;
template <class... A, class R>
struct Entry<R (*)(A...) noexcept> {
  R (*function)(A...) noexcept;
  R operator()(A... arguments) const noexcept { return function(arguments...); }
};
template <class... Pointers>
struct Overloads : Entry<Pointers>... {
  using Entry<Pointers>::operator()...;
};

/// One for each dtype of rows.
template <template <class> class Function>
using OfEach = Overloads<Function<bf16>, Function<f16>, Function<float>>;

/// What to ask for meanwhile, as many rows of 64 columns as the panel has: they lie `pitch` bytes apart from `rows` on.
/// Null: what lies behind the panel.
struct Ahead {
  const void* rows = nullptr;
  std::ptrdiff_t pitch = 0;

  /// Where the panel has been here before, and will be again: kernels that share L2 with requests make none.
  static constexpr Ahead nothing() { return {nullptr, -1}; }
  constexpr bool is_nothing() const { return pitch < 0; }
};

template <class A, class B>
using Product = void (*)(const A* a, std::ptrdiff_t a_stride, int m, const B* panel, int k, float* c,
                         std::ptrdiff_t c_stride, bool add, Ahead ahead, int columns) noexcept;
using ProductOfCodes = void (*)(const std::uint8_t* a, std::ptrdiff_t a_stride, int m, const std::int8_t* panel,
                                const std::int32_t* column_sums, int k, std::int32_t* c, std::ptrdiff_t c_stride,
                                Ahead ahead) noexcept;
template <class A>
using ProductOfScaled = void (*)(const A* a, std::ptrdiff_t a_stride, int m, ScaledPanel panel, int k, float* c,
                                 std::ptrdiff_t c_stride, bool add) noexcept;
template <class A, class B>
struct Entry<Product<A, B>> {
  Product<A, B> function;
  void operator()(const A* a, std::ptrdiff_t a_stride, int m, const B* panel, int k, float* c,
                  std::ptrdiff_t c_stride, bool add, Ahead ahead = {}, int columns = kPanel) const noexcept {
    function(a, a_stride, m, panel, k, c, c_stride, add, ahead, columns);
  }
};
template <>
struct Entry<ProductOfCodes> {
  ProductOfCodes function;
  void operator()(const std::uint8_t* a, std::ptrdiff_t a_stride, int m, const std::int8_t* panel,
                  const std::int32_t* column_sums, int k, std::int32_t* c, std::ptrdiff_t c_stride,
                  Ahead ahead = {}) const noexcept {
    function(a, a_stride, m, panel, column_sums, k, c, c_stride, ahead);
  }
};
/// What keys add to their dots with every query alike: the first to meet them may make it, with room for three more, for
/// the others.
struct KeyStarts {
  std::int32_t* start;
  bool made = false;
};
using IndexScoresOfCodes = void (*)(const IndexQueryI8& query, const std::int8_t* key, std::ptrdiff_t key_stride,
                                    int count, float* scores, const std::int8_t* ahead, KeyStarts* starts) noexcept;
template <>
struct Entry<IndexScoresOfCodes> {
  IndexScoresOfCodes function;
  void operator()(const IndexQueryI8& query, const std::int8_t* key, std::ptrdiff_t key_stride, int count, float* scores,
                  const std::int8_t* ahead = nullptr, KeyStarts* starts = nullptr) const noexcept {
    function(query, key, key_stride, count, scores, ahead, starts);
  }
};
using IndexScoresOfFloats = void (*)(const IndexQueryF32& query, const float* key, std::ptrdiff_t key_stride, int count,
                                     float* scores) noexcept;
template <class From, class To>
using Convert = void (*)(const From* x, std::int64_t n, To* y) noexcept;
template <class T>
using Dequantize = void (*)(const std::int32_t* acc, std::int64_t n, float row_scale, const float* column_scale,
                            T* y) noexcept;
template <class T>
using MaxAbs = float (*)(const T* x, std::int64_t n, const float* each) noexcept;
template <class T>
struct Entry<MaxAbs<T>> {
  MaxAbs<T> function;
  float operator()(const T* x, std::int64_t n, const float* each = nullptr) const noexcept {
    return function(x, n, each);
  }
};
template <class T>
using Quantize = void (*)(const T* x, std::int64_t n, float multiplier, std::int8_t* codes, const float* each) noexcept;
template <class T>
struct Entry<Quantize<T>> {
  Quantize<T> function;
  void operator()(const T* x, std::int64_t n, float multiplier, std::int8_t* codes,
                  const float* each = nullptr) const noexcept {
    function(x, n, multiplier, codes, each);
  }
};
template <class T>
using QuantizeChannels = void (*)(const T* x, const float* scale, const float* shift, std::int64_t n,
                                  std::int8_t* codes) noexcept;
template <class T>
using DivideChannels = void (*)(const T* x, const float* scale, const float* zero, std::int64_t n, bool is_unsigned,
                                std::int8_t* codes) noexcept;
template <class T>
using QuantizeBlocks = void (*)(const T* x, std::int64_t n, std::int64_t block, float min_scale, std::int8_t* codes,
                                float* scales) noexcept;
template <class T>
using Rotate = void (*)(const RotateRows<T>&) noexcept;
template <class T>
using Swiglu = void (*)(const T* a, const T* b, std::int64_t n, T* y) noexcept;
template <class T>
using RmsNorm = float (*)(const T* x, const float* gamma, std::int64_t n, float epsilon, T* y) noexcept;
template <class T>
using AddRmsNorm = float (*)(const T* a, const T* b, const float* gamma, const float* beta, std::int64_t n,
                             float epsilon, T* x, T* y) noexcept;
template <class T>
using Divide = void (*)(const float* x, float divisor, std::int64_t n, T* y) noexcept;
template <class T>
using WeightedSum = void (*)(const T* const* rows, const float* weights, int count, std::int64_t n, T* y) noexcept;
template <class To>
using Multiply = void (*)(const float* x, const float* scale, int n, To* y) noexcept;
using Blend = void (*)(const float* x, float unit, float factor, int n, float keep, float* y) noexcept;
template <class T>
using BlendWith = void (*)(const float* x, const T* const* rows, const float* weights, int count, float unit,
                           float factor, int n, float keep, float* y) noexcept;
template <class From, class To>
using Arrange = void (*)(const From* const* rows, int count, int dims, To* panel) noexcept;
using ArrangeCodes = void (*)(const std::int8_t* const* rows, int count, int dims, std::int8_t* panel,
                              std::int32_t* sums) noexcept;
using GemvDotsOfCodes = void (*)(const std::int32_t* query, int rows, int digits, const std::byte* const* keys,
                                 int count, int dims, const float* unit, float* y, std::ptrdiff_t pitch,
                                 const std::byte* const* ahead, int ahead_columns) noexcept;
using GemvDotsOfPairs = void (*)(const std::int32_t* query, int rows, const std::byte* const* keys, int count,
                                 int dims, float* y, std::ptrdiff_t pitch, const std::byte* const* ahead,
                                 int ahead_columns) noexcept;
using GemvDotsWidened = void (*)(const std::int32_t* query, int rows, Kept, const std::byte* const* keys, int count,
                                 int dims, float* y, std::ptrdiff_t pitch, const std::byte* const* ahead,
                                 int ahead_columns) noexcept;
/// Columns of a matrix as it lies: elements from row to row, and from 32 bytes of a row to the next 32, which may lie
/// anywhere (FRACTAL_NZ).
template <class T>
struct Strip {
  static constexpr std::ptrdiff_t kRun = 32 / std::ptrdiff_t(sizeof(T));
  const T* rows;
  std::ptrdiff_t pitch, run = kRun;
};
template <class A, class B, class C>
using StripProduct = void (*)(const A* a, std::ptrdiff_t a_stride, int m, const Strip<B>& strip, int k, int columns,
                              C* c, std::ptrdiff_t c_stride, bool add, const B* ahead) noexcept;
using GemvSumsOfCodes = void (*)(const std::uint8_t* weights, std::ptrdiff_t pitch, int rows, int digits,
                                 const std::byte* const* values, int count, std::ptrdiff_t column, int columns,
                                 const float* unit, float* sums, const std::byte* const* ahead) noexcept;
using GemvSumsOfPairs = void (*)(const bf16* weights, std::ptrdiff_t pitch, int rows, const std::byte* const* values,
                                 int count, std::ptrdiff_t column, int columns, float* sums,
                                 const std::byte* const* ahead) noexcept;
using GemvSumsWidened = void (*)(const float* weights, std::ptrdiff_t pitch, int rows, Kept,
                                 const std::byte* const* values, int count, std::ptrdiff_t column, int columns,
                                 float* sums, const std::byte* const* ahead) noexcept;

/// A row of scores; then of it: the largest, scaled, and the sum of the exponentials.
struct SoftmaxRow {
  float* x;
  int n;
  float scale;
  float largest, sum;
  bf16* rounded = nullptr;  // where the exponentials go as bf16 too, rounded as `multiply` does
};

/// Everything here that depends on an instruction set, on one screen. To port to a new CPU, write a vocabulary (vec/)
/// or a dot (dot.hpp) and a rung (rung/). Pointers, strides (in elements) and counts only; nothing here allocates,
/// throws or starts a thread. "Same bits" = on every rung. Layouts of panels and queries: panel.hpp.
struct Kernels {
  const char* isa;

  // ---- products with one panel of 64 columns: c[i][j] = sum_k a[i][k] * panel[k][j], i < m, j < 64 --------------
  // The sum over k is cut in blocks of kSumBlock, each starting at +0; block sums are added ascending. With `add`
  // they are added to what c holds. Rows of a are independent: the bits of a row do not depend on m. Of floats the first
  // `columns` are wanted: the others of c, up to 64, may be anything then.
  //   bf16 x bf16  a is not read past k. Bits per rung
  //   f32 x bf16   one fma chain per block, k ascending. Same bits
  //   f32 x f32    the same
  //   u8 x i8      k a multiple of 4; a biased by +128; exact: the kernel takes 128 * column_sums off
  //   .. x e4m3    the bits of the product with what widen_scaled makes of the panel

  Overloads<Product<bf16, bf16>, Product<float, bf16>, Product<float, float>, ProductOfCodes, ProductOfScaled<bf16>,
            ProductOfScaled<float>>
      product;
  /// bf16 x bf16 widens its rows, for each panel anew: who multiplies them by many widens them once and takes f32 x bf16,
  /// which has the same bits then.
  bool widens_rows;
  /// k rows of a panel of e4m3 codes as the numbers they stand for, a Panel<bf16>; as many rows as k rounded up to 4 are
  /// written.
  void (*widen_scaled)(ScaledPanel panel, int k, bf16* out) noexcept;

  // ---- the indexer ------------------------------------------------------------------------------------------------

  /// scores[s] = sum_h weight[h] * relu(dot(query[h], key[s])): sixteen fma lanes (head h in lane h mod 16, ascending)
  /// folded in halves 8, 4, 2, 1. Same bits. A key is not read past dims. A dot of floats is one fp32 fma chain from
  /// +0, dims ascending; relu keeps NaN. Meanwhile as many keys from `ahead` on, if it is not null, may be asked for.
  Overloads<IndexScoresOfCodes, IndexScoresOfFloats> index_scores;
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
  /// y = T(fp32(fp32(float(acc) * row_scale) * column_scale[j])).
  OfEach<Dequantize> dequantize;
  /// 16-bit floats to fp32.
  Overloads<Convert<bf16, float>, Convert<f16, float>> widen;
  /// fp32 to 16 bits: nearest, ties to even, subnormals kept, NaN stays NaN.
  Overloads<Convert<float, bf16>, Convert<float, f16>> round;

  // Rows of bf16, f16 or fp32: every operation is rounded to fp32, and the result once more to T.

  /// max |x * each|, each null: max |x|; NaN is passed over; 0 for n = 0.
  OfEach<MaxAbs> max_abs;
  /// codes = sat8(rint(x * each * multiplier)), each null: x * multiplier; NaN -> 0.
  OfEach<Quantize> quantize;
  /// codes = sat8(rint(x * scale + shift)), shift null: x * scale; NaN -> 0. Element-wise, as the next.
  OfEach<QuantizeChannels> quantize_channels;
  /// codes = sat(rint(x / scale) + zero), zero null: nothing is added; NaN -> 0; zero an integer below 2^20. Codes of 0..255
  /// or of -128..127.
  OfEach<DivideChannels> divide_channels;
  /// Blocks of a row, the last may be shorter: multiplier = 1 / max |x| * 127 and scale = max |x| * (1 / 127), with
  /// min_scale > 0 at least it and at most 1 / min_scale; codes as quantize has them. A multiplier that is no finite
  /// number: codes and scale 0.
  OfEach<QuantizeBlocks> quantize_blocks;
  /// Of each pair a, b: a * cos - b * sin, b * cos + a * sin. y is not x.
  OfEach<Rotate> rotate;
  /// y = bf16(x * scale times Sylvester's matrix [n, n] of +1 and -1), each row of n elements; n a power of two from
  /// kHadamardLeast to kHadamardMost. Sums and differences of elements 1 apart, then 2, 4 ..; y may be x.
  void (*hadamard)(const bf16* x, int rows, int n, float scale, bf16* y) noexcept;
  /// y = T(a / (1 + exp(-a)) * b), element-wise; exp within 2 ulp; y may be a or b.
  OfEach<Swiglu> swiglu;
  /// rstd = 1 / sqrt(canonical sum of x*x, times 1/n, plus epsilon), which it returns; y = T(x * rstd * gamma); y may be
  /// x.
  OfEach<RmsNorm> rms_norm;
  /// y = T(x / sqrt(canonical sum of x*x, times 1/n, plus epsilon) * gamma); y may be x. Returns the root.
  OfEach<RmsNorm> rms_norm_divided;
  /// x = T(a + b); the same as rms_norm of it, but x * rstd is rounded to T; with beta then + beta, f16 rounded before.
  OfEach<AddRmsNorm> add_rms_norm;
  /// y = T(0 + rows[0] * weights[0] + rows[1] * weights[1] ...), element-wise.
  OfEach<WeightedSum> weighted_sum;
  /// y = T(x / divisor), element-wise; y may be x.
  OfEach<Divide> divide;

  // ---- attention over one chunk of list positions; bits per rung ----------------------------------------------------

  /// In place on rows of scores: x = exp((x - max x) * scale), and the canonical sum of that. exp within 2 ulp, and
  /// what rounding its argument makes; below e^-86 it may be 0.
  void (*softmax)(SoftmaxRow* rows, int count) noexcept;
  /// Which of n <= 256 numbers from 0 to 1, the largest, decide their sum: none if (sum of their squares) * many <=
  /// sum^2; else those of sum / many and more, so that the others keep to this. Ascending; returns how many, at most
  /// `many`. Zeros around them change nothing.
  int (*deciding)(const float* x, int n, float sum, int many, int* at) noexcept;
  /// y += x * scale (fma), element-wise.
  void (*multiply_add)(const float* x, const float* scale, int n, float* y) noexcept;
  /// y = x * scale, element-wise, in the type of y; scale null: 1; y may be x. Subnormal numbers may become 0 in bf16.
  Overloads<Multiply<bf16>, Multiply<float>> multiply;
  /// y = y * keep + (x * unit) * factor, element-wise, every operation rounded; with keep 0 y is not read. With rows it
  /// is ((x + rows[0] * weights[0]) + rows[1] * weights[1]) .. instead of x. Same bits.
  Overloads<Blend, BlendWith<bf16>, BlendWith<std::int8_t>> blend;

  /// Rows to the Panel of their transpose: row j is column j, j < count <= 64; columns from count to 63 are 0. Every row
  /// pointer is valid. What becomes bf16 or fp32 does exactly; codes that stay codes come with the sums of the panel's columns.
  Overloads<Arrange<bf16, bf16>, Arrange<std::int8_t, bf16>, Arrange<bf16, float>, Arrange<std::int8_t, float>,
            Arrange<f16, float>, Arrange<float, float>, Arrange<e4m3, e4m3>, ArrangeCodes>
      transpose;
  /// Rows to the Panels of the weight [count, dims]; here too codes come with the sums of all columns.
  Overloads<Arrange<bf16, bf16>, Arrange<std::int8_t, bf16>, Arrange<bf16, float>, Arrange<std::int8_t, float>,
            Arrange<f16, float>, Arrange<float, float>, ArrangeCodes>
      interleave;

  /// Until it is called with false, products of this thread leave shaped tiles to the next: to shape them takes as long as ten
  /// of their dots; nobody else may want tiles meanwhile. On rungs without tiles nothing.
  void (*keep_shapes)(bool) noexcept;

  // ---- few rows (GEMV) with keys and values where they lie -------------------------------------------------------------
  // Every pointer up to count rounded up to kGemvKeys is valid, of `ahead` as well: rows that come after these, of which the
  // first ones are asked for beside the last of these (`ahead_columns` of each; 0: nothing is asked for).

  /// Up to this many rows are faster so than with panels on this rung (at most kGemvRows; 0: none).
  int gemv_rows;
  /// y[r * pitch + j] = dot of row r with key j, j < count, and anything up to count rounded up to kGemvKeys; the rows as
  /// GemvQuery has them.
  ///   codes  rows of 1 digit, or of 3 as split_codes makes them, [rows][digits], joined as join_codes does, times unit[r],
  ///          dims <= kGemvCodes. Same bits
  ///   bf16   the bits of product on panels of these rows (but for the sign of a zero dot), dims <= kSumBlock
  ///   fp32   of what is kept as bf16, f16 or f32: likewise
  Overloads<GemvDotsOfCodes, GemvDotsOfPairs, GemvDotsWidened> gemv_dots;
  /// sums[r * kGemvColumns + c] = sum_j weights[r * pitch + j] * values[j][column + c], j < count <= 256,
  /// c < columns <= kGemvColumns (from there on: any).
  ///   codes  weights of 1 to 3 digits as split_codes makes them, [rows][digits], joined as join_codes does, times unit[r].
  ///          Same bits
  ///   bf16   the bits of product on panels; what follows an odd last weight is 0
  ///   fp32   likewise
  Overloads<GemvSumsOfCodes, GemvSumsOfPairs, GemvSumsWidened> gemv_sums;
  /// A row in `digits` (1 to 3) rows of codes biased by +128: rint(x * per_unit), |x * per_unit| < 2^(8*digits-1) -
  /// 2^14 and 2^22, is the sum of code * 256^i; the most significant first, `pitch` from row to row. NaN: any codes.
  /// Same bits.
  void (*split_codes)(const float* x, int n, float per_unit, int digits, std::uint8_t* codes,
                      std::ptrdiff_t pitch) noexcept;
  /// The other way, from products: y = (..(float(p[0]) * 256 + float(p[1])) * 256 ..) * unit. Same bits.
  void (*join_codes)(const std::int32_t* products, std::ptrdiff_t pitch, int n, int digits, float unit,
                     float* y) noexcept;

  // ---- few rows with a matrix as it lies ------------------------------------------------------------------------------

  /// Up to this many rows are faster so than with panels on this rung (at most kStripRows).
  int strip_rows;

  /// c[i][j] = sum_p a[i][p] * strip[p][j], with `add` on top of what c holds; i < m <= strip_rows, p < k,
  /// j < columns, m * columns <= kStripSums (c up to the next multiple of 64: any).
  /// Meanwhile rows from `ahead` on are asked for, where the next strip of a row-major matrix begins.
  ///   codes  a biased by +128; exact
  ///   bf16   the bits of product on panels of this matrix
  Overloads<StripProduct<std::uint8_t, std::int8_t, std::int32_t>, StripProduct<bf16, bf16, float>> strip_product;

  /// c[i][j] = sum_p a[i][p] * columns[j * pitch + p], i < m <= kColumnRows, p < k, j < n: of a matrix that lies transposed.
  /// a biased by +128; exact. Meanwhile columns behind these are asked for, whether there are such or not.
  void (*column_product)(const std::uint8_t* a, std::ptrdiff_t a_stride, int m, const std::int8_t* columns,
                         std::ptrdiff_t pitch, int k, int n, std::int32_t* c, std::ptrdiff_t c_stride) noexcept;

  // ---- the limit ----------------------------------------------------------------------------------------------------

  /// Does `rounds` rounds of independent multiply-adds in registers, the way this rung's products do them (bf16 without
  /// a dot of its own: fp32), and returns how many operations that were (two each).
  double (*peak[3])(int rounds) noexcept;  // by Dot
};

/// Shapes of tiles are kept while it is there.
class ShapesKept {
 public:
  explicit ShapesKept(const Kernels& kernels) : kernels_(kernels) { kernels_.keep_shapes(true); }
  ~ShapesKept() { kernels_.keep_shapes(false); }
  ShapesKept(const ShapesKept&) = delete;

 private:
  const Kernels& kernels_;
};

/// An instruction set that the library knows.
struct Rung {
  const char* isa;
  const Kernels* kernels;  // null: it cannot run here
  const char* why;         // then: what this machine lacks
};

/// All that this build has; each but the first improves on one before it.
std::span<const Rung> known_rungs();
/// The rungs this machine can run, generic first. The last, the fastest, is taken unless another is asked for.
std::span<const Kernels* const> supported_kernels();
/// By name; null when unknown or not supported here.
const Kernels* find_kernels(std::string_view isa);

}  // namespace dsakit
