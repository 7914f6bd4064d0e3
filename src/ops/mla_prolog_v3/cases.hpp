// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "core/random.hpp"
#include "core/view.hpp"
#include "dsakit/mla_prolog_v3.hpp"

// Data for the tests of mla_prolog_v3 and its relatives: one case is a row of the mode table, a cache mode and sizes.
namespace dsakit::prolog_v3 {

struct RowModes {
  int wq, kvq, qq, ck, qs;
};
inline constexpr RowModes kRows[] = {{},
                                     {0, 0, 0, 0, 0},
                                     {1, 0, 0, 0, 0},
                                     {1, 2, 0, 0, 0},
                                     {1, 3, 0, 1, 1},
                                     {2, 0, 0, 0, 0},
                                     {2, 1, 1, 0, 0},
                                     {2, 3, 0, 1, 1}};  // R1..R7
inline constexpr const char* kCacheModes[] = {"PA_BSND", "BSND", "TND", "PA_NZ", "PA_BLK_BSND", "PA_BLK_NZ"};
inline int cache_modes_of(int row) { return row == 4 || row == 7 ? 3 : 6; }  // the first ones

struct Case {
  int row = 1;
  std::string_view cache_mode = "PA_BSND";
  bool batched = false;
  std::int64_t b = 2, s = 4;  // fused: T = b*s
  std::int64_t hidden = 256, rank = 96, heads = 3, nope = 48, rope = 32, latent = 128, tile = 32;
  std::int64_t blocks = 6, block_size = 5;
  bool query_norm = true, smooth = false;
  double qc = 1, kc = 1;
  float alpha = 0.75f;
  /// Small integers, and one element per column in every bf16 matrix behind a rounding: all sums are exact, whatever
  /// their order, so that everything must be equal.
  bool exact = false;
  std::uint64_t seed = 1;

  std::int64_t tokens() const { return b * s; }
  std::int64_t wide() const { return heads * (nope + rope); }
  bool full() const { return kRows[row].wq == 2; }
  bool quantised() const { return kRows[row].wq != 0; }
  int kvq() const { return kRows[row].kvq; }
  bool packed() const { return kvq() == 3; }
  bool paged() const { return cache_mode.starts_with("PA_"); }
  bool by_block() const { return cache_mode.starts_with("PA_BLK"); }
  std::int64_t packed_width() const { return latent + 2 * rope + 4 * (latent / tile); }
  std::string name() const {
    return "R" + std::to_string(row) + " " + std::string(cache_mode) + (batched ? " batched" : " fused") + " T " +
           std::to_string(tokens());
  }
};

/// Memory of its own with a dtype and a shape.
struct Array {
  Tensor shape{};
  std::vector<std::byte> bytes;

  Array() = default;
  explicit Array(const Tensor& like) : shape(like) {
    shape.data = nullptr;
    make_contiguous(shape);
    bytes.resize(std::size_t(shape.elements() * size_of(shape.dtype)));
  }
  template <class T>
  Array(const std::vector<T>& values, std::initializer_list<std::int64_t> dims) : Array(shaped(dtype_of<T>, dims)) {
    if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  }
  operator Tensor() const {
    Tensor t = shape;
    t.data = const_cast<std::byte*>(bytes.data());
    return t;
  }
  Array& fill(int byte) {
    std::fill(bytes.begin(), bytes.end(), std::byte(byte));
    return *this;
  }
  template <class T>
  T* as() {
    return reinterpret_cast<T*>(bytes.data());
  }
  template <class T>
  const T* as() const {
    return reinterpret_cast<const T*>(bytes.data());
  }
  std::int64_t size() const { return shape.elements(); }
  /// Element as a number.
  double at(std::int64_t i) const {
    return shape.dtype == DType::i8 ? double(as<std::int8_t>()[i]) : double(float_at(*this, i));
  }
  bool operator==(const Array& other) const { return bytes == other.bytes; }
};

/// Everything a call may write.
struct Written {
  Array query, query_rope, dequant_scale_q_nope, query_norm, dequant_scale_q_norm, kv_cache, kr_cache;

  MlaPrologV3Outs outs() { return {query, query_rope, dequant_scale_q_nope, query_norm, dequant_scale_q_norm}; }
  template <class F>
  static void each(const Written& a, const Written& b, F&& f) {
    f("query", a.query, b.query), f("query_rope", a.query_rope, b.query_rope);
    f("dequant_scale_q_nope", a.dequant_scale_q_nope, b.dequant_scale_q_nope);
    f("query_norm", a.query_norm, b.query_norm);
    f("dequant_scale_q_norm", a.dequant_scale_q_norm, b.dequant_scale_q_norm);
    f("kv_cache", a.kv_cache, b.kv_cache), f("kr_cache", a.kr_cache, b.kr_cache);
  }
  /// The first that differs in some byte, or "".
  std::string first_difference(const Written& other) const {
    std::string name;
    each(*this, other, [&](const char* what, const Array& a, const Array& b) {
      if (name.empty() && !(a == b)) name = what;
    });
    return name;
  }
};

inline std::vector<bf16> small_integers(Random& r, std::int64_t n) {
  std::vector<bf16> v(static_cast<std::size_t>(n));
  for (bf16& x : v) x = to_bf16(float(r.below(5) - 2));
  return v;
}
/// [k, n] with one +-1, +-2 or +-0.5 per column, `stack` of them.
inline std::vector<bf16> one_per_column(Random& r, std::int64_t stack, std::int64_t k, std::int64_t n) {
  std::vector<bf16> v(static_cast<std::size_t>(stack * k * n), bf16{0});
  for (std::int64_t j = 0; j < stack * n; ++j) {
    const float values[] = {1, -1, 2, -2, 0.5f, -0.5f};
    v[std::size_t((j / n * k + r.below(k)) * n + j % n)] = to_bf16(values[r.below(6)]);
  }
  return v;
}

struct Data {
  Case c;
  Array token_x, weight_dq, weight_uq_qr, weight_uk, weight_dkv_kr, gamma_cq, gamma_ckv, rope_sin, rope_cos;
  Array cache_index, actual_seq_len, scale_x, scale_dq, scale_uq_qr, scale_dkv_kr, ckv_scale, ckr_scale, smooth, alpha;
  std::vector<std::int32_t> lengths;  // of the fused sequences
  Written initial;

  explicit Data(const Case& given) : c(given) {
    Random r(c.seed);
    const std::int64_t t = c.tokens(), w = c.wide();
    auto matrix = [&](std::int64_t k, std::int64_t n, bool codes) {
      if (codes) return Array(random_i8(r, k * n), {k, n});
      return c.exact ? Array(small_integers(r, k * n), {k, n}) : Array(random_bf16(r, k * n, -0.25f, 0.25f), {k, n});
    };
    token_x = per_token(matrix(t, c.hidden, c.full()));
    weight_dq = matrix(c.hidden, c.rank, c.full()), weight_dkv_kr = matrix(c.hidden, c.latent + c.rope, c.full());
    weight_uq_qr = !c.quantised() && c.exact ? Array(one_per_column(r, 1, c.rank, w), {c.rank, w})
                                             : matrix(c.rank, w, c.quantised());
    weight_uk = Array(c.exact ? one_per_column(r, c.heads, c.nope, c.latent)
                              : random_bf16(r, c.heads * c.nope * c.latent, -0.25f, 0.25f),
                      {c.heads, c.nope, c.latent});
    gamma_cq = Array(random_bf16(r, c.rank, -2, 2), {c.rank});
    gamma_ckv = Array(random_bf16(r, c.latent, -2, 2), {c.latent});
    rope_sin = per_token(Array(random_bf16(r, t * c.rope), {t, c.rope}));
    rope_cos = per_token(Array(random_bf16(r, t * c.rope), {t, c.rope}));
    if (c.quantised()) scale_uq_qr = Array(random_f32(r, w, 1e-4f, 1e-3f), {1, w});
    if (c.full()) {
      scale_x = Array(random_f32(r, t, 1e-3f, 1e-2f), {t, 1});
      scale_dq = Array(random_f32(r, c.rank, 1e-4f, 1e-3f), {1, c.rank});
      scale_dkv_kr = Array(random_f32(r, c.latent + c.rope, 1e-4f, 1e-3f), {1, c.latent + c.rope});
    }
    if (c.kvq() == 1) ckv_scale = Array(random_f32(r, 1, 60, 90), {1});  // the tails saturate
    if (c.kvq() == 2) {
      ckv_scale = Array(random_f32(r, c.latent, 20, 90), {1, c.latent});
      ckr_scale = Array(random_f32(r, c.rope, 20, 90), {1, c.rope});
    }
    if (c.packed()) alpha = Array(std::vector<float>{c.alpha}, {1});
    if (c.smooth) smooth = Array(random_f32(r, c.rank, 0.25f, 2), {1, c.rank});
    places();

    const std::int64_t width = c.packed() ? c.packed_width() : c.latent;
    initial.kv_cache = cache(c.kvq() ? DType::i8 : DType::bf16, width, r);
    initial.kr_cache =
        c.packed() ? Array(shaped(DType::bf16, {0})) : cache(c.kvq() == 2 ? DType::i8 : DType::bf16, c.rope, r);
    MlaPrologV3Outs o{};
    infer(args(initial), o);
    initial.query = Array(o.query).fill(0x55), initial.query_rope = Array(o.query_rope).fill(0x55);
    initial.dequant_scale_q_nope = Array(o.dequant_scale_q_nope).fill(0x55);
    initial.query_norm = Array(o.query_norm).fill(0x55);
    initial.dequant_scale_q_norm = Array(o.dequant_scale_q_norm).fill(0x55);
  }

  MlaPrologV3Args args(const Written& w) const {
    const RowModes& m = kRows[c.row];
    return {.token_x = token_x,
            .weight_dq = weight_dq,
            .weight_uq_qr = weight_uq_qr,
            .weight_uk = weight_uk,
            .weight_dkv_kr = weight_dkv_kr,
            .rmsnorm_gamma_cq = gamma_cq,
            .rmsnorm_gamma_ckv = gamma_ckv,
            .rope_sin = rope_sin,
            .rope_cos = rope_cos,
            .kv_cache = w.kv_cache,
            .kr_cache = w.kr_cache,
            .cache_index = cache_index,
            .dequant_scale_x = scale_x,
            .dequant_scale_w_dq = scale_dq,
            .dequant_scale_w_uq_qr = scale_uq_qr,
            .dequant_scale_w_dkv_kr = scale_dkv_kr,
            .quant_scale_ckv = ckv_scale,
            .quant_scale_ckr = ckr_scale,
            .smooth_scales_cq = smooth,
            .actual_seq_len = actual_seq_len,
            .k_nope_clip_alpha = alpha,
            .cache_mode = c.cache_mode,
            .query_norm_flag = c.query_norm,
            .weight_quant_mode = m.wq,
            .kv_cache_quant_mode = m.kvq,
            .query_quant_mode = m.qq,
            .ckvkr_repo_mode = m.ck,
            .quant_scale_repo_mode = m.qs,
            .tile_size = c.packed() ? c.tile : 128,
            .qc_qr_scale = c.qc,
            .kc_scale = c.kc};
  }

 private:
  Array per_token(Array a) const {
    if (!c.batched) return a;
    a.shape = shaped(a.shape.dtype, {c.b, c.s, a.shape.shape[1]});
    return a;
  }
  Array cache(DType dtype, std::int64_t width, Random& r) const {
    Array a(c.paged()               ? shaped(dtype, {c.blocks, c.block_size, 1, width})
            : c.cache_mode == "TND" ? shaped(dtype, {c.tokens(), 1, width})
                                    : shaped(dtype, {c.b, c.s, 1, width}));
    const auto noise = random_i8(r, std::int64_t(a.bytes.size()));
    if (!noise.empty()) std::memcpy(a.bytes.data(), noise.data(), noise.size());
    return a;
  }
  /// Scrambled slots: two tokens share one, one is skipped. By blocks: sequences of uneven lengths (one of them 0),
  /// pages in a scrambled order, one page skipped.
  void places() {
    if (!c.paged()) return;
    const std::int64_t t = c.tokens(), slots = c.blocks * c.block_size;
    std::vector<std::int64_t> index;
    if (!c.by_block()) {
      for (std::int64_t i = 0; i < t; ++i) index.push_back(slots > 0 ? (i * 7 + 3) % slots : 0);
      if (t >= 4) index[1] = -1, index[2] = INT64_MIN, index[0] = index[3];
      cache_index = c.batched ? Array(index, {c.b, c.s}) : Array(index, {t});
      return;
    }
    auto pages = [&](std::int64_t n) { return (n + c.block_size - 1) / c.block_size; };
    std::int64_t count = c.b * pages(c.s);
    if (!c.batched) {
      lengths = {std::int32_t(t * 3 / 4), 0, std::int32_t(t - t * 3 / 4)};
      count = pages(lengths[0]) + pages(lengths[2]);
      actual_seq_len = Array(std::vector<std::int32_t>{lengths[0], lengths[0], std::int32_t(t)}, {3});
    }
    for (std::int64_t i = 0; i < count; ++i) index.push_back(c.blocks > 0 ? (i * 5 + 2) % c.blocks : 0);
    if (count >= 3) index[1] = -1;
    cache_index = c.batched ? Array(index, {c.b, pages(c.s)}) : Array(index, {count});
  }
};

}  // namespace dsakit::prolog_v3
