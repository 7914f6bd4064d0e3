// SPDX-License-Identifier: Apache-2.0
#include "layer/rope.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numbers>

#include "core/float16.hpp"

namespace dsakit {
namespace {

double mscale(double factor, double m) { return factor > 1 ? 0.1 * m * std::log(factor) + 1 : 1; }

}  // namespace

YarnRange yarn_range(const io::RopeConfig& rope, std::int64_t width) {
  const auto correction = [&](double beta) {
    return double(width) * std::log(double(rope.original_max_position_embeddings) / (2 * std::numbers::pi * beta)) /
           (2 * std::log(rope.theta));
  };
  double low = correction(rope.beta_fast), high = correction(rope.beta_slow);
  if (rope.truncate) low = std::floor(low), high = std::ceil(high);
  YarnRange range{std::max(low, 0.0), std::min(high, double(width - 1))};
  if (range.low == range.high) range.high += 0.001;
  return range;
}

std::vector<float> rope_frequencies(const io::RopeConfig& rope, std::int64_t width) {
  std::vector<float> frequencies(width / 2);
  const YarnRange range = rope.yarn ? yarn_range(rope, width) : YarnRange{};
  for (std::int64_t i = 0; i < width / 2; ++i) {
    double f = std::pow(rope.theta, -2.0 * double(i) / double(width));
    if (rope.yarn) {
      const double ramp = std::clamp((double(i) - range.low) / (range.high - range.low), 0.0, 1.0);
      f = f / rope.factor * ramp + f * (1 - ramp);
    }
    frequencies[i] = float(f);
  }
  return frequencies;
}

double rope_amplitude(const io::RopeConfig& rope) {
  if (!rope.yarn) return 1;
  if (rope.attention_factor > 0) return rope.attention_factor;
  if (rope.mscale == 0 || rope.mscale_all_dim == 0) return mscale(rope.factor, 1);
  return mscale(rope.factor, rope.mscale) / mscale(rope.factor, rope.mscale_all_dim);
}

double softmax_scale(const io::ModelConfig& config) {
  const double m = config.rope.yarn ? mscale(config.rope.factor, config.rope.mscale_all_dim) : 1;
  return m * m / std::sqrt(double(config.qk_nope_head_dim + config.qk_rope_head_dim));
}

RopeTable::RopeTable(const io::RopeConfig& rope, std::int64_t width)
    : width_(width), frequencies_(rope_frequencies(rope, width)), amplitude_(rope_amplitude(rope)) {}

const bf16* RopeTable::block(std::int64_t index) const {
  std::lock_guard lock(mutex_);
  if (std::int64_t(blocks_.size()) <= index) blocks_.resize(index + 1);
  std::unique_ptr<bf16[]>& rows = blocks_[index];
  if (!rows) {
    rows = std::make_unique<bf16[]>(2 * kBlock * width_);
    const std::int64_t half = width_ / 2;
    for (std::int64_t r = 0; r < kBlock; ++r) {
      bf16 *cos = rows.get() + r * width_, *sin = cos + kBlock * width_;
      for (std::int64_t i = 0; i < half; ++i) {
        const double angle = float(index * kBlock + r) * frequencies_[i];  // the product is rounded to fp32
        cos[i] = cos[half + i] = to_bf16_once(std::cos(angle) * amplitude_);
        sin[i] = sin[half + i] = to_bf16_once(std::sin(angle) * amplitude_);
      }
    }
  }
  return rows.get();
}

void RopeTable::copy(std::int64_t first, std::int64_t count, bf16* cos, bf16* sin) const {
  while (count > 0) {
    const std::int64_t row = first % kBlock, rows = std::min(count, kBlock - row);
    const bf16* from = block(first / kBlock) + row * width_;
    std::memcpy(cos, from, std::size_t(rows * width_) * sizeof(bf16));
    std::memcpy(sin, from + kBlock * width_, std::size_t(rows * width_) * sizeof(bf16));
    cos += rows * width_, sin += rows * width_, first += rows, count -= rows;
  }
}

std::vector<bf16> hadamard(std::int64_t n) {
  const std::int64_t stretch = n & -n;
  const bf16 positive = to_bf16_once(1 / std::sqrt(double(stretch))), negative{std::uint16_t(positive.bits | 0x8000u)};
  std::vector<bf16> matrix(n * n);
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t j = i / stretch * stretch; j < (i / stretch + 1) * stretch; ++j)  // the sign: parity of i and j
      matrix[i * n + j] = std::popcount(std::uint64_t(i & j & (stretch - 1))) % 2 ? negative : positive;
  return matrix;
}

}  // namespace dsakit
