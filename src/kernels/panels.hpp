// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "kernels/panel.hpp"
#include "kernels/vec/base.hpp"

// Rows of a cache to panels. Rows lie anywhere in a big cache, so the rows a tile or so ahead are asked for while these
// are worked on.
namespace dsakit {
namespace {

constexpr int kRowsAhead = 16;

/// How rows of T become words of a panel of To: a word holds kElements elements of a row. Pairs of bf16 become words of fp32
/// when they are stored.
template <class V, class T, class To>
struct Words;

template <class V>
struct Words<V, bf16, bf16> {
  static constexpr int kElements = 2;
  /// A register of words from elements of which `rest` exist, else 0.
  DSAKIT_INLINE static typename V::I load(const bf16* row, int rest) { return V::load_bytes(row, 2 * rest); }
  /// One element in a word.
  DSAKIT_INLINE static typename V::I load_one(const bf16* row, int rest) { return V::load_words(row, rest); }
};

template <class V>
struct Words<V, std::int8_t, bf16> {
  using I = typename V::I;
  static constexpr int kElements = 2;
  DSAKIT_INLINE static I load(const std::int8_t* row, int rest) {
    I pair = V::load_words(row, rest / 2);
    if (rest < 2 * V::kLanes && rest % 2 != 0 && rest > 0) [[unlikely]] {
      std::int8_t few[2 * V::kLanes] = {};
      for (int i = 0; i < rest; ++i) few[i] = row[i];
      pair = V::load_words(few, V::kLanes);
    }
    const I low = I(V::to_float(pair << 24 >> 24)), high = I(V::to_float(pair << 16 >> 24));
    return I(typename V::U(low) >> 16) | high;  // bf16 holds codes exactly: below are zeros
  }
  DSAKIT_INLINE static I load_one(const std::int8_t* row, int rest) {
    return I(typename V::U(V::to_float(V::load_codes(row, rest))) >> 16);
  }
};

template <class V>
struct Words<V, bf16, float> : Words<V, bf16, bf16> {
  DSAKIT_INLINE static typename V::I load_one(const bf16* row, int rest) { return V::load_words(row, rest) << 16; }
};

template <class V>
struct Words<V, std::int8_t, float> : Words<V, std::int8_t, bf16> {
  DSAKIT_INLINE static typename V::I load_one(const std::int8_t* row, int rest) {
    return typename V::I(V::to_float(V::load_codes(row, rest)));
  }
};

template <class V>
struct Words<V, f16, float> {
  static constexpr int kElements = 1;
  DSAKIT_INLINE static typename V::I load(const f16* row, int rest) { return typename V::I(V::load_f16(row, rest)); }
  DSAKIT_INLINE static typename V::I load_one(const f16* row, int rest) { return load(row, rest); }
};

template <class V>
struct Words<V, float, float> {
  static constexpr int kElements = 1;
  DSAKIT_INLINE static typename V::I load(const float* row, int rest) { return typename V::I(V::load_floats(row, rest)); }
  DSAKIT_INLINE static typename V::I load_one(const float* row, int rest) { return load(row, rest); }
};

template <class V>
struct Words<V, std::int8_t, std::int8_t> {
  static constexpr int kElements = 4;
  DSAKIT_INLINE static typename V::I load(const std::int8_t* row, int rest) { return V::load_bytes(row, rest); }
};

template <class V>
struct Words<V, e4m3, e4m3> {
  using I = typename V::I;
  static constexpr int kElements = 4;
  /// Codes 0 1 2 3 as 0 2 1 3.
  DSAKIT_INLINE static I load(const e4m3* row, int rest) {
    const I x = V::load_bytes(row, rest);
    return (x & int(0xff0000ff)) | (x >> 8 & 0xff00) | ((x & 0xff00) << 8);
  }
};

/// `each(register)` sees every register of the panel, of rows from j on.
template <class V, class T, class To, class Each>
DSAKIT_INLINE void transpose_rows(const T* const* rows, int count, int dims, int j, To* panel, Each each) {
  using I = typename V::I;
  using W = Words<V, T, To>;
  constexpr int kStep = V::kLanes * W::kElements;  // elements of a row in a register
  constexpr bool kWidens = sizeof(To) == 4 && W::kElements == 2;
  for (int c = 0; c < dims; c += kStep) {
    I x[V::kLanes];
    const bool line = c * int(sizeof(T)) % 64 == 0;
#pragma GCC unroll 16
    for (int r = 0; r < V::kLanes; ++r) {
      x[r] = j + r < count ? W::load(rows[j + r] + c, dims - c) : I{};
      if (line && j + r + kRowsAhead < count) prefetch<V>(rows[j + r + kRowsAhead] + c);
    }
    V::transpose(x);
    To* out = panel + Panel<To>::at(c, j);
#pragma GCC unroll 16
    for (int g = 0, d = 0; g < V::kLanes; ++g, d += W::kElements) {  // from row d on
      each(x[g]);
      if (c + d < dims) V::store(out + Panel<To>::row(d), kWidens ? V::low_bf16(x[g]) : x[g]);
      if (kWidens && c + d + 1 < dims) V::store(out + Panel<To>::row(d + 1), V::high_bf16(x[g]));
    }
  }
}

template <class V, class T, class To>
void transpose(const T* const* rows, int count, int dims, To* panel) noexcept {
  for (int j = 0; j < kPanel; j += V::kLanes)
    transpose_rows<V, T, To>(rows, count, dims, j, panel, [](typename V::I) __attribute__((always_inline)) {});
}

template <class V>
void transpose_codes(const std::int8_t* const* rows, int count, int dims, std::int8_t* panel,
                     std::int32_t* sums) noexcept {
  for (int j = 0; j < kPanel; j += V::kLanes) {
    typename V::I sum{};
    transpose_rows<V, std::int8_t, std::int8_t>(
        rows, count, dims, j, panel,
        [&sum](typename V::I x) __attribute__((always_inline)) { sum = V::add_codes(sum, x); });
    V::store(sums + j, sum);
  }
}

/// Lines of a row's columns [c, c + 64). A row may begin anywhere in a line, so that its end lies in one more.
template <class V, class T>
DSAKIT_INLINE void prefetch_columns(const T* row, int c, int dims) {
  for (int line = 0; line < kPanel; line += 64 / int(sizeof(T)))
    if (c + line < dims) prefetch<V>(row + c + line);
  if (c + kPanel >= dims) prefetch<V>(row + dims - 1);
}

/// Pairs of rows side by side.
template <class V, class T>
void interleave(const T* const* rows, int count, int dims, bf16* panels) noexcept {
  using I = typename V::I;
  using W = Words<V, T, bf16>;
  for (int j = 0; j < count; j += 2) {
    const T* even = rows[j];
    const T* odd = j + 1 < count ? rows[j + 1] : nullptr;
    for (int c = 0; c < dims; c += kPanel) {
      bf16* out = panels + Panels<bf16>::at(count, j, c);
      if (j + kRowsAhead + 1 < count)
        prefetch_columns<V>(rows[j + kRowsAhead], c, dims), prefetch_columns<V>(rows[j + kRowsAhead + 1], c, dims);
      const auto columns = [&](auto rest) __attribute__((always_inline)) {
#pragma GCC unroll 16
        for (int s = 0; s < kPanel; s += V::kLanes) {
          const I low = W::load_one(even + c + s, rest(s));
          const I high = odd ? W::load_one(odd + c + s, rest(s)) << 16 : I{};
          V::store(out + 2 * s, low | high);
        }
      };
      if (dims - c >= kPanel) columns([](int) { return V::kLanes; });
      else columns([&](int s) { return dims - c - s; });
    }
  }
}

template <class V, class T>
void interleave(const T* const* rows, int count, int dims, float* panels) noexcept {
  constexpr int kAhead = sizeof(T) == 4 ? kRowsAhead / 2 : kRowsAhead;
  for (int j = 0; j < count; ++j)
    for (int c = 0; c < dims; c += kPanel) {
      float* out = panels + Panels<float>::at(count, j, c);
      if (j + kAhead < count) prefetch_columns<V>(rows[j + kAhead], c, dims);
      const auto columns = [&](auto rest) __attribute__((always_inline)) {
#pragma GCC unroll 16
        for (int s = 0; s < kPanel; s += V::kLanes)
          V::store(out + s, Words<V, T, float>::load_one(rows[j] + c + s, rest(s)));
      };
      if (dims - c >= kPanel) columns([](int) { return V::kLanes; });
      else columns([&](int s) { return dims - c - s; });
    }
}

/// Four rows of codes, one code of each in every word; the 128-bit block b of x[i] gets columns 16 b + 4 i and the three
/// after it.
template <class V>
DSAKIT_INLINE void interleave_blocks(typename V::I (&x)[4]) {
  const auto low01 = V::unpack_low8(x[0], x[1]), high01 = V::unpack_high8(x[0], x[1]);
  const auto low23 = V::unpack_low8(x[2], x[3]), high23 = V::unpack_high8(x[2], x[3]);
  x[0] = V::unpack_low16(low01, low23), x[1] = V::unpack_high16(low01, low23);
  x[2] = V::unpack_low16(high01, high23), x[3] = V::unpack_high16(high01, high23);
}

/// So many rows at a time that a line of theirs is still in L1 when the next panel wants its other end.
template <class V>
void interleave_codes(const std::int8_t* const* rows, int count, int dims, std::int8_t* panels,
                      std::int32_t* sums) noexcept {
  using I = typename V::I;
  constexpr int kParts = kPanel / V::kBytes, kVectors = kPanel / V::kLanes, kRows = 2 * kRowsAhead;
  for (int first = 0; first == 0 || first < count; first += kRows) {
    const int end = first + kRows < count ? first + kRows : count;
    for (int c = 0; c < dims; c += kPanel) {
      I sum[kVectors];
#pragma GCC unroll 16
      for (int i = 0; i < kVectors; ++i) sum[i] = first > 0 ? V::load(sums + c + V::kLanes * i) : I{};
      for (int j = first; j < end; j += 4) {
        std::int8_t* out = panels + Panels<std::int8_t>::at(count, j, c);
#pragma GCC unroll 4
        for (int part = 0; part < kParts; ++part) {
          I x[4];
#pragma GCC unroll 4
          for (int r = 0; r < 4; ++r) {
            const int rest = dims - c - V::kBytes * part;
            x[r] = j + r < count ? V::load_bytes(rows[j + r] + c + V::kBytes * part, rest) : I{};
            if (part == 0 && j + r + kRowsAhead < count) prefetch_columns<V>(rows[j + r + kRowsAhead], c, dims);
            x[r] = V::spread(x[r]);
          }
          interleave_blocks<V>(x);
#pragma GCC unroll 4
          for (int i = 0; i < 4; ++i) {
            sum[4 * part + i] = V::add_codes(sum[4 * part + i], x[i]);
            V::store(out + V::kBytes * (4 * part + i), x[i]);
          }
        }
      }
#pragma GCC unroll 16
      for (int i = 0; i < kVectors; ++i) V::store(sums + c + V::kLanes * i, sum[i]);
    }
  }
}

}  // namespace
}  // namespace dsakit
