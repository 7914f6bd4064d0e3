// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "dsakit/packed_weight.hpp"
#include "io/aligned_array.hpp"
#include "io/checkpoint.hpp"
#include "layer/mode.hpp"
#include "ops/weight.hpp"
#include "parallel/grid.hpp"

namespace dsakit {

/// Where the tensors of one attention layer come from, by their checkpoint names after "self_attn." and in the
/// checkpoint's [out, in] order.
class WeightSource {
 public:
  virtual ~WeightSource() = default;
  virtual bool has(const std::string& name) const = 0;
  virtual io::AlignedArray<bf16> matrix(const std::string& name, std::int64_t rows, std::int64_t columns) const = 0;
  /// Rows `part` of a matrix.
  virtual io::AlignedArray<bf16> matrix_rows(const std::string& name, std::int64_t rows, std::int64_t columns,
                                             Slice part) const;
  /// The codes and scales of rows `part` of a matrix that the source keeps in this format; empty, if it does not.
  virtual io::QuantisedWeight codes(const std::string&, std::int64_t, std::int64_t, Slice, io::WeightFormat) const {
    return {};
  }
  /// As exact as the source has it.
  virtual io::AlignedArray<float> matrix_f32(const std::string& name, std::int64_t rows, std::int64_t columns) const;
  virtual io::AlignedArray<bf16> vector_bf16(const std::string& name, std::int64_t size) const = 0;
  virtual io::AlignedArray<float> vector_f32(const std::string& name, std::int64_t size) const = 0;
};

/// Those of layer `layer` of a checkpoint; codes of 8-bit floats are given out unless `widen_fp8`.
std::unique_ptr<WeightSource> checkpoint_source(std::shared_ptr<const io::Checkpoint> checkpoint, int layer,
                                                bool widen_fp8 = false);

/// A weight in panels: as the operators take it, and as the layer's own products read it. Empty until made.
class Matrix {
 public:
  Matrix() = default;
  /// From [in, out], row-major, or a stack of them.
  explicit Matrix(const Tensor& weight) : Matrix(PackedWeight(weight)) {}
  explicit Matrix(PackedWeight packed);

  explicit operator bool() const { return packed_.has_value(); }
  operator Tensor() const { return packed_->tensor(); }
  const Weight& view() const { return view_; }
  std::size_t bytes() const { return packed_ ? packed_->bytes() : 0; }

 private:
  std::optional<PackedWeight> packed_;
  Weight view_;
};

/// The panels of a row-major [out, in] weight.
Matrix transposed_matrix(const bf16* weight, std::int64_t out, std::int64_t in);

/// An int8 weight [in, out] with one scale per output column.
struct QuantisedMatrix {
  Matrix codes;
  io::AlignedArray<float> scale;

  Tensor column_scales() const { return tensor(scale.data(), {codes.view().n, 1}); }
};

/// Per row of [out, in]: a = max |w|, scale = fp32(a/127), code = clamp(rint(fp32(w/scale)), -127, 127); a = 0: 0 and
/// 0.
void quantise_rows(const bf16* weight, std::int64_t out, std::int64_t in, std::int8_t* codes, float* scale);

/// What one of several ranks has of the weights of a layer: its heads and columns (parallel/grid.hpp).
struct LayerShare {
  int rank = 0, ranks = 1;   // of the replica
  bool split_prolog = true;  // the first products and the index heads too

  Slice heads(const io::ModelConfig& c) const { return slice_of(c.num_attention_heads, rank, ranks); }
  Slice index_heads(const io::ModelConfig& c) const {
    return split_prolog ? slice_of(c.index_n_heads, rank, ranks) : Slice{0, c.index_n_heads};
  }
  Slice columns(std::int64_t width) const { return columns_of(width, rank, ranks); }
  Slice prolog_columns(std::int64_t width) const { return split_prolog ? columns(width) : Slice{0, width}; }
};

/// The weights of one attention layer as its operators take them, under the operators' names. Those that every mode
/// needs are made at once, a mode's own by prepare(). That a tensor is missing is found at once in either case.
class LayerWeights {
 public:
  LayerWeights(const io::ModelConfig& config, bool indexer, std::unique_ptr<WeightSource> source,
               const LayerShare& share = {});
  /// Any thread may ask; once made, weights do not move.
  void prepare(Mode mode);
  std::size_t bytes() const;

  Matrix w_uk, w_uv, w_o;  // w_uk [N, D, Hckv], w_uv [N, Hckv, Dv]
  io::AlignedArray<bf16> gamma_cq, gamma_ckv;
  Matrix w_dq, w_dkv_kr;                // all but sparse_w8a8_packed
  QuantisedMatrix w_dq_i8, w_dkv_kr_i8;  // sparse_w8a8_packed
  Matrix w_uq_qr;                       // bf16 modes
  QuantisedMatrix w_uq_qr_i8;           // int8 modes
  Matrix wk, w_proj;           // sparse modes, layers with an indexer; the same for those below
  io::AlignedArray<float> ln_gamma_k, ln_beta_k;
  Matrix w_qb;              // sparse_bf16
  Matrix w_proj_rest;       // sparse_bf16: what rounding took off w_proj; empty when that was nothing
  QuantisedMatrix w_qb_i8;  // int8 modes
  std::vector<bf16> hadamard;
  bool has_rest = false;    // sparse_bf16: of all ranks

 private:
  const io::ModelConfig config_;
  const bool indexer_;
  const LayerShare share_;
  const std::unique_ptr<WeightSource> source_;
  mutable std::mutex mutex_;
};

}  // namespace dsakit
