// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "dsakit/tensor.hpp"
#include "io/aligned_array.hpp"
#include "io/config.hpp"
#include "io/safetensors.hpp"

namespace dsakit::io {

/// A folder in Hugging Face layout: config.json beside model.safetensors, or beside model.safetensors.index.json and
/// the shards it names (as transformers does, the single file wins). Every tensor is in exactly one shard, the one
/// named.
///
/// Opening it reads config.json, the index and the headers. The load functions read one tensor each and convert it
/// with one rounding; BF16, F16, F32 and e4m3 blocks of 128 x 128 (multiplied by <name>_scale_inv) are what a weight
/// may be stored as. Missing: MISSING_TENSOR; another shape: INVALID_SHAPE; another type: UNSUPPORTED; all name the
/// tensor.
class Checkpoint {
 public:
  explicit Checkpoint(const std::string& folder);

  const std::string& folder() const { return folder_; }
  const ModelConfig& config() const { return config_; }
  const std::deque<SafetensorsFile>& files() const { return files_; }
  bool has(const std::string& name) const { return find(name).tensor != nullptr; }

  /// Row-major [rows, cols].
  AlignedArray<bf16> load_matrix_bf16(const std::string& name, std::int64_t rows, std::int64_t cols) const;
  AlignedArray<float> load_matrix_f32(const std::string& name, std::int64_t rows, std::int64_t cols) const;
  AlignedArray<bf16> load_vector_bf16(const std::string& name, std::int64_t size) const;
  AlignedArray<float> load_vector_f32(const std::string& name, std::int64_t size) const;

  /// For those who will load everything: OUT_OF_MEMORY now, if all tensors together are more than DSAKIT_MEM_LIMIT.
  /// Each load checks its own tensor in any case.
  void require_memory_for_all() const;

 private:
  struct Place {
    const SafetensorsFile* file = nullptr;
    const FileTensor* tensor = nullptr;
  };
  void open_shards(const std::string& index);
  void check_layer_numbers() const;
  Place find(const std::string& name) const;
  Place expect(const std::string& name, const std::vector<std::int64_t>& shape) const;
  template <class T>
  AlignedArray<T> load(const std::string& name, const std::vector<std::int64_t>& shape) const;
  AlignedArray<float> load_scales(const std::string& name, const Place& weight) const;

  std::string folder_;
  ModelConfig config_;
  std::deque<SafetensorsFile> files_;
  std::map<std::string, std::size_t, std::less<>> shard_of_;  // of the index; empty for a single file
};

}  // namespace dsakit::io
