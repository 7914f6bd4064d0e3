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

/// From the hidden states of t tokens: the normalised low-rank query, the absorbed and the rotated query, and one
/// latent and one rotated key row per token, written into paged caches. Quantised if `dequant_scale` has elements:
/// int8 query projection, int8 latent rows with one fp32 scale per group of columns.
/// Weights are [K, N] row-major, FRACTAL_NZ or packed, with the same bits. Roundings of the PyPTO family.
/// cos comes before sin. docs/operators/mla_prolog.md
struct MlaPrologQuantArgs {
  Tensor token_x;
  Tensor w_dq;
  Tensor w_uq_qr;
  Tensor dequant_scale;
  Tensor w_uk;
  Tensor w_dkv_kr;
  Tensor gamma_cq;
  Tensor gamma_ckv;
  Tensor cos;
  Tensor sin;
  Tensor cache_index;
  Tensor kv_cache;
  Tensor kr_cache;
  Tensor k_scale_cache{};
  double epsilon_cq = 1e-5;
  double epsilon_ckv = 1e-5;
  std::string_view cache_mode = "PA_BSND";
  Level level = Level::portable;
};

struct MlaPrologQuantOuts {
  Tensor q_norm_out;
  Tensor q_norm_scale_out;
  Tensor query_nope_out;
  Tensor query_rope_out;
  Tensor kv_cache_out{};
  Tensor kr_cache_out{};
  Tensor k_scale_cache_out{};
};

void mla_prolog_quant(const MlaPrologQuantArgs&, const MlaPrologQuantOuts&, Context& = default_context());

/// An absent cache output is the cache itself: infer() puts that tensor there.
void infer(const MlaPrologQuantArgs&, MlaPrologQuantOuts&);

template <class A, class O, class V>
requires std::same_as<std::remove_const_t<A>, MlaPrologQuantArgs>
constexpr void for_each_field(A& a, O& o, V&& v) {
  v({"token_x", Role::in, Kind::data, "bfloat16", "[t, He]", "hidden states"}, a.token_x);
  v({"w_dq", Role::in, Kind::weight, "bfloat16", "[He, Hcq]", "down projection of the query"}, a.w_dq);
  v({"w_uq_qr", Role::in, Kind::weight, "int8; not quantised: bfloat16",
     "[Hcq, N*(D+Dr)], per head D plain, then Dr rope columns", "up projection of the query"},
    a.w_uq_qr);
  v({"dequant_scale", Role::in_opt, Kind::scale, "float32", "[N*(D+Dr), 1]; absent or empty: not quantised",
     "what a column of w_uq_qr is worth"},
    a.dequant_scale);
  v({"w_uk", Role::in, Kind::weight, "bfloat16", "[N, D, Hckv]", "takes the query into the latent space"}, a.w_uk);
  v({"w_dkv_kr", Role::in, Kind::weight, "bfloat16", "[He, Hckv+Dr], latent columns first",
     "down projection of the key"},
    a.w_dkv_kr);
  v({"gamma_cq", Role::in, Kind::data, "bfloat16", "[Hcq]", "weights of the norm of the query"}, a.gamma_cq);
  v({"gamma_ckv", Role::in, Kind::data, "bfloat16", "[Hckv]", "weights of the norm of the latent"}, a.gamma_ckv);
  v({"cos", Role::in, Kind::data, "bfloat16", "[t, Dr]", "cosines, before the sines"}, a.cos);
  v({"sin", Role::in, Kind::data, "bfloat16", "[t, Dr]", "sines"}, a.sin);
  v({"cache_index", Role::in, Kind::index, "int64", "[t]", "slot of each token, negative: not stored"}, a.cache_index);
  v({"kv_cache", Role::in, Kind::cache, "int8; not quantised: bfloat16", "[block_num, block_size, 1, Hckv]",
     "latent rows, updated in place unless kv_cache_out is given"},
    a.kv_cache);
  v({"kr_cache", Role::in, Kind::cache, "bfloat16", "[block_num, block_size, 1, Dr]", "rotated key rows, likewise"},
    a.kr_cache);
  v({"k_scale_cache", Role::in_opt, Kind::cache, "float32", "[block_num, block_size, 1, G]",
     "scales of the latent rows, likewise; not used when not quantised"},
    a.k_scale_cache);
  v({"q_norm_out", Role::out, Kind::data, "int8; not quantised: bfloat16", "[t, Hcq]", "normalised low-rank query"},
    o.q_norm_out);
  v({"q_norm_scale_out", Role::out, Kind::scale, "float32", "[t, 1]; not quantised: [0]", "what a code of it is worth"},
    o.q_norm_scale_out);
  v({"query_nope_out", Role::out, Kind::data, "bfloat16", "[t, N, Hckv]", "absorbed query"}, o.query_nope_out);
  v({"query_rope_out", Role::out, Kind::data, "bfloat16", "[t, N, Dr]", "rotated query"}, o.query_rope_out);
  v({"kv_cache_out", Role::out, Kind::cache, "dtype of kv_cache", "shape of kv_cache",
     "absent: kv_cache itself; other memory receives a full copy, then the new rows"},
    o.kv_cache_out);
  v({"kr_cache_out", Role::out, Kind::cache, "bfloat16", "shape of kr_cache", "likewise"}, o.kr_cache_out);
  v({"k_scale_cache_out", Role::out, Kind::cache, "float32", "shape of k_scale_cache", "likewise"},
    o.k_scale_cache_out);
  v({"epsilon_cq", Role::attribute, Kind::number, "float", "> 0", "added in the norm of the query"}, a.epsilon_cq);
  v({"epsilon_ckv", Role::attribute, Kind::number, "float", "> 0", "added in the norm of the latent"}, a.epsilon_ckv);
  v({"cache_mode", Role::attribute, Kind::layout, "str", "PA_BSND", "how the caches lie"}, a.cache_mode);
  v(kLevelField, a.level);
  v({"tile_config", Role::hint, Kind::number, "", "", "how to cut the work"}, kAbsent);
  v({"rope_cfg", Role::hint, Kind::number, "", "", "how to cut the rotation"}, kAbsent);
}
constexpr Description describe(const MlaPrologQuantArgs&) {
  return {.summary = "Absorbed and rotated queries and the cache rows of new tokens",
          .formula =
              "c = norm(x w_dq), q_norm = quant(c), q = q_norm w_uq_qr per head\n"
              "query_nope = q[:D] w_uk, query_rope = rope(q[D:])\n"
              "kv = x w_dkv_kr, kv_cache row = quant(norm(kv[:Hckv])) per group, kr_cache row = rope(kv[Hckv:])",
          .errors =
              "INVALID_ARGUMENT: a tensor is missing, an epsilon is not finite and above 0, cache_mode is unknown\n"
              "INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed\n"
              "UNSUPPORTED: cache_mode PA_NZ; strict: what the device does not take\n"
              "INVALID_SLOT: cache_index is not below block_num * block_size",
          .source = "the PyPTO example for DeepSeek-V3.2",
          .page = "mla_prolog.md",
          .family = Family::pypto,
          .positional = 14};
}

namespace reference {
void mla_prolog_quant(const MlaPrologQuantArgs&, const MlaPrologQuantOuts&);
}

}  // namespace dsakit
