// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <type_traits>

#include "kernels/dot.hpp"
#include "kernels/kernels.hpp"
#include "kernels/panel.hpp"
#include "kernels/panels.hpp"
#include "kernels/rows.hpp"
#include "kernels/tuning.hpp"

// Products of few rows (GEMV, or nearly so) with keys and values where they lie: nothing is stored on the way, and the
// shuffles run beside the dots.
namespace dsakit {
namespace {

// ---- dots: the words of a row (GemvQuery) meet four bytes of every key of a block ----------------------------------
// A kind of key says how it is loaded, which operand a step takes of it, whether the words of the steps follow one
// another (else each step has a plane of words), and which word of a group meets it for sum r.

struct WordOfEachSum {
  static constexpr int word(int r) { return r; }
};
/// Rows of three digits, the first two of which are one: two sums of three words.
struct WordsOfJoined {
  static constexpr int word(int r) { return r / 2 * 3 + r % 2 * 2; }
};

template <class V, class Dot, class Words = WordOfEachSum>
struct KeysOfCodes : Words {
  using I = typename V::I;
  using Sum = I;
  static constexpr int kSteps = Dot::kSteps, kTiles = 1;
  static constexpr bool kWordPerStep = false;
  DSAKIT_INLINE static I loaded(I x) { return Dot::key(x); }
  DSAKIT_INLINE static Sum first(const std::int32_t* start) { return Dot::row_start(start); }
  DSAKIT_INLINE static I key(I x, int step) { return Dot::column(x, step); }
  DSAKIT_INLINE static void meet(Sum& sum, I key, const std::int32_t* word) {
    if constexpr (MeetsWords<Dot>) {
      Dot::meet_word(sum, key, word);
    } else {
      sum = Dot::dot(sum, key, V::broadcast(word));
      pin(sum);
    }
  }
};

/// Pairs of bf16, with the dot of the products of pairs.
template <class V, class Dot>
struct KeysOfPairs : WordOfEachSum {
  using I = typename V::I;
  using Sum = typename V::F;
  static constexpr int kSteps = Dot::kSteps, kTiles = 1;
  static constexpr bool kWordPerStep = false;
  DSAKIT_INLINE static I loaded(I x) { return x; }
  DSAKIT_INLINE static Sum first(const std::int32_t*) { return Sum{}; }
  DSAKIT_INLINE static I key(I x, int step) { return Dot::column(x, step); }
  DSAKIT_INLINE static void meet(Sum& sum, I key, I word) {
    sum = Dot::dot(sum, word, key);
    pin(sum);
  }
  DSAKIT_INLINE static void meet(Sum& sum, I key, const std::int32_t* word) { meet(sum, key, V::broadcast(word)); }
};

/// T as fp32.
template <class V, class T>
struct KeysWidened : WordOfEachSum {
  using I = typename V::I;
  using Sum = typename V::F;
  static constexpr int kSteps = 4 / int(sizeof(T)), kTiles = 2;
  static constexpr bool kWordPerStep = true;
  DSAKIT_INLINE static I loaded(I x) { return x; }
  DSAKIT_INLINE static Sum first(const std::int32_t*) { return Sum{}; }
  DSAKIT_INLINE static I key(I x, int step) {
    if constexpr (std::same_as<T, float>) return x;
    else if constexpr (std::same_as<T, bf16>) return step == 0 ? V::low_bf16(x) : V::high_bf16(x);
    else return I(V::low_f16(step == 0 ? x & 0xffff : I(typename V::U(x) >> 16)));
  }
  DSAKIT_INLINE static void meet(Sum& sum, I key, I word) {
    sum = V::fma(Sum(word), Sum(key), sum);
    pin(sum);
  }
  DSAKIT_INLINE static void meet(Sum& sum, I key, const std::int32_t* word) { meet(sum, key, V::broadcast(word)); }
};

/// Bytes of as many keys as a register has lanes; x[i] becomes word i of all of them.
template <class V, class Kind>
struct KeyBlock {
  static constexpr bool kOverlaps = false;
  static constexpr int kKeys = V::kLanes, kBytes = V::kBytes, kRegisters = V::kLanes;
  typename V::I x[kRegisters];

  DSAKIT_INLINE void take(const std::byte* const* row, std::ptrdiff_t at, int rest) {
#pragma GCC unroll 16
    for (int k = 0; k < kKeys; ++k) x[k] = Kind::loaded(V::load_bytes(row[k] + at, rest));
    V::transpose(x);
  }
};

/// 32 bytes of sixteen keys, in eight steps. The dots of one block have those of the next beside them: the shuffles of
/// one and the dots of the other use different units, and no reordering of the machine reaches that far.
template <class V, class Kind>
requires(V::kRegisters == 32 && V::kLanes == 16)
struct KeyBlock<V, Kind> {
  static constexpr bool kOverlaps = true;
  static constexpr int kKeys = 16, kBytes = 32, kRegisters = 8;
  typename V::I x[kRegisters];

  template <int Step>
  DSAKIT_INLINE void step(const std::byte* const* row, std::ptrdiff_t at, int rest) {
    if constexpr (Step < 4) {
#pragma GCC unroll 2
      for (int i = 2 * Step; i < 2 * Step + 2; ++i) x[i] = Kind::loaded(V::load_row_pair(row, i, at, rest));
    } else if constexpr (Step == 4) {
#pragma GCC unroll 4
      for (int i = 0; i < 8; i += 2) {
        const auto low = V::unpack_low32(x[i], x[i + 1]);
        x[i + 1] = V::unpack_high32(x[i], x[i + 1]);
        x[i] = low;
      }
    } else if constexpr (Step == 5) {
#pragma GCC unroll 2
      for (int i = 0; i < 8; i += 4) {
        const auto a = V::unpack_low64(x[i], x[i + 2]), b = V::unpack_high64(x[i], x[i + 2]);
        const auto c = V::unpack_low64(x[i + 1], x[i + 3]), d = V::unpack_high64(x[i + 1], x[i + 3]);
        x[i] = a, x[i + 1] = b, x[i + 2] = c, x[i + 3] = d;
      }
    } else {
#pragma GCC unroll 2
      for (int i = 2 * (Step - 6); i < 2 * (Step - 6) + 2; ++i) V::join_blocks(x[i], x[i + 4]);
    }
  }
};

/// Whether words of keys wait in L1 before rows meet them: of floats of 16 bits, where blocks do not overlap.
template <class V, class Kind>
constexpr bool kWaits = !KeyBlock<V, Kind>::kOverlaps && Kind::kSteps == 2 && std::same_as<typename Kind::Sum, typename V::F>;

/// Lines of the rows that come next, asked for evenly and in the order of memory: a core waits for a dozen at most, and who
/// asks for more at once waits too. Some KiB ahead, which the hardware follows as one stream with what is read. It is done
/// beside every few dots, so what there is to count is little: lines of a row go by twos where they are even.
class RowsAhead {
 public:
  /// Bytes [begin, end) of each row; of those of `later`, which come after `count` of these, to later_end.
  DSAKIT_INLINE RowsAhead(const std::byte* const* rows, int count, const std::byte* const* later, std::ptrdiff_t begin,
                          std::ptrdiff_t end, std::ptrdiff_t later_end)
      : rows_(rows), later_(later), begin_(begin), end_(end), later_end_(later_end) {
    count_ = (count + kGemvKeys - 1) / kGemvKeys * kGemvKeys;
    int some = tuning.rows_ahead / 128;
    while (some > kGemvKeys && (end - begin) * some > tuning.rows_ahead) some /= 2;
    distance_ = least(some, count_);  // as many are valid of both
    twos_ = (end - begin + 63) / 64 % 2 == 0 && later_end == end;
    start(0);
  }
  /// Where row j of these is at hand.
  DSAKIT_INLINE void start(int j) {
    const int more = j + distance_ - count_;
    if (more < 0) row_ = rows_ + j + distance_, last_ = rows_ + count_ - 1, bytes_ = end_;
    else turn(), row_ += least(more, distance_ - 1);
    line_ = begin_, later_now_ = more >= 0;
  }
  DSAKIT_INLINE int distance() const { return distance_; }
  /// The next lines.
  template <int Lines>
  DSAKIT_INLINE void ask() {
    if (Lines % 2 == 0 && twos_) return unrolled<Lines / 2>([&]<int>() __attribute__((always_inline)) { some_lines<2>(); });
    unrolled<Lines>([&]<int>() __attribute__((always_inline)) { some_lines<1>(); });
  }

 private:
  template <int Lines>
  DSAKIT_INLINE void some_lines() {
#pragma GCC unroll 2
    for (int l = 0; l < Lines; ++l) prefetch_l2(*row_ + line_ + 64 * l);
    line_ += 64 * Lines;
    if (line_ < bytes_) return;
    line_ = begin_;
    if (row_ != last_) ++row_;
    else if (!later_now_) turn(), later_now_ = true;  // else the last one again
  }
  DSAKIT_INLINE void turn() { row_ = later_, last_ = later_ + distance_ - 1, bytes_ = later_end_; }

  const std::byte *const *rows_, *const *later_, *const *row_, *const *last_;
  std::ptrdiff_t begin_, end_, later_end_, line_, bytes_;
  int count_, distance_;
  bool twos_, later_now_;
};

struct GemvDots {
  const std::int32_t* query;
  int pitch;
  std::ptrdiff_t plane;  // from the words of a step to those of the next
  const std::byte* const* keys;
  int count, bytes;
  const float* unit;  // codes
  float* y;
  std::ptrdiff_t y_pitch;
  const std::byte* const* ahead;  // rows that will be wanted next
  int ahead_bytes;  // of each; 0: nothing is asked for
};

/// Digits of a row to its float, as join_codes does.
template <class V, int Digits>
DSAKIT_INLINE typename V::F join(const typename V::I* digit, float unit) {
  typename V::F x = V::to_float(digit[0]);
#pragma GCC unroll 2
  for (int i = 1; i < Digits; ++i) x = x * 256.0f + V::to_float(digit[i]);
  return x * unit;
}

/// Whether a line each of 32 keys is more than L1 keeps, where rows share sets that lie a multiple of 1 KiB apart. Blocks that
/// take turns by half lines would find the other halves gone.
DSAKIT_INLINE bool rows_share_sets(const GemvDots& t) {
  return t.count > 1 && (reinterpret_cast<std::uintptr_t>(t.keys[1]) - reinterpret_cast<std::uintptr_t>(t.keys[0])) % 1024 == 0;
}

/// Of few rows the sums of two blocks of keys take turns: a dot has to wait for the one before it.
template <class V, class Kind, int Digits, int Rows>
constexpr int kBlocksInTurn = KeyBlock<V, Kind>::kOverlaps && Rows * Digits <= 6 ? 2 : 1;

/// `Turn`: so many bytes of each key at most, half a line or a line.
template <class V, class Kind, int Digits, int Rows, int Turn>
[[gnu::noinline]] void gemv_dots_tile(const GemvDots& t) {
  using I = typename V::I;
  using Block = KeyBlock<V, Kind>;
  constexpr int kRows = Rows * Digits, kHalves = kBlocksInTurn<V, Kind, Digits, Rows>;
  constexpr int kKeys = Block::kKeys * kHalves, kSteps = Block::kRegisters;
  const int bytes = t.bytes, count = t.count, pitch = t.pitch;
  constexpr int kStepsOfLine = 64 * kSteps / (Block::kKeys * Block::kBytes);
  RowsAhead soon(t.keys, count, t.ahead, 0, bytes, t.ahead_bytes);
  Block next;
  if constexpr (Block::kOverlaps)
    unrolled<kSteps>([&]<int Step>() __attribute__((always_inline)) { next.template step<Step>(t.keys, 0, bytes); });
  for (int j = 0; j < count; j += kKeys) {
    typename Kind::Sum sum[kHalves][kRows];
#pragma GCC unroll 2
    for (int h = 0; h < kHalves; ++h)
#pragma GCC unroll 12
      for (int r = 0; r < kRows; ++r) sum[h][r] = Kind::first(t.query + GemvQuery::start(Kind::word(r)));
    const std::byte* const* row[kHalves + 1];  // of these blocks and the next
    row[0] = t.keys + j;
#pragma GCC unroll 2
    for (int h = 1; h <= kHalves; ++h) row[h] = j + Block::kKeys * h < count ? row[0] + Block::kKeys * h : row[0];
    soon.start(j);
    const bool asks = t.ahead_bytes > 0;
    const auto meet = [&](int h, int d, const std::byte* const* next_row, int next_d) __attribute__((always_inline)) {
      if constexpr (!Block::kOverlaps) next.take(row[h], d, bytes - d);
      const Block now = next;
      if (V::kBytes < 64 && d % 64 == 0) {
        const std::byte* const* near = j + kKeys < count ? row[0] + kKeys : row[0];
#pragma GCC unroll 16
        for (int k = 0; k < Block::kKeys; ++k) prefetch_l1(near[k] + d);
      }
      const std::int32_t* q = t.query + GemvQuery::at(pitch, 0, d / 4 * (Kind::kWordPerStep ? Kind::kSteps : 1));
      unrolled<kSteps>([&]<int Step>() __attribute__((always_inline)) {
#pragma GCC unroll 2
        for (int w = 0; w < Kind::kSteps; ++w) {
          const I x = Kind::key(now.x[Step], w);
#pragma GCC unroll 12
          for (int r = 0; r < kRows; ++r) Kind::meet(sum[h][r], x, q + w * t.plane + Kind::word(r));
          if (Kind::kWordPerStep || w + 1 == Kind::kSteps) q += pitch;
        }
        if constexpr (Block::kOverlaps) next.template step<Step>(next_row, next_d, bytes - next_d);
        if (Step % kStepsOfLine == 0 && asks) soon.ask<1>();
      });
    };
    for (int d = 0; d < bytes; d += Turn)
#pragma GCC unroll 2
      for (int h = 0; h < kHalves; ++h) {
        const bool down = h + 1 == kHalves, last = d + Turn >= bytes;
        const std::byte* const* const next_row = down && !last ? row[0] : row[h + 1];
        const int next_d = !down ? d : last ? 0 : d + Turn;
        if constexpr (Turn == Block::kBytes) {
          meet(h, d, next_row, next_d);
        } else {
          const bool two = d + Block::kBytes < bytes;
          meet(h, d, two ? row[h] : next_row, two ? d + Block::kBytes : next_d);
          if (two) meet(h, d + Block::kBytes, next_row, next_d);
        }
      }
#pragma GCC unroll 2
    for (int h = 0; h < kHalves; ++h)
      if (j + Block::kKeys * h < count)
#pragma GCC unroll 12
        for (int r = 0; r < Rows; ++r) {
          float* const y = t.y + r * t.y_pitch + j + Block::kKeys * h;
          if constexpr (std::same_as<typename Kind::Sum, I>)
            V::store_float(y, join<V, Digits>(sum[h] + r * Digits, t.unit[r]));
          else V::store_float(y, sum[h][r]);
        }
  }
}

/// Tiles of as many rows as there is room for sums, evenly. With 16 registers those of keys wait in L1 while eight sums are
/// made: that is less work than a second transpose.
template <class V, class Kind, int Digits>
requires(!kWaits<V, Kind>)
DSAKIT_INLINE void gemv_dots_tiles(GemvDots t, int rows) {
  constexpr int kSums = KeyBlock<V, Kind>::kOverlaps ? 12 / Kind::kTiles : 8, kMost = kSums / Digits;
  for (int n; rows > 0; rows -= n, t.query += Kind::word(n * Digits), t.unit += t.unit ? n : 0, t.y += n * t.y_pitch) {
    const int tiles = (rows + kMost - 1) / kMost;
    n = (rows + tiles - 1) / tiles;
    with_constant<kMost>(n, [&]<int Rows>() {
      if constexpr (Digits == 1 && kBlocksInTurn<V, Kind, Digits, Rows> > 1)
        if (rows_share_sets(t)) return gemv_dots_tile<V, Kind, Digits, Rows, 64>(t);
      gemv_dots_tile<V, Kind, Digits, Rows, KeyBlock<V, Kind>::kBytes>(t);
    });
    t.ahead_bytes = 0;  // the first tile has asked
  }
}

// An fma waits for the one before it, so few rows need several blocks of keys at once, more than there are registers for.
// Some words of them wait in L1, and are met as a product of panels has it: a word of a row is broadcast for all of them,
// and to widen keys is beside fma, by other units.

constexpr int kRowsOfWords = 6;  // at most: times key_vectors(), as many sums as leave registers for a word and keys
constexpr int kWaitingBytes = 8 << 10;

/// Registers of keys that wait side by side. More keys would push each other out of the caches where their rows are a
/// power of two apart.
template <class V>
constexpr int key_vectors(int rows) {
  return rows <= 2 ? V::kRegisters / 4 : V::kRegisters / 8;
}

/// Words of keys, [words][Vectors], meet those of some rows; their sums, [Rows][Vectors], wait in memory as well.
template <class V, class Kind, int Rows, int Vectors>
[[gnu::noinline]] void meet_words(const typename V::I* keys, int words, const std::int32_t* q, const GemvDots& t,
                                  typename Kind::Sum* sums, RowsAhead* ahead) {
  using I = typename V::I;
  constexpr int kBytes = 4 * Vectors * V::kLanes;  // of all keys, in a word
  constexpr int kLines = kBytes < 64 ? 1 : kBytes / 64, kEvery = 64 * kLines / kBytes;
  const std::ptrdiff_t pitch = t.pitch, plane = t.plane;
  typename Kind::Sum sum[Rows][Vectors];
#pragma GCC unroll 6
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) sum[r][v] = sums[r * Vectors + v];
  for (int w = 0; w < words; ++w, keys += Vectors) {
    if (ahead && w % kEvery == 0) ahead->ask<kLines>();
    unrolled<Kind::kSteps>([&]<int Step>() __attribute__((always_inline)) {
      I x[Vectors];
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) {
        x[v] = Kind::key(keys[v], Step);
        if constexpr (Rows > 1) pin(x[v]);  // else gcc 12 makes it anew for each row
      }
#pragma GCC unroll 6
      for (int r = 0; r < Rows; ++r) {
        const I word = V::broadcast(q + Step * plane + r);
#pragma GCC unroll 8
        for (int v = 0; v < Vectors; ++v) Kind::meet(sum[r][v], x[v], word);
      }
      if (Kind::kWordPerStep || Step + 1 == Kind::kSteps) q += pitch;
    });
  }
#pragma GCC unroll 6
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) sums[r * Vectors + v] = sum[r][v];
}

/// Keys from j on, as many as `Vectors` registers hold, and all rows, in tiles of `most` of them.
template <class V, class Kind, int Vectors>
DSAKIT_INLINE void gemv_dots_of_some(const GemvDots& t, int rows, int most, int j, RowsAhead& soon) {
  using Block = KeyBlock<V, Kind>;
  constexpr bool kFew = Vectors > key_vectors<V>(kRowsOfWords);
  constexpr int kWords = kWaitingBytes / (Vectors * V::kBytes);
  static_assert(kWords % Block::kRegisters == 0);
  typename V::I waiting[kWords * Vectors];
  typename Kind::Sum sums[(kFew ? 2 : kGemvRows) * Vectors];
  for (int i = 0; i < rows * Vectors; ++i) sums[i] = Kind::first(nullptr);
  const std::byte* const* row[Vectors + 1];  // of these blocks and the next
  row[0] = t.keys + j;
  for (int v = 1; v <= Vectors; ++v) row[v] = j + v * Block::kKeys < t.count ? row[0] + v * Block::kKeys : row[0];
  const std::int32_t* q = t.query + GemvQuery::at(t.pitch, 0, 0);
  soon.start(j);
  for (int d = 0, words; d < t.bytes; d += 4 * words) {
    words = least(kWords, (t.bytes - d + Block::kBytes - 1) / Block::kBytes * Block::kRegisters);
    for (int v = 0; v < Vectors; ++v)  // block by block: few rows at the same time
      for (int w = 0; w < words; w += Block::kRegisters) {
        if (kFew && w % 16 == 0)  // little arithmetic hides what L2 takes
#pragma GCC unroll 16
          for (int k = 0; k < Block::kKeys; ++k) prefetch_l1(row[v + 1][k] + d + 4 * w);
        Block keys;
        keys.take(row[v], d + 4 * w, t.bytes - d - 4 * w);
#pragma GCC unroll 16
        for (int i = 0; i < Block::kRegisters; ++i) waiting[(w + i) * Vectors + v] = keys.x[i];
      }
    for (int r = 0, n; r < rows; r += n) {
      n = least(most, rows - r);
      with_constant<kFew ? 2 : kRowsOfWords>(n, [&]<int Rows>() {
        meet_words<V, Kind, Rows, Vectors>(waiting, words, q + r, t, sums + r * Vectors,
                                           r == 0 && t.ahead_bytes > 0 ? &soon : nullptr);
      });
    }
    q += words * (Kind::kWordPerStep ? Kind::kSteps : 1) * std::ptrdiff_t(t.pitch);
  }
  for (int r = 0; r < rows; ++r)
    for (int v = 0; v < Vectors && j + v * Block::kKeys < t.count; ++v)
      V::store_float(t.y + r * t.y_pitch + j + v * Block::kKeys, sums[r * Vectors + v]);
}

template <class V, class Kind, int Digits>
requires kWaits<V, Kind>
DSAKIT_INLINE void gemv_dots_tiles(const GemvDots& t, int rows) {
  constexpr int kFew = key_vectors<V>(1), kMany = key_vectors<V>(kRowsOfWords);
  const int tiles = (rows + kRowsOfWords - 1) / kRowsOfWords, most = (rows + tiles - 1) / tiles;
  RowsAhead soon(t.keys, t.count, t.ahead, 0, t.bytes, t.ahead_bytes);
  int j = 0;
  if (rows <= 2)
    for (; j + kFew * V::kLanes <= t.count; j += kFew * V::kLanes) gemv_dots_of_some<V, Kind, kFew>(t, rows, most, j, soon);
  for (; j < t.count; j += kMany * V::kLanes) gemv_dots_of_some<V, Kind, kMany>(t, rows, most, j, soon);
}

/// The words of rows as the steps of a dot want them: of two, all those of the first and then all those of the second,
/// widened once and not for each register of keys; the first of three digits with the second, where a dot takes both.
template <class V, class Dot, int Most>
struct WordsOfSteps {
  static constexpr int kPlane = Dot::kSteps == 1 ? 0 : kGemvRows * (1 + Most) + V::kLanes;
  std::int32_t wide[2 * kPlane + 1];
  const std::int32_t* first;

  DSAKIT_INLINE WordsOfSteps(const std::int32_t* query, int rows, int words, bool threes = false) : first(query) {
    if constexpr (Dot::kSteps == 2) {
      const auto take = [&](int i, typename V::I x) __attribute__((always_inline)) {
        V::store(wide + i, Dot::column(x, 0));
        V::store(wide + kPlane + i, Dot::column(x, 1));
      };
      const int n = rows * (1 + words);
      int i = 0;
      for (; i + V::kLanes <= n; i += V::kLanes) take(i, V::load(query + i));
      if (i < n) take(i, V::load_bytes(query + i, 4 * (n - i)));
      first = wide;
      if constexpr (Joins<Dot>)
        if (threes) join_firsts(wide, n), join_firsts(wide + kPlane, n);
    }
  }

  /// Every third word takes in the one behind it.
  DSAKIT_INLINE static void join_firsts(std::int32_t* words, int n) {
    static constexpr std::int32_t kThird[2 + 16] = {-1, 0, 0, -1, 0, 0, -1, 0, 0, -1, 0, 0, -1, 0, 0, -1, 0, 0};
    for (int i = 0; i < n; i += V::kLanes) {
      const typename V::I x = V::load(words + i), third = V::load(kThird + i % 3);
      V::store(words + i, (Dot::joined(x, V::load(words + i + 1)) & third) | (x & ~third));
    }
  }
};

template <class V, class Dot>
void gemv_dots_of_codes(const std::int32_t* query, int rows, int digits, const std::byte* const* keys, int count,
                        int dims, const float* unit, float* y, std::ptrdiff_t pitch, const std::byte* const* ahead,
                        int ahead_columns) noexcept {
  const WordsOfSteps<V, Dot, kGemvCodes / 4> words(query, rows * digits, GemvQuery::words(dims, 1, 4), digits == 3);
  const GemvDots t{words.first, rows * digits, words.kPlane, keys, count, dims, unit, y, pitch, ahead, ahead_columns};
  if (digits == 1) gemv_dots_tiles<V, KeysOfCodes<V, Dot>, 1>(t, rows);
  else if constexpr (Joins<Dot>) gemv_dots_tiles<V, KeysOfCodes<V, Dot, WordsOfJoined>, 2>(t, rows);
  else gemv_dots_tiles<V, KeysOfCodes<V, Dot>, 3>(t, rows);
}

template <class V, class Dot>
void gemv_dots_of_pairs(const std::int32_t* query, int rows, const std::byte* const* keys, int count, int dims,
                        float* y, std::ptrdiff_t pitch, const std::byte* const* ahead, int ahead_columns) noexcept {
  const WordsOfSteps<V, Dot, kSumBlock / 2> words(query, rows, GemvQuery::words(dims, 2, 2));
  gemv_dots_tiles<V, KeysOfPairs<V, Dot>, 1>(
      {words.first, rows, words.kPlane, keys, count, 2 * dims, nullptr, y, pitch, ahead, 2 * ahead_columns}, rows);
}

template <class V>
void gemv_dots_widened(const std::int32_t* query, int rows, Kept kept, const std::byte* const* keys, int count,
                       int dims, float* y, std::ptrdiff_t pitch, const std::byte* const* ahead,
                       int ahead_columns) noexcept {
  const int size = kept == Kept::f32 ? 4 : 2;
  const GemvDots t{query, rows, 0, keys, count, dims * size, nullptr, y, pitch, ahead, ahead_columns * size};
  if (kept == Kept::f32) gemv_dots_tiles<V, KeysWidened<V, float>, 1>(t, rows);
  else if (kept == Kept::f16) gemv_dots_tiles<V, KeysWidened<V, f16>, 1>(t, rows);
  else gemv_dots_tiles<V, KeysWidened<V, bf16>, 1>(t, rows);
}

// ---- sums: rows of weights meet values, four registers of columns at a time ------------------------------------------
// A kind of value says how many keys meet in a word (kKeys), and how four registers of them are made of columns.

constexpr int kMostSummed = kSumBlock;  // keys

template <class T>
struct GemvSums {
  const T* weights;
  std::ptrdiff_t pitch;
  const std::byte* const* values;
  int count;
  std::ptrdiff_t column;
  int columns;
  const std::byte* const* ahead;
  int digits = 1;  // codes
};

/// What weights are kept as: signed bytes, or what the dot prepares.
template <class Dot>
struct CodesOf {
  using Type = std::int8_t;
};
template <Prepares Dot>
struct CodesOf<Dot> {
  using Type = typename Dot::Prepared;
};

template <class V, class Dot>
struct ValuesOfCodes {
  using I = typename V::I;
  using Sum = I;
  using Weight = std::uint8_t;
  static constexpr int kKeys = 4, kSize = 1, kSteps = Dot::kSteps;
  static constexpr bool kJoins = Joins<Dot>, kWidens = Joins<Dot> && V::kRegisters == 16;

  /// Weights of one row as the dots want them.
  struct Row {
    typename CodesOf<Dot>::Type code[kMostSummed];
    I start;

    DSAKIT_INLINE void take(const std::uint8_t* weights, int count) {
      start = I{};
      if constexpr (Prepares<Dot>) {
        Dot::prepare(weights, count, code);
      } else {
        I sum{};
        int j = 0;
        for (; j + V::kBytes <= count; j += V::kBytes) {
          const I x = V::biased(V::load(weights + j));
          V::store(code + j, x);
          sum = V::add_codes(sum, x);
        }
        std::int32_t all = V::sum_of_lanes(sum);
        for (; j < count; ++j) all += code[j] = static_cast<std::int8_t>(weights[j] ^ 128);
        for (; j % 4 != 0; ++j) code[j] = 0;
        start = V::set(-128 * all);
      }
    }
    /// Of sums whose rows have digits, the first two of which are one.
    DSAKIT_INLINE void take_digits(const std::uint8_t* weights, std::ptrdiff_t pitch, int sum, int digits, int count) {
      const int rest = sum % (digits - 1);
      weights += sum / (digits - 1) * digits * pitch;
      if (rest > 0) return take(weights + (rest + 1) * pitch, count);
      Row low;
      low.take(weights + pitch, count);
      take(weights, count);
      for (int j = 0; j < count; j += V::kBytes / 2)
        V::store(code + j, Dot::joined(V::load(code + j), V::load(low.code + j)));
    }
    DSAKIT_INLINE I word(int j, int step) const { return V::broadcast(code + j + 2 * step); }
  };

  /// Half of a four of registers.
  template <bool Whole, int Half>
  DSAKIT_INLINE static void load(const std::byte* const* values, int left, std::ptrdiff_t column, int columns, I* x) {
    const auto row = [&](int k, int) __attribute__((always_inline)) {
      const std::byte* line = values[k] + column;
      return Whole ? V::load(line) : V::load_bytes(line, columns);
    };
    half<Half>(row, left, x);
  }
  /// Two of them; row(k, byte) loads a register of row k.
  template <int Half, class Row>
  DSAKIT_INLINE static void half(Row row, int, I* x) {
    I y[4];
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) y[k] = Dot::key(row(k, 0));
    const I a = Half == 0 ? V::unpack_low8(y[0], y[1]) : V::unpack_high8(y[0], y[1]);
    const I b = Half == 0 ? V::unpack_low8(y[2], y[3]) : V::unpack_high8(y[2], y[3]);
    x[0] = V::unpack_low16(a, b), x[1] = V::unpack_high16(a, b);
  }
  /// The same as a dot in two steps meets it in one of them.
  template <int Half, int Step, class Row>
  DSAKIT_INLINE static void half_of_step(Row row, int, I* x) {
    using H = typename V::H;
    const I even = row(Step, 0), odd = row(Step + 2, 0);
    const I pairs = Half == 0 ? V::unpack_low8(even, odd) : V::unpack_high8(even, odd);
    x[0] = I(H(V::unpack_low8(pairs, pairs)) >> 8), x[1] = I(H(V::unpack_high8(pairs, pairs)) >> 8);
  }
  /// 32 columns in two registers: rows(run, i) loads row 2 * i of a run of 32 bytes and the next.
  template <class Rows>
  DSAKIT_INLINE static void run(Rows rows, int, I (&x)[2]) {
    V::interleave_rows8(Dot::key(rows(0, 0)), Dot::key(rows(0, 1)), x);
  }
  DSAKIT_INLINE static I value(I x, int step) { return Dot::column(x, step); }
  DSAKIT_INLINE static Sum dot(Sum sum, I value, I word, int) { return Dot::dot(sum, value, word); }
  /// Where block b of register i belongs.
  static constexpr int column(int i, int b) { return 16 * b + 4 * i; }

  /// A four of registers that wait in memory: as pairs of bytes, where they are widened as they are loaded.
  template <class Row>
  DSAKIT_INLINE static void keep(Row row, int, I (&x)[4]) {
    if constexpr (kWidens) {
#pragma GCC unroll 2
      for (int k = 0; k < 2; ++k) {
        const I a = row(k, 0), b = row(k + 2, 0);
        x[k] = V::unpack_low8(a, b), x[k + 2] = V::unpack_high8(a, b);
      }
    } else {
      I low[2], high[2];
#pragma GCC unroll 2
      for (int k = 0; k < 2; ++k) {
        I a = Dot::key(row(2 * k, 0)), b = Dot::key(row(2 * k + 1, 0));
        if constexpr (V::kRegisters == 16) pin(a), pin(b);  // else gcc 12 loads them again for the other half
        low[k] = V::unpack_low8(a, b), high[k] = V::unpack_high8(a, b);
      }
      x[0] = V::unpack_low16(low[0], low[1]), x[1] = V::unpack_high16(low[0], low[1]);
      x[2] = V::unpack_low16(high[0], high[1]), x[3] = V::unpack_high16(high[0], high[1]);
    }
  }
  /// An operand of them.
  DSAKIT_INLINE static I kept(const I* x, int i, int step) {
    if constexpr (kWidens) return V::widened(reinterpret_cast<const std::byte*>(x + i / 2 * 2 + step) + i % 2 * (V::kBytes / 2));
    else return value(V::load(x + i), step);
  }
  static constexpr int kept_column(int i, int b) {
    const int at = i % 2 * (V::kBytes / 2) + 8 * b;  // bytes of two rows
    return kWidens ? at / 16 * 16 + i / 2 * 8 + at % 16 / 2 : column(i, b);
  }
};

/// Two rows of 16-bit numbers as words of pairs, V::kBytes columns in four registers.
template <class V>
struct PairColumns {
  using I = typename V::I;

  /// Two of them; row(k, byte) loads a register of row k. Without a second row (left = 1) its numbers are 0.
  template <int Half, class Row>
  DSAKIT_INLINE static void half(Row row, int left, I* x) {
    const I even = row(0, V::kBytes * Half), odd = left > 1 ? row(1, V::kBytes * Half) : I{};
    x[0] = V::unpack_low16(even, odd), x[1] = V::unpack_high16(even, odd);
  }
  /// The same as a dot in two steps meets it in one of them.
  template <int Half, int Step, class Row>
  DSAKIT_INLINE static void half_of_step(Row row, int, I* x) {
    const I numbers = row(Step, V::kBytes * Half);
    x[0] = V::unpack_low16(I{}, numbers), x[1] = V::unpack_high16(I{}, numbers);
  }
  /// The same: two runs.
  template <class Rows>
  DSAKIT_INLINE static void run(Rows rows, int left, I (&x)[2]) {
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      x[i] = V::interleave_rows16(rows(i, 0));
      if (left == 1) x[i] &= 0xffff;
    }
  }
  /// Where block b of register i belongs.
  static constexpr int column(int i, int b) { return i / 2 * (V::kBytes / 2) + 8 * b + i % 2 * 4; }

  template <class Row>
  DSAKIT_INLINE static void keep(Row row, int left, I (&x)[4]) {
    half<0>(row, left, x);
    half<1>(row, left, x + 2);
  }
  static constexpr int kept_column(int i, int b) { return column(i, b); }
};

template <class V, class Dot>
struct ValuesOfPairs : PairColumns<V> {
  using I = typename V::I;
  using Sum = typename V::F;
  using Weight = bf16;
  static constexpr int kKeys = 2, kSize = 2, kSteps = Dot::kSteps;
  static constexpr bool kJoins = false;

  struct Taken {
    const bf16* weight;
    DSAKIT_INLINE void take(const bf16* weights, int) { weight = weights; }
    DSAKIT_INLINE I word(int j, int step) const { return Dot::column(V::broadcast(weight + j), step); }
  };
  struct Widened {
    float weight[kMostSummed];
    DSAKIT_INLINE void take(const bf16* weights, int count) { Dot::prepare(weights, count, weight); }
    DSAKIT_INLINE I word(int j, int step) const { return V::broadcast(weight + j + step); }
  };
  struct Row : std::conditional_t<Prepares<Dot>, Widened, Taken> {
    static constexpr Sum start{};
  };

  template <bool Whole, int Half>
  DSAKIT_INLINE static void load(const std::byte* const* values, int left, std::ptrdiff_t column, int columns, I* x) {
    const auto row = [&](int k, int byte) __attribute__((always_inline)) {
      const std::byte* from = values[k] + 2 * column + byte;
      return Whole ? V::load(from) : V::load_bytes(from, 2 * columns - byte);
    };
    PairColumns<V>::template half<Half>(row, left, x);
  }
  DSAKIT_INLINE static I value(I x, int step) { return Dot::column(x, step); }
  DSAKIT_INLINE static I kept(const I* x, int i, int step) { return value(V::load(x + i), step); }
  DSAKIT_INLINE static Sum dot(Sum sum, I value, I word, int) { return Dot::dot(sum, word, value); }
};

template <class V, class T>
struct ValuesWidened {
  using I = typename V::I;
  using Sum = typename V::F;
  using Weight = float;
  static constexpr int kKeys = 1, kSize = int(sizeof(T)), kSteps = 1;
  static constexpr bool kJoins = false;

  struct Row {
    const float* weight;
    static constexpr Sum start{};
    DSAKIT_INLINE void take(const float* weights, int) { weight = weights; }
    DSAKIT_INLINE I word(int j, int) const { return V::broadcast(weight + j); }
  };

  template <bool Whole, int Half>
  DSAKIT_INLINE static void load(const std::byte* const* values, int, std::ptrdiff_t column, int columns, I* x) {
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      const int first = V::kLanes * (2 * Half + i), rest = Whole ? V::kLanes : columns - first;
      const std::byte* from = values[0] + (column + first) * kSize;
      if constexpr (std::same_as<T, float>) x[i] = V::load_bytes(from, 4 * rest);
      else if constexpr (std::same_as<T, f16>) x[i] = I(V::load_f16(from, rest));
      else x[i] = V::load_words(from, rest) << 16;
    }
  }
  DSAKIT_INLINE static I value(I x, int) { return x; }
  DSAKIT_INLINE static Sum dot(Sum sum, I value, I word, int) { return V::fma(Sum(word), Sum(value), sum); }
  static constexpr int column(int i, int b) { return V::kLanes * i + 4 * b; }
};

/// The row of a sum, as the dots want it.
template <class Kind>
DSAKIT_INLINE void take_weights(const GemvSums<typename Kind::Weight>& t, int sum, typename Kind::Row& row) {
  if constexpr (Kind::kJoins)
    if (t.digits > 1) return row.take_digits(t.weights, t.pitch, sum, t.digits, t.count);
  row.take(t.weights + sum * t.pitch, t.count);
}

/// Word j of every row meets what registers of columns are in a step.
template <class Kind, int Rows, int Vectors, class I>
DSAKIT_INLINE void add_values(const typename Kind::Row* row, int j, int step, const I* x,
                              typename Kind::Sum (&sum)[Rows][Vectors]) {
  constexpr bool kFull = Kind::kSteps == 2 && Rows > 4 && Vectors == 2;  // of 16 registers: none may become another's
#pragma GCC unroll 12
  for (int r = 0; r < Rows; ++r) {
    const I w = row[r].word(j, step);
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) {
      sum[r][v] = Kind::dot(sum[r][v], x[v], w, step);
      pin(sum[r][v]);  // else gcc 12 moves it from register to register, and spills
    }
    if constexpr (kFull) use(w);
  }
  if constexpr (kFull) use(x[0]), use(x[1]);
}

/// In all steps.
template <class Kind, int Steps, int Rows, int Vectors, class I>
DSAKIT_INLINE void add_dots(const typename Kind::Row* row, int j, const I* x, typename Kind::Sum (&sum)[Rows][Vectors]) {
#pragma GCC unroll 2
  for (int step = 0; step < Steps; ++step) {
    I y[Vectors];
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) y[v] = Kind::value(x[v], step);
    add_values<Kind>(row, j, step, y, sum);
  }
}

/// Some keys, [first, last), and a four of registers of columns, or one of its halves, from column `part` on; sums wait in
/// `sums` from some keys to the next. `Lines` of the rows ahead are asked for with each word.
template <class V, class Kind, int Rows, int First, int Last, bool Whole, int Lines>
DSAKIT_INLINE void gemv_sums_part(const typename Kind::Row* row, const GemvSums<typename Kind::Weight>& t, int first,
                                  int last, int part, typename V::I* sums, RowsAhead& ahead) {
  using I = typename V::I;
  using Sum = typename Kind::Sum;
  constexpr int kVectors = 2 * (Last - First + 1);
  Sum sum[Rows][kVectors];
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) sum[r][i] = first == 0 ? row[r].start : Sum(sums[4 * r + 2 * First + i]);
  const auto add = [&]<int Steps>(int j) __attribute__((always_inline)) {
    I x[kVectors];
    const std::byte* const* values = t.values + j;
    const int left = t.count - j, columns = t.columns - part;
    if constexpr (First == 0) Kind::template load<Whole, 0>(values, left, t.column + part, columns, x);
    if constexpr (Last == 1) Kind::template load<Whole, 1>(values, left, t.column + part, columns, x + kVectors - 2);
    ahead.template ask<Lines>();
    add_dots<Kind, Steps>(row, j, x, sum);
  };
  // Where two keys take two steps, the last odd one takes one.
  constexpr bool kSplit = Kind::kKeys == 2 && Kind::kSteps == 2;
  int j = first;
  for (const int end = kSplit ? last / 2 * 2 : last; j < end; j += Kind::kKeys) add.template operator()<Kind::kSteps>(j);
  if constexpr (kSplit)
    if (j < last) add.template operator()<1>(j);
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) sums[4 * r + 2 * First + i] = I(sum[r][i]);
}

/// All columns.
template <class V, class Kind, int Rows, int Lines>
[[gnu::noinline]] void gemv_sums_tile(const typename Kind::Row* row, const GemvSums<typename Kind::Weight>& t, int first,
                                      int last, typename V::I* sums, RowsAhead& ahead) {
  const auto four = [&]<bool Whole>(int part) __attribute__((always_inline)) {
    if constexpr (V::kRegisters == 32 || Rows <= 2) {
      gemv_sums_part<V, Kind, Rows, 0, 1, Whole, Lines>(row, t, first, last, part, sums, ahead);
    } else {
      gemv_sums_part<V, Kind, Rows, 0, 0, Whole, Lines / 2>(row, t, first, last, part, sums, ahead);
      gemv_sums_part<V, Kind, Rows, 1, 1, Whole, (Lines + 1) / 2>(row, t, first, last, part, sums, ahead);
    }
    sums += 4 * Rows;
  };
  int part = 0;
  for (; part + V::kBytes <= t.columns; part += V::kBytes) four.template operator()<true>(part);
  if (part < t.columns) four.template operator()<false>(part);
}

constexpr int kSumRows = 4;  // of a tile, at most

/// Registers of sums: those of a tile of rows together, [columns / V::kBytes][rows][4].
template <class V>
struct SumsOfRows {
  using I = typename V::I;
  I sums[kGemvRows * 4 * (kGemvColumns / V::kBytes)];
  int rows, parts;

  DSAKIT_INLINE SumsOfRows(int rows, int columns) : rows(rows), parts((columns + V::kBytes - 1) / V::kBytes) {}
  /// Four of a row, from column V::kBytes * part on.
  DSAKIT_INLINE I* of(int row, int part) {
    const int tile = row / kSumRows * kSumRows, of_tile = least(rows - tile, kSumRows);
    return sums + 4 * (parts * tile + part * of_tile + row - tile);
  }
};

/// Some keys meet all columns and rows before the next ones: they stay in L1, memory is read row by row, and each pass over
/// them asks for its part of what comes.
template <class V, class Kind>
DSAKIT_INLINE void gemv_sums(const GemvSums<typename Kind::Weight>& t, SumsOfRows<V>& to) {
  constexpr int kWordBytes = Kind::kKeys * Kind::kSize * V::kBytes;  // of rows, in a word of a four of registers
  constexpr int kLines = kWordBytes < 64 ? 1 : kWordBytes / 64;
  const int rows = to.rows;
  typename Kind::Row row[kGemvRows];
  for (int r = 0; r < rows; ++r) take_weights<Kind>(t, r, row[r]);
  RowsAhead ahead(t.values, t.count, t.ahead, t.column * Kind::kSize, (t.column + t.columns) * Kind::kSize,
                  (t.column + t.columns) * Kind::kSize);
  const int some = ahead.distance();
  const auto each = [&]<int Lines>() {
    for (int first = 0; first < t.count; first += some) {
      ahead.start(first);
      for (int r = 0; r < rows; r += kSumRows)
        with_constant<kSumRows>(least(rows - r, kSumRows), [&]<int Rows>() {
          gemv_sums_tile<V, Kind, Rows, Lines>(row + r, t, first, least(first + some, t.count), to.of(r, 0), ahead);
        });
    }
  };
  if (rows <= kSumRows) each.template operator()<kLines>();
  else each.template operator()<(kLines + 1) / 2>();
}

/// Each `Digits` of them are a row of y: join(row, its registers) makes one of them, whose columns go where they belong.
template <class V, class Kind, int Digits, class Join>
DSAKIT_INLINE void store_sums(SumsOfRows<V>& from, float* y, Join join) {
  using I = typename V::I;
  for (int r = 0; r * Digits < from.rows; ++r, y += kGemvColumns)
    for (int part = 0; part < from.parts; ++part) {
      const I* digit[Digits];
#pragma GCC unroll 3
      for (int d = 0; d < Digits; ++d) digit[d] = from.of(r * Digits + d, part);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        I x[Digits];
#pragma GCC unroll 3
        for (int d = 0; d < Digits; ++d) x[d] = digit[d][i];
        const I joined = I(join(r, x));
#pragma GCC unroll 4
        for (int b = 0; b < V::kBytes / 16; ++b)
          V::store_block(y + part * V::kBytes + Kind::column(i, b), joined, b);
      }
    }
}

template <class V, class Dot>
void gemv_sums_of_codes(const std::uint8_t* weights, std::ptrdiff_t pitch, int rows, int digits,
                        const std::byte* const* values, int count, std::ptrdiff_t column, int columns,
                        const float* unit, float* sums, const std::byte* const* ahead) noexcept {
  using Kind = ValuesOfCodes<V, Dot>;
  const int some = Joins<Dot> && digits > 1 ? digits - 1 : digits;  // sums of a row
  SumsOfRows<V> exact(rows * some, columns);
  gemv_sums<V, Kind>({weights, pitch, values, count, column, columns, ahead, digits}, exact);
  with_constant<3>(some, [&]<int Digits>() {
    store_sums<V, Kind, Digits>(
        exact, sums, [unit](int r, const typename V::I* x) __attribute__((always_inline)) { return join<V, Digits>(x, unit[r]); });
  });
}

/// Of numbers: sums are what is wanted.
template <class V, class Kind>
DSAKIT_INLINE void gemv_sums_of_numbers(const GemvSums<typename Kind::Weight>& t, int rows, float* y) {
  SumsOfRows<V> sums(rows, t.columns);
  gemv_sums<V, Kind>(t, sums);
  store_sums<V, Kind, 1>(sums, y, [](int, const typename V::I* x) __attribute__((always_inline)) { return *x; });
}

template <class V, class Dot>
void gemv_sums_of_pairs(const bf16* weights, std::ptrdiff_t pitch, int rows, const std::byte* const* values, int count,
                        std::ptrdiff_t column, int columns, float* sums, const std::byte* const* ahead) noexcept {
  gemv_sums_of_numbers<V, ValuesOfPairs<V, Dot>>({weights, pitch, values, count, column, columns, ahead}, rows, sums);
}

template <class V>
void gemv_sums_widened(const float* weights, std::ptrdiff_t pitch, int rows, Kept kept,
                       const std::byte* const* values, int count, std::ptrdiff_t column, int columns, float* sums,
                       const std::byte* const* ahead) noexcept {
  const GemvSums<float> t{weights, pitch, values, count, column, columns, ahead};
  if (kept == Kept::f32) gemv_sums_of_numbers<V, ValuesWidened<V, float>>(t, rows, sums);
  else if (kept == Kept::f16) gemv_sums_of_numbers<V, ValuesWidened<V, f16>>(t, rows, sums);
  else gemv_sums_of_numbers<V, ValuesWidened<V, bf16>>(t, rows, sums);
}

}  // namespace
}  // namespace dsakit
