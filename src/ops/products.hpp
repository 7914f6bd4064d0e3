// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "core/view.hpp"
#include "ops/linear.hpp"
#include "ops/matrices.hpp"
#include "ops/prolog/rows.hpp"
#include "run/call.hpp"

// Rows times a stack of matrices in any format (matrices.hpp). Few rows meet a matrix that is not packed where it lies,
// a strip of columns at a time; with more rows it is packed on the way, a part at a time, so that it is multiplied while
// the cache has it. The bits of a row depend on that row and its matrix alone.
namespace dsakit {

inline constexpr std::int64_t kBlockRows = 512;  // of a task: so many meet a panel that had to be packed

/// Rows of a matrix that are packed at a time: 32 KiB of a panel of int8, of bf16 64 KiB; more where many rows meet them,
/// so that sums seldom wait.
inline std::int64_t rows_of_part(const Matrices& w, std::int64_t rows) {
  if (w.format == Format::packed) return w.k;
  const std::int64_t many = w.dtype == DType::i8 ? kPartRows : w.dtype == DType::bf16 ? kPartRows / 2 : kSumBlock;
  return std::min<std::int64_t>(w.k, rows <= kTileRows ? kSumBlock : many);
}
/// Panels of a task at most. If it meets few rows: half a KiB of every row of the matrix, and 256 KiB packed. With many
/// rows what is packed stays in L2 while they pass by, and a row of results is more than a line; sums that wait take the
/// room.
inline std::int64_t panels_of_task(const Matrices& w, std::int64_t rows) {
  constexpr std::int64_t kBytes = 512 << 10, kMost = 8;
  const std::int64_t size = w.dtype == DType::i8 ? 1 : w.dtype == DType::bf16 ? 2 : 4;  // f16 is widened
  if (rows <= kTileRows) return w.format == Format::packed ? 1 : 8 / size;
  if (rows_of_part(w, rows) < w.k) return 1;
  return std::clamp<std::int64_t>(kBytes / (std::max<std::int64_t>(w.k, 1) * kPanel * size), 1, kMost);
}
/// Fewer where that leaves less tasks than wanted.
inline std::int64_t panels_of_task(std::int64_t most, std::int64_t all, std::int64_t tasks = 8) {
  return std::clamp<std::int64_t>(all / tasks, 1, most);
}
/// Of a strip at most: a page of each row of the matrix, and as many sums as the kernel has room for.
inline std::int64_t panels_of_strip(const Matrices& w, std::int64_t rows) {
  return std::min<std::int64_t>(4096 / size_of(w.dtype), kStripSums / std::max<std::int64_t>(rows, 1)) / kPanel;
}
/// Two strips for each thread: memory likes them wide, and no bit depends on it. Whole sixteens of panels, so that the
/// kernel can ask for whole rows (strip_rows).
inline std::int64_t panels_of_strips(const Call& call, const Matrices& w, std::int64_t rows, std::int64_t all) {
  const std::int64_t panels = panels_of_task(panels_of_strip(w, rows), all, 2 * std::int64_t(call.threads()));
  return panels < 16 ? panels : panels / 16 * 16;
}
/// Rows whose sums wait for the next part of the matrix.
inline std::int64_t waiting_rows(const Matrices& w, std::int64_t rows) {
  return rows_of_part(w, rows) == w.k ? 0 : std::min(rows, kBlockRows);
}

/// What follows a panel's part of rows `first` .. first + depth: its next rows, or the first ones of the panel that the
/// next task begins with, `panels` further. Nothing if it does not lie in rows, or if many rows of a meet it: they need
/// L2, and with lines of a matrix whose pitch is a power of two leave none of it.
inline Ahead ahead_of(const Matrices& w, std::int64_t rows, std::int64_t b, std::int64_t panel, std::int64_t panels,
                      std::int64_t first, std::int64_t depth) {
  if (w.format != Format::ND || w.transposed) return {};
  if (rows > kTileRows) return Ahead::nothing();
  const bool last = first + depth >= w.k;
  const std::int64_t column = (panel + (last ? panels : 0)) * kPanel;
  if (column >= w.n) return {};
  return {w.matrix(b) + w.at(last ? 0 : first + depth, column) * size_of(w.dtype), w.pitch * size_of(w.dtype)};
}

/// Whether rows meet the matrix where it lies, with the bits of panels. The columns of a transposed one of bf16 are the keys
/// of gemv_dots, which fill up their last 32 bytes; of whole 64, as tiles have, no zero loses its sign.
inline bool can_stay(const Kernels& kernels, const Matrices& w, std::int64_t rows) {
  if (rows > kernels.strip_rows) return false;
  if (!w.transposed) return true;
  if (w.dtype == DType::i8) return rows <= kColumnRows;
  return rows <= std::min(kernels.gemv_rows, kColumnRows) && w.k % 32 == 0;
}

/// Rows as gemv_dots has them.
inline void fill_query(const bf16* a, std::int64_t a_stride, int rows, int depth, std::int32_t* query) {
  for (int r = 0; r < rows; ++r)
    for (int w = 0; w < GemvQuery::words(depth, 2, 2); ++w)
      std::memcpy(query + GemvQuery::at(rows, r, w), a + r * a_stride + 2 * w, 4);
}

/// Rows times columns [column, column + columns) of matrix b where it lies; c is [rows][columns rounded up to panels]. Some
/// columns meet Blocks * kSumBlock positions of the rows before the next ones: memory is read column by column.
template <int Blocks>
void product_of_columns(const Kernels& kernels, const bf16* a, std::int64_t a_stride, int rows, const Matrices& w,
                        std::int64_t b, std::int64_t column, std::int64_t columns, float* c) {
  constexpr int kWords = GemvQuery::elements(kColumnRows, kSumBlock * int(sizeof(bf16)) / 4);
  const auto* matrix = reinterpret_cast<const bf16*>(w.matrix(b));
  const std::int64_t pitch = panels_of(columns) * kPanel, step = w.at(0, 1);  // from a column to the next
  for (std::int64_t base = 0; base < w.k; base += Blocks * kSumBlock) {
    const std::int64_t end = std::min<std::int64_t>(base + Blocks * kSumBlock, w.k);
    const auto depth = [&](std::int64_t first) { return int(std::min<std::int64_t>(kSumBlock, end - first)); };
    std::int32_t queries[Blocks][kWords];
    const auto query = [&](std::int64_t first) { return queries[(first - base) / kSumBlock]; };
    for (std::int64_t first = base; first < end; first += kSumBlock)
      fill_query(a + first, a_stride, rows, depth(first), query(first));
    for (std::int64_t j = 0; j < columns; j += kPanel)
      for (std::int64_t first = base; first < end; first += kSumBlock) {
        const std::byte *key[kPanel], *next[kPanel];
        const auto fill = [&](std::int64_t position, std::int64_t n, const std::byte** to) {
          for (int i = 0; i < kPanel; ++i)
            to[i] = reinterpret_cast<const std::byte*>(matrix + position + std::min(column + n + i, w.n - 1) * step);
        };
        fill(first, j, key);
        if (first + kSumBlock < end) fill(first + kSumBlock, j, next);
        else fill(base, j + kPanel, next);
        const int some = int(std::min<std::int64_t>(kPanel, columns - j));
        alignas(64) float y[kColumnRows * kPanel];
        kernels.gemv_dots(query(first), rows, key, some, depth(first), y, kPanel, next, depth(first));
        for (int r = 0; r < rows; ++r)
          for (int i = 0; i < some; ++i) {
            float& sum = c[r * pitch + j + i];
            sum = first > 0 ? sum + y[r * kPanel + i] : y[r * kPanel + i];
          }
      }
  }
}

/// The same of a matrix in any format but packed.
template <class B, class A, class C>
void product_in_place(const Kernels& kernels, const A* a, std::int64_t a_stride, std::int64_t rows, const Matrices& w,
                      std::int64_t b, std::int64_t column, std::int64_t columns, C* c) {
  const auto* matrix = reinterpret_cast<const B*>(w.matrix(b));
  const std::int64_t pitch = panels_of(columns) * kPanel;
  if (w.k == 0) return void(std::fill_n(c, rows * pitch, C{}));
  if constexpr (sizeof(B) == 1) {
    if (w.transposed)
      return kernels.column_product(a, a_stride, int(rows), matrix + w.at(0, column), w.at(0, 1), int(w.k), int(columns), c,
                                    pitch);
  } else if (w.transposed) {
    // Without the large frame, whose pages each call touches, if it is not needed.
    return w.k <= kSumBlock ? product_of_columns<1>(kernels, a, a_stride, int(rows), w, b, column, columns, c)
                            : product_of_columns<8>(kernels, a, a_stride, int(rows), w, b, column, columns, c);
  }
  const B* const ahead = column + columns < w.n ? matrix + w.at(0, column + columns)
                                                : reinterpret_cast<const B*>(w.matrix((b + 1) % w.stack.elements()));
  kernels.strip_product(a, a_stride, int(rows), w.strip<B>(b, column), int(w.k), int(columns), c, pitch, false, ahead);
}

/// each(row, column, n, where its sums begin) for the sums of a strip, up to 64 of a row at a time.
template <class F>
void for_each_piece(std::int64_t rows, std::int64_t panels, std::int64_t columns, F&& each) {
  for (std::int64_t column = 0; column < columns; column += kPanel)
    for (std::int64_t row = 0; row < rows; ++row)
      each(row, column, std::min<std::int64_t>(kPanel, columns - column), row * panels * kPanel + column);
}

/// a[b] * w[b], of bf16, f16 or f32.
struct StackProduct {
  Tensor a;    // [batch, rows, k], neighbours within a row side by side
  Matrices w;  // of the dtype of a; its leading axis is that of a

  std::int64_t batch() const { return a.shape[0]; }
  std::int64_t rows() const { return a.shape[1]; }
  bool is_packed() const { return w.format == Format::packed; }
  /// Where it lies, if kernels and products allow it.
  bool may_stay() const { return w.dtype == DType::bf16 && !is_packed() && rows() <= kStripRows; }
  std::int64_t panels() const { return panels_of_task(w, rows()); }
  std::int64_t waiting() const { return waiting_rows(w, rows()); }

  /// Of a thread.
  struct Scratch {
    bf16* narrow;  // panels; f16 and f32 become float
    float *wide, *sums;

    Scratch(const StackProduct& p, Carver& memory) {
      const bool is_narrow = p.w.dtype == DType::bf16;
      const std::int64_t panels = p.is_packed() ? 0 : p.panels(), depth = rows_of_part(p.w, p.rows());
      narrow = memory.take<bf16>(is_narrow ? panels * Panel<bf16>::elements(depth) : 0);
      wide = memory.take<float>(is_narrow ? 0 : panels * Panel<float>::elements(depth));
      const std::int64_t strip = p.may_stay() ? panels_of_strip(p.w, p.rows()) * p.rows() : 0;
      sums = memory.take<float>(std::max({p.panels() * p.waiting(), strip, p.panels() * kTileRows}) * kPanel);
    }
  };
  std::size_t bytes(int threads) const { return std::size_t(threads) * bytes_of<Scratch>(*this); }

  /// store(b, row, column, n, sums) for n sums of every row, from a column on; `memory`: bytes(threads).
  template <class Store>
  void run(Call& call, std::byte* memory, Store store) const;

 private:
  struct Task {
    std::int64_t b, row, rows, panel, panels;
  };
  template <class A, class B, class Store>
  void multiply(const Call&, const Task&, B* panels, float* sums, Store& store) const;
  template <class Store>
  void multiply_strip(const Call&, const Task&, float* sums, Store& store) const;
};

template <class Store>
void StackProduct::multiply_strip(const Call& call, const Task& t, float* sums, Store& store) const {
  const std::int64_t first = t.panel * kPanel, columns = std::min(t.panels * kPanel, w.n - first);
  const bf16* rows = static_cast<const bf16*>(a.data) + t.b * a.stride[0] + t.row * a.stride[1];
  product_in_place<bf16>(call.kernels(), rows, a.stride[1], t.rows, w, t.b, first, columns, sums);
  for_each_piece(t.rows, t.panels, columns,
                 [&](std::int64_t row, std::int64_t column, std::int64_t n, std::int64_t at) {
                   store(t.b, t.row + row, first + column, n, sums + at);
                 });
}

template <class A, class B, class Store>
void StackProduct::multiply(const Call& call, const Task& t, B* panels, float* sums, Store& store) const {
  const std::int64_t k = w.k, stride = a.stride[1], most = rows_of_part(w, rows());
  const A* rows = static_cast<const A*>(a.data) + t.b * a.stride[0] + t.row * stride;
  std::int64_t first = 0;
  do {
    const std::int64_t depth = std::min(most, k - first);
    const bool last = first + depth == k;
    if (is_packed()) panels = const_cast<B*>(reinterpret_cast<const B*>(w.matrix(t.b))) + Panels<B>::panel(k, t.panel);
    else if (depth > 0) pack_panels(call.kernels(), w, t.b, {t.panel, t.panels, first, depth}, panels);
    for (std::int64_t r = 0; r < t.rows; r += kTileRows) {
      const std::int64_t some = std::min(kTileRows, t.rows - r);
      const auto tile = [&](std::int64_t p) { return sums + (waiting() ? p * t.rows + r : p * kTileRows) * kPanel; };
      for (std::int64_t p = 0; p < t.panels; ++p) {
        const Ahead ahead =
            r == 0 ? ahead_of(w, t.rows, t.b, t.panel + p, t.panels, first, depth) : Ahead::nothing();
        if (k == 0) std::fill_n(tile(p), some * kPanel, 0.0f);
        else
          product_of_panel(call, rows + r * stride + first, stride, some, panels + Panels<B>::panel(depth, p), depth,
                           tile(p), first > 0, ahead);
      }
      for (std::int64_t i = 0; i < some && last; ++i)
        for (std::int64_t p = 0, column; p < t.panels; ++p) {
          column = (t.panel + p) * kPanel;
          store(t.b, t.row + r + i, column, std::min<std::int64_t>(kPanel, w.n - column), tile(p) + i * kPanel);
        }
    }
    first += depth;
  } while (first < k);
}

template <class Store>
void StackProduct::run(Call& call, std::byte* memory, Store store) const {
  const std::size_t each = bytes_of<Scratch>(*this);
  const bool strips = may_stay() && !call.same_products() && can_stay(call.kernels(), w, rows());
  const std::int64_t all = panels_of(w.n), blocks = (rows() + kBlockRows - 1) / kBlockRows,
                     some = strips ? panels_of_strips(call, w, rows(), all * batch())
                                   : panels_of_task(panels(), all * blocks * batch()),
                     groups = (all + some - 1) / some;
  const Work work = product_work(double(rows()), double(w.k) * double(w.n), false) * double(batch());
  call.parallel_for(batch() * blocks * groups, work, [&](std::int64_t task, int thread) {
    const std::int64_t panel = task % groups * some, row = task / groups % blocks * kBlockRows;
    const Task t{task / groups / blocks, row, std::min(kBlockRows, rows() - row), panel, std::min(some, all - panel)};
    Carver mine(memory + std::size_t(thread) * each);
    const Scratch s(*this, mine);
    if (strips) multiply_strip(call, t, s.sums, store);
    else if (w.dtype == DType::bf16) multiply<bf16>(call, t, s.narrow, s.sums, store);
    else if (w.dtype == DType::f16) multiply<f16>(call, t, s.wide, s.sums, store);
    else multiply<float>(call, t, s.wide, s.sums, store);
  });
}

/// Row r of a times matrix r / rows of w, of int8: exact.
struct CodeProduct {
  Rows a;
  Matrices w;         // its leading axes are those of a, or none if all rows meet one matrix
  std::int64_t rows;  // that meet the same matrix

  std::int64_t depth() const { return Panel<std::int8_t>::depth(w.k); }
  bool is_packed() const { return w.format == Format::packed; }
  bool may_stay() const { return !is_packed() && rows <= kStripRows; }
  std::int64_t panels() const { return panels_of_task(w, rows); }
  std::int64_t waiting() const { return waiting_rows(w, rows); }
  /// Rows whose codes are biased before their products begin: about 16 MiB.
  std::int64_t chunk() const {
    constexpr std::int64_t kCodes = std::int64_t(16) << 20, kMost = 16;
    const std::int64_t blocks = kCodes / std::max<std::int64_t>(kBlockRows * depth(), 1);
    return std::min(a.count, std::clamp<std::int64_t>(blocks, 1, kMost) * kBlockRows);
  }

  /// Of the call.
  struct Biased {
    std::uint8_t* codes;  // of a chunk

    Biased(const CodeProduct& p, Carver& memory) : codes(memory.take<std::uint8_t>(p.chunk() * p.depth())) {}
  };
  /// Of a thread.
  struct Scratch {
    std::int8_t* panels;
    std::int32_t *column_sums, *sums;

    Scratch(const CodeProduct& p, Carver& memory)
        : panels(memory.take<std::int8_t>(
              p.is_packed() ? 0 : p.panels() * Panel<std::int8_t>::elements(rows_of_part(p.w, p.rows)))),
          column_sums(memory.take<std::int32_t>(p.panels() * kPanel)),
          sums(memory.take<std::int32_t>(
              std::max({p.panels() * p.waiting(), p.may_stay() ? panels_of_strip(p.w, p.rows) * p.rows : 0,
                        p.panels() * kTileRows}) * kPanel)) {}
  };
  std::size_t bytes(int threads) const {
    return bytes_of<Biased>(*this) + std::size_t(threads) * bytes_of<Scratch>(*this);
  }

  /// store(row, column, n, sums) for n sums of every row, from a column on; `memory`: bytes(threads).
  template <class Store>
  void run(Call& call, std::byte* memory, Store store) const;

 private:
  /// Rows of one matrix, whose codes are `biased`, and neighbouring panels.
  struct Task {
    const std::uint8_t* biased;
    std::int64_t row, rows, panel, panels;
  };
  template <class Store>
  void multiply(const Kernels&, const Task&, const Scratch&, Store& store) const;
  template <class Store>
  void multiply_strip(const Kernels&, const Task&, std::int32_t* sums, Store& store) const;
};

template <class Store>
void CodeProduct::multiply_strip(const Kernels& kernels, const Task& t, std::int32_t* sums, Store& store) const {
  const std::int64_t first = t.panel * kPanel, columns = std::min(t.panels * kPanel, w.n - first);
  product_in_place<std::int8_t>(kernels, t.biased, depth(), t.rows, w, t.row / rows, first, columns, sums);
  for_each_piece(t.rows, t.panels, columns,
                 [&](std::int64_t row, std::int64_t column, std::int64_t n, std::int64_t at) {
                   store(t.row + row, first + column, n, sums + at);
                 });
}

template <class Store>
void CodeProduct::multiply(const Kernels& kernels, const Task& t, const Scratch& s, Store& store) const {
  using Layout = Panels<std::int8_t>;
  const std::int64_t matrix = t.row / rows, most = rows_of_part(w, rows);
  const std::int8_t* panels = s.panels;
  const std::int32_t* column_sums = s.column_sums;
  std::int64_t first = 0;
  do {
    const std::int64_t part = std::min(most, w.k - first);
    const bool last = first + part == w.k;
    if (is_packed()) {
      const auto* codes = reinterpret_cast<const std::int8_t*>(w.matrix(matrix));
      panels = codes + Layout::panel(w.k, t.panel);
      column_sums = Layout::sums(codes, w.k, w.n) + t.panel * kPanel;
    } else {
      pack_panels(kernels, w, matrix, {t.panel, t.panels, first, part}, s.panels, s.column_sums);
    }
    for (std::int64_t r = 0; r < t.rows; r += kTileRows) {
      const std::int64_t some = std::min(kTileRows, t.rows - r);
      const auto tile = [&](std::int64_t p) { return s.sums + (waiting() ? p * t.rows + r : p * kTileRows) * kPanel; };
      for (std::int64_t p = 0; p < t.panels; ++p) {
        alignas(64) std::int32_t more[kTileRows * kPanel];
        std::int32_t* const sums = tile(p);
        const Ahead ahead =
            r == 0 ? ahead_of(w, t.rows, matrix, t.panel + p, t.panels, first, part) : Ahead::nothing();
        kernels.product(t.biased + r * depth() + first, depth(), int(some), panels + Layout::panel(part, p),
                        column_sums + p * kPanel, int(Panel<std::int8_t>::depth(part)), first > 0 ? more : sums, kPanel,
                        ahead);
        for (std::int64_t i = 0; i < some * kPanel && first > 0; ++i) sums[i] += more[i];
      }
      for (std::int64_t i = 0; i < some && last; ++i)
        for (std::int64_t p = 0, column; p < t.panels; ++p) {
          column = (t.panel + p) * kPanel;
          store(t.row + r + i, column, std::min<std::int64_t>(kPanel, w.n - column), tile(p) + i * kPanel);
        }
    }
    first += part;
  } while (first < w.k);
}

template <class Store>
void CodeProduct::run(Call& call, std::byte* memory, Store store) const {
  if (a.count == 0 || w.n == 0) return;
  const std::int64_t all = panels_of(w.n), block = std::min(rows, kBlockRows);
  const std::size_t each = bytes_of<Scratch>(*this);
  const bool strips = may_stay() && can_stay(call.kernels(), w, rows);
  Carver carver(memory);
  const Biased biased(*this, carver);
  std::byte* const own = memory + carver.bytes();
  for (std::int64_t first = 0; first < a.count; first += chunk()) {
    const std::int64_t count = std::min(chunk(), a.count - first);
    call.parallel_for(count, {.bytes = double(count * w.k)}, [&](std::int64_t r, int) {
      prolog::bias_codes(a.row<const std::int8_t>(first + r), w.k, biased.codes + r * depth());
    });
    // Blocks of rows that meet one matrix, those of a matrix numbered from its first row on.
    const std::int64_t per_matrix = (rows + block - 1) / block;
    const auto block_of = [&](std::int64_t row) { return row / rows * per_matrix + row % rows / block; };
    const std::int64_t low = block_of(first), blocks = block_of(first + count - 1) + 1 - low;
    const std::int64_t some = strips ? panels_of_strips(call, w, rows, all * blocks)
                                     : panels_of_task(panels(), all * blocks),
                       groups = (all + some - 1) / some;
    const Work work = product_work(double(count) / double(blocks), double(w.k) * double(w.n), true) * double(blocks);
    call.parallel_for(blocks * groups, work, [&](std::int64_t task, int thread) {
      const std::int64_t b = low + task / groups, matrix = b / per_matrix, row = b % per_matrix * block;
      const std::int64_t begin = std::max(matrix * rows + row, first),
                         end = std::min(matrix * rows + std::min(row + block, rows), first + count);
      const std::int64_t panel = task % groups * some;
      Carver mine(own + std::size_t(thread) * each);
      const Task t{biased.codes + (begin - first) * depth(), begin, end - begin, panel, std::min(some, all - panel)};
      const Scratch s(*this, mine);
      if (strips) multiply_strip(call.kernels(), t, s.sums, store);
      else multiply(call.kernels(), t, s, store);
    });
  }
}

}  // namespace dsakit
