// SPDX-License-Identifier: Apache-2.0
// AVX2 with FMA and F16C. Nothing here may run before kernels.cc has asked the CPU, and nothing but use_avx2 may
// leave this object.
#include <immintrin.h>

#include "kernels/kernels.hpp"
#include "kernels/rows.hpp"

namespace dsakit {
namespace {

constexpr int kRows = 6;
constexpr int kGroup = 256;  // bytes of a panel that meet 4 bytes of a row: 2 positions of bf16, 4 of int8

template <class T>
[[gnu::always_inline]] inline __m256i load_bits(const T* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
[[gnu::always_inline]] inline void store_bits(void* p, __m256i x) { _mm256_storeu_si256(static_cast<__m256i*>(p), x); }
/// As a float: an integer broadcast from memory is two operations on Zen.
[[gnu::always_inline]] inline __m256i broadcast32(const void* p) {
  float x;
  __builtin_memcpy(&x, p, 4);
  return _mm256_castps_si256(_mm256_set1_ps(x));
}

/// Registers of 8 columns in a tile: as many accumulators as 16 registers allow, and whole cache lines of a panel
/// for a single row, which streams it.
constexpr int vectors_for(int rows) { return rows == 1 ? 8 : rows == 2 ? 4 : 2; }

/// f(rows) for the rows of each tile, with the count as a constant.
template <int Rows, class F>
[[gnu::always_inline]] inline void with_rows(int rows, F f) {
  if constexpr (Rows > 0) {
    if (rows == Rows) return f.template operator()<Rows>();
    with_rows<Rows - 1>(rows, f);
  }
}

// ---- floating-point products --------------------------------------------------------------------------------------

/// Asks for what a single row, which streams, needs soon; else for the line of the next block, which should lie in L2
/// by then and not push this one out of L1.
template <int Rows>
[[gnu::always_inline]] inline void ask_for(const void* here, std::ptrdiff_t ahead) {
  const char* p = static_cast<const char*>(here);
  if constexpr (Rows == 1) _mm_prefetch(p + 4096, _MM_HINT_T0);
  else _mm_prefetch(p + ahead, _MM_HINT_T1);
}

/// One block of k, all 64 columns of a panel of pairs of bf16 or of fp32. Asks for the block that lies `ahead` bytes
/// further on.
template <int Rows, class T>
[[gnu::always_inline]] inline void block_f32(const float* a, std::ptrdiff_t a_stride, const T* panel, int k, float* c,
                                             std::ptrdiff_t c_stride, bool add, std::ptrdiff_t ahead) {
  constexpr int kVectors = vectors_for(Rows), kVector = 32 / sizeof(T);
  for (int column = 0; column < kPanel; column += 8 * kVectors, panel += kVector * kVectors, c += 8 * kVectors) {
    __m256 sum[Rows][kVectors];
#pragma GCC unroll 6
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sum[r][v] = _mm256_setzero_ps();
    const T* group = panel;
    int p = 0;
    // With few rows the broadcasts are kept and the panel passes by, with many the other way round.
    const auto step = [&](const float* x, auto column) __attribute__((always_inline)) {
      const auto b = [&](int v) __attribute__((always_inline)) {
        return _mm256_castsi256_ps(column(load_bits(group + kVector * v)));
      };
      if constexpr (Rows < kVectors) {
        __m256 a[Rows];
#pragma GCC unroll 6
        for (int r = 0; r < Rows; ++r) {
          a[r] = _mm256_broadcast_ss(x + r * a_stride);
          asm("" : "+x"(a[r]));  // else gcc 12 loads it anew for each column
        }
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) {
          const __m256 one = b(v);
#pragma GCC unroll 6
          for (int r = 0; r < Rows; ++r) sum[r][v] = _mm256_fmadd_ps(a[r], one, sum[r][v]);
        }
      } else {
        __m256 all[kVectors];
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) all[v] = b(v);
#pragma GCC unroll 6
        for (int r = 0; r < Rows; ++r) {
          const __m256 a = _mm256_broadcast_ss(x + r * a_stride);
#pragma GCC unroll 8
          for (int v = 0; v < kVectors; ++v) sum[r][v] = _mm256_fmadd_ps(a, all[v], sum[r][v]);
        }
      }
    };
    const auto even = [](__m256i b) __attribute__((always_inline)) { return _mm256_slli_epi32(b, 16); };
    const auto odd = [](__m256i b) __attribute__((always_inline)) {
      return _mm256_and_si256(b, _mm256_set1_epi32(int(0xffff0000)));
    };
    const auto ask = [&]() __attribute__((always_inline)) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; v += 2) ask_for<Rows>(group + kVector * v, ahead);
    };
    if constexpr (sizeof(T) == 2) {
      for (; p + 2 <= k; p += 2, group += 2 * kPanel) ask(), step(a + p, even), step(a + p + 1, odd);
      if (p < k) step(a + p, even);
    } else {
      for (; p < k; ++p, group += kPanel)
        ask(), step(
                   a + p, [](__m256i b) __attribute__((always_inline)) { return b; });
    }
#pragma GCC unroll 6
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        float* out = c + r * c_stride + 8 * v;
        _mm256_storeu_ps(out, add ? _mm256_add_ps(_mm256_loadu_ps(out), sum[r][v]) : sum[r][v]);
      }
  }
}

/// f(rows of the tile, first row, block's first position, its length, add) over blocks of k, then tiles of rows.
template <class F>
[[gnu::always_inline]] inline void for_each_tile(int m, int k, bool add, F f) {
  int p = 0;
  do {
    const int length = k - p < kSumBlock ? k - p : kSumBlock;
    for (int i = 0, left = (m + kRows - 1) / kRows, rows; left > 0; --left, i += rows) {
      rows = (m - i + left - 1) / left;
      f(rows, i, p, length, add);
    }
    add = true;
    p += length;
  } while (p < k);
}

constexpr std::ptrdiff_t kAhead = kSumBlock / 2 * kGroup;

void product_f32(const float* a, std::ptrdiff_t a_stride, int m, const bf16* panel, int k, float* c,
                 std::ptrdiff_t c_stride, bool add) noexcept {
  for_each_tile(m, k, add, [&](int rows, int i, int p, int length, bool add) {
    with_rows<kRows>(rows, [&]<int Rows>() {
      block_f32<Rows>(a + i * a_stride + p, a_stride, panel + std::ptrdiff_t(p) * kPanel, length, c + i * c_stride,
                      c_stride, add, kAhead);
    });
  });
}

void product_wide(const float* a, std::ptrdiff_t a_stride, int m, const float* panel, int k, float* c,
                  std::ptrdiff_t c_stride, bool add) noexcept {
  for_each_tile(m, k, add, [&](int rows, int i, int p, int length, bool add) {
    with_rows<kRows>(rows, [&]<int Rows>() {
      block_f32<Rows>(a + i * a_stride + p, a_stride, panel + std::ptrdiff_t(p) * kPanel, length, c + i * c_stride,
                      c_stride, add, 2 * kAhead);
    });
  });
}

void product_bf16(const bf16* a, std::ptrdiff_t a_stride, int m, const bf16* panel, int k, float* c,
                  std::ptrdiff_t c_stride, bool add) noexcept {
  for_each_tile(m, k, add, [&](int rows, int i, int p, int length, bool add) {
    float wide[kRows * kSumBlock];
    for (int r = 0; r < rows; ++r) widen_bf16(a + (i + r) * a_stride + p, length, wide + r * kSumBlock);
    with_rows<kRows>(rows, [&]<int Rows>() {
      block_f32<Rows>(wide, kSumBlock, panel + std::ptrdiff_t(p) * kPanel, length, c + i * c_stride, c_stride, add,
                      kAhead);
    });
  });
}

// ---- int8 ---------------------------------------------------------------------------------------------------------
// vpmaddubsw saturates, so both sides are widened to 16 bits. A group of four positions 0 1 2 3 is kept as 0 2 1 3: one
// side is widened in place (even bytes, odd bytes), and a broadcast of 32 bits of the other then meets it.

/// n codes (`flip`: biased by +128), widened in that order; what is missing in the last group is 0.
[[gnu::always_inline]] inline void widen_groups(const void* codes, int n, int flip, std::int16_t* out) {
  const std::int8_t* x = static_cast<const std::int8_t*>(codes);
  const __m128i order = _mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15);
  const __m128i sign = _mm_set1_epi8(char(flip));
  int i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m128i sixteen = _mm_xor_si128(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x + i)), sign);
    store_bits(out + i, _mm256_cvtepi8_epi16(_mm_shuffle_epi8(sixteen, order)));
  }
  for (; i < n; i += 4) {
    std::int16_t four[4] = {};
    for (int d = 0; d < 4 && i + d < n; ++d) four[d] = std::int8_t(x[i + d] ^ flip);
    out[i] = four[0], out[i + 1] = four[2], out[i + 2] = four[1], out[i + 3] = four[3];
  }
}

/// sum[r][v] += dots of the widened rows with `groups` groups of 8 * Vectors columns of Signed codes or unsigned,
/// `pitch` bytes apart.
template <bool Signed, int Rows, int Vectors>
[[gnu::always_inline]] inline void sum_groups(const std::int16_t* a, std::ptrdiff_t a_stride, const char* b,
                                              std::ptrdiff_t pitch, int groups, std::ptrdiff_t ahead,
                                              __m256i (&sum)[Rows][Vectors]) {
  for (int g = 0; g < groups; ++g, a += 4, b += pitch) {
    const auto meet = [&](int half, auto widened) __attribute__((always_inline)) {
      __m256i wide[Vectors];
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) wide[v] = widened(load_bits(b + 32 * v));
#pragma GCC unroll 6
      for (int r = 0; r < Rows; ++r) {
        const __m256i x = broadcast32(a + r * a_stride + half);
#pragma GCC unroll 8
        for (int v = 0; v < Vectors; ++v) {
          sum[r][v] = _mm256_add_epi32(sum[r][v], _mm256_madd_epi16(wide[v], x));
          asm("" : "+x"(sum[r][v]));  // else gcc adds both halves first, and spills
        }
      }
    };
    if (ahead)
#pragma GCC unroll 4
      for (int v = 0; v < Vectors; v += 2) ask_for<Rows>(b + 32 * v, ahead);
    const auto high = [](__m256i x) __attribute__((always_inline)) {
      return Signed ? _mm256_srai_epi16(x, 8) : _mm256_srli_epi16(x, 8);
    };
    meet(
        0, [=](__m256i x) __attribute__((always_inline)) { return high(_mm256_slli_epi16(x, 8)); });
    meet(2, high);
  }
}

/// The rows lose their bias when they are widened, so column sums are not needed.
void product_i8(const std::uint8_t* a, std::ptrdiff_t a_stride, int m, const std::int8_t* panel, const std::int32_t*,
                int k, std::int32_t* c, std::ptrdiff_t c_stride) noexcept {
  for_each_tile(m, k, false, [&](int rows, int i, int p, int length, bool add) {
    std::int16_t wide[kRows * kSumBlock];
    for (int r = 0; r < rows; ++r) widen_groups(a + (i + r) * a_stride + p, length, 128, wide + r * kSumBlock);
    with_rows<kRows>(rows, [&]<int Rows>() {
      constexpr int kVectors = vectors_for(Rows);
      for (int column = 0; column < kPanel; column += 8 * kVectors) {
        __m256i sum[Rows][kVectors];
        std::int32_t* out = c + i * c_stride + column;
#pragma GCC unroll 6
        for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
          for (int v = 0; v < kVectors; ++v)
            sum[r][v] = add ? load_bits(out + r * c_stride + 8 * v) : _mm256_setzero_si256();
        sum_groups<true>(wide, kSumBlock,
                         reinterpret_cast<const char*>(panel + std::ptrdiff_t(p) * kPanel + 4 * column), kGroup,
                         length / 4, kAhead / 2, sum);
#pragma GCC unroll 6
        for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
          for (int v = 0; v < kVectors; ++v) store_bits(out + r * c_stride + 8 * v, sum[r][v]);
      }
    });
  });
}

// ---- the indexer: tiles of 6 keys and 16 heads ---------------------------------------------------------------------

[[gnu::always_inline]] inline float folded(__m256 low, __m256 high) {
  const __m256 eight = _mm256_add_ps(low, high);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

std::int32_t sum_codes(const std::int8_t* codes, int n) {
  std::int32_t sum = 0;
  for (int i = 0; i < n; ++i) sum += codes[i];
  return sum;
}

template <int Keys>
[[gnu::always_inline]] inline void index_keys(const IndexQueryI8& query, const std::int8_t* key,
                                              std::ptrdiff_t key_stride, float* scores) {
  std::int16_t wide[Keys * kSumBlock];
  std::int32_t bias[Keys];  // what the bias of the query adds to every dot, negative
  for (int k = 0; k < Keys; ++k) bias[k] = -128 * sum_codes(key + k * key_stride, query.dims);
  __m256 lane[Keys][2] = {};
  const char* codes = reinterpret_cast<const char*>(query.values);
  for (int block = 0; block < query.head_blocks; ++block) {
    __m256i dot[Keys][2];
#pragma GCC unroll 6
    for (int k = 0; k < Keys; ++k) dot[k][0] = dot[k][1] = _mm256_set1_epi32(bias[k]);
    for (int d = 0; d < query.dims; d += kSumBlock) {
      const int length = query.dims - d < kSumBlock ? query.dims - d : kSumBlock;
      if (block == 0 || query.dims > kSumBlock)
        for (int k = 0; k < Keys; ++k) widen_groups(key + k * key_stride + d, length, 0, wide + k * kSumBlock);
      const int groups = (length + 3) / 4;
      sum_groups<false>(wide, kSumBlock, codes, 64, groups, 0, dot);
      codes += groups * 64;
    }
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      const __m256 w = _mm256_loadu_ps(query.weight + 16 * block + 8 * v);
#pragma GCC unroll 6
      for (int k = 0; k < Keys; ++k) {
        const __m256 r = _mm256_cvtepi32_ps(_mm256_max_epi32(dot[k][v], _mm256_setzero_si256()));
        lane[k][v] = _mm256_fmadd_ps(w, r, lane[k][v]);
      }
    }
  }
  for (int k = 0; k < Keys; ++k) scores[k] = folded(lane[k][0], lane[k][1]);
}

template <int Keys>
[[gnu::always_inline]] inline void index_keys(const IndexQueryF32& query, const float* key, std::ptrdiff_t key_stride,
                                              float* scores) {
  __m256 lane[Keys][2] = {};
  const float* values = query.values;
  for (int block = 0; block < query.head_blocks; ++block) {
    __m256 dot[Keys][2];
#pragma GCC unroll 6
    for (int k = 0; k < Keys; ++k) dot[k][0] = dot[k][1] = _mm256_setzero_ps();
    for (int d = 0; d < query.dims; ++d, values += 16) {
      const __m256 q[2] = {_mm256_loadu_ps(values), _mm256_loadu_ps(values + 8)};
#pragma GCC unroll 6
      for (int k = 0; k < Keys; ++k) {
        const __m256 x = _mm256_broadcast_ss(key + k * key_stride + d);
        dot[k][0] = _mm256_fmadd_ps(q[0], x, dot[k][0]);
        dot[k][1] = _mm256_fmadd_ps(q[1], x, dot[k][1]);
      }
    }
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      const __m256 w = _mm256_loadu_ps(query.weight + 16 * block + 8 * v);
#pragma GCC unroll 6
      for (int k = 0; k < Keys; ++k)  // max(0, NaN) is NaN: the second operand
        lane[k][v] = _mm256_fmadd_ps(w, _mm256_max_ps(_mm256_setzero_ps(), dot[k][v]), lane[k][v]);
    }
  }
  for (int k = 0; k < Keys; ++k) scores[k] = folded(lane[k][0], lane[k][1]);
}

template <class Query, class Key>
void index_scores(const Query& query, const Key* key, std::ptrdiff_t key_stride, int count, float* scores) noexcept {
  for (; count > 0; count -= kRows, key += kRows * key_stride, scores += kRows)
    with_rows<kRows>(count < kRows ? count : kRows,
                     [&]<int Keys>() { index_keys<Keys>(query, key, key_stride, scores); });
}

/// order_key of eight scores: adding +0 makes -0 +0.
[[gnu::always_inline]] inline __m256i order_keys(__m256 score) {
  const __m256i u = _mm256_castps_si256(_mm256_add_ps(score, _mm256_setzero_ps()));
  const __m256i flip = _mm256_or_si256(_mm256_srai_epi32(u, 31), _mm256_set1_epi32(int(0x80000000)));
  const __m256i ordered = _mm256_castps_si256(_mm256_cmp_ps(score, score, _CMP_ORD_Q));
  return _mm256_and_si256(_mm256_xor_si256(u, flip), ordered);
}

int append_candidates(const float* scores, int count, std::uint32_t first, std::uint32_t floor,
                      std::uint64_t* out) noexcept {
  const __m256i least = _mm256_set1_epi32(int(floor));
  std::uint64_t* const begin = out;
  for (int i = 0; i < count; i += 8) {
    float rest[8] = {};
    unsigned inside = 255;
    if (count - i < 8) {
      inside = (1u << (count - i)) - 1;
      for (int l = 0; l < count - i; ++l) rest[l] = scores[i + l];
    }
    const __m256i key = order_keys(_mm256_loadu_ps(inside == 255 ? scores + i : rest));
    const __m256i at_least = _mm256_cmpeq_epi32(_mm256_max_epu32(key, least), key);
    unsigned pass = unsigned(_mm256_movemask_ps(_mm256_castsi256_ps(at_least))) & inside;
    if (pass == 0) [[likely]]
      continue;
    std::uint32_t keys[8];
    store_bits(keys, key);
    for (; pass; pass &= pass - 1) {
      const unsigned l = unsigned(__builtin_ctz(pass));
      *out++ = std::uint64_t(keys[l]) << 32 | std::uint32_t(~(first + unsigned(i) + l));
    }
  }
  return int(out - begin);
}

void widen_f16(const f16* x, std::int64_t n, float* y) noexcept {
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    _mm256_storeu_ps(y + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x + i))));
  for (; i < n; ++i) y[i] = _cvtsh_ss(x[i].bits);
}

// ---- rows of the cache to panels -----------------------------------------------------------------------------------
// Rows lie anywhere in a big cache, so the rows a tile or two ahead are asked for while these are worked on.

/// Sixteen elements (the `rest` that exist, else 0) as bf16.
[[gnu::always_inline]] inline __m256i load_sixteen(const bf16* row, int rest) {
  if (rest >= 16) return load_bits(row);
  bf16 few[16] = {};
  for (int i = 0; i < rest; ++i) few[i] = row[i];
  return load_bits(few);
}
[[gnu::always_inline]] inline __m256i load_sixteen(const std::int8_t* row, int rest) {
  std::int8_t few[16] = {};
  if (rest < 16)
    for (int i = 0; i < rest; ++i) few[i] = row[i];
  const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(rest < 16 ? few : row));
  const auto high = [](__m128i x) __attribute__((always_inline)) {
    return _mm256_srli_epi32(_mm256_castps_si256(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(x))), 16);
  };
  const __m256i packed = _mm256_packus_epi32(high(codes), high(_mm_srli_si128(codes, 8)));
  return _mm256_permute4x64_epi64(packed, 0xd8);
}

template <class T>
[[gnu::always_inline]] inline void ask_for(const T* row, int c, int dims) {
  if (c < dims) _mm_prefetch(reinterpret_cast<const char*>(row + c), _MM_HINT_T0);
}

/// x[i][j] and x[j][i] change places.
[[gnu::always_inline]] inline void transpose8(__m256i (&x)[8]) {
  __m256i y[8];
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    y[i] = _mm256_unpacklo_epi32(x[i], x[i + 1]);
    y[i + 1] = _mm256_unpackhi_epi32(x[i], x[i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    x[i] = _mm256_unpacklo_epi64(y[i], y[i + 2]);
    x[i + 1] = _mm256_unpackhi_epi64(y[i], y[i + 2]);
    x[i + 2] = _mm256_unpacklo_epi64(y[i + 1], y[i + 3]);
    x[i + 3] = _mm256_unpackhi_epi64(y[i + 1], y[i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    y[i] = _mm256_permute2x128_si256(x[i], x[i + 4], 0x20);
    y[i + 4] = _mm256_permute2x128_si256(x[i], x[i + 4], 0x31);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) x[i] = y[i];
}

template <class T>
void transpose(const T* const* rows, int count, int dims, bf16* panel) noexcept {
  const int pairs = (dims + 1) / 2;
  for (int j = 0; j < kPanel; j += 8)
    for (int c = 0; c < dims; c += 16) {
      __m256i x[8];
#pragma GCC unroll 8
      for (int r = 0; r < 8; ++r) {
        x[r] = j + r < count ? load_sixteen(rows[j + r] + c, dims - c) : _mm256_setzero_si256();
        if (c * int(sizeof(T)) % 64 == 0 && j + r + 8 < count) ask_for(rows[j + r + 8], c, dims);
      }
      transpose8(x);
      bf16* out = panel + std::ptrdiff_t(c) * kPanel + 2 * j;
      const int n = pairs - c / 2;
#pragma GCC unroll 8
      for (int p = 0; p < 8; ++p)
        if (p < n) store_bits(out + p * (2 * kPanel), x[p]);
    }
}

template <class T>
void interleave(const T* const* rows, int count, int dims, bf16* panels) noexcept {
  constexpr int kRowsAhead = 16;
  const std::ptrdiff_t pitch = std::ptrdiff_t(count + 1) / 2 * (2 * kPanel);
  for (int j = 0; j < count; j += 2, panels += 2 * kPanel) {
    const T* even = rows[j];
    const T* odd = j + 1 < count ? rows[j + 1] : nullptr;
    bf16* out = panels;
    for (int c = 0; c < dims; c += kPanel, out += pitch) {
      if (j + kRowsAhead + 1 < count)
        for (int line = 0; line < kPanel * int(sizeof(T)); line += 64) {
          ask_for(rows[j + kRowsAhead], c + line / int(sizeof(T)), dims);
          ask_for(rows[j + kRowsAhead + 1], c + line / int(sizeof(T)), dims);
        }
#pragma GCC unroll 4
      for (int s = 0; s < kPanel; s += 16) {
        const int rest = dims - c - s;
        const __m256i x = load_sixteen(even + c + s, rest);
        const __m256i y = odd ? load_sixteen(odd + c + s, rest) : _mm256_setzero_si256();
        const __m256i low = _mm256_unpacklo_epi16(x, y), high = _mm256_unpackhi_epi16(x, y);
        store_bits(out + 2 * s, _mm256_permute2x128_si256(low, high, 0x20));
        store_bits(out + 2 * s + 16, _mm256_permute2x128_si256(low, high, 0x31));
      }
    }
  }
}

/// Eight columns, the first `rest` of which exist, else 0.
[[gnu::always_inline]] inline __m256 load_floats(const f16* row, int rest) {
  f16 few[8] = {};
  if (rest < 8)
    for (int i = 0; i < rest; ++i) few[i] = row[i];
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(rest < 8 ? few : row)));
}
[[gnu::always_inline]] inline __m256 load_floats(const float* row, int rest) {
  float few[8] = {};
  if (rest < 8)
    for (int i = 0; i < rest; ++i) few[i] = row[i];
  return _mm256_loadu_ps(rest < 8 ? few : row);
}

template <class T>
void transpose_wide(const T* const* rows, int count, int dims, float* panel) noexcept {
  for (int j = 0; j < kPanel; j += 8)
    for (int c = 0; c < dims; c += 8) {
      __m256i x[8];
#pragma GCC unroll 8
      for (int r = 0; r < 8; ++r) {
        x[r] = j + r < count ? _mm256_castps_si256(load_floats(rows[j + r] + c, dims - c)) : _mm256_setzero_si256();
        if (c * int(sizeof(T)) % 64 == 0 && j + r + 8 < count) ask_for(rows[j + r + 8], c, dims);
      }
      transpose8(x);
      float* out = panel + std::ptrdiff_t(c) * kPanel + j;
#pragma GCC unroll 8
      for (int p = 0; p < 8; ++p)
        if (p < dims - c) store_bits(out + p * kPanel, x[p]);
    }
}

template <class T>
void interleave_wide(const T* const* rows, int count, int dims, float* panels) noexcept {
  constexpr int kRowsAhead = 8;
  const std::ptrdiff_t pitch = std::ptrdiff_t(count) * kPanel;
  for (int j = 0; j < count; ++j, panels += kPanel) {
    float* out = panels;
    for (int c = 0; c < dims; c += kPanel, out += pitch) {
      if (j + kRowsAhead < count)
        for (int line = 0; line < kPanel * int(sizeof(T)); line += 64)
          ask_for(rows[j + kRowsAhead], c + line / int(sizeof(T)), dims);
#pragma GCC unroll 8
      for (int s = 0; s < kPanel; s += 8) _mm256_storeu_ps(out + s, load_floats(rows[j] + c + s, dims - c - s));
    }
  }
}

/// Thirty-two codes (the `rest` that exist, else 0).
[[gnu::always_inline]] inline __m256i load_codes(const std::int8_t* row, int rest) {
  if (rest >= 32) return load_bits(row);
  std::int8_t few[32] = {};
  for (int i = 0; i < rest; ++i) few[i] = row[i];
  return load_bits(few);
}

/// Sums of four codes.
[[gnu::always_inline]] inline __m256i sum_fours(__m256i codes) {
  return _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), codes), _mm256_set1_epi16(1));
}

void transpose_codes(const std::int8_t* const* rows, int count, int dims, std::int8_t* panel,
                     std::int32_t* sums) noexcept {
  const int groups = (dims + 3) / 4;
  for (int j = 0; j < kPanel; j += 8) {
    __m256i sum = _mm256_setzero_si256();
    for (int c = 0; c < dims; c += 32) {
      __m256i x[8];
#pragma GCC unroll 8
      for (int r = 0; r < 8; ++r) {
        x[r] = j + r < count ? load_codes(rows[j + r] + c, dims - c) : _mm256_setzero_si256();
        if (c % 64 == 0 && j + r + 16 < count) ask_for(rows[j + r + 16], c, dims);
      }
      transpose8(x);
      std::int8_t* out = panel + std::ptrdiff_t(c) * kPanel + 4 * j;
      const int n = groups - c / 4;
#pragma GCC unroll 8
      for (int g = 0; g < 8; ++g) {
        sum = _mm256_add_epi32(sum, sum_fours(x[g]));
        if (g < n) store_bits(out + g * kGroup, x[g]);
      }
    }
    store_bits(sums + j, sum);
  }
}

void interleave_codes(const std::int8_t* const* rows, int count, int dims, std::int8_t* panels,
                      std::int32_t* sums) noexcept {
  for (int c = 0; c < dims; c += kPanel, sums += kPanel) {
    __m256i sum[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) sum[i] = _mm256_setzero_si256();
    for (int j = 0; j < count; j += 4, panels += kGroup) {
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        __m256i x[4];
#pragma GCC unroll 4
        for (int r = 0; r < 4; ++r) {
          const int rest = dims - c - 32 * half;
          x[r] = j + r < count ? load_codes(rows[j + r] + c + 32 * half, rest) : _mm256_setzero_si256();
          if (half == 0 && j + r + 16 < count) ask_for(rows[j + r + 16], c, dims);
        }
        const __m256i low01 = _mm256_unpacklo_epi8(x[0], x[1]), high01 = _mm256_unpackhi_epi8(x[0], x[1]);
        const __m256i low23 = _mm256_unpacklo_epi8(x[2], x[3]), high23 = _mm256_unpackhi_epi8(x[2], x[3]);
        const __m256i a = _mm256_unpacklo_epi16(low01, low23), b = _mm256_unpackhi_epi16(low01, low23);
        const __m256i d = _mm256_unpacklo_epi16(high01, high23), e = _mm256_unpackhi_epi16(high01, high23);
        const __m256i y[4] = {_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(d, e, 0x20),
                              _mm256_permute2x128_si256(a, b, 0x31), _mm256_permute2x128_si256(d, e, 0x31)};
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
          sum[4 * half + i] = _mm256_add_epi32(sum[4 * half + i], sum_fours(y[i]));
          store_bits(panels + 128 * half + 32 * i, y[i]);
        }
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) store_bits(sums + 8 * i, sum[i]);
  }
}

/// Twelve accumulators: more than latency times throughput anywhere.
template <class Step>
[[gnu::always_inline]] inline void spin(int rounds, Step step) {
  __m256i sum[12], a = _mm256_set1_epi32(1), b = a;
  asm volatile("" : "+x"(a), "+x"(b));
#pragma GCC unroll 12
  for (int i = 0; i < 12; ++i) asm volatile("" : "=x"(sum[i]) : "0"(a));  // else they would be one
  for (int r = 0; r < rounds; ++r)
#pragma GCC unroll 12
    for (int i = 0; i < 12; ++i) sum[i] = step(sum[i], a, b);
#pragma GCC unroll 12
  for (int i = 0; i < 12; ++i) asm volatile("" ::"x"(sum[i]));
}

double peak(Dot kind, int rounds) noexcept {
  if (kind == Dot::i8) {
    // A product that depends on the sum is done anew each time.
    spin(rounds, [](__m256i sum, __m256i a, __m256i b) { return _mm256_add_epi32(a, _mm256_madd_epi16(sum, b)); });
    return rounds * (12.0 * 2 * 16);
  }
  spin(rounds, [](__m256i sum, __m256i a, __m256i b) {
    return _mm256_castps_si256(
        _mm256_fmadd_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), _mm256_castsi256_ps(sum)));
  });
  return rounds * (12.0 * 2 * 8);
}

}  // namespace

void use_avx2(Kernels& k) {
  use_rows(k);
  k.peak = peak;
  k.product_bf16 = product_bf16;
  k.product_f32 = product_f32;
  k.product_wide = product_wide;
  k.product_i8 = product_i8;
  k.index_scores_i8 = index_scores<IndexQueryI8, std::int8_t>;
  k.index_scores_f32 = index_scores<IndexQueryF32, float>;
  k.append_candidates = append_candidates;
  k.widen_f16 = widen_f16;
  k.transpose_bf16 = transpose<bf16>;
  k.transpose_i8 = transpose<std::int8_t>;
  k.interleave_bf16 = interleave<bf16>;
  k.interleave_i8 = interleave<std::int8_t>;
  k.transpose_codes = transpose_codes;
  k.interleave_codes = interleave_codes;
  k.transpose_f16 = transpose_wide<f16>;
  k.transpose_f32 = transpose_wide<float>;
  k.interleave_f16 = interleave_wide<f16>;
  k.interleave_f32 = interleave_wide<float>;
}

}  // namespace dsakit
