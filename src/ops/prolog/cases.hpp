// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstring>
#include <string>
#include <vector>

#include "core/random.hpp"
#include "dsakit/lightning_indexer_prolog_quant.hpp"
#include "dsakit/mla_indexer_prolog_quant.hpp"
#include "dsakit/mla_prolog_quant.hpp"
#include "dsakit/packed_weight.hpp"

// Data of the prologs' tests. One struct for both prologs: what one does not read does not hurt.
namespace dsakit::prolog {

struct Case {
  std::int64_t t = 5, hidden = 64, rank = 48, heads = 3, nope = 16, rope = 8, latent = 64, groups = 4;
  std::int64_t index_heads = 4, index_dim = 32;
  std::int64_t blocks = 4, block_size = 5;
  bool quantised = true;
  /// Small integers, and one element per column in every matrix behind a norm: all sums are exact, whatever their
  /// order.
  bool exact = false;
  std::uint64_t seed = 1;
};

inline std::vector<bf16> small_integers(Random& r, std::int64_t n) {
  std::vector<bf16> v(static_cast<std::size_t>(n));
  for (bf16& x : v) x = to_bf16(float(r.below(5) - 2));
  return v;
}
/// [k, n] with one +-1, +-2 or +-0.5 per column.
inline std::vector<bf16> one_per_column(Random& r, std::int64_t k, std::int64_t n) {
  std::vector<bf16> v(static_cast<std::size_t>(k * n), bf16{0});
  for (std::int64_t j = 0; j < n; ++j) {
    const float values[] = {1, -1, 2, -2, 0.5f, -0.5f};
    v[std::size_t(r.below(k) * n + j)] = to_bf16(values[r.below(6)]);
  }
  return v;
}

/// Results and caches: everything a call may write.
struct Written {
  std::vector<std::int8_t> q_norm_i8, kv_i8, q_int8, ip_k;
  std::vector<bf16> q_norm, query_nope, query_rope, kv, kr;
  std::vector<float> q_norm_scale, k_scale, ip_k_scale_f32;
  std::vector<f16> q_scale, weights, ip_k_scale;

  template <class F>
  static void each(Written& a, Written& b, F&& f) {
    f("q_norm", a.q_norm_i8, b.q_norm_i8), f("kv_cache", a.kv_i8, b.kv_i8), f("q_int8", a.q_int8, b.q_int8);
    f("ip_k_cache", a.ip_k, b.ip_k), f("q_norm", a.q_norm, b.q_norm), f("query_nope", a.query_nope, b.query_nope);
    f("query_rope", a.query_rope, b.query_rope), f("kv_cache", a.kv, b.kv), f("kr_cache", a.kr, b.kr);
    f("q_norm_scale", a.q_norm_scale, b.q_norm_scale), f("k_scale_cache", a.k_scale, b.k_scale);
    f("ip_k_scale_cache", a.ip_k_scale_f32, b.ip_k_scale_f32), f("q_scale", a.q_scale, b.q_scale);
    f("weights", a.weights, b.weights), f("ip_k_scale_cache", a.ip_k_scale, b.ip_k_scale);
  }
  /// The first tensor that differs in some byte, or "".
  std::string first_difference(Written other) const {
    std::string name;
    Written mine = *this;
    each(mine, other, [&](const char* what, const auto& a, const auto& b) {
      if (name.empty() &&
          (a.size() != b.size() || (!a.empty() && std::memcmp(a.data(), b.data(), a.size() * sizeof a[0]))))
        name = what;
    });
    return name;
  }
};

struct Data {
  Case c;
  std::vector<bf16> x, w_dq, w_uq_bf16, w_uk, w_dkv_kr, gamma_cq, gamma_ckv, cos, sin;
  std::vector<std::int8_t> w_uq, w_qb, q_norm;
  std::vector<float> dequant_scale, w_qb_scale, q_norm_scale;
  std::vector<bf16> wk, w_proj, ln_gamma, ln_beta, hadamard_q, hadamard_k;
  std::vector<std::int64_t> index;
  Written initial;

  explicit Data(const Case& c) : c(c) {
    Random r(c.seed);
    auto matrix = [&](std::int64_t k, std::int64_t n, bool behind_norm) {
      if (!c.exact) return random_bf16(r, k * n, -0.25f, 0.25f);
      return behind_norm ? one_per_column(r, k, n) : small_integers(r, k * n);
    };
    const std::int64_t wide = c.heads * (c.nope + c.rope), slots = c.blocks * c.block_size;
    x = c.exact ? small_integers(r, c.t * c.hidden) : random_bf16(r, c.t * c.hidden);
    w_dq = matrix(c.hidden, c.rank, false);
    w_uq = random_i8(r, c.rank * wide);
    w_uq_bf16 = matrix(c.rank, wide, true);
    for (std::int64_t h = 0; h < c.heads; ++h) {
      const auto one = matrix(c.nope, c.latent, true);
      w_uk.insert(w_uk.end(), one.begin(), one.end());
    }
    w_dkv_kr = matrix(c.hidden, c.latent + c.rope, false);
    gamma_cq = random_bf16(r, c.rank, -2, 2), gamma_ckv = random_bf16(r, c.latent, -2, 2);
    cos = random_bf16(r, c.t * c.rope), sin = random_bf16(r, c.t * c.rope);
    dequant_scale = random_f32(r, wide, 1e-4f, 1e-3f);
    q_norm = random_i8(r, c.t * c.rank), q_norm_scale = random_f32(r, c.t, -0.01f, 0.02f);
    w_qb = random_i8(r, c.rank * c.index_heads * c.index_dim);
    w_qb_scale = random_f32(r, c.index_heads * c.index_dim, 1e-4f, 1e-3f);
    wk = matrix(c.hidden, c.index_dim, false), w_proj = matrix(c.hidden, c.index_heads, false);
    ln_gamma = random_bf16(r, c.index_dim, -2, 2), ln_beta = random_bf16(r, c.index_dim);
    hadamard_q = matrix(c.index_dim, c.index_dim, true), hadamard_k = matrix(c.index_dim, c.index_dim, true);
    // Slots in a scrambled order; two tokens in three tiles share one, one is skipped.
    for (std::int64_t i = 0; i < c.t; ++i) index.push_back(slots > 0 ? (i * 7 + 3) % slots : 0);
    if (c.t >= 4) index[1] = -1, index[2] = INT64_MIN, index[0] = index[3];

    initial.q_norm_i8.assign(std::size_t(c.quantised ? c.t * c.rank : 0), 99);
    initial.q_norm.assign(std::size_t(c.quantised ? 0 : c.t * c.rank), bf16{99});
    initial.q_norm_scale.assign(std::size_t(c.t), 99);
    initial.query_nope.assign(std::size_t(c.t * c.heads * c.latent), bf16{99});
    initial.query_rope.assign(std::size_t(c.t * c.heads * c.rope), bf16{99});
    if (c.quantised) initial.kv_i8 = random_i8(r, slots * c.latent);
    else initial.kv = random_bf16(r, slots * c.latent);
    initial.kr = random_bf16(r, slots * c.rope);
    initial.k_scale = random_f32(r, slots * c.groups);
    initial.q_int8.assign(std::size_t(c.t * c.index_heads * c.index_dim), 99);
    initial.q_scale.assign(std::size_t(c.t * c.index_heads), f16{99});
    initial.weights.assign(std::size_t(c.t * c.index_heads), f16{99});
    initial.ip_k = random_i8(r, slots * c.index_dim);
    initial.ip_k_scale = random_f16(r, slots);
    initial.ip_k_scale_f32 = random_f32(r, slots);
  }

  template <class T>
  static Tensor in(const std::vector<T>& v, std::initializer_list<std::int64_t> shape) {
    return tensor(v.data(), shape);
  }
  Tensor cache(auto& v, std::int64_t width) { return tensor(v.data(), {c.blocks, c.block_size, 1, width}); }

  MlaPrologQuantArgs mla_args(Written& w) {
    const std::int64_t wide = c.heads * (c.nope + c.rope);
    MlaPrologQuantArgs a{.token_x = in(x, {c.t, c.hidden}),
                         .w_dq = in(w_dq, {c.hidden, c.rank}),
                         .w_uq_qr = c.quantised ? in(w_uq, {c.rank, wide}) : in(w_uq_bf16, {c.rank, wide}),
                         .dequant_scale = c.quantised ? in(dequant_scale, {wide, 1}) : Tensor{},
                         .w_uk = in(w_uk, {c.heads, c.nope, c.latent}),
                         .w_dkv_kr = in(w_dkv_kr, {c.hidden, c.latent + c.rope}),
                         .gamma_cq = in(gamma_cq, {c.rank}),
                         .gamma_ckv = in(gamma_ckv, {c.latent}),
                         .cos = in(cos, {c.t, c.rope}),
                         .sin = in(sin, {c.t, c.rope}),
                         .cache_index = in(index, {c.t}),
                         .kv_cache = c.quantised ? cache(w.kv_i8, c.latent) : cache(w.kv, c.latent),
                         .kr_cache = cache(w.kr, c.rope)};
    if (c.quantised) a.k_scale_cache = cache(w.k_scale, c.groups);
    return a;
  }
  MlaPrologQuantOuts mla_outs(Written& w) {
    MlaPrologQuantOuts o{};
    o.q_norm_out = c.quantised ? tensor(w.q_norm_i8.data(), {c.t, c.rank}) : tensor(w.q_norm.data(), {c.t, c.rank});
    if (c.quantised) o.q_norm_scale_out = tensor(w.q_norm_scale.data(), {c.t, 1});
    o.query_nope_out = tensor(w.query_nope.data(), {c.t, c.heads, c.latent});
    o.query_rope_out = tensor(w.query_rope.data(), {c.t, c.heads, c.rope});
    return o;
  }
  LightningIndexerPrologQuantArgs indexer_args() {
    const std::int64_t n = c.index_heads * c.index_dim;
    return {.x = in(x, {c.t, c.hidden}),
            .q_norm = in(q_norm, {c.t, c.rank}),
            .q_norm_scale = in(q_norm_scale, {c.t, 1}),
            .w_qb = in(w_qb, {c.rank, n}),
            .w_qb_scale = in(w_qb_scale, {n, 1}),
            .wk = in(wk, {c.hidden, c.index_dim}),
            .w_proj = in(w_proj, {c.hidden, c.index_heads}),
            .ln_gamma_k = in(ln_gamma, {c.index_dim}),
            .ln_beta_k = in(ln_beta, {c.index_dim}),
            .cos = in(cos, {c.t, c.rope}),
            .sin = in(sin, {c.t, c.rope}),
            .hadamard_q = in(hadamard_q, {c.index_dim, c.index_dim}),
            .hadamard_k = in(hadamard_k, {c.index_dim, c.index_dim}),
            .k_cache_index = in(index, {c.t})};
  }
  LightningIndexerPrologQuantOuts indexer_outs(Written& w) {
    return {.q_int8 = tensor(w.q_int8.data(), {c.t, c.index_heads, c.index_dim}),
            .q_scale = tensor(w.q_scale.data(), {c.t, c.index_heads, 1}),
            .k_cache = cache(w.ip_k, c.index_dim),
            .k_scale_cache = cache(w.ip_k_scale, 1),
            .weights = tensor(w.weights.data(), {c.t, c.index_heads})};
  }
};

}  // namespace dsakit::prolog
