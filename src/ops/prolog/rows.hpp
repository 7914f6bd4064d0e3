// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cmath>
#include <cstdint>

#include "kernels/kernels.hpp"

// Row arithmetic of the prologs. Every operation is one fp32 rounding, in the order written.
namespace dsakit::prolog {

/// Where the two families of the documents round differently (docs/operators/mla_prolog.md, "Numerics").
struct Numerics {
  bool halves_first_sum;          // x W_dq is two sums over half the inputs each, added in fp32; else one sum
  bool mean_in_terms;             // mean of squares: every term times 1/n, then the sum; else the sum times 1/n
  bool reciprocal_root;           // g * (x * (1/r)); else (x / r) * g
  bool rounds_before_quantising;  // bf16 between norm and int8
  bool reciprocal_scale;          // scale = 1 / (127/a); else a / 127
};
inline constexpr Numerics kPyPto = {true, true, true, true, true};
inline constexpr Numerics kTorchNpu = {false, false, false, false, false};

/// y = RMSNorm of x; y may be x.
inline void rms_norm(const Kernels& kernels, const Numerics& numerics, const float* x, std::int64_t n,
                     const float* gamma, float epsilon, float* y) {
  const float each = 1.0f / float(n);
  const float mean = numerics.mean_in_terms ? kernels.sum_squares(x, n, each) : kernels.sum_squares(x, n, 1.0f) * each;
  const float root = std::sqrt(mean + epsilon);
  if (numerics.reciprocal_root) {
    const float inverse = 1.0f / root;
    for (std::int64_t i = 0; i < n; ++i) y[i] = gamma[i] * (x[i] * inverse);
  } else {
    for (std::int64_t i = 0; i < n; ++i) y[i] = x[i] / root * gamma[i];
  }
}

/// y = (x - mean) / sqrt(variance + epsilon) * gamma + beta; y may be x.
inline void layer_norm(const Kernels& kernels, const float* x, std::int64_t n, const float* gamma, const float* beta,
                       float epsilon, float* y) {
  const float each = 1.0f / float(n), mean = kernels.sum(x, n, each);
  for (std::int64_t i = 0; i < n; ++i) y[i] = x[i] - mean;
  const float root = std::sqrt(kernels.sum_squares(y, n, each) + epsilon);
  for (std::int64_t i = 0; i < n; ++i) y[i] = y[i] / root * gamma[i] + beta[i];
}

/// Codes of one group and its scale. Where 127/a overflows (a = 0 among others) both are 0.
inline float quantise(const Kernels& kernels, const Numerics& numerics, const float* x, std::int64_t n,
                      std::int8_t* codes) {
  const float largest = kernels.max_abs(x, n), multiplier = 127.0f / largest;
  if (!std::isfinite(multiplier)) {
    for (std::int64_t i = 0; i < n; ++i) codes[i] = 0;
    return 0;
  }
  kernels.quantize(x, n, multiplier, codes);
  return numerics.reciprocal_scale ? 1.0f / multiplier : largest / 127.0f;
}

/// Codes as the operand of product_i8: + 128, padded to a multiple of four.
inline void bias_codes(const std::int8_t* codes, std::int64_t n, std::uint8_t* biased) {
  for (std::int64_t i = 0; i < n; ++i) biased[i] = std::uint8_t(codes[i] + 128);
  for (std::int64_t i = n; i % 4 != 0; ++i) biased[i] = 128;
}

enum class RopeLayout { half, interleaved, interleaved_to_half };

/// y = rotated x, 2 * half values; cos and sin are used at all of them as given. y is not x.
inline void rope(RopeLayout layout, const float* __restrict x, const float* __restrict cos, const float* __restrict sin,
                 std::int64_t half, float* __restrict y) {
  switch (layout) {
    case RopeLayout::half:
      for (std::int64_t j = 0; j < half; ++j) {
        y[j] = x[j] * cos[j] - x[j + half] * sin[j];
        y[j + half] = x[j + half] * cos[j + half] + x[j] * sin[j + half];
      }
      break;
    case RopeLayout::interleaved:
      for (std::int64_t j = 0; j < half; ++j) {
        y[2 * j] = x[2 * j] * cos[j] - x[2 * j + 1] * sin[j];
        y[2 * j + 1] = x[2 * j + 1] * cos[j + half] + x[2 * j] * sin[j + half];
      }
      break;
    case RopeLayout::interleaved_to_half:
      for (std::int64_t j = 0; j < half; ++j) {
        y[j] = x[2 * j] * cos[j] - x[2 * j + 1] * sin[j];
        y[j + half] = x[2 * j + 1] * cos[j + half] + x[2 * j] * sin[j + half];
      }
      break;
  }
}

}  // namespace dsakit::prolog
