// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>

#include "dsakit/float16.hpp"

namespace dsakit::attention {

/// Nearest fp16, ties away from zero: how the device rounds keys, unnormalised probabilities and its output.
inline f16 to_f16_away(float x) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(x), sign = u >> 16 & 0x8000u, magnitude = u & 0x7fffffffu;
  if (magnitude >= 0x7f800000u) return to_f16(x);
  if (magnitude < 0x38800000u)  // below 2^-14: multiples of 2^-24
    return {std::uint16_t(sign | std::uint32_t(std::round(std::bit_cast<float>(magnitude) * 0x1p24f)))};
  if (magnitude >= 0x477ff000u) return {std::uint16_t(sign | 0x7c00u)};  // 65520 and above round to infinity
  return {std::uint16_t(sign | (magnitude - 0x38000000u + 0x1000u) >> 13)};
}

}  // namespace dsakit::attention
