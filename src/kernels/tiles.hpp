// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "kernels/kernels.hpp"
#include "kernels/products.hpp"
#include "kernels/strip.hpp"
#include "kernels/vec/tiles.hpp"

// What tiles multiply. A group of a panel is a row of four tiles and rows of a are rows of a tile, both as they lie; a
// step takes 64 bytes of each row. Whatever multiplies pairs of bf16 does it here, be it one row: in which order the
// instruction adds the products of a step is its own affair (vdpbf16ps has another), and a row's bits do not depend on
// its company. Codes are exact: with few rows they stay with the rung below, as does everything else.
namespace dsakit {
namespace {

constexpr int kStepBytes = kTileSide * kGroupBytes;    // of a panel
constexpr int kBlockSteps = kBlockBytes / kStepBytes;  // of a block of a panel
constexpr int kPartSteps = kBlockSteps / 2;            // that stay in L1 while all rows meet them
constexpr int kBlockRows = 2 * kTileSide;              // of a
constexpr int kWaitingRows = 4 * kTileSide;            // whose sums wait from part to part
constexpr int kAskingTiles = 8;                        // of rows, that together ask for a part
constexpr int kPairRows = 2 * kTileSide;               // that a tile of b has: two to a word
constexpr int kQueryTiles = 32;                        // of an index query: 64 heads of 512 dims
static_assert(kBlockSteps * kTileBytes == kSumBlock * int(sizeof(bf16)));

/// What fill_tiles started from.
template <class V, class Tiles>
Kernels rung_below;

/// Of this thread: whether products leave the shapes of tiles to each other (Kernels::keep_shapes), and for how many rows
/// they are shaped (0: they are not).
template <class Tiles>
struct Shapes {
  static inline thread_local bool kept = false;
  static inline thread_local int rows = 0;
};

template <class Tiles>
DSAKIT_INLINE void release() {
  Shapes<Tiles>::rows = 0;
  Tiles::release();
}

template <class Tiles>
void keep_shapes(bool kept) noexcept {
  Shapes<Tiles>::kept = kept;
  if (Shapes<Tiles>::rows > 0) release<Tiles>();
}

template <class T>
struct TileDotI8 {
  using Tiles = T;
  using Row = std::uint8_t;
  using Column = std::int8_t;
  static constexpr bool kExact = true;
  template <int C, int A, int B>
  DSAKIT_INLINE static void dot() {
    Tiles::template dot_u8_i8<C, A, B>();
  }
};

template <class T>
struct TileDotBf16 {
  using Tiles = T;
  using Row = bf16;
  using Column = bf16;
  static constexpr bool kExact = false;
  template <int C, int A, int B>
  DSAKIT_INLINE static void dot() {
    Tiles::template dot_bf16<C, A, B>();
  }
};

/// Sums in tiles 0 to 3, then those of a, then those of b: of up to 16 rows one times four, of up to 32 two times two.
constexpr TileShapes shapes_of(int rows) {
  TileShapes s;
  const int first = least(rows, kTileSide), second = rows - first;
  for (int t = 0; t < 4; ++t) s.set(t, second > 0 && t >= 2 ? second : first, kTileBytes);
  s.set(4, first, kTileBytes);
  s.set(5, second > 0 ? second : kTileSide, kTileBytes);
  for (int t = 6; t < kTiles; ++t) s.set(t, kTileSide, kTileBytes);
  return s;
}

/// The first n bytes (n < 64) of a row of a tile, the rest 0.
template <class V>
DSAKIT_INLINE void pad_row(const void* row, int n, char* to) {
  for (int i = 0; i < kTileBytes; i += V::kBytes)
    V::store(to + i, V::load_bytes(static_cast<const char*>(row) + i, n - i));
}

/// What one block of rows and of k works on; strides in bytes.
struct TileBlock {
  const char* a;
  std::ptrdiff_t a_stride;
  const char* panel;
  char* c;
  std::ptrdiff_t c_stride;
  bool add;
  const std::int32_t* start = nullptr;  // of the sums of codes
  float* waiting = nullptr;             // [rows][kPanel], the sums of a block's earlier parts
  bool begins = true, ends = true;      // the block
  int rows = 0, steps = 0;
  const char *a_tail = nullptr, *panel_tail = nullptr;  // one more step, padded with zeros
  const char* ahead = nullptr;
  std::ptrdiff_t ahead_pitch = 0;  // as of Ahead; rows lie one after the other: 0
  int share = 0, groups = 0;       // of a step that are asked for: so many, behind those of earlier shares
};

/// Asks for a share of a step's groups of what comes next.
template <class T>
DSAKIT_INLINE void ask_for_groups(const TileBlock& t, int step) {
  constexpr int kLines = kLinesOfGroup<T>;
  const std::ptrdiff_t group = t.ahead_pitch ? Panel<T>::kGroup * t.ahead_pitch : kGroupBytes;
  const int first = t.share * t.groups;
  const char* p = t.ahead + (step * kTileSide + first) * group;
  for (int g = first; g < least(first + t.groups, kTileSide); ++g, p += group)
    if (t.ahead_pitch == 0) unrolled<4>([p]<int L>() __attribute__((always_inline)) { prefetch_l2(p + 64 * L); });
    else
      unrolled<kLines>([&]<int L>()
                           __attribute__((always_inline)) { prefetch_l2(p + line_of_group<T>(L, t.ahead_pitch)); });
}

/// Rows x Columns tiles of sums, from column `column` on.
template <class V, class Dot, int Rows, int Columns>
[[gnu::noinline]] void tile_block(const TileBlock& block, int column) {
  using Tiles = typename Dot::Tiles;
  constexpr int kA = Rows * Columns, kB = kA + Rows, kBs = least(Columns, kTiles - kB);
  const TileBlock t = block;  // which loads and stores of tiles cannot have changed
  const auto each = [](auto f) __attribute__((always_inline)) {
    unrolled<Rows>([&]<int R>() __attribute__((always_inline)) {
      unrolled<Columns>([&]<int C>() __attribute__((always_inline)) { f.template operator()<R, C>(); });
    });
  };
  char* const c = t.c + 4 * column;
  each([&]<int R, int C>() __attribute__((always_inline)) {
    constexpr int kC = R * Columns + C;
    if (!Dot::kExact && t.begins) Tiles::template zero<kC>();
    else if (!Dot::kExact) Tiles::template load<kC>(t.waiting + column + kTileSide * C, 4 * kPanel);
    else if (t.add) Tiles::template load<kC>(c + kTileSide * R * t.c_stride + kTileBytes * C, t.c_stride);
    else Tiles::template load<kC>(t.start + column + kTileSide * C, 0);
  });
  const auto step = [](const char* a, std::ptrdiff_t a_stride, const char* panel) __attribute__((always_inline)) {
    unrolled<Rows>([&]<int R>() __attribute__((always_inline)) {
      Tiles::template load<kA + R>(a + kTileSide * R * a_stride, a_stride);
    });
    unrolled<Columns>([&]<int C>() __attribute__((always_inline)) {
      constexpr int kColumn = kB + C % kBs;
      Tiles::template load<kColumn>(panel + kTileBytes * C, kGroupBytes);
      unrolled<Rows>([&]<int R>() __attribute__((always_inline)) {
        Dot::template dot<R * Columns + C, kA + R, kColumn>();
      });
    });
  };
  const char *a = t.a, *panel = t.panel + 4 * column;
  for (int s = 0; s < t.steps; ++s, a += kTileBytes, panel += kStepBytes) {
    ask_for_groups<typename Dot::Column>(t, s);
    step(a, t.a_stride, panel);
  }
  if (t.a_tail) step(t.a_tail, kTileBytes, t.panel_tail + 4 * column);
  each([&]<int R, int C>() __attribute__((always_inline)) {
    if (!Dot::kExact && !t.ends)
      return Tiles::template store<R * Columns + C>(t.waiting + column + kTileSide * C, 4 * kPanel);
    char* const to = c + kTileSide * R * t.c_stride + kTileBytes * C;
    if (Dot::kExact || !t.add) return Tiles::template store<R * Columns + C>(to, t.c_stride);
    alignas(64) float sum[kTileSide * kTileSide];
    Tiles::template store<R * Columns + C>(sum, kTileBytes);
    for (int r = 0; r < least(t.rows - kTileSide * R, kTileSide); ++r)
      for (int i = 0; i < kTileSide; i += V::kLanes) {
        auto* const x = reinterpret_cast<float*>(to + r * t.c_stride) + i;
        V::store_float(x, V::load_float(x) + V::load_float(sum + kTileSide * r + i));
      }
  });
}

/// As multiply() of products.hpp: all rows meet one block of the panel before the next, two tiles times two, and ask
/// for that in equal shares. A panel that comes from memory in order, as those of a packed weight do, goes by parts of
/// a block: the first tile of rows meets all columns of a part, as the prefetchers of the hardware like it, and asks for
/// nothing; the others find the part in L1 and ask for the next (docs/notes/0023-parts.md).
template <class V, class Dot>
DSAKIT_INLINE void multiply_tiles(TileBlock t, int m, int k, Ahead ahead) {
  using Column = typename Dot::Column;
  using Tiles = typename Dot::Tiles;
  const int bytes = k * int(sizeof(typename Dot::Row)), tail = bytes % kTileBytes;
  alignas(64) char a_tail[kBlockRows * kTileBytes], panel_tail[kStepBytes];
  alignas(64) float waiting[Dot::kExact ? 1 : kWaitingRows * kPanel];
  if (tail > 0) {
    const int some = int(Panel<Column>::groups(tail / int(sizeof(Column)))) * kGroupBytes;
    __builtin_memcpy(panel_tail, t.panel + bytes / kTileBytes * std::ptrdiff_t(kStepBytes), std::size_t(some));
    __builtin_memset(panel_tail + some, 0, std::size_t(kStepBytes - some));
    t.panel_tail = panel_tail;
  }
  const int tiles = (m + kTileSide - 1) / kTileSide;
  const bool none = ahead.is_nothing(), behind = ahead.rows == nullptr, parts = behind && !none && tiles > 1;
  const bool near = behind || ahead.pitch == kPanel * std::ptrdiff_t(sizeof(Column));
  t.ahead_pitch = near ? 0 : ahead.pitch;
  const std::ptrdiff_t step_ahead = near ? kStepBytes : kTileSide * Panel<Column>::kGroup * ahead.pitch;
  const int most = parts ? kPartSteps : kBlockSteps;
  const int some_rows = parts ? (m + tiles - 1) / tiles : kBlockRows;  // as even as can be: one shape
  const int group_rows = parts && !Dot::kExact ? kWaitingRows / kTileSide * some_rows : m;
  const int groups = none || tiles <= 1 ? 0 : parts ? kTileSide / kAskingTiles : (kTileSide + tiles - 1) / tiles;
  const TileBlock all = t;
  int shaped = Shapes<Tiles>::rows;
  const auto part = [&](int block, int group, int begin) __attribute__((always_inline)) {
    const int rest = bytes - begin * kTileBytes, end = least(m, group + group_rows);
    t.panel = all.panel + begin * std::ptrdiff_t(kStepBytes);
    t.ahead = behind ? t.panel + most * kStepBytes : static_cast<const char*>(ahead.rows) + begin * step_ahead;
    t.steps = least(rest / kTileBytes, most);
    t.begins = begin == block;
    t.ends = begin + most == block + kBlockSteps || rest <= most * kTileBytes;
    t.add = all.add || (Dot::kExact ? begin : block) > 0;
    t.share = parts ? -1 : 0;
    for (int first = group; first < end; first += t.rows) {
      t.rows = least(end - first, some_rows);
      t.groups = parts && first == group ? 0 : groups;
      t.a = all.a + first * t.a_stride + begin * kTileBytes;
      t.c = all.c + first * t.c_stride;
      t.waiting = waiting + (first - group) * kPanel;
      t.a_tail = tail > 0 && t.steps < most ? a_tail : nullptr;
      for (int r = 0; r < t.rows && t.a_tail; ++r)
        pad_row<V>(t.a + r * t.a_stride + t.steps * kTileBytes, tail, a_tail + r * kTileBytes);
      if (t.rows != shaped) Tiles::configure(shapes_of(shaped = t.rows));
      if (t.rows > kTileSide) {
        tile_block<V, Dot, 2, 2>(t, 0);
        ++t.share;
        tile_block<V, Dot, 2, 2>(t, 2 * kTileSide);
      } else {
        tile_block<V, Dot, 1, 4>(t, 0);
      }
      ++t.share;
    }
  };
  for (int block = 0; block == 0 || block * kTileBytes < bytes; block += kBlockSteps)
    for (int group = 0; group < m; group += group_rows)
      for (int begin = block; begin < block + kBlockSteps; begin += most)
        if (begin == block || begin * kTileBytes < bytes) part(block, group, begin);
  if (Shapes<Tiles>::kept) Shapes<Tiles>::rows = shaped;
  else release<Tiles>();
}

template <class V, class Tiles>
void product_on_tiles(const bf16* a, std::ptrdiff_t a_stride, int m, const bf16* panel, int k, float* c,
                      std::ptrdiff_t c_stride, bool add, Ahead ahead, int /*columns*/) noexcept {
  multiply_tiles<V, TileDotBf16<Tiles>>({.a = reinterpret_cast<const char*>(a),
                                         .a_stride = a_stride * std::ptrdiff_t(sizeof *a),
                                         .panel = reinterpret_cast<const char*>(panel),
                                         .c = reinterpret_cast<char*>(c),
                                         .c_stride = c_stride * 4,
                                         .add = add},
                                        m, k, ahead);
}

/// Up to as many rows as one tile of registers has, memory is slower than either.
template <class V, class Tiles>
void product_of_codes_on_tiles(const std::uint8_t* a, std::ptrdiff_t a_stride, int m, const std::int8_t* panel,
                               const std::int32_t* column_sums, int k, std::int32_t* c, std::ptrdiff_t c_stride,
                               Ahead ahead) noexcept {
  if (m <= kTileRows)
    return rung_below<V, Tiles>.product(a, a_stride, m, panel, column_sums, k, c, c_stride, ahead);
  alignas(64) std::int32_t start[kPanel];  // takes off what the bias adds
  for (int i = 0; i < kPanel; i += V::kLanes) V::store(start + i, -(V::load(column_sums + i) << 7));
  multiply_tiles<V, TileDotI8<Tiles>>({.a = reinterpret_cast<const char*>(a),
                                       .a_stride = a_stride,
                                       .panel = reinterpret_cast<const char*>(panel),
                                       .c = reinterpret_cast<char*>(c),
                                       .c_stride = c_stride * 4,
                                       .add = false,
                                       .start = start},
                                      m, k, ahead);
}

// ---- the indexer: a tile of keys, as they lie, meets one to four blocks of heads ------------------------------------

/// Dots of sixteen keys: [Blocks][16 keys][16 heads]. A block of heads of the query is `steps` tiles.
template <class Tiles, int Blocks>
[[gnu::noinline]] void dots_of_keys(const std::int8_t* key, std::ptrdiff_t key_stride, const char* key_tail, int steps,
                                    const char* query, std::int32_t* dots) {
  constexpr int kA = 4, kB = 5, kBs = kTiles - kB;
  unrolled<Blocks>([]<int C>() __attribute__((always_inline)) { Tiles::template zero<C>(); });
  const std::ptrdiff_t block = std::ptrdiff_t(steps) * (kTileSide * kTileBytes);
  const int whole = key_tail ? steps - 1 : steps;
  for (int s = 0; s < steps; ++s, key += kTileBytes, query += kTileSide * kTileBytes) {
    if (s < whole) Tiles::template load<kA>(key, key_stride);
    else Tiles::template load<kA>(key_tail, kTileBytes);
    unrolled<Blocks>([&]<int C>() __attribute__((always_inline)) {
      Tiles::template load<kB + C % kBs>(query + C * block, kTileBytes);
      Tiles::template dot_i8_i8<C, kA, kB + C % kBs>();
    });
  }
  unrolled<Blocks>([&]<int C>() __attribute__((always_inline)) {
    Tiles::template store<C>(dots + C * (kTileSide * kTileSide), kTileBytes);
  });
}

/// The query without its bias, as tiles, [blocks][steps][16][16][4].
template <class V>
DSAKIT_INLINE void tiles_of_query(const IndexQueryI8& query, int steps, char* tiles) {
  const int bytes = int(IndexQueryLayout<std::uint8_t>::block(query.dims)), block = steps * (kTileSide * kTileBytes);
  for (int b = 0; b < query.head_blocks; ++b, tiles += block) {
    for (int i = 0; i < bytes; i += V::kBytes) V::store(tiles + i, V::biased(V::load(query.values + b * bytes + i)));
    for (int i = bytes; i < block; i += V::kBytes) V::store(tiles + i, typename V::I{});
  }
}

/// Few keys are not worth the arrangement.
template <class V, class Tiles>
void index_scores_on_tiles(const IndexQueryI8& query, const std::int8_t* key, std::ptrdiff_t key_stride, int count,
                           float* scores, const std::int8_t* ahead, KeyStarts* starts) noexcept {
  using F = typename V::F;
  using I = typename V::I;
  constexpr int kParts = V::kParts, kMost = 4;  // blocks of heads
  const int steps = (query.dims + kTileBytes - 1) / kTileBytes, tail = query.dims % kTileBytes;
  if (count < kTileSide || query.head_blocks * steps > kQueryTiles)
    return rung_below<V, Tiles>.index_scores(query, key, key_stride, count, scores, ahead, starts);
  alignas(64) char tiles[kQueryTiles * kTileSide * kTileBytes], key_tail[kTileSide * kTileBytes];
  tiles_of_query<V>(query, steps, tiles);
  int shaped = 0;
  for (int n; count > 0; count -= n, key += n * key_stride, scores += n) {
    n = least(count, kTileSide);
    if (n != shaped) Tiles::configure(shapes_of(shaped = n));
    for (int k = 0; k < n && tail > 0; ++k)
      pad_row<V>(key + k * key_stride + (steps - 1) * kTileBytes, tail, key_tail + k * kTileBytes);
    F lane[kTileSide * kParts] = {};
    for (int b = 0; b < query.head_blocks; b += kMost)
      with_constant<kMost>(least(query.head_blocks - b, kMost), [&]<int Blocks>() {
        alignas(64) std::int32_t dots[Blocks * kTileSide * kTileSide];
        dots_of_keys<Tiles, Blocks>(key, key_stride, tail > 0 ? key_tail : nullptr, steps,
                                    tiles + b * steps * (kTileSide * kTileBytes), dots);
        F weight[Blocks * kParts];
#pragma GCC unroll 16
        for (int w = 0; w < Blocks * kParts; ++w)
          weight[w] = V::load_float(query.weight + b * kHeadBlock + w * V::kLanes);
        for (int k = 0; k < n; ++k)
#pragma GCC unroll 4
          for (int p = 0; p < kParts; ++p) {
            F sum = lane[k * kParts + p];
#pragma GCC unroll 4
            for (int c = 0; c < Blocks; ++c) {
              const I dot = V::load(dots + (c * kTileSide + k) * kTileSide + p * V::kLanes);
              sum = V::fma(weight[c * kParts + p], V::to_float(V::max(dot, I{})), sum);
            }
            lane[k * kParts + p] = sum;
          }
      });
    store_folded<V>(lane, n, scores);
  }
  release<Tiles>();
}

// ---- GEMV of pairs: keys where they lie are rows of a tile, and the words of the query are rows of another ----------
// What comes two blocks later is asked for row by row: memory and the prefetchers of the hardware like rows, and the other
// order, line by line of many rows, is slower than nothing (docs/notes/0022-blocks-and-rows.md).

struct TileKeys {
  const std::byte* const* keys;
  int bytes;  // of a key
  const char* words;
  std::ptrdiff_t words_stride;
  const char* words_tail;  // [16][16] words that meet the last bytes of a key, less than 64; padded with zeros
  const std::byte* const* ahead;  // as many rows that come later, of so many bytes
  int ahead_bytes;
};

/// Bytes [begin, end) of some rows, one row after the other.
DSAKIT_INLINE void ask_for_rows(const std::byte* const* row, int first, int last, std::ptrdiff_t begin,
                                std::ptrdiff_t end) {
  for (int r = first; r < least(last, kGemvKeys); ++r)
    for (std::ptrdiff_t b = begin; b < end; b += 64) prefetch_l2(row[r] + b);
}

/// How far the keys of a block lie apart, or 0: not the same for all.
DSAKIT_INLINE std::ptrdiff_t stride_of_keys(const std::byte* const* key) {
  const std::ptrdiff_t stride = key[1] - key[0];
  for (int k = 2; k < kGemvKeys; ++k)
    if (key[k] - key[k - 1] != stride) return 0;
  return stride;
}

/// So many bytes of sixteen keys as rows of a tile.
template <class V>
[[gnu::noinline]] void gather(const std::byte* const* key, int at, int some, char* rows) {
  for (int k = 0; k < kTileSide; ++k) pad_row<V>(key[k] + at, some, rows + k * kTileBytes);
}

/// Sums of Blocks x 16 keys: [Blocks][16 keys][16 rows].
template <class V, class Tiles, int Blocks>
[[gnu::noinline]] void sums_of_keys(const TileKeys& t, float* sums) {
  constexpr int kA = 4, kB = 6;
  std::ptrdiff_t stride[Blocks];
  for (int b = 0; b < Blocks; ++b) stride[b] = stride_of_keys(t.keys + kGemvKeys * b);
  unrolled<Blocks>([]<int C>() __attribute__((always_inline)) { Tiles::template zero<C>(); });
  unrolled<Blocks>([&]<int C>() __attribute__((always_inline)) {
    const std::byte* const* key = t.keys + kGemvKeys * C;
    const char* words = t.words;
    for (int at = 0; at < t.bytes; at += kTileBytes, words += kTileSide * t.words_stride) {
      const int some = t.bytes - at;
      if (some >= kTileBytes) Tiles::template load<kB>(words, t.words_stride);
      else Tiles::template load<kB>(t.words_tail, kTileBytes);
      ask_for_rows(t.ahead + kGemvKeys * C, kGemvKeys * at / t.bytes, kGemvKeys * (at + kTileBytes) / t.bytes, 0,
                   t.ahead_bytes);
      if (some >= kTileBytes && stride[C] != 0) {
        Tiles::template load<kA + C % 2>(key[0] + at, stride[C]);
      } else {
        alignas(64) char rows[kTileSide * kTileBytes];
        gather<V>(key, at, some, rows);
        Tiles::template load<kA + C % 2>(rows, kTileBytes);
      }
      Tiles::template dot_bf16<C, kA + C % 2, kB>();
    }
  });
  unrolled<Blocks>([&]<int C>() __attribute__((always_inline)) {
    Tiles::template store<C>(sums + C * (kTileSide * kTileSide), kTileBytes);
  });
}

/// y[r * pitch + k] = sums[k][r], sixteen keys.
template <class V>
DSAKIT_INLINE void store_transposed(const float* sums, int rows, float* y, std::ptrdiff_t pitch) {
  for (int r = 0; r < rows; r += V::kLanes)
    for (int k = 0; k < kTileSide; k += V::kLanes) {
      typename V::I x[V::kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < V::kLanes; ++i) x[i] = V::load(sums + (k + i) * kTileSide + r);
      V::transpose(x);
#pragma GCC unroll 16
      for (int i = 0; i < V::kLanes; ++i)
        if (r + i < rows) V::store(y + (r + i) * pitch + k, x[i]);
    }
}

template <class V, class Tiles>
void gemv_dots_of_pairs_on_tiles(const std::int32_t* query, int rows, const std::byte* const* keys, int count, int dims,
                                 float* y, std::ptrdiff_t pitch, const std::byte* const* ahead,
                                 int ahead_columns) noexcept {
  constexpr int kMost = 4, kKeys = kMost * kGemvKeys;  // blocks of keys
  const int bytes = 2 * dims, whole = bytes / kTileBytes * kTileSide, words = GemvQuery::words(dims, 2, 2);
  for (int first = 0, n; first < rows; first += n) {
    n = least(rows - first, kTileSide);
    TileShapes shapes = shapes_of(kTileSide);
    for (const int tile : {0, 1, 2, 3, 6}) shapes.set(tile, kTileSide, 4 * n);
    Tiles::configure(shapes);
    alignas(64) std::int32_t words_tail[kTileSide * kTileSide] = {};
    for (int w = whole; w < words; ++w)
      for (int r = 0; r < n; ++r) words_tail[(w - whole) * kTileSide + r] = query[GemvQuery::at(rows, first + r, w)];
    for (int j = 0; j < count; j += kKeys) {
      const bool behind = j + 2 * kKeys > count;  // there are no whole blocks of keys later
      with_constant<kMost>(least((count - j + kGemvKeys - 1) / kGemvKeys, kMost), [&]<int Blocks>() {
        alignas(64) float sums[Blocks * kTileSide * kTileSide] = {};
        sums_of_keys<V, Tiles, Blocks>(
            {keys + j, bytes, reinterpret_cast<const char*>(query + GemvQuery::at(rows, first, 0)),
             4 * std::ptrdiff_t(rows), reinterpret_cast<const char*>(words_tail), behind ? ahead : keys + j + kKeys,
             behind ? 2 * ahead_columns : bytes},
            sums);
        for (int b = 0; b < Blocks; ++b)
          store_transposed<V>(sums + b * (kTileSide * kTileSide), n, y + first * pitch + j + b * kGemvKeys, pitch);
      });
    }
  }
  release<Tiles>();
}

// ---- rows of pairs where they lie: 32 of them, interleaved in registers, are four tiles of b ---------------------------

/// 64 columns of up to 32 rows: [16 pairs][64 words], the words in the order that unpacking leaves; load(k, byte) is a
/// register of row k, and `each` is called with every pair.
template <class V, class Load, class Each>
DSAKIT_INLINE void tiles_of_pairs(int count, Load load, char* to, Each each) {
  for (int k = 0; k < kPairRows; k += 2, to += kGroupBytes) {
    each();
    for (int part = 0; part < kGroupBytes; part += 4 * V::kBytes) {
      typename V::I x[4] = {};
      const auto row = [&](int i, int byte) __attribute__((always_inline)) { return load(k + i, part / 2 + byte); };
      if (k < count) {
        PairColumns<V>::template half<0>(row, count - k, x);
        PairColumns<V>::template half<1>(row, count - k, x + 2);
      }
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) V::store(to + part + i * V::kBytes, x[i]);
    }
  }
}

/// Sums of 64 columns in tiles 0 to 3, a in tile 4.
constexpr TileShapes shapes_of_columns(int rows) {
  TileShapes s = shapes_of(kTileSide);
  for (int t = 0; t < 5; ++t) s.set(t, rows, kTileBytes);
  return s;
}

template <class V, class Tiles>
DSAKIT_INLINE void load_weights(const bf16* a, std::ptrdiff_t a_stride, int rows, int count, char* tail) {
  if (count == kPairRows) return Tiles::template load<4>(a, a_stride * std::ptrdiff_t(sizeof *a));
  for (int r = 0; r < rows; ++r) pad_row<V>(a + r * a_stride, count * int(sizeof *a), tail + r * kTileBytes);
  Tiles::template load<4>(tail, kTileBytes);
}

template <class Dot>
DSAKIT_INLINE void add_columns(const char* columns) {
  unrolled<4>([columns]<int C>() __attribute__((always_inline)) {
    constexpr int kB = 5 + C % 3;
    Dot::Tiles::template load<kB>(columns + C * kTileBytes, kGroupBytes);
    Dot::template dot<C, 4, kB>();
  });
}

template <class Tiles, class Sum>
DSAKIT_INLINE void store_columns(Sum* sums) {
  unrolled<4>([sums]<int C>() __attribute__((always_inline)) {
    Tiles::template store<C>(sums + C * kTileSide, kGroupBytes);
  });
}

/// One row of sums, its columns where they belong.
template <class V, class Columns, class Sum>
DSAKIT_INLINE void order_columns(const Sum* sums, Sum* y) {
  for (int part = 0; part < kPanel; part += V::kBytes)
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i)
#pragma GCC unroll 4
      for (int b = 0; b < V::kBytes / 16; ++b)
        V::store_block(y + part + Columns::column(i, b), V::load(sums + part + i * V::kLanes), b);
}

template <class V, class Tiles>
void gemv_sums_of_pairs_on_tiles(const bf16* weights, std::ptrdiff_t pitch, int rows, const std::byte* const* values,
                                 int count, std::ptrdiff_t column, int columns, float* sums,
                                 const std::byte* const* ahead) noexcept {
  constexpr int kLater = 2 * kPairRows;  // rows
  alignas(64) char tail[kTileSide * kTileBytes], pairs[2][kTileSide * kGroupBytes];
  alignas(64) float tile[kTileSide * kPanel];
  for (int first = 0, n; first < rows; first += n, weights += n * pitch, sums += n * kGemvColumns) {
    n = least(rows - first, kTileSide);
    Tiles::configure(shapes_of_columns(n));
    for (int part = 0; part < columns; part += kPanel) {
      const int bytes = 2 * least(columns - part, kPanel);
      const auto interleave = [&](int j) __attribute__((always_inline)) {
        if (j >= count) return;
        const int some = least(count - j, kPairRows);
        if (first == 0 && part == 0)  // all columns at once
          for (int k = 0; k < some; k += kGemvKeys)
            ask_for_rows(j + kLater + kPairRows <= count ? values + j + kLater + k : ahead + j % kLater + k, 0, some - k, 2 * column,
                         2 * (column + columns));
        const auto load = [&](int k, int byte) __attribute__((always_inline)) {
          const std::byte* from = values[j + k] + 2 * (column + part) + byte;
          return bytes == 2 * kPanel ? V::load(from) : V::load_bytes(from, bytes - byte);
        };
        tiles_of_pairs<V>(some, load, pairs[j / kPairRows % 2], [] {});
      };
      unrolled<4>([]<int C>() __attribute__((always_inline)) { Tiles::template zero<C>(); });
      interleave(0);
      for (int j = 0; j < count; j += kPairRows) {
        interleave(j + kPairRows);  // a step ahead: a tile cannot be loaded before what was stored is in the cache
        load_weights<V, Tiles>(weights + j, pitch, n, least(count - j, kPairRows), tail);
        add_columns<TileDotBf16<Tiles>>(pairs[j / kPairRows % 2]);
      }
      store_columns<Tiles>(tile);
      for (int r = 0; r < n; ++r) order_columns<V, PairColumns<V>>(tile + r * kPanel, sums + r * kGemvColumns + part);
    }
  }
  release<Tiles>();
}

/// Rows of codes in groups of four, V::kBytes columns in four registers.
template <class V>
struct CodeColumns {
  using I = typename V::I;

  template <class Row>
  DSAKIT_INLINE static void interleave(Row row, I (&x)[4]) {
    const I a = row(0), b = row(1), c = row(2), d = row(3);
    const I low = V::unpack_low8(a, b), low2 = V::unpack_low8(c, d);
    const I high = V::unpack_high8(a, b), high2 = V::unpack_high8(c, d);
    x[0] = V::unpack_low16(low, low2), x[1] = V::unpack_high16(low, low2);
    x[2] = V::unpack_low16(high, high2), x[3] = V::unpack_high16(high, high2);
  }
  /// Where block b of register i belongs.
  static constexpr int column(int i, int b) { return 16 * b + 4 * i; }
};

// What a strip is made of: rows of the matrix that make the tiles of a step, and how.

template <class V, class T>
struct StripOfPairs : TileDotBf16<T> {
  using Element = bf16;
  using Sum = float;
  using Columns = PairColumns<V>;
  static constexpr int kRows = kPairRows;

  template <class Load, class Each>
  DSAKIT_INLINE static void make_tiles(int count, Load load, char* to, Each each) {
    tiles_of_pairs<V>(count, load, to, each);
  }
};

template <class V, class T>
struct StripOfCodes {
  using Tiles = T;
  using Element = std::int8_t;
  using Sum = std::int32_t;
  using Columns = CodeColumns<V>;
  static constexpr int kRows = 4 * kTileSide;

  template <int C, int A, int B>
  DSAKIT_INLINE static void dot() {
    Tiles::template dot_i8_i8<C, A, B>();
  }
  /// What is missing of the last group is its last row again: times 0.
  template <class Load, class Each>
  DSAKIT_INLINE static void make_tiles(int count, Load load, char* to, Each each) {
    const auto group = [&](auto row) __attribute__((always_inline)) {
      each();
      for (int part = 0; part < kGroupBytes; part += 4 * V::kBytes) {
        typename V::I x[4];
        Columns::interleave([&](int i) __attribute__((always_inline)) { return load(row(i), part / 4); }, x);
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) V::store(to + part + i * V::kBytes, x[i]);
      }
      to += kGroupBytes;
    };
    int k = 0;
    for (; k + 4 <= count; k += 4) group([k](int i) { return k + i; });
    if (k < count) group([k, count](int i) { return least(k + i, count - 1); }), k += 4;
    __builtin_memset(to, 0, std::size_t(kRows - k) / 4 * kGroupBytes);
  }
};

/// Rows of the matrix that make a step, all columns: their sums wait in memory, [columns / 64][m][64].
template <class V, class Kind, bool Nz>
DSAKIT_INLINE void add_strip(const Strip<typename Kind::Element>& strip, int m, int count, int columns, bool add,
                             typename Kind::Sum* sums, const typename Kind::Element* ahead) {
  using T = typename Kind::Element;
  using Tiles = typename Kind::Tiles;
  constexpr int kSize = int(sizeof(T));
  alignas(64) char tiles[2][kTileSide * kGroupBytes];
  const auto* row = reinterpret_cast<const std::byte*>(ahead);
  int from = 0;
  const auto ask = [&]() __attribute__((always_inline)) {  // of the next rows, row by row, as much as these columns have
    if constexpr (!Nz) {
      unrolled<4>([&]<int L>() __attribute__((always_inline)) { prefetch_l2(row + from + 64 * L); });
      from += kGroupBytes;
      if (from >= columns * kSize) from = 0, row += strip.pitch * std::ptrdiff_t(kSize);
    }
  };
  const auto make = [&](int column) __attribute__((always_inline)) {
    const auto rows_of = [&]<bool Whole>() __attribute__((always_inline)) {
      const StripColumns<V, T, Nz, Whole> some(strip, column, least(columns - column, kPanel));
      Kind::make_tiles(
          count,
          [&](int k, int byte) __attribute__((always_inline)) {
            return some.load(k * strip.pitch * std::ptrdiff_t(kSize), byte);
          },
          tiles[column / kPanel % 2], ask);
    };
    if (columns - column >= kPanel) rows_of.template operator()<true>();
    else if (column < columns) rows_of.template operator()<false>();
  };
  make(0);
  for (int column = 0; column < columns; column += kPanel, sums += m * kPanel) {
    make(column + kPanel);  // a step ahead: a tile cannot be loaded before what was stored is in the cache
    unrolled<4>([&]<int C>() __attribute__((always_inline)) {
      if (add) Tiles::template load<C>(sums + C * kTileSide, kGroupBytes);
      else Tiles::template zero<C>();
    });
    add_columns<Kind>(tiles[column / kPanel % 2]);
    store_columns<Tiles>(sums);
  }
}

/// load(first, n) loads what rows of a have there, 64 bytes, into tile 4.
template <class V, class Kind, class Load>
DSAKIT_INLINE void strip_product_on_tiles(Load load, int m, const Strip<typename Kind::Element>& strip, int k,
                                          int columns, typename Kind::Sum* c, std::ptrdiff_t c_stride, bool add,
                                          const typename Kind::Element* ahead) {
  using Sum = typename Kind::Sum;
  alignas(64) Sum sums[kStripSums + kStripRows * kPanel], line[kPanel];
  Kind::Tiles::configure(shapes_of_columns(m));
  for (int first = 0, n; first < k; first += n) {
    n = least(k - first, Kind::kRows);
    load(first, n);
    Strip<typename Kind::Element> some = strip;
    some.rows += first * strip.pitch;
    const auto* const next = first + n < k ? some.rows + n * strip.pitch : ahead;
    if (strip.run != strip.kRun) add_strip<V, Kind, true>(some, m, n, columns, first > 0, sums, next);
    else add_strip<V, Kind, false>(some, m, n, columns, first > 0, sums, next);
  }
  release<typename Kind::Tiles>();
  const Sum* from = sums;
  for (int column = 0; column < columns; column += kPanel)
    for (int i = 0; i < m; ++i, from += kPanel) {
      order_columns<V, typename Kind::Columns>(from, line);
      Sum* const to = c + i * c_stride + column;
      for (int j = 0; j < least(columns - column, kPanel); ++j) to[j] = add ? to[j] + line[j] : line[j];
    }
}

template <class V, class Tiles>
void strip_product_of_pairs_on_tiles(const bf16* a, std::ptrdiff_t a_stride, int m, const Strip<bf16>& strip, int k,
                                     int columns, float* c, std::ptrdiff_t c_stride, bool add,
                                     const bf16* ahead) noexcept {
  alignas(64) char tail[kTileSide * kTileBytes];
  for (int block = 0; block < k; block += kSumBlock) {  // partial sums, as panels have them
    const int depth = least(k - block, kSumBlock);
    const Strip<bf16> some{strip.rows + block * strip.pitch, strip.pitch, strip.run};
    strip_product_on_tiles<V, StripOfPairs<V, Tiles>>(
        [&](int first, int n) __attribute__((always_inline)) {
          load_weights<V, Tiles>(a + block + first, a_stride, m, n, tail);
        },
        m, some, depth, columns, c, c_stride, add || block > 0,
        block + depth < k ? some.rows + depth * strip.pitch : ahead);
  }
}

/// With FRACTAL_NZ and more than four rows: else the rung below is as fast or faster, whose rows are asked for in blocks
/// of another shape.
template <class V, class Tiles>
void strip_product_of_codes_on_tiles(const std::uint8_t* a, std::ptrdiff_t a_stride, int m,
                                     const Strip<std::int8_t>& strip, int k, int columns, std::int32_t* c,
                                     std::ptrdiff_t c_stride, bool add, const std::int8_t* ahead) noexcept {
  constexpr int kFew = 4;
  if (m <= kFew || strip.run == strip.kRun)
    return rung_below<V, Tiles>.strip_product(a, a_stride, m, strip, k, columns, c, c_stride, add, ahead);
  alignas(64) char rows[kStripRows * kTileBytes];
  strip_product_on_tiles<V, StripOfCodes<V, Tiles>>(
      [&](int first, int n) __attribute__((always_inline)) {  // without their bias
        for (int r = 0; r < m; ++r)
          for (int i = 0; i < kTileBytes; ++i)
            rows[r * kTileBytes + i] = i < n ? char(a[r * a_stride + first + i] ^ 128) : char(0);
        Tiles::template load<4>(rows, kTileBytes);
      },
      m, strip, k, columns, c, c_stride, add, ahead);
}

// ---- panels of e4m3 -------------------------------------------------------------------------------------------------

/// Many rows: each block is widened first, to where the cache has it.
template <class V, class Tiles>
void product_widening_for_tiles(const bf16* a, std::ptrdiff_t a_stride, int m, ScaledPanel panel, int k, float* c,
                                std::ptrdiff_t c_stride, bool add) {
  int first = 0;
  do {
    const int n = least(kSumBlock, k - first);
    alignas(64) bf16 wide[kSumBlock * kPanel];
    rung_below<V, Tiles>.widen_scaled(panel.from(first), n, wide);
    const Ahead next{panel.from(first).codes + Panel<e4m3>::elements(n), kPanel * std::ptrdiff_t(sizeof(e4m3))};
    product_on_tiles<V, Tiles>(a + first, a_stride, m, wide, n, c, c_stride, add, next, kPanel);
    first += n, add = true;
  } while (first < k);
}

/// Rows of a tile meet what one scale has widened while the next is widened.
template <class V, class Tiles>
void product_of_scaled_on_tiles(const bf16* a, std::ptrdiff_t a_stride, int m, ScaledPanel panel, int k, float* c,
                                std::ptrdiff_t c_stride, bool add) noexcept {
  if (m > kTileSide) return product_widening_for_tiles<V, Tiles>(a, a_stride, m, panel, k, c, c_stride, add);
  alignas(64) bf16 wide[2][kScaleRows * kPanel];
  alignas(64) char tail[kTileSide * kTileBytes];
  alignas(64) float sums[kTileSide * kPanel];
  const auto widen = [&](int first) {
    const int n = least(kScaleRows, k - first);
    if (n <= 0) return;
    bf16* const to = wide[first / kScaleRows % 2];
    rung_below<V, Tiles>.widen_scaled(panel.from(first), n, to);
    for (std::int64_t i = Panel<bf16>::elements((n + 3) / 4 * 4); n % kPairRows != 0 && i < kScaleRows * kPanel; ++i)
      to[i] = {};
  };
  Tiles::configure(shapes_of_columns(m));
  widen(0);
  for (int first = 0; first == 0 || first < k; first += kSumBlock) {
    const int end = least(k, first + kSumBlock);
    unrolled<4>([]<int C>() __attribute__((always_inline)) { Tiles::template zero<C>(); });
    for (int scale = first; scale < end; scale += kScaleRows) {
      widen(scale + kScaleRows);
      const auto* columns = reinterpret_cast<const char*>(wide[scale / kScaleRows % 2]);
      for (int p = scale; p < least(end, scale + kScaleRows); p += kPairRows, columns += kStepBytes) {
        load_weights<V, Tiles>(a + p, a_stride, m, least(end - p, kPairRows), tail);
        add_columns<TileDotBf16<Tiles>>(columns);
      }
    }
    store_columns<Tiles>(sums);
    for (int r = 0; r < m; ++r)
      for (int i = 0; i < kPanel; i += V::kLanes) {
        float* const to = c + r * c_stride + i;
        const auto sum = V::load_float(sums + r * kPanel + i);
        V::store_float(to, add ? V::load_float(to) + sum : sum);
      }
    add = true;
  }
  release<Tiles>();
}

// ---- the table ----------------------------------------------------------------------------------------------------

/// Six chains of dots with one tile of rows and one of columns, both full of ones: `word`.
template <class Dot, std::int32_t word>
double peak_on_tiles(int rounds) noexcept {
  using Tiles = typename Dot::Tiles;
  constexpr int kChains = 6;
  alignas(64) std::int32_t row[kTileSide];
  for (std::int32_t& x : row) x = word;
  Tiles::configure(shapes_of(kTileSide));  // which leaves 0 in all of them
  Tiles::template load<6>(row, 0);
  Tiles::template load<7>(row, 0);
  for (int r = 0; r < rounds; ++r)
    unrolled<kChains>([]<int C>() __attribute__((always_inline)) { Dot::template dot<C, 6, 7>(); });
  release<Tiles>();
  constexpr int kElements = kTileBytes / int(sizeof(typename Dot::Row));
  return 2.0 * rounds * kChains * kTileSide * kTileSide * kElements;
}

/// The table of the rung below becomes that of the same rung with tiles.
template <class V, class Tiles>
void fill_tiles(Kernels& k) {
  rung_below<V, Tiles> = k;
  static_cast<Entry<Product<bf16, bf16>>&>(k.product) = {product_on_tiles<V, Tiles>};
  k.widens_rows = false;
  static_cast<Entry<ProductOfCodes>&>(k.product) = {product_of_codes_on_tiles<V, Tiles>};
  static_cast<Entry<ProductOfScaled<bf16>>&>(k.product) = {product_of_scaled_on_tiles<V, Tiles>};
  static_cast<Entry<IndexScoresOfCodes>&>(k.index_scores) = {index_scores_on_tiles<V, Tiles>};
  static_cast<Entry<GemvDotsOfPairs>&>(k.gemv_dots) = {gemv_dots_of_pairs_on_tiles<V, Tiles>};
  static_cast<Entry<GemvSumsOfPairs>&>(k.gemv_sums) = {gemv_sums_of_pairs_on_tiles<V, Tiles>};
  static_cast<Entry<StripProduct<bf16, bf16, float>>&>(k.strip_product) = {strip_product_of_pairs_on_tiles<V, Tiles>};
  static_cast<Entry<StripProduct<std::uint8_t, std::int8_t, std::int32_t>>&>(k.strip_product) = {
      strip_product_of_codes_on_tiles<V, Tiles>};
  k.gemv_rows = least(k.gemv_rows, kTileSide);  // one tile
  k.strip_rows = 8;  // more were not measured
  k.keep_shapes = keep_shapes<Tiles>;
  k.peak[int(Dot::i8)] = peak_on_tiles<TileDotI8<Tiles>, 0x01010101>;
  k.peak[int(Dot::bf16)] = peak_on_tiles<TileDotBf16<Tiles>, 0x3f803f80>;
}

}  // namespace
}  // namespace dsakit
