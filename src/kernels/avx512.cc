// SPDX-License-Identifier: Apache-2.0
// AVX-512 with VNNI and BF16. Nothing here may run before kernels.cc has asked the CPU, and nothing but use_avx512
// may leave this object.
#include <immintrin.h>

#include "kernels/kernels.hpp"
#include "kernels/rows.hpp"

namespace dsakit {
namespace {

[[gnu::always_inline]] inline std::int32_t load32(const void* p) {
  std::int32_t x;
  __builtin_memcpy(&x, p, 4);
  return x;
}

/// The first n (1 to 3) bytes of four, the rest 0.
[[gnu::always_inline]] inline std::int32_t load_few(const void* p, int n) {
  std::int32_t x = 0;
  for (int i = 0; i < n; ++i) x |= static_cast<const std::uint8_t*>(p)[i] << 8 * i;
  return x;
}

[[gnu::always_inline]] inline __m512i dot_i8(__m512i sum, __m512i unsigned_bytes, __m512i signed_bytes) {
  return _mm512_dpbusd_epi32(sum, unsigned_bytes, signed_bytes);
}

// ---- products: a tile of up to 6 rows and 64 columns has 24 accumulators, 4 panel registers and 1 broadcast ------
// int8, bf16 and fp32 panels look the same: a group of 256 bytes holds for each of 64 columns the 4 bytes that meet 4
// bytes of a row of a.

constexpr int kRows = 6;
constexpr int kGroup = 256;  // bytes

// The accumulators keep one vector type throughout: gcc 12 spills those that change it.

[[gnu::always_inline]] inline __m512i dot(__m512i sum, __m512i a, __m512i b) { return dot_i8(sum, a, b); }
[[gnu::always_inline]] inline __m512 dot(__m512 sum, __m512i a, __m512i b) {
  return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
}
[[gnu::always_inline]] inline __m512 multiply_add(__m512 sum, __m512i a, __m512i b) {
  return _mm512_fmadd_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), sum);
}

/// `Lines` cache lines of what comes later are asked for at each group: whole groups of what comes soon, or the share
/// of a tile in the next block, which should lie in L2 by then and not push this one out of L1.
template <int Lines, int Rows, class Sum, class Step>
[[gnu::always_inline]] inline void sum_groups(const char* a, std::ptrdiff_t a_stride, const char* panel, int groups,
                                              const char* ahead, Sum (&sum)[Rows][4], Step step) {
  for (int g = 0; g < groups; ++g, a += 4, panel += kGroup, ahead += Lines * 64) {
    __m512i b[4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      b[j] = _mm512_loadu_si512(panel + 64 * j);
      asm("" : "+v"(b[j]));  // else gcc 12 loads it anew for each row
    }
#pragma GCC unroll 4
    for (int l = 0; l < Lines; ++l) _mm_prefetch(ahead + 64 * l, Lines == 4 ? _MM_HINT_T0 : _MM_HINT_T1);
#pragma GCC unroll 6
    for (int r = 0; r < Rows; ++r) {
      const __m512i four = _mm512_set1_epi32(load32(a + r * a_stride));
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) sum[r][j] = step(sum[r][j], four, b[j]);
    }
  }
}

/// What one tile of a block of k works on; strides in bytes.
struct Tile {
  const char* a;
  std::ptrdiff_t a_stride;
  const char* panel;
  char* c;
  std::ptrdiff_t c_stride;
  bool add = false;
  const std::int32_t* column_sums = nullptr;
  int groups = 0;
  int odd = 0;  // bf16: one more position of k
  const char* ahead = nullptr;
};

template <int Rows, int Lines, bool Wide>
[[gnu::always_inline]] inline void tile_float(const Tile& t) {
  __m512 sum[Rows][4];
#pragma GCC unroll 6
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) sum[r][j] = _mm512_setzero_ps();
  sum_groups<Lines>(
      t.a, t.a_stride, t.panel, t.groups, t.ahead, sum,
      [](__m512 sum, __m512i a, __m512i b)
          __attribute__((always_inline)) { return Wide ? multiply_add(sum, a, b) : dot(sum, a, b); });
  if (!Wide && t.odd)
#pragma GCC unroll 6
    for (int r = 0; r < Rows; ++r) {
      const __m512i two = _mm512_set1_epi32(load_few(t.a + r * t.a_stride + 4 * t.groups, 2));
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j)
        sum[r][j] = dot(sum[r][j], two, _mm512_loadu_si512(t.panel + t.groups * kGroup + 64 * j));
    }
#pragma GCC unroll 6
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      float* c = reinterpret_cast<float*>(t.c + r * t.c_stride) + 16 * j;
      _mm512_storeu_ps(c, t.add ? _mm512_add_ps(_mm512_loadu_ps(c), sum[r][j]) : sum[r][j]);
    }
}

template <int Rows, int Lines>
void tile_bf16(const Tile& t) {
  tile_float<Rows, Lines, false>(t);
}
template <int Rows, int Lines>
void tile_wide(const Tile& t) {
  tile_float<Rows, Lines, true>(t);
}

template <int Rows, int Lines>
void tile_i8(const Tile& t) {
  __m512i sum[Rows][4];
#pragma GCC unroll 6
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j)
      sum[r][j] = t.add ? _mm512_loadu_si512(t.c + r * t.c_stride + 64 * j)
                        : _mm512_sub_epi32(_mm512_setzero_si512(),
                                           _mm512_slli_epi32(_mm512_loadu_si512(t.column_sums + 16 * j), 7));
  sum_groups<Lines>(
      t.a, t.a_stride, t.panel, t.groups, t.ahead, sum,
      [](__m512i sum, __m512i a, __m512i b) __attribute__((always_inline)) { return dot(sum, a, b); });
#pragma GCC unroll 6
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) _mm512_storeu_si512(t.c + r * t.c_stride + 64 * j, sum[r][j]);
}

template <int Rows>
void tile_f32(const Tile& t) {
  __m512 sum[Rows][4];
#pragma GCC unroll 6
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) sum[r][j] = _mm512_setzero_ps();
  const char *a = t.a, *panel = t.panel;
  const auto step = [&](auto column) __attribute__((always_inline)) {
    __m512 b[4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) b[j] = column(_mm512_loadu_si512(panel + 64 * j));
#pragma GCC unroll 6
    for (int r = 0; r < Rows; ++r) {
      const __m512 one = _mm512_castsi512_ps(_mm512_set1_epi32(load32(a + r * t.a_stride)));
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) sum[r][j] = _mm512_fmadd_ps(one, b[j], sum[r][j]);
    }
    a += 4;
  };
  const auto even = [](__m512i b) __attribute__((always_inline)) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(b, 16));
  };
  const auto odd = [](__m512i b) __attribute__((always_inline)) {
    return _mm512_castsi512_ps(_mm512_and_si512(b, _mm512_set1_epi32(int(0xffff0000))));
  };
  for (int g = 0; g < t.groups; ++g, panel += kGroup) step(even), step(odd);
  if (t.odd) step(even);
#pragma GCC unroll 6
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      float* c = reinterpret_cast<float*>(t.c + r * t.c_stride) + 16 * j;
      _mm512_storeu_ps(c, t.add ? _mm512_add_ps(_mm512_loadu_ps(c), sum[r][j]) : sum[r][j]);
    }
}

using TileFunction = void (*)(const Tile&);

/// [lines 1, 2, 4][rows - 1]
constexpr TileFunction kTilesBf16[3][kRows] = {
    {tile_bf16<1, 1>, tile_bf16<2, 1>, tile_bf16<3, 1>, tile_bf16<4, 1>, tile_bf16<5, 1>, tile_bf16<6, 1>},
    {tile_bf16<1, 2>, tile_bf16<2, 2>, tile_bf16<3, 2>, tile_bf16<4, 2>, tile_bf16<5, 2>, tile_bf16<6, 2>},
    {tile_bf16<1, 4>, tile_bf16<2, 4>, tile_bf16<3, 4>, tile_bf16<4, 4>, tile_bf16<5, 4>, tile_bf16<6, 4>}};
constexpr TileFunction kTilesI8[3][kRows] = {
    {tile_i8<1, 1>, tile_i8<2, 1>, tile_i8<3, 1>, tile_i8<4, 1>, tile_i8<5, 1>, tile_i8<6, 1>},
    {tile_i8<1, 2>, tile_i8<2, 2>, tile_i8<3, 2>, tile_i8<4, 2>, tile_i8<5, 2>, tile_i8<6, 2>},
    {tile_i8<1, 4>, tile_i8<2, 4>, tile_i8<3, 4>, tile_i8<4, 4>, tile_i8<5, 4>, tile_i8<6, 4>}};
constexpr TileFunction kTilesWide[3][kRows] = {
    {tile_wide<1, 1>, tile_wide<2, 1>, tile_wide<3, 1>, tile_wide<4, 1>, tile_wide<5, 1>, tile_wide<6, 1>},
    {tile_wide<1, 2>, tile_wide<2, 2>, tile_wide<3, 2>, tile_wide<4, 2>, tile_wide<5, 2>, tile_wide<6, 2>},
    {tile_wide<1, 4>, tile_wide<2, 4>, tile_wide<3, 4>, tile_wide<4, 4>, tile_wide<5, 4>, tile_wide<6, 4>}};
constexpr TileFunction kTilesF32[1][kRows] = {
    {tile_f32<1>, tile_f32<2>, tile_f32<3>, tile_f32<4>, tile_f32<5>, tile_f32<6>}};

/// All rows meet one block of the panel before the next: 64 KiB, which stays in L2. Meanwhile the tiles ask for the
/// block after it, the first ones for equal shares, so that with many rows weights from DRAM cost nothing. A single
/// tile streams: it asks 4 KiB ahead. (Behind the last block lies the next panel; asking for what is not there does no
/// harm.)
template <int Shapes>
[[gnu::always_inline]] inline void product(Tile t, int m, int groups, int block_groups, int odd, int a_group,
                                           const TileFunction (&tiles)[Shapes][kRows]) {
  const int count = (m + kRows - 1) / kRows;
  const int shape = count == 1 ? 2 : count <= 3 ? 1 : 0;
  const char* a = t.a;
  char* const c = t.c;
  do {
    t.groups = groups < block_groups ? groups : block_groups;
    t.odd = t.groups < block_groups ? odd : 0;
    const std::ptrdiff_t bytes = std::ptrdiff_t(t.groups) * kGroup;
    t.ahead = t.panel + (count == 1 ? 4096 : bytes);
    for (int rest = m, left = count; left > 0; --left) {
      const int rows = (rest + left - 1) / left;
      tiles[Shapes == 1 ? 0 : shape][rows - 1](t);
      rest -= rows;
      t.a += rows * t.a_stride;
      t.c += rows * t.c_stride;
      t.ahead += t.groups * (64 << shape);
      if (t.ahead >= t.panel + 2 * bytes) t.ahead = t.panel;
    }
    t.a = a += std::ptrdiff_t(t.groups) * a_group;
    t.c = c;
    t.panel += bytes;
    t.add = true;
    groups -= t.groups;
    odd -= t.odd;
  } while (groups + odd > 0);
}

void product_bf16(const bf16* a, std::ptrdiff_t a_stride, int m, const bf16* panel, int k, float* c,
                  std::ptrdiff_t c_stride, bool add) noexcept {
  product({.a = reinterpret_cast<const char*>(a),
           .a_stride = a_stride * 2,
           .panel = reinterpret_cast<const char*>(panel),
           .c = reinterpret_cast<char*>(c),
           .c_stride = c_stride * 4,
           .add = add},
          m, k / 2, kSumBlock / 2, k % 2, 4, kTilesBf16);
}

void product_f32(const float* a, std::ptrdiff_t a_stride, int m, const bf16* panel, int k, float* c,
                 std::ptrdiff_t c_stride, bool add) noexcept {
  product({.a = reinterpret_cast<const char*>(a),
           .a_stride = a_stride * 4,
           .panel = reinterpret_cast<const char*>(panel),
           .c = reinterpret_cast<char*>(c),
           .c_stride = c_stride * 4,
           .add = add},
          m, k / 2, kSumBlock / 2, k % 2, 8, kTilesF32);
}

void product_wide(const float* a, std::ptrdiff_t a_stride, int m, const float* panel, int k, float* c,
                  std::ptrdiff_t c_stride, bool add) noexcept {
  product({.a = reinterpret_cast<const char*>(a),
           .a_stride = a_stride * 4,
           .panel = reinterpret_cast<const char*>(panel),
           .c = reinterpret_cast<char*>(c),
           .c_stride = c_stride * 4,
           .add = add},
          m, k, kSumBlock, 0, 4, kTilesWide);
}

void product_i8(const std::uint8_t* a, std::ptrdiff_t a_stride, int m, const std::int8_t* panel,
                const std::int32_t* column_sums, int k, std::int32_t* c, std::ptrdiff_t c_stride) noexcept {
  product({.a = reinterpret_cast<const char*>(a),
           .a_stride = a_stride,
           .panel = reinterpret_cast<const char*>(panel),
           .c = reinterpret_cast<char*>(c),
           .c_stride = c_stride * 4,
           .column_sums = column_sums},
          m, k / 4, kSumBlock / 2, 0, 4, kTilesI8);
}

// ---- the indexer: tiles of 6 keys and up to 4 blocks of 16 heads, or 12 keys and up to 2 -----------------------

/// Adds the dots of `Keys` keys with `Blocks` blocks of heads to the lanes. Here the keys are biased on the way and
/// the query loses its bias (both beside the dots, at no cost), so what the bias adds belongs to a head, not to a key:
/// `start` takes it off.
template <int Keys, int Blocks>
[[gnu::noinline]] void index_tile(const std::uint8_t* codes, const float* weight, const __m512i* start, int dims,
                                  const std::int8_t* key, std::ptrdiff_t key_stride, __m512* lane) {
  const std::ptrdiff_t pitch = (dims + 3) / 4 * 64;
  const __m512i flip = _mm512_set1_epi8(char(128));
  __m512i dot[Keys][Blocks];
#pragma GCC unroll 12
  for (int k = 0; k < Keys; ++k)
#pragma GCC unroll 4
    for (int b = 0; b < Blocks; ++b) dot[k][b] = start[b];
  const auto step = [&](auto four) __attribute__((always_inline)) {
    __m512i q[Blocks];
#pragma GCC unroll 4
    for (int b = 0; b < Blocks; ++b) q[b] = _mm512_xor_si512(_mm512_load_si512(codes + b * pitch), flip);
#pragma GCC unroll 12
    for (int k = 0; k < Keys; ++k) {
      const __m512i x = _mm512_xor_si512(_mm512_set1_epi32(four(key + k * key_stride)), flip);
#pragma GCC unroll 4
      for (int b = 0; b < Blocks; ++b) dot[k][b] = dot_i8(dot[k][b], x, q[b]);
    }
    codes += 64, key += 4;
  };
  for (int d = 0; d < dims / 4; ++d) step(load32);
#pragma GCC unroll 12
  for (int k = 0; k < Keys; ++k)
#pragma GCC unroll 4
    for (int b = 0; b < Blocks; ++b) asm("" : "+v"(dot[k][b]));  // else gcc 12 spills all along
  if (dims % 4) [[unlikely]]
    step([dims](const void* p) { return load_few(p, dims % 4); });
#pragma GCC unroll 12
  for (int k = 0; k < Keys; ++k) {
    __m512 sum = lane[k];
#pragma GCC unroll 4
    for (int b = 0; b < Blocks; ++b) {
      const __m512i relu = _mm512_max_epi32(dot[k][b], _mm512_setzero_si512());
      sum = _mm512_fmadd_ps(_mm512_loadu_ps(weight + 16 * b), _mm512_cvtepi32_ps(relu), sum);
    }
    lane[k] = sum;
  }
}

/// -128 times the sum of each head's codes. Missing dims meet a key of 0: whatever they hold cancels.
template <int Blocks>
[[gnu::always_inline]] inline void take_starts(const std::uint8_t* codes, std::ptrdiff_t pitch,
                                               __m512i (&start)[Blocks]) {
  const __m512i flip = _mm512_set1_epi8(char(128));
#pragma GCC unroll 4
  for (int b = 0; b < Blocks; ++b) start[b] = _mm512_setzero_si512();
  for (const std::uint8_t* end = codes + pitch; codes < end; codes += 64)
#pragma GCC unroll 4
    for (int b = 0; b < Blocks; ++b)
      start[b] = dot_i8(start[b], flip, _mm512_xor_si512(_mm512_load_si512(codes + b * pitch), flip));
#pragma GCC unroll 4
  for (int b = 0; b < Blocks; ++b) start[b] = _mm512_sub_epi32(_mm512_setzero_si512(), start[b]);
}

template <int Keys, int Blocks>
[[gnu::noinline]] void index_tile(const float* values, const float* weight, const __m512i*, int dims, const float* key,
                                  std::ptrdiff_t key_stride, __m512* lane) {
  __m512 dot[Keys][Blocks];
#pragma GCC unroll 12
  for (int k = 0; k < Keys; ++k)
#pragma GCC unroll 4
    for (int b = 0; b < Blocks; ++b) dot[k][b] = _mm512_setzero_ps();
  for (int d = 0; d < dims; ++d, values += 16, ++key) {
    __m512 q[Blocks];
#pragma GCC unroll 4
    for (int b = 0; b < Blocks; ++b) q[b] = _mm512_loadu_ps(values + b * (16 * std::ptrdiff_t(dims)));
#pragma GCC unroll 12
    for (int k = 0; k < Keys; ++k) {
      const __m512 x = _mm512_set1_ps(key[k * key_stride]);
#pragma GCC unroll 4
      for (int b = 0; b < Blocks; ++b) dot[k][b] = _mm512_fmadd_ps(q[b], x, dot[k][b]);
    }
  }
#pragma GCC unroll 12
  for (int k = 0; k < Keys; ++k) {
    __m512 sum = lane[k];
#pragma GCC unroll 4
    for (int b = 0; b < Blocks; ++b)  // max(0, NaN) is NaN: the second operand
      sum = _mm512_fmadd_ps(_mm512_loadu_ps(weight + 16 * b), _mm512_max_ps(_mm512_setzero_ps(), dot[k][b]), sum);
    lane[k] = sum;
  }
}
/// Floats have no bias.
template <int Blocks>
[[gnu::always_inline]] inline void take_starts(const float*, std::ptrdiff_t, __m512i (&)[Blocks]) {}

/// `n` keys against `Blocks` blocks of heads, `pitch` apart.
template <int Blocks, class Code, class Key>
void index_group(const Code* codes, std::ptrdiff_t pitch, const float* weight, int dims, const Key* key,
                 std::ptrdiff_t key_stride, int n, __m512* lane) {
  __m512i start[Blocks];
  take_starts(codes, pitch, start);
  const auto tiles = [&]<int Keys>() __attribute__((always_inline)) {
    for (; n >= Keys; n -= Keys, key += Keys * key_stride, lane += Keys)
      index_tile<Keys, Blocks>(codes, weight, start, dims, key, key_stride, lane);
  };
  if constexpr (Blocks <= 2) tiles.template operator()<12>();
  tiles.template operator()<6>();
  tiles.template operator()<3>();
  tiles.template operator()<1>();
}

/// Stores the folded lanes of up to four keys: halves 8, 4, 2, 1.
[[gnu::always_inline]] inline void store_scores(const __m512* lane, int n, float* scores) {
  const auto fold8 = [](__m512 x, __m512 y) __attribute__((always_inline)) {  // [x folded | y folded]
    return _mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x44), _mm512_shuffle_f32x4(x, y, 0xee));
  };
  const __m512 ab = fold8(lane[0], lane[1]), cd = fold8(lane[2], lane[3]);
  const __m512 four = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
  const __m512 two = _mm512_add_ps(four, _mm512_permute_ps(four, 0x4e));
  const __m512 one = _mm512_add_ps(two, _mm512_permute_ps(two, 0xb1));
  const __m512i first = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12, 8, 4, 0);
  // Masked as a zmm: gcc 12 turns a masked xmm store of this into vextractf32x4, which faults past the mask.
  _mm512_mask_storeu_ps(scores, __mmask16((1u << (n < 4 ? n : 4)) - 1), _mm512_permutexvar_ps(first, one));
}

std::ptrdiff_t block_pitch(const IndexQueryI8& q) { return (q.dims + 3) / 4 * 64; }
std::ptrdiff_t block_pitch(const IndexQueryF32& q) { return std::ptrdiff_t(q.dims) * 16; }
const std::uint8_t* operand(const IndexQueryI8& q) { return q.values; }
const float* operand(const IndexQueryF32& q) { return q.values; }

template <class Query, class Key>
void index_scores(const Query& query, const Key* key, std::ptrdiff_t key_stride, int count, float* scores) noexcept {
  constexpr int kKeys = 132;  // whose lanes are carried from group to group of heads
  const std::ptrdiff_t pitch = block_pitch(query);
  for (; count > 0; count -= kKeys, key += kKeys * key_stride, scores += kKeys) {
    const int n = count < kKeys ? count : kKeys;
    __m512 lane[kKeys];
    for (int k = 0; k < (n + 3) / 4 * 4; ++k) lane[k] = _mm512_setzero_ps();
    const auto* q = operand(query);
    const float* weight = query.weight;
    int blocks = query.head_blocks;
    for (; blocks >= 4; blocks -= 4, q += 4 * pitch, weight += 64)
      index_group<4>(q, pitch, weight, query.dims, key, key_stride, n, lane);
    if (blocks == 3) index_group<3>(q, pitch, weight, query.dims, key, key_stride, n, lane);
    if (blocks == 2) index_group<2>(q, pitch, weight, query.dims, key, key_stride, n, lane);
    if (blocks == 1) index_group<1>(q, pitch, weight, query.dims, key, key_stride, n, lane);
    for (int k = 0; k < n; k += 4) store_scores(lane + k, n - k, scores + k);
  }
}

/// order_key of sixteen scores: adding +0 makes -0 +0.
[[gnu::always_inline]] inline __m512i order_keys(__m512 score) {
  const __m512i u = _mm512_castps_si512(_mm512_add_ps(score, _mm512_setzero_ps()));
  const __m512i flip = _mm512_or_si512(_mm512_srai_epi32(u, 31), _mm512_set1_epi32(int(0x80000000)));
  return _mm512_maskz_xor_epi32(_mm512_cmp_ps_mask(score, score, _CMP_ORD_Q), u, flip);
}

int append_candidates(const float* scores, int count, std::uint32_t first, std::uint32_t floor,
                      std::uint64_t* out) noexcept {
  const __m512i least = _mm512_set1_epi32(int(floor));
  const __m512i iota = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  std::uint64_t* const begin = out;
  for (int i = 0; i < count; i += 16) {
    const __mmask16 inside = count - i >= 16 ? 0xffff : (1u << (count - i)) - 1;
    const __m512i key = order_keys(_mm512_maskz_loadu_ps(inside, scores + i));
    const unsigned pass = _mm512_mask_cmpge_epu32_mask(inside, key, least);
    if (pass == 0) [[likely]]
      continue;
    const __m512i position = _mm512_add_epi32(_mm512_set1_epi32(int(first + unsigned(i))), iota);
    const __m512i flipped = _mm512_andnot_si512(position, _mm512_set1_epi32(-1));
    const auto append = [&](__m256i high, __m256i low, unsigned mask) __attribute__((always_inline)) {
      const __m512i all =
          _mm512_or_si512(_mm512_slli_epi64(_mm512_cvtepu32_epi64(high), 32), _mm512_cvtepu32_epi64(low));
      const int n = __builtin_popcount(mask);
      // Compressed in a register: storing compressed is microcode on Zen 4.
      _mm512_mask_storeu_epi64(out, __mmask8((1u << n) - 1), _mm512_maskz_compress_epi64(__mmask8(mask), all));
      out += n;
    };
    append(_mm512_castsi512_si256(key), _mm512_castsi512_si256(flipped), pass & 255);
    append(_mm512_extracti64x4_epi64(key, 1), _mm512_extracti64x4_epi64(flipped, 1), pass >> 8);
  }
  return int(out - begin);
}

// ---- rows of the cache to panels: transposed as 32-bit pairs, sixteen rows at a time --------------------------------
// Rows lie anywhere in a big cache, so the rows sixteen ahead are asked for while these are worked on.

/// 32 elements from c on (the `rest` that exist, else 0) as sixteen pairs of bf16.
[[gnu::always_inline]] inline __m512i load_pairs(const bf16* row, int rest) {
  if (rest >= 32) return _mm512_loadu_si512(row);
  return _mm512_maskz_loadu_epi16((1u << rest) - 1, row);
}

[[gnu::always_inline]] inline __m512 float_of(__m128i codes) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes)); }

/// Sixteen codes, the first `rest`.
[[gnu::always_inline]] inline __m128i load_codes(const std::int8_t* row, int rest) {
  if (rest >= 16) return _mm_loadu_si128(reinterpret_cast<const __m128i*>(row));
  return _mm_maskz_loadu_epi8(rest <= 0 ? 0 : (1u << rest) - 1, row);
}

[[gnu::always_inline]] inline __m512i load_pairs(const std::int8_t* row, int rest) {
  return (__m512i)_mm512_cvtne2ps_pbh(float_of(load_codes(row + 16, rest - 16)), float_of(load_codes(row, rest)));
}

template <class T>
[[gnu::always_inline]] inline void ask_for(const T* row, int c, int dims) {
  if (c < dims) _mm_prefetch(reinterpret_cast<const char*>(row + c), _MM_HINT_T0);
}

/// x[i][j] and x[j][i] change places.
[[gnu::always_inline]] inline void transpose16(__m512i (&x)[16]) {
  __m512i y[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    y[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
    y[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    x[i] = _mm512_unpacklo_epi64(y[i], y[i + 2]);
    x[i + 1] = _mm512_unpackhi_epi64(y[i], y[i + 2]);
    x[i + 2] = _mm512_unpacklo_epi64(y[i + 1], y[i + 3]);
    x[i + 3] = _mm512_unpackhi_epi64(y[i + 1], y[i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    y[i] = _mm512_shuffle_i32x4(x[i], x[i + 4], 0x88);
    y[i + 4] = _mm512_shuffle_i32x4(x[i], x[i + 4], 0xdd);
    y[i + 8] = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0x88);
    y[i + 12] = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0xdd);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    x[i] = _mm512_shuffle_i32x4(y[i], y[i + 8], 0x88);
    x[i + 8] = _mm512_shuffle_i32x4(y[i], y[i + 8], 0xdd);
    x[i + 4] = _mm512_shuffle_i32x4(y[i + 4], y[i + 12], 0x88);
    x[i + 12] = _mm512_shuffle_i32x4(y[i + 4], y[i + 12], 0xdd);
  }
}

template <class T>
void transpose(const T* const* rows, int count, int dims, bf16* panel) noexcept {
  const int pairs = (dims + 1) / 2;
  for (int j = 0; j < kPanel; j += 16)
    for (int c = 0; c < dims; c += 32) {
      __m512i x[16];
#pragma GCC unroll 16
      for (int r = 0; r < 16; ++r) {
        x[r] = j + r < count ? load_pairs(rows[j + r] + c, dims - c) : _mm512_setzero_si512();
        if (j + r + 16 < count) ask_for(rows[j + r + 16], c, dims);
      }
      transpose16(x);
      bf16* out = panel + std::ptrdiff_t(c) * kPanel + 2 * j;
      const int n = pairs - c / 2;
#pragma GCC unroll 16
      for (int p = 0; p < 16; ++p)
        if (p < n) _mm512_storeu_si512(out + p * (2 * kPanel), x[p]);
    }
}

/// Sixteen columns of two rows, interleaved.
[[gnu::always_inline]] inline __m512i load_sixteen(const bf16* row, int rest) {
  if (rest >= 16) return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(row)));
  return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(rest <= 0 ? 0 : (1u << rest) - 1, row));
}
[[gnu::always_inline]] inline __m512i load_sixteen(const std::int8_t* row, int rest) {
  return _mm512_srli_epi32(_mm512_castps_si512(float_of(load_codes(row, rest))), 16);
}

template <class T>
void interleave(const T* const* rows, int count, int dims, bf16* panels) noexcept {
  constexpr int kAhead = 16;
  const std::ptrdiff_t pitch = std::ptrdiff_t(count + 1) / 2 * (2 * kPanel);
  for (int j = 0; j < count; j += 2, panels += 2 * kPanel) {
    const T* even = rows[j];
    const T* odd = j + 1 < count ? rows[j + 1] : nullptr;
    bf16* out = panels;
    for (int c = 0; c < dims; c += kPanel, out += pitch) {
      if (j + kAhead + 1 < count)
        for (int line = 0; line < kPanel * int(sizeof(T)); line += 64) {
          ask_for(rows[j + kAhead], c + line / int(sizeof(T)), dims);
          ask_for(rows[j + kAhead + 1], c + line / int(sizeof(T)), dims);
        }
#pragma GCC unroll 4
      for (int s = 0; s < kPanel; s += 16) {
        const int rest = dims - c - s;
        const __m512i low = load_sixteen(even + c + s, rest);
        const __m512i high = odd ? _mm512_slli_epi32(load_sixteen(odd + c + s, rest), 16) : _mm512_setzero_si512();
        _mm512_storeu_si512(out + 2 * s, _mm512_or_si512(low, high));
      }
    }
  }
}

/// Sixteen columns, the first `rest` of which exist, else 0.
[[gnu::always_inline]] inline __m512 load_floats(const f16* row, int rest) {
  if (rest >= 16) return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(row)));
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(rest <= 0 ? 0 : (1u << rest) - 1, row));
}
[[gnu::always_inline]] inline __m512 load_floats(const float* row, int rest) {
  if (rest >= 16) return _mm512_loadu_ps(row);
  return _mm512_maskz_loadu_ps(__mmask16(rest <= 0 ? 0 : (1u << rest) - 1), row);
}

template <class T>
void transpose_wide(const T* const* rows, int count, int dims, float* panel) noexcept {
  for (int j = 0; j < kPanel; j += 16)
    for (int c = 0; c < dims; c += 16) {
      __m512i x[16];
#pragma GCC unroll 16
      for (int r = 0; r < 16; ++r) {
        x[r] = j + r < count ? _mm512_castps_si512(load_floats(rows[j + r] + c, dims - c)) : _mm512_setzero_si512();
        if (j + r + 16 < count) ask_for(rows[j + r + 16], c, dims);
      }
      transpose16(x);
      float* out = panel + std::ptrdiff_t(c) * kPanel + j;
#pragma GCC unroll 16
      for (int p = 0; p < 16; ++p)
        if (p < dims - c) _mm512_storeu_si512(out + p * kPanel, x[p]);
    }
}

template <class T>
void interleave_wide(const T* const* rows, int count, int dims, float* panels) noexcept {
  constexpr int kAhead = 8;
  const std::ptrdiff_t pitch = std::ptrdiff_t(count) * kPanel;
  for (int j = 0; j < count; ++j, panels += kPanel) {
    float* out = panels;
    for (int c = 0; c < dims; c += kPanel, out += pitch) {
      if (j + kAhead < count)
        for (int line = 0; line < kPanel * int(sizeof(T)); line += 64)
          ask_for(rows[j + kAhead], c + line / int(sizeof(T)), dims);
#pragma GCC unroll 4
      for (int s = 0; s < kPanel; s += 16) _mm512_storeu_ps(out + s, load_floats(rows[j] + c + s, dims - c - s));
    }
  }
}

/// The first n, all of them from 64 on.
[[gnu::always_inline]] inline __mmask64 some_bytes(int n) { return n >= 64 ? ~__mmask64(0) : (__mmask64(1) << n) - 1; }

/// Sixty-four codes, the first `rest`.
[[gnu::always_inline]] inline __m512i load_line(const std::int8_t* row, int rest) {
  if (rest >= 64) return _mm512_loadu_si512(row);
  return _mm512_maskz_loadu_epi8(some_bytes(rest), row);
}

void transpose_codes(const std::int8_t* const* rows, int count, int dims, std::int8_t* panel,
                     std::int32_t* sums) noexcept {
  const __m512i ones = _mm512_set1_epi8(1);
  const int groups = (dims + 3) / 4;
  for (int j = 0; j < kPanel; j += 16) {
    __m512i sum = _mm512_setzero_si512();
    for (int c = 0; c < dims; c += 64) {
      __m512i x[16];
#pragma GCC unroll 16
      for (int r = 0; r < 16; ++r) {
        x[r] = j + r < count ? load_line(rows[j + r] + c, dims - c) : _mm512_setzero_si512();
        if (j + r + 16 < count) ask_for(rows[j + r + 16], c, dims);
      }
      transpose16(x);
      std::int8_t* out = panel + std::ptrdiff_t(c) * kPanel + 4 * j;
      const int n = groups - c / 4;
#pragma GCC unroll 16
      for (int p = 0; p < 16; ++p) {
        sum = dot_i8(sum, ones, x[p]);
        if (p < n) _mm512_storeu_si512(out + p * (4 * kPanel), x[p]);
      }
    }
    _mm512_storeu_si512(sums + j, sum);
  }
}

/// Four rows of 64 codes, one code of each in every 32 bits; the 128-bit block b of x[i] gets columns 16 b + 4 i and
/// the three after it.
[[gnu::always_inline]] inline void interleave_blocks(__m512i (&x)[4]) {
  const __m512i low01 = _mm512_unpacklo_epi8(x[0], x[1]), high01 = _mm512_unpackhi_epi8(x[0], x[1]);
  const __m512i low23 = _mm512_unpacklo_epi8(x[2], x[3]), high23 = _mm512_unpackhi_epi8(x[2], x[3]);
  x[0] = _mm512_unpacklo_epi16(low01, low23), x[1] = _mm512_unpackhi_epi16(low01, low23);
  x[2] = _mm512_unpacklo_epi16(high01, high23), x[3] = _mm512_unpackhi_epi16(high01, high23);
}

/// The same in order: x[i] gets columns 16 i to 16 i + 15.
[[gnu::always_inline]] inline void interleave_lines(__m512i (&x)[4]) {
  const __m512i order = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r) x[r] = _mm512_permutexvar_epi32(order, x[r]);
  interleave_blocks(x);
}

void interleave_codes(const std::int8_t* const* rows, int count, int dims, std::int8_t* panels,
                      std::int32_t* sums) noexcept {
  const __m512i ones = _mm512_set1_epi8(1);
  for (int c = 0; c < dims; c += kPanel, sums += kPanel) {
    __m512i sum[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) sum[i] = _mm512_setzero_si512();
    for (int j = 0; j < count; j += 4, panels += 4 * kPanel) {
      __m512i x[4];
#pragma GCC unroll 4
      for (int r = 0; r < 4; ++r) {
        x[r] = j + r < count ? load_line(rows[j + r] + c, dims - c) : _mm512_setzero_si512();
        if (j + r + 16 < count) ask_for(rows[j + r + 16], c, dims);
      }
      interleave_lines(x);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        sum[i] = dot_i8(sum[i], ones, x[i]);
        _mm512_storeu_si512(panels + 64 * i, x[i]);
      }
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) _mm512_storeu_si512(sums + 16 * i, sum[i]);
  }
}

// ---- few rows ------------------------------------------------------------------------------------------------------
// Keys and values are used where they lie: nothing is stored on the way, and the shuffles run beside the dots.

[[gnu::always_inline]] inline __m512i biased(__m512i x) { return _mm512_xor_si512(x, _mm512_set1_epi8(char(128))); }
[[gnu::always_inline]] inline __m512i broadcast(const void* four) { return _mm512_set1_epi32(load32(four)); }

/// How four bytes of every lane meet kWords words of a row; twelve rows take kTiles tiles. Codes in memory get the
/// bias, so that the few can be broadcast as they are read.
struct Codes {
  using Sum = __m512i;
  static constexpr int kWords = 1, kTiles = 1;
  [[gnu::always_inline]] static __m512i loaded(__m512i x) { return biased(x); }
  [[gnu::always_inline]] static Sum first(const std::int32_t* x) { return broadcast(x); }
  [[gnu::always_inline]] static __m512i word(__m512i x, int) { return x; }
  [[gnu::always_inline]] static Sum dot(Sum sum, __m512i x, __m512i few) { return dot_i8(sum, x, few); }
};
struct Floats {
  using Sum = __m512;
  [[gnu::always_inline]] static __m512i loaded(__m512i x) { return x; }
  [[gnu::always_inline]] static Sum first(const std::int32_t*) { return _mm512_setzero_ps(); }
};
struct Pairs : Floats {
  static constexpr int kWords = 1, kTiles = 1;
  [[gnu::always_inline]] static __m512i word(__m512i x, int) { return x; }
  [[gnu::always_inline]] static Sum dot(Sum sum, __m512i x, __m512i few) {
    return _mm512_dpbf16_ps(sum, (__m512bh)few, (__m512bh)x);
  }
};
/// T as fp32.
template <class T>
struct Wide : Floats {
  static constexpr int kWords = 4 / sizeof(T), kTiles = 2;
  [[gnu::always_inline]] static __m512i word(__m512i x, int i) {
    if constexpr (std::is_same_v<T, float>) return x;
    else if constexpr (std::is_same_v<T, bf16>)
      return i == 0 ? _mm512_slli_epi32(x, 16) : _mm512_and_si512(x, _mm512_set1_epi32(int(0xffff0000)));
    else return _mm512_castps_si512(_mm512_cvtph_ps(_mm512_cvtepi32_epi16(i == 0 ? x : _mm512_srli_epi32(x, 16))));
  }
  [[gnu::always_inline]] static Sum dot(Sum sum, __m512i x, __m512i few) { return multiply_add(sum, few, x); }
};

/// f(rows), with a constant.
template <int Rows, class F>
[[gnu::always_inline]] inline void with_rows(int rows, F f) {
  if constexpr (Rows > 0) {
    if (rows == Rows) return f.template operator()<Rows>();
    with_rows<Rows - 1>(rows, f);
  }
}

/// 32 bytes of keys j and j + 8.
[[gnu::always_inline]] inline __m512i load_two(const std::byte* a, const std::byte* b, int rest) {
  if (rest >= 32)
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(a))),
                              _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b)), 1);
  const __mmask32 some = (1u << rest) - 1;
  return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_maskz_loadu_epi8(some, a)), _mm256_maskz_loadu_epi8(some, b),
                            1);
}

/// 32 bytes of sixteen keys. few_dots has those of the next block while it multiplies this one: the shuffles of one and
/// the dots of the other use different units, and no reordering of the machine reaches that far.
template <class Kind>
struct Block {
  __m512i x[8];

  [[gnu::always_inline]] void load(const std::byte* const* row, int d, int rest, int first) {
#pragma GCC unroll 2
    for (int k = first; k < first + 2; ++k) x[k] = Kind::loaded(load_two(row[k] + d, row[k + 8] + d, rest));
  }
  [[gnu::always_inline]] void unpack_fours() {
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
      const __m512i low = _mm512_unpacklo_epi32(x[i], x[i + 1]);
      x[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
      x[i] = low;
    }
  }
  [[gnu::always_inline]] void unpack_eights() {
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {
      const __m512i a = _mm512_unpacklo_epi64(x[i], x[i + 2]), b = _mm512_unpackhi_epi64(x[i], x[i + 2]);
      const __m512i c = _mm512_unpacklo_epi64(x[i + 1], x[i + 3]), d = _mm512_unpackhi_epi64(x[i + 1], x[i + 3]);
      x[i] = a, x[i + 1] = b, x[i + 2] = c, x[i + 3] = d;
    }
  }
  /// 128-bit blocks of x[i]: keys 0-3 and 8-11 would be next to 4-7 and 12-15 of x[i + 4].
  [[gnu::always_inline]] void permute(int i) {
    const __m512i low = _mm512_set_epi64(13, 12, 5, 4, 9, 8, 1, 0), high = _mm512_set_epi64(15, 14, 7, 6, 11, 10, 3, 2);
    const __m512i a = _mm512_permutex2var_epi64(x[i], low, x[i + 4]);
    x[i + 4] = _mm512_permutex2var_epi64(x[i], high, x[i + 4]);
    x[i] = a;
  }
  /// One eighth of the way; after all of them x[g] has four bytes of all sixteen keys, group g.
  template <int Step>
  [[gnu::always_inline]] void step(const std::byte* const* row, int d, int rest) {
    if constexpr (Step < 4) load(row, d, rest, 2 * Step);
    if constexpr (Step == 4) unpack_fours();
    if constexpr (Step == 5) unpack_eights();
    if constexpr (Step == 6) permute(0), permute(1);
    if constexpr (Step == 7) permute(2), permute(3);
  }
};

/// Digits of a row to its float, as join_codes does.
template <int Digits>
[[gnu::always_inline]] inline __m512 join(const __m512i* digit, float unit) {
  __m512 x = _mm512_cvtepi32_ps(digit[0]);
#pragma GCC unroll 2
  for (int i = 1; i < Digits; ++i) x = _mm512_fmadd_ps(x, _mm512_set1_ps(256), _mm512_cvtepi32_ps(digit[i]));
  return _mm512_mul_ps(x, _mm512_set1_ps(unit));
}

struct FewDots {
  const std::int32_t* few;
  int pitch;
  const std::byte* const* keys;
  int count, bytes;
  const float* unit;  // codes
  float* y;
  std::ptrdiff_t y_pitch;
  const std::byte* const* later;
  int later_bytes;
};

/// Of few rows the sums of two blocks of keys take turns: a dot has to wait for the one before it.
template <class Kind, int Digits, int Rows>
[[gnu::noinline]] void few_dots(const FewDots& t) {
  constexpr int kRows = Rows * Digits, kHalves = kRows <= 6 ? 2 : 1, kKeys = 16 * kHalves;
  const auto each_step = [](auto f) __attribute__((always_inline)) {
    f.template operator()<0>(), f.template operator()<1>(), f.template operator()<2>(), f.template operator()<3>();
    f.template operator()<4>(), f.template operator()<5>(), f.template operator()<6>(), f.template operator()<7>();
  };
  const int bytes = t.bytes, count = t.count, pitch = t.pitch;
  Block<Kind> next;
  each_step([&]<int Step>() __attribute__((always_inline)) { next.template step<Step>(t.keys, 0, bytes); });
  for (int j = 0; j < count; j += kKeys) {
    typename Kind::Sum sum[kHalves][kRows];
#pragma GCC unroll 2
    for (int h = 0; h < kHalves; ++h)
#pragma GCC unroll 12
      for (int r = 0; r < kRows; ++r) sum[h][r] = Kind::first(t.few + r);
    const std::byte* const* row[kHalves + 1];  // of these blocks and the next
    row[0] = t.keys + j;
#pragma GCC unroll 2
    for (int h = 1; h <= kHalves; ++h) row[h] = j + 16 * h < count ? row[0] + 16 * h : row[0];
    for (int d = 0; d < bytes; d += 32)
#pragma GCC unroll 2
      for (int h = 0; h < kHalves; ++h) {
        const Block<Kind> now = next;
        const bool down = h + 1 == kHalves, last = d + 32 >= bytes;
        const std::byte* const* next_row = down && !last ? row[0] : row[h + 1];
        const int next_d = !down ? d : last ? 0 : d + 32;
        // A line of the next keys in turn with one of the later rows, which have time to come.
        const int at = j + 16 * h;
        if (d % 64 == 0) {
          const std::byte* const* soon = at + kKeys < count ? t.keys + at + kKeys : row[0];
#pragma GCC unroll 16
          for (int k = 0; k < 16; ++k) _mm_prefetch(reinterpret_cast<const char*>(soon[k] + d), _MM_HINT_T0);
        } else if (d - 32 < t.later_bytes && at < count) {
#pragma GCC unroll 16
          for (int k = 0; k < 16; ++k)
            _mm_prefetch(reinterpret_cast<const char*>(t.later[at + k] + d - 32), _MM_HINT_T1);
        }
        const std::int32_t* q = t.few + std::ptrdiff_t(1 + d / 4 * Kind::kWords) * pitch;
        each_step([&]<int Step>() __attribute__((always_inline)) {
#pragma GCC unroll 2
          for (int w = 0; w < Kind::kWords; ++w, q += pitch) {
            const __m512i x = Kind::word(now.x[Step], w);
#pragma GCC unroll 12
            for (int r = 0; r < kRows; ++r) {
              sum[h][r] = Kind::dot(sum[h][r], x, broadcast(q + r));
              asm("" : "+v"(sum[h][r]));
            }
          }
          next.template step<Step>(next_row, next_d, bytes - next_d);
        });
      }
#pragma GCC unroll 2
    for (int h = 0; h < kHalves; ++h)
      if (j + 16 * h < count)
#pragma GCC unroll 12
        for (int r = 0; r < Rows; ++r) {
          float* const y = t.y + r * t.y_pitch + j + 16 * h;
          if constexpr (std::is_same_v<Kind, Codes>) _mm512_storeu_ps(y, join<Digits>(sum[h] + r * Digits, t.unit[r]));
          else _mm512_storeu_ps(y, sum[h][r]);
        }
  }
}

template <class Kind, int Digits>
void few_dots(FewDots t, int rows) {
  constexpr int kMost = 12 / Digits / Kind::kTiles;
  for (int r = 0, n; r < rows; r += n, t.few += n * Digits, t.unit += t.unit ? n : 0, t.y += n * t.y_pitch) {
    n = rows - r < kMost ? rows - r : kMost;
    with_rows<kMost>(n, [&]<int Rows>() { few_dots<Kind, Digits, Rows>(t); });
  }
}

void few_dots_i8(const std::int32_t* query, int rows, int digits, const std::byte* const* keys, int count, int dims,
                 const float* unit, float* y, std::ptrdiff_t pitch, const std::byte* const* later,
                 int columns) noexcept {
  const FewDots t{query, rows * digits, keys, count, dims, unit, y, pitch, later, columns};
  if (digits == 1) few_dots<Codes, 1>(t, rows);
  else few_dots<Codes, 3>(t, rows);
}

void few_dots_bf16(const std::int32_t* query, int rows, const std::byte* const* keys, int count, int dims, float* y,
                   std::ptrdiff_t pitch, const std::byte* const* later, int columns) noexcept {
  few_dots<Pairs, 1>({query, rows, keys, count, 2 * dims, nullptr, y, pitch, later, 2 * columns}, rows);
}

constexpr int kMostSummed = 256;

/// `Lines` lines of the later rows are asked for with every four values: evenly, because more at a time than a core can
/// wait for would stall it.
template <int Rows, bool Whole, int Lines>
[[gnu::noinline]] void few_sums(const std::uint8_t* codes, std::ptrdiff_t pitch, const std::byte* const* values,
                                int count, std::ptrdiff_t column, int columns, std::int32_t* sums,
                                const std::byte* const* later) {
  alignas(64) std::int8_t weights[Rows][kMostSummed];  // signed
  __m512i sum[Rows][4], start[Rows];
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r) {
    __m512i all = _mm512_setzero_si512();
    for (int j = 0; j < count; j += 64) {
      const std::uint8_t* from = codes + r * pitch + j;
      const __m512i x = biased(_mm512_mask_loadu_epi8(_mm512_set1_epi8(char(128)), some_bytes(count - j), from));
      all = dot_i8(all, _mm512_set1_epi8(1), x);
      _mm512_store_si512(weights[r] + j, x);
    }
    start[r] = _mm512_set1_epi32(-128 * _mm512_reduce_add_epi32(all));
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) sum[r][i] = _mm512_setzero_si512();
  }
  const __mmask64 some = some_bytes(columns);
  int j = 0;
  do {
    __m512i x[4];
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) {
      const std::byte* line = values[j + k] + column;
      x[k] = biased(Whole ? _mm512_loadu_si512(line) : _mm512_maskz_loadu_epi8(some, line));
      if (k < Lines) _mm_prefetch(reinterpret_cast<const char*>(later[j / 4 * Lines + k] + column), _MM_HINT_T1);
    }
    interleave_blocks(x);
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) {
      const __m512i w = broadcast(weights[r] + j);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        sum[r][i] = dot_i8(sum[r][i], x[i], w);
        asm("" : "+v"(sum[r][i]));  // else gcc 12 moves it from register to register, and spills
      }
    }
    j += 4;
  } while (j < count);
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __m512i x = _mm512_add_epi32(sum[r][i], start[r]);
      __m128i* out = reinterpret_cast<__m128i*>(sums + r * kPanel + 4 * i);
      _mm_storeu_si128(out, _mm512_castsi512_si128(x));
      _mm_storeu_si128(out + 4, _mm512_extracti32x4_epi32(x, 1));
      _mm_storeu_si128(out + 8, _mm512_extracti32x4_epi32(x, 2));
      _mm_storeu_si128(out + 12, _mm512_extracti32x4_epi32(x, 3));
    }
}

/// Tiles of four rows of weights. Two or more ask for half of the later rows each.
template <class Tile>
[[gnu::always_inline]] inline void few_sum_tiles(int rows, int count, int columns, const std::byte* const* later,
                                                 Tile tile) {
  const auto each = [&]<bool Whole>() {
    if (rows <= 4) return with_rows<4>(rows, [&]<int Rows>() { tile.template operator()<Rows, Whole, 4>(0, later); });
    for (int r = 0; r < rows; r += 4)
      with_rows<4>(rows - r < 4 ? rows - r : 4, [&]<int Rows>() {
        tile.template operator()<Rows, Whole, 2>(r, later + (r == 4 ? (count + 3) / 4 * 2 : 0));
      });
  };
  if (columns == kPanel) each.template operator()<true>();
  else each.template operator()<false>();
}

void few_sums_i8(const std::uint8_t* weights, std::ptrdiff_t pitch, int rows, const std::byte* const* values, int count,
                 std::ptrdiff_t column, int columns, std::int32_t* sums, const std::byte* const* later) noexcept {
  few_sum_tiles(rows, count, columns, later,
                [&]<int Rows, bool Whole, int Lines>(int r, const std::byte* const* later) {
                  few_sums<Rows, Whole, Lines>(weights + r * pitch, pitch, values, count, column, columns,
                                               sums + r * kPanel, later);
                });
}

void few_dots_wide(const std::int32_t* query, int rows, Kept kept, const std::byte* const* keys, int count, int dims,
                   float* y, std::ptrdiff_t pitch, const std::byte* const* later, int columns) noexcept {
  const int size = kept == Kept::f32 ? 4 : 2;
  const FewDots t{query, rows, keys, count, dims * size, nullptr, y, pitch, later, columns * size};
  if (kept == Kept::f32) few_dots<Wide<float>, 1>(t, rows);
  else if (kept == Kept::f16) few_dots<Wide<f16>, 1>(t, rows);
  else few_dots<Wide<bf16>, 1>(t, rows);
}

/// Two keys meet the pairs of weights of up to four rows.
template <int Rows, bool Whole, int Lines>
[[gnu::noinline]] void few_sums(const bf16* weights, std::ptrdiff_t pitch, const std::byte* const* values, int count,
                                std::ptrdiff_t column, int columns, float* sums, const std::byte* const* later) {
  __m512 sum[Rows][4];
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) sum[r][i] = _mm512_setzero_ps();
  const __mmask32 some[2] = {__mmask32(some_bytes(columns)), __mmask32(some_bytes(columns > 32 ? columns - 32 : 0))};
  int j = 0;
  do {
    __m512i x[4];
#pragma GCC unroll 2
    for (int line = 0; line < 2; ++line) {
      const auto load = [&](int k) __attribute__((always_inline)) {
        const std::byte* from = values[j + k] + 2 * column + 64 * line;
        return Whole ? _mm512_loadu_si512(from) : _mm512_maskz_loadu_epi16(some[line], from);
      };
      const __m512i even = load(0), odd = j + 1 < count ? load(1) : _mm512_setzero_si512();
      x[2 * line] = _mm512_unpacklo_epi16(even, odd), x[2 * line + 1] = _mm512_unpackhi_epi16(even, odd);
    }
#pragma GCC unroll 4
    for (int l = 0; l < Lines; ++l) {
      const std::byte* from = later[j / 2 * (Lines / 2) + l / 2] + 2 * column + 64 * (l % 2);
      _mm_prefetch(reinterpret_cast<const char*>(from), _MM_HINT_T1);
    }
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) {
      const __m512i w = broadcast(weights + r * pitch + j);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        sum[r][i] = Pairs::dot(sum[r][i], x[i], w);
        asm("" : "+v"(sum[r][i]));
      }
    }
    j += 2;
  } while (j < count);
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      float* out = sums + r * kPanel + i / 2 * 32 + i % 2 * 4;
      _mm_storeu_ps(out, _mm512_castps512_ps128(sum[r][i]));
      _mm_storeu_ps(out + 8, _mm512_extractf32x4_ps(sum[r][i], 1));
      _mm_storeu_ps(out + 16, _mm512_extractf32x4_ps(sum[r][i], 2));
      _mm_storeu_ps(out + 24, _mm512_extractf32x4_ps(sum[r][i], 3));
    }
}

void few_sums_bf16(const bf16* weights, std::ptrdiff_t pitch, int rows, const std::byte* const* values, int count,
                   std::ptrdiff_t column, int columns, float* sums, const std::byte* const* later) noexcept {
  few_sum_tiles(rows, count, columns, later,
                [&]<int Rows, bool Whole, int Lines>(int r, const std::byte* const* later) {
                  few_sums<Rows, Whole, Lines>(weights + r * pitch, pitch, values, count, column, columns,
                                               sums + r * kPanel, later);
                });
}

/// Sixteen elements as fp32.
template <class T>
[[gnu::always_inline]] inline __m512 widened(const std::byte* from, __mmask16 some) {
  if constexpr (std::is_same_v<T, float>) return _mm512_maskz_loadu_ps(some, from);
  else {
    const __m256i x = _mm256_maskz_loadu_epi16(some, from);
    if constexpr (std::is_same_v<T, f16>) return _mm512_cvtph_ps(x);
    else return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
  }
}

template <class T, int Rows, int Lines>
[[gnu::noinline]] void few_sums(const float* weights, std::ptrdiff_t pitch, const std::byte* const* values, int count,
                                std::ptrdiff_t column, int columns, float* sums, const std::byte* const* later) {
  constexpr int kSize = int(sizeof(T));
  __m512 sum[Rows][4];
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) sum[r][i] = _mm512_setzero_ps();
  int j = 0;
  do {
    __m512 x[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const int rest = columns - 16 * i;
      x[i] = widened<T>(values[j] + (column + 16 * i) * kSize, __mmask16(some_bytes(rest > 0 ? rest : 0)));
    }
    // Lines of 64 columns of a row are kSize; two tiles share the rows.
    if (Lines == 4 || j % 2 == 0)
#pragma GCC unroll 4
      for (int l = 0; l < kSize; ++l) {
        const std::byte* from = later[Lines == 4 ? j : j / 2] + column * kSize + 64 * l;
        _mm_prefetch(reinterpret_cast<const char*>(from), _MM_HINT_T1);
      }
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) {
      const __m512 w = _mm512_set1_ps(weights[r * pitch + j]);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        sum[r][i] = _mm512_fmadd_ps(w, x[i], sum[r][i]);
        asm("" : "+v"(sum[r][i]));
      }
    }
  } while (++j < count);
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) _mm512_storeu_ps(sums + r * kPanel + 16 * i, sum[r][i]);
}

void few_sums_wide(const float* weights, std::ptrdiff_t pitch, int rows, Kept kept, const std::byte* const* values,
                   int count, std::ptrdiff_t column, int columns, float* sums, const std::byte* const* later) noexcept {
  few_sum_tiles(rows, count, columns, later, [&]<int Rows, bool, int Lines>(int r, const std::byte* const* later) {
    const auto tile = [&]<class T>(T) {
      few_sums<T, Rows, Lines>(weights + r * pitch, pitch, values, count, column, columns, sums + r * kPanel, later);
    };
    if (kept == Kept::f32) tile(float{});
    else if (kept == Kept::f16) tile(f16{});
    else tile(bf16{});
  });
}

/// Sixteen accumulators: more than latency times throughput anywhere.
template <class Sum, class Step>
[[gnu::always_inline]] inline void spin(int rounds, Sum one, Step step) {
  Sum sum[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) asm volatile("" : "=v"(sum[i]) : "0"(one));  // else the compiler makes them one
  for (int r = 0; r < rounds; ++r)
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) sum[i] = step(sum[i]);
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) asm volatile("" ::"v"(sum[i]));
}

double peak(Dot kind, int rounds) noexcept {
  const __m512i x = _mm512_set1_epi32(1);
  const __m512 y = _mm512_set1_ps(1);
  switch (kind) {
    case Dot::i8:
      spin(rounds, x, [x](__m512i sum) { return dot(sum, x, x); });
      return rounds * (16.0 * 2 * 64);
    case Dot::bf16:
      spin(rounds, y, [x](__m512 sum) { return dot(sum, x, x); });
      return rounds * (16.0 * 2 * 32);
    case Dot::f32:
      spin(rounds, y, [y](__m512 sum) { return _mm512_fmadd_ps(y, y, sum); });
      return rounds * (16.0 * 2 * 16);
  }
  return 0;
}

/// The conversion rounds to nearest even and makes everything it cannot hold the smallest integer, which saturates to
/// -128: right below, so only the upper side is clamped first, and NaN is masked out.
void quantize_row(const float* x, std::int64_t n, float multiplier, std::int8_t* codes) noexcept {
  const __m512 m = _mm512_set1_ps(multiplier), most = _mm512_set1_ps(127);
  const auto codes_of = [&](__m512 v) __attribute__((always_inline)) {
    v = _mm512_mul_ps(v, m);
    const __mmask16 number = _mm512_cmp_ps_mask(v, v, _CMP_ORD_Q);
    return _mm512_cvtsepi32_epi8(_mm512_maskz_cvtps_epi32(number, _mm512_min_ps(v, most)));
  };
  std::int64_t i = 0;
  for (; i + 16 <= n; i += 16)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + i), codes_of(_mm512_loadu_ps(x + i)));
  if (i == n) return;
  const __mmask16 rest = __mmask16((1u << (n - i)) - 1);
  _mm512_mask_storeu_epi8(codes + i, rest, _mm512_castsi128_si512(codes_of(_mm512_maskz_loadu_ps(rest, x + i))));
}

/// exp_of of rows.hpp, sixteen at a time.
[[gnu::always_inline]] inline __m512 exp_of(__m512 x) {
  const auto fma = [](__m512 a, __m512 b, float c) __attribute__((always_inline)) {
    return _mm512_fmadd_ps(a, b, _mm512_set1_ps(c));
  };
  const __m512 magic = _mm512_set1_ps(12582912.0f);
  const __m512 shifted = _mm512_fmadd_ps(x, _mm512_set1_ps(1.44269504f), magic);
  const __m512 n = _mm512_sub_ps(shifted, magic);
  const __m512 r =
      _mm512_fmadd_ps(n, _mm512_set1_ps(2.12194440e-4f), _mm512_fmadd_ps(n, _mm512_set1_ps(-0.693359375f), x));
  __m512 p = fma(r, _mm512_set1_ps(1.3814320e-3f), 8.3688507e-3f);
  p = fma(r, p, 4.1668400e-2f);
  p = fma(r, p, 1.6666520e-1f);
  p = fma(r, p, 4.9999994e-1f);
  const __m512 y = _mm512_add_ps(_mm512_fmadd_ps(_mm512_mul_ps(r, r), p, r), _mm512_set1_ps(1));
  const __m512i bits = _mm512_add_epi32(_mm512_castps_si512(y), _mm512_slli_epi32(_mm512_castps_si512(shifted), 23));
  const __mmask16 large = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-87.3f), _CMP_NLT_UQ);
  return _mm512_castsi512_ps(_mm512_maskz_mov_epi32(large, bits));
}

/// The scaled scores stay in registers; four maxima, so that latency does not count.
float softmax_row(float* x, int n, float scale, float* largest) noexcept {
  const __m512 s = _mm512_set1_ps(scale), least = _mm512_set1_ps(-__builtin_inff());
  const __mmask16 rest = __mmask16((1u << n % 16) - 1);
  __m512 most[4] = {least, least, least, least};
  int i = 0;
  for (; i + 64 <= n; i += 64)
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) most[v] = _mm512_max_ps(_mm512_mul_ps(_mm512_loadu_ps(x + i + 16 * v), s), most[v]);
  for (; i + 16 <= n; i += 16) most[0] = _mm512_max_ps(_mm512_mul_ps(_mm512_loadu_ps(x + i), s), most[0]);
  if (rest) {
    const __m512 last = _mm512_mul_ps(_mm512_maskz_loadu_ps(rest, x + i), s);
    most[1] = _mm512_max_ps(_mm512_mask_mov_ps(least, rest, last), most[1]);
  }
  *largest = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_max_ps(most[0], most[1]), _mm512_max_ps(most[2], most[3])));
  const __m512 m = _mm512_set1_ps(*largest);
  __m512 sum = _mm512_setzero_ps();
  for (i = 0; i + 16 <= n; i += 16) {
    const __m512 e = exp_of(_mm512_sub_ps(_mm512_mul_ps(_mm512_loadu_ps(x + i), s), m));
    _mm512_storeu_ps(x + i, e);
    sum = _mm512_add_ps(sum, e);
  }
  if (rest) {
    const __m512 e = exp_of(_mm512_sub_ps(_mm512_mul_ps(_mm512_maskz_loadu_ps(rest, x + i), s), m));
    _mm512_mask_storeu_ps(x + i, rest, e);
    sum = _mm512_add_ps(sum, _mm512_maskz_mov_ps(rest, e));
  }
  float lane[16];
  _mm512_storeu_ps(lane, sum);
  for (int half = 8; half > 0; half /= 2)
    for (int l = 0; l < half; ++l) lane[l] += lane[l + half];
  return lane[0];
}

}  // namespace

void use_avx512(Kernels& k) {
  use_rows(k);
  k.peak = peak;
  k.product_bf16 = product_bf16;
  k.product_f32 = product_f32;
  k.product_wide = product_wide;
  k.product_i8 = product_i8;
  k.index_scores_i8 = index_scores<IndexQueryI8, std::int8_t>;
  k.index_scores_f32 = index_scores<IndexQueryF32, float>;
  k.append_candidates = append_candidates;
  k.quantize = quantize_row;
  k.softmax = softmax_row;
  k.few_dots_i8 = few_dots_i8;
  k.few_sums_i8 = few_sums_i8;
  k.few_dots_bf16 = few_dots_bf16;
  k.few_sums_bf16 = few_sums_bf16;
  k.few_dots_wide = few_dots_wide;
  k.few_sums_wide = few_sums_wide;
  k.transpose_bf16 = transpose<bf16>;
  k.transpose_i8 = transpose<std::int8_t>;
  k.interleave_bf16 = interleave<bf16>;
  k.interleave_i8 = interleave<std::int8_t>;
  k.transpose_f16 = transpose_wide<f16>;
  k.transpose_f32 = transpose_wide<float>;
  k.interleave_f16 = interleave_wide<f16>;
  k.interleave_f32 = interleave_wide<float>;
  k.transpose_codes = transpose_codes;
  k.interleave_codes = interleave_codes;
}

}  // namespace dsakit
