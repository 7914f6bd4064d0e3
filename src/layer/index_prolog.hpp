// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "dsakit/context.hpp"
#include "layer/weights.hpp"

namespace dsakit {

/// The float indexer's view of some new tokens, for sparse_bf16:
///   query   = bf16(c_q W_Iq), the first Dr dims of each head rotated
///   key     = bf16(LayerNorm(x W_Ik)), likewise; the LayerNorm in fp32, eps 1e-6, canonical row sums
///   weights = fp32(x W_Iw) * Ni^-0.5 * Di^-0.5
/// The same steps as lightning_indexer_prolog_quant without its Hadamard rotation and quantisation.
struct IndexPrologBf16 {
  const io::ModelConfig& config;
  const LayerWeights& weights;
  std::int64_t rows;
  const bf16* x;                // [rows, He]
  std::int64_t x_stride;
  const bf16* c_q;              // [rows, Hcq]
  const bf16 *cos, *sin;        // [rows, Dr]
  float* key_f32;               // scratch [rows, Di]

  bf16* query;                  // [rows, Ni, Di]
  bf16* key;                    // [rows, Di]
  float* head_weights;          // [rows, Ni]

  void run(Context& context) const;
};

inline constexpr double kLayerNormEpsilon = 1e-6;

}  // namespace dsakit
