// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>

#include "core/random.hpp"
#include "layer/weights.hpp"

namespace dsakit {

/// Random weights of any size, the same on every machine: every projection keeps the scale of its input.
class SyntheticSource final : public WeightSource {
 public:
  explicit SyntheticSource(std::uint64_t seed) : seed_(seed) {}
  bool has(const std::string&) const override { return true; }
  io::AlignedArray<bf16> matrix(const std::string& name, std::int64_t rows, std::int64_t columns) const override {
    const float limit = std::sqrt(3.0f / float(columns));  // variance 1/columns
    return filled<bf16>(name, rows * columns, [&](Random& r) { return to_bf16(r.uniform(-limit, limit)); });
  }
  io::AlignedArray<bf16> vector_bf16(const std::string& name, std::int64_t size) const override {
    return filled<bf16>(name, size, [](Random& r) { return to_bf16(r.uniform(0.5f, 1.5f)); });
  }
  io::AlignedArray<float> vector_f32(const std::string& name, std::int64_t size) const override {
    const float middle = name.ends_with("bias") ? 0 : 1;
    return filled<float>(name, size, [&](Random& r) { return r.uniform(middle - 0.5f, middle + 0.5f); });
  }

 private:
  template <class T, class Draw>
  io::AlignedArray<T> filled(const std::string& name, std::int64_t size, Draw&& draw) const {
    std::uint64_t hash = seed_;
    for (const char ch : name) hash = (hash ^ std::uint64_t(std::uint8_t(ch))) * 0x100000001b3u;
    Random random(hash);
    io::AlignedArray<T> values{std::size_t(size)};
    for (T& v : values) v = draw(random);
    return values;
  }
  std::uint64_t seed_;
};

inline std::unique_ptr<WeightSource> synthetic_source(std::uint64_t seed) {
  return std::make_unique<SyntheticSource>(seed);
}

}  // namespace dsakit
