// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <utility>

#include "kernels/dot.hpp"
#include "kernels/panel.hpp"

// Rows times one panel of 64 columns. A tile of a few rows keeps its sums in registers through a block of k.
namespace dsakit {
namespace {

constexpr int kTileRows = 6;
constexpr int kGroupBytes = 4 * kPanel;       // of a panel: what meets four bytes of a row
constexpr int kBlockBytes = 256 * kGroupBytes;  // of a panel: a block that stays in L2 while all rows meet it

/// What one tile of a block of k works on; strides in bytes.
struct Tile {
  const char* a;
  std::ptrdiff_t a_stride;
  const char* panel;
  char* c;
  std::ptrdiff_t c_stride;
  bool add = false;
  const std::int32_t* column_sums = nullptr;
  int groups = 0;
  bool odd = false;  // one more position of k, half a group
  const char* ahead = nullptr;
  std::ptrdiff_t ahead_step = 0, ahead_second = 0;  // from group to group; from the first of two lines to the other
  bool behind = false;                              // `ahead` is a block, of ahead_step bytes for each group
  int columns = kPanel;                             // that are wanted
};

/// Lines that rows of a group touch: four, and one more of each row, which has its end there if it begins inside of a line.
template <class T>
constexpr int kLinesOfGroup = 4 + Panel<T>::kGroup;

/// Where line i of them lies if the rows are `pitch` bytes apart.
template <class T>
constexpr std::ptrdiff_t line_of_group(int i, std::ptrdiff_t pitch) {
  constexpr int kLines = kPanel * int(sizeof(T)) / 64;  // of a row
  return i < 4 ? i / kLines * pitch + i % kLines * 64 : (i - 4) * pitch + kLines * 64;
}

/// Rows of a tile at most. Columns that are widened first meet twice as many, half of them at a time: to widen them takes
/// the ports of the arithmetic.
template <class V, class Dot>
constexpr int kRows = V::kBytes == 64 && Dot::kSteps == 2 ? 2 * kTileRows : kTileRows;

/// Registers of columns in a tile: as many sums as fit, and whole cache lines of a panel for a single row, which
/// streams it.
template <class V>
constexpr int vectors_for(int rows) {
  constexpr int kGroup = kGroupBytes / V::kBytes;  // registers of a whole group
  if (V::kRegisters == 32) return rows <= 2 && kGroup == 16 ? kGroup / rows : rows <= kTileRows ? 4 : 2;
  return rows == 1 ? 8 : rows == 2 ? 4 : 2;
}

/// `Lines` cache lines of what comes later are asked for at each group: whole groups of what comes soon, or the share
/// of a tile in the next block, which should lie in L2 by then and not push this one out of L1.
template <class V, int Lines>
DSAKIT_INLINE void ask(const char* ahead, std::ptrdiff_t second) {
  if constexpr (Lines == 4)
#pragma GCC unroll 4
    for (int l = 0; l < Lines; ++l) prefetch<V>(ahead + 64 * l);
  if constexpr (Lines == 1 || Lines == 2) prefetch_l2(ahead);
  if constexpr (Lines == 2) prefetch_l2(ahead + second);
}

template <class V, class Dot, class T, int Rows, int Vectors, int Lines>
DSAKIT_INLINE void tile_of_columns(const Tile& t, int column) {
  using I = typename V::I;
  using Sum = typename Dot::Sum;
  constexpr bool kExact = std::same_as<Sum, I>;
  // With few rows their words are kept and the columns pass by, with many the other way round.
  constexpr bool kKeepRows = Rows * Vectors + Vectors + 1 > V::kRegisters;
  Sum sum[Rows][Vectors];
#pragma GCC unroll 12
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 16
    for (int v = 0; v < Vectors; ++v)
      if constexpr (kExact)
        sum[r][v] = t.add ? V::load(t.c + r * t.c_stride + 4 * column + V::kBytes * v)
                          : Dot::start(t.column_sums + column + V::kLanes * v);
      else sum[r][v] = Sum{};

  const char *a = t.a, *panel = t.panel + 4 * column, *ahead = t.ahead;
  const auto step = [&]<int Step>(auto word) __attribute__((always_inline)) {
    if constexpr (kKeepRows) {
      I row[Rows];
#pragma GCC unroll 12
      for (int r = 0; r < Rows; ++r) {
        row[r] = word(a + 4 * Step + r * t.a_stride);
        pin(row[r]);  // else gcc 12 loads it anew for each column
      }
#pragma GCC unroll 16
      for (int v = 0; v < Vectors; ++v) {
        const I x = Dot::column(V::load(panel + V::kBytes * v), Step);
#pragma GCC unroll 12
        for (int r = 0; r < Rows; ++r) sum[r][v] = Dot::dot(sum[r][v], row[r], x);
      }
    } else {
      I x[Vectors];
#pragma GCC unroll 16
      for (int v = 0; v < Vectors; ++v) {
        x[v] = Dot::column(V::load(panel + V::kBytes * v), Step);
        pin(x[v]);  // else gcc 12 loads it anew for each row
      }
#pragma GCC unroll 12
      for (int r = 0; r < Rows; ++r) {
        const I row = word(a + 4 * Step + r * t.a_stride);
#pragma GCC unroll 16
        for (int v = 0; v < Vectors; ++v) sum[r][v] = Dot::dot(sum[r][v], row, x[v]);
      }
    }
  };
  const auto whole = [](const char* p) __attribute__((always_inline)) { return V::broadcast(p); };
  for (int g = 0; g < t.groups; ++g, a += 4 * Dot::kSteps, panel += kGroupBytes, ahead += t.ahead_step) {
    ask<V, Lines>(ahead, t.ahead_second);
    unrolled<Dot::kSteps>([&]<int Step>() __attribute__((always_inline)) { step.template operator()<Step>(whole); });
  }
  if constexpr (!kExact)
    if (t.odd)
      step.template operator()<0>([](const char* p) __attribute__((always_inline)) {
        return Dot::kOddBytes == 4 ? V::broadcast(p) : V::set(load_some(p, 2));
      });
#pragma GCC unroll 12
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 16
    for (int v = 0; v < Vectors; ++v) {
      char* c = t.c + r * t.c_stride + 4 * column + V::kBytes * v;
      if constexpr (kExact) V::store(c, sum[r][v]);
      else V::store(c, I(t.add ? Sum(V::load(c)) + sum[r][v] : sum[r][v]));
    }
}

/// The last `bytes` of a row, of which eight are wanted: whole groups that are missing are of the zero whose products
/// with 0 change no sum, which of floats is -0.
template <class T>
DSAKIT_INLINE void pad_squares(const char* row, int bytes, char* eight) {
  for (int i = 0; i < 8; ++i) eight[i] = std::same_as<T, bf16> && i % 2 && i >= (bytes + 3) / 4 * 4 ? char(0x80) : 0;
  for (int i = 0; i < bytes; ++i) eight[i] = row[i];
}

/// Two rows at a time, where there are products of small matrices: two groups of four columns become 2 x 8 bytes each of
/// the first two columns and of the others, and so do the sums.
template <class V, class Dot, class T, int Rows, int Lines>
DSAKIT_INLINE void squares_of_columns(const Tile& t, int column) {
  using I = typename V::I;
  using Sum = typename Dot::Sum;
  constexpr int kPairs = (Rows + 1) / 2, kVectors = 4;
  Sum sum[kPairs][2 * kVectors] = {};
  const char *a = t.a, *panel = t.panel + 4 * column, *ahead = t.ahead;
  const auto row = [&](int r) __attribute__((always_inline)) { return r < Rows ? r : Rows - 1; };
  const auto step = [&](const char* next, const char* from, std::ptrdiff_t stride) __attribute__((always_inline)) {
    I rows[kPairs];
#pragma GCC unroll 3
    for (int p = 0; p < kPairs; ++p) rows[p] = V::load_halves(from + 2 * p * stride, from + row(2 * p + 1) * stride);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const I x = V::load(panel + V::kBytes * v), y = V::load(next + V::kBytes * v);
      const I low = V::unpack_low32(x, y), high = V::unpack_high32(x, y);
#pragma GCC unroll 3
      for (int p = 0; p < kPairs; ++p) {
        sum[p][2 * v] = Dot::square(sum[p][2 * v], rows[p], low);
        sum[p][2 * v + 1] = Dot::square(sum[p][2 * v + 1], rows[p], high);
      }
    }
  };
  int g = 0;
  for (; g + 2 <= t.groups; g += 2, a += 8, panel += 2 * kGroupBytes, ahead += 2 * t.ahead_step) {
    ask<V, Lines>(ahead, t.ahead_second), ask<V, Lines>(ahead + t.ahead_step, t.ahead_second);
    step(panel + kGroupBytes, a, t.a_stride);
  }
  if (g < t.groups || t.odd) {
    const int bytes = 4 * (t.groups - g) + 2 * t.odd;
    static constexpr char kNothing[kGroupBytes] = {};
    char rest[Rows][8];
    for (int r = 0; r < Rows; ++r) pad_squares<T>(a + r * t.a_stride, bytes, rest[r]);
    step(bytes > 4 ? panel + kGroupBytes : kNothing, rest[0], 8);
  }
#pragma GCC unroll 6
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const I low = I(sum[r / 2][2 * v]), high = I(sum[r / 2][2 * v + 1]);
      const Sum x = Sum(r % 2 == 0 ? V::unpack_low64(low, high) : V::unpack_high64(low, high));
      char* c = t.c + r * t.c_stride + 4 * column + V::kBytes * v;
      V::store(c, I(t.add ? Sum(V::load(c)) + x : x));
    }
}

/// Each pass over the columns asks for its part of `Lines`, of a block from front to back: all of it in one would have
/// that one wait for memory, and memory for the others.
template <class V, class Dot, class T, int Rows, int Lines>
void tile(const Tile& t) {
  constexpr bool kSquares = Squares<Dot> && Rows > 1;
  constexpr int kVectors = kSquares ? 4 : vectors_for<V>(Rows), kColumns = V::kLanes * kVectors;
  constexpr int kPasses = kPanel / kColumns, kLines = kPasses < Lines ? Lines / kPasses : 1, kAsking = Lines / kLines;
  if constexpr (kPasses == 1 && kVectors > 2 && sizeof(T) > 1 && Dot::kSteps == 1)
    if (t.columns <= kPanel / 2) return tile_of_columns<V, Dot, T, Rows, kVectors / 2, Lines>(t, 0);
  Tile part = t;
  if (t.behind) part.ahead_step /= kAsking;
  unrolled<kPasses>([&]<int Pass>() __attribute__((always_inline)) {
    if (Pass * kColumns >= t.columns) return;
    constexpr int kAsked = Pass * kLines < Lines ? kLines : 0;
    if constexpr (kSquares) squares_of_columns<V, Dot, T, Rows, kAsked>(part, Pass * kColumns);
    else tile_of_columns<V, Dot, T, Rows, kVectors, kAsked>(part, Pass * kColumns);
    part.ahead += t.behind ? t.groups * part.ahead_step : kLines * t.ahead_second;
  });
}

using TileFunction = void (*)(const Tile&);
template <class V, class Dot, class T, int Lines, class Rows = std::make_integer_sequence<int, kRows<V, Dot>>>
constexpr TileFunction kTilesOf[1] = {};
template <class V, class Dot, class T, int Lines, int... Less>
constexpr TileFunction kTilesOf<V, Dot, T, Lines, std::integer_sequence<int, Less...>>[] = {
    tile<V, Dot, T, Less + 1, Lines>...};

/// All rows meet one block of the panel before the next: 64 KiB (128 of fp32), which stays in L2, or of codes what the
/// make of the core wants (tuning.hpp). Meanwhile the tiles ask for the block after it, or for what the caller names, so
/// that with many rows weights from DRAM cost nothing: of a block an equal part each, from front to back, for a core has
/// few requests under way at a time, and the hardware takes up what goes forwards; of rows a line each, the first ones. A
/// single tile whose rows meet all columns at once streams: it asks stream_ahead() bytes ahead. (Behind the last block
/// lies the next panel. Where nothing of it is to come, requests for it take as long as the arithmetic of eight rows, so
/// the caller names what is.)
template <class V, class Dot, class T>
DSAKIT_INLINE void multiply(Tile t, int m, int k, Ahead ahead) {
  constexpr int kElements = Panel<T>::kGroup;
  constexpr bool kExact = sizeof(T) == 1;
  constexpr int kMost = kExact ? kBlockBytes / kGroupBytes : kSumBlock / kElements;  // groups of a block
  constexpr std::ptrdiff_t kRowBytes = kElements * std::ptrdiff_t(sizeof(typename Dot::Row));  // of a group
  int groups = k / kElements;
  bool odd = k % kElements != 0;
  const int count = (m + kRows<V, Dot> - 1) / kRows<V, Dot>;
  int most = kMost;
  if constexpr (kExact) {
    // Few rows wait for the block, not for their sums, which smaller blocks load and store more often.
    if (V::kBytes == 64 && count > 1 && count <= 6) most = least(most, tuning.code_block / kGroupBytes);
    // Those of codes are alike: each asks for as many groups as the next one has.
    const int blocks = (groups + most - 1) / most;
    if (blocks > 1) most = (groups + blocks - 1) / blocks;
  }
  const bool streams = count == 1 && V::kLanes * vectors_for<V>(m) == kPanel;
  const bool behind = ahead.rows == nullptr || (count == 1 && groups > most);
  const int lines = count == 1 && behind ? 4 : count <= 3 ? 2 : 1;
  const TileFunction* const tiles = lines == 4   ? kTilesOf<V, Dot, T, 4>
                                    : lines == 2 ? kTilesOf<V, Dot, T, 2>
                                                 : kTilesOf<V, Dot, T, 1>;
  t.behind = behind;
  t.ahead_step = behind ? (kGroupBytes + count - 1) / count : kElements * ahead.pitch;
  const char* next = static_cast<const char*>(ahead.rows);
  const char* rows = t.a;
  const std::ptrdiff_t stride = t.a_stride;
  char* const c = t.c;
  do {
    t.groups = groups < most ? groups : most;
    t.odd = t.groups < most && odd;
    const std::ptrdiff_t bytes = std::ptrdiff_t(t.groups) * kGroupBytes;
    if (behind) next = t.panel + (streams ? stream_ahead<V>() : bytes);
    const std::ptrdiff_t part = t.groups * t.ahead_step;
    t.a = rows;
    for (int rest = m, left = count, line = 0; left > 0; --left, line = (line + lines) % kLinesOfGroup<T>) {
      const std::ptrdiff_t first = line_of_group<T>(line, ahead.pitch);
      t.ahead = next + (behind ? (count - left) * part : first);
      t.ahead_second = behind ? 64 : line_of_group<T>(line + 1, ahead.pitch) - first;
      const int n = (rest + left - 1) / left;
      if constexpr (Prepares<Dot>) {
        typename Dot::Prepared prepared[kRows<V, Dot>][kMost * kElements + 64 / sizeof(typename Dot::Prepared)];
        const int length = t.groups * kElements + t.odd;
        for (int r = 0; r < n; ++r)
          Dot::prepare(reinterpret_cast<const typename Dot::Row*>(t.a + r * stride), length, prepared[r]);
        const char* const here = t.a;
        t.a = reinterpret_cast<const char*>(prepared), t.a_stride = sizeof prepared[0];
        tiles[n - 1](t);
        t.a = here;
      } else {
        tiles[n - 1](t);
      }
      rest -= n;
      t.a += n * stride;
      t.c += n * t.c_stride;
    }
    if (!behind) next += part;
    rows += t.groups * kRowBytes;
    t.c = c;
    t.panel += bytes;
    t.add = true;
    groups -= t.groups;
    odd = odd && !t.odd;
  } while (groups > 0 || odd);
}

template <class V, class Dot, class T>
void product(const typename Dot::Row* a, std::ptrdiff_t a_stride, int m, const T* panel, int k, float* c,
             std::ptrdiff_t c_stride, bool add, Ahead ahead, int columns) noexcept {
  multiply<V, Dot, T>({.a = reinterpret_cast<const char*>(a),
                       .a_stride = a_stride * std::ptrdiff_t(sizeof *a),
                       .panel = reinterpret_cast<const char*>(panel),
                       .c = reinterpret_cast<char*>(c),
                       .c_stride = c_stride * 4,
                       .add = add,
                       .columns = columns},
                      m, k, ahead);
}

template <class V, class Dot>
void product_of_codes(const std::uint8_t* a, std::ptrdiff_t a_stride, int m, const std::int8_t* panel,
                      const std::int32_t* column_sums, int k, std::int32_t* c, std::ptrdiff_t c_stride,
                      Ahead ahead) noexcept {
  multiply<V, Dot, std::int8_t>({.a = reinterpret_cast<const char*>(a),
                                 .a_stride = a_stride,
                                 .panel = reinterpret_cast<const char*>(panel),
                                 .c = reinterpret_cast<char*>(c),
                                 .c_stride = c_stride * 4,
                                 .column_sums = column_sums},
                                m, k, ahead);
}

}  // namespace
}  // namespace dsakit
