// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "kernels/gemv.hpp"
#include "kernels/kernels.hpp"
#include "kernels/panel.hpp"

// Few rows times a matrix as it lies. A strip of it is read in blocks of some rows, which fit in L2 with the next ones;
// a tile takes 64 columns of all rows of a block, interleaves them as gemv_sums does, and adds to sums that wait in
// memory: the chain of a panel's column, continued. Meanwhile the rows of the next block are asked for one after the
// other, whole, as memory likes it: lines below each other would lie in a few sets of the caches, and in as many pages.
namespace dsakit {
namespace {

/// Sums of a tile wait as its registers have them, [tiles][m][64].
template <class V, class Kind>
struct StripBlock {
  using T = std::conditional_t<Kind::kSize == 1, std::int8_t, bf16>;
  const typename Kind::Row* row;
  int m;
  Strip<T> strip;  // from the block's first row on
  int first, count;  // rows
  int columns, lead;  // of the first tile, if it has less than 64
  std::int32_t* sums;
  const T* ahead;  // where the next block begins
  typename V::I* kept;  // [fours / kStripFours][groups][kStripFours][4]: what a tile of the matrix became in registers
};

/// Where a pass has its columns from: all of them from the matrix; or some, and keeps what later ones want.
enum class Pass { only, first, later };

/// Fours of registers, V::kBytes columns each, that a group of rows becomes at once: a line of each row, read once.
template <class V>
constexpr int kStripFours = least(2, kPanel / V::kBytes);

/// Where a tile of `columns` columns lies, from a column on.
template <class V, class T, bool Nz, bool Whole>
struct StripColumns {
  const std::byte* run[Nz ? kPanel * int(sizeof(T)) / 32 : 1];
  int bytes;

  DSAKIT_INLINE StripColumns(const Strip<T>& s, int column, int columns) : bytes(columns * int(sizeof(T))) {
    const auto* at = reinterpret_cast<const std::byte*>(s.rows);
    if constexpr (!Nz) {
      run[0] = at + column * int(sizeof(T));
    } else {  // those of a tail that do not exist are the last one again
      const int first = column / int(s.kRun), inside = column * int(sizeof(T)) % 32;
      const int last = first + (inside + bytes + 31) / 32 - 1;
      for (int i = 0; i < int(sizeof run / sizeof *run); ++i)
        run[i] = at + least(first + i, last) * s.run * std::ptrdiff_t(sizeof(T)) + inside;
    }
  }
  /// A register of the row that begins at `row`.
  DSAKIT_INLINE typename V::I load(std::ptrdiff_t row, int byte) const {
    if constexpr (Nz && V::kBytes == 64) {
      return V::load_halves(run[byte / 32] + row, run[byte / 32 + 1] + row);
    } else if constexpr (Nz) {
      return V::load(run[byte / 32] + row + byte % 32);
    } else {
      const std::byte* from = run[0] + row + byte;
      return Whole ? V::load(from) : V::load_bytes(from, bytes - byte);
    }
  }
};

/// f.operator()<Steps, Keys>(j) for every group of `count` keys; of two keys in two steps the odd one takes one.
template <class Kind, class F>
DSAKIT_INLINE void each_group(int count, F f) {
  constexpr int kKeys = Kind::kKeys, kSteps = kKeys == 2 ? 1 : Kind::kSteps;
  int j = 0;
  for (; j + kKeys <= count; j += kKeys) f.template operator()<Kind::kSteps, kKeys>(j);
  if (count - j == 1) f.template operator()<kSteps, 1>(j);
  if constexpr (kKeys == 4) {
    if (count - j == 2) f.template operator()<kSteps, 2>(j);
    if (count - j == 3) f.template operator()<kSteps, 3>(j);
  }
}

/// Rows rows of the left, from row r on, times `Now` of the registers, from `from` on, that the columns [column, end), 64
/// or less, become. With each group `Lines` lines are asked for, from `ahead` on.
template <class V, class Kind, bool Whole, Pass P, int Rows, int Now, int Lines>
[[gnu::noinline]] void strip_tile(const StripBlock<V, Kind>& t, int r, int column, int end, std::int32_t* sums,
                                  int from, const std::byte* ahead) {
  using I = typename V::I;
  constexpr int kFours = Whole ? kStripFours<V> : 1, kVectors = least(Now, 4), kSums = Now / kVectors;
  const typename Kind::Row* const row = t.row + r;
  const std::ptrdiff_t pitch = t.strip.pitch * Kind::kSize;
  const int before = t.first;
  I* kept = t.kept;
  const auto at_sum = [](int f, int i, int v) { return i * kPanel + f * V::kBytes + v * V::kLanes; };
  for (sums += at_sum(from / 4, 0, from % 4); column < end; column += kFours * V::kBytes, sums += kFours * V::kBytes) {
    const StripColumns<V, typename StripBlock<V, Kind>::T, false, Whole> columns(t.strip, column, end - column);
    typename Kind::Sum sum[kSums][Rows][kVectors];
#pragma GCC unroll 2
    for (int f = 0; f < kSums; ++f)
#pragma GCC unroll 8
      for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v)
          sum[f][i][v] = before == 0 ? row[i].start : typename Kind::Sum(V::load(sums + at_sum(f, i, v)));
    std::ptrdiff_t at = 0;
    each_group<Kind>(t.count, [&]<int Steps, int Keys>(int j) __attribute__((always_inline)) {
      if constexpr (P == Pass::later) {
        I x[Now];
#pragma GCC unroll 4
        for (int v = 0; v < Now; ++v) x[v] = V::load(kept + from + v);
        add_dots<Kind, Steps>(row, before + j, x, sum[0]);
      } else {
#pragma GCC unroll 2
        for (int f = 0; f < kFours; ++f) {
          const auto load = [&](int k, int byte) __attribute__((always_inline)) {
            k = least(k, Keys - 1);  // what is missing is the last one again, times 0
            return columns.load(at + k * pitch, f * V::kBytes * Kind::kSize + byte);
          };
          I x[4];
          Kind::template half<0>(load, Keys, x);
          Kind::template half<1>(load, Keys, x + 2);
          constexpr int kMet = V::kRegisters == 32 ? Now : 0;  // by all rows: no later pass wants them
          if constexpr (P == Pass::first)
#pragma GCC unroll 4
            for (int v = 0; v < 4; ++v)
              if (4 * f + v >= kMet) V::store(kept + 4 * f + v, x[v]);
          if (f < kSums) add_dots<Kind, Steps>(row, before + j, x, sum[f]);
        }
        at += Kind::kKeys * pitch;
      }
      if constexpr (P != Pass::only) kept += 4 * kFours;
#pragma GCC unroll 4
      for (int l = 0; l < Lines; ++l) prefetch_l2(ahead + 64 * l);
      ahead += 64 * Lines;
    });
#pragma GCC unroll 2
    for (int f = 0; f < kSums; ++f)
#pragma GCC unroll 8
      for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) V::store(sums + at_sum(f, i, v), I(sum[f][i][v]));
  }
}

/// Rows rows of the left times the columns [column, end), 64 or less: as many registers at a time as there is room for
/// sums, all of which the first pass makes.
template <class V, class Kind, bool Whole, int Rows>
DSAKIT_INLINE void strip_passes(const StripBlock<V, Kind>& t, int column, int end, const std::byte* ahead,
                                std::int32_t* sums) {
  constexpr int kMost = V::kRegisters == 32 ? 8 : 4, kFirst = least(Rows, kMost), kMore = Rows - kFirst;
  constexpr int kMade = 4 * (Whole ? kStripFours<V> : 1), kRoom = 2 * kMost / kFirst;
  constexpr int kNow = least(kMade, kRoom >= 8 ? 8 : kRoom >= 4 ? 4 : 2), kPasses = kMade / kNow;
  constexpr int kAll = kMade * V::kBytes / 64, kLater = kAll / kPasses, kLines = kAll - (kPasses - 1) * kLater;
  constexpr Pass kPass = kPasses > 1 || kMore > 0 ? Pass::first : Pass::only;
  const std::ptrdiff_t line = t.count / Kind::kKeys * (4 * kPanel / V::kBytes / kMade) * 64;  // for each group
  strip_tile<V, Kind, Whole, kPass, kFirst, kNow, kLines>(t, 0, column, end, sums, 0, ahead);
  if constexpr (kPasses > 1)
    for (int from = kNow; from < kMade; from += kNow)
      strip_tile<V, Kind, Whole, Pass::later, kFirst, kNow, kLater>(
          t, 0, column, end, sums, from, ahead + (kLines + (from / kNow - 1) * kLater) * line);
  if constexpr (kMore > 0)
    for (int from = 0; from < kMade; from += 2)
      strip_tile<V, Kind, Whole, Pass::later, kMore, 2, 0>(t, kFirst, column, end, sums + kFirst * kPanel, from,
                                                               ahead);
}

/// Rows of a block lie so close together that none pushes another out of L1.
template <class T>
DSAKIT_INLINE bool is_close(const Strip<T>& s) {
  return s.pitch * std::ptrdiff_t(sizeof(T)) < 1024;
}

/// The columns of a strip up to the first that begins a line of memory, if all rows agree: a row that is read across
/// two lines wants each of them twice, and lines below each other push each other out.
template <class T>
DSAKIT_INLINE int strip_lead(const Strip<T>& s) {
  constexpr int kSize = int(sizeof(T));
  const int over = int(reinterpret_cast<std::uintptr_t>(s.rows) % 64);
  if (is_close(s) || s.pitch * kSize % 64 != 0 || over % kSize != 0) return 0;
  return (64 - over) % 64 / kSize;
}

/// All rows meet a tile before the next.
template <class V, class Kind>
DSAKIT_INLINE void strip_block(const StripBlock<V, Kind>& t) {
  const std::ptrdiff_t pitch = t.strip.pitch * Kind::kSize;
  const int bytes = t.columns * Kind::kSize, each = t.count * kPanel * Kind::kSize;
  const auto* ahead = reinterpret_cast<const std::byte*>(t.ahead);
  std::int32_t* sums = t.sums;
  for (int column = 0, from = 0, n = t.lead > 0 ? t.lead : kPanel; column < t.columns; column += n, n = kPanel) {
    const int end = least(column + n, t.columns);
    with_constant<kStripRows>(t.m, [&]<int Rows>() {
      end - column == kPanel ? strip_passes<V, Kind, true, Rows>(t, column, end, ahead + from, sums)
                             : strip_passes<V, Kind, false, Rows>(t, column, end, ahead + from, sums);
    });
    sums += t.m * kPanel;
    for (from += each; from >= bytes; ahead += pitch) from -= bytes;
  }
}

/// What a row becomes: `words` has room for kSumBlock of its elements.
template <class Kind>
DSAKIT_INLINE void take_row(const typename Kind::Weight* a, int k, typename Kind::Weight* words,
                            typename Kind::Row& row) {
  if constexpr (Kind::kKeys == 2) {  // behind an odd last one follows 0
    __builtin_memcpy(words, a, std::size_t(k) * sizeof *a);
    if (k % 2 != 0) words[k] = {};
    row.take(words, k);
  } else {
    row.take(a, k);
  }
}

/// A four of registers has its columns from two runs of FRACTAL_NZ.
template <class V, class Kind>
constexpr bool kInTwoRuns = Kind::kSize * V::kBytes > 32;

/// FRACTAL_NZ has the rows of a run one after the other: a register of 64 bytes holds two of them, and all rows of the
/// left meet 32 columns at once, whose sums stay in registers through a block of k. Memory is read from front to back:
/// one or two rows take what the hardware brings, more are slower, and ask for what would not be there in time.
template <class V, class Kind, int Rows, class T, class C>
[[gnu::noinline]] void run_tile(const typename Kind::Row* row, const Strip<T>& strip, int k, int columns, C* c,
                                std::ptrdiff_t c_stride, bool add) {
  using I = typename V::I;
  using Sum = typename Kind::Sum;
  constexpr int kAhead = Rows > 2 ? 6144 : 0;  // bytes
  const auto* const at = reinterpret_cast<const std::byte*>(strip.rows);
  // Of pairs, two runs; one that does not exist is the first again.
  const std::byte* run[2] = {at, at + (columns > strip.kRun ? strip.run * Kind::kSize : 0)};
  Sum sum[Rows][2];
#pragma GCC unroll 8
  for (int i = 0; i < Rows; ++i) sum[i][0] = sum[i][1] = row[i].start;
  each_group<Kind>(k, [&]<int Steps, int Keys>(int j) __attribute__((always_inline)) {
    const auto rows = [&](int r, int i) __attribute__((always_inline)) {
      const std::byte* from = run[r];
      if constexpr (kAhead > 0) prefetch_l2(from + 64 * i + kAhead);
      if constexpr (Keys == Kind::kKeys) return V::load(from + 64 * i);
      // What is missing is the last one again, times 0.
      else return V::load_halves(from + 32 * least(2 * i, Keys - 1), from + 32 * least(2 * i + 1, Keys - 1));
    };
    I x[2];
    Kind::run(rows, Keys, x);
    run[0] += 32 * Kind::kKeys, run[1] += 32 * Kind::kKeys;
    add_dots<Kind, Steps>(row, j, x, sum);
  });
#pragma GCC unroll 8
  for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      C* const to = c + i * c_stride + V::kLanes * v;
      V::store(to, I(add ? Sum(V::load(to)) + sum[i][v] : sum[i][v]));
    }
}

/// A four of narrower registers, which parts of rows fill: where its halves have rows of 32 bytes from, and what lies there
/// in the next block of k.
struct RunHalves {
  const std::byte *half[2], *ahead[2];
};

/// The same with them: halves `First` to `Last` meet some rows of the left, and of each row `asked` bytes are asked for.
template <class V, class Kind, int Rows, int First, int Last, class C>
[[gnu::noinline]] void run_tile(const typename Kind::Row* row, RunHalves t, std::ptrdiff_t asked, int k, C* c,
                                std::ptrdiff_t c_stride, bool add) {
  using I = typename V::I;
  using Sum = typename Kind::Sum;
  typedef C Four __attribute__((vector_size(16)));
  constexpr int kHalves = Last - First + 1;
  constexpr bool kAsks = kHalves == 1 || kInTwoRuns<V, Kind>;
  Sum sum[kHalves][Rows][2];
#pragma GCC unroll 2
  for (int h = 0; h < kHalves; ++h)
#pragma GCC unroll 8
    for (int i = 0; i < Rows; ++i) sum[h][i][0] = sum[h][i][1] = row[i].start;
  each_group<Kind>(k, [&]<int Steps, int Keys>(int j) __attribute__((always_inline)) {
    unrolled<kHalves>([&]<int H>() __attribute__((always_inline)) {
      constexpr int kHalf = First + H;
      const auto load = [&](int k, int) __attribute__((always_inline)) {
        return V::load(t.half[kHalf] + 32 * least(k, Keys - 1));  // what is missing is the last one again, times 0
      };
      I x[2];
      Kind::template half<kHalf>(load, Keys, x);
      t.half[kHalf] += 32 * Kind::kKeys;
      if constexpr (kAsks) prefetch_l2(t.ahead[kHalf]), t.ahead[kHalf] += Kind::kKeys * asked;
      add_dots<Kind, Steps>(row, j, x, sum[H]);
    });
  });
#pragma GCC unroll 2
  for (int h = 0; h < kHalves; ++h)
#pragma GCC unroll 8
    for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 4
      for (int v = 0; v < 2; ++v)
#pragma GCC unroll 2
        for (int b = 0; b < V::kBytes / 16; ++b) {
          C* const to = c + i * c_stride + Kind::column(2 * (First + h) + v, b);
          Four x = Four(V::block(I(sum[h][i][v]), b)), before;
          if (add) {
            __builtin_memcpy(&before, to, 16);
            x = before + x;
          }
          __builtin_memcpy(to, &x, 16);
        }
}

/// Few rows of the left meet all of a four at once; the hardware brings it, if it is one run. More of them meet half of
/// one, and each pass asks for its part of the next block.
template <class V, class Kind, class C>
DSAKIT_INLINE void run_passes(const typename Kind::Row* row, int m, const RunHalves& t, int k, C* c,
                              std::ptrdiff_t c_stride, bool add) {
  constexpr int kMost = V::kRegisters == 32 ? 8 : 4, kShared = kInTwoRuns<V, Kind> ? 1 : 2;
  if (m <= kMost / 2)
    return with_constant<kMost / 2>(
        m, [&]<int Rows>() { run_tile<V, Kind, Rows, 0, 1>(row, t, 32, k, c, c_stride, add); });
  const int passes = (m + kMost - 1) / kMost, asked = 32 / (kShared * passes);
  for (int pass = 0, i = 0, n; pass < passes; ++pass, i += n) {
    n = (m - i + passes - pass - 1) / (passes - pass);
    unrolled<2>([&]<int Half>() {
      RunHalves some = t;
      some.ahead[Half] += k * asked * (kShared * pass + Half % kShared);
      with_constant<kMost>(n, [&]<int Rows>() {
        run_tile<V, Kind, Rows, Half, Half>(row + i, some, asked, k, c + i * c_stride, c_stride, add);
      });
    });
  }
}

/// A run's part of some blocks of k, one after the other, before those of the next run.
template <class V, class Kind, class T, class C>
DSAKIT_INLINE void product_of_runs(const typename Kind::Weight* a, std::ptrdiff_t a_stride, int m,
                                   const Strip<T>& strip, int k, int columns, C* c, std::ptrdiff_t c_stride,
                                   bool add) {
  constexpr int kBlocks = 4, kColumns = V::kBytes == 64 ? 2 * V::kLanes : V::kBytes;
  constexpr int kHalf = Kind::kSize == 1 ? 0 : kColumns / 2;  // where the second half of a four begins
  typename Kind::Weight words[kStripRows][Kind::kKeys == 2 ? kSumBlock : 1];  // of the last block, if k is odd
  typename Kind::Row row[kBlocks][kStripRows];
  for (int first = 0; first < k; first += kBlocks * kSumBlock) {
    const auto each_block = [&](auto f) {
      for (int b = 0; b < kBlocks && first + b * kSumBlock < k; ++b)
        f(b, first + b * kSumBlock, least(k - first - b * kSumBlock, kSumBlock));
    };
    each_block([&](int b, int p, int n) {
      for (int i = 0; i < m; ++i) {
        const typename Kind::Weight* const from = a + i * a_stride + p;
        if (n % Kind::kKeys == 0) row[b][i].take(from, n);
        else take_row<Kind>(from, n, words[i], row[b][i]);
      }
    });
    const auto at = [&](int column, int p) {
      return strip.rows + column / strip.kRun * strip.run + column % strip.kRun + p * strip.pitch;
    };
    for (int column = 0; column < columns; column += kColumns)
      each_block([&](int b, int p, int n) {
        C* const to = c + column;
        if constexpr (V::kBytes == 64) {
          with_constant<kStripRows>(m, [&]<int Rows>() {
            run_tile<V, Kind, Rows>(row[b], Strip<T>{at(column, p), strip.pitch, strip.run}, n, columns - column, to,
                                    c_stride, add || p > 0);
          });
        } else {
          const bool last = b + 1 == kBlocks || p + n == k;
          const int next = last ? column + kColumns : column, q = last ? first : p + n;
          const auto bytes = [&](int column, int p) { return reinterpret_cast<const std::byte*>(at(column, p)); };
          // A second run that does not exist is the first again.
          run_passes<V, Kind>(row[b], m,
                              {{bytes(column, p), bytes(column + kHalf < columns ? column + kHalf : column, p)},
                               {bytes(next, q), bytes(next + kHalf, q)}},
                              n, to, c_stride, add || p > 0);
        }
      });
  }
}

/// Rows of a block at most.
constexpr int kStripBlock = 128;

/// Rows of a block of a strip, so many that a tile asks for one row of the next block or for an even part of one.
DSAKIT_INLINE int strip_rows(int panels) {
  int rows = 32;
  while (rows > 16 && panels % rows != 0) rows -= 4;
  return rows;
}

/// A frame of its own: it has room for `Sums` sums, and is touched page by page.
template <class V, class Kind, int Sums, class T, class C>
[[gnu::noinline]] void product_of_rows(const typename Kind::Weight* a, std::ptrdiff_t a_stride, int m,
                                       const Strip<T>& strip, int k, int columns, C* c, std::ptrdiff_t c_stride,
                                       bool add, const T* ahead) {
  const int rows = is_close(strip) ? kStripBlock : strip_rows(columns / kPanel);
  const int lead = strip_lead(strip);
  typename Kind::Weight words[kStripRows][Kind::kKeys == 2 ? kSumBlock : 1];
  typename Kind::Row row[kStripRows];
  for (int i = 0; i < m; ++i) take_row<Kind>(a + i * a_stride, k, words[i], row[i]);
  typename V::I kept[kStripBlock / Kind::kKeys * 4 * kPanel / V::kBytes];
  alignas(64) std::int32_t sums[Sums + kStripRows * kPanel];
  for (int first = 0, n; first < k; first += n) {
    n = least(k - first, rows);
    StripBlock<V, Kind> block{row, m, strip, first, n, columns, lead, sums, ahead, kept};
    block.strip.rows += first * strip.pitch;
    if (first + n < k) block.ahead = block.strip.rows + n * strip.pitch;
    strip_block<V, Kind>(block);
  }
  const std::int32_t* from = sums;
  for (int column = 0, some = lead > 0 ? lead : kPanel; column < columns; column += some, some = kPanel) {
    alignas(64) std::int32_t line[kStripRows * kPanel];  // read when all of it has left the store buffers
    for (int i = 0; i < m; ++i)
      for (int part = 0; part < kPanel; part += V::kBytes)
        for (int v = 0; v < 4; ++v, from += V::kLanes)
          for (int b = 0; b < V::kBytes / 16; ++b)
            V::store_block(line + i * kPanel + part + Kind::column(v, b), V::load(from), b);
    for (int i = 0; i < m; ++i) {
      C* const to = c + i * c_stride + column;
      for (int j = 0; j < least(some, columns - column); ++j) {
        const C x = __builtin_bit_cast(C, line[i * kPanel + j]);
        to[j] = add ? to[j] + x : x;
      }
    }
  }
}

template <class V, class Kind, class T, class C>
void strip_product(const typename Kind::Weight* a, std::ptrdiff_t a_stride, int m, const Strip<T>& strip, int k,
                   int columns, C* c, std::ptrdiff_t c_stride, bool add, const T* ahead) noexcept {
  constexpr int kFew = kStripRows * 512;
  if (strip.run == strip.kRun) {
    if (m * ((columns + kPanel - 1) / kPanel * kPanel) <= kFew)
      product_of_rows<V, Kind, kFew>(a, a_stride, m, strip, k, columns, c, c_stride, add, ahead);
    else product_of_rows<V, Kind, kStripSums>(a, a_stride, m, strip, k, columns, c, c_stride, add, ahead);
  } else {
    product_of_runs<V, Kind>(a, a_stride, m, strip, k, columns, c, c_stride, add);
  }
}

}  // namespace
}  // namespace dsakit
