// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <limits>
#include <tuple>

#include "ops/mla_prolog_v3/runs.hpp"

// Calls to spoil, one argument at a time.
namespace dsakit::prolog_v3 {

using A = MlaPrologV3Args;
using O = MlaPrologV3Outs;

inline void refused(const Data& d, Status status, const char* parameter, const char* position, const Change& change) {
  SCOPED_TRACE(std::string(parameter) + position);
  expect_refused(d, change, status, parameter, position);
}
inline void refused(const Data& d, Status status, const char* parameter, const Change& change) {
  refused(d, status, parameter, "", change);
}
inline Data row(int r, std::string_view mode = "PA_BSND", bool batched = false) {
  return Data({.row = r,
               .cache_mode = mode,
               .batched = batched,
               .hidden = 24,
               .rank = 20,
               .heads = 2,
               .nope = 12,
               .latent = 64,
               .smooth = r >= 2});
}

/// Every tensor of the call in turn: f(name, pointer to it in the arguments).
inline void each_tensor(const Data& d, const std::function<void(const std::string&, Tensor A::*)>& f) {
  const std::pair<const char*, Tensor A::*> all[] = {{"token_x", &A::token_x},
                                                     {"weight_dq", &A::weight_dq},
                                                     {"weight_uq_qr", &A::weight_uq_qr},
                                                     {"weight_uk", &A::weight_uk},
                                                     {"weight_dkv_kr", &A::weight_dkv_kr},
                                                     {"rmsnorm_gamma_cq", &A::rmsnorm_gamma_cq},
                                                     {"rmsnorm_gamma_ckv", &A::rmsnorm_gamma_ckv},
                                                     {"rope_sin", &A::rope_sin},
                                                     {"rope_cos", &A::rope_cos},
                                                     {"kv_cache", &A::kv_cache},
                                                     {"kr_cache", &A::kr_cache},
                                                     {"cache_index", &A::cache_index},
                                                     {"dequant_scale_x", &A::dequant_scale_x},
                                                     {"dequant_scale_w_dq", &A::dequant_scale_w_dq},
                                                     {"dequant_scale_w_uq_qr", &A::dequant_scale_w_uq_qr},
                                                     {"dequant_scale_w_dkv_kr", &A::dequant_scale_w_dkv_kr},
                                                     {"quant_scale_ckv", &A::quant_scale_ckv},
                                                     {"quant_scale_ckr", &A::quant_scale_ckr},
                                                     {"smooth_scales_cq", &A::smooth_scales_cq},
                                                     {"actual_seq_len", &A::actual_seq_len},
                                                     {"k_nope_clip_alpha", &A::k_nope_clip_alpha}};
  const A a = d.args(d.initial);
  for (const auto& [name, tensor] : all)
    if (a.*tensor) f(name, tensor);
}

}  // namespace dsakit::prolog_v3
