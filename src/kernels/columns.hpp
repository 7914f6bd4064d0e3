// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "kernels/dot.hpp"
#include "kernels/kernels.hpp"
#include "kernels/panel.hpp"
#include "kernels/tuning.hpp"

// Few rows of codes times the columns of a transposed matrix, each of which lies in one piece: lanes are positions, so that
// nothing is transposed, memory is read from front to back, and the lanes of a dot are added once, at its end.
namespace dsakit {
namespace {

/// Bytes of rows as columns meet them: so much of each column is met before more of any.
constexpr int kColumnBytes = 4096;

/// Columns that rows meet at once: as many sums as fit, since each waits for itself.
template <class V>
constexpr int columns_at_once(int rows) {
  return V::kRegisters == 32 ? (rows <= 6 ? 4 : 2) : rows <= 2 ? 4 : rows <= 6 ? 2 : 1;
}

/// So many rows wait for nothing but memory, and meet one column after the other. A column is one chain of dots then, too long
/// a one with registers of 16 bytes.
template <class V, class Dot>
constexpr int kInOrder = Dot::kSteps > 1 ? 0 : V::kBytes == 64 ? 3 : V::kBytes == 32 ? 2 : 0;

/// Rows without their bias, a register for each step of a dot.
template <class V, class Dot>
struct RowsOfColumns {
  static constexpr int kSteps = Dot::kSteps, kPositions = kColumnBytes / kSteps;
  typename V::I word[kColumnRows][kColumnBytes / V::kBytes + 1];  // rows must not share cache sets
  typename V::I start[kColumnRows];  // of sums: in their first lane

  DSAKIT_INLINE void take(const std::uint8_t* a, std::ptrdiff_t a_stride, int m, int k) {
    for (int i = 0; i < m; ++i, a += a_stride) {
      typename V::I sum{};
      for (int p = 0; p < k; p += V::kBytes) {
        std::uint8_t rest[V::kBytes];
        for (int j = 0; j < V::kBytes && k - p < V::kBytes; ++j) rest[j] = p + j < k ? a[p + j] : 128;
        const typename V::I x = V::biased(V::load(k - p < V::kBytes ? rest : a + p));
        sum = V::add_codes(sum, x);
        unrolled<kSteps>([&]<int Step>() __attribute__((always_inline)) {
          word[i][p / V::kBytes * kSteps + Step] = Dot::column(x, Step);
        });
      }
      const std::int32_t bias = -128 * V::sum_of_lanes(sum);  // of columns, where the dot wants one side unsigned
      start[i] = typename V::I{Dot::row_start(&bias)[0]};
    }
  }
};

/// What the lanes of sums come to is added to c, or written.
template <class V, int Rows, int Columns>
DSAKIT_INLINE void give_columns(const typename V::I* sum, std::int32_t* c, std::ptrdiff_t c_stride, bool add) {
  using I = typename V::I;
  constexpr int kSums = (Rows * Columns + 3) / 4 * 4;
#pragma GCC unroll 6
  for (int s = 0; s < kSums; s += 4) {
    const I folded = fold_fours<V>(sum + s);
    typedef std::uint32_t Four __attribute__((vector_size(16)));
    Four four{};
#pragma GCC unroll 4
    for (int b = 0; b < V::kBytes / 16; ++b) four += Four(V::block(folded, b));
    unrolled<4 / Columns>([&]<int Row>() __attribute__((always_inline)) {
      if (s / Columns + Row >= Rows) return;
      std::int32_t* const to = c + (s / Columns + Row) * c_stride;
      Four all{};
      if (add) __builtin_memcpy(reinterpret_cast<char*>(&all) + 4 * Columns * Row, to, 4 * Columns);
      all += four;
      __builtin_memcpy(to, reinterpret_cast<const char*>(&all) + 4 * Columns * Row, 4 * Columns);
    });
  }
}

/// Columns side by side, of which what lies `ahead` is asked for.
template <class V, class Dot, int Rows, int Columns>
[[gnu::noinline]] void meet_columns(const RowsOfColumns<V, Dot>& rows, const std::int8_t* column, std::ptrdiff_t pitch,
                                    int k, std::ptrdiff_t ahead, std::int32_t* c, std::ptrdiff_t c_stride, bool add) {
  using I = typename V::I;
  constexpr int kSteps = Dot::kSteps, kSums = (Rows * Columns + 3) / 4 * 4;
  I sum[kSums] = {};
#pragma GCC unroll 12
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
    for (int j = 0; j < Columns; ++j) sum[r * Columns + j] = rows.start[r];
  const auto meet = [&](int p, auto load) __attribute__((always_inline)) {
    unrolled<kSteps>([&]<int Step>() __attribute__((always_inline)) {
      I x[Columns];
#pragma GCC unroll 4
      for (int j = 0; j < Columns; ++j) x[j] = Dot::column(Dot::key(load(column + j * pitch + p)), Step);
#pragma GCC unroll 12
      for (int r = 0; r < Rows; ++r) {
        I row = rows.word[r][p / V::kBytes * kSteps + Step];
        if constexpr (V::kRegisters == 32 && Columns > 1) pin(row);  // read once
#pragma GCC unroll 4
        for (int j = 0; j < Columns; ++j) sum[r * Columns + j] = Dot::dot(sum[r * Columns + j], x[j], row);
      }
    });
  };
  int p = 0;
  for (; p + V::kBytes <= k; p += V::kBytes) {
    if (ahead > 0 && p % 64 == 0)
#pragma GCC unroll 4
      for (int j = 0; j < Columns; ++j) prefetch_l2(column + j * pitch + p + ahead);
    meet(p, [](const void* from) __attribute__((always_inline)) { return V::load(from); });
  }
  if (p < k) meet(p, [&](const void* from) __attribute__((always_inline)) { return V::load_bytes(from, k - p); });
  give_columns<V, Rows, Columns>(sum, c, c_stride, add);
}

/// One column after the other: the hardware brings what lies in order, if it knows the page.
template <class V, class Dot, int Rows, int Columns>
[[gnu::noinline]] void meet_in_order(const RowsOfColumns<V, Dot>& rows, const std::int8_t* column, std::ptrdiff_t pitch, int k,
                                     std::ptrdiff_t ahead, std::int32_t* c, std::ptrdiff_t c_stride, bool add) {
  using I = typename V::I;
  constexpr int kSums = (Rows * Columns + 3) / 4 * 4;
  I sum[kSums] = {};
  unrolled<Columns>([&]<int J>() __attribute__((always_inline)) {
    const auto meet = [&](int p, I x) __attribute__((always_inline)) {
#pragma GCC unroll 4
      for (int r = 0; r < Rows; ++r) {
        I& to = sum[r * Columns + J];
        to = Dot::dot(to, Dot::column(Dot::key(x), 0), rows.word[r][p / V::kBytes]);
      }
    };
    prefetch_l2(column + ahead);
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) sum[r * Columns + J] = rows.start[r];
    int p = 0;
#pragma GCC unroll 4
    for (; p + V::kBytes <= k; p += V::kBytes) meet(p, V::load(column + p));
    if (p < k) meet(p, V::load_bytes(column + p, k - p));
    column += pitch;
  });
  give_columns<V, Rows, Columns>(sum, c, c_stride, add);
}

template <class V, class Dot>
void column_product(const std::uint8_t* a, std::ptrdiff_t a_stride, int m, const std::int8_t* columns, std::ptrdiff_t pitch,
                    int k, int n, std::int32_t* c, std::ptrdiff_t c_stride) noexcept {
  using All = RowsOfColumns<V, Dot>;
  All rows;
  constexpr int kMost = kInOrder<V, Dot>;
  const int asked = m <= 2 && tuning.run_ahead > 0 ? tuning.run_ahead : tuning.column_ahead;
  for (int first = 0; first < k; first += All::kPositions) {
    const int some = least(k - first, All::kPositions);
    rows.take(a + first, a_stride, m, some);
    const std::ptrdiff_t ahead = (asked + some - 1) / some * pitch;
    with_constant<kColumnRows>(m, [&]<int Rows>() {
      constexpr int kColumns = columns_at_once<V>(Rows);
      constexpr auto kOne = meet_columns<V, Dot, Rows, 1>;
      auto* meet = meet_columns<V, Dot, Rows, kColumns>;
      if constexpr (Rows <= kMost)
        if (tuning.run_ahead == 0) meet = meet_in_order<V, Dot, Rows, kColumns>;
      int j = 0;
      for (; j + kColumns <= n; j += kColumns)
        meet(rows, columns + j * pitch + first, pitch, some, ahead, c + j, c_stride, first > 0);
      for (; j < n; ++j) kOne(rows, columns + j * pitch + first, pitch, some, 0, c + j, c_stride, first > 0);
    });
  }
}

}  // namespace
}  // namespace dsakit
