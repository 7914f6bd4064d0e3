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

/// From the hidden states of T tokens ([T, He], or [B, S, He] with T = B*S): the absorbed and the rotated query, on
/// request the normalised low-rank query, and one latent and one rotated key row per token, written into caches in
/// place. The five mode integers choose dtypes and quantisation: seven combinations are offered, nine are reserved.
/// Weights are [K, N] row-major, FRACTAL_NZ or packed, with the same bits. Roundings of the torch_npu family.
/// sin comes before cos. docs/operators/mla_prolog.md
struct MlaPrologV3Args {
  Tensor token_x;            // bf16 i8 [T, He] or [B, S, He]
  Tensor weight_dq;          // bf16 i8 [He, Hcq]
  Tensor weight_uq_qr;       // bf16 i8 [Hcq, N*(D+Dr)]; per head D no-rope, then Dr rope columns
  Tensor weight_uk;          // bf16    [N, D, Hckv]
  Tensor weight_dkv_kr;      // bf16 i8 [He, Hckv+Dr]; latent columns first
  Tensor rmsnorm_gamma_cq;   // bf16    [Hcq]
  Tensor rmsnorm_gamma_ckv;  // bf16    [Hckv]
  Tensor rope_sin;           // bf16    [T, Dr] or [B, S, Dr]
  Tensor rope_cos;
  Tensor kv_cache;                  // bf16 i8 [block_num, block_size, 1, Hckv]; TND [T, 1, .]; BSND [B, S, 1, .]
  Tensor kr_cache{};                // bf16 i8 the same with Dr; rows that hold both in kv_cache: no elements
  Tensor cache_index{};             // i64     [T] or [B, S]: slots; PA_BLK_*: [P] or [B, ceil(S/block_size)]: pages
  Tensor dequant_scale_x{};         // f32     [T, 1]
  Tensor dequant_scale_w_dq{};      // f32     [1, Hcq]
  Tensor dequant_scale_w_uq_qr{};   // f32     [1, N*(D+Dr)]
  Tensor dequant_scale_w_dkv_kr{};  // f32     [1, Hckv+Dr]
  Tensor quant_scale_ckv{};         // f32     [1, Hckv] or [1]
  Tensor quant_scale_ckr{};         // f32     [1, Dr]
  Tensor smooth_scales_cq{};        // f32     [1, Hcq]
  Tensor actual_seq_len{};          // i32     [B], running totals; PA_BLK_* with token_x [T, He]
  Tensor k_nope_clip_alpha{};       // f32     [1]
  double rmsnorm_epsilon_cq = 1e-5;
  double rmsnorm_epsilon_ckv = 1e-5;
  std::string_view cache_mode = "PA_BSND";
  bool query_norm_flag = false;
  std::int64_t weight_quant_mode = 0;
  std::int64_t kv_cache_quant_mode = 0;
  std::int64_t query_quant_mode = 0;
  std::int64_t ckvkr_repo_mode = 0;
  std::int64_t quant_scale_repo_mode = 0;
  std::int64_t tile_size = 128;
  double qc_qr_scale = 1.0;
  double kc_scale = 1.0;
  Level level = Level::portable;
};

/// What a mode does not have is a tensor of shape [0]; here it may also be absent.
struct MlaPrologV3Outs {
  Tensor query;                   // bf16 i8 [T, N, Hckv] or [B, S, N, Hckv]
  Tensor query_rope;              // bf16    [T, N, Dr] or [B, S, N, Dr]
  Tensor dequant_scale_q_nope{};  // f32     [T, N, 1] beside an int8 query
  Tensor query_norm{};            // bf16 i8 [T, Hcq] or [B, S, Hcq] if query_norm_flag
  Tensor dequant_scale_q_norm{};  // f32     [T, 1] beside an int8 query_norm
};

void mla_prolog_v3(const MlaPrologV3Args&, const MlaPrologV3Outs&, Context& = default_context());
void infer(const MlaPrologV3Args&, MlaPrologV3Outs&);

/// mla_prolog_v3 that leaves the caches alone and returns updated copies.
struct MlaPrologV3FunctionalArgs : MlaPrologV3Args {};
struct MlaPrologV3FunctionalOuts : MlaPrologV3Outs {
  Tensor kv_cache_out{};
  Tensor kr_cache_out{};
};

void mla_prolog_v3_functional(const MlaPrologV3FunctionalArgs&, const MlaPrologV3FunctionalOuts&,
                              Context& = default_context());
void infer(const MlaPrologV3FunctionalArgs&, MlaPrologV3FunctionalOuts&);

template <class A, class V>
constexpr void for_each_mla_prolog_v3_input(A& a, bool functional, V&& v) {
  v("token_x", a.token_x, Role::in);
  v("weight_dq", a.weight_dq, Role::in);
  v("weight_uq_qr", a.weight_uq_qr, Role::in);
  v("weight_uk", a.weight_uk, Role::in);
  v("weight_dkv_kr", a.weight_dkv_kr, Role::in);
  v("rmsnorm_gamma_cq", a.rmsnorm_gamma_cq, Role::in);
  v("rmsnorm_gamma_ckv", a.rmsnorm_gamma_ckv, Role::in);
  v("rope_sin", a.rope_sin, Role::in);
  v("rope_cos", a.rope_cos, Role::in);
  v("kv_cache", a.kv_cache, functional ? Role::in : Role::inout);
  v("kr_cache", a.kr_cache, functional ? Role::in_opt : Role::inout_opt);
  v("cache_index", a.cache_index, Role::in_opt);
  v("dequant_scale_x", a.dequant_scale_x, Role::in_opt);
  v("dequant_scale_w_dq", a.dequant_scale_w_dq, Role::in_opt);
  v("dequant_scale_w_uq_qr", a.dequant_scale_w_uq_qr, Role::in_opt);
  v("dequant_scale_w_dkv_kr", a.dequant_scale_w_dkv_kr, Role::in_opt);
  v("quant_scale_ckv", a.quant_scale_ckv, Role::in_opt);
  v("quant_scale_ckr", a.quant_scale_ckr, Role::in_opt);
  v("smooth_scales_cq", a.smooth_scales_cq, Role::in_opt);
  v("actual_seq_len", a.actual_seq_len, Role::in_opt);
  v("k_nope_clip_alpha", a.k_nope_clip_alpha, Role::in_opt);
  v("rmsnorm_epsilon_cq", a.rmsnorm_epsilon_cq, Role::attribute);
  v("rmsnorm_epsilon_ckv", a.rmsnorm_epsilon_ckv, Role::attribute);
  v("cache_mode", a.cache_mode, Role::attribute);
  v("query_norm_flag", a.query_norm_flag, Role::attribute);
  v("weight_quant_mode", a.weight_quant_mode, Role::attribute);
  v("kv_cache_quant_mode", a.kv_cache_quant_mode, Role::attribute);
  v("query_quant_mode", a.query_quant_mode, Role::attribute);
  v("ckvkr_repo_mode", a.ckvkr_repo_mode, Role::attribute);
  v("quant_scale_repo_mode", a.quant_scale_repo_mode, Role::attribute);
  v("tile_size", a.tile_size, Role::attribute);
  v("qc_qr_scale", a.qc_qr_scale, Role::attribute);
  v("kc_scale", a.kc_scale, Role::attribute);
  v("level", a.level, Role::attribute);
}

template <class A, class O, class V>
requires std::same_as<std::remove_const_t<A>, MlaPrologV3Args>
constexpr void for_each_field(A& a, O& o, V&& v) {
  for_each_mla_prolog_v3_input(a, false, v);
  v("query", o.query, Role::out);
  v("query_rope", o.query_rope, Role::out);
  v("dequant_scale_q_nope", o.dequant_scale_q_nope, Role::out);
  v("query_norm", o.query_norm, Role::out);
  v("dequant_scale_q_norm", o.dequant_scale_q_norm, Role::out);
}
constexpr int positional(const MlaPrologV3Args&) { return 11; }

template <class A, class O, class V>
requires std::same_as<std::remove_const_t<A>, MlaPrologV3FunctionalArgs>
constexpr void for_each_field(A& a, O& o, V&& v) {
  for_each_mla_prolog_v3_input(a, true, v);
  v("query", o.query, Role::out);
  v("query_rope", o.query_rope, Role::out);
  v("dequant_scale_q_nope", o.dequant_scale_q_nope, Role::out);
  v("query_norm", o.query_norm, Role::out);
  v("dequant_scale_q_norm", o.dequant_scale_q_norm, Role::out);
  v("kv_cache_out", o.kv_cache_out, Role::out);
  v("kr_cache_out", o.kr_cache_out, Role::out);
}
constexpr int positional(const MlaPrologV3FunctionalArgs&) { return 11; }

namespace reference {
void mla_prolog_v3(const MlaPrologV3Args&, const MlaPrologV3Outs&);
void mla_prolog_v3_functional(const MlaPrologV3FunctionalArgs&, const MlaPrologV3FunctionalOuts&);
}  // namespace reference

}  // namespace dsakit
