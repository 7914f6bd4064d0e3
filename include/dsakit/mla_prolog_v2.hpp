// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <concepts>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "dsakit/context.hpp"
#include "dsakit/field.hpp"
#include "dsakit/modes.hpp"
#include "dsakit/tensor.hpp"

namespace dsakit {

/// mla_prolog_v3 in its older form: the dtypes of token_x, weight_uq_qr and kv_cache choose the mode, caches are paged,
/// rows are not packed, query_norm is not returned. cache_index comes before the caches.
/// docs/operators/mla_prolog.md
struct MlaPrologV2Args {
  Tensor token_x;            // bf16 i8 [T, He] or [B, S, He]
  Tensor weight_dq;          // bf16 i8 [He, Hcq]
  Tensor weight_uq_qr;       // bf16 i8 [Hcq, N*(D+Dr)]
  Tensor weight_uk;          // bf16    [N, D, Hckv]
  Tensor weight_dkv_kr;      // bf16 i8 [He, Hckv+Dr]
  Tensor rmsnorm_gamma_cq;   // bf16    [Hcq]
  Tensor rmsnorm_gamma_ckv;  // bf16    [Hckv]
  Tensor rope_sin;           // bf16    [T, Dr] or [B, S, Dr]
  Tensor rope_cos;
  Tensor cache_index;               // i64     [T] or [B, S]
  Tensor kv_cache;                  // bf16 i8 [block_num, block_size, 1, Hckv], updated in place
  Tensor kr_cache;                  // bf16 i8 [block_num, block_size, 1, Dr], likewise
  Tensor dequant_scale_x{};         // f32     [T, 1]
  Tensor dequant_scale_w_dq{};      // f32     [1, Hcq]
  Tensor dequant_scale_w_uq_qr{};   // f32     [1, N*(D+Dr)]
  Tensor dequant_scale_w_dkv_kr{};  // f32     [1, Hckv+Dr]
  Tensor quant_scale_ckv{};         // f32     [1, Hckv]; all int8: its elements are equal
  Tensor quant_scale_ckr{};         // f32     [1, Dr]
  Tensor smooth_scales_cq{};        // f32     [1, Hcq]
  double rmsnorm_epsilon_cq = 1e-5;
  double rmsnorm_epsilon_ckv = 1e-5;
  std::string_view cache_mode = "PA_BSND";
  Level level = Level::portable;
};

struct MlaPrologV2Outs {
  Tensor query;                   // bf16 i8 [T, N, Hckv] or [B, S, N, Hckv]
  Tensor query_rope;              // bf16    [T, N, Dr] or [B, S, N, Dr]
  Tensor kv_cache_out{};          // kv_cache itself, or absent
  Tensor kr_cache_out{};          // kr_cache itself, or absent
  Tensor dequant_scale_q_nope{};  // f32     [T, N, 1] beside an int8 query; else [1], set to 0
};

void mla_prolog_v2(const MlaPrologV2Args&, const MlaPrologV2Outs&, Context& = default_context());

/// The cache outputs are the caches: infer() puts those tensors there.
void infer(const MlaPrologV2Args&, MlaPrologV2Outs&);

template <class A, class O, class V>
requires std::same_as<std::remove_const_t<A>, MlaPrologV2Args>
constexpr void for_each_field(A& a, O& o, V&& v) {
  v("token_x", a.token_x, Role::in);
  v("weight_dq", a.weight_dq, Role::in);
  v("weight_uq_qr", a.weight_uq_qr, Role::in);
  v("weight_uk", a.weight_uk, Role::in);
  v("weight_dkv_kr", a.weight_dkv_kr, Role::in);
  v("rmsnorm_gamma_cq", a.rmsnorm_gamma_cq, Role::in);
  v("rmsnorm_gamma_ckv", a.rmsnorm_gamma_ckv, Role::in);
  v("rope_sin", a.rope_sin, Role::in);
  v("rope_cos", a.rope_cos, Role::in);
  v("cache_index", a.cache_index, Role::in);
  v("kv_cache", a.kv_cache, Role::inout);
  v("kr_cache", a.kr_cache, Role::inout);
  v("dequant_scale_x", a.dequant_scale_x, Role::in_opt);
  v("dequant_scale_w_dq", a.dequant_scale_w_dq, Role::in_opt);
  v("dequant_scale_w_uq_qr", a.dequant_scale_w_uq_qr, Role::in_opt);
  v("dequant_scale_w_dkv_kr", a.dequant_scale_w_dkv_kr, Role::in_opt);
  v("quant_scale_ckv", a.quant_scale_ckv, Role::in_opt);
  v("quant_scale_ckr", a.quant_scale_ckr, Role::in_opt);
  v("smooth_scales_cq", a.smooth_scales_cq, Role::in_opt);
  v("rmsnorm_epsilon_cq", a.rmsnorm_epsilon_cq, Role::attribute);
  v("rmsnorm_epsilon_ckv", a.rmsnorm_epsilon_ckv, Role::attribute);
  v("cache_mode", a.cache_mode, Role::attribute);
  v("level", a.level, Role::attribute);
  v("query", o.query, Role::out);
  v("query_rope", o.query_rope, Role::out);
  v("kv_cache_out", o.kv_cache_out, Role::out);
  v("kr_cache_out", o.kr_cache_out, Role::out);
  v("dequant_scale_q_nope", o.dequant_scale_q_nope, Role::out);
}
constexpr int positional(const MlaPrologV2Args&) { return 12; }

namespace reference {
void mla_prolog_v2(const MlaPrologV2Args&, const MlaPrologV2Outs&);
}

}  // namespace dsakit
