// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/kernels.hpp"
#include "kernels/panel.hpp"
#include "ops/norm.hpp"
#include "ops/rope.hpp"

// Quantisation of rows in the prologs. Every operation is one fp32 rounding, in the order written.
namespace dsakit::prolog {

/// Where the two families of the documents round differently (docs/operators/mla_prolog.md, "Numerics").
struct Numerics {
  bool halves_first_sum;          // x W_dq is two sums over half the inputs each, added in fp32; else one sum
  NormOrder norm;
  bool rounds_before_quantising;  // bf16 between norm and int8
  bool reciprocal_scale;          // scale = 1 / (127/a); else a / 127
  bool scale_first_groups;        // latent groups: scale = a * clip * (1/127), multiplier its reciprocal; else as above
  bool rounds_before_rope;        // bf16 between an int8 query projection and its rope; else fp32
};
inline constexpr Numerics kPyPto = {true, NormOrder::pypto, true, true, false, true};
inline constexpr Numerics kTorchNpu = {false, NormOrder::torch_npu, false, false, true, false};

/// Codes of one group and its scale. Where 127/a overflows (a = 0 among others) both are 0.
template <class T>
float quantise(const Kernels& kernels, const Numerics& numerics, const T* x, std::int64_t n, std::int8_t* codes) {
  const float largest = kernels.max_abs(x, n), multiplier = 127.0f / largest;
  if (!std::isfinite(multiplier)) {
    for (std::int64_t i = 0; i < n; ++i) codes[i] = 0;
    return 0;
  }
  kernels.quantize(x, n, multiplier, codes);
  return numerics.reciprocal_scale ? 1.0f / multiplier : largest / 127.0f;
}

/// The same for a group of latent columns, which may be clipped: x is.
inline float quantise_group(const Kernels& kernels, const Numerics& numerics, float clip, float* x, std::int64_t n,
                            std::int8_t* codes) {
  if (!numerics.scale_first_groups) return quantise(kernels, numerics, x, n, codes);
  const float limit = kernels.max_abs(x, n) * clip, scale = limit * (1.0f / 127.0f), multiplier = 1.0f / scale;
  if (!std::isfinite(limit) || !std::isfinite(multiplier)) {
    for (std::int64_t i = 0; i < n; ++i) codes[i] = 0;
    return 0;
  }
  if (clip < 1)
    for (std::int64_t i = 0; i < n; ++i) x[i] = x[i] > limit ? limit : x[i] < -limit ? -limit : x[i];
  kernels.quantize(x, n, multiplier, codes);
  return scale;
}

/// To float16 and then to int8, both times to the nearest and ties away from zero. NaN -> 0. Below 2^-14, where float16
/// has other steps, every code is 0.
inline std::int8_t code_away(float x) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(x);
  const float half = std::bit_cast<float>(((u & 0x7fffffffu) + 0x1000u) & ~0x1fffu);  // ten bits of mantissa
  float y = (x < 0 ? -half : half) + (x < 0 ? -0.5f : 0.5f);
  y = y < -128.0f ? -128.0f : y;
  y = y > 127.0f ? 127.0f : y;
  return std::int8_t(x == x ? y : 0.0f);
}

/// Codes as the operand of a product of codes: + 128, padded to the depth of a panel.
inline void bias_codes(const std::int8_t* codes, std::int64_t n, std::uint8_t* biased) {
  for (std::int64_t i = 0; i < n; ++i) biased[i] = std::uint8_t(codes[i] + 128);
  for (std::int64_t i = n; i < Panel<std::int8_t>::depth(n); ++i) biased[i] = 128;
}

}  // namespace dsakit::prolog
