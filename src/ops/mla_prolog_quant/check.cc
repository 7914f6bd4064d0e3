// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>

#include "ops/mla_prolog_quant/problem.hpp"

namespace dsakit {
namespace mla_prolog_quant_op {
namespace {

using prolog::CacheShape;

std::int64_t last_axis(const Check& check, const Tensor& t, const char* name, const char* what) {
  if (t.rank < 1 || t.shape[t.rank - 1] < 1)
    check.fail(Status::invalid_shape, name, "", "has shape " + brackets({t.shape.data(), std::size_t(t.rank)}),
               std::string("a last axis of at least 1"), what);
  return t.shape[t.rank - 1];
}

/// A cache and the `*_out` beside it: absent is the cache itself.
struct OutCache {
  const Tensor &in, &out;
  const char *name, *out_name;
  std::int64_t width;
  bool in_place() const { return !out || same_memory(); }

 private:
  bool same_memory() const {
    if (in.data != out.data || in.dtype != out.dtype) return false;
    const Rows a = prolog::flat_rows(in, width), b = prolog::flat_rows(out, width);
    return same_storage(in, out) ||
           (a.count == b.count && a.uniform_stride >= 0 && a.uniform_stride == b.uniform_stride);
  }
};

void check_chip_sizes(const Check& check, const MlaPrologQuantArgs& a, const Sizes& s) {
  check.chip(s.tokens <= 1024, "token_x", "has tokens: " + std::to_string(s.tokens), "at most 1024");
  check.chip(s.hidden == 7168, "token_x", "has He " + std::to_string(s.hidden), "7168");
  check.chip(s.rank == 1536, "gamma_cq", "has Hcq " + std::to_string(s.rank), "1536");
  check.chip(s.heads == 128 && s.nope == 128 && s.latent == 512, "w_uk",
             "has shape " + brackets({a.w_uk.shape.data(), 3}), "[128, 128, 512]");
  check.chip(s.rope == 64, "cos", "has Dr " + std::to_string(s.rope), "64");
  check.chip(s.cache.block_size == 128, "kv_cache", "has block_size " + std::to_string(s.cache.block_size), "128");
  if (s.quantised) check.chip(s.groups == 4, "k_scale_cache", "has " + std::to_string(s.groups) + " groups", "4");
}

}  // namespace

void check_cache_mode(const Check& check, std::string_view cache_mode) {
  if (cache_mode == "PA_NZ")
    check.fail(Status::unsupported, "cache_mode", "", "is 'PA_NZ'", "PA_BSND", "NZ caches are mla_prolog_v3's");
  check.one_of(cache_mode, "cache_mode", {"PA_BSND"});
}

Sizes check_shapes(const Check& check, const MlaPrologQuantArgs& a) {
  Sizes s{};
  s.quantised = a.dequant_scale && a.dequant_scale.elements() > 0;
  if (a.token_x.rank < 2 || (check.strict() && a.token_x.rank > 2)) check.rank(a.token_x, "token_x", 2, "t, He");
  s.hidden = last_axis(check, a.token_x, "token_x", "He");
  s.tokens = 1;
  for (int axis = 0; axis + 1 < a.token_x.rank; ++axis) s.tokens *= a.token_x.shape[axis];
  s.rank = last_axis(check, a.gamma_cq, "gamma_cq", "Hcq");
  check.shape(a.gamma_cq, "gamma_cq", {s.rank}, "Hcq");
  check.rank(a.w_uk, "w_uk", 3, "N, D, Hckv");
  s.heads = a.w_uk.shape[0], s.nope = a.w_uk.shape[1], s.latent = a.w_uk.shape[2];
  if (a.w_uk.elements() == 0)
    check.fail(Status::invalid_shape, "w_uk", "", "has shape " + brackets({a.w_uk.shape.data(), 3}),
               "N, D and Hckv of at least 1");
  s.rope = last_axis(check, a.cos, "cos", "Dr");
  if (s.rope % 2 != 0)
    check.fail(Status::invalid_shape, "cos", "", "has Dr " + std::to_string(s.rope), "an even number, at least 2");
  check.rows(a.cos, "cos", s.tokens, {s.rope}, "t of token_x, Dr");
  check.rows(a.sin, "sin", s.tokens, {s.rope}, "t of token_x, Dr of cos");
  check.shape(a.gamma_ckv, "gamma_ckv", {s.latent}, "Hckv of w_uk");
  const std::int64_t wide = s.heads * (s.nope + s.rope);
  check_weight_shape(check, a.w_dq, "w_dq", DType::bf16, 0, s.hidden, s.rank, "He of token_x, Hcq of gamma_cq");
  check_weight_shape(check, a.w_uq_qr, "w_uq_qr", s.quantised ? DType::i8 : DType::bf16, 0, s.rank, wide,
                     "Hcq of gamma_cq, N*(D+Dr) of w_uk and cos");
  check_weight_shape(check, a.w_dkv_kr, "w_dkv_kr", DType::bf16, 0, s.hidden, s.latent + s.rope,
                     "He of token_x, Hckv+Dr of w_uk and cos");
  if (s.quantised) check.rows(a.dequant_scale, "dequant_scale", wide, {1}, "N*(D+Dr) of w_uk and cos");
  check.rows(a.cache_index, "cache_index", s.tokens, {}, "t of token_x");
  s.cache = prolog::check_cache_shape(check, a.kv_cache, "kv_cache", s.latent, nullptr, "Hckv of w_uk");
  prolog::check_cache_shape(check, a.kr_cache, "kr_cache", s.rope, &s.cache, "blocks of kv_cache, Dr of cos");
  if (s.quantised) {
    const Tensor& t = a.k_scale_cache;
    s.groups = t.rank == 4 || s.cache.rows == 0 ? last_axis(check, t, "k_scale_cache", "G")
                                                : std::max<std::int64_t>(t.elements() / s.cache.rows, 1);
    prolog::check_cache_shape(check, t, "k_scale_cache", s.groups, &s.cache, "blocks of kv_cache");
    if (s.latent % s.groups != 0)
      check.fail(Status::invalid_shape, "k_scale_cache", "", "has " + std::to_string(s.groups) + " groups",
                 "a divisor of " + std::to_string(s.latent), "Hckv of w_uk");
    if (s.rank > kMaxInnerI8)
      check.fail(Status::invalid_shape, "w_uq_qr", "", "has " + std::to_string(s.rank) + " rows",
                 "at most " + std::to_string(kMaxInnerI8), "int32 sums of int8 products are exact up to there");
  }
  if (check.strict()) check_chip_sizes(check, a, s);
  return s;
}

void check_dtypes(const Check& check, const MlaPrologQuantArgs& a, const Sizes& s) {
  check.dtype(a.token_x, "token_x", {DType::bf16});
  check.dtype(a.w_dq, "w_dq", {DType::bf16});
  const char* mode = s.quantised ? "dequant_scale is given: quantised" : "no dequant_scale: not quantised";
  check.dtype(a.w_uq_qr, "w_uq_qr", {s.quantised ? DType::i8 : DType::bf16}, mode);
  if (s.quantised) check.dtype(a.dequant_scale, "dequant_scale", {DType::f32});
  check.dtype(a.w_uk, "w_uk", {DType::bf16});
  check.dtype(a.w_dkv_kr, "w_dkv_kr", {DType::bf16});
  check.dtype(a.gamma_cq, "gamma_cq", {DType::bf16});
  check.dtype(a.gamma_ckv, "gamma_ckv", {DType::bf16});
  check.dtype(a.cos, "cos", {DType::bf16});
  check.dtype(a.sin, "sin", {DType::bf16});
  check.dtype(a.cache_index, "cache_index", {DType::i64});
  check.dtype(a.kv_cache, "kv_cache", {s.quantised ? DType::i8 : DType::bf16}, mode);
  check.dtype(a.kr_cache, "kr_cache", {DType::bf16});
  if (s.quantised) check.dtype(a.k_scale_cache, "k_scale_cache", {DType::f32});
  check_weight_format(check, a.w_dq, "w_dq");
  check_weight_format(check, a.w_uq_qr, "w_uq_qr");
  check_weight_format(check, a.w_dkv_kr, "w_dkv_kr");
}

prolog::MlaProblem resolve(const Check& check, const MlaPrologQuantArgs& a, const Sizes& s) {
  auto rows = [&](const Tensor& t, std::int64_t width) { return t ? prolog::flat_rows(t, width) : prolog::no_rows(); };
  const Rows none = prolog::no_rows();
  return {
      .numerics = prolog::kPyPto,
      .tokens = s.tokens,
      .hidden = s.hidden,
      .rank = s.rank,
      .heads = s.heads,
      .nope = s.nope,
      .rope = s.rope,
      .latent = s.latent,
      .epsilon_cq = float(a.epsilon_cq),
      .epsilon_ckv = float(a.epsilon_ckv),
      .w_dq = check_weight(check, a.w_dq, "w_dq", DType::bf16, 0, s.hidden, s.rank, ""),
      .w_uq_qr = check_weight(check, a.w_uq_qr, "w_uq_qr", s.quantised ? DType::i8 : DType::bf16, 0, s.rank,
                              s.heads * (s.nope + s.rope), ""),
      .w_uk = check_weight(check, a.w_uk, "w_uk", DType::bf16, s.heads, s.nope, s.latent, ""),
      .w_dkv_kr = check_weight(check, a.w_dkv_kr, "w_dkv_kr", DType::bf16, 0, s.hidden, s.latent + s.rope, ""),
      .gamma_cq = static_cast<const bf16*>(a.gamma_cq.data),
      .gamma_ckv = static_cast<const bf16*>(a.gamma_ckv.data),
      .x = rows(a.token_x, s.hidden),
      .cos = rows(a.cos, s.rope),
      .sin = rows(a.sin, s.rope),
      .x_scale = none,
      .dq_scale = none,
      .uq_qr_scale = rows(a.dequant_scale, 1),
      .dkv_kr_scale = none,
      .smooth = none,
      .cache_index = rows(a.cache_index, 1),
      .q_norm = none,
      .q_norm_scale = none,
      .query_nope = none,
      .query_rope = none,
      .query_scale = none,
      .latent_store = s.quantised ? prolog::Store::groups : prolog::Store::bf16,
      .key_store = prolog::Store::bf16,
      .groups = std::max<std::int64_t>(s.groups, 1),
      .latent_scale = none,
      .key_scale = none,
      .kv_cache = {rows(a.kv_cache, s.latent)},
      .kr_cache = {rows(a.kr_cache, s.rope)},
      .k_scale_cache = {rows(a.k_scale_cache, s.groups)},
  };
}

namespace {

/// The part of the door that concerns inputs only: what infer() asks too.
Sizes check_inputs(const Check& check, const MlaPrologQuantArgs& a) {
  const Tensors inputs = Tensors::inputs<MlaPrologQuantOuts>(a);
  check_given(check, inputs);
  check_countable(check, inputs);
  if (a.dequant_scale.elements() > 0) check.required(a.k_scale_cache, "k_scale_cache");
  check_cache_mode(check, a.cache_mode);
  const Sizes s = check_shapes(check, a);
  check_dtypes(check, a, s);
  return s;
}

}  // namespace

Problem check(const MlaPrologQuantArgs& a, const MlaPrologQuantOuts& o) {
  const Check check("mla_prolog_quant", a.level);
  Tensors all(a, o);
  check_given(check, all);
  check_countable(check, all);
  check.required(o.q_norm_out, "q_norm_out");
  check.required(o.query_nope_out, "query_nope_out");
  check.required(o.query_rope_out, "query_rope_out");
  const Sizes s = check_inputs(check, a);
  if (s.quantised) check.required(o.q_norm_scale_out, "q_norm_scale_out");
  const OutCache caches[] = {{a.kv_cache, o.kv_cache_out, "kv_cache", "kv_cache_out", s.latent},
                             {a.kr_cache, o.kr_cache_out, "kr_cache", "kr_cache_out", s.rope},
                             {a.k_scale_cache, o.k_scale_cache_out, "k_scale_cache", "k_scale_cache_out", s.groups}};
  const int cache_count = s.quantised ? 3 : 2;

  check.rows(o.q_norm_out, "q_norm_out", s.tokens, {s.rank}, "t of token_x, Hcq of gamma_cq");
  check.dtype(o.q_norm_out, "q_norm_out", {s.quantised ? DType::i8 : DType::bf16});
  if (s.quantised) {
    check.rows(o.q_norm_scale_out, "q_norm_scale_out", s.tokens, {1}, "t of token_x");
    check.dtype(o.q_norm_scale_out, "q_norm_scale_out", {DType::f32});
  }
  check.rows(o.query_nope_out, "query_nope_out", s.tokens, {s.heads, s.latent}, "t of token_x, N and Hckv of w_uk");
  check.dtype(o.query_nope_out, "query_nope_out", {DType::bf16});
  check.rows(o.query_rope_out, "query_rope_out", s.tokens, {s.heads, s.rope}, "t of token_x, N of w_uk, Dr of cos");
  check.dtype(o.query_rope_out, "query_rope_out", {DType::bf16});
  for (int i = 0; i < cache_count; ++i) {
    if (!caches[i].out) continue;
    prolog::check_cache_shape(check, caches[i].out, caches[i].out_name, caches[i].width, &s.cache, caches[i].name);
    check.dtype(caches[i].out, caches[i].out_name, {caches[i].in.dtype}, caches[i].name);
  }

  check.readable(a.cache_index, "cache_index");
  prolog::check_slots(check, a.cache_index, "cache_index", s.cache);
  check.positive(float(a.epsilon_cq), "epsilon_cq");
  check.positive(float(a.epsilon_ckv), "epsilon_ckv");
  static const Tensor absent;
  for (int i = 0; i < all.count; ++i) {  // a cache written in place is one tensor, under its own name
    auto& p = all.list[i];
    const bool scales =
        p.tensor == &a.k_scale_cache || p.tensor == &o.k_scale_cache_out || p.tensor == &o.q_norm_scale_out;
    if (scales && !s.quantised) p.tensor = &absent;  // passed through
    for (int c = 0; c < cache_count; ++c) {
      if (!caches[c].in_place()) continue;
      if (p.tensor == &caches[c].in) p.role = Role::inout;
      if (p.tensor == &caches[c].out) p.tensor = &absent;
    }
  }
  check_memory(check, all, Caches::free_first_axis);
  check_separate(check, all, Named::later);

  Problem problem{.mla = resolve(check, a, s)};
  prolog::MlaProblem& p = problem.mla;
  p.q_norm = prolog::flat_rows(o.q_norm_out, s.rank);
  if (s.quantised) p.q_norm_scale = prolog::flat_rows(o.q_norm_scale_out, 1);
  p.query_nope = prolog::flat_rows(o.query_nope_out, s.latent);
  p.query_rope = prolog::flat_rows(o.query_rope_out, s.rope);
  Rows* const targets[] = {&p.kv_cache.first, &p.kr_cache.first, &p.k_scale_cache.first};
  for (int c = 0; c < cache_count; ++c) {
    if (caches[c].in_place()) continue;
    *targets[c] = prolog::flat_rows(caches[c].out, caches[c].width);
    problem.copies[problem.copy_count++] = {caches[c].in, caches[c].out, caches[c].width};
  }
  return problem;
}

void check_values(const MlaPrologQuantArgs& a, const Problem& problem) {
  const Check check("mla_prolog_quant", a.level);
  check_finite(check, Tensors::inputs<MlaPrologQuantOuts>(a));
  check_weight_values(check, problem.mla);
}

void check_weight_values(const Check& check, const prolog::MlaProblem& p) {
  prolog::check_finite(check,
                       {{p.w_dq, "w_dq"}, {p.w_uq_qr, "w_uq_qr"}, {p.w_uk, "w_uk", true}, {p.w_dkv_kr, "w_dkv_kr"}});
}

}  // namespace mla_prolog_quant_op

void infer(const MlaPrologQuantArgs& a, MlaPrologQuantOuts& o) {
  const Check check("mla_prolog_quant", a.level);
  const auto s = mla_prolog_quant_op::check_inputs(check, a);
  auto fill = [](Tensor& out, const Tensor& wanted) {
    if (!out) out = wanted;
  };
  fill(o.q_norm_out, shaped(s.quantised ? DType::i8 : DType::bf16, {s.tokens, s.rank}));
  fill(o.q_norm_scale_out, s.quantised ? shaped(DType::f32, {s.tokens, 1}) : shaped(DType::f32, {0}));
  fill(o.query_nope_out, shaped(DType::bf16, {s.tokens, s.heads, s.latent}));
  fill(o.query_rope_out, shaped(DType::bf16, {s.tokens, s.heads, s.rope}));
  fill(o.kv_cache_out, a.kv_cache);
  fill(o.kr_cache_out, a.kr_cache);
  fill(o.k_scale_cache_out, a.k_scale_cache);
}

}  // namespace dsakit
