// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "kernels/panel.hpp"
#include "kernels/vec/base.hpp"

// What one step of a product is: four bytes of a row, broadcast, meet four bytes of every column. A dot says
//
//   kSteps             steps that a group of four bytes of a column takes, each with a word of the row
//   Sum                register of sums
//   start(...)         where the sums of a product begin
//   column(x, step)    the operand that a group of columns gives in a step
//   dot(sum, row, column)
//
// and, where rows are not taken as they are, Prepared and prepare(): what a row becomes first; where the instruction set
// has products of small matrices, square(sum, rows, columns) too: eight bytes of two rows times eight bytes of two columns.
namespace dsakit {
namespace {

/// int8 without a dot instruction: both sides are widened to 16 bits and multiplied in pairs (vpmaddubsw saturates). A
/// group of four positions 0 1 2 3 is kept as 0 2 1 3: columns are widened in place, even bytes, then odd ones, and a
/// word of the row has the two that meet them.
template <class V>
struct WidenedI8 {
  using I = typename V::I;
  using H = typename V::H;
  using Sum = I;
  using Row = std::uint8_t;
  using Prepared = std::int16_t;
  static constexpr int kSteps = 2;

  DSAKIT_INLINE static I start(const std::int32_t*) { return I{}; }  // rows lose their bias when they are prepared
  DSAKIT_INLINE static I column(I x, int step) { return step == 0 ? I(H(x) << 8 >> 8) : I(H(x) >> 8); }
  DSAKIT_INLINE static Sum dot(Sum sum, I row, I column) {
    sum += V::multiply_pairs(row, column);
    pin(sum);  // else gcc adds the products of both steps first, and spills
    return sum;
  }

  /// n codes, biased by `flip`; what is missing in the last group is 0.
  DSAKIT_INLINE static void prepare(const void* codes, int n, int flip, Prepared* out) {
    const auto* x = static_cast<const std::int8_t*>(codes);
    int i = 0;
    for (; i + 16 <= n; i += 16) V::widen_codes(x + i, flip, out + i);
    for (; i < n; i += 4) {
      Prepared four[4] = {};
      for (int d = 0; d < 4 && i + d < n; ++d) four[d] = std::int8_t(x[i + d] ^ flip);
      out[i] = four[0], out[i + 1] = four[2], out[i + 2] = four[1], out[i + 3] = four[3];
    }
  }
  DSAKIT_INLINE static void prepare(const Row* codes, int n, Prepared* out) { prepare(codes, n, 128, out); }

  // The indexer: prepared keys meet unsigned codes, so the bias of a query adds 128 times a key's sum.
  static constexpr bool kBiasedQuery = true;
  DSAKIT_INLINE static I key_word(I x, int step) { return column(x, step); }
  DSAKIT_INLINE static I query(I x, int step) { return step == 0 ? I(H(x) & 255) : I(typename V::U16(x) >> 8); }
  DSAKIT_INLINE static Sum meet(Sum sum, I query, I key) { return dot(sum, key, query); }
  DSAKIT_INLINE static I add_codes(I sum, I x) { return V::add_codes(sum, x); }

  // GEMV: signed words of rows, widened beforehand.
  DSAKIT_INLINE static I key(I x) { return x; }
  DSAKIT_INLINE static Sum row_start(const std::int32_t*) { return I{}; }
  /// Two digits of eight bits as one of sixteen.
  DSAKIT_INLINE static I joined(I high, I low) {
    using U16 = typename V::U16;  // what is nobody's digit may overflow
    return I((U16(high) << 8) + U16(low));
  }
};

/// u8 x i8, four at a time: Dot4::dot4(sum, unsigned, signed). What a bias of 128 adds is taken off at the start.
template <class V, class Dot4>
struct DotI8 {
  using I = typename V::I;
  using Sum = I;
  using Row = std::uint8_t;
  static constexpr int kSteps = 1;

  DSAKIT_INLINE static I start(const std::int32_t* column_sums) { return -(V::load(column_sums) << 7); }
  DSAKIT_INLINE static I column(I x, int) { return x; }
  DSAKIT_INLINE static Sum dot(Sum sum, I row, I column) { return Dot4::dot4(sum, row, column); }

  // The indexer: the query is the unsigned side, keys are taken as they lie.
  static constexpr bool kBiasedQuery = true;
  DSAKIT_INLINE static I key_word(I x, int) { return x; }
  DSAKIT_INLINE static I query(I x, int) { return x; }
  DSAKIT_INLINE static Sum meet(Sum sum, I query, I key) { return Dot4::dot4(sum, query, key); }
  DSAKIT_INLINE static I add_codes(I sum, I x) { return Dot4::dot4(sum, V::set(0x01010101), x); }

  // GEMV: keys are biased as they are loaded, words of rows are signed.
  DSAKIT_INLINE static I key(I x) { return V::biased(x); }
  DSAKIT_INLINE static Sum row_start(const std::int32_t* start) { return V::broadcast(start); }
  DSAKIT_INLINE static void meet_word(Sum& sum, I key, const std::int32_t* word)
  requires requires { Dot4::dot4_of_word(sum, key, word); }
  {
    Dot4::dot4_of_word(sum, key, word);
  }
};

/// i8 x i8, four at a time: rows lose their bias when they are prepared, queries as they are loaded.
template <class V, class Dot4>
struct SignedI8 {
  using I = typename V::I;
  using Sum = I;
  using Row = std::uint8_t;
  using Prepared = std::int8_t;
  static constexpr int kSteps = 1;

  DSAKIT_INLINE static I start(const std::int32_t*) { return I{}; }
  DSAKIT_INLINE static I column(I x, int) { return x; }
  DSAKIT_INLINE static Sum dot(Sum sum, I row, I column) { return Dot4::dot4(sum, row, column); }
  /// n codes; what is missing in the last group is 0.
  DSAKIT_INLINE static void prepare(const Row* codes, int n, Prepared* out) {
    int i = 0;
    for (; i + V::kBytes <= n; i += V::kBytes) V::store(out + i, V::biased(V::load(codes + i)));
    for (; i < n; ++i) out[i] = Prepared(codes[i] ^ 128);
    for (; i % 4 != 0; ++i) out[i] = 0;
  }

  static constexpr bool kBiasedQuery = false;
  DSAKIT_INLINE static I key_word(I x, int) { return x; }
  DSAKIT_INLINE static I query(I x, int) { return V::biased(x); }
  DSAKIT_INLINE static Sum meet(Sum sum, I query, I key) { return Dot4::dot4(sum, key, query); }

  DSAKIT_INLINE static I key(I x) { return x; }
  DSAKIT_INLINE static Sum row_start(const std::int32_t*) { return I{}; }
};

/// fp32 fma with a panel of pairs of bf16: first the lower positions, then the upper ones. bf16 rows are widened once.
template <class V, class T>
struct FmaPairs {
  using I = typename V::I;
  using Sum = typename V::F;
  using Row = T;
  using Prepared = float;
  static constexpr int kSteps = 2, kOddBytes = 4;

  DSAKIT_INLINE static I column(I x, int step) { return step == 0 ? V::low_bf16(x) : V::high_bf16(x); }
  DSAKIT_INLINE static Sum dot(Sum sum, I row, I column) {
    // Products of two bf16 are exact in fp32's normal range: without fma the bits are the same.
    if constexpr (sizeof(T) == 2 && !V::kFma) return sum + Sum(row) * Sum(column);
    sum = V::fma(Sum(row), Sum(column), sum);
    if constexpr (V::kRegisters == 16) pin(sum);  // else gcc 12 mixes the steps, and spills
    return sum;
  }
  DSAKIT_INLINE static void prepare(const bf16* x, int n, float* y) {
    for (int i = 0; i < n; ++i) y[i] = __builtin_bit_cast(float, std::uint32_t(x[i].bits) << 16);
  }
};

/// fp32 fma with a panel of fp32.
template <class V>
struct Fma {
  using I = typename V::I;
  using Sum = typename V::F;
  using Row = float;
  static constexpr int kSteps = 1, kOddBytes = 4;

  DSAKIT_INLINE static I column(I x, int) { return x; }
  DSAKIT_INLINE static Sum dot(Sum sum, I row, I column) { return V::fma(Sum(row), Sum(column), sum); }
};

template <class Dot>
concept Prepares = requires { typename Dot::Prepared; } && !std::same_as<typename Dot::Prepared, typename Dot::Row>;
template <class Dot>
concept PreparesKeys = requires(const void* codes, typename Dot::Prepared* out) { Dot::prepare(codes, 0, 0, out); };
template <class Dot>
concept Joins = requires(typename Dot::I x) { Dot::joined(x, x); };
template <class Dot>
concept MeetsWords = requires(typename Dot::Sum sum, typename Dot::I x) { Dot::meet_word(sum, x, nullptr); };
template <class Dot>
concept Squares = requires(typename Dot::Sum sum, typename Dot::I x) { Dot::square(sum, x, x); };

}  // namespace
}  // namespace dsakit
