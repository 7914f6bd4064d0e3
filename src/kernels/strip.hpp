// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "kernels/gemv.hpp"
#include "kernels/kernels.hpp"
#include "kernels/panel.hpp"
#include "kernels/tuning.hpp"

// Few rows times a matrix as it lies. A strip of it is read in blocks of some rows, which fit in L2 with the next ones; a
// tile takes 64 columns of all rows of a block, interleaves them as gemv_sums does, and adds to sums that wait in memory: the
// chain of a panel's column, continued. Meanwhile the rows of the next block are asked for one after the other, whole, as
// memory likes it: lines below each other would lie in a few sets of the caches, and in as many pages.
namespace dsakit {
namespace {

/// Rows of the left up to which frames and blocks are those of few.
constexpr int kFewStripRows = 8;

/// Fours of registers, V::kBytes columns each, that a group of rows becomes at once: a line of each row, read once.
template <class V>
constexpr int kStripFours = least(2, kPanel / V::kBytes);
/// So many registers, and their columns: a part of a tile, or all of it where registers are 32 bytes wide.
template <class V>
constexpr int kStripKept = 4 * kStripFours<V>;
template <class V>
constexpr int kStripPart = kStripFours<V> * V::kBytes;

/// Groups of a part that passes share evenly.
template <class V>
constexpr int kStripShared = kStripKept<V> / 2;

/// Tiles of a strip, of which the first begins `over` columns before it, so that the others begin where a line does.
struct StripTiles {
  int columns, over;

  DSAKIT_INLINE int count() const { return int(panels_of(columns + over)); }
  DSAKIT_INLINE int begin(int tile) const { return tile == 0 ? 0 : tile * kPanel - over; }
  DSAKIT_INLINE int end(int tile) const { return least((tile + 1) * kPanel - over, columns); }
};

/// What two parts became, [groups][kStripKept] each.
template <class V>
struct StripParts {
  typename V::I *now, *next;
  bool made = false;  // what is met now
};

/// Sums of a tile wait as its registers have them, [tiles][m][64].
template <class V, class Kind>
struct StripBlock {
  using T = std::conditional_t<Kind::kSize == 1, std::int8_t, bf16>;
  const typename Kind::Row* row;
  int m;             // rows of the left
  Strip<T> strip;    // from the block's first row on
  int first, count;  // words of the left; rows
  bool on;           // with sums that wait
  StripTiles tiles;
  std::int32_t* sums;
  const T* ahead;  // where the next block begins
  bool goes_on;    // as many rows below these
};

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

/// Where a group of rows lies, from a column on.
template <class V, bool Whole>
struct StripGroup {
  const std::byte* rows;
  std::ptrdiff_t pitch;
  int bytes;
  DSAKIT_INLINE typename V::I load(int k, int byte) const {
    const std::byte* from = rows + k * pitch + byte;
    return Whole ? V::load(from) : V::load_bytes(from, bytes - byte);
  }
};

/// Four F of the registers that a group becomes.
template <class V, class Kind, int Keys, int F, bool Whole>
DSAKIT_INLINE void make_four(const StripGroup<V, Whole>& group, typename V::I (&x)[4]) {
  const auto row = [&](int k, int byte) __attribute__((always_inline)) {
    return group.load(least(k, Keys - 1), F * V::kBytes * Kind::kSize + byte);  // what is missing is the last one again, times 0
  };
  Kind::keep(row, Keys, x);
}

/// All of them wait for later.
template <class V, class Kind, int Keys, bool Whole>
DSAKIT_INLINE void keep_group(const StripGroup<V, Whole>& group, typename V::I* kept) {
  unrolled<kStripFours<V>>([&]<int F>() __attribute__((always_inline)) {
    typename V::I x[4];
    make_four<V, Kind, Keys, F>(group, x);
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) V::store(kept + 4 * F + v, x[v]);
  });
}

/// All of a part.
template <class V, class Kind, bool Whole>
[[gnu::noinline]] void keep_part(StripGroup<V, Whole> group, int count, typename V::I* kept) {
  each_group<Kind>(count, [&]<int Steps, int Keys>(int) __attribute__((always_inline)) {
    keep_group<V, Kind, Keys>(group, kept);
    group.rows += Kind::kKeys * group.pitch, kept += kStripKept<V>;
  });
}

/// Word j of every row meets registers that were kept.
template <class V, class Kind, int Steps, int Rows, int Vectors>
DSAKIT_INLINE void add_kept(const typename Kind::Row* row, int j, const typename V::I* kept,
                            typename Kind::Sum (&sum)[Rows][Vectors]) {
#pragma GCC unroll 2
  for (int step = 0; step < Steps; ++step) {
    typename V::I x[Vectors];
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) x[v] = Kind::kept(kept, v, step);
    add_values<Kind>(row, j, step, x, sum);
    if constexpr (V::kRegisters == 16) forget();
  }
}

/// The same of registers as they are made, of which later passes want some.
template <class V, class Kind, int Steps, int Keys, bool Whole, int Parts, int Rows, int Vectors>
DSAKIT_INLINE void add_made(const typename Kind::Row* row, int j, const StripGroup<V, Whole>& group, typename V::I* kept,
                            typename Kind::Sum (&sum)[Parts][Rows][Vectors]) {
  unrolled<kStripFours<V>>([&]<int F>() __attribute__((always_inline)) {
    typename V::I x[4];
    make_four<V, Kind, Keys, F>(group, x);
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v)
      if (4 * F + v >= Parts * Vectors) V::store(kept + 4 * F + v, x[v]);
    if constexpr (F < Parts) add_dots<Kind, Steps>(row, j, x, sum[F]);
  });
}

/// Where a pass has its columns from: the matrix, of which it keeps what later passes want, or what was kept; then it may
/// make the next part beside.
enum class From { matrix, kept, kept_making_next };

/// Rows of the left that meet two registers at once, at most: twelve sums of 16 registers.
template <class V>
constexpr int kRowsOfPass = V::kRegisters == 32 ? 8 : 6;

/// With 16 registers a part is kept before it is met: its lines share a few sets of L1 and are slow to come, and are fetched
/// and interleaved beside the dots of the part before. With 32 there is a pass or two, and what they meet is at hand, unless
/// many rows take turns; so it is for a single row of numbers.
template <class V, class Kind>
constexpr bool keeps_first(int rows) {
  return rows > kRowsOfPass<V> || (V::kRegisters == 16 && (rows > 1 || Kind::kSize == 1));
}

/// Its page is known by the time its lines are asked for; rows that share a page need none of it.
DSAKIT_INLINE void touch_row(const std::byte* row, std::ptrdiff_t pitch) {
  if (pitch >= 1024) prefetch_l2(row);
}

/// Where many rows of the left ask for the next block: line by line of a row, and on with the next row.
struct LinesAhead {
  const std::byte *line, *end;  // of a row
  std::ptrdiff_t pitch, skip;   // from row to row; from an end to the next row

  DSAKIT_INLINE LinesAhead(const std::byte* row, int bytes, std::ptrdiff_t pitch)
      : line(row), end(row + (bytes + 63) / 64 * 64), pitch(pitch), skip(pitch - (end - row)) {}
  DSAKIT_INLINE void ask() {
    prefetch_l2(line);
    line += 64;
    if (line == end) {
      line += skip, end += pitch;
      touch_row(line + pitch, pitch);
    }
  }
};

/// What a pass over a part meets, asks for and makes.
template <class V, class Kind>
struct StripPass {
  const typename Kind::Row* row;
  int first, count;
  bool on;                    // with sums that wait
  const typename V::I* kept;  // the first of its registers
  std::int32_t* sums;
  const std::byte *ahead, *rows;  // of this part, or the next one if that is made
  std::ptrdiff_t pitch;
  typename V::I* made;
  int bytes;  // of a row
  int lines;  // of many rows: so many are asked for with every few groups
  LinesAhead* ahead_of_many;
};

/// One group; on to the next.
template <class V, class Kind, From F, int Steps, int Keys, bool Whole, int Parts, int Rows, int Vectors>
DSAKIT_INLINE void meet_group(const typename Kind::Row* row, int j, StripGroup<V, Whole>& group, const typename V::I*& kept,
                              typename V::I*& made, typename Kind::Sum (&sum)[Parts][Rows][Vectors]) {
  if constexpr (F == From::matrix) {
    add_made<V, Kind, Steps, Keys>(row, j, group, made, sum);
    group.rows += Kind::kKeys * group.pitch, made += kStripKept<V>;
  } else {
#pragma GCC unroll 2
    for (int f = 0; f < Parts; ++f) add_kept<V, Kind, Steps>(row, j, kept + 4 * f, sum[f]);
    kept += kStripKept<V>;
  }
}

constexpr int kLinesOfTurn = -1;  // StripPass::lines, of LinesAhead

/// Rows rows of the left meet Now registers of each group of a part. With every Groups of them Lines lines are asked for,
/// and one group of the next part is made.
template <class V, class Kind, From F, bool Whole, int Rows, int Now, int Groups, int Lines>
[[gnu::noinline]] void strip_pass(const StripPass<V, Kind>& t) {
  using I = typename V::I;
  using Sum = typename Kind::Sum;
  constexpr int kKeys = Kind::kKeys, kVectors = least(Now, 4), kParts = Now / kVectors;
  const auto at_sum = [](int f, int i, int v) { return i * kPanel + (f * kVectors + v) * V::kLanes; };
  const typename Kind::Row* const row = t.row;
  std::int32_t* const sums = t.sums;
  const int first = t.first, count = t.count;
  const I* kept = t.kept;
  const std::byte* ahead = t.ahead;
  const int lines = t.lines;
  LinesAhead many = *t.ahead_of_many;
  StripGroup<V, Whole> group{t.rows, t.pitch, t.bytes};
  I* made = t.made;
  Sum sum[kParts][Rows][kVectors];
#pragma GCC unroll 2
  for (int f = 0; f < kParts; ++f)
#pragma GCC unroll 8
    for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[f][i][v] = t.on ? Sum(V::load(sums + at_sum(f, i, v))) : Sum{};
  int j = 0;
  for (; j + Groups * kKeys <= count; j += Groups * kKeys) {
    if constexpr (F == From::kept_making_next) {
      keep_group<V, Kind, kKeys>(group, made);
      group.rows += kKeys * group.pitch, made += kStripKept<V>;
    }
    if constexpr (Lines == kLinesOfTurn) {
      for (int l = 0; l < lines; ++l) many.ask();
    } else {
#pragma GCC unroll 4
      for (int l = 0; l < Lines; ++l) prefetch_l2(ahead + 64 * l);
      ahead += 64 * Lines;
    }
    unrolled<Groups>([&]<int G>() __attribute__((always_inline)) {
      meet_group<V, Kind, F, Kind::kSteps, kKeys>(row, first + j + G * kKeys, group, kept, made, sum);
    });
  }
  each_group<Kind>(count - j, [&]<int Steps, int Keys>(int i) __attribute__((always_inline)) {
    meet_group<V, Kind, F, Steps, Keys>(row, first + j + i, group, kept, made, sum);
  });
  if constexpr (Lines == kLinesOfTurn) *t.ahead_of_many = many;
#pragma GCC unroll 2
  for (int f = 0; f < kParts; ++f)
#pragma GCC unroll 8
    for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) V::store(sums + at_sum(f, i, v), I(sum[f][i][v]));
}

/// Rows rows of the left times a part: as many registers a pass as there is room for sums; each asks for its share of the
/// next block, and makes its share of the next part. Lines that share a set of L1 come slowly: a pass that reads them has
/// time for most of the dots, and of 32 registers 24 are sums.
template <class V, class Kind, int Rows, From F, bool Whole, int Lines = kStripPart<V> / 16>
DSAKIT_INLINE void strip_passes(StripPass<V, Kind>& t) {
  constexpr bool kReads = F == From::matrix && V::kBytes == 64 && Kind::kSteps == 1;
  constexpr int kRoom = (kReads ? 24 : V::kRegisters / 2) / Rows;
  constexpr int kNow = least(kStripKept<V>, kRoom >= 8 ? 8 : kRoom >= 4 ? 4 : kReads ? 3 : 2);
  constexpr int kPasses = (kStripKept<V> + kNow - 1) / kNow, kLast = kStripKept<V> - (kPasses - 1) * kNow;
  const int groups = t.count / Kind::kKeys / kPasses;
  const auto pass = [&]<From G, int Now>() __attribute__((always_inline)) {
    strip_pass<V, Kind, G, Whole, Rows, Now, kPasses, Lines>(t);
    t.kept += Now, t.sums += Now * V::kLanes;
    if constexpr (Lines != kLinesOfTurn) t.ahead += groups * Lines * 64;
    t.rows += groups * Kind::kKeys * t.pitch, t.made += groups * kStripKept<V>;
  };
  constexpr From kThen = F == From::matrix ? From::kept : F;
  pass.template operator()<F, kNow>();
  for (int i = 2; i < kPasses; ++i) pass.template operator()<kThen, kNow>();
  if constexpr (kPasses > 1) pass.template operator()<kThen, kLast>();
}

/// More rows than a pass meets take turns with a part that was kept; the first of them make the next one.
template <class V, class Kind, From F>
DSAKIT_INLINE void strip_turns(StripPass<V, Kind>& t, int m) {
  constexpr int kMost = kRowsOfPass<V>, kLines = kStripPart<V> / 16;
  const int turns = (m + kMost - 1) / kMost;
  for (int turn = 0, n; turn < turns; ++turn, m -= n) {
    n = (m + turns - turn - 1) / (turns - turn);
    t.lines = kLines * (turn + 1) / turns - kLines * turn / turns;
    with_constant<kMost, kMost / 2>(n, [&]<int Rows>() {
      if (F == From::kept || turn > 0) strip_passes<V, Kind, Rows, From::kept, true, kLinesOfTurn>(t);
      else strip_passes<V, Kind, Rows, F, true, kLinesOfTurn>(t);
    });
    t.row += n, t.kept -= kStripKept<V>, t.sums += n * kPanel - kStripPart<V>;
  }
}

/// Rows of a block lie so close together that none pushes another out of L1.
template <class T>
DSAKIT_INLINE bool is_close(const Strip<T>& s) {
  return s.pitch * std::ptrdiff_t(sizeof(T)) < 1024;
}

/// How far the first tile of a strip begins before it, if all rows agree where a line does: a row that is read across two
/// lines wants each of them twice, and lines below each other push each other out. Short rows are better off with whole tiles.
template <class T>
DSAKIT_INLINE int strip_over(const Strip<T>& s, int columns) {
  constexpr int kSize = int(sizeof(T));
  const int over = int(reinterpret_cast<std::uintptr_t>(s.rows) % 64);
  if (columns * kSize < 2048 || is_close(s) || s.pitch * kSize % 64 != 0 || over % kSize != 0) return 0;
  return over / kSize;
}

/// All rows meet a part before the next; Rows = 0: more than a pass meets.
template <class V, class Kind, int Rows>
[[gnu::noinline]] void strip_block(const StripBlock<V, Kind>& t, StripParts<V>& parts) {
  constexpr int kPart = kStripPart<V>;
  const std::ptrdiff_t pitch = t.strip.pitch * Kind::kSize;
  const int tiles = t.tiles.count(), bytes = t.tiles.columns * Kind::kSize, each = t.count * kPart * Kind::kSize;
  const auto* const rows = reinterpret_cast<const std::byte*>(t.strip.rows);
  const auto* ahead = reinterpret_cast<const std::byte*>(t.ahead);
  std::int32_t* sums = t.sums;
  const auto meet = [&]<From F, bool Whole>(StripPass<V, Kind>& pass) __attribute__((always_inline)) {
    if constexpr (Rows == 0) strip_turns<V, Kind, F>(pass, t.m);
    else strip_passes<V, Kind, Rows, F, Whole>(pass);
  };
  LinesAhead many(ahead, bytes, pitch);
  for (int tile = 0, from = 0; tile < tiles; ++tile, sums += t.m * kPanel)
    for (int column = t.tiles.begin(tile), end = t.tiles.end(tile), part = 0; column < end; column += kPart, part += kPart) {
      const int some = (end - column) * Kind::kSize;
      const bool whole = end - column >= kPart;
      StripPass<V, Kind> pass{t.row, t.first, t.count, t.on, parts.now, sums + part, ahead + from,
                              rows + column * Kind::kSize, pitch, parts.now, some, 0, &many};
      if constexpr (Rows == 0 || keeps_first<V, Kind>(Rows)) {
        if (!parts.made && whole) keep_part<V, Kind>(StripGroup<V, true>{pass.rows, pitch, some}, t.count, parts.now);
        if (!parts.made && !whole) keep_part<V, Kind>(StripGroup<V, false>{pass.rows, pitch, some}, t.count, parts.now);
        // The next part, in this tile or in the next one or at the beginning of the next block, if all of it is there.
        const bool inside = column + kPart < end, last = !inside && tile + 1 == tiles;
        const int then = inside ? tile : last ? 0 : tile + 1, next = inside ? column + kPart : t.tiles.begin(then);
        parts.made = t.count % (kStripShared<V> * Kind::kKeys) == 0 && (!last || t.goes_on) && t.tiles.end(then) - next >= kPart;
        pass.rows = rows + (last ? t.count * pitch : 0) + next * Kind::kSize, pass.made = parts.next;
        if (parts.made) {
          meet.template operator()<From::kept_making_next, true>(pass);
          parts = {parts.next, parts.now, true};
        } else {
          meet.template operator()<From::kept, true>(pass);
        }
      } else if (whole) {
        meet.template operator()<From::matrix, true>(pass);
      } else {
        meet.template operator()<From::matrix, false>(pass);
      }
      if constexpr (Rows > 0)
        for (from += each; from >= bytes; ahead += pitch) {
          from -= bytes;
          if (t.tiles.over > 0) prefetch_l2(ahead + bytes - 1);  // a row that begins inside of a line has one more
          touch_row(ahead + 2 * pitch, pitch);
        }
    }
}

/// What a row becomes: `words` has room for kSumBlock of its elements, which lie closer there than rows often do.
template <class V, class Kind>
DSAKIT_INLINE void take_row(const typename Kind::Weight* a, int k, typename Kind::Weight* words,
                            typename Kind::Row& row) {
  if constexpr (Kind::kKeys == 2) {  // behind an odd last one follows 0
    for (int i = 0; i < k; i += V::kBytes / 2) V::store(words + i, V::load_bytes(a + i, 2 * (k - i)));
    row.take(words, k);
  } else {
    row.take(a, k);
  }
}

/// Sums of codes, whose bias is added apart, may pass the range of their words on the way: they wrap.
template <class V>
DSAKIT_INLINE typename V::I plus(typename V::I a, typename V::I b) { return typename V::I(typename V::U(a) + typename V::U(b)); }
template <class V>
DSAKIT_INLINE typename V::F plus(typename V::F a, typename V::F b) { return a + b; }

/// Block b of a register of sums leaves for c.
template <class V, class C>
DSAKIT_INLINE void give_block(C* c, typename V::I sums, int b, bool add) {
  using Word = std::conditional_t<std::same_as<C, std::int32_t>, std::uint32_t, C>;
  typedef Word Four __attribute__((vector_size(16)));
  Four x = Four(V::block(sums, b)), before;
  if (add) {
    __builtin_memcpy(&before, c, 16);
    x = before + x;
  }
  __builtin_memcpy(c, &x, 16);
}

/// A four of registers has its columns from two runs of FRACTAL_NZ.
template <class V, class Kind>
constexpr bool kInTwoRuns = Kind::kSize * V::kBytes > 32;

/// Bytes ahead that more than two rows ask for in runs of registers of a line.
constexpr int kRunAhead = 6144;

/// FRACTAL_NZ has the rows of a run one after the other: a register of 64 bytes holds two of them, and all rows of the
/// left meet 32 columns at once, whose sums stay in registers through a block of k. Memory is read from front to back:
/// more than two rows are slow beside it, and ask for what would not be there in time; one or two take what the hardware
/// brings, where it brings enough (tuning.hpp).
template <class V, class Kind, int Rows, bool Turn, class T, class C>
[[gnu::noinline]] void run_tile(const typename Kind::Row* row, const Strip<T>& strip, int k, int columns, C* c,
                                std::ptrdiff_t c_stride, bool add, const std::byte* ahead, int lines) {
  using I = typename V::I;
  using Sum = typename Kind::Sum;
  const int asked = Rows > 2 ? kRunAhead : tuning.run_ahead;
  const auto* const at = reinterpret_cast<const std::byte*>(strip.rows);
  // Of pairs, two runs; one that does not exist is the first again.
  const std::byte* run[2] = {at, at + (columns > strip.kRun ? strip.run * Kind::kSize : 0)};
  Sum sum[Rows][2];
#pragma GCC unroll 12
  for (int i = 0; i < Rows; ++i) sum[i][0] = sum[i][1] = row[i].start;
  each_group<Kind>(k, [&]<int Steps, int Keys>(int j) __attribute__((always_inline)) {
    if constexpr (Turn) {
#pragma GCC unroll 4
      for (int l = 0; l < lines; ++l) prefetch_l2(ahead + 64 * l);
      ahead += 32 * Kind::kKeys;
    }
    const auto rows = [&](int r, int i) __attribute__((always_inline)) {
      const std::byte* from = run[r];
      if (!Turn && asked > 0) prefetch_l2(from + 64 * i + asked);
      if constexpr (Keys == Kind::kKeys) return V::load(from + 64 * i);
      // What is missing is the last one again, times 0.
      else return V::load_halves(from + 32 * least(2 * i, Keys - 1), from + 32 * least(2 * i + 1, Keys - 1));
    };
    I x[2];
    Kind::run(rows, Keys, x);
    run[0] += 32 * Kind::kKeys, run[1] += 32 * Kind::kKeys;
    add_dots<Kind, Steps>(row, j, x, sum);
  });
#pragma GCC unroll 12
  for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      C* const to = c + i * c_stride + V::kLanes * v;
      V::store(to, I(add ? plus<V>(Sum(V::load(to)), sum[i][v]) : sum[i][v]));
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
  constexpr int kHalves = Last - First + 1;
  constexpr bool kAsks = kHalves == 1 || kInTwoRuns<V, Kind>;
  const int run_ahead = tuning.run_ahead;
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
      if constexpr (Kind::kSteps == 2 && kHalves == 1) {
        unrolled<Steps>([&]<int Step>() __attribute__((always_inline)) {
          Kind::template half_of_step<kHalf, Step>(load, Keys, x);
          add_values<Kind>(row, j, Step, x, sum[H]);
          forget();
        });
      } else {
        Kind::template half<kHalf>(load, Keys, x);
        add_dots<Kind, Steps>(row, j, x, sum[H]);
      }
      if (!kAsks && H == 0 && run_ahead > 0)
#pragma GCC unroll 2
        for (int byte = 0; byte < 32 * Kind::kKeys; byte += 64) prefetch_l2(t.half[H] + byte + run_ahead);
      t.half[kHalf] += 32 * Kind::kKeys;
      if constexpr (kAsks) prefetch_l2(t.ahead[kHalf]), t.ahead[kHalf] += Kind::kKeys * asked;
    });
  });
#pragma GCC unroll 2
  for (int h = 0; h < kHalves; ++h)
#pragma GCC unroll 8
    for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 4
      for (int v = 0; v < 2; ++v)
#pragma GCC unroll 2
        for (int b = 0; b < V::kBytes / 16; ++b)
          give_block<V>(c + i * c_stride + Kind::column(2 * (First + h) + v, b), I(sum[h][i][v]), b, add);
}

/// Few rows of the left meet all of a four at once; the hardware brings it, if it is one run and it brings enough
/// (tuning.hpp). More of them meet half of one, and each pass asks for its part of the next block.
template <class V, class Kind, class C>
DSAKIT_INLINE void run_passes(const typename Kind::Row* row, int m, const RunHalves& t, int k, C* c,
                              std::ptrdiff_t c_stride, bool add) {
  // Six rows of widened codes leave no register for a product.
  constexpr int kMost = V::kRegisters == 16 && Kind::kSize == 1 && Kind::kSteps == 2 ? 5 : kRowsOfPass<V>;
  constexpr int kFew = V::kRegisters / 8, kShared = kInTwoRuns<V, Kind> ? 1 : 2;
  if (m <= kFew)
    return with_constant<kFew>(
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
  constexpr int kAsked = V::kBytes == 64 ? kRunAhead : 0;
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
        else take_row<V, Kind>(from, n, words[i], row[b][i]);
      }
    });
    const auto at = [&](int column, int p) {
      return strip.rows + column / strip.kRun * strip.run + column % strip.kRun + p * strip.pitch;
    };
    for (int column = 0; column < columns; column += kColumns)
      each_block([&](int b, int p, int n) {
        C* const to = c + column;
        const bool last = b + 1 == kBlocks || p + n == k;
        const int next = last ? column + kColumns : column, q = last ? first : p + n;
        const auto bytes = [&](int column, int p) { return reinterpret_cast<const std::byte*>(at(column, p)); };
        for (int run = 0; run < 2; ++run)  // its pages are known in time
          for (int p = 0; p < 32 * n; p += 4096) prefetch_l2(bytes(next + run * int(strip.kRun), q) + p + kAsked);
        if constexpr (V::kBytes == 64) {
          constexpr int kMost = 12;
          const Strip<T> here{at(column, p), strip.pitch, strip.run};
          if (m <= kMost)
            return with_constant<kMost>(m, [&]<int Rows>() {
              run_tile<V, Kind, Rows, false>(row[b], here, n, columns - column, to, c_stride, add || p > 0, nullptr, 0);
            });
          // More rows take turns: each asks for its share of the next block, of which a group has two lines in each run.
          const int turns = (m + kMost - 1) / kMost;
          for (int turn = 0, i = 0, some; turn < turns; ++turn, i += some) {
            some = (m - i + turns - turn - 1) / (turns - turn);
            const int line = 4 * turn / turns, lines = 4 * (turn + 1) / turns - line;
            const std::byte* const ahead = bytes(next + line / 2 * int(strip.kRun), q) + line % 2 * 64;
            with_constant<kMost, kMost / 2>(some, [&]<int Rows>() {
              run_tile<V, Kind, Rows, true>(row[b] + i, here, n, columns - column, to + i * c_stride, c_stride, add || p > 0,
                                            ahead, lines);
            });
          }
        } else {
          // A second run that does not exist is the first again.
          run_passes<V, Kind>(row[b], m,
                              {{bytes(column, p), bytes(column + kHalf < columns ? column + kHalf : column, p)},
                               {bytes(next, q), bytes(next + kHalf, q)}},
                              n, to, c_stride, add || p > 0);
        }
      });
  }
}

/// Rows of a block at most. Two parts of it that are kept share L1 with what meets them.
template <class Kind>
constexpr int strip_rows_most(bool keeps) {
  return keeps ? 16 * Kind::kKeys : 128;
}

/// Rows of a block of a strip, so many that a tile asks for one row of the next block or for an even part of one. Sums of
/// many rows of the left are read and written less often if blocks are longer; those that take turns ask line by line, for
/// any number of rows.
template <class V, class Kind, class T>
DSAKIT_INLINE int strip_rows(int m, const Strip<T>& strip, int columns) {
  constexpr int kFew = V::kRegisters == 32 ? 4 : Kind::kSize == 1 ? 2 : 1;
  if (m > kFewStripRows) return (is_close(strip) ? 32 : 16) * Kind::kKeys;
  const int most = strip_rows_most<Kind>(keeps_first<V, Kind>(m));
  if (is_close(strip)) return most;
  const bool one_piece = m > kFew && strip.pitch == columns;  // whose rows may be asked for across their ends
  int rows = least(m > kFew ? 64 : tuning.strip_block, most);
  while (rows > 16 && !one_piece && columns % (rows * kPanel) != 0) rows /= 2;
  return rows;
}

/// Sums of a strip leave for c, each row of them with what it begins with.
template <class V, class Kind, class C>
DSAKIT_INLINE void give_sums(const std::int32_t* from, const StripTiles& tiles, const typename Kind::Sum* start, int m, C* c,
                             std::ptrdiff_t c_stride, bool add) {
  for (int tile = 0; tile < tiles.count(); ++tile) {
    const int begin = tiles.begin(tile), columns = tiles.end(tile) - begin;
    for (int i = 0; i < m; ++i) {
      const auto give = [&](C* to, bool add) __attribute__((always_inline)) {
        for (int part = 0; part < kPanel; part += V::kBytes)
#pragma GCC unroll 4
          for (int v = 0; v < 4; ++v, from += V::kLanes) {
            auto x = typename Kind::Sum(V::load(from));
            if constexpr (std::same_as<C, std::int32_t>) x = plus<V>(x, start[i]);  // numbers begin with 0
#pragma GCC unroll 4
            for (int b = 0; b < V::kBytes / 16; ++b)
              give_block<V>(to + part + Kind::kept_column(v, b), typename V::I(x), b, add);
          }
      };
      C* const to = c + i * c_stride + begin;
      if (columns == kPanel) {
        give(to, add);
      } else {
        C line[kPanel];
        give(line, false);
        for (int j = 0; j < columns; ++j) to[j] = add ? to[j] + line[j] : line[j];
      }
    }
  }
}

/// A frame of its own: it has room for `Sums` sums, and is touched page by page. Those of codes wait till the end of k.
template <class V, class Kind, int Most, int Sums, class T, class C>
[[gnu::noinline]] void product_of_rows(const typename Kind::Weight* a, std::ptrdiff_t a_stride, int m,
                                       const Strip<T>& strip, int k, int columns, C* c, std::ptrdiff_t c_stride,
                                       bool add, const T* ahead) {
  constexpr bool kExact = std::same_as<C, std::int32_t>;
  const int rows = strip_rows<V, Kind>(m, strip, columns);
  const StripTiles tiles{columns, strip_over(strip, columns)};
  typename Kind::Weight words[Most][Kind::kKeys == 2 ? kSumBlock : 1];
  typename Kind::Row row[Most];
  typename Kind::Sum start[Most] = {};
  constexpr int kMostRows = Most > kFewStripRows ? 32 * Kind::kKeys : strip_rows_most<Kind>(V::kRegisters == 16);
  constexpr int kKept = kMostRows / Kind::kKeys * kStripKept<V>;
  typename V::I kept[2 * kKept];
  StripParts<V> parts{kept, kept + kKept};
  alignas(64) std::int32_t sums[Sums + Most * kPanel];
  for (int first = 0, n; first < k; first += n) {
    const int word = first % kSumBlock, words_left = least(k - first, kSumBlock - word);
    if (word == 0)
      for (int i = 0; i < m; ++i) {
        take_row<V, Kind>(a + i * a_stride + first, words_left, words[i], row[i]);
        start[i] = plus<V>(start[i], row[i].start);
      }
    n = least(words_left, rows);
    StripBlock<V, Kind> block{row, m, strip, word, n, kExact ? first > 0 : word > 0, tiles, sums, ahead, k - first - n >= n};
    block.strip.rows += first * strip.pitch;
    if (first + n < k) block.ahead = block.strip.rows + n * strip.pitch;
    if (m > kRowsOfPass<V>) strip_block<V, Kind, 0>(block, parts);
    else with_constant<kRowsOfPass<V>>(m, [&]<int Rows>() { strip_block<V, Kind, Rows>(block, parts); });
    if (first + n == k || (!kExact && n == words_left)) {
      give_sums<V, Kind>(sums, tiles, start, m, c, c_stride, add);
      add = true;
    }
  }
}

template <class V, class Kind, class T, class C>
void strip_product(const typename Kind::Weight* a, std::ptrdiff_t a_stride, int m, const Strip<T>& strip, int k,
                   int columns, C* c, std::ptrdiff_t c_stride, bool add, const T* ahead) noexcept {
  constexpr int kFew = kFewStripRows, kFewSums = kFew * 512;
  if (strip.run == strip.kRun) {
    if (m <= kFew && m * ((columns + kPanel - 1) / kPanel * kPanel) <= kFewSums)
      product_of_rows<V, Kind, kFew, kFewSums>(a, a_stride, m, strip, k, columns, c, c_stride, add, ahead);
    else if (m <= kFew)
      product_of_rows<V, Kind, kFew, kStripSums>(a, a_stride, m, strip, k, columns, c, c_stride, add, ahead);
    else product_of_rows<V, Kind, kStripRows, kStripSums>(a, a_stride, m, strip, k, columns, c, c_stride, add, ahead);
  } else {
    product_of_runs<V, Kind>(a, a_stride, m, strip, k, columns, c, c_stride, add);
  }
}

}  // namespace
}  // namespace dsakit
