// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "dsakit/tensor.hpp"

// The legal combinations of mla_prolog_v3's mode integers, once: check() searches this table, tests walk it, and the
// documentation prints it.
namespace dsakit::mla_prolog_v3_op {

/// What a row wants of an optional scale.
enum class Need {
  absent,
  optional,
  required,  // one value per token, column or channel, as the documentation of the scale says
  single,    // required, one value
  unclear,   // the sources of a reserved row disagree
};

struct Mode {
  int row;  // R1 .. R16
  int weight_quant, kv_cache_quant, query_quant, ckvkr_repo, quant_scale_repo;
  bool every_cache_mode;  // else PA_BSND, BSND and TND
  const char* reserved;   // why the row is refused; null: it is offered
  // weight_uk, gammas, sin, cos and query_rope are bfloat16 in every row. DType::other: hifloat8, of scales e8m0.
  DType token_x, weight_dq;  // weight_dkv_kr as weight_dq
  DType weight_uq_qr, kv_cache, kr_cache, query, query_norm;
  DType dequant_scale;  // of everything that multiplies the products: inputs, and the result beside query_norm
  Need hidden_scales;   // dequant_scale_x, dequant_scale_w_dq, dequant_scale_w_dkv_kr
  Need dequant_scale_w_uq_qr;
  Need quant_scale_ckv, quant_scale_ckr, smooth_scales_cq, k_nope_clip_alpha;

  /// int8 latent codes, the bf16 rope key and the scales of the tiles share one row of kv_cache; kr_cache holds
  /// nothing.
  bool packed() const { return ckvkr_repo == 1; }
  /// query is int8, with dequant_scale_q_nope.
  bool query_codes() const { return query_quant == 1; }
};

namespace table {
inline constexpr DType bf = DType::bf16, i8 = DType::i8, e4 = DType::f8_e4m3, hf = DType::other, f32 = DType::f32,
                       e8 = DType::other;
inline constexpr Need no = Need::absent, may = Need::optional, req = Need::required, one = Need::single,
                      clash = Need::unclear;
inline constexpr bool all6 = true, tile3 = false;
inline constexpr const char *now = nullptr, *mx = "mxfp8", *f8 = "fp8", *h8 = "hifloat8";
}  // namespace table

// clang-format off
inline constexpr Mode kModeTable[] = {
#define DSAKIT_ROW(...) [] { using namespace table; return Mode{__VA_ARGS__}; }()
  //         R wq kv qq ck qs  caches  status  x  dq  uq  kv  kr  query norm scale  hidden uq  ckv  ckr  smooth alpha
  DSAKIT_ROW(1, 0, 0, 0, 0, 0, all6,  now, bf, bf, bf, bf, bf, bf, bf, f32,  no,  no, no, no,  no,  no),
  DSAKIT_ROW(2, 1, 0, 0, 0, 0, all6,  now, bf, bf, i8, bf, bf, bf, i8, f32,  no, req, no, no, may,  no),
  DSAKIT_ROW(3, 1, 2, 0, 0, 0, all6,  now, bf, bf, i8, i8, i8, bf, i8, f32,  no, req, req, req, may, no),
  DSAKIT_ROW(4, 1, 3, 0, 1, 1, tile3, now, bf, bf, i8, i8, bf, bf, i8, f32,  no, req, no, no, may, one),
  DSAKIT_ROW(5, 2, 0, 0, 0, 0, all6,  now, i8, i8, i8, bf, bf, bf, i8, f32, req, req, no, no, may,  no),
  DSAKIT_ROW(6, 2, 1, 1, 0, 0, all6,  now, i8, i8, i8, i8, bf, i8, i8, f32, req, req, one, no, may, no),
  DSAKIT_ROW(7, 2, 3, 0, 1, 1, tile3, now, i8, i8, i8, i8, bf, bf, i8, f32, req, req, no, no, may, one),
  DSAKIT_ROW(8, 3, 0, 0, 0, 0, all6,   mx, e4, e4, e4, bf, bf, bf, e4,  e8, req, req, no, no,  no,  no),
  DSAKIT_ROW(9, 3, 1, 1, 0, 0, all6,   mx, e4, e4, e4, e4, bf, e4, e4,  e8, req, req, one, no, no,  no),
  DSAKIT_ROW(10, 3, 3, 0, 1, 1, tile3, mx, e4, e4, e4, e4, bf, bf, e4,  e8, req, req, no, no,  no,  no),
  DSAKIT_ROW(11, 4, 0, 0, 0, 0, all6,  f8, e4, e4, e4, bf, bf, bf, e4, f32, req, req, no, no, may,  no),
  DSAKIT_ROW(12, 4, 1, 1, 0, 0, all6,  f8, e4, e4, e4, e4, bf, e4, e4, f32, req, req, one, no, may, no),
  DSAKIT_ROW(13, 4, 3, 0, 1, 1, tile3, f8, e4, e4, e4, e4, bf, bf, e4, f32, req, req, no, no, may, clash),
  DSAKIT_ROW(14, 5, 0, 0, 0, 0, all6,  h8, hf, hf, hf, bf, bf, bf, hf, f32, req, req, no, no, may,  no),
  DSAKIT_ROW(15, 5, 1, 1, 0, 0, all6,  h8, hf, hf, hf, hf, bf, hf, hf, f32, req, req, one, no, may, no),
  DSAKIT_ROW(16, 5, 3, 0, 1, 1, tile3, h8, hf, hf, hf, hf, bf, bf, hf, f32, req, req, no, no, may, clash),
#undef DSAKIT_ROW
};
// clang-format on

constexpr const Mode* find_mode(std::int64_t weight_quant, std::int64_t kv_cache_quant, std::int64_t query_quant,
                                std::int64_t ckvkr_repo, std::int64_t quant_scale_repo) {
  for (const Mode& m : kModeTable)
    if (m.weight_quant == weight_quant && m.kv_cache_quant == kv_cache_quant && m.query_quant == query_quant &&
        m.ckvkr_repo == ckvkr_repo && m.quant_scale_repo == quant_scale_repo)
      return &m;
  return nullptr;
}

}  // namespace dsakit::mla_prolog_v3_op
