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
  Tensor x;
  Tensor q_norm;
  Tensor q_norm_scale;
  Tensor w_qb;
  Tensor w_qb_scale;
  Tensor wk;
  Tensor w_proj;
  Tensor ln_gamma_k;
  Tensor ln_beta_k;
  Tensor cos;
  Tensor sin;
  Tensor hadamard_q{};
  Tensor hadamard_k{};
  Tensor k_cache_index;
  double layernorm_epsilon_k = 1e-6;
  std::string_view rope_layout = "half";
  std::string_view layout_query = "TND";
  std::string_view layout_key = "PA_BSND";
  Level level = Level::portable;
};

struct LightningIndexerPrologQuantOuts {
  Tensor q_int8;
  Tensor q_scale;
  Tensor k_cache;
  Tensor k_scale_cache;
  Tensor weights;
};

void lightning_indexer_prolog_quant(const LightningIndexerPrologQuantArgs&, const LightningIndexerPrologQuantOuts&,
                                    Context& = default_context());
void infer(const LightningIndexerPrologQuantArgs&, LightningIndexerPrologQuantOuts&);

template <class A, class O, class V>
requires std::same_as<std::remove_const_t<A>, LightningIndexerPrologQuantArgs>
constexpr void for_each_field(A& a, O& o, V&& v) {
  v({"x", Role::in, Kind::data, "bfloat16", "[t, He]", "hidden states"}, a.x);
  v({"q_norm", Role::in, Kind::data, "int8", "[t, Hcq]", "normalised low-rank query, of mla_prolog_quant"}, a.q_norm);
  v({"q_norm_scale", Role::in, Kind::scale, "float32", "[t, 1]", "what a code of it is worth"}, a.q_norm_scale);
  v({"w_qb", Role::in, Kind::weight, "int8", "[Hcq, Ni*Di]", "projection of the index query"}, a.w_qb);
  v({"w_qb_scale", Role::in, Kind::scale, "float32", "[Ni*Di, 1] or [1, Ni*Di]", "what a column of w_qb is worth"},
    a.w_qb_scale);
  v({"wk", Role::in, Kind::weight, "bfloat16", "[He, Di]", "projection of the index key"}, a.wk);
  v({"w_proj", Role::in, Kind::weight, "bfloat16", "[He, Ni]", "projection of the head weights"}, a.w_proj);
  v({"ln_gamma_k", Role::in, Kind::data, "bfloat16; portable: float32", "[Di]",
     "weights of the layer norm of the index key"},
    a.ln_gamma_k);
  v({"ln_beta_k", Role::in, Kind::data, "bfloat16; portable: float32", "[Di]",
     "offsets of the layer norm of the index key"},
    a.ln_beta_k);
  v({"cos", Role::in, Kind::data, "bfloat16", "[t, Dr]", "cosines, before the sines"}, a.cos);
  v({"sin", Role::in, Kind::data, "bfloat16", "[t, Dr]", "sines"}, a.sin);
  v({"hadamard_q", Role::in_opt, Kind::data, "bfloat16", "[Di, Di]",
     "rotates the index query; both absent: identity (portable)", kWithoutDefault},
    a.hadamard_q);
  v({"hadamard_k", Role::in_opt, Kind::data, "bfloat16", "[Di, Di]", "rotates the index key", kWithoutDefault},
    a.hadamard_k);
  v({"k_cache", Role::inout, Kind::cache, "int8", "[block_num, block_size, 1, Di]", "index keys"}, o.k_cache);
  v({"k_scale_cache", Role::inout, Kind::cache, "float16; portable: float32", "[block_num, block_size, 1, 1]",
     "what a code of them is worth"},
    o.k_scale_cache);
  v({"k_cache_index", Role::in, Kind::index, "int64", "[t]", "slot of each token, negative: not stored"},
    a.k_cache_index);
  v({"layernorm_epsilon_k", Role::attribute, Kind::number, "float", "> 0", "added in the layer norm of the index key"},
    a.layernorm_epsilon_k);
  v({"rope_layout", Role::attribute, Kind::layout, "str", "half, interleaved, interleaved_to_half; strict: half",
     "which elements of index rows turn together, and where they go"},
    a.rope_layout);
  v({"layout_query", Role::attribute, Kind::layout, "str", "TND", "axes of the query"}, a.layout_query);
  v({"layout_key", Role::attribute, Kind::layout, "str", "PA_BSND", "axes of the caches"}, a.layout_key);
  v(kLevelField, a.level);
  v({"q_int8", Role::out, Kind::data, "int8", "[t, Ni, Di]", "index query"}, o.q_int8);
  v({"q_scale", Role::out, Kind::scale, "float16", "[t, Ni, 1]", "what a code of it is worth"}, o.q_scale);
  v({"weights", Role::out, Kind::data, "float16", "[t, Ni]", "weight of each index head"}, o.weights);
}
constexpr Description describe(const LightningIndexerPrologQuantArgs&) {
  return {.summary = "Index query, index key and head weights of new tokens, the keys into their paged cache",
          .formula =
              "q = rope(q_norm w_qb) hadamard_q per head, q_int8 = quant(q)\n"
              "k = rope(layer_norm(x wk)) hadamard_k, k_cache row = quant(k)\n"
              "weights = x w_proj / (sqrt(Ni) * sqrt(Di))",
          .errors =
              "INVALID_ARGUMENT: a tensor is missing, one Hadamard matrix without the other, an attribute is unknown "
              "or out of range\n"
              "INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed\n"
              "UNSUPPORTED: strict: what the device does not take\n"
              "INVALID_SLOT: k_cache_index is not below block_num * block_size",
          .source = "the PyPTO example for DeepSeek-V3.2",
          .page = "lightning_indexer_prolog_quant.md",
          .family = Family::pypto,
          .positional = 16};
}

namespace reference {
void lightning_indexer_prolog_quant(const LightningIndexerPrologQuantArgs&, const LightningIndexerPrologQuantOuts&);
}

}  // namespace dsakit
