// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "core/check.hpp"
#include "core/paged.hpp"
#include "ops/door.hpp"
#include "ops/sparse_flash_attention_quant/problem.hpp"

namespace dsakit {
namespace sparse_flash_attention_quant_op {
namespace {

using Args = SparseFlashAttentionQuantArgs;
using Outs = SparseFlashAttentionQuantOuts;

constexpr std::int64_t kWidest = 1 << 24;  // of a key, so that a row fits the kernels' counts

std::string shape_of(const Tensor& t) { return "has shape " + brackets({t.shape.data(), std::size_t(t.rank)}); }

/// The row width of a tensor of at least two axes.
std::int64_t width(const Check& c, const Tensor& t, const char* name) {
  if (t.rank < 2) c.fail(Status::invalid_shape, name, "", shape_of(t), "at least two axes");
  const std::int64_t width = t.shape[t.rank - 1];
  if (width > kWidest) c.fail(Status::invalid_shape, name, "", shape_of(t), "rows of at most 16777216");
  return width;
}

std::int64_t product(const Check& c, std::initializer_list<std::int64_t> factors) {
  std::int64_t n = 1;
  bool overflow = false;
  for (std::int64_t f : factors) overflow |= __builtin_mul_overflow(n, f, &n);
  if (overflow)
    c.fail(Status::invalid_argument, "b", "", "is " + std::to_string(*factors.begin()),
           "b * s1 * nq rows that fit 63 bits");
  return n;
}

/// One row per position of the cache; with four axes the second is the page.
Rows cache(const Check& c, const Tensor& t, const char* name, std::int64_t rows, std::int64_t width,
           std::int64_t block_size) {
  if (t.rank == 4 && t.shape[1] != block_size && !c.strict())
    c.fail(Status::invalid_shape, name, "", shape_of(t), "second axis " + std::to_string(block_size), "block_size");
  return c.rows(t, name, rows, {width}, "rows and width of key_nope_2d, width of query");
}

struct Sizes {
  std::int64_t latent, rope, rows, blocks, queries;
};

/// What needs no data: presence, attributes, shapes, dtypes (rows 1, 4, 5 of the table).
Sizes check_sizes(const Check& c, const Args& a) {
  const Tensors inputs = Tensors::inputs<Outs>(a);
  check_given(c, inputs);
  check_countable(c, inputs);
  c.at_least(a.b, "b", 0);
  c.at_least(a.s1, "s1", 0);
  c.at_least(a.nq, "nq", 1);
  const bool no_lists = !c.strict() && a.topk_indices.rank >= 2 && a.topk_indices.shape[a.topk_indices.rank - 1] == 0;
  c.at_least(a.topk, "topk", no_lists ? 0 : 1);
  if (a.n_kv != 1) c.fail(Status::invalid_argument, "n_kv", "", "is " + std::to_string(a.n_kv), "1");
  if (a.block_size < 1)
    c.fail(Status::invalid_shape, "block_size", "", "is " + std::to_string(a.block_size), "at least 1");

  Sizes s{};
  s.latent = width(c, a.query_nope, "query_nope");
  if (s.latent < 1) c.fail(Status::invalid_shape, "query_nope", "", shape_of(a.query_nope), "rows of at least 1");
  s.rope = width(c, a.query_rope, "query_rope");
  s.queries = product(c, {a.b, a.s1, a.nq});
  product(c, {s.queries, s.latent});
  product(c, {s.queries, std::max<std::int64_t>(s.rope, 1)});
  c.rows(a.query_nope, "query_nope", s.queries, {s.latent}, "b * s1 * nq rows");
  c.rows(a.query_rope, "query_rope", s.queries, {s.rope}, "b * s1 * nq rows");

  width(c, a.key_nope_2d, "key_nope_2d");
  s.rows = 1;
  for (int axis = 0; axis + 1 < a.key_nope_2d.rank; ++axis) s.rows *= a.key_nope_2d.shape[axis];
  cache(c, a.key_nope_2d, "key_nope_2d", s.rows, s.latent, a.block_size);
  if (s.rows % a.block_size != 0)
    c.fail(Status::invalid_shape, "key_nope_2d", "", shape_of(a.key_nope_2d),
           "a multiple of " + std::to_string(a.block_size) + " rows", "block_size");
  s.blocks = s.rows / a.block_size;
  width(c, a.key_rope_2d, "key_rope_2d");
  cache(c, a.key_rope_2d, "key_rope_2d", s.rows, s.rope, a.block_size);

  const std::int64_t listed = width(c, a.topk_indices, "topk_indices"), tokens = product(c, {a.b, a.s1});
  product(c, {tokens, std::max<std::int64_t>(listed, 1)});
  if (listed < 1 && !no_lists)
    c.fail(Status::invalid_shape, "topk_indices", "", shape_of(a.topk_indices), "rows of at least 1");
  c.rows(a.topk_indices, "topk_indices", tokens, {listed}, "b * s1 rows");
  if (a.topk > listed)
    c.fail(Status::invalid_argument, "topk", "", "is " + std::to_string(a.topk), "at most " + std::to_string(listed),
           "entries per row of topk_indices");
  c.rank(a.block_table, "block_table", 2, "b rows");
  if (a.block_table.shape[0] != a.b)
    c.fail(Status::invalid_shape, "block_table", "", shape_of(a.block_table), std::to_string(a.b) + " rows", "b");
  c.vector(a.kv_act_seqs, "kv_act_seqs", a.b, "b");

  c.dtype(a.query_nope, "query_nope", {DType::bf16});
  c.dtype(a.query_rope, "query_rope", {DType::bf16});
  c.dtype(a.key_nope_2d, "key_nope_2d", {DType::i8, DType::bf16});
  c.dtype(a.key_rope_2d, "key_rope_2d", {DType::bf16});
  c.dtype(a.topk_indices, "topk_indices", {DType::i32});
  c.dtype(a.block_table, "block_table", {DType::i32});
  c.dtype(a.kv_act_seqs, "kv_act_seqs", {DType::i32});
  return s;
}

/// Row 22. Returns the tile width, 0 for a bf16 latent.
std::int64_t check_scales(const Check& c, const Args& a, const Sizes& s) {
  const Tensor& t = a.k_nope_scales;
  const char* name = "k_nope_scales";
  if (a.key_nope_2d.dtype == DType::bf16) {
    if (t && t.elements() != 0)
      c.fail(Status::invalid_argument, name, "", "is given", "absent", "key_nope_2d is bfloat16");
    return 0;
  }
  if (!t) c.fail(Status::invalid_argument, name, "", "is missing", "a tensor", "key_nope_2d is int8");
  const std::int64_t tiles = s.rows > 0 ? t.elements() / s.rows : width(c, t, name);
  if (tiles < 1 || t.elements() != s.rows * tiles || s.latent % tiles != 0)
    c.fail(Status::invalid_shape, name, "", shape_of(t),
           std::to_string(s.rows) + " rows of a width that divides " + std::to_string(s.latent), "key_nope_2d");
  cache(c, t, name, s.rows, tiles, a.block_size);
  c.dtype(t, name, {DType::f32});
  return s.latent / tiles;
}

/// Every entry in use, and the pages they name. Nothing else of the lists and the table is read.
void check_lists(const Check& c, const Problem& p, const Tensor& table, std::int64_t blocks, const Ownership& shard) {
  const std::int64_t block_size = p.attention.keys.rows.page_size;
  const PageOf page_of(block_size);
  p.each_token([&](std::int64_t t, const attention::sparse::Token& token) {
    const std::uint32_t act = std::uint32_t(p.act[token.sequence * p.act_step]);
    const std::int32_t* pages = static_cast<const std::int32_t*>(table.data) + token.sequence * table.stride[0];
    for (std::int64_t j = 0; j < token.count; ++j) {
      const std::uint32_t position = std::uint32_t(token.list[j]);
      if (position >= act)
        c.fail(Status::invalid_index, "topk_indices", subscript({t, j}), "is " + std::to_string(token.list[j]),
               "0.." + std::to_string(std::int64_t(act) - 1),
               "visible positions of sequence " + std::to_string(token.sequence) + "; the row uses its first " +
                   std::to_string(token.count) + " entries");
      if (shard.ranks > 1 && !shard.owns(position)) continue;
      const std::int64_t page = page_of(shard.ranks > 1 ? shard.local(position) : position),
                         entry = pages[page * p.attention.keys.rows.table_step];
      if (std::uint64_t(entry) >= std::uint64_t(blocks))
        c.fail(Status::invalid_block, "block_table", subscript({token.sequence, page}), "is " + std::to_string(entry),
               "0.." + std::to_string(blocks - 1),
               "pages of key_nope_2d; sequence " + std::to_string(token.sequence) + ", positions " +
                   std::to_string(page * block_size) + ".." + std::to_string((page + 1) * block_size - 1));
    }
  });
}

}  // namespace

Problem check(const Args& a, const Outs& o, const Ownership& shard) {
  const Check c("sparse_flash_attention_quant", a.level);
  const Sizes s = check_sizes(c, a);
  const Tensor& out = o.attention_out;
  c.required(out, "attention_out");
  c.sizes(out, "attention_out");
  if (c.strict()) c.shape(out, "attention_out", {a.b, a.s1, a.nq, s.latent}, "b, s1, nq and width of query_nope");
  else c.rows(out, "attention_out", s.queries, {s.latent}, "b * s1 * nq rows, width of query_nope");
  c.dtype(out, "attention_out", {DType::bf16});

  c.chip(s.latent == 512, "query_nope", "has width " + std::to_string(s.latent), "512");
  c.chip(s.rope == 64, "query_rope", "has width " + std::to_string(s.rope), "64");
  c.chip(a.block_size == 128, "block_size", "is " + std::to_string(a.block_size), "128");
  if (!std::isfinite(a.softmax_scale) || !std::isfinite(float(a.softmax_scale)))
    c.fail(Status::invalid_argument, "softmax_scale", "", "is " + std::to_string(a.softmax_scale), "a finite number");
  c.one_of(a.numerics, "numerics", {"exact", "device", "golden"});

  const std::int64_t act_step = c.vector(a.kv_act_seqs, "kv_act_seqs", a.b, "b"), columns = a.block_table.shape[1];
  const auto* act = static_cast<const std::int32_t*>(a.kv_act_seqs.data);
  c.readable(a.kv_act_seqs, "kv_act_seqs");
  for (std::int64_t b = 0; b < a.b; ++b) {
    const std::int64_t length = act[b * act_step];
    if (length < 0)
      c.fail(Status::invalid_seqlen, "kv_act_seqs", subscript({b}), "is " + std::to_string(length), "at least 0");
    if (const std::int64_t rows = shard.below(length); rows > 0 && (rows - 1) / a.block_size >= columns)
      c.fail(Status::invalid_seqlen, "kv_act_seqs", subscript({b}), "is " + std::to_string(length),
             "at most " + std::to_string(shard.global(columns * a.block_size)),
             "block_table has " + std::to_string(columns) + " columns of " + std::to_string(a.block_size));
  }

  const Rows none(Tensor{}, 0);
  Problem p{
      .attention = {.query = c.rows(a.query_nope, "query_nope", s.queries, {s.latent}, ""),
                    .query_rope = c.rows(a.query_rope, "query_rope", s.queries, {s.rope}, ""),
                    .keys = {.rows = {.data = nullptr,
                                      .page_stride = a.block_size,
                                      .row_stride = 1,
                                      .page_size = a.block_size,
                                      .table = static_cast<const std::int32_t*>(a.block_table.data),
                                      .table_stride = a.block_table.stride[0],
                                      .table_step = a.block_table.stride[1]},
                             .latent = c.rows(a.key_nope_2d, "key_nope_2d", s.rows, {s.latent}, ""),
                             .rope = c.rows(a.key_rope_2d, "key_rope_2d", s.rows, {s.rope}, ""),
                             .scales = none},
                    .out = Rows(out, 1),
                    .tokens = a.b * a.s1,
                    .heads = a.nq,
                    .latent = int(s.latent),
                    .rope = int(s.rope),
                    .scale = float(a.softmax_scale),
                    .rounding = {a.numerics == "exact" ? reference::ProbabilityRounding::none
                                                       : reference::ProbabilityRounding::normalised}},
      .lists = c.rows(a.topk_indices, "topk_indices", a.b * a.s1, {a.topk_indices.shape[a.topk_indices.rank - 1]}, ""),
      .act = act,
      .act_step = act_step,
      .s1 = a.s1,
      .topk = a.topk};
  c.readable(a.topk_indices, "topk_indices");
  c.readable(a.block_table, "block_table");
  check_lists(c, p, a.block_table, s.blocks, shard);

  if (p.attention.tokens == 0 || s.rows == 0)  // no string is made while nothing is wrong
    c.chip(false, "query_nope", "has no rows, or key_nope_2d has none", "at least 1");
  const Tensors all(a, o);
  check_memory(c, all, Caches::free_first_axis);
  check_separate(c, all);
  c.chip(a.nq == 128, "nq", "is " + std::to_string(a.nq), "128");
  c.chip(a.topk == 2048, "topk", "is " + std::to_string(a.topk), "2048");
  c.chip(a.s1 <= 4 || a.b == 1, "s1", "is " + std::to_string(a.s1), "at most 4 unless b is 1");
  c.chip(a.s1 <= 1024, "s1", "is " + std::to_string(a.s1), "at most 1024");
  c.chip(a.b <= 128, "b", "is " + std::to_string(a.b), "at most 128");
  constexpr std::int64_t kLongest = 128 * 1024;
  for (std::int64_t b = 0; c.strict() && b < a.b; ++b)
    c.chip(act[b * act_step] <= kLongest, "kv_act_seqs", "has " + std::to_string(act[b * act_step]), "at most 131072");
  p.attention.keys.tile = int(check_scales(c, a, s));
  if (p.attention.keys.tile > 0)
    p.attention.keys.scales = c.rows(a.k_nope_scales, "k_nope_scales", s.rows, {s.latent / p.attention.keys.tile}, "");
  return p;
}

void check_values(const Args& a, const Problem& p, const Ownership& shard) {
  const Check c("sparse_flash_attention_quant", a.level);
  const attention::sparse::Problem& x = p.attention;
  const auto finite = [&](const Rows& rows, std::int64_t row, std::int64_t width, const char* name) {
    for (std::int64_t i = 0; i < width; ++i)
      if (const float v = to_float(rows.row<const bf16>(row)[i]); !std::isfinite(v))
        c.fail(Status::invalid_value, name, subscript({row, i}), "is " + std::to_string(v), "a finite number");
  };
  for (std::int64_t row = 0; row < x.tokens * x.heads; ++row) {
    finite(x.query, row, x.latent, "query_nope");
    finite(x.query_rope, row, x.rope, "query_rope");
  }
  for (std::int64_t t = 0; t < x.tokens; ++t) {
    const attention::sparse::Token token = p.token(t);
    for (std::int64_t j = 0; j < token.count; ++j) {
      if (!shard.owns(token.list[j])) continue;
      const std::int64_t row = x.keys.rows.offset(token.sequence, shard.local(token.list[j]));
      if (x.keys.tile == 0) finite(x.keys.latent, row, x.latent, "key_nope_2d");
      finite(x.keys.rope, row, x.rope, "key_rope_2d");
      for (std::int64_t g = 0; x.keys.tile > 0 && g < x.latent / x.keys.tile; ++g)
        if (const float v = x.keys.scales.row<const float>(row)[g]; !(v >= 0) || std::isinf(v))
          c.fail(Status::invalid_value, "k_nope_scales", subscript({row, g}), "is " + std::to_string(v),
                 "finite and at least 0");
    }
  }
}

}  // namespace sparse_flash_attention_quant_op

void infer(const SparseFlashAttentionQuantArgs& a, SparseFlashAttentionQuantOuts& o) {
  const Check c("sparse_flash_attention_quant", a.level);
  const auto s = sparse_flash_attention_quant_op::check_sizes(c, a);
  o.attention_out = shaped(DType::bf16, {a.b, a.s1, a.nq, s.latent});
}

}  // namespace dsakit
