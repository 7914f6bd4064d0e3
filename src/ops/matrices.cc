// SPDX-License-Identifier: Apache-2.0
#include "ops/matrices.hpp"

#include <algorithm>
#include <utility>

#include "kernels/panel.hpp"

namespace dsakit {
namespace {

bool is_transposed(const Tensor& t) {
  const int row = t.rank - 2, column = t.rank - 1;
  return t.format == Format::ND && t.shape[column] > 1 && t.stride[column] != 1 &&
         (t.stride[row] == 1 || t.shape[row] == 1);
}

}  // namespace

Tensor as_it_lies(const Tensor& t) {
  Tensor seen = t;
  if (!is_transposed(t)) return seen;
  std::swap(seen.shape[t.rank - 1], seen.shape[t.rank - 2]);
  std::swap(seen.stride[t.rank - 1], seen.stride[t.rank - 2]);
  return seen;
}

Matrices matrices_of(const Tensor& t) {
  Matrices m{.dtype = t.dtype, .k = t.shape[t.rank - 2], .n = t.shape[t.rank - 1], .format = t.format, .stack = t};
  m.transposed = is_transposed(t);
  m.pitch = t.stride[m.transposed ? t.rank - 1 : t.rank - 2];
  m.stack.rank = t.rank - 2;
  if (t.format == Format::ND) return m;
  std::int64_t step = t.dtype == DType::i8 ? Panels<std::int8_t>::bytes(m.k, m.n) : Panels<bf16>::elements(m.k, m.n);
  if (const std::int64_t c0 = 32 / size_of(t.dtype); t.format == Format::NZ)
    step = (m.n + c0 - 1) / c0 * ((m.k + 15) / 16 * 16) * c0;
  for (int axis = m.stack.rank - 1; axis >= 0; step *= t.shape[axis--]) m.stack.stride[axis] = step;
  return m;
}

namespace {

/// Where the rows of a part begin.
template <class T>
struct PartRows {
  const T* row[kPartRows];

  PartRows(const Matrices& w, std::int64_t b, const PanelRange& p) {
    const T* first = reinterpret_cast<const T*>(w.matrix(b)) + w.at(p.row, p.panel * kPanel);
    for (std::int64_t i = 0; i < p.rows; ++i) row[i] = first + i * w.pitch;
  }
};

/// Where the columns of a panel of a transposed matrix begin, from `row` on; those behind the last one are the last one
/// again.
template <class T>
struct PanelColumns {
  const T* column[kPanel];
  int count;

  PanelColumns(const Matrices& w, std::int64_t b, std::int64_t panel, std::int64_t row)
      : count(int(std::min<std::int64_t>(kPanel, w.n - panel * kPanel))) {
    const T* first = reinterpret_cast<const T*>(w.matrix(b)) + w.at(row, panel * kPanel);
    for (int c = 0; c < kPanel; ++c) column[c] = first + std::min(c, count - 1) * w.pitch;
  }
};

std::int64_t columns_of(const Matrices& w, const PanelRange& p) {
  return std::min(p.panels * kPanel, w.n - p.panel * kPanel);
}

/// Rows of FRACTAL_NZ, which lie in runs of 32 bytes, are put together a panel and kSumBlock of them at a time: a frame that
/// others should not pay for.
template <class T, class To, class... Sums>
[[gnu::noinline]] void pack_nz(const Kernels& kernels, const Matrices& w, std::int64_t b, const PanelRange& p, To* out, Sums... sums) {
  constexpr int kRun = Strip<T>::kRun;
  const T* matrix = reinterpret_cast<const T*>(w.matrix(b));
  T rows[kSumBlock][kPanel];
  const T* row[kSumBlock];
  for (std::int64_t i = 0; i < kSumBlock; ++i) row[i] = rows[i];
  for (std::int64_t i = 0; i < p.panels; ++i) {
    const std::int64_t column = (p.panel + i) * kPanel;
    const int columns = int(std::min<std::int64_t>(kPanel, w.n - column));
    To* panel = out + Panels<To>::panel(p.rows, i);
    for (std::int64_t first = 0; first == 0 || first < p.rows; first += kSumBlock) {
      const int some = int(std::min<std::int64_t>(kSumBlock, p.rows - first));
      for (int c = 0; c < columns; c += kRun) {
        const T* from = matrix + w.at(p.row + first, column + c);
        for (int r = 0; r < some; ++r) std::copy_n(from + r * kRun, kRun, rows[r] + c);
      }
      To* const to = panel + Panel<To>::row(first);
      if constexpr (sizeof...(Sums) == 0) {
        kernels.interleave(row, some, columns, to);
      } else {
        std::int32_t of_block[kPanel], *all = (sums + ...) + i * kPanel;
        kernels.interleave(row, some, columns, to, of_block);
        for (int c = 0; c < kPanel; ++c) all[c] = (first > 0 ? all[c] : 0) + of_block[c];
      }
    }
  }
}

/// `sums`: of the columns of all panels, for codes.
template <class T, class To, class... Sums>
void pack(const Kernels& kernels, const Matrices& w, std::int64_t b, const PanelRange& p, To* out, Sums... sums) {
  if (w.format == Format::NZ) return pack_nz<T>(kernels, w, b, p, out, sums...);
  if (!w.transposed) {
    const PartRows<T> rows(w, b, p);
    return kernels.interleave(rows.row, int(p.rows), int(columns_of(w, p)), out, sums...);
  }
  for (std::int64_t i = 0; i < p.panels; ++i) {
    const PanelColumns<T> columns(w, b, p.panel + i, p.row);
    kernels.transpose(columns.column, columns.count, int(p.rows), out + Panels<To>::panel(p.rows, i),
                      sums + i * kPanel...);
  }
}

}  // namespace

void pack_panels(const Kernels& kernels, const Matrices& w, std::int64_t b, const PanelRange& p, std::int8_t* out,
                 std::int32_t* column_sums) {
  pack<std::int8_t>(kernels, w, b, p, out, column_sums);
}

void pack_panels(const Kernels& kernels, const Matrices& w, std::int64_t b, const PanelRange& p, bf16* out) {
  pack<bf16>(kernels, w, b, p, out);
}

void pack_panels(const Kernels& kernels, const Matrices& w, std::int64_t b, const PanelRange& p, float* out) {
  (w.dtype == DType::f16 ? pack<f16, float> : pack<float, float>)(kernels, w, b, p, out);
}

Tensor broadcast_to(const Tensor& t, int rank, const std::int64_t* shape) {
  Tensor wide = t;
  const int missing = rank - t.rank;
  wide.rank = rank;
  for (int axis = rank - 1; axis >= 0; --axis) {
    const int own = axis - missing;
    wide.stride[axis] = own >= 0 && t.shape[own] == shape[axis] ? t.stride[own] : 0;
    wide.shape[axis] = shape[axis];
  }
  return wide;
}

}  // namespace dsakit
