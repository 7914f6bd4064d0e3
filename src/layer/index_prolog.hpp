// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "layer/chunk.hpp"

namespace dsakit {

/// The float indexer's view of a chunk, for sparse_bf16:
///   query   = rot(c_q W_Iq), c_q = RMSNorm(x W_DQ)
///   key     = rot(LayerNorm(x W_Ik)), to be kept
///   weights = x W_Iw * Ni^-0.5 * Di^-0.5
/// fp32 throughout, query and key rounded to bf16 once, at the end, and W_Iw as exact as two bf16 make it: checkpoints
/// hold it in fp32, and with few heads the sign of a weight near 0 turns a whole selection round. The c_q of
/// mla_prolog_quant has been rounded twice: close to the cut that alone decides for other positions than a float32
/// model would.
void index_prolog_bf16(const Chunk&);

/// The products of the hidden states that it begins with, fp32 [rows, columns].
struct IndexSums {
  float *c_q, *key, *weights;  // x W_DQ, x W_Ik, x W_Iw
  float* rest;                 // x times what rounding took off W_Iw; null: nothing
};
/// The columns of this layer's weights, without gaps.
void index_sums_bf16(const Chunk&, const IndexSums&);
/// What follows from all columns of them; c_q is overwritten. As many heads as index_query has, all weights.
void index_prolog_bf16(const Chunk&, const IndexSums&);

}  // namespace dsakit
