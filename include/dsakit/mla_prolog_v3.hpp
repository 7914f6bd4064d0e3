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
  Tensor token_x;
  Tensor weight_dq;
  Tensor weight_uq_qr;
  Tensor weight_uk;
  Tensor weight_dkv_kr;
  Tensor rmsnorm_gamma_cq;
  Tensor rmsnorm_gamma_ckv;
  Tensor rope_sin;
  Tensor rope_cos;
  Tensor kv_cache;
  Tensor kr_cache{};
  Tensor cache_index{};
  Tensor dequant_scale_x{};
  Tensor dequant_scale_w_dq{};
  Tensor dequant_scale_w_uq_qr{};
  Tensor dequant_scale_w_dkv_kr{};
  Tensor quant_scale_ckv{};
  Tensor quant_scale_ckr{};
  Tensor smooth_scales_cq{};
  Tensor actual_seq_len{};
  Tensor k_nope_clip_alpha{};
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
  Tensor query;
  Tensor query_rope;
  Tensor dequant_scale_q_nope{};
  Tensor query_norm{};
  Tensor dequant_scale_q_norm{};
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
  v({"token_x", Role::in, Kind::data, "bfloat16, int8", "[T, He] or [B, S, He]", "hidden states"}, a.token_x);
  v({"weight_dq", Role::in, Kind::weight, "bfloat16, int8", "[He, Hcq]", "down projection of the query"}, a.weight_dq);
  v({"weight_uq_qr", Role::in, Kind::weight, "bfloat16, int8",
     "[Hcq, N*(D+Dr)], per head D plain, then Dr rope columns", "up projection of the query"},
    a.weight_uq_qr);
  v({"weight_uk", Role::in, Kind::weight, "bfloat16", "[N, D, Hckv]", "takes the query into the latent space"},
    a.weight_uk);
  v({"weight_dkv_kr", Role::in, Kind::weight, "bfloat16, int8", "[He, Hckv+Dr], latent columns first",
     "down projection of the key"},
    a.weight_dkv_kr);
  v({"rmsnorm_gamma_cq", Role::in, Kind::data, "bfloat16", "[Hcq]", "weights of the norm of the query"},
    a.rmsnorm_gamma_cq);
  v({"rmsnorm_gamma_ckv", Role::in, Kind::data, "bfloat16", "[Hckv]", "weights of the norm of the latent"},
    a.rmsnorm_gamma_ckv);
  v({"rope_sin", Role::in, Kind::data, "bfloat16", "[T, Dr] or [B, S, Dr]", "sines, before the cosines"}, a.rope_sin);
  v({"rope_cos", Role::in, Kind::data, "bfloat16", "[T, Dr] or [B, S, Dr]", "cosines"}, a.rope_cos);
  v({"kv_cache", functional ? Role::in : Role::inout, Kind::cache, "bfloat16, int8",
     "[block_num, block_size, 1, Hckv]; TND: [T, 1, .]; BSND: [B, S, 1, .]", "latent rows, or packed rows"},
    a.kv_cache);
  v({"kr_cache", functional ? Role::in_opt : Role::inout_opt, Kind::cache, "bfloat16, int8",
     "kv_cache with Dr as last axis; packed rows: no elements", "rotated key rows", kWithoutDefault},
    a.kr_cache);
  v({"cache_index", Role::in_opt, Kind::index, "int64", "[T] or [B, S]; PA_BLK_*: [P] or [B, ceil(S/block_size)]",
     "slot of each token, PA_BLK_*: page of each block; negative: not stored"},
    a.cache_index);
  v({"dequant_scale_x", Role::in_opt, Kind::scale, "float32", "[T, 1]", "what a code of an int8 token_x is worth"},
    a.dequant_scale_x);
  v({"dequant_scale_w_dq", Role::in_opt, Kind::scale, "float32", "[1, Hcq]",
     "what a column of an int8 weight_dq is worth"},
    a.dequant_scale_w_dq);
  v({"dequant_scale_w_uq_qr", Role::in_opt, Kind::scale, "float32", "[1, N*(D+Dr)]",
     "what a column of an int8 weight_uq_qr is worth"},
    a.dequant_scale_w_uq_qr);
  v({"dequant_scale_w_dkv_kr", Role::in_opt, Kind::scale, "float32", "[1, Hckv+Dr]",
     "what a column of an int8 weight_dkv_kr is worth"},
    a.dequant_scale_w_dkv_kr);
  v({"quant_scale_ckv", Role::in_opt, Kind::scale, "float32", "[1, Hckv] or [1]",
     "factors of the latent before it is stored as int8"},
    a.quant_scale_ckv);
  v({"quant_scale_ckr", Role::in_opt, Kind::scale, "float32", "[1, Dr]",
     "factors of the rotated key before it is stored as int8"},
    a.quant_scale_ckr);
  v({"smooth_scales_cq", Role::in_opt, Kind::scale, "float32", "[1, Hcq]",
     "factors of the normalised query before it is quantised"},
    a.smooth_scales_cq);
  v({"actual_seq_len", Role::in_opt, Kind::lengths, "int32", "[B]",
     "running totals of the sequences, PA_BLK_* with token_x [T, He] only"},
    a.actual_seq_len);
  v({"k_nope_clip_alpha", Role::in_opt, Kind::data, "float32", "[1]",
     "packed rows: the largest value of a tile is limited to this part of itself"},
    a.k_nope_clip_alpha);
  v({"rmsnorm_epsilon_cq", Role::attribute, Kind::number, "float", "> 0", "added in the norm of the query"},
    a.rmsnorm_epsilon_cq);
  v({"rmsnorm_epsilon_ckv", Role::attribute, Kind::number, "float", "> 0", "added in the norm of the latent"},
    a.rmsnorm_epsilon_ckv);
  v({"cache_mode", Role::attribute, Kind::layout, "str", "PA_BSND, PA_NZ, PA_BLK_BSND, PA_BLK_NZ, BSND, TND",
     "how the caches lie"},
    a.cache_mode);
  v({"query_norm_flag", Role::attribute, Kind::flag, "bool", "", "return query_norm and its scale too"},
    a.query_norm_flag);
  v({"weight_quant_mode", Role::attribute, Kind::mode, "int", "0, 1, 2; 3..5 are reserved",
     "0: bfloat16; 1: weight_uq_qr int8; 2: token_x and its weights int8 too"},
    a.weight_quant_mode);
  v({"kv_cache_quant_mode", Role::attribute, Kind::mode, "int", "0..3",
     "0: bfloat16 rows; 1: int8 by one scale; 2: int8 by scales of columns; 3: packed, by tiles"},
    a.kv_cache_quant_mode);
  v({"query_quant_mode", Role::attribute, Kind::mode, "int", "0, 1", "1: query is int8, a scale per token and head"},
    a.query_quant_mode);
  v({"ckvkr_repo_mode", Role::attribute, Kind::mode, "int", "0, 1", "1: latent and rope in one row"},
    a.ckvkr_repo_mode);
  v({"quant_scale_repo_mode", Role::attribute, Kind::mode, "int", "0, 1", "1: the scales in the same row"},
    a.quant_scale_repo_mode);
  v({"tile_size", Role::attribute, Kind::number, "int", "a divisor of Hckv", "codes that share a scale"}, a.tile_size);
  v({"qc_qr_scale", Role::attribute, Kind::number, "float", "finite", "factor of the normalised query"}, a.qc_qr_scale);
  v({"kc_scale", Role::attribute, Kind::number, "float", "finite", "factor of the normalised latent"}, a.kc_scale);
  v(kLevelField, a.level);
}

template <class O, class V>
constexpr void for_each_mla_prolog_v3_output(O& o, V&& v) {
  v({"query", Role::out, Kind::data, "bfloat16, int8", "[T, N, Hckv] or [B, S, N, Hckv]", "absorbed query"}, o.query);
  v({"query_rope", Role::out, Kind::data, "bfloat16", "[T, N, Dr] or [B, S, N, Dr]", "rotated query"}, o.query_rope);
  v({"dequant_scale_q_nope", Role::out, Kind::scale, "float32", "[T, N, 1] beside an int8 query, else [0]",
     "what a code of query is worth"},
    o.dequant_scale_q_nope);
  v({"query_norm", Role::out, Kind::data, "bfloat16, int8", "[T, Hcq] or [B, S, Hcq]; without query_norm_flag [0]",
     "normalised low-rank query"},
    o.query_norm);
  v({"dequant_scale_q_norm", Role::out, Kind::scale, "float32", "[T, 1] beside an int8 query_norm, else [0]",
     "what a code of query_norm is worth"},
    o.dequant_scale_q_norm);
}

template <class V>
constexpr void for_each_mla_prolog_v3_reserved(V&& v) {
  v({"token_x_dtype", Role::reserved, Kind::dtype, "dtype", "", "reserved"}, kAbsent);
  v({"weight_dq_dtype", Role::reserved, Kind::dtype, "dtype", "", "reserved"}, kAbsent);
  v({"weight_uq_qr_dtype", Role::reserved, Kind::dtype, "dtype", "", "reserved"}, kAbsent);
  v({"weight_dkv_kr_dtype", Role::reserved, Kind::dtype, "dtype", "", "reserved"}, kAbsent);
  v({"kv_cache_dtype", Role::reserved, Kind::dtype, "dtype", "", "reserved"}, kAbsent);
  v({"k_pe_clip_alpha", Role::tolerated, Kind::data, "", "", "passed by engines, of no effect"}, kAbsent);
}

template <class A, class O, class V>
requires std::same_as<std::remove_const_t<A>, MlaPrologV3Args>
constexpr void for_each_field(A& a, O& o, V&& v) {
  for_each_mla_prolog_v3_input(a, false, v);
  for_each_mla_prolog_v3_output(o, v);
  for_each_mla_prolog_v3_reserved(v);
}
constexpr Description describe(const MlaPrologV3Args&) {
  return {.summary = "Absorbed and rotated queries and the cache rows of new tokens, the caches updated in place",
          .formula =
              "c = norm(x weight_dq) * qc_qr_scale, query_norm = c or quant(c), q = query_norm weight_uq_qr per head\n"
              "query = q[:D] weight_uk, query_rope = rope(q[D:])\n"
              "kv = x weight_dkv_kr, kv_cache row = norm(kv[:Hckv]) * kc_scale, kr_cache row = rope(kv[Hckv:]), as the "
              "mode stores them",
          .errors =
              "INVALID_ARGUMENT: a tensor is missing or does not belong to the mode, the modes do not go together, an "
              "attribute is out of range\n"
              "INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed or not of the mode\n"
              "UNSUPPORTED: reserved modes; strict: what Atlas A2/A3 does not take\n"
              "INVALID_SEQLEN: running totals that decrease or end elsewhere than at T\n"
              "INVALID_SLOT: cache_index names no slot or page of the cache",
          .source = "torch_npu.npu_mla_prolog_v3",
          .page = "mla_prolog.md",
          .family = Family::torch_npu,
          .positional = 11};
}

template <class A, class O, class V>
requires std::same_as<std::remove_const_t<A>, MlaPrologV3FunctionalArgs>
constexpr void for_each_field(A& a, O& o, V&& v) {
  for_each_mla_prolog_v3_input(a, true, v);
  for_each_mla_prolog_v3_output(o, v);
  v({"kv_cache_out", Role::out, Kind::cache, "dtype of kv_cache", "shape of kv_cache",
     "a copy of kv_cache with the new rows"},
    o.kv_cache_out);
  v({"kr_cache_out", Role::out, Kind::cache, "dtype of kr_cache", "shape of kr_cache",
     "a copy of kr_cache with the new rows"},
    o.kr_cache_out);
  for_each_mla_prolog_v3_reserved(v);
}
constexpr Description describe(const MlaPrologV3FunctionalArgs&) {
  return {.summary = "mla_prolog_v3 on copies of the caches, which are left alone",
          .formula =
              "c = norm(x weight_dq) * qc_qr_scale, query_norm = c or quant(c), q = query_norm weight_uq_qr per head\n"
              "query = q[:D] weight_uk, query_rope = rope(q[D:])\n"
              "kv = x weight_dkv_kr, kv_cache row = norm(kv[:Hckv]) * kc_scale, kr_cache row = rope(kv[Hckv:]), as the "
              "mode stores them",
          .errors =
              "INVALID_ARGUMENT: a tensor is missing or does not belong to the mode, the modes do not go together, an "
              "attribute is out of range\n"
              "INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed or not of the mode\n"
              "UNSUPPORTED: reserved modes; strict: what Atlas A2/A3 does not take\n"
              "INVALID_SEQLEN: running totals that decrease or end elsewhere than at T\n"
              "INVALID_SLOT: cache_index names no slot or page of the cache",
          .source = "torch_npu.npu_mla_prolog_v3_functional",
          .page = "mla_prolog.md",
          .family = Family::torch_npu,
          .positional = 11};
}

namespace reference {
void mla_prolog_v3(const MlaPrologV3Args&, const MlaPrologV3Outs&);
void mla_prolog_v3_functional(const MlaPrologV3FunctionalArgs&, const MlaPrologV3FunctionalOuts&);
}  // namespace reference

}  // namespace dsakit
