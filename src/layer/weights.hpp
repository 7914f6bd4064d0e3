// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dsakit/packed_weight.hpp"
#include "io/aligned_array.hpp"
#include "io/checkpoint.hpp"
#include "layer/mode.hpp"
#include "ops/weight.hpp"

namespace dsakit {

/// Where the tensors of one attention layer come from, by their checkpoint names after "self_attn." and in the
/// checkpoint's [out, in] order.
class WeightSource {
 public:
  virtual ~WeightSource() = default;
  virtual bool has(const std::string& name) const = 0;
  virtual io::AlignedArray<bf16> matrix(const std::string& name, std::int64_t rows, std::int64_t columns) const = 0;
  virtual io::AlignedArray<bf16> vector_bf16(const std::string& name, std::int64_t size) const = 0;
  virtual io::AlignedArray<float> vector_f32(const std::string& name, std::int64_t size) const = 0;
};

/// Those of layer `layer` of a checkpoint.
std::unique_ptr<WeightSource> checkpoint_source(std::shared_ptr<const io::Checkpoint> checkpoint, int layer);

/// A weight in panels: as the operators take it, and as the layer's own products read it.
struct Matrix {
  /// From [in, out], row-major, or a stack of them.
  explicit Matrix(const Tensor& weight);
  PackedWeight packed;
  Weight view;
};

/// The panels of a row-major [out, in] weight.
Matrix transposed_matrix(const bf16* weight, std::int64_t out, std::int64_t in);

/// An int8 weight with one scale per output column.
struct QuantisedMatrix {
  Matrix codes;                  // [in, out]
  io::AlignedArray<float> scale;  // [out]
};

/// Per row of [out, in]: a = max |w|, scale = fp32(a/127), code = clamp(rint(fp32(w/scale)), -127, 127); a = 0: 0 and 0.
void quantise_rows(const bf16* weight, std::int64_t out, std::int64_t in, std::int8_t* codes, float* scale);

/// The weights of one attention layer as its operators take them (layer = the section "Weights" of the notes).
/// Those that every mode needs are made at once, a mode's own by prepare().
class LayerWeights {
 public:
  LayerWeights(const io::ModelConfig& config, bool indexer, std::unique_ptr<WeightSource> source);
  void prepare(Mode mode);
  std::size_t bytes() const;

  Matrix dq, dkv_kr, uk, uv, o;                   // uk [N, D, Hckv], uv [N, Hckv, Dv]
  io::AlignedArray<bf16> gamma_cq, gamma_ckv;
  std::optional<Matrix> uq_qr;                    // bf16 modes
  std::optional<QuantisedMatrix> uq_qr_i8;        // sparse_w8a8
  std::optional<Matrix> wk, w_proj;               // sparse modes, layers with an indexer
  io::AlignedArray<float> ln_gamma_k, ln_beta_k;
  std::optional<Matrix> w_qb;                     // sparse_bf16
  std::optional<QuantisedMatrix> w_qb_i8;         // sparse_w8a8
  std::vector<bf16> hadamard;

 private:
  io::AlignedArray<bf16> q_b() const;
  Matrix kv_b_part(std::int64_t first_row, std::int64_t rows, bool transpose) const;

  io::ModelConfig config_;
  bool indexer_;
  std::unique_ptr<WeightSource> source_;
};

}  // namespace dsakit
