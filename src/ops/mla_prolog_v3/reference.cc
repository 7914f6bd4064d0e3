// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "ops/mla_prolog_v3/problem.hpp"
#include "ops/prolog/formula.hpp"
#include "run/taps.hpp"

// Straight from the arguments: of the door only its refusals are used, not how it resolves modes and places.
namespace dsakit::reference {
namespace {

using namespace prolog::formula;

/// Elements n*row .. n*row+n-1 of a tensor in row-major order, whatever its axes.
const std::byte* row_bytes(const Tensor& t, std::int64_t row, std::int64_t n) {
  return static_cast<const std::byte*>(t.data) + offset_of(t, row * n) * size_of(t.dtype);
}
Row row_at(const Tensor& t, std::int64_t row, std::int64_t n) {
  const std::byte* from = row_bytes(t, row, n);
  if (t.dtype == DType::bf16) return row_of(reinterpret_cast<const bf16*>(from), n);
  const auto* codes = reinterpret_cast<const std::int8_t*>(from);
  return Row(codes, codes + n);
}
template <class T>
T& element(const Tensor& t, std::int64_t linear) {
  return static_cast<T*>(t.data)[offset_of(t, linear)];
}
void put_bf16(const Tensor& t, std::int64_t row, const Row& x) {
  for (std::size_t i = 0; i < x.size(); ++i)
    element<bf16>(t, row * std::int64_t(x.size()) + std::int64_t(i)) = to_bf16(x[i]);
}

/// Where a token of this call is stored: page (or sequence) and slot, by the words of each cache mode.
struct Place {
  bool stored = false;
  std::int64_t page = 0, slot = 0;
};
Place place_of(const MlaPrologV3Args& a, std::int64_t t) {
  const Tensor &cache = a.kv_cache, &index = a.cache_index;
  if (cache.elements() == 0) return {};
  if (a.cache_mode == "TND") return {true, t, 0};
  if (a.cache_mode == "BSND") return {true, t / cache.shape[1], t % cache.shape[1]};
  const std::int64_t size = cache.shape[1];
  if (a.cache_mode == "PA_BSND" || a.cache_mode == "PA_NZ") {
    const std::int64_t n = element<const std::int64_t>(index, t);
    return {n >= 0, n / size, n % size};
  }
  // PA_BLK_*: an entry is a page of one sequence, which starts at slot 0 of its first page.
  std::int64_t entry = 0, position = t;
  if (a.token_x.rank == 3) {
    const std::int64_t s = a.token_x.shape[1];
    entry = t / s * ((s + size - 1) / size), position = t % s;
  } else {
    for (std::int64_t b = 0, first = 0;; ++b) {
      const std::int64_t end = element<const std::int32_t>(a.actual_seq_len, b);
      position = t - first;
      if (t < end) break;
      entry += (end - first + size - 1) / size;
      first = end;
    }
  }
  const std::int64_t page = element<const std::int64_t>(index, entry + position / size);
  return {page >= 0, page, position % size};
}

/// Column h of the row at `place`, as bytes.
std::byte* cell(const MlaPrologV3Args& a, const Tensor& cache, const Place& place, std::int64_t h) {
  std::int64_t offset;
  if (a.cache_mode.ends_with("NZ")) {
    const std::int64_t c0 = 32 / size_of(cache.dtype);
    offset = place.page * cache.stride[0] + (h / c0 * cache.shape[1] + place.slot) * c0 + h % c0;
  } else {
    offset = place.page * cache.stride[0] + (cache.rank == 4 ? place.slot * cache.stride[1] : 0) + h;
  }
  return static_cast<std::byte*>(cache.data) + offset * size_of(cache.dtype);
}

class Prolog {
 public:
  Prolog(const MlaPrologV3Args& a, const MlaPrologV3Outs& o)
      : a(a),
        o(o),
        full(a.weight_quant_mode == 2),
        partial(a.weight_quant_mode == 1),
        hidden(a.token_x.shape[a.token_x.rank - 1]),
        tokens(a.token_x.rank == 3 ? a.token_x.shape[0] * a.token_x.shape[1] : a.token_x.shape[0]),
        rank(a.rmsnorm_gamma_cq.shape[0]),
        heads(a.weight_uk.shape[0]),
        nope(a.weight_uk.shape[1]),
        latent(a.weight_uk.shape[2]),
        rope(a.rope_cos.shape[a.rope_cos.rank - 1]),
        w_dq(weight(a.weight_dq, 0, hidden, rank)),
        w_uq_qr(weight(a.weight_uq_qr, 0, rank, heads * (nope + rope))),
        w_uk(weight(a.weight_uk, heads, nope, latent)),
        w_dkv_kr(weight(a.weight_dkv_kr, 0, hidden, latent + rope)),
        gamma_cq(row_at(a.rmsnorm_gamma_cq, 0, rank)),
        gamma_ckv(row_at(a.rmsnorm_gamma_ckv, 0, latent)) {}

  void run() const {
    for (std::int64_t t = 0; t < tokens; ++t) {
      query(t);
      if (const Place place = place_of(a, t); place.stored) key(t, place);
    }
  }

 private:
  static Weight weight(const Tensor& t, std::int64_t batch, std::int64_t k, std::int64_t n) {
    return check_weight(Check("mla_prolog_v3", Level::portable), t, "weight", t.dtype, batch, k, n, "");
  }
  static float scale(const Tensor& t, std::int64_t i) { return element<const float>(t, i); }

  /// x times a matrix: rounded to bf16, or dequantised by the scales of the token and the columns.
  float down(const Row& x, const Weight& w, const Tensor& channel, std::int64_t t, std::int64_t column) const {
    const double sum = product(x, w, 0, column, 0, hidden);
    return full ? dequantise(std::int64_t(sum), scale(a.dequant_scale_x, t), scale(channel, column)) : bf16_of(sum);
  }
  static Row corrected(Row x, double by) {
    const float factor = float(by);
    if (std::fabs(factor - 1.0f) >= 0x1p-23f)
      for (float& v : x) v = v * factor;
    return x;
  }

  /// Steps 1-6.
  void query(std::int64_t t) const {
    const Row x = row_at(a.token_x, t, hidden);
    Row c(static_cast<std::size_t>(rank));
    for (std::int64_t j = 0; j < rank; ++j) c[std::size_t(j)] = down(x, w_dq, a.dequant_scale_w_dq, t, j);
    show("1.c", t, c);
    Row cq = corrected(norm(c, gamma_cq, float(a.rmsnorm_epsilon_cq)), a.qc_qr_scale);
    show("2.cq", t, cq);
    float token_scale = 0;
    if (full || partial) {
      if (a.smooth_scales_cq.elements() > 0)
        for (std::int64_t j = 0; j < rank; ++j) cq[std::size_t(j)] = cq[std::size_t(j)] * scale(a.smooth_scales_cq, j);
      std::vector<std::int8_t> codes(cq.size());
      token_scale = rowq(cq.data(), rank, codes.data());
      cq.assign(codes.begin(), codes.end());
      if (a.query_norm_flag) {
        for (std::int64_t j = 0; j < rank; ++j)
          element<std::int8_t>(o.query_norm, t * rank + j) = codes[std::size_t(j)];
        element<float>(o.dequant_scale_q_norm, t) = token_scale;
      }
      show("3.query_norm", t, codes.data(), cq);
      show("3.query_norm_scale", t, token_scale);
    } else {
      cq = bf16_of(cq);
      if (a.query_norm_flag) put_bf16(o.query_norm, t, cq);
      show("3.query_norm", t, cq);
    }
    for (std::int64_t h = 0; h < heads; ++h) head(t, h, cq, token_scale);
  }

  void head(std::int64_t t, std::int64_t h, const Row& q_norm, float token_scale) const {
    const std::int64_t width = nope + rope;
    Row m(static_cast<std::size_t>(width));
    for (std::int64_t j = 0; j < width; ++j) {
      const std::int64_t column = h * width + j;
      const double sum = product(q_norm, w_uq_qr, 0, column, 0, rank);
      m[std::size_t(j)] = full || partial
                              ? dequantise(std::int64_t(sum), token_scale, scale(a.dequant_scale_w_uq_qr, column))
                              : bf16_of(sum);
    }
    Row q = bf16_of(Row(m.begin(), m.begin() + nope)), q_rope(m.begin() + nope, m.end());
    show("4.q_nope", t, q, h * nope);
    show("4.q_rope", t, q_rope, h * rope);
    Row rotated = bf16_of(rope_to_half(q_rope, row_at(a.rope_cos, t, rope), row_at(a.rope_sin, t, rope)));
    show("6.query_rope", t * heads + h, rotated);
    Row qn(static_cast<std::size_t>(latent));
    for (std::int64_t j = 0; j < latent; ++j) qn[std::size_t(j)] = bf16_of(product(q, w_uk, h, j, 0, nope));
    show("5.query", t * heads + h, qn);
    if (a.kv_cache_quant_mode == 1) {
      std::vector<std::int8_t> codes(qn.size());
      const float s = headq(qn.data(), latent, codes.data()), factor = scale(a.quant_scale_ckv, 0) / s;
      for (std::int64_t j = 0; j < latent; ++j)
        element<std::int8_t>(o.query, (t * heads + h) * latent + j) = codes[std::size_t(j)];
      element<float>(o.dequant_scale_q_nope, t * heads + h) = s;
      for (float& v : rotated) v = s == 0 ? 0 : v * factor;
    } else {
      put_bf16(o.query, t * heads + h, qn);
    }
    put_bf16(o.query_rope, t * heads + h, rotated);
  }

  /// Steps 7-10.
  void key(std::int64_t t, const Place& place) const {
    const Row x = row_at(a.token_x, t, hidden);
    Row m(static_cast<std::size_t>(latent + rope));
    for (std::int64_t j = 0; j < latent + rope; ++j)
      m[std::size_t(j)] = down(x, w_dkv_kr, a.dequant_scale_w_dkv_kr, t, j);
    show("7.kv", t, m);
    Row kr = bf16_of(
        rope_to_half(Row(m.begin() + latent, m.end()), row_at(a.rope_cos, t, rope), row_at(a.rope_sin, t, rope)));
    show("9.kr", t, kr);
    m.resize(std::size_t(latent));
    Row ckv = corrected(norm(m, gamma_ckv, float(a.rmsnorm_epsilon_ckv)), a.kc_scale);
    show("8.ckv", t, ckv);
    auto put = [&](const Tensor& cache, std::int64_t column, auto value) {
      std::memcpy(cell(a, cache, place, column), &value, sizeof value);
    };

    if (a.kv_cache_quant_mode == 3) {
      const float alpha = a.k_nope_clip_alpha ? scale(a.k_nope_clip_alpha, 0) : 1;
      for (std::int64_t i = 0; i < latent / a.tile_size; ++i) {
        std::vector<std::int8_t> codes(static_cast<std::size_t>(a.tile_size));
        const float s = tileq(ckv.data() + i * a.tile_size, a.tile_size, alpha, codes.data());
        for (std::int64_t j = 0; j < a.tile_size; ++j) put(a.kv_cache, i * a.tile_size + j, codes[std::size_t(j)]);
        put(a.kv_cache, latent + 2 * rope + 4 * i, s);
      }
      for (std::int64_t j = 0; j < rope; ++j) put(a.kv_cache, latent + 2 * j, to_bf16(kr[std::size_t(j)]));
      return;
    }
    const bool per_channel = a.kv_cache_quant_mode == 2;
    for (std::int64_t j = 0; j < latent; ++j)
      if (const float v = ckv[std::size_t(j)]; a.kv_cache_quant_mode == 0) put(a.kv_cache, j, to_bf16(v));
      else put(a.kv_cache, j, i8(v * scale(a.quant_scale_ckv, per_channel ? j : 0)));
    for (std::int64_t j = 0; j < rope; ++j)
      if (const float v = kr[std::size_t(j)]; per_channel) put(a.kr_cache, j, i8(v * scale(a.quant_scale_ckr, j)));
      else put(a.kr_cache, j, to_bf16(v));
  }

  const MlaPrologV3Args& a;
  const MlaPrologV3Outs& o;
  bool full, partial;
  std::int64_t hidden, tokens, rank, heads, nope, latent, rope;
  Weight w_dq, w_uq_qr, w_uk, w_dkv_kr;
  Row gamma_cq, gamma_ckv;
};

/// Element by element, whatever the strides.
void copy(const Tensor& from, const Tensor& to) {
  for (std::int64_t i = 0; i < to.elements(); ++i)
    std::memcpy(static_cast<std::byte*>(to.data) + offset_of(to, i) * size_of(to.dtype), row_bytes(from, i, 1),
                std::size_t(size_of(to.dtype)));
}

}  // namespace

void mla_prolog_v3(const MlaPrologV3Args& a, const MlaPrologV3Outs& o) {
  mla_prolog_v3_op::check(a, o);
  Prolog(a, o).run();
}

void mla_prolog_v3_functional(const MlaPrologV3FunctionalArgs& a, const MlaPrologV3FunctionalOuts& o) {
  mla_prolog_v3_op::check(a, o);
  copy(a.kv_cache, o.kv_cache_out);
  copy(a.kr_cache, o.kr_cache_out);
  MlaPrologV3Args in_place = a;
  in_place.kv_cache = o.kv_cache_out, in_place.kr_cache = o.kr_cache_out;
  Prolog(in_place, o).run();
}

void mla_prolog_v2(const MlaPrologV2Args& a, const MlaPrologV2Outs& o) {
  mla_prolog_v3_op::check(a, o);
  const bool codes = a.kv_cache.dtype == DType::i8, full = a.token_x.dtype == DType::i8;
  MlaPrologV3Args v3{a.token_x,
                     a.weight_dq,
                     a.weight_uq_qr,
                     a.weight_uk,
                     a.weight_dkv_kr,
                     a.rmsnorm_gamma_cq,
                     a.rmsnorm_gamma_ckv,
                     a.rope_sin,
                     a.rope_cos,
                     a.kv_cache,
                     a.kr_cache,
                     a.cache_index,
                     a.dequant_scale_x,
                     a.dequant_scale_w_dq,
                     a.dequant_scale_w_uq_qr,
                     a.dequant_scale_w_dkv_kr,
                     a.quant_scale_ckv,
                     a.quant_scale_ckr,
                     a.smooth_scales_cq};
  v3.rmsnorm_epsilon_cq = a.rmsnorm_epsilon_cq, v3.rmsnorm_epsilon_ckv = a.rmsnorm_epsilon_ckv;
  v3.cache_mode = a.cache_mode;
  v3.weight_quant_mode = full ? 2 : a.weight_uq_qr.dtype == DType::i8 ? 1 : 0;
  v3.kv_cache_quant_mode = !codes ? 0 : full ? 1 : 2;
  const MlaPrologV3Outs out{
      .query = o.query, .query_rope = o.query_rope, .dequant_scale_q_nope = o.dequant_scale_q_nope};
  Prolog(v3, out).run();
  if (v3.kv_cache_quant_mode != 1 && o.dequant_scale_q_nope) element<float>(o.dequant_scale_q_nope, 0) = 0;
}

}  // namespace dsakit::reference
