// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <type_traits>

#include "core/paged.hpp"
#include "ops/door.hpp"
#include "ops/sparse_attention/problem.hpp"

namespace dsakit::sparse_attention {
namespace {

using std::to_string;

constexpr std::int64_t kWidest = 1 << 24;  // of a key, so that a row fits the kernels' counts

std::string shape_of(const Tensor& t) { return "has shape " + brackets({t.shape.data(), std::size_t(t.rank)}); }

bool same_shape(const Tensor& a, const Tensor& b) {
  return a.rank == b.rank && std::equal(a.shape.begin(), a.shape.begin() + a.rank, b.shape.begin());
}

/// One call at the door; its questions carry the numbers of the documented table.
template <class Args, class Outs>
struct Door : BatchDoor {
  static constexpr bool packed = std::is_same_v<Args, KvQuantSparseFlashAttentionArgs>;
  const Args& a;
  Outs& o;
  const bool infer;
  const Tensors inputs = Tensors::inputs<Outs>(a);
  std::int64_t latent = 0, rope = 0;
  Problem p{};

  void presence_and_layouts() {  // 1 to 3
    check_given(c, inputs);
    if (!infer) {
      c.required(o.attention_out, "attention_out");
      if (a.return_softmax_lse) c.required(o.softmax_max, "softmax_max"), c.required(o.softmax_sum, "softmax_sum");
    }
    presence();
    if (a.attention_mode != 2)
      c.fail(Status::invalid_argument, "attention_mode", "", "is " + to_string(a.attention_mode), "2",
             "MLA in absorbed form, the only mode; the default of the documents is not one");
    layouts();
  }

  void input_shapes() {  // 4
    check_countable(c, inputs);
    query_shape(a.query);
    if (heads < 1) c.fail(Status::invalid_shape, "query", "", "has no heads", "at least 1");
    if (dims < 1 || dims > kWidest)
      c.fail(Status::invalid_shape, "query", "", "has width " + to_string(dims), "1..16777216");
    const Tensor &k = a.key, &list = a.sparse_indices;
    if constexpr (packed) {
      const std::int64_t row = k.rank > 0 ? k.shape[k.rank - 1] : 0;
      key_shape(k, row,
                paged         ? "block_num, block_size, one key head, bytes of a row"
                : folded_keys ? "T of key, one key head, bytes of a row"
                              : "B of query, S2, one key head, bytes of a row");
    } else {
      latent = dims, rope = a.query_rope.rank > 0 ? a.query_rope.shape[a.query_rope.rank - 1] : 0;
      if (rope > kWidest)
        c.fail(Status::invalid_shape, "query_rope", "", shape_of(a.query_rope), "rows of at most 16777216");
      per_head(a.query_rope, "query_rope", rope, "query tokens and heads, Dr");
      key_shape(k, latent,
                paged         ? "block_num, block_size, one key head, Dv of query"
                : folded_keys ? "T of key, one key head, Dv of query"
                              : "B of query, S2, one key head, Dv of query");
      Tensor wanted = k;
      wanted.shape[wanted.rank - 1] = rope;
      if (!same_shape(a.key_rope, wanted))
        c.fail(Status::invalid_shape, "key_rope", "", shape_of(a.key_rope),
               brackets({wanted.shape.data(), std::size_t(wanted.rank)}), "axes of key, Dr of query_rope");
    }
    p.entries = list.rank > 0 ? list.shape[list.rank - 1] : 0;
    if (p.entries < 1 && c.strict())
      c.fail(Status::invalid_shape, "sparse_indices", "", shape_of(list), "lists of at least 1", "strict");
    fits("sparse_indices", 1, p.entries);
    p.lists = per_token(list, "sparse_indices", {1, p.entries}, "B and S1 of query, one key head, K",
                        "T of query, one key head, K");
  }

  /// `count` rows of `width` for each token: their product is a number.
  void fits(const char* name, std::int64_t count, std::int64_t width) const {
    std::int64_t n = std::max<std::int64_t>(rows, 1);
    if (__builtin_mul_overflow(n, count, &n) || __builtin_mul_overflow(n, std::max<std::int64_t>(width, 1), &n) ||
        n > INT64_MAX / 8)
      c.fail(Status::invalid_shape, name, "", to_string(width) + " elements for each row of query",
             "at most 2^63-1 bytes");
  }

  Rows per_head(const Tensor& t, const char* name, std::int64_t width, const char* why) const {
    fits(name, heads, width);
    per_token(t, name, {heads, width}, why, why);
    return Rows(t, width == 1 ? 0 : 1);  // an axis of length 1 may be absent
  }

  void dtypes() const {  // 5
    c.dtype(a.query, "query", {DType::bf16, DType::f16});
    if constexpr (packed) {
      if (a.key.dtype == DType::f8_e4m3 || a.key.dtype == DType::f8_e5m2)
        c.fail(Status::unsupported, "key", "", std::string("has dtype ") + name_of(a.key.dtype), "int8",
               "float8 and hifloat8 rows exist on Atlas 950 only");
      c.dtype(a.key, "key", {DType::i8}, "packed rows");
    } else {
      c.dtype(a.key, "key", {a.query.dtype}, "dtype of query");
      c.dtype(a.query_rope, "query_rope", {a.query.dtype}, "dtype of query");
      c.dtype(a.key_rope, "key_rope", {a.query.dtype}, "dtype of query");
    }
    c.dtype(a.sparse_indices, "sparse_indices", {DType::i32});
    BatchDoor::dtypes();
    if (a.sinks) c.dtype(a.sinks, "sinks", {DType::f32});
  }

  /// Whether `value` is the codes of packed rows alone, as callers have it that clone them before they pack.
  bool codes_alone() const {
    if constexpr (packed) {
      if (c.strict() || a.rope_head_dim < 0 || a.rope_head_dim >= dims) return false;
      Tensor codes = a.key;
      codes.shape[codes.rank - 1] = dims - a.rope_head_dim;
      return same_shape(a.value, codes);
    }
    return false;
  }

  void value() const {  // 6; whether its rows are the key's is asked once lists can be followed
    if (!same_shape(a.value, a.key) && !codes_alone())
      c.fail(Status::invalid_shape, "value", "", shape_of(a.value),
             brackets({a.key.shape.data(), std::size_t(a.key.rank)}),
             packed ? "shape of key; portable: or its codes alone" : "shape of key");
    c.dtype(a.value, "value", {a.key.dtype}, "dtype of key");
  }

  void packing() {  // 7, 8
    if constexpr (packed) {
      per_tile(a.key_quant_mode, "key_quant_mode");
      per_tile(a.value_quant_mode, "value_quant_mode");
      if (a.quant_scale_repo_mode != 1)
        c.fail(Status::invalid_argument, "quant_scale_repo_mode", "", "is " + to_string(a.quant_scale_repo_mode), "1",
               "the scales are in the rows of key");
      for (auto [t, name] :
           {std::pair{&a.key_dequant_scale, "key_dequant_scale"}, {&a.value_dequant_scale, "value_dequant_scale"}})
        if (*t) c.fail(Status::invalid_argument, name, "", "is given", "absent", "the scales are in the rows of key");
      if (a.rope_head_dim < 0 || a.rope_head_dim >= dims)
        c.fail(Status::invalid_argument, "rope_head_dim", "", "is " + to_string(a.rope_head_dim),
               "0.." + to_string(dims - 1), "width of query, latent and rope");
      rope = a.rope_head_dim, latent = dims - rope;
      c.at_least(a.tile_size, "tile_size", 1);
      if (latent % a.tile_size != 0)
        c.fail(Status::invalid_argument, "tile_size", "", "is " + to_string(a.tile_size),
               "a divisor of " + to_string(latent), "Dv, the width of query without its rope");
      const std::int64_t bytes = a.key.shape[a.key.rank - 1], wanted = latent + 2 * rope + 4 * (latent / a.tile_size);
      if (bytes != wanted)
        c.fail(Status::invalid_shape, "key", "", "has rows of " + to_string(bytes) + " bytes", to_string(wanted),
               to_string(latent) + " codes, " + to_string(rope) + " rope values of two bytes, " +
                   to_string(latent / a.tile_size) + " scales of four");
      chip(a.tile_size == 128, "tile_size", "is ", a.tile_size, "128");
      chip(a.rope_head_dim == 64, "rope_head_dim", "is ", a.rope_head_dim, "64");
    }
  }

  void per_tile(std::int64_t mode, const char* name) const {
    if (mode != 2)
      c.fail(Status::invalid_argument, name, "", "is " + to_string(mode), "2", "per tile of a token, the only mode");
  }

  void chip(bool holds, const char* name, const char* what, std::int64_t got, const char* wanted) const {
    if (c.strict() && !holds) c.chip(false, name, what + to_string(got), wanted);
  }

  void results() {  // 4, 5
    if (infer && !o.attention_out) {
      o.attention_out = a.query;
      o.attention_out.data = nullptr, o.attention_out.read_only = false;
      o.attention_out.shape[o.attention_out.rank - 1] = latent;
      make_contiguous(o.attention_out);
    }
    plain(c, o.attention_out, "attention_out");
    p.attention.out = per_head(o.attention_out, "attention_out", latent, "query tokens and heads, Dv");
    c.dtype(o.attention_out, "attention_out", {a.query.dtype}, "dtype of query");
    p.attention.max = softmax(o.softmax_max, "softmax_max");
    p.attention.sum = softmax(o.softmax_sum, "softmax_sum");
  }

  Rows softmax(Tensor& t, const char* name) const {
    const bool wanted = a.return_softmax_lse;
    const Tensor shape = !wanted  ? shaped(DType::f32, {0})
                         : folded ? shaped(DType::f32, {1, rows, heads})
                                  : shaped(DType::f32, {batch, 1, s1, heads});
    if (infer && !t) t = shape;
    if (!t) return {Tensor{}, 0};
    plain(c, t, name);
    const bool fits = wanted && !c.strict() ? t.elements() == rows * heads : same_shape(t, shape);
    if (!fits && (wanted || t.elements() != 0))
      c.fail(Status::invalid_shape, name, "", shape_of(t), brackets({shape.shape.data(), std::size_t(shape.rank)}),
             wanted ? "one key head, query tokens and heads" : "return_softmax_lse is false");
    c.dtype(t, name, {DType::f32});
    return {wanted ? t : Tensor{}, 0};
  }

  void sizes_and_modes() {  // 9 to 14
    chip(latent == 512, "query", "has a latent of width ", latent, "512");
    if constexpr (!packed) chip(rope == 64, "query_rope", "has width ", rope, "64");
    chip(std::has_single_bit(std::uint64_t(heads)) && heads <= 128, "query", "has heads: ", heads,
         "1, 2, 4, 8, 16, 32, 64 or 128");
    c.at_least(a.sparse_block_size, "sparse_block_size", 1);
    if (shard.ranks > 1 && shard.interleave % a.sparse_block_size != 0)
      c.fail(Status::unsupported, "sparse_block_size", "", "is " + to_string(a.sparse_block_size),
             "a divisor of " + to_string(shard.interleave), "interleave: what an entry names is one rank's");
    if (paged && s2 % a.sparse_block_size != 0)
      c.fail(Status::invalid_argument, "sparse_block_size", "", "is " + to_string(a.sparse_block_size),
             "a divisor of " + to_string(s2), "block_size of key");
    const std::int64_t largest = packed ? 16 : 128;
    chip(std::has_single_bit(std::uint64_t(a.sparse_block_size)) && a.sparse_block_size <= largest, "sparse_block_size",
         "is ", a.sparse_block_size, packed ? "a power of two up to 16" : "a power of two up to 128");
    block_size();
    mask(a.sparse_mode, a.pre_tokens, a.next_tokens);
    if (!std::isfinite(a.scale_value) || !std::isfinite(float(a.scale_value)))
      c.fail(Status::invalid_argument, "scale_value", "", "is " + to_string(a.scale_value), "a finite number");
    c.one_of(a.index_check, "index_check", {"error", "mask"});
    c.chip(a.index_check == "error", "index_check", "is \"mask\"", "\"error\"");
    c.one_of(a.numerics, "numerics", {"exact", "device", "golden"});
  }

  void lists() {  // 15, 16
    p.sequences = sequences(a.sparse_mode);
    p.block = std::min<std::int64_t>(a.sparse_block_size, std::int64_t{1} << 31);  // more than any key length
    c.readable(a.sparse_indices, "sparse_indices");
    const PageOf page_of(s2 / p.block);
    for (std::int64_t b = 0; b < p.sequences.count(); ++b) {
      const SequenceRows s = p.sequences.at(b);
      for (std::int64_t i = 0; i < s.queries; ++i)
        if (s.visible(i) > 0) list(s, i, page_of);
    }
  }

  /// Every entry up to the first -1, and the pages of those that are attended. Nothing else is read.
  void list(const SequenceRows& s, std::int64_t i, PageOf page_of) const {
    const std::uint32_t visible = p.visible_blocks(s, i),
                        known = std::uint32_t(std::min<std::int64_t>(pages, INT64_C(1) << 31));
    const Ownership blocks{shard.ranks, shard.rank, std::max<std::int64_t>(shard.interleave / p.block, 1)};
    const bool all = shard.ranks == 1;
    const std::int64_t on_device = c.strict() ? std::min<std::int64_t>(visible, p.entries) : p.entries;
    const auto* entry = p.lists.template row<const std::int32_t>(s.first_row + i);
    const auto* table = static_cast<const std::int32_t*>(a.block_table.data) + s.index * a.block_table.stride[0];
    std::int64_t e = 0;
    for (; e < on_device; ++e) {
      const auto block = std::uint32_t(entry[e]);
      if (block >= visible) {
        if (entry[e] == -1) return;
        hidden(s, i, e, entry[e]);
      } else if (paged && (all || blocks.owns(block))) {
        const std::int64_t page = page_of(all ? block : blocks.local(block));
        if (std::uint32_t(table[page]) >= known) bad_page(s.index, page, shard.below(s.keys));
      }
    }
    for (; e < p.entries && entry[e] != -1; ++e) {
      if (std::uint32_t(entry[e]) >= visible) hidden(s, i, e, entry[e]);
      else
        c.fail(Status::unsupported, "sparse_indices", place(s, i, e), "is " + to_string(entry[e]),
               "in the first " + to_string(on_device) + " entries, the others would be dropped",
               "[strict: Atlas A2/A3]");
    }
  }

  /// An entry that is not visible must be one of the sequence, unless those past it are ignored.
  void hidden(const SequenceRows& s, std::int64_t i, std::int64_t e, std::int64_t got) const {
    const std::int64_t blocks = (s.keys + p.block - 1) / p.block;
    if (got >= 0 && (got < blocks || a.index_check == "mask")) return;
    std::string why = "key length of sequence " + to_string(s.index);
    if (p.block > 1) why += ", " + to_string(s.keys) + " in blocks of " + to_string(a.sparse_block_size);
    c.fail(Status::invalid_index, "sparse_indices", place(s, i, e), "is " + to_string(got),
           got < 0 ? "-1 or 0.." + to_string(blocks - 1) : "below " + to_string(blocks), why);
  }

  std::string place(const SequenceRows& s, std::int64_t i, std::int64_t e) const {
    return folded ? subscript({s.first_row + i, 0, e}) : subscript({s.index, i, 0, e});
  }

  void chip_calls() const {  // 17, 18, 19
    if (!packed && a.return_softmax_lse && paged) c.chip(false, "return_softmax_lse", "is true", "false with PA_BSND");
    if (a.sinks) {
      c.chip(false, "sinks", "is given", "absent: Atlas 950 only");
      c.shape(a.sinks, "sinks", {heads}, "N1 of query");
      c.readable(a.sinks, "sinks");
      for (std::int64_t h = 0; h < heads; ++h)
        if (std::isnan(static_cast<const float*>(a.sinks.data)[h]))
          c.fail(Status::invalid_argument, "sinks", subscript({h}), "is nan", "a number");
    }
    for (auto [t, name] : {std::pair{&a.query, "query"}, {&a.key, "key"}})
      if (t->elements() == 0) c.chip(false, name, "has no elements", "at least one");
  }

  void memory() const {  // 20
    const Tensors all(a, o);
    check_memory(c, all, packed && paged ? Caches::free_first_axis : Caches::contiguous);
    check_separate(c, all);
  }

  void resolve() {
    attention::sparse::Problem& x = p.attention;
    x.type = a.query.dtype, x.tokens = rows, x.heads = heads, x.latent = int(latent), x.rope = int(rope);
    using reference::ProbabilityRounding;
    if (a.numerics == "device") x.rounding = {ProbabilityRounding::unnormalised_tile2048, x.type == DType::f16};
    if (a.numerics == "golden") x.rounding = {ProbabilityRounding::normalised};
    x.scale = float(a.scale_value), x.sinks = static_cast<const float*>(a.sinks.data);
    x.query = Rows(a.query, 1);
    x.keys = {.rows = {.data = nullptr, .page_stride = folded_keys ? 0 : s2, .row_stride = 1, .page_size = s2},
              .latent = Rows(a.key, 1)};
    if (paged) {
      x.keys.rows.table = static_cast<const std::int32_t*>(a.block_table.data);
      x.keys.rows.table_stride = a.block_table.stride[0];
    }
    if constexpr (packed) {
      Tensor rest = a.query;  // of a query row: the rope part behind the latent
      if (rest.data) rest.data = static_cast<std::byte*>(rest.data) + latent * size_of(rest.dtype);
      x.query_rope = Rows(rest, 1);
      x.keys.tile = int(a.tile_size), x.keys.rope_from = int(latent), x.keys.scales_from = int(latent + 2 * rope);
    } else {
      x.query_rope = per_head(a.query_rope, "query_rope", rope, "query tokens and heads, Dr");
      x.keys.rope = Rows(a.key_rope, 1);
    }
  }

  /// f(key row) for every attended position, lowest query row first.
  template <class F>
  void each_attended_row(F f) const {
    p.each_token([&](std::int64_t, const attention::sparse::Token& t) {
      attention::sparse::each_attended(t, 0, t.count,
                                       [&](auto, std::int64_t position) {
                                         if (shard.owns(position)) f(p.attention.key_row(t, shard.local(position)));
                                       });
    });
  }

  void equal_rows() const {  // 6
    Tensor part = a.key;     // of a key row: what value has of it
    part.shape[part.rank - 1] = a.value.shape[a.value.rank - 1];
    if (same_storage(a.value, part)) return;
    const Rows key(a.key, 1), value(a.value, 1);
    const std::int64_t size = size_of(a.key.dtype), bytes = part.shape[part.rank - 1] * size;
    const auto at = [&](const Rows& of, std::int64_t row) {
      return static_cast<const std::byte*>(of.tensor.data) + of.offset(row) * size;
    };
    const auto equal = [&](std::int64_t row) {
      return std::memcmp(at(key, row), at(value, row), std::size_t(bytes)) == 0;
    };
    // At most one pass over all rows, unless some of those that are not used differ.
    std::int64_t attended = 0, row = 0;
    p.each_token([&](std::int64_t, const attention::sparse::Token& t) { attended += t.count; });
    if (attended > key.count) {
      while (row < key.count && equal(row)) ++row;
      if (row == key.count) return;
    }
    each_attended_row([&](std::int64_t r) {
      if (equal(r)) return;
      std::int64_t byte = 0;
      while (at(key, r)[byte] == at(value, r)[byte]) ++byte;
      c.fail(Status::invalid_argument, "value", subscript(a.value, (r * bytes + byte) / size), "differs from key",
             "the memory of key, or equal rows", "a latent row is key and value");
    });
  }

  void values() const {  // 23
    const attention::sparse::Problem& x = p.attention;
    const bool half = x.type == DType::f16;
    const auto number = [&](const std::byte* from, std::int64_t i) {
      std::uint16_t bits;
      std::memcpy(&bits, from + 2 * i, 2);
      return half ? to_float(f16{bits}) : to_float(bf16{bits});
    };
    const auto finite = [&](const std::byte* from, std::int64_t n, auto refuse) {
      for (std::int64_t i = 0; i < n; ++i)
        if (!std::isfinite(number(from, i))) refuse(i, number(from, i), "a finite number");
    };
    const auto refuser = [&](const Tensor& t, const char* name, std::int64_t first, std::int64_t step) {
      return [=, this, &t](std::int64_t i, float got, const char* wanted) {
        c.fail(Status::invalid_value, name, subscript(t, first + i * step), "is " + to_string(got), wanted);
      };
    };
    p.each_token([&](std::int64_t t, const attention::sparse::Token& token) {
      for (std::int64_t row = t * heads; token.sequence >= 0 && row < (t + 1) * heads; ++row) {
        finite(reinterpret_cast<const std::byte*>(x.query.row<const bf16>(row)), dims,
               refuser(a.query, "query", row * dims, 1));
        if constexpr (!packed)
          finite(reinterpret_cast<const std::byte*>(x.query_rope.row<const bf16>(row)), rope,
                 refuser(a.query_rope, "query_rope", row * rope, 1));
      }
    });
    each_attended_row([&](std::int64_t r) {
      if constexpr (packed) {
        const std::int64_t begin = r * a.key.shape[a.key.rank - 1];
        finite(x.keys.rope_at(r), rope, refuser(a.key, "key", begin + latent, 2));
        for (std::int64_t g = 0; g < latent / a.tile_size; ++g) {
          float scale;
          std::memcpy(&scale, x.keys.scales_at(r) + 4 * g, 4);
          if (!(scale >= 0) || std::isinf(scale))
            refuser(a.key, "key", begin + x.keys.scales_from, 4)(g, scale, "a scale that is finite and at least 0");
        }
      } else {
        finite(x.keys.latent_at(r), latent, refuser(a.key, "key", r * latent, 1));
        finite(x.keys.rope_at(r), rope, refuser(a.key_rope, "key_rope", r * rope, 1));
      }
    });
  }
};

}  // namespace

template <class Args, class Outs>
Problem check(const Args& a, Outs& o, bool infer, bool check_values, const Ownership& shard) {
  using D = Door<Args, Outs>;
  const Check c(D::packed ? "kv_quant_sparse_flash_attention" : "sparse_flash_attention", a.level);
  D door{{.c = c,
          .layout_query = a.layout_query,
          .layout_key = a.layout_kv,
          .lengths_query = a.actual_seq_lengths_query,
          .lengths_key = a.actual_seq_lengths_kv,
          .block_table = a.block_table,
          .layout_key_name = "layout_kv",
          .lengths_key_name = "actual_seq_lengths_kv",
          .shard = shard},
         a,
         o,
         infer};
  door.presence_and_layouts();
  door.input_shapes();
  door.dtypes();
  door.value();
  door.packing();
  door.results();
  door.sizes_and_modes();
  if (infer) return door.p;
  door.lists();
  door.chip_calls();
  door.memory();
  door.resolve();
  door.equal_rows();
  if (check_values) door.values();
  return door.p;
}

template Problem check(const SparseFlashAttentionArgs&, SparseFlashAttentionOuts&, bool, bool, const Ownership&);
template Problem check(const KvQuantSparseFlashAttentionArgs&, KvQuantSparseFlashAttentionOuts&, bool, bool,
                       const Ownership&);

}  // namespace dsakit::sparse_attention
