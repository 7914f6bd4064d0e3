// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <bit>
#include <cstdint>
#include <limits>

#include "dsakit/tensor.hpp"
#include "ops/pypto/pypto.hpp"

// Any number of any dtype, exactly, and its one rounding to another: the rule that the quick ways of `cast` keep to.
namespace dsakit::pypto_op {

/// (-1)^negative * magnitude * 2^exponent, or what is not finite.
struct Number {
  enum Kind : std::uint8_t { finite, infinite, nan };
  Kind kind = finite;
  bool negative = false;
  int exponent = 0;
  std::uint64_t magnitude = 0;
};

/// A binary format: of its significand, bits that are stored; and the exponent of its least number.
template <class T>
struct Binary;
template <>
struct Binary<float> {
  using Bits = std::uint32_t;
  static constexpr int kStored = 23, kLeast = -149;
};
template <>
struct Binary<bf16> {
  using Bits = std::uint16_t;
  static constexpr int kStored = 7, kLeast = -133;
};
template <>
struct Binary<f16> {
  using Bits = std::uint16_t;
  static constexpr int kStored = 10, kLeast = -24;
};
template <class T>
inline constexpr typename Binary<T>::Bits kSign = typename Binary<T>::Bits(1) << (8 * sizeof(T) - 1);
template <class T>
inline constexpr typename Binary<T>::Bits kInfinity = kSign<T> - (typename Binary<T>::Bits(1) << Binary<T>::kStored);

template <class T>
concept Float = requires { Binary<T>::kStored; };

template <Float T>
Number number_of(T x) {
  using Bits = typename Binary<T>::Bits;
  constexpr int stored = Binary<T>::kStored;
  const Bits bits = std::bit_cast<Bits>(x), magnitude = bits & Bits(~kSign<T>), field = magnitude >> stored,
             fraction = magnitude & Bits((1u << stored) - 1);
  Number n{.negative = (bits & kSign<T>) != 0};
  if (magnitude >= kInfinity<T>) n.kind = magnitude > kInfinity<T> ? Number::nan : Number::infinite;
  n.exponent = Binary<T>::kLeast + (field > 1 ? field - 1 : 0);
  n.magnitude = field > 0 ? fraction | Bits(1u << stored) : fraction;
  return n;
}
template <class T>
Number number_of(T x) {
  const bool negative = x < 0;
  return {.negative = negative, .magnitude = negative ? -std::uint64_t(x) : std::uint64_t(x)};
}

/// magnitude / 2^shift, rounded to an integer.
inline std::uint64_t rounded(std::uint64_t magnitude, int shift, bool negative, CastMode mode) {
  const std::uint64_t kept = shift < 64 ? magnitude >> shift : 0, rest = magnitude - (shift < 64 ? kept << shift : 0);
  if (rest == 0) return kept;
  const std::uint64_t half = shift <= 64 ? std::uint64_t(1) << (shift - 1) : 0;  // 0: more than any rest
  const bool above = half && rest > half, tie = rest == half;
  switch (mode) {
    case CastMode::rint: return kept + (above || (tie && (kept & 1)));
    case CastMode::round: return kept + (above || tie);
    case CastMode::floor: return kept + negative;
    case CastMode::ceil: return kept + !negative;
    case CastMode::odd: return kept | 1;
    default: return kept;
  }
}

/// Of what is finite and beyond the format: whether it becomes infinite, or the largest number.
inline bool overflows(bool negative, CastMode mode) {
  if (mode == CastMode::floor) return negative;
  if (mode == CastMode::ceil) return !negative;
  return mode == CastMode::rint || mode == CastMode::round;
}

template <Float T>
T from_number(const Number& n, CastMode mode) {
  using Bits = typename Binary<T>::Bits;
  constexpr int stored = Binary<T>::kStored, least = Binary<T>::kLeast;
  const Bits sign = n.negative ? kSign<T> : 0;
  if (n.kind == Number::nan) return std::bit_cast<T>(Bits(sign | kInfinity<T> | Bits(1u << (stored - 1))));
  if (n.kind == Number::infinite) return std::bit_cast<T>(Bits(sign | kInfinity<T>));
  if (n.magnitude == 0) return std::bit_cast<T>(sign);
  // The unit of the last place kept; a sum that carries moves on to the next exponent by itself.
  const int top = n.exponent + std::bit_width(n.magnitude) - 1, unit = top - stored > least ? top - stored : least;
  const int shift = unit - n.exponent;
  const std::uint64_t kept = shift > 0 ? rounded(n.magnitude, shift, n.negative, mode) : n.magnitude << -shift;
  std::uint64_t bits = (std::uint64_t(unit - least) << stored) + kept;
  if (bits >= kInfinity<T>) bits = overflows(n.negative, mode) ? kInfinity<T> : kInfinity<T> - 1;
  return std::bit_cast<T>(Bits(sign | bits));
}

/// To an integer: clamped, or its low bits.
template <class T>
T from_number(const Number& n, CastMode mode, bool saturate) {
  constexpr std::uint64_t most = std::uint64_t(std::numeric_limits<T>::max());
  constexpr std::uint64_t least = std::uint64_t(0) - std::uint64_t(std::numeric_limits<T>::min());  // its magnitude
  const T limit = n.negative ? std::numeric_limits<T>::min() : std::numeric_limits<T>::max();
  if (n.kind == Number::nan) return 0;
  if (n.kind == Number::infinite) return saturate ? limit : 0;
  const bool far = n.exponent > 0 && std::bit_width(n.magnitude) + n.exponent > 64;  // low bits may be left
  std::uint64_t kept = 0;
  if (n.exponent <= 0) kept = n.exponent == 0 ? n.magnitude : rounded(n.magnitude, -n.exponent, n.negative, mode);
  else if (n.exponent < 64) kept = n.magnitude << n.exponent;
  if (saturate && (far || kept > (n.negative ? least : most))) return limit;
  return T(n.negative ? -kept : kept);
}

}  // namespace dsakit::pypto_op
