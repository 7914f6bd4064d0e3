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
  Tensor w_qb;
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
  Tensor query_nope;
  Tensor query_rope;
  Tensor kv_cache;
  Tensor kr_cache;
  Tensor k_scale_cache;
  Tensor q_int8;
  Tensor q_scale;
  Tensor ip_k_cache;
  Tensor ip_k_scale_cache;
  Tensor weights;
};

void mla_indexer_prolog_quant(const MlaIndexerPrologQuantArgs&, const MlaIndexerPrologQuantOuts&,
                              Context& = default_context());
void infer(const MlaIndexerPrologQuantArgs&, MlaIndexerPrologQuantOuts&);

template <class A, class O, class V>
requires std::same_as<std::remove_const_t<A>, MlaIndexerPrologQuantArgs>
constexpr void for_each_field(A& a, O& o, V&& v) {
  v({"token_x", Role::in, Kind::data, "bfloat16", "[t, He]", "hidden states"}, a.token_x);
  v({"w_dq", Role::in, Kind::weight, "bfloat16", "[He, Hcq]", "down projection of the query"}, a.w_dq);
  v({"w_uq_qr", Role::in, Kind::weight, "int8", "[Hcq, N*(D+Dr)], per head D plain, then Dr rope columns",
     "up projection of the query"},
    a.w_uq_qr);
  v({"dequant_scale", Role::in, Kind::scale, "float32", "[N*(D+Dr), 1]", "what a column of w_uq_qr is worth"},
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
  v({"kv_cache", Role::inout, Kind::cache, "int8", "[block_num, block_size, 1, Hckv]", "latent rows"}, o.kv_cache);
  v({"kr_cache", Role::inout, Kind::cache, "bfloat16", "[block_num, block_size, 1, Dr]", "rotated key rows"},
    o.kr_cache);
  v({"k_scale_cache", Role::inout, Kind::cache, "float32", "[block_num, block_size, 1, G]",
     "scales of the latent rows"},
    o.k_scale_cache);
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
  v({"hadamard_q", Role::in_opt, Kind::data, "bfloat16", "[Di, Di]",
     "rotates the index query; both absent: identity (portable)", kWithoutDefault},
    a.hadamard_q);
  v({"hadamard_k", Role::in_opt, Kind::data, "bfloat16", "[Di, Di]", "rotates the index key", kWithoutDefault},
    a.hadamard_k);
  v({"ip_k_cache", Role::inout, Kind::cache, "int8", "[block_num, block_size, 1, Di]",
     "index keys, block_size that of kv_cache"},
    o.ip_k_cache);
  v({"ip_k_scale_cache", Role::inout, Kind::cache, "float16; portable: float32", "[block_num, block_size, 1, 1]",
     "what a code of them is worth"},
    o.ip_k_scale_cache);
  v({"epsilon_cq", Role::attribute, Kind::number, "float", "> 0", "added in the norm of the query"}, a.epsilon_cq);
  v({"epsilon_ckv", Role::attribute, Kind::number, "float", "> 0", "added in the norm of the latent"}, a.epsilon_ckv);
  v({"layernorm_epsilon_k", Role::attribute, Kind::number, "float", "> 0", "added in the layer norm of the index key"},
    a.layernorm_epsilon_k);
  v({"rope_layout_indexer", Role::attribute, Kind::layout, "str",
     "half, interleaved, interleaved_to_half; strict: half",
     "which elements of index rows turn together, and where they go"},
    a.rope_layout_indexer);
  v({"cache_mode", Role::attribute, Kind::layout, "str", "PA_BSND", "how the caches lie"}, a.cache_mode);
  v(kLevelField, a.level);
  v({"query_nope", Role::out, Kind::data, "bfloat16", "[t, N, Hckv]", "absorbed query"}, o.query_nope);
  v({"query_rope", Role::out, Kind::data, "bfloat16", "[t, N, Dr]", "rotated query"}, o.query_rope);
  v({"q_int8", Role::out, Kind::data, "int8", "[t, Ni, Di]", "index query"}, o.q_int8);
  v({"q_scale", Role::out, Kind::scale, "float16", "[t, Ni, 1]", "what a code of it is worth"}, o.q_scale);
  v({"weights", Role::out, Kind::data, "float16", "[t, Ni]", "weight of each index head"}, o.weights);
}
constexpr Description describe(const MlaIndexerPrologQuantArgs&) {
  return {
      .summary =
          "mla_prolog_quant in its quantised mode and lightning_indexer_prolog_quant on its q_norm, in one call and "
          "with the same bits",
      .formula = "those of mla_prolog_quant and lightning_indexer_prolog_quant",
      .errors =
          "INVALID_ARGUMENT: a tensor is missing or dequant_scale empty, one Hadamard matrix without the other, an "
          "attribute is unknown or out of range\n"
          "INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed, ip_k_cache has another block_size than kv_cache\n"
          "UNSUPPORTED: cache_mode PA_NZ; strict: what the device does not take\n"
          "INVALID_SLOT: cache_index is not below block_num * block_size",
      .source = "the PyPTO example for DeepSeek-V3.2",
      .page = "mla_indexer_prolog_quant.md",
      .family = Family::pypto,
      .positional = 24};
}

namespace reference {
void mla_indexer_prolog_quant(const MlaIndexerPrologQuantArgs&, const MlaIndexerPrologQuantOuts&);
}

}  // namespace dsakit
