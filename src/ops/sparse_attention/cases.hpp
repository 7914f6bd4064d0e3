// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "dsakit/kv_quant_sparse_flash_attention.hpp"
#include "dsakit/sparse_flash_attention.hpp"
#include "ops/indexer/cases.hpp"

namespace dsakit::sparse_attention {

enum class Data { uniform, peaked, flat, large, wide_scales };

// The two operators by one name.
inline void attend(const SparseFlashAttentionArgs& a, const SparseFlashAttentionOuts& o, Context& c) {
  sparse_flash_attention(a, o, c);
}
inline void attend(const KvQuantSparseFlashAttentionArgs& a, const KvQuantSparseFlashAttentionOuts& o, Context& c) {
  kv_quant_sparse_flash_attention(a, o, c);
}
using reference::ProbabilityRounding;
inline void attend(const SparseFlashAttentionArgs& a, const SparseFlashAttentionOuts& o, ProbabilityRounding r) {
  reference::sparse_flash_attention(a, o, r);
}
inline void attend(const KvQuantSparseFlashAttentionArgs& a, const KvQuantSparseFlashAttentionOuts& o,
                   ProbabilityRounding r) {
  reference::kv_quant_sparse_flash_attention(a, o, r);
}

inline std::uint16_t bits_of(DType type, float x) { return type == DType::f16 ? to_f16(x).bits : to_bf16(x).bits; }
inline float number(DType type, std::uint16_t bits) {
  return type == DType::f16 ? to_float(f16{bits}) : to_float(bf16{bits});
}

/// Outputs of the rows of tokens, in their order; the bits of all rows beside them.
struct Result {
  std::vector<float> out, most, sum;
  std::vector<std::uint16_t> bits;
  bool operator==(const Result&) const = default;  // of numbers: -0 equals +0, and there is no NaN
};

/// A ragged batch with its lists, and a call on it in any layout. Numbers depend on seed, sequence and position only.
struct Case {
  indexer::Batch batch;
  DType type = DType::bf16;
  std::int64_t heads = 3, mode = 3, entries = 12, block = 1;
  int dv = 16, dr = 4, tile = 0;  // tile 0: sparse_flash_attention
  Data data = Data::uniform;
  std::uint64_t seed = 1;
  bool lse = true, poison = true, with_sinks = false;
  std::string index_check = "error", numerics = "exact";
  float scale = 0.25f;

  std::vector<std::vector<std::int32_t>> lists;  // one per query token; drawn by fill()
  std::vector<float> sinks;
  // Logical numbers, per token.
  std::vector<std::uint16_t> query, query_rope, latent, key_rope;
  std::vector<std::int8_t> codes;
  std::vector<float> scales;
  // Memory of a call.
  std::vector<std::uint16_t> query_memory, query_rope_memory, key_memory, key_rope_memory, out_memory;
  std::vector<std::int8_t> row_memory;
  std::vector<std::int32_t> list_memory, table_memory;
  std::vector<float> most_memory, sum_memory;

  bool packed() const { return tile > 0; }
  int tiles() const { return packed() ? dv / tile : 0; }
  int row_bytes() const { return dv + 2 * dr + 4 * tiles(); }
  std::int64_t query_tokens() const {
    return std::accumulate(batch.queries.begin(), batch.queries.end(), std::int64_t{0});
  }
  std::int64_t key_tokens() const { return std::accumulate(batch.keys.begin(), batch.keys.end(), std::int64_t{0}); }

  std::int64_t visible(std::size_t b, std::int64_t i) const {
    const std::int64_t lq = batch.queries[b], lk = batch.keys[b];
    return mode == 0 ? lk : std::clamp<std::int64_t>(lk - lq + i + 1, 0, lk);
  }

  /// f(sequence, row in it, query token, first key token of the sequence)
  template <class F>
  void each_query(F f) const {
    std::int64_t token = 0, first_key = 0;
    for (std::size_t b = 0; b < batch.queries.size(); first_key += batch.keys[b++])
      for (std::int64_t i = 0; i < batch.queries[b]; ++i) f(b, i, token++, first_key);
  }

  /// The positions that a row attends to, in the order of its list.
  std::vector<std::int64_t> attended(std::size_t b, std::int64_t i, std::int64_t token) const {
    std::vector<std::int64_t> all;
    const std::int64_t n = visible(b, i);
    for (std::int64_t e = 0; n > 0 && e < entries; ++e) {
      const std::int64_t entry = lists[std::size_t(token)][std::size_t(e)];
      if (entry == -1) break;
      for (std::int64_t p = entry * block; p < (entry + 1) * block && p < n; ++p) all.push_back(p);
    }
    return all;
  }

  /// Draws lists and numbers. A list may hold what its row does not see, the same block twice, and ends somewhere.
  void fill() {
    Random r(seed);
    const std::int64_t rows = query_tokens() * heads, keys = key_tokens();
    if (data == Data::flat) scale = 0;
    if (data == Data::peaked) scale = 3;
    if (data == Data::large) scale = 40;
    const auto numbers = [&](std::int64_t n) {
      std::vector<std::uint16_t> x(static_cast<std::size_t>(n));
      for (auto& v : x) v = bits_of(type, r.uniform(-1, 1));
      return x;
    };
    query = numbers(rows * dv), query_rope = numbers(rows * dr);
    latent = numbers(packed() ? 0 : keys * dv), key_rope = numbers(keys * dr);
    codes = random_i8(r, packed() ? keys * dv : 0);
    scales.clear();
    for (std::int64_t i = 0; i < keys * tiles(); ++i) {
      const float least = data == Data::wide_scales ? 20 : 2;
      const float x = std::ldexp(r.uniform(0.5f, 1), -7 - int(r.uniform(0, least)));
      scales.push_back(r.below(10) ? x : 0);  // now and then an all-zero tile
    }
    sinks.clear();
    for (std::int64_t h = 0; with_sinks && h < heads; ++h) sinks.push_back(h % 3 == 1 ? -INFINITY : r.uniform(-2, 2));
    lists.clear();
    each_query([&](std::size_t b, std::int64_t, std::int64_t, std::int64_t) {
      const std::int64_t blocks = (batch.keys[b] + block - 1) / block;
      std::vector<std::int32_t> all(static_cast<std::size_t>(blocks)), list;
      std::iota(all.begin(), all.end(), 0);
      for (std::int64_t j = 0; j < std::min(blocks, entries); ++j) {
        std::swap(all[std::size_t(j)], all[std::size_t(j + r.below(blocks - j))]);
        list.push_back(all[std::size_t(r.below(20) ? j : 0)]);
      }
      if (r.below(4) == 0) list.resize(std::size_t(r.below(std::int64_t(list.size()) + 1)));
      if (std::int64_t(list.size()) < entries) list.push_back(-1);
      while (std::int64_t(list.size()) < entries)
        list.push_back(r.below(3) ? -1 : std::numeric_limits<std::int32_t>::max());
      lists.push_back(std::move(list));
    });
  }

  float q_at(std::int64_t row, int c) const { return number(type, query[std::size_t(row * dv + c)]); }
  double latent_at(std::int64_t key, int c) const {
    if (!packed()) return number(type, latent[std::size_t(key * dv + c)]);
    return double(codes[std::size_t(key * dv + c)]) * double(scales[std::size_t(key * tiles() + c / tile)]);
  }

  /// Lays everything into memory. Rows that nobody attends to are NaN, pages without others are bad (if poisoned).
  void place() {
    std::vector<bool> used(std::size_t(key_tokens()), !poison);
    each_query([&](std::size_t b, std::int64_t i, std::int64_t token, std::int64_t first_key) {
      for (const std::int64_t p : attended(b, i, token)) used[std::size_t(first_key + p)] = true;
    });
    const auto spread = [&](const auto& rows, std::int64_t width, auto filler) {
      auto kept = rows;
      for (std::size_t key = 0; key < used.size(); ++key)
        if (!used[key]) std::fill_n(kept.begin() + std::int64_t(key) * width, width, filler);
      return indexer::Batch::spread(kept, width, batch.key_place, batch.key_rows, filler);
    };
    constexpr std::uint16_t kNan = 0xffff;  // of either type
    query_memory = indexer::Batch::spread(query, heads * dv, batch.query_place, batch.query_rows, kNan);
    query_rope_memory = indexer::Batch::spread(query_rope, heads * dr, batch.query_place, batch.query_rows, kNan);
    if (packed()) {
      std::vector<std::int8_t> rows(std::size_t(key_tokens() * row_bytes()));
      for (std::int64_t key = 0; key < key_tokens(); ++key) {
        std::int8_t* row = rows.data() + key * row_bytes();
        const auto put = [row](std::int64_t at, const auto* from, std::int64_t count) {
          if (count > 0) std::memcpy(row + at, from, sizeof(*from) * std::size_t(count));
        };
        put(0, codes.data() + key * dv, dv);
        put(dv, key_rope.data() + key * dr, dr);
        put(dv + 2 * dr, scales.data() + key * tiles(), tiles());
      }
      row_memory = spread(rows, row_bytes(), std::int8_t{-1});
      std::vector<std::uint16_t> joined;
      for (std::int64_t row = 0; row < batch.query_rows * heads; ++row) {
        joined.insert(joined.end(), query_memory.begin() + row * dv, query_memory.begin() + (row + 1) * dv);
        joined.insert(joined.end(), query_rope_memory.begin() + row * dr, query_rope_memory.begin() + (row + 1) * dr);
      }
      query_memory = std::move(joined);
    } else {
      key_memory = spread(latent, dv, kNan), key_rope_memory = spread(key_rope, dr, kNan);
    }
    std::vector<std::int32_t> flat;
    for (const auto& list : lists) flat.insert(flat.end(), list.begin(), list.end());
    list_memory = indexer::Batch::spread(flat, entries, batch.query_place, batch.query_rows, -77);
    table_memory = batch.block_table;
    if (batch.paged() && poison) {
      std::int64_t key = 0;
      for (std::size_t b = 0; b < batch.keys.size(); ++b)
        for (std::int64_t page = 0; page < batch.columns; ++page) {
          bool needed = false;
          const std::int64_t n = std::clamp<std::int64_t>(batch.keys[b] - page * batch.block_size, 0, batch.block_size);
          for (std::int64_t i = 0; i < n; ++i) needed |= used[std::size_t(key++)];
          if (!needed) table_memory[b * std::size_t(batch.columns) + std::size_t(page)] = page % 2 ? -1 : INT32_MAX;
        }
    }
    const std::size_t rows = std::size_t(batch.query_rows * heads);
    out_memory.assign(rows * std::size_t(dv), 0x1234);
    most_memory.assign(rows, 77), sum_memory.assign(rows, 78);
  }

  Tensor as_type(Tensor t) const { return t.dtype = type, t; }
  Tensor halves(std::vector<std::uint16_t>& v, Tensor shape) const { return shape.data = v.data(), as_type(shape); }
  std::int64_t sequences() const { return batch.size(); }

  template <class Args>
  Args common() {
    Args a;
    a.sparse_indices = batch.list_tensor(list_memory.data(), entries);
    a.scale_value = scale;
    if (batch.paged()) a.block_table = tensor(table_memory.data(), {sequences(), batch.columns});
    a.actual_seq_lengths_query = tensor(batch.lengths_query.data(), {sequences()});
    a.actual_seq_lengths_kv = tensor(batch.lengths_key.data(), {sequences()});
    a.sparse_block_size = block;
    a.layout_query = batch.layout_query, a.layout_kv = batch.layout_key;
    a.sparse_mode = mode, a.attention_mode = 2;
    a.return_softmax_lse = lse;
    if (with_sinks) a.sinks = tensor(sinks.data(), {heads});
    a.index_check = index_check;
    a.numerics = numerics;
    return a;
  }
  SparseFlashAttentionArgs args() {
    auto a = common<SparseFlashAttentionArgs>();
    a.query = halves(query_memory, batch.query_tensor<bf16>(nullptr, heads, dv));
    a.query_rope = halves(query_rope_memory, batch.query_tensor<bf16>(nullptr, heads, dr));
    a.key = a.value = halves(key_memory, batch.key_tensor<bf16>(nullptr, dv));
    a.key_rope = halves(key_rope_memory, batch.key_tensor<bf16>(nullptr, dr));
    return a;
  }
  KvQuantSparseFlashAttentionArgs kv_args() {
    auto a = common<KvQuantSparseFlashAttentionArgs>();
    a.query = halves(query_memory, batch.query_tensor<bf16>(nullptr, heads, dv + dr));
    a.key = a.value = batch.key_tensor(row_memory.data(), row_bytes());
    a.key_quant_mode = a.value_quant_mode = 2;
    a.tile_size = tile, a.rope_head_dim = dr;
    return a;
  }
  template <class Outs>
  Outs outs() {
    const std::int64_t s1 = batch.s1, rows = batch.query_rows;
    const auto softmax = [&](std::vector<float>& v) {
      if (!lse) return Tensor{};
      return batch.folded() ? tensor(v.data(), {1, rows, heads}) : tensor(v.data(), {sequences(), 1, s1, heads});
    };
    return {.attention_out = halves(out_memory, batch.query_tensor<bf16>(nullptr, heads, dv)),
            .softmax_max = softmax(most_memory),
            .softmax_sum = softmax(sum_memory)};
  }

  Result result() const {
    Result r;
    r.bits = batch.gather(out_memory, heads * dv);
    for (const std::uint16_t x : r.bits) r.out.push_back(number(type, x));
    if (lse) r.most = batch.gather(most_memory, heads), r.sum = batch.gather(sum_memory, heads);
    return r;
  }
  /// `how`: a Context, or the rounding of the reference.
  template <class How>
  Result run(How&& how) {
    place();
    if (packed()) attend(kv_args(), outs<KvQuantSparseFlashAttentionOuts>(), how);
    else attend(args(), outs<SparseFlashAttentionOuts>(), how);
    return result();
  }
};

/// The formula in double, written once more: nothing shared with the library.
struct Exact {
  std::vector<double> out, most, sum, largest;  // largest: absolute score of a row

  explicit Exact(const Case& c) {
    c.each_query([&](std::size_t b, std::int64_t i, std::int64_t token, std::int64_t first_key) {
      const std::vector<std::int64_t> list = c.attended(b, i, token);
      for (std::int64_t h = 0; h < c.heads; ++h) {
        const double sink = c.with_sinks ? double(c.sinks[std::size_t(h)]) : -INFINITY;
        std::vector<double> score, value(std::size_t(c.dv), 0.0);
        double m = sink, l = 0, big = 0;
        for (const std::int64_t p : list) {
          const std::int64_t row = token * c.heads + h, key = first_key + p;
          double s = 0;
          for (int d = 0; d < c.dv; ++d) s += double(c.q_at(row, d)) * c.latent_at(key, d);
          for (int d = 0; d < c.dr; ++d)
            s += double(number(c.type, c.query_rope[std::size_t(row * c.dr + d)])) *
                 double(number(c.type, c.key_rope[std::size_t(key * c.dr + d)]));
          m = std::fmax(m, score.emplace_back(s * double(c.scale)));
          big = std::fmax(big, std::fabs(score.back()));
        }
        if (sink > -INFINITY) l = std::exp(sink - m);
        for (std::size_t j = 0; j < list.size(); ++j) {
          const double p = std::exp(score[j] - m);
          l += p;
          for (int d = 0; d < c.dv; ++d) value[std::size_t(d)] += p * c.latent_at(first_key + list[j], d);
        }
        for (const double v : value) out.push_back(list.empty() ? 0 : v / l);
        most.push_back(m == -INFINITY ? 0 : m), sum.push_back(l), largest.push_back(big);
      }
    });
  }
};

inline Case random_case(std::uint64_t seed) {
  static const std::int64_t heads[] = {1, 2, 3, 8, 17}, blocks[] = {1, 1, 1, 2, 4, 16};
  static const int widths[] = {1, 16, 33, 64, 96}, ropes[] = {0, 1, 8, 33};
  Random r(seed);
  Case c;
  c.seed = seed;
  c.batch = indexer::random_batch(r, r.below(6) ? 60 : 700);
  c.type = r.below(2) ? DType::bf16 : DType::f16;
  c.mode = r.below(2) * 3, c.heads = heads[r.below(5)];
  c.dv = widths[r.below(5)], c.dr = ropes[r.below(4)];
  if (r.below(2)) {
    c.tile = c.dv;
    for (const int tile : {1, 11, 16, 32})
      if (c.dv % tile == 0 && r.below(2)) c.tile = tile;
  }
  c.block = blocks[r.below(6)];
  if (c.batch.paged() && c.batch.block_size % c.block != 0) c.block = 1;
  c.entries = 1 + r.below(r.below(3) ? 40 : 600);
  c.data = Data(r.below(5)), c.with_sinks = r.below(3) == 0, c.lse = r.below(4) != 0;
  c.fill();
  return c;
}

}  // namespace dsakit::sparse_attention
