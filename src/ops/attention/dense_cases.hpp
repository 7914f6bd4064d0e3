// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "core/float16.hpp"
#include "core/random.hpp"
#include "ops/attention/dense.hpp"

namespace dsakit::attention::dense {

/// Elements of any type, int4 (i32) in nibbles.
struct Store {
  DType type = DType::f32;
  std::vector<std::byte> bytes;

  Store() = default;
  Store(DType type, std::int64_t n)
      : type(type), bytes(std::size_t(type == DType::i32 ? (n + 7) / 8 * 4 : n * size())) {}
  int size() const { return type == DType::f32 || type == DType::i32 ? 4 : type == DType::i8 ? 1 : 2; }
  void set(std::int64_t i, float x) {
    const auto put = [&](auto v) { std::memcpy(bytes.data() + i * std::int64_t(sizeof v), &v, sizeof v); };
    if (type == DType::bf16) put(to_bf16(x));
    if (type == DType::f16) put(to_f16(x));
    if (type == DType::f32) put(x);
    if (type == DType::i8) put(std::int8_t(x));
    if (type == DType::i32) {
      auto& byte = bytes[std::size_t(i / 2)];
      byte = i % 2 ? (byte & std::byte{15}) | std::byte(std::uint8_t(int(x) & 15) << 4)
                   : (byte & std::byte{240}) | std::byte(std::uint8_t(int(x) & 15));
    }
  }
  float get(std::int64_t i) const {
    const auto take = [&](auto v) {
      std::memcpy(&v, bytes.data() + i * std::int64_t(sizeof v), sizeof v);
      return v;
    };
    if (type == DType::bf16) return to_float(take(bf16{}));
    if (type == DType::f16) return to_float(take(f16{}));
    if (type == DType::i8) return take(std::int8_t{});
    if (type == DType::i32) {
      const int four = int(bytes[std::size_t(i / 2)] >> (i % 2 * 4)) & 15;
      return float(four < 8 ? four : four - 16);
    }
    return take(0.0f);
  }
};

enum class Per { none, tensor, head, channel, token, token_head, page, page_head };
enum class Layout { heads_inside, heads_outside, nz };

struct Shape {
  std::vector<std::pair<int, int>> lengths = {{1, 1}};  // queries, keys
  int kv_heads = 1, group = 1, width = 16, rope = 0, value = 16;
  DType query = DType::bf16, kv = DType::bf16, out = DType::bf16, parameters = DType::f32;
  Per key = Per::none, val = Per::none;
  bool offsets = false, folded = false, bias = false;
  int mask = 0;   // 0: none; else one of so many keys is seen
  int block = 0;  // rows of a page; 0: contiguous
  Layout layout = Layout::heads_inside;
  int causal = 0;               // 1: mode 3; 2: a band of the last 9; 3: top-left
  float scale = 0, spread = 1;  // of the scores (0: width^-0.5) and of the query
  bool poison = true;           // NaN in keys, values and parameters that nobody sees
  std::uint64_t seed = 1, page_seed = 1;
};

/// A problem and its memory. The same seed gives the same numbers per logical position, whatever pages and strides.
struct Case {
  Shape shape;
  std::vector<Sequence> sequences;
  std::vector<std::int32_t> table;
  std::vector<std::uint8_t> mask;
  Store query, query_rope, query_scale, key, values, key_rope, key_scale, key_offset, value_scale, value_offset, bias,
      out_scale, out_offset;
  std::int64_t b, longest_query = 0, longest_key = 0, queries = 0, keys = 0, pages = 0, columns = 0, heads;
  DType rope_type;
  float scale;

  explicit Case(const Shape&);

  std::int64_t row(std::int64_t s, std::int64_t q) const {
    return shape.folded ? sequences[s].first_query + q : s * longest_query + q;
  }
  /// Element of a cache of `width` columns.
  std::int64_t at(std::int64_t s, std::int64_t g, std::int64_t k, std::int64_t d, int width, int block) const;
  std::int64_t at(Per per, std::int64_t s, std::int64_t g, std::int64_t k, std::int64_t d, int width) const;
  std::int64_t elements(Per per, int width) const;
  int nz_block(DType type) const { return shape.layout == Layout::nz ? 32 / Store(type, 0).size() : 0; }
  bool sees(std::int64_t s, std::int64_t q, std::int64_t k) const;
  float parameter(const Store& store, Per per, std::int64_t s, std::int64_t g, std::int64_t k, std::int64_t d,
                  int width, float absent) const {
    return store.bytes.empty() ? absent : store.get(at(per, s, g, k, d, width));
  }
  /// In T: as fp32 the two documented operations.
  template <class T>
  T key_at(std::int64_t s, std::int64_t g, std::int64_t k, std::int64_t d) const {
    return (T(key.get(at(s, g, k, d, shape.width, nz_block(shape.kv)))) +
            T(parameter(key_offset, shape.key, s, g, k, d, shape.width, 0))) *
           T(parameter(key_scale, shape.key, s, g, k, d, shape.width, 1));
  }
  template <class T>
  T value_at(std::int64_t s, std::int64_t g, std::int64_t k, std::int64_t d) const {
    return (T(values.get(at(s, g, k, d, shape.value, nz_block(shape.kv)))) +
            T(parameter(value_offset, shape.val, s, g, k, d, shape.value, 0))) *
           T(parameter(value_scale, shape.val, s, g, k, d, shape.value, 1));
  }

  /// Rows of `out`: (row(s, q) * heads + h) * value.
  std::int64_t out_rows() const { return (shape.folded ? queries : b * longest_query) * heads; }
  Problem problem(Store& out, std::vector<float>& lse) const;
};

inline bool Case::sees(std::int64_t s, std::int64_t q, std::int64_t k) const {
  const Sequence& x = sequences[s];
  return k < x.keys && k >= q + x.from && k <= q + x.to &&
         (mask.empty() || !mask[(s * longest_query + q) * longest_key + k]);
}

inline std::int64_t Case::at(std::int64_t s, std::int64_t g, std::int64_t k, std::int64_t d, int width,
                             int block) const {
  const std::int64_t n = shape.kv_heads;
  if (!shape.block) {
    const std::int64_t first = shape.folded ? sequences[s].first_key : 0, all = shape.folded ? keys : longest_key;
    const std::int64_t page = shape.folded ? 0 : s;
    return shape.layout == Layout::heads_inside ? ((page * all + first + k) * n + g) * width + d
                                                : ((page * n + g) * all + first + k) * width + d;
  }
  const std::int64_t page = table[s * columns + k / shape.block], row = k % shape.block;
  if (shape.layout == Layout::nz)
    return (((page * n + g) * (width / block) + d / block) * shape.block + row) * block + d % block;
  return shape.layout == Layout::heads_inside ? ((page * shape.block + row) * n + g) * width + d
                                              : ((page * n + g) * shape.block + row) * width + d;
}

inline std::int64_t Case::at(Per per, std::int64_t s, std::int64_t g, std::int64_t k, std::int64_t d, int width) const {
  const std::int64_t page = shape.block ? table[s * columns + k / shape.block] : 0,
                     row = shape.block ? k % shape.block : 0;
  switch (per) {
    case Per::head:
      return g;
    case Per::channel:
      return g * width + d;
    case Per::token:
      return s * (longest_key + 3) + k;
    case Per::token_head:
      return (s * shape.kv_heads + g) * (longest_key + 3) + k;
    case Per::page:
      return page * shape.block + row;
    case Per::page_head:
      return (page * shape.kv_heads + g) * shape.block + row;
    default:
      return 0;
  }
}

inline std::int64_t Case::elements(Per per, int width) const {
  switch (per) {
    case Per::none:
      return 0;
    case Per::tensor:
      return 1;
    case Per::head:
      return shape.kv_heads;
    case Per::channel:
      return std::int64_t(shape.kv_heads) * width;
    case Per::token:
      return b * (longest_key + 3);
    case Per::token_head:
      return b * shape.kv_heads * (longest_key + 3);
    case Per::page:
      return pages * shape.block;
    case Per::page_head:
      return pages * shape.kv_heads * shape.block;
  }
  return 0;
}

inline Case::Case(const Shape& sh) : shape(sh), b(std::int64_t(sh.lengths.size())), heads(sh.kv_heads * sh.group) {
  Random r(sh.seed), shuffle(sh.page_seed + 99);
  constexpr std::int64_t kFar = std::int64_t{1} << 61;
  scale = sh.scale != 0 ? sh.scale : 1 / std::sqrt(float(sh.width + sh.rope));
  rope_type = sh.query == DType::i8 ? DType::bf16 : sh.query;
  for (const auto& [l1, l2] : sh.lengths) {
    const int delta = l2 - l1;
    sequences.push_back({sh.folded ? queries : 0, l1, sh.folded && !sh.block ? keys : 0, l2,
                         sh.causal == 2 ? delta - 8 : -kFar,
                         sh.causal == 3 ? 0
                         : sh.causal    ? delta
                                        : kFar});
    queries += l1, keys += l2;
    longest_query = std::max<std::int64_t>(longest_query, l1), longest_key = std::max<std::int64_t>(longest_key, l2);
    if (sh.block) pages += (l2 + sh.block - 1) / sh.block;
  }
  if (sh.block) {
    pages += 1;
    columns = longest_key / sh.block + 2;
    std::vector<std::int32_t> order(static_cast<std::size_t>(pages));
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = std::int32_t(i);
    for (std::int64_t i = pages - 1; i > 0; --i) std::swap(order[i], order[shuffle.below(i + 1)]);
    table.assign(std::size_t(b * columns), -1);
    std::int64_t next = 0;
    for (std::int64_t s = 0; s < b; ++s)
      for (std::int64_t i = 0; i * sh.block < sequences[s].keys; ++i) table[s * columns + i] = order[next++];
  }
  if (sh.mask) {
    mask.assign(std::size_t(b * longest_query * longest_key), 0);
    for (auto& x : mask) x = r.below(sh.mask) ? std::uint8_t(1 + r.below(255)) : 0;
    if (!mask.empty()) std::fill_n(mask.begin(), longest_key, 1);  // one row sees nothing
  }
  const std::int64_t rows = sh.folded ? queries : b * longest_query;
  const auto fill = [&](Store& store, DType type, std::int64_t n, float low, float high) {
    store = Store(type, n);
    for (std::int64_t i = 0; i < n; ++i)
      store.set(i, type == DType::i8 ? float(r.below(256) - 128) : low + (high - low) * (r.normal() / 2));
  };
  fill(query, sh.query, rows * heads * sh.width, 0, 2 * sh.spread);
  fill(query_rope, rope_type, rows * heads * sh.rope, 0, 2 * sh.spread);
  if (sh.query == DType::i8) {
    query_scale = Store(DType::f32, rows * heads);
    for (std::int64_t i = 0; i < rows * heads; ++i) query_scale.set(i, r.uniform(0.005f, 0.02f));
  }
  if (sh.bias) fill(bias, sh.query, b * heads * longest_query * longest_key, 0, 2);
  if (sh.out == DType::i8) {
    out_scale = Store(sh.parameters, heads * sh.value), out_offset = Store(sh.parameters, heads * sh.value);
    for (std::int64_t i = 0; i < heads * sh.value; ++i)
      out_scale.set(i, r.uniform(20, 80)), out_offset.set(i, r.uniform(-9, 9));
  }
  // What nobody sees stays poisoned; what somebody sees is written per logical position.
  const std::int64_t cache_rows = (sh.block ? pages * sh.block : sh.folded ? keys : b * longest_key) * sh.kv_heads;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto blank = [&](DType type, std::int64_t n) {
    Store store(type, n);
    if (type != DType::i8 && type != DType::i32)
      for (std::int64_t i = 0; i < n; ++i) store.set(i, nan);
    return store;
  };
  key = blank(sh.kv, cache_rows * sh.width), values = blank(sh.kv, cache_rows * sh.value);
  key_rope = blank(rope_type, cache_rows * sh.rope);
  key_scale = blank(sh.parameters, elements(sh.key, sh.width)),
  value_scale = blank(sh.parameters, elements(sh.val, sh.value));
  if (sh.offsets)
    key_offset = blank(sh.parameters, elements(sh.key, sh.width)),
    value_offset = blank(sh.parameters, elements(sh.val, sh.value));
  for (std::int64_t s = 0; s < b; ++s)
    for (std::int64_t k = 0; k < sequences[s].keys; ++k) {
      bool used = !sh.poison;
      for (std::int64_t q = 0; q < sequences[s].queries; ++q) used = used || sees(s, q, k);
      for (std::int64_t g = 0; g < sh.kv_heads; ++g) {
        const auto put = [&](Store& store, std::int64_t i, float x) {
          if (used) store.set(i, x);
        };
        const auto any = [&] {
          return sh.kv == DType::i8    ? float(r.below(256) - 128)
                 : sh.kv == DType::i32 ? float(r.below(16) - 8)
                                       : r.normal();
        };
        for (int d = 0; d < sh.width; ++d) put(key, at(s, g, k, d, sh.width, nz_block(sh.kv)), any());
        for (int d = 0; d < sh.value; ++d) put(values, at(s, g, k, d, sh.value, nz_block(sh.kv)), any());
        for (int d = 0; d < sh.rope; ++d) put(key_rope, at(s, g, k, d, sh.rope, nz_block(rope_type)), r.normal());
        const float unit = sh.kv == DType::i8 ? 1.0f / 64 : 0.25f;
        const auto parameters = [&](Per per, int width, Store& scales, Store& offsets) {
          for (int d = 0; d < (per == Per::channel ? width : 1) && per != Per::none; ++d) {
            const std::int64_t i = at(per, s, g, k, d, width);
            const float x = r.uniform(0.5f * unit, unit) * (r.below(5) ? 1.0f : -1.0f), y = r.uniform(-3, 3);
            const bool shared = per < Per::token;  // by all keys: the last one decides
            if (shared || used) scales.set(i, x);
            if (sh.offsets && (shared || used)) offsets.set(i, y);
          }
        };
        parameters(sh.key, sh.width, key_scale, key_offset), parameters(sh.val, sh.value, value_scale, value_offset);
      }
    }
}

inline Problem Case::problem(Store& out, std::vector<float>& lse) const {
  const Shape& s = shape;
  Problem p;
  p.sequence = sequences.data(), p.sequences = b;
  p.kv_heads = s.kv_heads, p.group = s.group, p.width = s.width, p.rope = s.rope, p.value = s.value, p.scale = scale;
  p.query_type = s.query, p.kv_type = s.kv, p.rope_type = rope_type;
  const auto data = [](const Store& x) { return const_cast<std::byte*>(x.bytes.data()); };
  const auto grid = [&](const Store& x, std::int64_t width) {
    return Grid{data(x), s.folded ? 0 : longest_query * heads * width, heads * width, width};
  };
  p.query = grid(query, s.width), p.query_rope = grid(query_rope, s.rope), p.query_scale = grid(query_scale, 1);
  const auto cache = [&](const Store& x, int width, int block) {
    const std::int64_t n = s.kv_heads, w = x.type == DType::i32 ? width / 8 : width;
    Cache c{.data = x.bytes.data()};
    if (s.block) {
      c.page = s.block * n * w;
      if (block) c.block = block, c.block_stride = s.block * block, c.row = block, c.head = s.block * w;
      else if (s.layout == Layout::heads_inside) c.row = n * w, c.head = w;
      else c.row = w, c.head = s.block * w;
      return c;
    }
    const std::int64_t all = s.folded ? keys : longest_key;
    c.sequence = s.folded ? 0 : all * n * w;
    if (s.layout == Layout::heads_inside) c.row = n * w, c.head = w;
    else c.row = w, c.head = all * w;
    return c;
  };
  p.key = cache(key, s.width, nz_block(s.kv)), p.values = cache(values, s.value, nz_block(s.kv));
  p.key_rope = cache(key_rope, s.rope, nz_block(rope_type));
  if (s.block) p.pages = {table.data(), columns, 1, s.block};
  const auto parameter = [&](const Store& x, Per per, int width) {
    Parameter y{.data = x.bytes.empty() ? nullptr : x.bytes.data(), .dtype = s.parameters};
    const std::int64_t n = s.kv_heads, w = longest_key + 3;
    if (per == Per::head) y.head = 1;
    if (per == Per::channel) y.head = width, y.column = 1;
    if (per == Per::token) y.sequence = w, y.position = 1;
    if (per == Per::token_head) y.sequence = n * w, y.head = w, y.position = 1;
    if (per == Per::page) y.page = s.block, y.row = 1;
    if (per == Per::page_head) y.page = n * s.block, y.head = s.block, y.row = 1;
    y.per_key = per >= Per::token, y.per_column = per == Per::channel;
    return y;
  };
  p.key_scale = parameter(key_scale, s.key, s.width), p.key_offset = parameter(key_offset, s.key, s.width);
  p.value_scale = parameter(value_scale, s.val, s.value), p.value_offset = parameter(value_offset, s.val, s.value);
  if (s.mask) p.mask = mask.data(), p.mask_sequence = longest_query * longest_key, p.mask_row = longest_key;
  if (s.bias) p.bias = {data(bias), heads * longest_query * longest_key, longest_key, longest_query * longest_key};
  out = Store(s.out, out_rows() * s.value);
  std::fill(out.bytes.begin(), out.bytes.end(), std::byte{0x11});
  lse.assign(std::size_t(out_rows()), -1);
  p.out = grid(out, s.value), p.out_type = s.out;
  if (s.out == DType::i8) {
    p.out_scale = {
        .data = out_scale.bytes.data(), .dtype = s.parameters, .head = s.value, .column = 1, .per_column = true};
    p.out_offset = {
        .data = out_offset.bytes.data(), .dtype = s.parameters, .head = s.value, .column = 1, .per_column = true};
  }
  p.lse = {lse.data(), s.folded ? 0 : longest_query * heads, heads, 1};
  p.lse_of_no_keys = -3.4e38f;
  return p;
}

}  // namespace dsakit::attention::dense
