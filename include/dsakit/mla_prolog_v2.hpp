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
  Tensor token_x;
  Tensor weight_dq;
  Tensor weight_uq_qr;
  Tensor weight_uk;
  Tensor weight_dkv_kr;
  Tensor rmsnorm_gamma_cq;
  Tensor rmsnorm_gamma_ckv;
  Tensor rope_sin;
  Tensor rope_cos;
  Tensor cache_index;
  Tensor kv_cache;
  Tensor kr_cache;
  Tensor dequant_scale_x{};
  Tensor dequant_scale_w_dq{};
  Tensor dequant_scale_w_uq_qr{};
  Tensor dequant_scale_w_dkv_kr{};
  Tensor quant_scale_ckv{};
  Tensor quant_scale_ckr{};
  Tensor smooth_scales_cq{};
  double rmsnorm_epsilon_cq = 1e-5;
  double rmsnorm_epsilon_ckv = 1e-5;
  std::string_view cache_mode = "PA_BSND";
  Level level = Level::portable;
};

struct MlaPrologV2Outs {
  Tensor query;
  Tensor query_rope;
  Tensor kv_cache_out{};
  Tensor kr_cache_out{};
  Tensor dequant_scale_q_nope{};
};

void mla_prolog_v2(const MlaPrologV2Args&, const MlaPrologV2Outs&, Context& = default_context());

/// The cache outputs are the caches: infer() puts those tensors there.
void infer(const MlaPrologV2Args&, MlaPrologV2Outs&);

template <class A, class O, class V>
requires std::same_as<std::remove_const_t<A>, MlaPrologV2Args>
constexpr void for_each_field(A& a, O& o, V&& v) {
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
  v({"cache_index", Role::in, Kind::index, "int64", "[T] or [B, S]", "slot of each token, negative: not stored"},
    a.cache_index);
  v({"kv_cache", Role::inout, Kind::cache, "bfloat16, int8", "[block_num, block_size, 1, Hckv]", "latent rows"},
    a.kv_cache);
  v({"kr_cache", Role::inout, Kind::cache, "bfloat16, int8", "[block_num, block_size, 1, Dr]", "rotated key rows"},
    a.kr_cache);
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
  v({"quant_scale_ckv", Role::in_opt, Kind::scale, "float32", "[1, Hckv]",
     "factors of the latent before it is stored as int8; all int8: its elements are equal"},
    a.quant_scale_ckv);
  v({"quant_scale_ckr", Role::in_opt, Kind::scale, "float32", "[1, Dr]",
     "factors of the rotated key before it is stored as int8"},
    a.quant_scale_ckr);
  v({"smooth_scales_cq", Role::in_opt, Kind::scale, "float32", "[1, Hcq]",
     "factors of the normalised query before it is quantised"},
    a.smooth_scales_cq);
  v({"rmsnorm_epsilon_cq", Role::attribute, Kind::number, "float", "> 0", "added in the norm of the query"},
    a.rmsnorm_epsilon_cq);
  v({"rmsnorm_epsilon_ckv", Role::attribute, Kind::number, "float", "> 0", "added in the norm of the latent"},
    a.rmsnorm_epsilon_ckv);
  v({"cache_mode", Role::attribute, Kind::layout, "str", "PA_BSND, PA_NZ", "how the caches lie"}, a.cache_mode);
  v(kLevelField, a.level);
  v({"query", Role::out, Kind::data, "bfloat16, int8", "[T, N, Hckv] or [B, S, N, Hckv]", "absorbed query"}, o.query);
  v({"query_rope", Role::out, Kind::data, "bfloat16", "[T, N, Dr] or [B, S, N, Dr]", "rotated query"}, o.query_rope);
  v({"kv_cache_out", Role::out, Kind::cache, "dtype of kv_cache", "shape of kv_cache", "kv_cache itself"},
    o.kv_cache_out);
  v({"kr_cache_out", Role::out, Kind::cache, "dtype of kr_cache", "shape of kr_cache", "kr_cache itself"},
    o.kr_cache_out);
  v({"dequant_scale_q_nope", Role::out, Kind::scale, "float32", "[T, N, 1] beside an int8 query, else [1], set to 0",
     "what a code of query is worth"},
    o.dequant_scale_q_nope);
}
constexpr Description describe(const MlaPrologV2Args&) {
  return {.summary = "Absorbed and rotated queries and the cache rows of new tokens, the mode told by the dtypes",
          .formula =
              "c = norm(x weight_dq), query_norm = c or quant(c), q = query_norm weight_uq_qr per head\n"
              "query = q[:D] weight_uk, query_rope = rope(q[D:])\n"
              "kv = x weight_dkv_kr, kv_cache row = norm(kv[:Hckv]), kr_cache row = rope(kv[Hckv:]), as the mode "
              "stores them",
          .errors =
              "INVALID_ARGUMENT: a tensor is missing or does not belong to the mode, the dtypes are no mode, an "
              "attribute is out of range\n"
              "INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed or not of the mode\n"
              "UNSUPPORTED: strict: what Atlas A2/A3 does not take\n"
              "INVALID_SLOT: cache_index names no slot or page of the cache",
          .source = "torch_npu.npu_mla_prolog_v2",
          .page = "mla_prolog.md",
          .family = Family::torch_npu,
          .positional = 12};
}

namespace reference {
void mla_prolog_v2(const MlaPrologV2Args&, const MlaPrologV2Outs&);
}

}  // namespace dsakit
