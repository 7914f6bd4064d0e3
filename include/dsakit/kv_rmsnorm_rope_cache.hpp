// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <concepts>
#include <string_view>
#include <type_traits>

#include "dsakit/context.hpp"
#include "dsakit/field.hpp"
#include "dsakit/modes.hpp"
#include "dsakit/tensor.hpp"

namespace dsakit {

/// Latent and rope columns of new tokens into their caches. k_cache is the cache of rotated keys and comes before
/// ckv_cache, that of latent rows. docs/operators/kv_rmsnorm_rope_cache.md
struct KvRmsnormRopeCacheArgs {
  Tensor kv;
  Tensor gamma;
  Tensor cos;
  Tensor sin;
  Tensor index;
  Tensor k_cache;
  Tensor ckv_cache;
  Tensor k_rope_scale{};
  Tensor c_kv_scale{};
  double epsilon = 1e-5;
  std::string_view cache_mode = "Norm";
  bool is_output_kv = false;
  Level level = Level::portable;
};
/// The caches are updated in place: infer() puts those tensors into the results.
struct KvRmsnormRopeCacheOuts {
  Tensor k_cache_out{};
  Tensor ckv_cache_out{};
  Tensor k_rope;
  Tensor c_kv;
};

/// The same, in place too, without the caches among the results.
struct KvRmsnormRopeCacheV2Args : KvRmsnormRopeCacheArgs {};
struct KvRmsnormRopeCacheV2Outs {
  Tensor k_rope;
  Tensor c_kv;
};

/// The same on copies of the caches, which are left alone.
struct KvRmsnormRopeCacheV2FunctionalArgs : KvRmsnormRopeCacheArgs {};
struct KvRmsnormRopeCacheV2FunctionalOuts : KvRmsnormRopeCacheOuts {};

void kv_rmsnorm_rope_cache(const KvRmsnormRopeCacheArgs&, const KvRmsnormRopeCacheOuts&, Context& = default_context());
void kv_rmsnorm_rope_cache_v2(const KvRmsnormRopeCacheV2Args&, const KvRmsnormRopeCacheV2Outs&,
                              Context& = default_context());
void kv_rmsnorm_rope_cache_v2_functional(const KvRmsnormRopeCacheV2FunctionalArgs&,
                                         const KvRmsnormRopeCacheV2FunctionalOuts&, Context& = default_context());
void infer(const KvRmsnormRopeCacheArgs&, KvRmsnormRopeCacheOuts&);
void infer(const KvRmsnormRopeCacheV2Args&, KvRmsnormRopeCacheV2Outs&);
void infer(const KvRmsnormRopeCacheV2FunctionalArgs&, KvRmsnormRopeCacheV2FunctionalOuts&);

template <class A, class O, class V>
requires std::derived_from<std::remove_const_t<A>, KvRmsnormRopeCacheArgs>
constexpr void for_each_field(A& a, O& o, V&& v) {
  using Args = std::remove_const_t<A>;
  constexpr bool first = std::same_as<Args, KvRmsnormRopeCacheArgs>;
  constexpr bool functional = std::same_as<Args, KvRmsnormRopeCacheV2FunctionalArgs>;
  constexpr Role cache = functional ? Role::in : Role::inout;
  v({"kv", Role::in, Kind::data, "bfloat16, float16", "[B, 1, S, Hckv+Dr], any strides with the last 1",
     "latent columns, then rope columns, of each token"},
    a.kv);
  v({"gamma", Role::in, Kind::data, "dtype of kv", "[Hckv]; strict: Hckv = 512", "weights of the norm"}, a.gamma);
  v({"cos", Role::in, Kind::data, "dtype of kv", "[B, 1, S, Dr], Dr even; strict: Dr = 64",
     "cosines, all used as given"},
    a.cos);
  v({"sin", Role::in, Kind::data, "dtype of kv", "shape of cos", "sines, likewise"}, a.sin);
  v({"index", Role::in, Kind::index, "int64", "Norm: [B, S]; PA*: [B*S]; PA_BLK_*: [B*ceil(S/block_size)]",
     "row of each token in its sequence, PA*: slot, PA_BLK_*: first slot of each block of tokens; negative: not "
     "stored"},
    a.index);
  v({"k_cache", cache, Kind::cache, "dtype of kv, or int8", "Norm: [B, 1, L, Dr]; else [block_num, block_size, 1, Dr]",
     "rotated key rows"},
    a.k_cache);
  v({"ckv_cache", cache, Kind::cache, "dtype of kv, or int8", "k_cache with Hckv as last axis", "latent rows"},
    a.ckv_cache);
  v({"k_rope_scale", Role::in_opt, Kind::scale, "float32", "[Dr]", "factors of the rotated key in an int8 k_cache"},
    a.k_rope_scale);
  v({"c_kv_scale", Role::in_opt, Kind::scale, "float32", "[Hckv]", "factors of the latent in an int8 ckv_cache"},
    a.c_kv_scale);
  for (const char* name : {"k_rope_offset", "c_kv_offset", "v"})
    v({name, Role::reserved, Kind::reserved, "", "", "reserved"}, kAbsent);
  v({"epsilon", Role::attribute, Kind::number, "float", "> 0", "added in the norm"}, a.epsilon);
  v({"cache_mode", Role::attribute, Kind::layout, "str", "Norm, PA, PA_BNSD, PA_NZ, PA_BLK_BNSD, PA_BLK_NZ",
     "how the caches lie, and what index says"},
    a.cache_mode);
  v({"is_output_kv", Role::attribute, Kind::flag, "bool", "", "return the rows too, before quantisation"},
    a.is_output_kv);
  if constexpr (!first)
    for (const char* name : {"k_cache_dtype", "ckv_cache_dtype"})
      v({name, Role::reserved, Kind::dtype, "dtype", "", "reserved"}, kAbsent);
  v(kLevelField, a.level);
  if constexpr (requires { o.k_cache_out; }) {
    v({"k_cache_out", Role::out, Kind::cache, "dtype of k_cache", "shape of k_cache",
       functional ? "a copy of k_cache with the new rows" : "k_cache itself"},
      o.k_cache_out);
    v({"ckv_cache_out", Role::out, Kind::cache, "dtype of ckv_cache", "shape of ckv_cache",
       functional ? "a copy of ckv_cache with the new rows" : "ckv_cache itself"},
      o.ckv_cache_out);
  }
  v({"k_rope", Role::out, Kind::data, "dtype of kv", "[B, 1, S, Dr]; without is_output_kv [0]", "rotated keys"},
    o.k_rope);
  v({"c_kv", Role::out, Kind::data, "dtype of kv", "[B, 1, S, Hckv]; without is_output_kv [0]", "normalised latents"},
    o.c_kv);
}
constexpr Description describe(const KvRmsnormRopeCacheArgs&) {
  return {.summary = "Normalise the latent and rotate the key of new tokens, and store both in caches",
          .formula =
              "latent = kv[:Hckv], c_kv = latent / sqrt(mean(latent^2) + epsilon) * gamma\n"
              "k_rope = rope(kv[Hckv:]), pairs in, halves out\n"
              "ckv_cache row = c_kv, k_cache row = k_rope; int8: rint(value * scale), saturated",
          .errors =
              "INVALID_ARGUMENT: a tensor is missing, a scale without an int8 cache or the other way round, cache_mode "
              "is unknown, epsilon is not finite or not above 0\n"
              "INVALID_SHAPE, INVALID_DTYPE: a tensor is not as listed\n"
              "UNSUPPORTED: offsets, v; strict: Hckv is not 512 or Dr not 64\n"
              "INVALID_SLOT: index names no row of the cache, PA_BLK_*: not the first of a page",
          .source = "torch_npu.npu_kv_rmsnorm_rope_cache",
          .page = "kv_rmsnorm_rope_cache.md",
          .family = Family::torch_npu,
          .positional = 7};
}
constexpr Description describe(const KvRmsnormRopeCacheV2Args&) {
  Description d = describe(KvRmsnormRopeCacheArgs{});
  d.source = "torch_npu.npu_kv_rmsnorm_rope_cache_v2";
  return d;
}
constexpr Description describe(const KvRmsnormRopeCacheV2FunctionalArgs&) {
  Description d = describe(KvRmsnormRopeCacheArgs{});
  d.summary = "kv_rmsnorm_rope_cache_v2 on copies of the caches, which are left alone";
  d.source = "torch_npu.npu_kv_rmsnorm_rope_cache_v2_functional";
  return d;
}

namespace reference {
void kv_rmsnorm_rope_cache(const KvRmsnormRopeCacheArgs&, const KvRmsnormRopeCacheOuts&);
void kv_rmsnorm_rope_cache_v2(const KvRmsnormRopeCacheV2Args&, const KvRmsnormRopeCacheV2Outs&);
void kv_rmsnorm_rope_cache_v2_functional(const KvRmsnormRopeCacheV2FunctionalArgs&,
                                         const KvRmsnormRopeCacheV2FunctionalOuts&);
}  // namespace reference

}  // namespace dsakit
