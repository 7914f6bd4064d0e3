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
  Tensor token_x;          // bf16 [t, He]
  Tensor w_dq;             // bf16 [He, Hcq]
  Tensor w_uq_qr;          // i8 (bf16 when not quantised) [Hcq, N*(D+Dr)]; per head D no-rope, then Dr rope columns
  Tensor dequant_scale;    // f32 [N*(D+Dr), 1]; absent or empty: not quantised
  Tensor w_uk;             // bf16 [N, D, Hckv]
  Tensor w_dkv_kr;         // bf16 [He, Hckv+Dr]; latent columns first
  Tensor gamma_cq;         // bf16 [Hcq]
  Tensor gamma_ckv;        // bf16 [Hckv]
  Tensor cos;              // bf16 [t, Dr]
  Tensor sin;              // bf16 [t, Dr]
  Tensor cache_index;      // i64 [t]: slot of each token; negative: not stored
  Tensor kv_cache;         // i8 (bf16) [block_num, block_size, 1, Hckv], updated in place unless kv_cache_out is given
  Tensor kr_cache;         // bf16 [block_num, block_size, 1, Dr], likewise
  Tensor k_scale_cache{};  // f32 [block_num, block_size, 1, G], likewise; not used when not quantised
  double epsilon_cq = 1e-5;
  double epsilon_ckv = 1e-5;
  std::string_view cache_mode = "PA_BSND";
  Level level = Level::portable;
};

struct MlaPrologQuantOuts {
  Tensor q_norm_out;        // i8 (bf16) [t, Hcq]
  Tensor q_norm_scale_out;  // f32 [t, 1]; [0] when not quantised
  Tensor query_nope_out;    // bf16 [t, N, Hckv]
  Tensor query_rope_out;    // bf16 [t, N, Dr]
  Tensor kv_cache_out{};    // absent: the cache itself. Separate memory: receives a full copy, then the new rows
  Tensor kr_cache_out{};
  Tensor k_scale_cache_out{};
};

void mla_prolog_quant(const MlaPrologQuantArgs&, const MlaPrologQuantOuts&, Context& = default_context());

/// An absent cache output is the cache itself: infer() puts that tensor there.
void infer(const MlaPrologQuantArgs&, MlaPrologQuantOuts&);

template <class A, class O, class V>
  requires std::same_as<std::remove_const_t<A>, MlaPrologQuantArgs>
constexpr void for_each_field(A& a, O& o, V&& v) {
  v("token_x", a.token_x, Role::in);
  v("w_dq", a.w_dq, Role::in);
  v("w_uq_qr", a.w_uq_qr, Role::in);
  v("dequant_scale", a.dequant_scale, Role::in_opt);
  v("w_uk", a.w_uk, Role::in);
  v("w_dkv_kr", a.w_dkv_kr, Role::in);
  v("gamma_cq", a.gamma_cq, Role::in);
  v("gamma_ckv", a.gamma_ckv, Role::in);
  v("cos", a.cos, Role::in);
  v("sin", a.sin, Role::in);
  v("cache_index", a.cache_index, Role::in);
  v("kv_cache", a.kv_cache, Role::in);
  v("kr_cache", a.kr_cache, Role::in);
  v("k_scale_cache", a.k_scale_cache, Role::in_opt);
  v("q_norm_out", o.q_norm_out, Role::out);
  v("q_norm_scale_out", o.q_norm_scale_out, Role::out);
  v("query_nope_out", o.query_nope_out, Role::out);
  v("query_rope_out", o.query_rope_out, Role::out);
  v("kv_cache_out", o.kv_cache_out, Role::out);
  v("kr_cache_out", o.kr_cache_out, Role::out);
  v("k_scale_cache_out", o.k_scale_cache_out, Role::out);
  v("epsilon_cq", a.epsilon_cq, Role::attribute);
  v("epsilon_ckv", a.epsilon_ckv, Role::attribute);
  v("cache_mode", a.cache_mode, Role::attribute);
  v("level", a.level, Role::attribute);
}
constexpr int positional(const MlaPrologQuantArgs&) { return 14; }

namespace reference {
void mla_prolog_quant(const MlaPrologQuantArgs&, const MlaPrologQuantOuts&);
}

}  // namespace dsakit
