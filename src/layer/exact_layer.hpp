// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "dsakit/context.hpp"
#include "io/config.hpp"
#include "layer/weights.hpp"

namespace dsakit {

/// One attention layer in float64, for judging the modes: keys and values expanded per head, nothing absorbed, no
/// cache, no rounding but that of the weights (bf16; weights_proj as it is stored) and of the RoPE frequencies.
class ExactLayer {
 public:
  /// hidden [rows, hidden_size], normalised: positions 0.. of a sequence. The source outlives it.
  ExactLayer(const io::ModelConfig& config, bool indexer, const WeightSource& source, std::span<const bf16> hidden,
             Context& context = default_context());

  std::int64_t rows() const { return rows_; }
  /// The indexer's scores of positions 0..row, up to a positive constant.
  std::vector<double> scores(std::int64_t row) const;
  /// i32 [rows, index_topk]: the best by (score descending, position ascending), in this order.
  std::vector<std::int32_t> selection(Context& context = default_context()) const;
  /// [rows, hidden_size], attending to the lists [rows, index_topk] of a selection, or to everything where it is empty.
  std::vector<double> attend(std::span<const std::int32_t> selection, Context& context = default_context()) const;

 private:
  io::ModelConfig config_;
  const WeightSource& source_;
  std::int64_t rows_;
  std::vector<double> cos_, sin_;                              // [rows, Dr / 2]
  std::vector<double> c_q_, latent_, rope_key_;                // [rows, Hcq], [rows, Hckv], [rows, Dr]
  std::vector<double> index_query_, index_key_, head_weight_;  // [rows, Ni, Di], [rows, Di], [rows, Ni]

  void rotate(double* v, std::int64_t row, bool interleaved) const;
};

}  // namespace dsakit
