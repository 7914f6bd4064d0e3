// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>

#include "dsakit/tensor.hpp"

// Conversions between float and its 16-bit relatives, one nearest-even rounding each; subnormals are kept.
namespace dsakit {

inline float to_float(float x) { return x; }
inline float to_float(bf16 x) { return std::bit_cast<float>(std::uint32_t(x.bits) << 16); }

inline float to_float(f16 x) {
  const std::uint32_t sign = std::uint32_t(x.bits & 0x8000u) << 16, exponent = x.bits >> 10 & 31, mantissa = x.bits & 0x3ffu;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | mantissa << 13);
  if (exponent == 0) {
    const float magnitude = float(mantissa) * 0x1p-24f;
    return sign ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
}

inline bf16 to_bf16(float x) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(x);
  if (x != x) return {std::uint16_t(u >> 16 | 0x40)};
  return {std::uint16_t((u + 0x7fffu + (u >> 16 & 1)) >> 16)};
}

inline f16 to_f16(float x) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(x), sign = u >> 16 & 0x8000u;
  const std::uint32_t magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {std::uint16_t(sign | 0x7e00u)};
  if (magnitude >= 0x477ff000u) return {std::uint16_t(sign | 0x7c00u)};  // 65520 and above round to infinity
  if (magnitude < 0x38800000u) {                                         // below 2^-14: multiples of 2^-24
    const float scaled = std::bit_cast<float>(magnitude) * 0x1p24f;      // exact
    return {std::uint16_t(sign | std::uint32_t(std::nearbyintf(scaled)))};
  }
  return {std::uint16_t(sign | (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1)) >> 13)};
}

}  // namespace dsakit
