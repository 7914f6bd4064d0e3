// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "dsakit/context.hpp"
#include "layer/weights.hpp"

namespace dsakit {

/// The float indexer's view of some new tokens, for sparse_bf16:
///   query   = rot(c_q W_Iq), c_q = RMSNorm(x W_DQ)
///   key     = rot(LayerNorm(x W_Ik)), eps 1e-6
///   weights = x W_Iw * Ni^-0.5 * Di^-0.5
/// fp32 throughout, query and key rounded to bf16 once, at the end, and W_Iw as exact as two bf16 make it: checkpoints
/// hold it in fp32, and with few heads the sign of a weight near 0 turns a whole selection round. The c_q of
/// mla_prolog_quant has been rounded twice: close to the cut that alone decides for other positions than a float32
/// model would.
struct IndexPrologBf16 {
  const io::ModelConfig& config;
  const LayerWeights& weights;
  std::int64_t rows;
  const bf16* x;  // [rows, He]
  std::int64_t x_stride;
  const bf16 *cos, *sin;             // [rows, Dr]
  float *c_q, *query_f32, *key_f32, *rest;  // scratch [rows, Hcq], [rows, Ni, Di], [rows, Di], [rows, Ni]

  bf16* query;          // [rows, Ni, Di]
  bf16* key;            // [rows, Di]
  float* head_weights;  // [rows, Ni]

  void run(Context& context) const;
};

inline constexpr double kLayerNormEpsilon = 1e-6;

}  // namespace dsakit
