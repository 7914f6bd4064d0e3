// SPDX-License-Identifier: Apache-2.0
#include "ops/mla_prolog_v3/door.hpp"

#include "ops/direct.hpp"

namespace dsakit {
namespace mla_prolog_v3_op {
namespace {

using Args = MlaPrologV2Args;
using Outs = MlaPrologV2Outs;

/// The call as one of v3: dtypes say which row of its table is meant. A combination that is none is refused for the
/// dtype that does not fit the row of the others.
MlaPrologV3Args as_v3(const Args& a) {
  const bool full = a.token_x.dtype == DType::i8, partial = !full && a.weight_uq_qr.dtype == DType::i8;
  const bool codes = a.kv_cache.dtype == DType::i8;
  return {.token_x = a.token_x,
          .weight_dq = a.weight_dq,
          .weight_uq_qr = a.weight_uq_qr,
          .weight_uk = a.weight_uk,
          .weight_dkv_kr = a.weight_dkv_kr,
          .rmsnorm_gamma_cq = a.rmsnorm_gamma_cq,
          .rmsnorm_gamma_ckv = a.rmsnorm_gamma_ckv,
          .rope_sin = a.rope_sin,
          .rope_cos = a.rope_cos,
          .kv_cache = a.kv_cache,
          .kr_cache = a.kr_cache,
          .cache_index = a.cache_index,
          .dequant_scale_x = a.dequant_scale_x,
          .dequant_scale_w_dq = a.dequant_scale_w_dq,
          .dequant_scale_w_uq_qr = a.dequant_scale_w_uq_qr,
          .dequant_scale_w_dkv_kr = a.dequant_scale_w_dkv_kr,
          .quant_scale_ckv = a.quant_scale_ckv,
          .quant_scale_ckr = a.quant_scale_ckr,
          .smooth_scales_cq = a.smooth_scales_cq,
          .rmsnorm_epsilon_cq = a.rmsnorm_epsilon_cq,
          .rmsnorm_epsilon_ckv = a.rmsnorm_epsilon_ckv,
          .cache_mode = a.cache_mode,
          .weight_quant_mode = full      ? 2
                               : partial ? 1
                                         : 0,
          .kv_cache_quant_mode = codes && full      ? 1
                                 : codes && partial ? 2
                                                    : 0,
          .query_quant_mode = codes && full,
          .level = a.level};
}

/// dequant_scale_q_nope exists in every mode: [1] where the query is not int8.
MlaPrologV3Outs v2_outs_of(const MlaPrologV3Args& a, const Sizes& s) {
  MlaPrologV3Outs wanted = outs_of(a, s);
  if (!s.mode->query_codes()) wanted.dequant_scale_q_nope = shaped(DType::f32, {1});
  return wanted;
}

void check_cache_out(const Check& check, const Tensor& out, const char* name, const Tensor& cache, const char* wanted) {
  if (out && !same_storage(out, cache)) check.fail(Status::invalid_argument, name, "", "is other memory", wanted);
}

}  // namespace

Problem check(const Args& a, const Outs& o) {
  const Check check("mla_prolog_v2", a.level);
  const MlaPrologV3Args v3 = as_v3(a);
  Tensors tensors(a, o);
  const Sizes s = check_inputs(check, Form::v2, v3, tensors);
  const MlaPrologV3Outs outs{
      .query = o.query, .query_rope = o.query_rope, .dequant_scale_q_nope = o.dequant_scale_q_nope};
  check_outs(check, outs, v2_outs_of(v3, s));
  check_cache_out(check, o.kv_cache_out, "kv_cache_out", a.kv_cache, "kv_cache itself");
  check_cache_out(check, o.kr_cache_out, "kr_cache_out", a.kr_cache, "kr_cache itself");
  tensors.forget("kv_cache_out");
  tensors.forget("kr_cache_out");
  Problem p = resolve(check, Form::v2, v3, outs, a.kv_cache, a.kr_cache, s, tensors);
  if (!s.mode->query_codes()) p.zero = o.dequant_scale_q_nope;
  return p;
}

}  // namespace mla_prolog_v3_op

void infer(const MlaPrologV2Args& a, MlaPrologV2Outs& o) {
  using namespace mla_prolog_v3_op;
  const Check check("mla_prolog_v2", a.level);
  const MlaPrologV3Args v3 = as_v3(a);
  MlaPrologV3Outs outs{.query = o.query, .query_rope = o.query_rope, .dequant_scale_q_nope = o.dequant_scale_q_nope};
  fill(outs, v2_outs_of(v3, check_inputs(check, Form::v2, v3, Tensors::inputs<MlaPrologV2Outs>(a))));
  o.query = outs.query, o.query_rope = outs.query_rope, o.dequant_scale_q_nope = outs.dequant_scale_q_nope;
  if (!o.kv_cache_out) o.kv_cache_out = a.kv_cache;
  if (!o.kr_cache_out) o.kr_cache_out = a.kr_cache;
}

void direct::mla_prolog_v2(const MlaPrologV2Args& a, const MlaPrologV2Outs& o, Context& context) {
  using namespace mla_prolog_v3_op;
  const Problem problem = check(a, o);
  const Check check("mla_prolog_v2", a.level);
  run_call(check, Tensors::inputs<MlaPrologV2Outs>(a), problem, context);
}

}  // namespace dsakit
