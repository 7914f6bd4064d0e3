// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "dsakit/tensor.hpp"
#include "io/aligned_array.hpp"
#include "io/config.hpp"
#include "io/safetensors.hpp"
#include "io/shard_index.hpp"
#include "io/stored_matrix.hpp"

namespace dsakit::io {

/// What a caller may ask for in place of a refusal.
struct CheckpointOptions {
  bool dequantise_static = false;     // reads the weights of W8A8 with static activations
  bool shards_may_be_absent = false;  // a tensor of one that is, is missing when it is asked for
};

/// A folder in Hugging Face layout: config.json beside model.safetensors, or beside model.safetensors.index.json and
/// the shards it names (as transformers does, the single file wins); or as msModelSlim names them,
/// quant_model_weights.*, with quant_model_description.json. Every tensor is in exactly one shard, the one named.
///
/// Opening it reads config.json, the index, the description and the headers. Matrices may be stored in any
/// WeightFormat, vectors as floats; each tensor is converted with one rounding. Missing: MISSING_TENSOR; another shape:
/// INVALID_SHAPE; another type: UNSUPPORTED; parts that contradict each other: CONFLICT; all name the tensor.
class Checkpoint {
 public:
  explicit Checkpoint(const std::string& folder, const CheckpointOptions& options = {});

  const std::string& folder() const { return folder_; }
  const ModelConfig& config() const { return config_; }
  const std::deque<SafetensorsFile>& files() const { return files_; }
  Place find(const std::string& name) const;
  bool has(const std::string& name) const { return bool(find(name)); }

  /// A tensor of this shape, as it is stored.
  Place tensor(const std::string& name, const std::vector<std::int64_t>& shape) const { return expect(name, shape); }
  /// "<module>.weight" [rows, cols]; nothing of it is read yet.
  StoredMatrix matrix(const std::string& name, std::int64_t rows, std::int64_t cols) const;
  /// Rows first .. first + rows of matrix `index` of floats [count, depth, cols].
  StoredMatrix matrix_of_stack(const std::string& name, std::int64_t count, std::int64_t depth, std::int64_t index,
                               std::int64_t first, std::int64_t rows, std::int64_t cols) const;

  /// Row-major [rows, cols].
  AlignedArray<bf16> load_matrix_bf16(const std::string& name, std::int64_t rows, std::int64_t cols) const;
  AlignedArray<float> load_matrix_f32(const std::string& name, std::int64_t rows, std::int64_t cols) const;
  AlignedArray<bf16> load_vector_bf16(const std::string& name, std::int64_t size) const;
  AlignedArray<float> load_vector_f32(const std::string& name, std::int64_t size) const;

  /// Bytes as they are stored of everything that is kept in memory while the first `layers` layers run, routed experts
  /// included: without the embedding, whose rows are read when they are wanted.
  std::uint64_t bytes_in_use(std::int64_t layers) const;
  /// UNSUPPORTED by name, if one of layers first .. first + count - 1 has a tensor under `part` ("self_attn."; "": all) that no rule uses, since it
  /// may change the arithmetic: biases that are not zero among them.
  void require_known_tensors(std::int64_t first, std::int64_t count, std::string_view part) const;
  /// Of config.json and all headers: equal for copies of a checkpoint.
  std::string fingerprint() const;
  /// What is not used although it is there.
  std::vector<std::string> notes() const;

 private:
  void read_description();
  void open_files();
  void check_index() const;
  void check_layer_numbers() const;
  /// Where it is to be, there or not; shards_.size() for a tensor that the index does not list.
  std::size_t shard_of(const std::string& name) const;
  Place expect(const std::string& name, const std::vector<std::int64_t>& shape) const;
  Place expect_scales(const std::string& name, std::int64_t rows, std::int64_t cols) const;
  Place expect_column(const std::string& name, std::int64_t rows) const;
  WeightFormat format_of(const std::string& name, const Place&) const;
  WeightFormat int8_format(const std::string& name, const Place&) const;
  std::string described(const std::string& name) const;
  template <class T>
  AlignedArray<T> load_vector(const std::string& name, std::int64_t size) const;

  std::string folder_;
  CheckpointOptions options_;
  ModelConfig config_;
  std::map<std::string, std::string, std::less<>> description_;  // types by tensor, of msModelSlim
  bool is_described_ = false;
  std::deque<SafetensorsFile> files_;
  ShardIndex index_;
  std::vector<const SafetensorsFile*> shards_;  // of the index; null where one is absent
};

}  // namespace dsakit::io
