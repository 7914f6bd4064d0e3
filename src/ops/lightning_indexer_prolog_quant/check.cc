// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <string>

#include "ops/lightning_indexer_prolog_quant/problem.hpp"

namespace dsakit {
namespace lightning_indexer_prolog_quant_op {
namespace {

using Args = LightningIndexerPrologQuantArgs;
using Outs = LightningIndexerPrologQuantOuts;

std::string shape_text(const Tensor& t) { return "has shape " + brackets({t.shape.data(), std::size_t(t.rank)}); }

void check_chip_sizes(const Check& check, const Sizes& s, const Names& names) {
  check.chip(s.hidden == 7168, names.x, "has He " + std::to_string(s.hidden), "7168");
  check.chip(s.rank == 1536, "w_qb", "has Hcq " + std::to_string(s.rank), "1536");
  check.chip(s.heads == 64, "w_qb_scale", "has Ni " + std::to_string(s.heads), "64");
  check.chip(s.rope == 64, "cos", "has Dr " + std::to_string(s.rope), "64");
}

}  // namespace

void check_hadamard_presence(const Check& check, const Args& a) {
  const bool one = bool(a.hadamard_q) != bool(a.hadamard_k);
  if (one || (check.strict() && !a.hadamard_q))
    check.fail(Status::invalid_argument, a.hadamard_q ? "hadamard_k" : "hadamard_q", "", "is missing",
               one ? "both matrices or neither" : "a tensor");
}

Sizes check_shapes(const Check& check, const Args& a, const Outs& o, const Names& names, std::int64_t rank) {
  Sizes s{};
  auto last_axis = [&](const Tensor& t, const char* name, const char* what) {
    if (t.rank < 1 || t.shape[t.rank - 1] < 1)
      check.fail(Status::invalid_shape, name, "", shape_text(t), "a last axis of at least 1", what);
    return t.shape[t.rank - 1];
  };
  if (a.x.rank < 2 || (check.strict() && a.x.rank > 2)) check.rank(a.x, names.x, 2, "t, He");
  s.hidden = last_axis(a.x, names.x, "He");
  s.tokens = 1;
  for (int axis = 0; axis + 1 < a.x.rank; ++axis) s.tokens *= a.x.shape[axis];
  if (check.strict() && s.tokens > 1024)
    check.chip(false, names.x, "has tokens: " + std::to_string(s.tokens), "at most 1024");
  s.rank = rank > 0 ? rank : last_axis(a.q_norm, "q_norm", "Hcq");
  if (rank == 0) {
    check.rows(a.q_norm, "q_norm", s.tokens, {s.rank}, "t of x, Hcq");
    check.rows(a.q_norm_scale, "q_norm_scale", s.tokens, {1}, "t of x");
  }
  s.dim = last_axis(a.ln_gamma_k, "ln_gamma_k", "Di");
  check.shape(a.ln_gamma_k, "ln_gamma_k", {s.dim}, "Di");
  check.shape(a.ln_beta_k, "ln_beta_k", {s.dim}, "Di of ln_gamma_k");
  s.heads = a.w_qb_scale.elements() / s.dim;
  if (s.heads < 1 || a.w_qb_scale.elements() % s.dim != 0)
    check.fail(Status::invalid_shape, "w_qb_scale", "", shape_text(a.w_qb_scale),
               "a multiple of " + std::to_string(s.dim) + " elements", "Ni*Di, Di of ln_gamma_k");
  if (!(check.strict() && a.w_qb_scale.rank == 2 && a.w_qb_scale.shape[0] == 1))
    check.rows(a.w_qb_scale, "w_qb_scale", s.heads * s.dim, {1}, "Ni*Di");
  s.rope = last_axis(a.cos, "cos", "Dr");
  if (s.rope % 2 != 0 || s.rope > s.dim)
    check.fail(Status::invalid_shape, "cos", "", "has Dr " + std::to_string(s.rope),
               "an even number, at most " + std::to_string(s.dim), "Di of ln_gamma_k");
  check.rows(a.cos, "cos", s.tokens, {s.rope}, "t, Dr");
  check.rows(a.sin, "sin", s.tokens, {s.rope}, "t, Dr of cos");
  check_weight_shape(check, a.w_qb, "w_qb", DType::i8, 0, s.rank, s.heads * s.dim, "Hcq, Ni*Di of w_qb_scale");
  check_weight_shape(check, a.wk, "wk", DType::bf16, 0, s.hidden, s.dim, "He, Di of ln_gamma_k");
  check_weight_shape(check, a.w_proj, "w_proj", DType::bf16, 0, s.hidden, s.heads, "He, Ni");
  if (a.hadamard_q) {
    check.shape(a.hadamard_q, "hadamard_q", {s.dim, s.dim}, "Di of ln_gamma_k");
    check.shape(a.hadamard_k, "hadamard_k", {s.dim, s.dim}, "Di of ln_gamma_k");
  }
  if (s.rank > kMaxInnerI8)
    check.fail(Status::invalid_shape, "w_qb", "", "has " + std::to_string(s.rank) + " rows",
               "at most " + std::to_string(kMaxInnerI8), "int32 sums of int8 products are exact up to there");
  s.cache = prolog::check_cache_shape(check, o.k_cache, names.k_cache, s.dim, nullptr, "Di of ln_gamma_k");
  prolog::check_cache_shape(check, o.k_scale_cache, names.k_scale_cache, 1, &s.cache, "blocks of the key cache");
  check.rows(a.k_cache_index, names.k_cache_index, s.tokens, {}, "t");
  return s;
}

void check_dtypes(const Check& check, const Args& a, const Outs& o, const Names& names) {
  check.dtype(a.x, names.x, {DType::bf16});
  if (a.q_norm) check.dtype(a.q_norm, "q_norm", {DType::i8});
  if (a.q_norm_scale) check.dtype(a.q_norm_scale, "q_norm_scale", {DType::f32});
  check.dtype(a.w_qb, "w_qb", {DType::i8});
  check.dtype(a.w_qb_scale, "w_qb_scale", {DType::f32});
  check.dtype(a.wk, "wk", {DType::bf16});
  check.dtype(a.w_proj, "w_proj", {DType::bf16});
  check.dtype(a.ln_gamma_k, "ln_gamma_k", {DType::bf16, DType::f32});
  check.dtype(a.ln_beta_k, "ln_beta_k", {DType::bf16, DType::f32});
  check.dtype(a.cos, "cos", {DType::bf16});
  check.dtype(a.sin, "sin", {DType::bf16});
  if (a.hadamard_q) {
    check.dtype(a.hadamard_q, "hadamard_q", {DType::bf16});
    check.dtype(a.hadamard_k, "hadamard_k", {DType::bf16});
  }
  check.dtype(o.k_cache, names.k_cache, {DType::i8});
  check.dtype(o.k_scale_cache, names.k_scale_cache, {DType::f16, DType::f32});
  check.dtype(a.k_cache_index, names.k_cache_index, {DType::i64});
  if (!check.strict()) return;
  check.chip(a.ln_gamma_k.dtype == DType::bf16, "ln_gamma_k", "has dtype float32", "bfloat16");
  check.chip(a.ln_beta_k.dtype == DType::bf16, "ln_beta_k", "has dtype float32", "bfloat16");
  check.chip(o.k_scale_cache.dtype == DType::f16, names.k_scale_cache, "has dtype float32", "float16");
}

void check_outs(const Check& check, const Outs& o, const Sizes& s, const Names& names) {
  check.required(o.q_int8, "q_int8");
  check.required(o.q_scale, "q_scale");
  check.required(o.weights, "weights");
  check.sizes(o.q_int8, "q_int8");
  check.sizes(o.q_scale, "q_scale");
  check.sizes(o.weights, "weights");
  check.rows(o.q_int8, "q_int8", s.tokens, {s.heads, s.dim}, "t, Ni, Di");
  check.rows(o.q_scale, "q_scale", s.tokens, {s.heads, 1}, "t, Ni");
  check.rows(o.weights, "weights", s.tokens, {s.heads}, "t, Ni");
  check.dtype(o.q_int8, "q_int8", {DType::i8});
  check.dtype(o.q_scale, "q_scale", {DType::f16});
  check.dtype(o.weights, "weights", {DType::f16});
  if (!check.strict()) return;
  check.chip(s.dim == 128, "ln_gamma_k", "has Di " + std::to_string(s.dim), "128");
  check.chip(s.cache.block_size == 128, names.k_cache, "has block_size " + std::to_string(s.cache.block_size), "128");
}

void check_attributes(const Check& check, const Args& a, const Sizes& s, const Names& names) {
  if (check.strict()) check_chip_sizes(check, s, names);
  check.positive(float(a.layernorm_epsilon_k), "layernorm_epsilon_k");
  check.one_of(a.rope_layout, names.rope_layout, {"half", "interleaved", "interleaved_to_half"});
  if (check.strict())
    check.chip(a.rope_layout == "half", names.rope_layout, "is '" + std::string(a.rope_layout) + "'", "half");
  check.readable(a.k_cache_index, names.k_cache_index);
  prolog::check_slots(check, a.k_cache_index, names.k_cache_index, s.cache);
}

Problem resolve(const Check& check, const Args& a, const Outs& o, const Sizes& s) {
  const Rows none(Tensor{.rank = 0}, 0);
  auto rows = [&](const Tensor& t, std::int64_t width) { return t ? prolog::flat_rows(t, width) : none; };
  return {
      .tokens = s.tokens,
      .hidden = s.hidden,
      .rank = s.rank,
      .heads = s.heads,
      .dim = s.dim,
      .rope = s.rope,
      .layout = a.rope_layout == "half"          ? RopeLayout::half
                : a.rope_layout == "interleaved" ? RopeLayout::interleaved
                                                 : RopeLayout::interleaved_to_half,
      .epsilon = float(a.layernorm_epsilon_k),
      .head_scale = float(1.0 / (std::sqrt(double(s.heads)) * std::sqrt(double(s.dim)))),
      .w_qb = check_weight(check, a.w_qb, "w_qb", DType::i8, 0, s.rank, s.heads * s.dim, ""),
      .wk = check_weight(check, a.wk, "wk", DType::bf16, 0, s.hidden, s.dim, ""),
      .w_proj = check_weight(check, a.w_proj, "w_proj", DType::bf16, 0, s.hidden, s.heads, ""),
      .gamma = a.ln_gamma_k,
      .beta = a.ln_beta_k,
      .hadamard_q = a.hadamard_q,
      .hadamard_k = a.hadamard_k,
      .channel_scale = rows(a.w_qb_scale, 1),
      .x = rows(a.x, s.hidden),
      .q_norm = rows(a.q_norm, s.rank),
      .q_norm_scale = rows(a.q_norm_scale, 1),
      .cos = rows(a.cos, s.rope),
      .sin = rows(a.sin, s.rope),
      .cache_index = rows(a.k_cache_index, 1),
      .q_int8 = rows(o.q_int8, s.dim),
      .q_scale = rows(o.q_scale, 1),
      .weights = rows(o.weights, s.heads),
      .k_cache = rows(o.k_cache, s.dim),
      .k_scale_cache = rows(o.k_scale_cache, 1),
  };
}

namespace {

Sizes check_inputs(const Check& check, const Args& a, const Outs& o) {
  const Tensors tensors(a, o);
  check_given(check, tensors);
  check_countable(check, tensors);
  check_hadamard_presence(check, a);
  check.one_of(a.layout_query, "layout_query", {"TND"});
  check.one_of(a.layout_key, "layout_key", {"PA_BSND"});
  const Sizes s = check_shapes(check, a, o, Names{}, 0);
  check_dtypes(check, a, o, Names{});
  return s;
}

}  // namespace

Problem check(const Args& a, const Outs& o) {
  const Check check("lightning_indexer_prolog_quant", a.level);
  const Sizes s = check_inputs(check, a, o);
  check_outs(check, o, s, Names{});
  const Tensors tensors(a, o);
  check_memory(check, tensors, Caches::free_first_axis);
  check_separate(check, tensors, Named::later);
  check_attributes(check, a, s, Names{});
  return resolve(check, a, o, s);
}

void check_values(const Args& a, const Problem& problem) {
  const Check check("lightning_indexer_prolog_quant", a.level);
  check_finite(check, Tensors::inputs<Outs>(a));
  check_weight_values(check, problem);
}

void check_weight_values(const Check& check, const Problem& p) {
  prolog::check_finite(check, {{p.wk, "wk"}, {p.w_proj, "w_proj"}});
}

}  // namespace lightning_indexer_prolog_quant_op

void infer(const LightningIndexerPrologQuantArgs& a, LightningIndexerPrologQuantOuts& o) {
  const Check check("lightning_indexer_prolog_quant", a.level);
  const auto s = lightning_indexer_prolog_quant_op::check_inputs(check, a, o);
  if (!o.q_int8) o.q_int8 = shaped(DType::i8, {s.tokens, s.heads, s.dim});
  if (!o.q_scale) o.q_scale = shaped(DType::f16, {s.tokens, s.heads, 1});
  if (!o.weights) o.weights = shaped(DType::f16, {s.tokens, s.heads});
}

}  // namespace dsakit
