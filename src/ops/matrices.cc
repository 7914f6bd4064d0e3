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

/// The columns of a panel of a transposed matrix; those behind the last one are the last one again.
template <class T>
struct Columns {
  const T* column[kPanel];
  int count;

  Columns(const Matrices& w, std::int64_t b, std::int64_t panel)
      : count(int(std::min<std::int64_t>(kPanel, w.n - panel * kPanel))) {
    const T* first = reinterpret_cast<const T*>(w.matrix(b)) + panel * kPanel * w.pitch;
    for (int c = 0; c < kPanel; ++c) column[c] = first + std::min(c, count - 1) * w.pitch;
  }
};

void to_float(const Kernels& kernels, const f16* x, std::int64_t n, float* y) { kernels.widen(x, n, y); }
void to_float(const Kernels&, const float* x, std::int64_t n, float* y) { std::copy_n(x, n, y); }

template <class T>
void pack_wide(const Kernels& kernels, const Matrices& w, std::int64_t b, std::int64_t panel, float* out) {
  if (w.transposed) {
    const Columns<T> columns(w, b, panel);
    return kernels.transpose(columns.column, columns.count, int(w.k), out);
  }
  const T* matrix = reinterpret_cast<const T*>(w.matrix(b));
  const std::int64_t first = panel * kPanel, n = std::min<std::int64_t>(kPanel, w.n - first);
  const std::int64_t run = w.format == Format::NZ ? 32 / std::int64_t(sizeof(T)) : kPanel;
  std::fill_n(out, Panel<float>::elements(w.k), 0.0f);
  for (std::int64_t i = 0; i < w.k; ++i)
    for (std::int64_t j = 0; j < n; j += run)
      to_float(kernels, matrix + w.at(i, first + j), std::min(run, n - j), out + Panel<float>::at(i, int(j)));
}

}  // namespace

void pack_panel(const Kernels& kernels, const Matrices& w, std::int64_t b, std::int64_t panel, std::int8_t* out,
                std::int32_t* column_sums) {
  if (!w.transposed) return pack_panel_i8(w.source(b), panel, out, column_sums);
  const Columns<std::int8_t> columns(w, b, panel);
  kernels.transpose(columns.column, columns.count, int(w.k), out, column_sums);
}

void pack_panel(const Kernels& kernels, const Matrices& w, std::int64_t b, std::int64_t panel, bf16* out) {
  if (!w.transposed) return pack_panel_bf16(w.source(b), panel, out);
  const Columns<bf16> columns(w, b, panel);
  kernels.transpose(columns.column, columns.count, int(w.k), out);
}

void pack_panel(const Kernels& kernels, const Matrices& w, std::int64_t b, std::int64_t panel, float* out) {
  if (w.dtype == DType::f16) pack_wide<f16>(kernels, w, b, panel, out);
  else pack_wide<float>(kernels, w, b, panel, out);
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
