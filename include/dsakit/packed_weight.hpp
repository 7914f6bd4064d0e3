// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
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

  /// The bfloat16 weight [K, N] whose transpose a checkpoint keeps as 8-bit floats: `codes` [N, K] float8_e4m3fn,
  /// row-major, and `scales` [ceil(N/128), ceil(K/128)] float32, one for each block of 128 x 128. An element is
  /// bf16(fp32(code * scale)): products widen the codes on the way, with the bits of a weight made from these numbers, and
  /// half the bytes. Codes are numbers, not NaN. `first_row`, 0 or 64: how many rows of the first block lie before
  /// those given, where they are a part of a weight; `scales` has a row for each block that they touch.
  PackedWeight(const Tensor& codes, const Tensor& scales, std::int64_t first_row = 0);

  operator Tensor() const { return tensor_; }
  const Tensor& tensor() const { return tensor_; }
  std::size_t bytes() const { return bytes_; }

 private:
  void allocate(std::int64_t bytes);

  std::shared_ptr<std::byte[]> memory_;
  std::size_t bytes_ = 0;
  Tensor tensor_;
};

inline PackedWeight pack_weight(const Tensor& weight) { return PackedWeight(weight); }
inline PackedWeight pack_weight(const Tensor& codes, const Tensor& scales) { return {codes, scales}; }

}  // namespace dsakit
