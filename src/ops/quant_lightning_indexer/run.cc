// SPDX-License-Identifier: Apache-2.0
#include "ops/indexer/run.hpp"

#include <bit>
#include <cstring>
#include <limits>

#include "ops/quant_lightning_indexer/problem.hpp"

namespace dsakit::quant_lightning_indexer_op {
namespace {

using indexer::Plan;

/// Keys of a block and their scales: what both numerics have in common.
struct Keys {
  const Problem& p;
  const Kernels* kernels;
  float* scales;
  std::int64_t sequence = 0, first = 0;  // of the block

  Keys(const Problem& p, const Kernels* kernels, Carver& carver, const Plan& plan)
      : p(p), kernels(kernels), scales(carver.take<float>(plan.block)) {}

  /// f(position in the block, count, first key, stride) for each run of evenly spaced keys.
  template <class F>
  void each_run(std::int64_t count, F f) const {
    p.keys.each_run(sequence, first, count, [&](std::int64_t j, std::int64_t n, std::int64_t offset) {
      f(j, n, static_cast<const std::int8_t*>(p.keys.data) + offset, p.keys.row_stride);
    });
  }

  void take(const Sequence& s, std::int64_t from, std::int64_t count) {
    sequence = s.index, first = s.first_key + from;
    const bool dense = p.key_scales.row_stride == 1 && p.key_scale.dtype == DType::f16;
    p.key_scales.each_run(sequence, first, count, [&](std::int64_t j, std::int64_t n, std::int64_t at) {
      if (dense) return kernels->widen(static_cast<const f16*>(p.key_scale.data) + at, n, scales + j);
      for (std::int64_t i = 0; i < n; ++i) scales[j + i] = float_at(p.key_scale, at + i * p.key_scales.row_stride);
    });
  }

  void scale(float* scores, std::int64_t count) const {
    for (std::int64_t j = 0; j < count; ++j) scores[j] *= scales[j];
  }
};

class Scorer {
 public:
  /// 128 KiB of keys: they stay in the second level cache beside the queries of a group.
  static std::int64_t block(const Problem& p) { return std::clamp<std::int64_t>((1 << 17) / p.dims, 64, 1024); }

  Scorer(const Problem& p, const Kernels* kernels, Carver& carver, const Plan& plan)
      : keys_(p, kernels, carver, plan),
        head_blocks_((p.heads + 15) / 16),
        code_bytes_(head_blocks_ * ((p.dims + 3) / 4) * 64),
        codes_(carver.take<std::uint8_t>(plan.group * code_bytes_)),
        weights_(carver.take<float>(plan.group * head_blocks_ * 16)) {}

  void take_query(std::int64_t r, std::int64_t row) {
    const Problem& p = keys_.p;
    std::uint8_t* codes = codes_ + r * code_bytes_;
    float* weight = weights_ + r * head_blocks_ * 16;
    const std::int64_t fours = (p.dims + 3) / 4;
    for (std::int64_t h = 0; h < head_blocks_ * 16; ++h) {
      std::uint8_t* to = codes + h / 16 * fours * 64 + h % 16 * 4;
      weight[h] = h < p.heads ? p.weights.at(row, h) * p.query_scale.at(row, h) : 0;
      const std::int8_t* from = h < p.heads ? p.head<std::int8_t>(row, h) : nullptr;
      for (std::int64_t d = 0; d < fours; ++d, to += 64) {
        std::uint32_t four = 0;
        if (from) std::memcpy(&four, from + 4 * d, std::size_t(std::min<std::int64_t>(p.dims - 4 * d, 4)));
        four ^= 0x80808080u;  // + 128
        std::memcpy(to, &four, 4);
      }
    }
  }

  void take_keys(const Sequence& s, std::int64_t first, std::int64_t count) { keys_.take(s, first, count); }

  void score(std::int64_t r, std::int64_t count, float* scores) {
    const IndexQueryI8 query{codes_ + r * code_bytes_, weights_ + r * head_blocks_ * 16, int(head_blocks_),
                             int(keys_.p.dims)};
    keys_.each_run(count, [&](std::int64_t j, std::int64_t n, const std::int8_t* key, std::int64_t stride) {
      keys_.kernels->index_scores(query, key, stride, int(n), scores + j);
    });
    keys_.scale(scores, count);
  }

 private:
  Keys keys_;
  std::int64_t head_blocks_, code_bytes_;
  std::uint8_t* codes_;
  float* weights_;
};

/// x >= 0, zero or at least 2^-10, rounded to fp16 (without branches, for the vectoriser).
inline float half_of(float x) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(x);
  const float rounded = std::bit_cast<float>((u + 0xfffu + (u >> 13 & 1)) & ~0x1fffu);
  return x >= 65520.0f ? std::numeric_limits<float>::infinity() : rounded;
}

/// The fp16 intermediates of the device: the keys become the rows of a matrix product with the heads as columns.
class DeviceScorer {
 public:
  static std::int64_t block(const Problem& p) {
    return std::clamp<std::int64_t>((1 << 17) / p.dims / kTile * kTile, 64, 256);
  }

  DeviceScorer(const Problem& p, const Kernels* kernels, Carver& carver, const Plan& plan)
      : keys_(p, kernels, carver, plan),
        inner_((p.dims + 3) / 4 * 4),
        panels_((p.heads + 63) / 64),
        panel_bytes_(panels_ * inner_ * 64),
        codes_(carver.take<std::int8_t>(plan.group * panel_bytes_)),
        sums_(carver.take<std::int32_t>(plan.group * panels_ * 64)),
        weights_(carver.take<float>(plan.group * p.heads)),
        biased_(carver.take<std::uint8_t>(plan.block * inner_)),
        dots_(carver.take<std::int32_t>(plan.block * panels_ * 64)) {}

  void take_query(std::int64_t r, std::int64_t row) {
    const Problem& p = keys_.p;
    std::int8_t* codes = codes_ + r * panel_bytes_;
    std::int32_t* sums = sums_ + r * panels_ * 64;
    std::memset(codes, 0, std::size_t(panel_bytes_));
    std::memset(sums, 0, std::size_t(panels_ * 64) * 4);
    for (std::int64_t h = 0; h < p.heads; ++h) {
      const std::int8_t* q = p.head<std::int8_t>(row, h);
      std::int8_t* to = codes + h / 64 * inner_ * 64 + h % 64 * 4;
      for (std::int64_t d = 0; d < p.dims; ++d) to[d / 4 * 256 + d % 4] = q[d], sums[h] += q[d];
      weights_[r * p.heads + h] = to_float(to_f16(p.weights.at(row, h) * p.query_scale.at(row, h)));
    }
  }

  void take_keys(const Sequence& s, std::int64_t first, std::int64_t count) {
    keys_.take(s, first, count);
    const std::int64_t dims = keys_.p.dims;
    keys_.each_run(count, [&](std::int64_t j, std::int64_t n, const std::int8_t* key, std::int64_t stride) {
      for (std::int64_t i = 0; i < n; ++i, key += stride) {
        std::uint8_t* row = biased_ + (j + i) * inner_;
        for (std::int64_t d = 0; d < dims; ++d) row[d] = std::uint8_t(key[d] ^ -128);
        for (std::int64_t d = dims; d < inner_; ++d) row[d] = 128;
      }
    });
  }

  void score(std::int64_t r, std::int64_t count, float* scores) {
    const std::int64_t heads = keys_.p.heads, pitch = panels_ * 64;
    for (std::int64_t panel = 0; panel < panels_; ++panel)
      keys_.kernels->product(biased_, inner_, int(count), codes_ + r * panel_bytes_ + panel * inner_ * 64,
                                sums_ + (r * panels_ + panel) * 64, int(inner_), dots_ + panel * 64, pitch);
    const float* weight = weights_ + r * heads;
    for (std::int64_t j = 0; j < count; j += kTile) {
      float sum[kTile] = {};
      const std::int32_t* dot = dots_ + j * pitch;  // rows past count are scratch: computed, not used
      for (std::int64_t h = 0; h < heads; ++h)
        for (std::int64_t i = 0; i < kTile; ++i)
          sum[i] += weight[h] * half_of(float(std::max(dot[i * pitch + h], 0)) * 0x1p-10f);
      for (std::int64_t i = 0; i < std::min(kTile, count - j); ++i) scores[j + i] = sum[i];
    }
    keys_.scale(scores, count);
  }

 private:
  static constexpr std::int64_t kTile = 16;  // keys summed side by side
  Keys keys_;
  std::int64_t inner_, panels_, panel_bytes_;
  std::int8_t* codes_;
  std::int32_t* sums_;
  float* weights_;
  std::uint8_t* biased_;
  std::int32_t* dots_;
};

}  // namespace

std::size_t workspace(const Problem& p, int threads) {
  return p.other_numerics ? indexer::Selection<DeviceScorer>::workspace(p, threads)
                          : indexer::Selection<Scorer>::workspace(p, threads);
}

void run(const Problem& p, Call& call, std::byte* memory) noexcept {
  if (p.other_numerics) indexer::Selection<DeviceScorer>::run(p, call, memory);
  else indexer::Selection<Scorer>::run(p, call, memory);
}

}  // namespace dsakit::quant_lightning_indexer_op
