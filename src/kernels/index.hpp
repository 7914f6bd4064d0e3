// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "kernels/dot.hpp"
#include "kernels/gemv.hpp"
#include "kernels/panel.hpp"

// Index scores: tiles of some keys and some registers of heads, whose dots, relu and weights become sixteen lanes of a
// key. Lanes are carried from group to group of heads, and folded at the end.
namespace dsakit {
namespace {

/// Registers of heads of one tile at most, and keys of a tile: as many dots as there are registers for.
template <class V>
constexpr int kHeadVectors = V::kRegisters == 32 ? 4 : V::kParts;
template <class V>
constexpr int index_keys(int vectors) {
  return V::kRegisters == 32 ? (vectors <= 2 ? 12 : 6) : 12 / vectors;
}

constexpr int kPreparedCodes = 24 * kSumBlock;  // of keys; wider ones are widened as they are read

/// int8 keys and queries. Missing dims meet a key of 0: whatever the query holds there cancels.
template <class V, class Dot>
struct CodeScores {
  using I = typename V::I;
  using Query = IndexQueryI8;
  using Key = std::int8_t;
  static constexpr bool kPrepares = PreparesKeys<Dot>;
  static constexpr int kKeys = kPrepares ? 24 : 132;  // whose lanes are carried, and which lie prepared
  static constexpr int kGroup = 4 * kHeadBlock;       // codes of sixteen heads

  /// Adds the dots of `Keys` keys with `Vectors` registers of heads to the lanes. `start`: of each key. `key` may lie
  /// prepared. `Tail`: dims need not be a multiple of four.
  template <int Keys, int Vectors, bool Tail, class From>
  DSAKIT_INLINE static void tile(const std::uint8_t* codes, std::ptrdiff_t pitch, const float* weight,
                                 const std::int32_t* start, int dims, const From* key, std::ptrdiff_t key_stride, typename V::F* lane) {
    using F = typename V::F;
    constexpr int kParts = V::kParts;
    I dot[Keys][Vectors];
    if constexpr (Squares<Dot> && Keys > 1) squares<Keys, Vectors>(codes, pitch, dims, key, key_stride, dot);
    else dots<Keys, Vectors, Tail>(codes, pitch, start, dims, key, key_stride, dot);
#pragma GCC unroll 12
    for (int k = 0; k < Keys; ++k) {
      F sum[kParts];
#pragma GCC unroll 4
      for (int p = 0; p < kParts; ++p) sum[p] = lane[k * kParts + p];
#pragma GCC unroll 4
      for (int v = 0; v < Vectors; ++v)
        sum[v % kParts] = V::fma(V::load_float(weight + V::kLanes * v), V::to_float(V::max(dot[k][v], I{})),
                                 sum[v % kParts]);
#pragma GCC unroll 4
      for (int p = 0; p < kParts; ++p) lane[k * kParts + p] = sum[p];
    }
  }

  template <int Keys, int Vectors, bool Tail, class From>
  DSAKIT_INLINE static void dots(const std::uint8_t* codes, std::ptrdiff_t pitch, const std::int32_t* start,
                                 int dims, const From* key, std::ptrdiff_t key_stride, I (&dot)[Keys][Vectors]) {
    constexpr int kParts = V::kParts, kSteps = Dot::kSteps;
#pragma GCC unroll 12
    for (int k = 0; k < Keys; ++k)
#pragma GCC unroll 4
      for (int v = 0; v < Vectors; ++v) {
        dot[k][v] = Dot::kBiasedQuery ? V::broadcast(start + k) : I{};
        pin(dot[k][v]);  // else gcc 12 moves them from register to register in the loop, and spills
      }
    const auto meet = [&](auto word) __attribute__((always_inline)) {
      unrolled<kSteps>([&]<int Step>() __attribute__((always_inline)) {
        I q[Vectors];
#pragma GCC unroll 4
        for (int v = 0; v < Vectors; ++v)
          q[v] = Dot::query(V::load(codes + v / kParts * pitch + v % kParts * V::kBytes), Step);
#pragma GCC unroll 12
        for (int k = 0; k < Keys; ++k) {
          const I x = word(key + k * key_stride, Step);
#pragma GCC unroll 4
          for (int v = 0; v < Vectors; ++v) dot[k][v] = Dot::meet(dot[k][v], q[v], x);
        }
      });
      codes += kGroup, key += 4;
    };
    if constexpr (!std::same_as<From, Key>) {
      for (int d = 0; d < dims; d += 4)
        meet([](const From* p, int step) __attribute__((always_inline)) { return V::broadcast(p + 2 * step); });
    } else {
      const auto word = [](const From* p, int step) __attribute__((always_inline)) {
        return Dot::key_word(V::broadcast(p), step);
      };
      for (int d = 0; d < dims / 4; ++d) meet(word);
#pragma GCC unroll 12
      for (int k = 0; k < Keys; ++k)
#pragma GCC unroll 4
        for (int v = 0; v < Vectors; ++v) pin(dot[k][v]);  // else gcc 12 spills all along
      if constexpr (Tail)
        if (dims % 4) {
          std::int32_t last[Keys];
          for (int k = 0; k < Keys; ++k) last[k] = load_some(key + k * key_stride, dims % 4);
          key = reinterpret_cast<const From*>(last), key_stride = 4;
          meet(word);
        }
    }
  }

  /// Two keys at a time, as the products of panels have their rows: eight bytes meet two groups of heads.
  template <int Keys, int Vectors>
  DSAKIT_INLINE static void squares(const std::uint8_t* codes, std::ptrdiff_t pitch, int dims, const Key* key,
                                    std::ptrdiff_t key_stride, I (&dot)[Keys][Vectors]) {
    constexpr int kPairs = (Keys + 1) / 2;
    I sum[kPairs][2 * Vectors] = {};
    const I flip = V::set(int(0x80808080));
    const auto step = [&](int next, const Key* from, std::ptrdiff_t stride) __attribute__((always_inline)) {
      I keys[kPairs];
#pragma GCC unroll 6
      for (int p = 0; p < kPairs; ++p)
        keys[p] = V::load_halves(from + 2 * p * stride, from + least(2 * p + 1, Keys - 1) * stride);
#pragma GCC unroll 4
      for (int v = 0; v < Vectors; ++v) {
        const std::uint8_t* at = codes + v / V::kParts * pitch + v % V::kParts * V::kBytes;
        const I x = V::load(at) ^ flip, y = V::load(at + next) ^ flip;
        const I low = V::unpack_low32(x, y), high = V::unpack_high32(x, y);
#pragma GCC unroll 6
        for (int p = 0; p < kPairs; ++p) {
          sum[p][2 * v] = Dot::square(sum[p][2 * v], keys[p], low);
          sum[p][2 * v + 1] = Dot::square(sum[p][2 * v + 1], keys[p], high);
        }
      }
    };
    int d = 0;
    for (; d + 8 <= dims; d += 8, codes += 2 * kGroup, key += 8) step(kGroup, key, key_stride);
    if (d < dims) {
      Key rest[Keys][8] = {};  // what is missing of a key is 0: any heads will do
      for (int k = 0; k < Keys; ++k)
        for (int i = 0; i < dims - d; ++i) rest[k][i] = key[k * key_stride + i];
      step(dims - d > 4 ? kGroup : 0, rest[0], 8);
    }
#pragma GCC unroll 12
    for (int k = 0; k < Keys; ++k)
#pragma GCC unroll 4
      for (int v = 0; v < Vectors; ++v) {
        const I low = sum[k / 2][2 * v], high = sum[k / 2][2 * v + 1];
        dot[k][v] = k % 2 == 0 ? V::unpack_low64(low, high) : V::unpack_high64(low, high);
      }
  }

  /// What the bias of the query adds to the dots of each key, negative; four keys at a time, written in whole fours.
  DSAKIT_INLINE static void starts(const Key* key, std::ptrdiff_t key_stride, int n, int dims, std::int32_t* start) {
    for (; n >= 4; n -= 4, key += 4 * key_stride, start += 4)
      starts_of_four(key, key + key_stride, key + 2 * key_stride, key + 3 * key_stride, dims, start);
    if (n > 0) starts_of_four(key, key + least(1, n - 1) * key_stride, key + (n - 1) * key_stride, key, dims, start);
  }

  DSAKIT_INLINE static void starts_of_four(const Key* a, const Key* b, const Key* c, const Key* e, int dims, std::int32_t* start) {
    const Key* const key[4] = {a, b, c, e};
    I sum[4] = {};
    int d = 0;
    for (; d + V::kBytes <= dims; d += V::kBytes)
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k) sum[k] = Dot::add_codes(sum[k], V::load(key[k] + d));
    if (d < dims)
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k) sum[k] = Dot::add_codes(sum[k], V::load_bytes(key[k] + d, dims - d));
    typedef std::int32_t Four __attribute__((vector_size(16)));
    const I folded = fold_fours<V>(sum);
    Four all = Four(V::block(folded, 0));
#pragma GCC unroll 3
    for (int b = 1; b < V::kBytes / 16; ++b) all += Four(V::block(folded, b));
    all *= -128;
    __builtin_memcpy(start, &all, sizeof all);
  }
};

/// fp32: each dot is one fma chain from +0, dims ascending. relu keeps NaN.
template <class V>
struct FloatScores {
  using F = typename V::F;
  using Query = IndexQueryF32;
  using Key = float;
  static constexpr int kKeys = 132;

  template <int Keys, int Vectors, bool Fma>
  DSAKIT_INLINE static void tile(const float* values, std::ptrdiff_t pitch, const float* weight, int dims,
                                 const float* key, std::ptrdiff_t key_stride, F* lane) {
    constexpr int kParts = V::kParts;
    F dot[Keys][Vectors];
#pragma GCC unroll 12
    for (int k = 0; k < Keys; ++k)
#pragma GCC unroll 4
      for (int v = 0; v < Vectors; ++v) dot[k][v] = F{};
    for (int d = 0; d < dims; ++d, values += kHeadBlock, ++key) {
      F q[Vectors];
#pragma GCC unroll 4
      for (int v = 0; v < Vectors; ++v)
        q[v] = V::load_float(values + v / kParts * pitch + v % kParts * V::kLanes);
#pragma GCC unroll 12
      for (int k = 0; k < Keys; ++k) {
        const F x = F(V::broadcast(key + k * key_stride));
#pragma GCC unroll 4
        for (int v = 0; v < Vectors; ++v)
          if constexpr (Fma) dot[k][v] = V::fma(q[v], x, dot[k][v]);
          else dot[k][v] += q[v] * x;
      }
    }
#pragma GCC unroll 12
    for (int k = 0; k < Keys; ++k) {
      F sum[kParts];
#pragma GCC unroll 4
      for (int p = 0; p < kParts; ++p) sum[p] = lane[k * kParts + p];
#pragma GCC unroll 4
      for (int v = 0; v < Vectors; ++v)  // max(0, NaN) is NaN
        sum[v % kParts] = V::fma(V::load_float(weight + V::kLanes * v), V::max(F{}, dot[k][v]), sum[v % kParts]);
#pragma GCC unroll 4
      for (int p = 0; p < kParts; ++p) lane[k * kParts + p] = sum[p];
    }
  }
};

/// f.operator()<Vectors>(first block, blocks) for groups of blocks of heads.
template <class V, class F>
DSAKIT_INLINE void for_each_head_group(int blocks, F f) {
  constexpr int kBlocks = kHeadVectors<V> / V::kParts;
  int block = 0;
  for (; block + kBlocks <= blocks; block += kBlocks) f.template operator()<kHeadVectors<V>>(block);
  if constexpr (kBlocks > 1)
    if (block < blocks)
      with_constant<kBlocks - 1>(blocks - block, [&]<int Blocks>() { f.template operator()<Blocks * V::kParts>(block); });
}

/// f.operator()<Keys>(first key) for n keys, large tiles first.
template <int Most, class F>
DSAKIT_INLINE void for_each_key_tile(int n, F f) {
  int k = 0;
  const auto tiles = [&]<int Keys>() __attribute__((always_inline)) {
    for (; k + Keys <= n; k += Keys) f.template operator()<Keys>(k);
  };
  if constexpr (Most >= 12) tiles.template operator()<12>();
  if constexpr (Most >= 6) tiles.template operator()<6>();
  tiles.template operator()<3>();
  tiles.template operator()<2>();
  tiles.template operator()<1>();
}

template <class V, class Dot, int Keys, int Vectors, bool Tail, class From>
[[gnu::noinline]] void code_tile(const std::uint8_t* codes, std::ptrdiff_t pitch, const float* weight,
                                 const std::int32_t* start, int dims, const From* key, std::ptrdiff_t key_stride,
                                 typename V::F* lane) {
  CodeScores<V, Dot>::template tile<Keys, Vectors, Tail>(codes, pitch, weight, start, dims, key, key_stride, lane);
}

/// The heads of a query of one block, up to the last weight that is not 0.
DSAKIT_INLINE int heads_of_block(const IndexQueryI8& query) {
  int heads = kHeadBlock;
  while (heads > 1 && query.weight[heads - 1] == 0) --heads;
  return heads;
}

/// Asks for n keys, unless there are none.
DSAKIT_INLINE void ask_for(const std::int8_t* key, std::ptrdiff_t key_stride, int n, int dims) {
  if (!key) return;
  for (int k = 0; k < n; ++k)
    for (int d = 0; d < dims; d += 64) prefetch_l2(key + k * key_stride + d);
}

/// Keys [key, key + n) against a query; lanes in and out.
template <class V, class Dot>
DSAKIT_INLINE void add_scores(const IndexQueryI8& query, const std::int8_t* key, std::ptrdiff_t key_stride, int n,
                              const std::int32_t* start, typename V::F* lane, const std::int8_t* ahead) {
  using Scores = CodeScores<V, Dot>;
  const std::ptrdiff_t pitch = IndexQueryLayout<std::uint8_t>::block(query.dims);
  const auto groups = [&]<bool Tail>(const auto* from, std::ptrdiff_t stride) {
    using From = std::remove_cvref_t<decltype(*from)>;
    const auto group = [&]<int Vectors>(int block) {
      const std::uint8_t* codes = query.values + block * pitch;
      const float* weight = query.weight + block * kHeadBlock;
      constexpr bool kHalf = Squares<Dot> && Vectors == 2;  // of twelve keys sums and their operands would be spilled
      for_each_key_tile<Tail ? 3 : kHalf ? 6 : index_keys<V>(Vectors)>(n, [&]<int Keys>(int k) {
        if (ahead && block == 0) ask_for(ahead + k * key_stride, key_stride, Keys, query.dims);
        code_tile<V, Dot, Keys, Vectors, Tail, From>(codes, pitch, weight, start + k, query.dims, from + k * stride,
                                                     stride, lane + k * V::kParts);
      });
    };
    if (query.head_blocks > 1) return for_each_head_group<V>(query.head_blocks, group);
    with_constant<V::kParts>((heads_of_block(query) + V::kLanes - 1) / V::kLanes,
                             [&]<int Vectors>() { group.template operator()<Vectors>(0); });
  };
  if constexpr (Scores::kPrepares) {
    typename Dot::Prepared prepared[kPreparedCodes];
    const int stride = (query.dims + 3) / 4 * 4;
    if (n * stride <= kPreparedCodes) {
      for (int k = 0; k < n; ++k) Dot::prepare(key + k * key_stride, query.dims, 0, prepared + k * stride);
      return groups.template operator()<false>(prepared, stride);
    }
  }
  if (!Scores::kPrepares && query.dims % 4 == 0) groups.template operator()<false>(key, key_stride);
  else groups.template operator()<true>(key, key_stride);
}

constexpr int kFewHeads = 8;

/// How many heads a query has that would leave half of a register's lanes empty; 0: more, or more dims than there is room for.
template <class V>
DSAKIT_INLINE int few_heads(const IndexQueryI8& query) {
  if (query.head_blocks > 1 || query.dims > kSumBlock) return 0;
  const int heads = heads_of_block(query);
  return heads <= kFewHeads ? heads : 0;
}

/// The first heads of a query as GemvQuery has rows; what follows is overwritten.
template <class V>
DSAKIT_INLINE void rows_of_heads(const IndexQueryI8& query, int heads, std::int32_t* rows) {
  using I = typename V::I;
  using Layout = IndexQueryLayout<std::uint8_t>;
  const int groups = (query.dims + 3) / 4, tail = query.dims % 4;
  const I last = V::set(tail == 0 ? -1 : (1 << 8 * tail) - 1);
  constexpr int kParts = (kFewHeads + V::kLanes - 1) / V::kLanes;
  I sum[kParts] = {};
  for (int g = 0; g < groups; ++g)
#pragma GCC unroll 2
    for (int p = 0; p < kParts; ++p) {
      I x = V::biased(V::load(query.values + Layout::at(query.dims, p * V::kLanes, 4 * g)));
      if (g + 1 == groups) x &= last;
      sum[p] = V::add_codes(sum[p], x);
      if (p * V::kLanes < heads) V::store(rows + GemvQuery::at(heads, p * V::kLanes, g), x);
    }
  for (int h = 0; h < heads; ++h) rows[GemvQuery::start(h)] = -128 * sum[h / V::kLanes][h % V::kLanes];
}

/// Lanes are keys then: heads are the rows of a GEMV with keys where they lie. A lane without a head would add 0, of
/// codes: floats that are not finite may make it NaN.
template <class V, class Dot>
void index_scores_of_few(const IndexQueryI8& query, int heads, const std::int8_t* key, std::ptrdiff_t key_stride,
                         int count, float* scores, const std::int8_t* ahead) {
  using F = typename V::F;
  constexpr int kKeys = 64;
  static constexpr float kUnits[kFewHeads] = {1, 1, 1, 1, 1, 1, 1, 1};
  std::int32_t rows[kFewHeads * (1 + kSumBlock / 4) + kHeadBlock];
  rows_of_heads<V>(query, heads, rows);
  const int groups = (query.dims + 3) / 4, words = GemvQuery::words(query.dims, 1, 4);
  std::int32_t* const rest = rows + GemvQuery::at(heads, 0, groups);
  for (int i = 0; i < (words - groups) * heads; ++i) rest[i] = 0;
  for (int n; count > 0; count -= n, key += n * key_stride, scores += n) {
    n = least(count, kKeys);
    const std::byte* keys[kKeys + kGemvKeys];
    for (int k = 0; k < kKeys + kGemvKeys; ++k)
      keys[k] = reinterpret_cast<const std::byte*>(key + least(k, count - 1) * key_stride);
    ask_for(ahead, key_stride, n, query.dims);
    if (ahead) ahead += n * key_stride;
    alignas(64) float dot[kFewHeads * kKeys];
    gemv_dots_of_codes<V, Dot>(rows, heads, 1, keys, n, query.dims, kUnits, dot, kKeys, keys, 0);
    for (int k = 0; k < n; k += V::kLanes) {
      F lane[kFewHeads] = {};
      for (int h = 0; h < heads; ++h)  // -0 + 0 is 0, as of fma
        lane[h] = V::set_float(query.weight[h]) * V::max(F{}, V::load_float(dot + h * kKeys + k)) + F{};
#pragma GCC unroll 3
      for (int half = kFewHeads / 2; half > 0; half /= 2)
#pragma GCC unroll 4
        for (int h = 0; h < half; ++h) lane[h] = lane[h] + lane[h + half];
      V::store_floats(scores + k, lane[0], least(n - k, V::kLanes));
    }
  }
}

/// Heads as they meet keys along the dims where a dot takes two steps: code[d][h] has a register of codes of 16 bits.
template <class V, class Dot>
struct HeadsAlongDims {
  using I = typename V::I;
  static constexpr int kCodes = V::kBytes / 2, kTile = 4;
  I code[kSumBlock / kCodes][kFewHeads];
  float weight[kFewHeads / kTile][2 * kTile];

  DSAKIT_INLINE HeadsAlongDims(const IndexQueryI8& query, int heads) {
    for (int h = 0; h < heads; ++h) {
      std::int32_t words[kSumBlock / 4];
      for (int g = 0; g < (query.dims + 3) / 4; ++g)
        words[g] = load32(query.values + IndexQueryLayout<std::uint8_t>::at(query.dims, h, 4 * g)) ^ int(0x80808080);
      const auto* const codes = reinterpret_cast<const std::int8_t*>(words);
      for (int d = 0; d < query.dims; d += kCodes) code[d / kCodes][h] = V::load_short_codes(codes + d, query.dims - d);
    }
    for (int h = 0; h < kFewHeads; ++h)
      weight[h / kTile][h % kTile] = weight[h / kTile][h % kTile + kTile] = query.weight[h];
  }
};

/// What heads from `first` on say of keys, eight at a time: a block of lanes of to[j] has four heads of key j of them, the
/// other those of key j + 4.
template <class V, class Dot, int Heads>
[[gnu::noinline]] void score_along_dims(const HeadsAlongDims<V, Dot>& heads, int first, int dims,
                                        const std::int8_t* const* key, int count, typename V::F* to) {
  using F = typename V::F;
  using I = typename V::I;
  using All = HeadsAlongDims<V, Dot>;
  const F weight = V::load_float(heads.weight[first / All::kTile]);
  for (int j = 0; j < count / 2; ++j, ++to, key += j % 4 == 0 ? 5 : 1) {
    I sum[2][All::kTile] = {};
    const I* code = heads.code[0] + first;
    const auto step = [&](int d, int n) __attribute__((always_inline)) {
      const I x = V::load_short_codes(key[0] + d, n), y = V::load_short_codes(key[4] + d, n);
#pragma GCC unroll 4
      for (int h = 0; h < Heads; ++h) {
        I q = code[h];
        pin(q);  // two dots have it from one load
        sum[0][h] = Dot::dot(sum[0][h], x, q), sum[1][h] = Dot::dot(sum[1][h], y, q);
      }
      code += kFewHeads;
    };
    int d = 0;
    for (; d + All::kCodes <= dims; d += All::kCodes) step(d, All::kCodes);
    if (d < dims) step(d, dims - d);
    const I dot = V::add_blocks(fold_fours<V>(sum[0]), fold_fours<V>(sum[1]));
    const F score = weight * V::to_float(V::max(dot, I{})) + F{};  // -0 + 0 is 0, as of fma
    *to = first > 0 ? *to + score : score;
  }
}

template <class V, class Dot>
void index_scores_along_dims(const IndexQueryI8& query, int count_of_heads, const std::int8_t* key,
                             std::ptrdiff_t key_stride, int count, float* scores, const std::int8_t* ahead) {
  using All = HeadsAlongDims<V, Dot>;
  constexpr int kKeys = 64;
  const All heads(query, count_of_heads);
  for (int n; count > 0; count -= n, key += n * key_stride, scores += n) {
    n = least(count, kKeys);
    const std::int8_t* keys[kKeys];
    for (int k = 0; k < (n + 7) / 8 * 8; ++k) keys[k] = key + least(k, n - 1) * key_stride;
    ask_for(ahead, key_stride, n, query.dims);
    if (ahead) ahead += n * key_stride;
    typename V::F score[kKeys / 2];
    for (int h = 0; h < count_of_heads; h += All::kTile)
      with_constant<All::kTile>(least(count_of_heads - h, All::kTile), [&]<int Heads>() {
        score_along_dims<V, Dot, Heads>(heads, h, query.dims, keys, (n + 7) / 8 * 8, score);
      });
    for (int k = 0; k < n; k += 8) V::store_floats(scores + k, fold_fours<V>(score + k / 2), n - k);
  }
}

/// Heads as they meet keys along the dims, with registers of 32 bytes: each half has sixteen codes, signed, of a head of its
/// own, 2r and 2r + 1 in register r, and sixteen codes of a key meet both.
template <class V, class Dot>
struct FewHeads {
  using I = typename V::I;
  static constexpr int kCodes = 16, kRegisters = kFewHeads / 2;
  I code[kSumBlock / kCodes][kRegisters];
  I start[kRegisters];
  I bias = Dot::key(I{});  // of keys

  DSAKIT_INLINE explicit FewHeads(const IndexQueryI8& query) {
    using Layout = IndexQueryLayout<std::uint8_t>;
    const int groups = (query.dims + 3) / 4;
    const I last = V::set(query.dims % 4 == 0 ? -1 : (1 << 8 * (query.dims % 4)) - 1);
    I sum{};
    for (int g = 0; g < groups; g += 4) {
      I x[4] = {};  // four codes of each head
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i)
        if (g + i < groups) {
          x[i] = V::biased(V::load(query.values + Layout::at(query.dims, 0, 4 * (g + i))));
          if (g + i + 1 == groups) x[i] &= last;
          sum = V::add_codes(sum, x[i]);
        }
      const I a = V::unpack_low32(x[0], x[1]), b = V::unpack_low32(x[2], x[3]);
      const I c = V::unpack_high32(x[0], x[1]), d = V::unpack_high32(x[2], x[3]);
      const I four[4] = {V::unpack_low64(a, b), V::unpack_high64(a, b), V::unpack_low64(c, d), V::unpack_high64(c, d)};
      I* const to = code[g / 4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i)
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) V::store_block(half_of(to, 4 * half + i), four[i], half);
    }
#pragma GCC unroll 8
    for (int h = 0; h < kFewHeads; ++h) {
      const std::int32_t bias = -128 / 4 * sum[h], biases[4] = {bias, bias, bias, bias};
      __builtin_memcpy(half_of(start, h), biases, sizeof biases);
    }
  }
  DSAKIT_INLINE static std::byte* half_of(I* registers, int head) {
    return reinterpret_cast<std::byte*>(registers) + kCodes * head;
  }
};

/// Sixteen codes of some keys meet some registers of heads: the fewer of them are held.
template <class V, class Dot, int Keys, int Registers>
DSAKIT_INLINE void meet_heads(const FewHeads<V, Dot>& heads, int d, const std::int8_t* key, std::ptrdiff_t key_stride,
                              typename V::I (&sum)[Keys][Registers]) {
  using I = typename V::I;
  const auto codes = [&](int k) __attribute__((always_inline)) { return V::broadcast_half(key + k * key_stride) ^ heads.bias; };
  const I* const code = heads.code[d / FewHeads<V, Dot>::kCodes];
  if constexpr (V::kRegisters == 16 && Registers > 2) forget();  // the bias: there is no register for it
  if constexpr (Registers <= Keys) {
    I q[Registers];
#pragma GCC unroll 4
    for (int r = 0; r < Registers; ++r) q[r] = code[r], pin(q[r]);
#pragma GCC unroll 8
    for (int k = 0; k < Keys; ++k) {
      const I x = codes(k);
#pragma GCC unroll 4
      for (int r = 0; r < Registers; ++r) sum[k][r] = Dot::dot(sum[k][r], x, q[r]), pin(sum[k][r]);
    }
  } else {
    I x[Keys];
#pragma GCC unroll 4
    for (int k = 0; k < Keys; ++k) x[k] = codes(k), pin(x[k]);
#pragma GCC unroll 4
    for (int r = 0; r < Registers; ++r) {
      I q = code[r];
      pin(q);
#pragma GCC unroll 4
      for (int k = 0; k < Keys; ++k) sum[k][r] = Dot::dot(sum[k][r], x[k], q), pin(sum[k][r]);
    }
  }
}

/// Keys that meet so many registers of heads at once: twelve sums hide what a dot waits for, eight what one register needs.
constexpr int keys_of_few(int registers) { return registers == 1 ? 8 : 12 / registers; }

/// Whose dots lane `lane` of the halves of register i has, once sums are folded: which key's, with which register of heads.
struct FewDots {
  int key, heads;
};
constexpr FewDots dots_of_few(int registers, int i, int lane) {
  return registers == 1   ? FewDots{4 * i + lane, 0}
         : registers == 2 ? FewDots{2 * i + lane % 2, lane / 2}
         : registers == 3 ? FewDots{lane, i}
                          : FewDots{i, lane};
}

/// Sums of keys become dots, four sums a register of them, and those what their heads say of keys: a half has four keys of
/// the heads of one register, two of two, or one key of all heads.
template <class V, class Dot, int Registers>
[[gnu::noinline]] void score_few(const FewHeads<V, Dot>& heads, int dims, const std::int8_t* key, std::ptrdiff_t key_stride,
                                 const typename V::F (&weight)[3], typename V::F* to) {
  using I = typename V::I;
  constexpr int kKeys = keys_of_few(Registers), kCodes = FewHeads<V, Dot>::kCodes;
  I sum[kKeys][Registers];
#pragma GCC unroll 8
  for (int k = 0; k < kKeys; ++k)
#pragma GCC unroll 4
    for (int r = 0; r < Registers; ++r) {
      sum[k][r] = heads.start[r];
      pin(sum[k][r]);
    }
  int d = 0;
  for (; d + kCodes <= dims; d += kCodes) meet_heads(heads, d, key + d, key_stride, sum);
  if (d < dims) {
    std::int8_t rest[kKeys][kCodes] = {};
    for (int k = 0; k < kKeys; ++k) __builtin_memcpy(rest[k], key + k * key_stride + d, std::size_t(dims - d));
    meet_heads(heads, d, rest[0], kCodes, sum);
  }
#pragma GCC unroll 3
  for (int i = 0; i < kKeys * Registers / 4; ++i) {
    I four[4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const FewDots of = dots_of_few(Registers, i, j);
      four[j] = sum[of.key][of.heads];
    }
    to[i] = weight[i] * V::to_float(V::max(fold_fours<V>(four), I{})) + typename V::F{};  // -0 + 0 is 0, as of fma
  }
}

/// Eight scores from what score_few made of eight keys: sums of heads in halves, as lanes are folded.
template <class V, int Registers>
DSAKIT_INLINE typename V::F sum_of_few(const typename V::F* from) {
  using F = typename V::F;
  using I = typename V::I;
  F x[2];
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i, from += Registers)
    if constexpr (Registers == 1) x[i] = from[0];
    else if constexpr (Registers == 2) x[i] = F(V::unpack_low64(I(from[0]), I(from[1]))) + F(V::unpack_high64(I(from[0]), I(from[1])));
    else if constexpr (Registers == 3) x[i] = (from[0] + from[2]) + from[1];
    else x[i] = fold_fours<V>(from);
  return V::add_blocks(x[0], x[1]);
}

template <class V, class Dot>
void index_scores_in_halves(const IndexQueryI8& query, int count_of_heads, const std::int8_t* key,
                            std::ptrdiff_t key_stride, int count, float* scores, const std::int8_t* ahead) {
  using F = typename V::F;
  constexpr int kSome = 48;  // keys
  const FewHeads<V, Dot> heads(query);
  with_constant<kFewHeads / 2>((count_of_heads + 1) / 2, [&]<int Registers>() {
    constexpr int kKeys = keys_of_few(Registers), kDots = kKeys * Registers / 4;
    F weight[3];
    for (int i = 0; i < 3; ++i) {
      float w[8];
      for (int lane = 0; lane < 8; ++lane) w[lane] = query.weight[2 * dots_of_few(Registers, i, lane % 4).heads + lane / 4];
      weight[i] = V::load_float(w);
    }
    for (int n; count > 0; count -= n, key += n * key_stride, scores += n) {
      n = least(count, kSome);
      ask_for(ahead, key_stride, n, query.dims);
      if (ahead) ahead += n * key_stride;
      F score[kSome / kKeys * kDots];
      int k = 0;
      for (; k + kKeys <= n; k += kKeys)
        score_few<V, Dot, Registers>(heads, query.dims, key + k * key_stride, key_stride, weight, score + k / kKeys * kDots);
      if (k < n) {
        std::int8_t last[kKeys][kSumBlock];  // what is missing is the last one again
        for (int i = 0; i < kKeys; ++i)
          __builtin_memcpy(last[i], key + least(k + i, n - 1) * key_stride, std::size_t(query.dims));
        score_few<V, Dot, Registers>(heads, query.dims, last[0], kSumBlock, weight, score + k / kKeys * kDots);
      }
      for (k = 0; k < n; k += 8)
        V::store_floats(scores + k, sum_of_few<V, Registers>(score + k * Registers / 4), least(n - k, 8));
    }
  });
}

template <class V, class Dot>
void index_scores_of_codes(const IndexQueryI8& query, const std::int8_t* key, std::ptrdiff_t key_stride, int count,
                           float* scores, const std::int8_t* ahead, KeyStarts* starts) noexcept {
  using Scores = CodeScores<V, Dot>;
  constexpr int kParts = V::kParts, kKeys = Scores::kKeys;
  static_assert(kKeys % 4 == 0);  // starts are made in fours
  if (const int heads = few_heads<V>(query); heads > 0 && count >= kGemvKeys) {
    if constexpr (V::kLanes != 8)
      return index_scores_of_few<V, Dot>(query, heads, key, key_stride, count, scores, ahead);
    else if constexpr (Dot::kSteps == 2)
      return index_scores_along_dims<V, Dot>(query, heads, key, key_stride, count, scores, ahead);
    else return index_scores_in_halves<V, Dot>(query, heads, key, key_stride, count, scores, ahead);
  }
  std::int32_t own[kKeys], *start = starts ? starts->start : own;
  const bool made = starts && starts->made;
  for (int n; count > 0; count -= n, key += n * key_stride, scores += n) {
    n = least(count, kKeys);
    typename V::F lane[kKeys * kParts];
    for (int i = 0; i < (n + 3) / 4 * 4 * kParts; ++i) lane[i] = typename V::F{};
    if constexpr (Dot::kBiasedQuery)
      if (!made) Scores::starts(key, key_stride, n, query.dims, start);
    add_scores<V, Dot>(query, key, key_stride, n, start, lane, ahead);
    if (ahead) ahead += n * key_stride;
    if (starts) start += n;
    store_folded<V>(lane, n, scores);
  }
  if (starts) starts->made = true;
}

/// The smallest magnitude that is not 0; infinity without one.
DSAKIT_INLINE float smallest(const float* x, std::ptrdiff_t n) {
  float least = __builtin_inff();
  for (std::ptrdiff_t i = 0; i < n; ++i) {
    const float magnitude = __builtin_fabsf(x[i]);
    least = magnitude != 0 && magnitude < least ? magnitude : least;
  }
  return least;
}

template <class V, int Keys, int Vectors, bool Fma>
[[gnu::noinline]] void float_tile(const float* values, std::ptrdiff_t pitch, const float* weight, int dims,
                                  const float* key, std::ptrdiff_t key_stride, typename V::F* lane) {
  FloatScores<V>::template tile<Keys, Vectors, Fma>(values, pitch, weight, dims, key, key_stride, lane);
}

template <class V>
void index_scores_of_floats(const IndexQueryF32& query, const float* key, std::ptrdiff_t key_stride, int count,
                            float* scores) noexcept {
  constexpr int kKeys = FloatScores<V>::kKeys, kParts = V::kParts;
  const std::ptrdiff_t pitch = IndexQueryLayout<float>::block(query.dims);
  // Products of two 16-bit floats are exact in fp32's normal range: there, multiplying and adding has the bits of fma,
  // which costs a function call where there is no instruction.
  const float least_value = V::kFma ? 0 : smallest(query.values, query.head_blocks * pitch);
  for (int n; count > 0; count -= n, key += n * key_stride, scores += n) {
    n = least(count, kKeys);
    typename V::F lane[kKeys * kParts];
    for (int i = 0; i < (n + 3) / 4 * 4 * kParts; ++i) lane[i] = typename V::F{};
    bool exact = !V::kFma;
    for (int k = 0; k < n && !V::kFma; ++k)
      exact = exact && least_value * smallest(key + k * key_stride, query.dims) >= 0x1p-126f;
    for_each_head_group<V>(query.head_blocks, [&]<int Vectors>(int block) {
      const float* values = query.values + block * pitch;
      const float* weight = query.weight + block * kHeadBlock;
      for_each_key_tile<index_keys<V>(Vectors)>(n, [&]<int Keys>(int k) {
        const float* from = key + k * key_stride;
        typename V::F* to = lane + k * kParts;
        if (exact) float_tile<V, Keys, Vectors, false>(values, pitch, weight, query.dims, from, key_stride, to);
        else float_tile<V, Keys, Vectors, true>(values, pitch, weight, query.dims, from, key_stride, to);
      });
    });
    store_folded<V>(lane, n, scores);
  }
}

}  // namespace
}  // namespace dsakit
