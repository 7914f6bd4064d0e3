// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>

#include "ops/direct.hpp"

#include "ops/mla_prolog_v3/door.hpp"

namespace dsakit {
namespace mla_prolog_v3_op {
namespace {

using Args = MlaPrologV3Args;

void check_range(const Check& check, std::int64_t value, const char* name, int last) {
  if (value < 0 || value > last)
    check.fail(Status::invalid_argument, name, "", is(value), "0.." + std::to_string(last));
}

const Mode& check_mode(const Check& check, const Args& a) {
  check_range(check, a.weight_quant_mode, "weight_quant_mode", 5);
  check_range(check, a.kv_cache_quant_mode, "kv_cache_quant_mode", 3);
  check_range(check, a.query_quant_mode, "query_quant_mode", 1);
  check_range(check, a.ckvkr_repo_mode, "ckvkr_repo_mode", 1);
  check_range(check, a.quant_scale_repo_mode, "quant_scale_repo_mode", 1);
  // The three other integers follow from kv_cache_quant_mode; that goes with some weight_quant_modes only.
  const auto beside = [&](std::int64_t value, const char* name, std::int64_t wanted, const char* why) {
    if (value == wanted) return;
    check.fail(Status::invalid_argument, name, "",
               is(value) + " with kv_cache_quant_mode " + std::to_string(a.kv_cache_quant_mode), std::to_string(wanted),
               why);
  };
  const bool packed = a.kv_cache_quant_mode == 3;
  beside(a.query_quant_mode, "query_quant_mode", a.kv_cache_quant_mode == 1,
         "the query is int8 where the latent has one scale for all");
  beside(a.ckvkr_repo_mode, "ckvkr_repo_mode", packed,
         packed ? "per-tile rows hold rope and scales" : "only per-tile rows hold the rope key");
  beside(a.quant_scale_repo_mode, "quant_scale_repo_mode", packed,
         packed ? "per-tile rows hold rope and scales" : "only per-tile rows hold scales");
  const Mode* mode = find_mode(a.weight_quant_mode, a.kv_cache_quant_mode, a.query_quant_mode, a.ckvkr_repo_mode,
                               a.quant_scale_repo_mode);
  if (!mode) {
    std::string wanted;
    for (const Mode& m : kModeTable)
      if (m.weight_quant == a.weight_quant_mode)
        wanted += (wanted.empty() ? "" : " or ") + std::to_string(m.kv_cache_quant);
    check.fail(Status::invalid_argument, "kv_cache_quant_mode", "",
               is(a.kv_cache_quant_mode) + " with weight_quant_mode " + std::to_string(a.weight_quant_mode), wanted);
  }
  if (mode->reserved)
    check.fail(Status::unsupported, "weight_quant_mode", "", is(a.weight_quant_mode), "0, 1 or 2",
               std::string(mode->reserved) + " is reserved");
  return *mode;
}

void check_cache_mode(const Check& check, Form form, const Args& a, const Mode& mode) {
  if (form == Form::v2) return check.one_of(a.cache_mode, "cache_mode", {"PA_BSND", "PA_NZ"});
  check.one_of(a.cache_mode, "cache_mode", {"PA_BSND", "PA_NZ", "PA_BLK_BSND", "PA_BLK_NZ", "BSND", "TND"});
  if (mode.every_cache_mode || (!is_nz(a) && !is_whole_block(a))) return;
  check.fail(Status::invalid_argument, "cache_mode", "", "is '" + std::string(a.cache_mode) + "'",
             "PA_BSND, BSND or TND", "kv_cache_quant_mode 3");
}

}  // namespace

Sizes check_inputs(const Check& check, Form form, const Args& a, const Tensors& tensors) {
  check_given(check, tensors);
  check_countable(check, tensors);
  const bool known = a.kv_cache_quant_mode >= 0 && a.kv_cache_quant_mode <= 3;  // else that is what is wrong
  if (known && (a.kv_cache_quant_mode != 3 || check.strict())) check.required(a.kr_cache, "kr_cache");
  const Mode& mode = check_mode(check, a);
  check_cache_mode(check, form, a, mode);
  const Sizes s = check_shapes(check, a, mode);
  if (check.strict()) check_chip_sizes(check, form, a, s);
  check_dtypes(check, form, a, s);
  check_optional(check, form, a, s);
  check_inner(check, a, s);
  return s;
}

MlaPrologV3Outs outs_of(const Args& a, const Sizes& s) {
  const Mode& m = *s.mode;
  const auto per_token = [&](DType dtype, std::initializer_list<std::int64_t> row) {
    Tensor t = s.batched ? shaped(dtype, {s.batch, s.sequence}) : shaped(dtype, {s.tokens});
    for (const std::int64_t n : row) t.shape[t.rank++] = n;
    make_contiguous(t);
    return t;
  };
  const bool norm = a.query_norm_flag;
  return {
      .query = per_token(m.query, {s.heads, s.latent}),
      .query_rope = per_token(DType::bf16, {s.heads, s.rope}),
      .dequant_scale_q_nope = m.query_codes() ? shaped(DType::f32, {s.tokens, s.heads, 1}) : shaped(DType::f32, {0}),
      .query_norm = norm ? per_token(m.query_norm, {s.rank}) : shaped(m.query_norm, {0}),
      .dequant_scale_q_norm =
          norm && m.query_norm == DType::i8 ? shaped(DType::f32, {s.tokens, 1}) : shaped(DType::f32, {0})};
}

void fill(MlaPrologV3Outs& o, const MlaPrologV3Outs& wanted) {
  const auto one = [](Tensor& out, const Tensor& shape) {
    if (!out) out = shape;
  };
  one(o.query, wanted.query);
  one(o.query_rope, wanted.query_rope);
  one(o.dequant_scale_q_nope, wanted.dequant_scale_q_nope);
  one(o.query_norm, wanted.query_norm);
  one(o.dequant_scale_q_norm, wanted.dequant_scale_q_norm);
}

void check_out(const Check& check, const Tensor& given, const Tensor& wanted, const char* name) {
  check.sizes(wanted, name);
  if (!given && wanted.elements() == 0) return;
  check.required(given, name);
  check.sizes(given, name);
  if (given.rank != wanted.rank ||
      !std::equal(wanted.shape.begin(), wanted.shape.begin() + wanted.rank, given.shape.begin()))
    check.fail(Status::invalid_shape, name, "", shape_text(given),
               brackets({wanted.shape.data(), std::size_t(wanted.rank)}));
  check.dtype(given, name, {wanted.dtype});
}

void check_outs(const Check& check, const MlaPrologV3Outs& given, const MlaPrologV3Outs& wanted) {
  check_out(check, given.query, wanted.query, "query");
  check_out(check, given.query_rope, wanted.query_rope, "query_rope");
  check_out(check, given.dequant_scale_q_nope, wanted.dequant_scale_q_nope, "dequant_scale_q_nope");
  check_out(check, given.query_norm, wanted.query_norm, "query_norm");
  check_out(check, given.dequant_scale_q_norm, wanted.dequant_scale_q_norm, "dequant_scale_q_norm");
}

Problem check(const Args& a, const MlaPrologV3Outs& o) {
  const Check check("mla_prolog_v3", a.level);
  Tensors tensors(a, o);
  const Sizes s = check_inputs(check, Form::v3, a, tensors);
  check_outs(check, o, outs_of(a, s));
  return resolve(check, Form::v3, a, o, a.kv_cache, a.kr_cache, s, tensors);
}

}  // namespace mla_prolog_v3_op

void infer(const MlaPrologV3Args& a, MlaPrologV3Outs& o) {
  using namespace mla_prolog_v3_op;
  const Check check("mla_prolog_v3", a.level);
  fill(o, outs_of(a, check_inputs(check, Form::v3, a, Tensors::inputs<MlaPrologV3Outs>(a))));
}

void direct::mla_prolog_v3(const MlaPrologV3Args& a, const MlaPrologV3Outs& o, Context& context) {
  using namespace mla_prolog_v3_op;
  const Problem problem = check(a, o);
  const Check check("mla_prolog_v3", a.level);
  run_call(check, Tensors::inputs<MlaPrologV3Outs>(a), problem, context);
}

}  // namespace dsakit
