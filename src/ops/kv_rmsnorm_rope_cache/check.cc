// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "ops/direct.hpp"
#include "ops/kv_rmsnorm_rope_cache/problem.hpp"
#include "ops/prolog/door.hpp"
#include "ops/row_operator.hpp"

// The door of kv_rmsnorm_rope_cache, for its three forms.
namespace dsakit {
namespace kv_rmsnorm_rope_cache_op {
namespace {

using Args = KvRmsnormRopeCacheArgs;

bool is_paged(const Args& a) { return a.cache_mode != "Norm"; }
bool is_whole_block(const Args& a) { return a.cache_mode.starts_with("PA_BLK_"); }
bool is_nz(const Args& a) { return a.cache_mode.ends_with("_NZ"); }

struct Sizes {
  std::int64_t batch, sequence, latent, rope;
  std::int64_t leading = 0, length = 0;  // axes 0 and 1 (Norm: 2) of the caches

  std::int64_t tokens() const { return batch * sequence; }
  std::int64_t blocks() const { return (sequence + length - 1) / length; }  // PA_BLK_*: entries of index per sequence
};

Sizes check_shapes(const Check& check, const Args& a) {
  check.rank(a.kv, "kv", 4, "B, 1, S, Hckv + Dr");
  check.rank(a.gamma, "gamma", 1, "Hckv");
  check.rank(a.cos, "cos", 4, "B, 1, S, Dr");
  Sizes s{.batch = a.kv.shape[0], .sequence = a.kv.shape[2], .latent = a.gamma.shape[0], .rope = a.cos.shape[3]};
  if (a.kv.shape[1] != 1) check.shape(a.kv, "kv", {s.batch, 1, s.sequence, a.kv.shape[3]}, "one latent for all heads");
  if (s.latent < 1) check.fail(Status::invalid_shape, "gamma", "", shape_text(a.gamma), "at least one element");
  if (s.rope < 2 || s.rope % 2 != 0)
    check.fail(Status::invalid_shape, "cos", "", shape_text(a.cos), "an even last axis of at least 2");
  check.shape(a.kv, "kv", {s.batch, 1, s.sequence, s.latent + s.rope}, "B, 1, S, Hckv of gamma + Dr of cos");
  for (const auto& [t, name] : {std::pair(&a.cos, "cos"), std::pair(&a.sin, "sin")})
    check.shape(*t, name, {s.batch, 1, s.sequence, s.rope}, "B, 1, S of kv, Dr of cos");
  if (check.strict() && s.latent != 512) check.chip(false, "gamma", shape_text(a.gamma), "Hckv 512");
  if (check.strict() && s.rope != 64) check.chip(false, "cos", shape_text(a.cos), "Dr 64");

  check.rank(a.k_cache, "k_cache", 4, is_paged(a) ? "block_num, block_size, 1, Dr" : "B, 1, L, Dr");
  s.leading = a.k_cache.shape[0], s.length = a.k_cache.shape[is_paged(a) ? 1 : 2];
  for (const auto& [t, name, width] :
       {std::tuple(&a.k_cache, "k_cache", s.rope), {&a.ckv_cache, "ckv_cache", s.latent}})
    if (is_paged(a))
      check.shape(*t, name, {s.leading, s.length, 1, width}, "block_num, block_size of k_cache, 1, width");
    else check.shape(*t, name, {s.batch, 1, s.length, width}, "B of kv, 1, L of k_cache, width");
  if (is_paged(a) && s.length < 1)
    check.fail(Status::invalid_shape, "k_cache", "", shape_text(a.k_cache), "a block_size of at least 1");
  if (check.strict() && !is_paged(a)) check.shape(a.index, "index", {s.batch, s.sequence}, "B, S of kv");
  else
    check.rows(a.index, "index", s.batch * (is_whole_block(a) ? s.blocks() : s.sequence), {},
               is_whole_block(a) ? "B * ceil(S / block_size)" : "B, S of kv");
  for (const auto& [t, name, n] :
       {std::tuple(&a.k_rope_scale, "k_rope_scale", s.rope), {&a.c_kv_scale, "c_kv_scale", s.latent}})
    if (t->elements() > 0) check.vector(*t, name, n, "a factor for each column");
  return s;
}

/// A cache, its scale and the row of its tokens: int8 with a scale, or as kv.
void check_dtypes(const Check& check, const Args& a) {
  check.dtype(a.kv, "kv", {DType::bf16, DType::f16});
  for (const auto& [t, name] : {std::pair(&a.gamma, "gamma"), std::pair(&a.cos, "cos"), std::pair(&a.sin, "sin")})
    check.dtype(*t, name, {a.kv.dtype}, "dtype of kv");
  check.dtype(a.index, "index", {DType::i64});
  for (const auto& [cache, name, scale, scale_name, why] :
       {std::tuple(&a.k_cache, "k_cache", &a.k_rope_scale, "k_rope_scale", "k_cache is not int8"),
        {&a.ckv_cache, "ckv_cache", &a.c_kv_scale, "c_kv_scale", "ckv_cache is not int8"}}) {
    check.dtype(*cache, name, {a.kv.dtype, DType::i8}, "dtype of kv, or codes");
    if (cache->dtype != DType::i8) {
      check.absent(*scale, scale_name, why);
    } else {
      check.required(*scale, scale_name);
      if (scale->elements() == 0)
        check.fail(Status::invalid_shape, scale_name, "", shape_text(*scale), "a factor for each column");
      check.dtype(*scale, scale_name, {DType::f32});
    }
  }
}

Sizes check_inputs(const Check& check, const Args& a, const Tensors& inputs) {
  check_given(check, inputs);
  check.one_of(a.cache_mode, "cache_mode", {"Norm", "PA", "PA_BNSD", "PA_NZ", "PA_BLK_BNSD", "PA_BLK_NZ"});
  check.positive(float(a.epsilon), "epsilon");
  check_countable(check, inputs);
  const Sizes s = check_shapes(check, a);
  check_dtypes(check, a);
  if (is_nz(a)) prolog::check_nz(check, a.k_cache, "k_cache"), prolog::check_nz(check, a.ckv_cache, "ckv_cache");
  return s;
}

Slots check_slots(const Check& check, const Args& a, const Sizes& s) {
  using Kind = Slots::Kind;
  const Slots slots{.kind = !is_paged(a)        ? Kind::row
                            : is_whole_block(a) ? Kind::page
                                                : Kind::slot,
                    .index = Rows(a.index, 0),
                    .sequence = s.sequence,
                    .length = s.length,
                    .blocks = is_whole_block(a) ? s.blocks() : 0};
  const std::int64_t limit = is_paged(a) ? s.leading * s.length : s.length;
  for (std::int64_t i = 0, n = s.tokens() > 0 ? a.index.elements() : 0; i < n; ++i) {
    const std::int64_t entry = *slots.index.row<const std::int64_t>(i);
    const bool apart = is_whole_block(a) && entry >= 0 && entry % s.length != 0;
    if (entry < limit && !apart) continue;
    const std::string pages = " (" + std::to_string(s.leading) + " pages of " + std::to_string(s.length) +
                              "); negative entries skip their tokens";
    check.fail(Status::invalid_slot, "index", subscript(a.index, i), "is " + std::to_string(entry),
               (apart ? "a multiple of " + std::to_string(s.length) + " " : std::string()) + "below " +
                   std::to_string(limit) + (is_paged(a) ? pages : " (L of k_cache); negative entries skip the token"));
  }
  return slots;
}

/// The rows of the tokens where they are wanted, else nothing.
Tensor wanted_rows(const Args& a, const Sizes& s, std::int64_t width) {
  return a.is_output_kv ? shaped(a.kv.dtype, {s.batch, 1, s.sequence, width}) : shaped(a.kv.dtype, {0});
}

/// Its results that are not caches may be absent if they have no elements.
void check_rows_out(const Check& check, const Args& a, const Tensor& t, const char* name, const Tensor& wanted) {
  if (t || wanted.elements() > 0)
    check_out(check, t, name, wanted, a.is_output_kv ? "B, 1, S of kv" : "no is_output_kv");
}

/// `tensors`: of the call, without results that are the caches themselves.
Problem resolve(const Check& check, const Args& a, const Sizes& s, const Tensor& k_cache, const Tensor& ckv_cache,
                const Tensor& k_rope, const Tensor& c_kv, Tensors& tensors) {
  check_rows_out(check, a, k_rope, "k_rope", wanted_rows(a, s, s.rope));
  check_rows_out(check, a, c_kv, "c_kv", wanted_rows(a, s, s.latent));
  check_separate(check, tensors);
  Check(check.op(), Level::portable)
      .readable(a.kv, "kv");  // engines hand over a slice of a projection: strict takes it
  tensors.forget("kv");
  check_memory(check, tensors, Caches::free_first_axis);
  if (is_nz(a))
    for (const auto& [t, name] : {std::pair(&k_cache, "k_cache"), std::pair(&ckv_cache, "ckv_cache")})
      prolog::check_nz_strides(check, *t, name);
  const auto part = [&](std::int64_t column, std::int64_t width, const Tensor& cache, const Tensor& scale,
                        const Tensor& out) {
    return Part{.column = column,
                .width = width,
                .cache = prolog::cache_rows(cache, width, is_nz(a)),
                .scale = cache.dtype == DType::i8 ? Rows(scale, 0) : prolog::no_rows(),
                .out = a.is_output_kv ? Rows(out, 1) : prolog::no_rows()};
  };
  return Problem{.tokens = s.tokens(),
                 .epsilon = float(a.epsilon),
                 .kv = Rows(a.kv, 1),
                 .cos = Rows(a.cos, 1),
                 .sin = Rows(a.sin, 1),
                 .gamma = a.gamma,
                 .latent = part(0, s.latent, ckv_cache, a.c_kv_scale, c_kv),
                 .rope = part(s.latent, s.rope, k_cache, a.k_rope_scale, k_rope),
                 .slots = check_slots(check, a, s)};
}

void check_itself(const Check& check, const Tensor& out, const char* name, const Tensor& cache, const char* wanted) {
  if (out && !same_storage(out, cache)) check.fail(Status::invalid_argument, name, "", "is other memory", wanted);
}

Problem check(const char* op, const KvRmsnormRopeCacheArgs& a, const KvRmsnormRopeCacheOuts& o) {
  const Check check(op, a.level);
  Tensors tensors(a, o);
  const Sizes s = check_inputs(check, a, Tensors::inputs<KvRmsnormRopeCacheOuts>(a));
  check_itself(check, o.k_cache_out, "k_cache_out", a.k_cache, "k_cache itself");
  check_itself(check, o.ckv_cache_out, "ckv_cache_out", a.ckv_cache, "ckv_cache itself");
  tensors.forget("k_cache_out");
  tensors.forget("ckv_cache_out");
  return resolve(check, a, s, a.k_cache, a.ckv_cache, o.k_rope, o.c_kv, tensors);
}

Problem check(const char* op, const KvRmsnormRopeCacheV2Args& a, const KvRmsnormRopeCacheV2Outs& o) {
  const Check check(op, a.level);
  Tensors tensors(a, o);
  const Sizes s = check_inputs(check, a, Tensors::inputs<KvRmsnormRopeCacheV2Outs>(a));
  return resolve(check, a, s, a.k_cache, a.ckv_cache, o.k_rope, o.c_kv, tensors);
}

Problem check(const char* op, const KvRmsnormRopeCacheV2FunctionalArgs& a,
              const KvRmsnormRopeCacheV2FunctionalOuts& o) {
  const Check check(op, a.level);
  Tensors tensors(a, o);
  const Sizes s = check_inputs(check, a, Tensors::inputs<KvRmsnormRopeCacheV2FunctionalOuts>(a));
  check_out(check, o.k_cache_out, "k_cache_out", like(a.k_cache, a.k_cache.dtype), "shape of k_cache");
  check_out(check, o.ckv_cache_out, "ckv_cache_out", like(a.ckv_cache, a.ckv_cache.dtype), "shape of ckv_cache");
  Problem p = resolve(check, a, s, o.k_cache_out, o.ckv_cache_out, o.k_rope, o.c_kv, tensors);
  p.from[0] = a.k_cache, p.to[0] = o.k_cache_out, p.from[1] = a.ckv_cache, p.to[1] = o.ckv_cache_out;
  return p;
}

template <class A, class O>
void infer_rows(const char* op, const A& a, O& o) {
  const Sizes s = check_inputs(Check(op, a.level), a, Tensors::inputs<O>(a));
  if (!o.k_rope) o.k_rope = wanted_rows(a, s, s.rope);
  if (!o.c_kv) o.c_kv = wanted_rows(a, s, s.latent);
}

template <class A, class O>
void run_call(const char* op, const A& a, const O& o, Context& context) {
  const Problem problem = check(op, a, o);
  if (context.check_values()) check_finite(Check(op, a.level), Tensors::inputs<O>(a));
  Call call(context, op, [&](int threads) { return workspace(problem, threads); });
  run(problem, call);
  call.finish();
}

}  // namespace
}  // namespace kv_rmsnorm_rope_cache_op

using namespace kv_rmsnorm_rope_cache_op;

void infer(const KvRmsnormRopeCacheArgs& a, KvRmsnormRopeCacheOuts& o) {
  infer_rows("kv_rmsnorm_rope_cache", a, o);
  if (!o.k_cache_out) o.k_cache_out = a.k_cache;
  if (!o.ckv_cache_out) o.ckv_cache_out = a.ckv_cache;
}
void infer(const KvRmsnormRopeCacheV2Args& a, KvRmsnormRopeCacheV2Outs& o) {
  infer_rows("kv_rmsnorm_rope_cache_v2", a, o);
}
void infer(const KvRmsnormRopeCacheV2FunctionalArgs& a, KvRmsnormRopeCacheV2FunctionalOuts& o) {
  infer_rows("kv_rmsnorm_rope_cache_v2_functional", a, o);
  if (!o.k_cache_out) o.k_cache_out = like(a.k_cache, a.k_cache.dtype);
  if (!o.ckv_cache_out) o.ckv_cache_out = like(a.ckv_cache, a.ckv_cache.dtype);
}

void direct::kv_rmsnorm_rope_cache(const KvRmsnormRopeCacheArgs& a, const KvRmsnormRopeCacheOuts& o, Context& context) {
  run_call("kv_rmsnorm_rope_cache", a, o, context);
}
void direct::kv_rmsnorm_rope_cache_v2(const KvRmsnormRopeCacheV2Args& a, const KvRmsnormRopeCacheV2Outs& o,
                                      Context& context) {
  run_call("kv_rmsnorm_rope_cache_v2", a, o, context);
}
void direct::kv_rmsnorm_rope_cache_v2_functional(const KvRmsnormRopeCacheV2FunctionalArgs& a,
                                                 const KvRmsnormRopeCacheV2FunctionalOuts& o, Context& context) {
  run_call("kv_rmsnorm_rope_cache_v2_functional", a, o, context);
}

void reference::kv_rmsnorm_rope_cache(const KvRmsnormRopeCacheArgs& a, const KvRmsnormRopeCacheOuts& o) {
  kv_rmsnorm_rope_cache_op::reference(check("kv_rmsnorm_rope_cache", a, o));
}
void reference::kv_rmsnorm_rope_cache_v2(const KvRmsnormRopeCacheV2Args& a, const KvRmsnormRopeCacheV2Outs& o) {
  kv_rmsnorm_rope_cache_op::reference(check("kv_rmsnorm_rope_cache_v2", a, o));
}
void reference::kv_rmsnorm_rope_cache_v2_functional(const KvRmsnormRopeCacheV2FunctionalArgs& a,
                                                    const KvRmsnormRopeCacheV2FunctionalOuts& o) {
  kv_rmsnorm_rope_cache_op::reference(check("kv_rmsnorm_rope_cache_v2_functional", a, o));
}

}  // namespace dsakit
