// SPDX-License-Identifier: Apache-2.0
#include "dsakit/quant_lightning_indexer.hpp"

#include <algorithm>
#include <cstring>

#include "kernels/panel.hpp"
#include "ops/direct.hpp"
#include "ops/indexer/run.hpp"
#include "ops/quant_lightning_indexer/problem.hpp"

namespace dsakit {
namespace quant_lightning_indexer_op {
namespace {

using indexer::Plan;

/// The scales of a block's keys: what both numerics have in common.
struct KeyScales {
  const Problem& p;
  const Kernels& kernels;
  float* scales;
  std::int64_t sequence = 0, first = 0;  // of the block
  std::int64_t end = 0;                  // of the sequence

  KeyScales(const Problem& p, const Kernels& kernels, const Plan& plan, Carver& carver)
      : p(p), kernels(kernels), scales(carver.take<float>(plan.block)) {}

  void take(const SequenceRows& s, std::int64_t from, std::int64_t count) {
    sequence = s.index, first = s.first_key + from, end = s.first_key + s.keys;
    const bool dense = p.key_scales.row_stride == 1 && p.key_scale.dtype == DType::f16;
    p.key_scales.each_run(sequence, first, count, [&](std::int64_t j, std::int64_t n, std::int64_t at) {
      if (dense) return kernels.widen(static_cast<const f16*>(p.key_scale.data) + at, n, scales + j);
      for (std::int64_t i = 0; i < n; ++i) scales[j + i] = float_at(p.key_scale, at + i * p.key_scales.row_stride);
    });
  }

  const std::int8_t* key(std::int64_t offset) const { return static_cast<const std::int8_t*>(p.keys.data) + offset; }

  void scale(float* scores, std::int64_t count) const {
    for (std::int64_t j = 0; j < count; ++j) scores[j] *= scales[j];
  }
};

class Scorer {
 public:
  /// 128 KiB of keys: they stay in the second level cache beside the queries of a group.
  static std::int64_t block(const Problem& p) { return std::clamp<std::int64_t>((1 << 17) / p.dims, 64, 1024); }

  Scorer(const Problem& p, const Kernels& kernels, const Plan& plan, Carver& carver)
      : keys_(p, kernels, plan, carver),
        codes_(carver.take<std::uint8_t>(plan.group * Layout::elements(p.heads, p.dims))),
        weights_(carver.take<float>(plan.group * Layout::heads(p.heads))),
        starts_(carver.take<std::int32_t>(plan.block + 3)) {}

  void take_query(std::int64_t r, std::int64_t row) {
    const Problem& p = keys_.p;
    std::uint8_t* codes = codes_ + r * Layout::elements(p.heads, p.dims);
    float* weight = weights_ + r * Layout::heads(p.heads);
    for (std::int64_t h = 0; h < Layout::heads(p.heads); ++h) {
      weight[h] = h < p.heads ? p.weights.at(row, h) * p.query_scale.at(row, h) : 0;
      const std::int8_t* from = h < p.heads ? p.head<std::int8_t>(row, h) : nullptr;
      std::uint8_t* to = codes + Layout::at(p.dims, h, 0);
      for (std::int64_t d = 0; d < p.dims; d += Layout::kGroup, to += Layout::at(p.dims, 0, Layout::kGroup)) {
        std::uint32_t group = 0;
        const std::int64_t left = p.dims - d;
        if (from && left >= Layout::kGroup) std::memcpy(&group, from + d, sizeof group);  // a load, not a loop
        else if (from) std::memcpy(&group, from + d, std::size_t(left));
        group ^= 0x80808080u;  // + 128
        std::memcpy(to, &group, sizeof group);
      }
    }
  }

  void take_keys(const SequenceRows& s, std::int64_t first, std::int64_t count) {
    keys_.take(s, first, count);
    known_ = 0;
  }

  void score(std::int64_t r, std::int64_t count, float* scores) {
    const Problem& p = keys_.p;
    const IndexQueryI8 query{codes_ + r * Layout::elements(p.heads, p.dims), weights_ + r * Layout::heads(p.heads),
                             int(Layout::blocks(p.heads)), int(p.dims)};
    p.keys.each_run(keys_.sequence, keys_.first, count, [&](std::int64_t j, std::int64_t n, std::int64_t at) {
      // The first row brings the keys to L2, where the others find them.
      const std::int64_t next = keys_.first + j + n;
      const std::int8_t* ahead = r == 0 && next < keys_.end ? keys_.key(p.keys.offset(keys_.sequence, next)) : nullptr;
      KeyStarts starts{starts_ + j, j + n <= known_};
      keys_.kernels.index_scores(query, keys_.key(at), p.keys.row_stride, int(n), scores + j, ahead, &starts);
      if (starts.made && j <= known_) known_ = std::max(known_, j + n);
    });
    keys_.scale(scores, count);
  }

 private:
  using Layout = IndexQueryLayout<std::uint8_t>;
  KeyScales keys_;
  std::uint8_t* codes_;
  float* weights_;
  std::int32_t* starts_;    // of the block's keys
  std::int64_t known_ = 0;  // of so many of them
};

/// The fp16 intermediates of the device: the keys become the rows of a matrix product with the heads as columns.
class DeviceScorer {
 public:
  static std::int64_t block(const Problem& p) {
    return std::clamp<std::int64_t>((1 << 17) / p.dims / kTile * kTile, 64, 256);
  }

  DeviceScorer(const Problem& p, const Kernels& kernels, const Plan& plan, Carver& carver)
      : keys_(p, kernels, plan, carver),
        depth_(Panel<std::int8_t>::depth(p.dims)),
        columns_(Layout::columns(p.heads)),
        elements_(Layout::elements(p.dims, p.heads)),
        codes_(carver.take<std::int8_t>(plan.group * elements_)),
        sums_(carver.take<std::int32_t>(plan.group * columns_)),
        weights_(carver.take<float>(plan.group * p.heads)),
        biased_(carver.take<std::uint8_t>(plan.block * depth_)),
        dots_(carver.take<std::int32_t>(plan.block * columns_)) {}

  void take_query(std::int64_t r, std::int64_t row) {
    const Problem& p = keys_.p;
    std::int8_t* codes = codes_ + r * elements_;
    std::int32_t* sums = sums_ + r * columns_;
    std::fill_n(codes, elements_, std::int8_t{0});
    std::fill_n(sums, columns_, 0);
    for (std::int64_t h = 0; h < p.heads; ++h) {
      const std::int8_t* q = p.head<std::int8_t>(row, h);
      std::int8_t* to = codes + Layout::at(p.dims, 0, h);
      for (std::int64_t d = 0; d < p.dims; ++d) to[Panel<std::int8_t>::at(d, 0)] = q[d], sums[h] += q[d];
      weights_[r * p.heads + h] = to_float(to_f16(p.weights.at(row, h) * p.query_scale.at(row, h)));
    }
  }

  void take_keys(const SequenceRows& s, std::int64_t first, std::int64_t count) {
    keys_.take(s, first, count);
    const Problem& p = keys_.p;
    p.keys.each_run(keys_.sequence, keys_.first, count, [&](std::int64_t j, std::int64_t n, std::int64_t at) {
      const std::int8_t* key = keys_.key(at);
      for (std::int64_t i = 0; i < n; ++i, key += p.keys.row_stride) {
        std::uint8_t* row = biased_ + (j + i) * depth_;
        for (std::int64_t d = 0; d < p.dims; ++d) row[d] = std::uint8_t(key[d] ^ -128);
        for (std::int64_t d = p.dims; d < depth_; ++d) row[d] = 128;
      }
    });
  }

  void score(std::int64_t r, std::int64_t count, float* scores) {
    const std::int64_t heads = keys_.p.heads;
    for (std::int64_t panel = 0; panel < Layout::count(heads); ++panel) {
      const std::int64_t column = panel * kPanel;
      keys_.kernels.product(biased_, depth_, int(count), codes_ + r * elements_ + Layout::panel(depth_, panel),
                               sums_ + r * columns_ + column, int(depth_), dots_ + column, columns_);
    }
    const float* weight = weights_ + r * heads;
    for (std::int64_t j = 0; j < count; j += kTile) {
      float sum[kTile] = {};
      const std::int32_t* dot = dots_ + j * columns_;  // rows past count are scratch: computed, not used
      for (std::int64_t h = 0; h < heads; ++h)
        for (std::int64_t i = 0; i < kTile; ++i)
          sum[i] += weight[h] * rounded_to_f16(float(std::max(dot[i * columns_ + h], 0)) * 0x1p-10f);
      for (std::int64_t i = 0; i < std::min(kTile, count - j); ++i) scores[j + i] = sum[i];
    }
    keys_.scale(scores, count);
  }

 private:
  using Layout = Panels<std::int8_t>;
  static constexpr std::int64_t kTile = 16;  // keys summed side by side
  KeyScales keys_;
  std::int64_t depth_, columns_, elements_;
  std::int8_t* codes_;
  std::int32_t* sums_;
  float* weights_;
  std::uint8_t* biased_;
  std::int32_t* dots_;
};

}  // namespace

void run(const QuantLightningIndexerArgs& args, const QuantLightningIndexerOuts& outs, std::uint64_t* candidates,
         Context& context) {
  QuantLightningIndexerOuts given = outs;
  Problem p = check(args, given, false, context.check_values());
  p.candidates = candidates;
  run(p, context);
}

void run(const Problem& p, Context& context) {
  indexer::warn("quant_lightning_indexer", p, context);
  if (p.other_numerics) indexer::Selection<DeviceScorer>::run("quant_lightning_indexer", p, context);
  else indexer::Selection<Scorer>::run("quant_lightning_indexer", p, context);
}

}  // namespace quant_lightning_indexer_op

void direct::quant_lightning_indexer(const QuantLightningIndexerArgs& args, const QuantLightningIndexerOuts& outs,
                                     Context& context) {
  quant_lightning_indexer_op::run(args, outs, nullptr, context);
}

}  // namespace dsakit
