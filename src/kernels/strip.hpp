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
  typename V::I* kept;  // of a tile: what its rows became in registers
};

/// Rows that meet a tile: all there are; or some of more, of which the first keep what they interleave for the others, and
/// the second, who ask for as much, have memory busy too.
enum class Pass { only, first, second, later };

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

/// The columns [column, end), 64 or less, times Rows rows from row r on. Those who ask for lines ask from `ahead` on.
template <class V, class Kind, bool Nz, bool Whole, int Rows, Pass P>
[[gnu::noinline]] void strip_tile(const StripBlock<V, Kind>& t, int r, int column, int end, std::int32_t* sums,
                                  const std::byte* ahead) {
  using I = typename V::I;
  constexpr int kLines = Nz || P == Pass::later ? 0 : V::kBytes / (P == Pass::only ? 16 : 32);  // of a group
  const typename Kind::Row* const row = t.row + r;
  const std::ptrdiff_t pitch = t.strip.pitch * Kind::kSize;
  const int before = t.first;
  I* kept = t.kept;
  for (; column < end; column += V::kBytes, sums += V::kBytes) {
    const StripColumns<V, typename StripBlock<V, Kind>::T, Nz, Whole> columns(t.strip, column, end - column);
    typename Kind::Sum sum[Rows][4];
#pragma GCC unroll 4
    for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 4
      for (int v = 0; v < 4; ++v)
        sum[i][v] = before == 0 ? row[i].start : typename Kind::Sum(V::load(sums + i * kPanel + V::kLanes * v));
    std::ptrdiff_t at = 0;
    each_group<Kind>(t.count, [&]<int Steps, int Keys>(int j) __attribute__((always_inline)) {
      const auto load = [&](int k, int byte) __attribute__((always_inline)) {
        return columns.load(at + least(k, Keys - 1) * pitch, byte);  // what is missing is the last one again, times 0
      };
      I x[4];
      if constexpr (P == Pass::only || P == Pass::first) {
        Kind::template half<0>(load, Keys, x);
        Kind::template half<1>(load, Keys, x + 2);
        at += Kind::kKeys * pitch;
      }
#pragma GCC unroll 4
      for (int v = 0; v < 4; ++v)
        if constexpr (P == Pass::first) V::store(kept + v, x[v]);
        else if constexpr (P != Pass::only) x[v] = V::load(kept + v);
      if constexpr (P != Pass::only) kept += 4;
#pragma GCC unroll 4
      for (int l = 0; l < kLines; ++l) prefetch_l2(ahead + 64 * l);
      ahead += 64 * kLines;
#pragma GCC unroll 2
      for (int step = 0; step < Steps; ++step)
#pragma GCC unroll 4
        for (int i = 0; i < Rows; ++i) {
          const I w = row[i].word(before + j, step);
#pragma GCC unroll 4
          for (int v = 0; v < 4; ++v) {
            sum[i][v] = Kind::dot(sum[i][v], Kind::value(x[v], step), w, step);
            pin(sum[i][v]);  // else gcc 12 moves it from register to register, and spills
          }
        }
    });
#pragma GCC unroll 4
    for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 4
      for (int v = 0; v < 4; ++v) V::store(sums + i * kPanel + V::kLanes * v, I(sum[i][v]));
  }
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
  if (s.run != Strip<T>::kRun || is_close(s) || s.pitch * kSize % 64 != 0 || over % kSize != 0) return 0;
  return (64 - over) % 64 / kSize;
}

/// All rows meet a tile before the next: what the first have read is near for the others.
template <class V, class Kind, bool Nz>
DSAKIT_INLINE void strip_block(const StripBlock<V, Kind>& t) {
  constexpr int kMost = V::kRegisters == 32 ? 4 : 2;
  const std::ptrdiff_t pitch = t.strip.pitch * Kind::kSize;
  const int bytes = t.columns * Kind::kSize, each = t.count * kPanel * Kind::kSize;
  const auto* ahead = reinterpret_cast<const std::byte*>(t.ahead);
  std::int32_t* sums = t.sums;
  for (int column = 0, from = 0, n = t.lead > 0 ? t.lead : kPanel; column < t.columns; column += n, n = kPanel) {
    const int end = least(column + n, t.columns);
    const auto tile = [&]<bool Whole, Pass P>(int r) __attribute__((always_inline)) {
      const auto* const lines = ahead + from + (P == Pass::second ? each / 2 : 0);
      with_constant<kMost>(least(t.m - r, kMost), [&]<int Rows>() {
        strip_tile<V, Kind, Nz, Whole, Rows, P>(t, r, column, end, sums + r * kPanel, lines);
      });
    };
    const auto rows = [&]<bool Whole>() {
      if (t.m <= kMost) return tile.template operator()<Whole, Pass::only>(0);
      strip_tile<V, Kind, Nz, Whole, kMost, Pass::first>(t, 0, column, end, sums, ahead + from);
      tile.template operator()<Whole, Pass::second>(kMost);
      for (int r = 2 * kMost; r < t.m; r += kMost) tile.template operator()<Whole, Pass::later>(r);
    };
    end - column == kPanel ? rows.template operator()<true>() : rows.template operator()<false>();
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

template <class V, class Kind, class T, class C>
void strip_product(const typename Kind::Weight* a, std::ptrdiff_t a_stride, int m, const Strip<T>& strip, int k,
                   int columns, C* c, std::ptrdiff_t c_stride, bool add, const T* ahead) noexcept {
  // So many that a tile asks for one row of the next block, or half of one.
  const int rows = is_close(strip) ? 128 : columns < 32 * kPanel ? 16 : 32;
  const bool nz = strip.run != Strip<T>::kRun;
  const int lead = strip_lead(strip);
  typename Kind::Weight words[kStripRows][Kind::kKeys == 2 ? kSumBlock : 1];
  typename Kind::Row row[kStripRows];
  for (int i = 0; i < m; ++i) take_row<Kind>(a + i * a_stride, k, words[i], row[i]);
  alignas(64) std::int32_t sums[kStripSums + kStripRows * kPanel];
  typename V::I kept[(kSumBlock + Kind::kKeys - 1) / Kind::kKeys * 4 * kPanel / V::kBytes];
  for (int first = 0, n; first < k; first += n) {
    n = nz ? k : least(k - first, rows);
    StripBlock<V, Kind> block{row, m, strip, first, n, columns, lead, sums, ahead, kept};
    block.strip.rows += first * strip.pitch;
    if (first + n < k) block.ahead = block.strip.rows + n * strip.pitch;
    if (nz) strip_block<V, Kind, true>(block);
    else strip_block<V, Kind, false>(block);
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

}  // namespace
}  // namespace dsakit
