// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "dsakit/float16.hpp"

// Roundings to 16 bits that only this house needs, beside the public conversions.
namespace dsakit {

/// x >= 0, zero or at least 2^-10, rounded to fp16, as a float; without branches, for the vectoriser.
inline float rounded_to_f16(float x) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(x);
  const float rounded = std::bit_cast<float>((u + 0xfffu + (u >> 13 & 1)) & ~0x1fffu);
  return x >= 65520.0f ? std::numeric_limits<float>::infinity() : rounded;
}

template <class T> T round_to(float x);
template <> inline float round_to<float>(float x) { return x; }
template <> inline bf16 round_to<bf16>(float x) { return to_bf16(x); }
template <> inline f16 round_to<f16>(float x) { return to_f16(x); }

/// A double as the fp32 that the next rounding, to 16 bits, takes where it would have taken the double.
inline float to_odd(double x) {
  const float f = float(x);
  if (f == x || std::isnan(x) || std::isinf(f)) return f;
  // Step to the odd neighbour between: rounding to odd first makes the second rounding exact.
  if (std::bit_cast<std::uint32_t>(f) & 1) return f;
  const bool up = std::fabs(x) > std::fabs(double(f));
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(f) + (up ? 1u : ~0u));
}
/// A double rounded once to 16 bits (through float it would be twice). Used by the references only.
inline bf16 to_bf16_once(double x) { return to_bf16(to_odd(x)); }
inline f16 to_f16_once(double x) { return to_f16(to_odd(x)); }

}  // namespace dsakit
