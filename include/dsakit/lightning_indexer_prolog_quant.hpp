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

/// Index query, index key (into the cache) and head weights of t new tokens:
/// int8 projection, RoPE on the first Dr dims of each head, Hadamard, int8 quantisation per row with fp16 scales.
/// docs/operators/lightning_indexer_prolog_quant.md
struct LightningIndexerPrologQuantArgs {
  Tensor x;               // bf16 [t, He]
  Tensor q_norm;          // i8   [t, Hcq], the codes of mla_prolog_quant
  Tensor q_norm_scale;    // f32  [t, 1]
  Tensor w_qb;            // i8   [Hcq, Ni*Di]: row-major, FRACTAL_NZ or packed, as the next three weights
  Tensor w_qb_scale;      // f32  [Ni*Di, 1] or [1, Ni*Di]
  Tensor wk;              // bf16 [He, Di]
  Tensor w_proj;          // bf16 [He, Ni]
  Tensor ln_gamma_k;      // bf16 f32 [Di]
  Tensor ln_beta_k;       // bf16 f32 [Di]
  Tensor cos;             // bf16 [t, Dr]
  Tensor sin;             // bf16 [t, Dr]
  Tensor hadamard_q{};    // bf16 [Di, Di]; both absent: identity (portable)
  Tensor hadamard_k{};
  Tensor k_cache_index;   // i64  [t]: slot of each token; negative: not stored
  double layernorm_epsilon_k = 1e-6;
  std::string_view rope_layout = "half";  // half, interleaved, interleaved_to_half
  std::string_view layout_query = "TND";
  std::string_view layout_key = "PA_BSND";
  Level level = Level::portable;
};

struct LightningIndexerPrologQuantOuts {
  Tensor q_int8;          // i8  [t, Ni, Di]
  Tensor q_scale;         // f16 [t, Ni, 1]
  Tensor k_cache;         // i8  [block_num, block_size, 1, Di], in place
  Tensor k_scale_cache;   // f16 f32 [block_num, block_size, 1, 1], in place
  Tensor weights;         // f16 [t, Ni]
};

void lightning_indexer_prolog_quant(const LightningIndexerPrologQuantArgs&, const LightningIndexerPrologQuantOuts&,
                                    Context& = default_context());
void infer(const LightningIndexerPrologQuantArgs&, LightningIndexerPrologQuantOuts&);

template <class A, class O, class V>
  requires std::same_as<std::remove_const_t<A>, LightningIndexerPrologQuantArgs>
constexpr void for_each_field(A& a, O& o, V&& v) {
  v("x", a.x, Role::in);
  v("q_norm", a.q_norm, Role::in);
  v("q_norm_scale", a.q_norm_scale, Role::in);
  v("w_qb", a.w_qb, Role::in);
  v("w_qb_scale", a.w_qb_scale, Role::in);
  v("wk", a.wk, Role::in);
  v("w_proj", a.w_proj, Role::in);
  v("ln_gamma_k", a.ln_gamma_k, Role::in);
  v("ln_beta_k", a.ln_beta_k, Role::in);
  v("cos", a.cos, Role::in);
  v("sin", a.sin, Role::in);
  v("hadamard_q", a.hadamard_q, Role::in_opt);
  v("hadamard_k", a.hadamard_k, Role::in_opt);
  v("k_cache", o.k_cache, Role::inout);
  v("k_scale_cache", o.k_scale_cache, Role::inout);
  v("k_cache_index", a.k_cache_index, Role::in);
  v("layernorm_epsilon_k", a.layernorm_epsilon_k, Role::attribute);
  v("rope_layout", a.rope_layout, Role::attribute);
  v("layout_query", a.layout_query, Role::attribute);
  v("layout_key", a.layout_key, Role::attribute);
  v("level", a.level, Role::attribute);
  v("q_int8", o.q_int8, Role::out);
  v("q_scale", o.q_scale, Role::out);
  v("weights", o.weights, Role::out);
}
constexpr int positional(const LightningIndexerPrologQuantArgs&) { return 16; }

namespace reference {
void lightning_indexer_prolog_quant(const LightningIndexerPrologQuantArgs&, const LightningIndexerPrologQuantOuts&);
}

}  // namespace dsakit
