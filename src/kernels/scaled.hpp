// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "kernels/e4m3.hpp"
#include "kernels/kept.hpp"
#include "kernels/products.hpp"

// Rows times one panel of e4m3 codes with a scale per 128 rows: one byte per weight, widened on the way to the bf16
// numbers that the codes stand for. The sums are taken as with a panel of these numbers, so the bits are the same.
namespace dsakit {
namespace {

/// bf16(fp32(number * scale)) of the first Count codes.
template <class V, int Count>
struct Codebook {
  alignas(64) bf16 of[Count];

  DSAKIT_INLINE explicit Codebook(float scale) {
    for (int i = 0; i < Count; i += V::kLanes)
      store_kept<V>(of + i, keep<V, bf16>(V::load_float(kE4m3Magnitudes.of + i) * V::set_float(scale)), V::kLanes);
  }
};

/// Of any vocabulary and any scale: one code after the other.
template <class V>
struct PlainDecoder {
  using I = typename V::I;
  Codebook<V, 128> book;

  DSAKIT_INLINE explicit PlainDecoder(float scale) : book(scale) {}
  DSAKIT_INLINE void pairs(I codes, I& first, I& second) const {
    typename V::U16 x = typename V::U16(codes), low{}, high{};
    for (int i = 0; i < V::kBytes / 2; ++i) low[i] = number(x[i] & 255), high[i] = number(x[i] >> 8);
    first = I(low), second = I(high);
  }

 private:
  DSAKIT_INLINE std::uint16_t number(int code) const {
    return std::uint16_t(book.of[code & 127].bits ^ (code & 128) << 8);
  }
};

/// The vocabulary's own: V::E4m3 knows the first V::E4m3::kCount numbers of a scale that V::E4m3::can.
template <class V>
struct Decoder {
  using I = typename V::I;
  typename V::E4m3 table;

  DSAKIT_INLINE explicit Decoder(float scale) : table(Codebook<V, V::E4m3::kCount>(scale).of) {}
  DSAKIT_INLINE void pairs(I codes, I& first, I& second) const { table.pairs(codes, first, second); }
};

template <class V>
concept Decodes = requires { typename V::E4m3; };

/// How far ahead codes are asked for as they are decoded, in bytes: arithmetic of few rows does not hide their coming.
constexpr int kCodesAhead = 4096;

DSAKIT_INLINE void ask_for_codes(const e4m3* codes) {
#pragma GCC unroll 4
  for (int l = 0; l < 4; ++l) prefetch_l1(codes + kCodesAhead + 64 * l);
}

/// `rows` (at most 128) rows of codes to a Panel<bf16>.
template <class V, class Decode>
DSAKIT_INLINE void widen_block(const Decode& decode, const e4m3* codes, int rows, bf16* out) {
  for (int r = 0; r < rows; r += 4, codes += 4 * kPanel, out += 4 * kPanel) {
    if constexpr (V::kBytes < 64) ask_for_codes(codes);  // registers of a line leave it to the hardware
    for (int column = 0; column < kPanel; column += V::kLanes) {
      typename V::I first, second;
      decode.pairs(V::load(codes + 4 * column), first, second);
      V::store(out + 2 * column, first);
      V::store(out + 2 * kPanel + 2 * column, second);
    }
  }
}

template <class V>
void widen_scaled(ScaledPanel panel, int k, bf16* out) noexcept {
  for (int first = 0; first < k; first += kScaleRows) {
    const ScaledPanel block = panel.from(first);
    const int rows = least(kScaleRows, k - first);
    bf16* const to = out + Panel<bf16>::row(first);
    if constexpr (Decodes<V>)
      if (V::E4m3::can(*block.scales)) {
        widen_block<V>(Decoder<V>(*block.scales), block.codes, rows, to);
        continue;
      }
    widen_block<V>(PlainDecoder<V>(*block.scales), block.codes, rows, to);
  }
}

/// So many rows of a meet codes as they are decoded: their sums are in registers beside the table and what is decoded. With
/// 16 registers two rows are slower so than if the codes are widened first.
template <class V>
constexpr int kDecodedRows = V::kRegisters == 16 ? 1 : 4;

/// Registers of columns in a tile. A sum takes four fma of a group one after the other: those of four registers would wait.
template <class V>
constexpr int scaled_vectors(int rows) {
  return V::kRegisters == 16 && rows == 1 ? 8 : 4;
}

/// Rows of a block of k that are decoded for a few rows of a, whose words lie `a_stride` bytes apart.
struct ScaledTile {
  const char* a;
  std::ptrdiff_t a_stride;
  ScaledPanel panel;
  int k;
  float* c;
  std::ptrdiff_t c_stride;
  bool add;
};

/// Every code is decoded in registers and meets the rows at once; nothing is stored.
template <class V, class Dot, int Rows>
DSAKIT_INLINE void scaled_tile(const ScaledTile& t, int column) {
  using I = typename V::I;
  using Sum = typename Dot::Sum;
  constexpr int kVectors = scaled_vectors<V>(Rows), kWords = 2 * Dot::kSteps;  // words of a row for four codes
  Sum sum[Rows][kVectors] = {};
  const char* a = t.a;
  const e4m3* codes = t.panel.codes + 4 * column;
  // Four codes of each column, of which the first `some` exist.
  const auto group = [&](const Decoder<V>& decode, int some) __attribute__((always_inline)) {
    I pair[2][kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) decode.pairs(V::load(codes + V::kBytes * v), pair[0][v], pair[1][v]);
#pragma GCC unroll 2
    for (int p = 0; p < 2; ++p) {
      if (some <= 2 * p) break;
      const bool odd = some == 2 * p + 1;
      unrolled<Dot::kSteps>([&]<int Step>() __attribute__((always_inline)) {
        if (Step > 0 && odd) return;
#pragma GCC unroll 4
        for (int r = 0; r < Rows; ++r) {
          const char* at = a + r * t.a_stride + 4 * (p * Dot::kSteps + Step);
          const I word = odd && Dot::kOddBytes == 2 ? V::set(load_some(at, 2)) : V::broadcast(at);
#pragma GCC unroll 8
          for (int v = 0; v < kVectors; ++v) sum[r][v] = Dot::dot(sum[r][v], word, Dot::column(pair[p][v], Step));
        }
      });
    }
  };
  const int whole = t.k / 4 * 4;
  for (int first = 0; first < whole; first += kScaleRows) {
    const Decoder<V> decode(*t.panel.from(first).scales);
    for (int r = first; r < least(first + kScaleRows, whole); r += 4, codes += 4 * kPanel, a += 4 * kWords) {
      if (column == 0) ask_for_codes(codes);
      group(decode, 4);
    }
  }
  if (whole < t.k) group(Decoder<V>(*t.panel.from(t.k - 1).scales), t.k - whole);
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      float* c = t.c + r * t.c_stride + column + V::kLanes * v;
      V::store(c, I(t.add ? Sum(V::load(c)) + sum[r][v] : sum[r][v]));
    }
}

template <class V, class Dot, int Rows>
void scaled_rows(const typename Dot::Row* a, std::ptrdiff_t a_stride, ScaledTile t) {
  constexpr int kColumns = scaled_vectors<V>(Rows) * V::kLanes;
  if constexpr (Prepares<Dot>) {
    typename Dot::Prepared prepared[Rows][kSumBlock];
    for (int r = 0; r < Rows; ++r) Dot::prepare(a + r * a_stride, t.k, prepared[r]);
    t.a = reinterpret_cast<const char*>(prepared), t.a_stride = sizeof prepared[0];
    for (int column = 0; column < kPanel; column += kColumns) scaled_tile<V, Dot, Rows>(t, column);
  } else {
    t.a = reinterpret_cast<const char*>(a), t.a_stride = a_stride * std::ptrdiff_t(sizeof *a);
    for (int column = 0; column < kPanel; column += kColumns) scaled_tile<V, Dot, Rows>(t, column);
  }
}

/// Whether all scales of k rows are such that V decodes in registers.
template <class V>
DSAKIT_INLINE bool decodes(ScaledPanel panel, int k) {
  if constexpr (Decodes<V>) {
    for (int first = 0; first < k; first += kScaleRows)
      if (!V::E4m3::can(*panel.from(first).scales)) return false;
    return true;
  }
  return false;
}

/// Many rows: the block is widened first, to where the cache has it.
template <class V, class Dot>
[[gnu::noinline]] void product_widening(const typename Dot::Row* a, std::ptrdiff_t a_stride, int m, ScaledPanel panel,
                                        int k, float* c, std::ptrdiff_t c_stride, bool add) {
  alignas(64) bf16 wide[kSumBlock * kPanel];
  widen_scaled<V>(panel, k, wide);
  const Ahead next{panel.codes + Panel<e4m3>::elements(k), kPanel * std::ptrdiff_t(sizeof(e4m3))};
  product<V, Dot, bf16>(a, a_stride, m, wide, k, c, c_stride, add, next, kPanel);
}

template <class V, class Dot>
void product_of_scaled(const typename Dot::Row* a, std::ptrdiff_t a_stride, int m, ScaledPanel panel, int k, float* c,
                       std::ptrdiff_t c_stride, bool add) noexcept {
  int first = 0;
  do {
    const int n = least(kSumBlock, k - first);
    const ScaledPanel block = panel.from(first);
    if constexpr (Decodes<V>) {
      if (m <= kDecodedRows<V> && decodes<V>(block, n)) {
        const ScaledTile t{nullptr, 0, block, n, c, c_stride, add};
        with_constant<kDecodedRows<V>>(m, [&]<int Rows>() { scaled_rows<V, Dot, Rows>(a + first, a_stride, t); });
        first += n, add = true;
        continue;
      }
    }
    product_widening<V, Dot>(a + first, a_stride, m, block, n, c, c_stride, add);
    first += n, add = true;
  } while (first < k);
}

}  // namespace
}  // namespace dsakit
