// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <memory>

#include "dsakit/tensor.hpp"

namespace dsakit {

/// A weight rearranged once into the panels that the kernels read, to be used many times. Accepted wherever
/// the weight it was made from is, with the same bits. Owns its memory; copies share it.
class PackedWeight {
 public:
  /// `weight`: [K, N] or a stack [B, K, N]; bfloat16 or int8; row-major (innermost stride 1), or FRACTAL_NZ
  /// with Format::NZ and the logical shape. Throws Error for anything else.
  explicit PackedWeight(const Tensor& weight);

  operator Tensor() const { return tensor_; }
  const Tensor& tensor() const { return tensor_; }
  std::size_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<std::byte[]> memory_;
  std::size_t bytes_ = 0;
  Tensor tensor_;
};

inline PackedWeight pack_weight(const Tensor& weight) { return PackedWeight(weight); }

}  // namespace dsakit
