// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cmath>
#include <cstdint>
#include <vector>

#include "core/float16.hpp"

namespace dsakit {

/// Random numbers that are the same on every machine: the n-th is a hash of (seed, n). For tests, benchmarks, synthetic
/// weights and sampling.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 0x632be59bd9b4e019u) {}

  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
  }
  /// 0..n-1.
  std::int64_t below(std::int64_t n) { return std::int64_t((next() >> 32) * std::uint64_t(n) >> 32); }
  float uniform(float low, float high) { return low + (high - low) * (float(next() >> 40) * 0x1p-24f); }
  /// Standard normal (a sum of twelve uniforms: the tails end at 6, and no libm decides a bit).
  float normal() {
    std::int64_t sum = 0;
    for (int i = 0; i < 6; ++i) {
      const std::uint64_t z = next();
      sum += std::int64_t(z >> 32) + std::int64_t(z & 0xffffffffu);
    }
    return float(double(sum) * 0x1p-32 - 6.0);
  }

 private:
  std::uint64_t state_;
};

inline std::vector<float> random_f32(Random& r, std::int64_t n, float low = -1, float high = 1) {
  std::vector<float> v(static_cast<std::size_t>(n));
  for (float& x : v) x = r.uniform(low, high);
  return v;
}
inline std::vector<bf16> random_bf16(Random& r, std::int64_t n, float low = -1, float high = 1) {
  std::vector<bf16> v(static_cast<std::size_t>(n));
  for (bf16& x : v) x = to_bf16(r.uniform(low, high));
  return v;
}
inline std::vector<f16> random_f16(Random& r, std::int64_t n, float low = -1, float high = 1) {
  std::vector<f16> v(static_cast<std::size_t>(n));
  for (f16& x : v) x = to_f16(r.uniform(low, high));
  return v;
}
inline std::vector<std::int8_t> random_i8(Random& r, std::int64_t n) {
  std::vector<std::int8_t> v(static_cast<std::size_t>(n));
  for (std::int8_t& x : v) x = std::int8_t(r.next() >> 56);
  return v;
}

}  // namespace dsakit
