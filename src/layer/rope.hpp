// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "dsakit/tensor.hpp"
#include "io/config.hpp"

namespace dsakit {

/// theta^(-2i/width), i < width/2, each the exact value rounded once to fp32; with YaRN blended towards 1/factor.
std::vector<float> rope_frequencies(const io::RopeConfig& rope, std::int64_t width);

/// The index range over which YaRN goes from plain to stretched frequencies.
struct YarnRange {
  double low, high;
};
YarnRange yarn_range(const io::RopeConfig& rope, std::int64_t width);

/// What the cosines and sines are multiplied by: attention_factor where given, mscale(F, mscale) /
/// mscale(F, mscale_all_dim) where both are, else mscale(F, 1), as transformers takes a config that leaves one out.
double rope_amplitude(const io::RopeConfig& rope);

/// (D + Dr)^-0.5 * mscale(F, mscale_all_dim)^2.
double softmax_scale(const io::ModelConfig& config);

/// cos and sin of position * frequency as the operators take them: bf16, the halves of a row repeated. Rows are made
/// when first asked for and kept; any thread may ask.
class RopeTable {
 public:
  RopeTable(const io::RopeConfig& rope, std::int64_t width);
  std::int64_t width() const { return width_; }
  /// Rows first .. first+count-1, contiguous.
  void copy(std::int64_t first, std::int64_t count, bf16* cos, bf16* sin) const;

 private:
  static constexpr std::int64_t kBlock = 512;   // positions made at once
  const bf16* block(std::int64_t index) const;  // [cos, sin][kBlock][width]

  std::int64_t width_;
  std::vector<float> frequencies_;
  double amplitude_;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<bf16[]>> blocks_;
};

/// The scaled Sylvester matrix H/sqrt(n) in bf16, [n, n]. Where n is no power of two: one for each stretch of the
/// largest power of two that divides n, zero elsewhere, which is orthogonal all the same.
std::vector<bf16> hadamard(std::int64_t n);

}  // namespace dsakit
