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

/// mla_prolog_quant in its quantised mode followed by lightning_indexer_prolog_quant on its q_norm, in one call and
/// with the same bits. One token_x, one cos/sin pair and one cache_index serve both, so all five caches have one
/// block_size. docs/operators/mla_indexer_prolog_quant.md
struct MlaIndexerPrologQuantArgs {
  Tensor token_x;          // bf16 [t, He]
  Tensor w_dq;             // the weights of mla_prolog_quant ...
  Tensor w_uq_qr;
  Tensor dequant_scale;
  Tensor w_uk;
  Tensor w_dkv_kr;
  Tensor gamma_cq;
  Tensor gamma_ckv;
  Tensor cos;              // bf16 [t, Dr]
  Tensor sin;
  Tensor cache_index;      // i64 [t]
  Tensor w_qb;             // ... and of lightning_indexer_prolog_quant
  Tensor w_qb_scale;
  Tensor wk;
  Tensor w_proj;
  Tensor ln_gamma_k;
  Tensor ln_beta_k;
  Tensor hadamard_q{};
  Tensor hadamard_k{};
  double epsilon_cq = 1e-5;
  double epsilon_ckv = 1e-5;
  double layernorm_epsilon_k = 1e-6;
  std::string_view rope_layout_indexer = "half";
  std::string_view cache_mode = "PA_BSND";
  Level level = Level::portable;
};

struct MlaIndexerPrologQuantOuts {
  Tensor query_nope;       // bf16 [t, N, Hckv]
  Tensor query_rope;       // bf16 [t, N, Dr]
  Tensor kv_cache;         // i8   [block_num, block_size, 1, Hckv], in place, as the next four caches
  Tensor kr_cache;         // bf16 [.., Dr]
  Tensor k_scale_cache;    // f32  [.., G]
  Tensor q_int8;           // i8   [t, Ni, Di]
  Tensor q_scale;          // f16  [t, Ni, 1]
  Tensor ip_k_cache;       // i8   [.., Di]
  Tensor ip_k_scale_cache; // f16 f32 [.., 1]
  Tensor weights;          // f16  [t, Ni]
};

void mla_indexer_prolog_quant(const MlaIndexerPrologQuantArgs&, const MlaIndexerPrologQuantOuts&,
                              Context& = default_context());
void infer(const MlaIndexerPrologQuantArgs&, MlaIndexerPrologQuantOuts&);

template <class A, class O, class V>
  requires std::same_as<std::remove_const_t<A>, MlaIndexerPrologQuantArgs>
constexpr void for_each_field(A& a, O& o, V&& v) {
  v("token_x", a.token_x, Role::in);
  v("w_dq", a.w_dq, Role::in);
  v("w_uq_qr", a.w_uq_qr, Role::in);
  v("dequant_scale", a.dequant_scale, Role::in);
  v("w_uk", a.w_uk, Role::in);
  v("w_dkv_kr", a.w_dkv_kr, Role::in);
  v("gamma_cq", a.gamma_cq, Role::in);
  v("gamma_ckv", a.gamma_ckv, Role::in);
  v("cos", a.cos, Role::in);
  v("sin", a.sin, Role::in);
  v("cache_index", a.cache_index, Role::in);
  v("kv_cache", o.kv_cache, Role::inout);
  v("kr_cache", o.kr_cache, Role::inout);
  v("k_scale_cache", o.k_scale_cache, Role::inout);
  v("w_qb", a.w_qb, Role::in);
  v("w_qb_scale", a.w_qb_scale, Role::in);
  v("wk", a.wk, Role::in);
  v("w_proj", a.w_proj, Role::in);
  v("ln_gamma_k", a.ln_gamma_k, Role::in);
  v("ln_beta_k", a.ln_beta_k, Role::in);
  v("hadamard_q", a.hadamard_q, Role::in_opt);
  v("hadamard_k", a.hadamard_k, Role::in_opt);
  v("ip_k_cache", o.ip_k_cache, Role::inout);
  v("ip_k_scale_cache", o.ip_k_scale_cache, Role::inout);
  v("epsilon_cq", a.epsilon_cq, Role::attribute);
  v("epsilon_ckv", a.epsilon_ckv, Role::attribute);
  v("layernorm_epsilon_k", a.layernorm_epsilon_k, Role::attribute);
  v("rope_layout_indexer", a.rope_layout_indexer, Role::attribute);
  v("cache_mode", a.cache_mode, Role::attribute);
  v("level", a.level, Role::attribute);
  v("query_nope", o.query_nope, Role::out);
  v("query_rope", o.query_rope, Role::out);
  v("q_int8", o.q_int8, Role::out);
  v("q_scale", o.q_scale, Role::out);
  v("weights", o.weights, Role::out);
}
constexpr int positional(const MlaIndexerPrologQuantArgs&) { return 24; }

namespace reference {
void mla_indexer_prolog_quant(const MlaIndexerPrologQuantArgs&, const MlaIndexerPrologQuantOuts&);
}

}  // namespace dsakit
