// SPDX-License-Identifier: Apache-2.0
#include "ops/indexer/run.hpp"

#include <cmath>
#include <cstring>

#include "ops/lightning_indexer/problem.hpp"

namespace dsakit::lightning_indexer_op {
namespace {

using indexer::Plan;

/// The lanes of the canonical head sum in halves: 8, 4, 2, 1.
float folded(float* lane) {
  for (int half = 8; half > 0; half /= 2)
    for (int l = 0; l < half; ++l) lane[l] += lane[l + half];
  return lane[0];
}

/// fp32 keys, widened once per block for all rows of the group.
class Scorer {
 public:
  static std::int64_t block(const Problem& p) { return std::clamp<std::int64_t>((1 << 15) / p.dims, 16, 512); }

  Scorer(const Problem& p, const Kernels* kernels, Carver& carver, const Plan& plan)
      : p_(p),
        kernels_(kernels),
        head_blocks_((p.heads + 15) / 16),
        values_(carver.take<float>(plan.group * head_blocks_ * p.dims * 16)),
        weights_(carver.take<float>(plan.group * head_blocks_ * 16)),
        head_(carver.take<float>(p.dims)),
        keys_(carver.take<float>(plan.block * p.dims)) {}

  void take_query(std::int64_t r, std::int64_t row) {
    for (std::int64_t h = 0; h < head_blocks_ * 16; ++h) {
      const bool real = h < p_.heads;
      weights_[r * head_blocks_ * 16 + h] = real ? p_.weights.at(row, h) : 0;
      if (real) widen(p_.query.offset(row) + h * p_.head_stride, p_.query.tensor.data, p_.dims, head_);
      else std::fill_n(head_, p_.dims, 0.f);
      float* to = values_ + (r * head_blocks_ + h / 16) * p_.dims * 16 + h % 16;
      for (std::int64_t d = 0; d < p_.dims; ++d) to[d * 16] = head_[d];
    }
  }

  void take_keys(const Sequence& s, std::int64_t first, std::int64_t count) {
    const std::int64_t dims = p_.dims, stride = p_.keys.row_stride;
    p_.keys.each_run(s.index, s.first_key + first, count, [&](std::int64_t j, std::int64_t n, std::int64_t offset) {
      if (stride == dims) return widen(offset, p_.keys.data, n * dims, keys_ + j * dims);
      for (std::int64_t i = 0; i < n; ++i) widen(offset + i * stride, p_.keys.data, dims, keys_ + (j + i) * dims);
    });
    infinite_ = p_.heads % 16 != 0 && std::isinf(kernels_->max_abs(keys_, count * dims));
  }

  void score(std::int64_t r, std::int64_t count, float* scores) {
    const IndexQueryF32 query{values_ + r * head_blocks_ * p_.dims * 16, weights_ + r * head_blocks_ * 16,
                              int(head_blocks_), int(p_.dims)};
    if (infinite_) score_real_heads(query, count, scores);
    else kernels_->index_scores(query, keys_, p_.dims, int(count), scores);
  }

 private:
  void widen(std::int64_t offset, const void* data, std::int64_t n, float* to) const {
    if (p_.type == DType::bf16) kernels_->widen(static_cast<const bf16*>(data) + offset, n, to);
    else kernels_->widen(static_cast<const f16*>(data) + offset, n, to);
  }

  /// A missing head would turn an infinite key into 0 * inf = NaN, so this leaves them out.
  void score_real_heads(const IndexQueryF32& query, std::int64_t count, float* scores) const {
    const float* key = keys_;
    for (std::int64_t j = 0; j < count; ++j, key += p_.dims) {
      float lane[16] = {};
      for (std::int64_t h = 0; h < p_.heads; ++h) {
        const float* q = query.values + h / 16 * p_.dims * 16 + h % 16;
        float dot = 0;
        for (std::int64_t d = 0; d < p_.dims; ++d) dot = std::fma(q[d * 16], key[d], dot);
        lane[h % 16] = std::fma(query.weight[h], dot < 0 ? 0 : dot, lane[h % 16]);
      }
      scores[j] = folded(lane);
    }
  }

  const Problem& p_;
  const Kernels* kernels_;
  std::int64_t head_blocks_;
  float *values_, *weights_, *head_, *keys_;
  bool infinite_ = false;  // the block holds an infinite key, and there are missing heads
};

/// "fast": the keys are the rows of a bf16 matrix product with the heads as columns. The head sum stays canonical.
class FastScorer {
 public:
  static std::int64_t block(const Problem&) { return 256; }

  FastScorer(const Problem& p, const Kernels* kernels, Carver& carver, const Plan& plan)
      : p_(p),
        kernels_(kernels),
        panels_((p.heads + 63) / 64),
        panel_((p.dims + 1) / 2 * 128),
        query_(carver.take<bf16>(plan.group * panels_ * panel_)),
        weights_(carver.take<float>(plan.group * panels_ * 64)),
        dots_(carver.take<float>(plan.block * panels_ * 64)) {}

  void take_query(std::int64_t r, std::int64_t row) {
    bf16* panels = query_ + r * panels_ * panel_;
    std::memset(static_cast<void*>(panels), 0, std::size_t(panels_ * panel_) * sizeof *panels);
    for (std::int64_t h = 0; h < p_.heads; ++h) {
      const bf16* q = p_.head<bf16>(row, h);
      bf16* to = panels + h / 64 * panel_ + h % 64 * 2;
      for (std::int64_t d = 0; d < p_.dims; ++d) to[d / 2 * 128 + d % 2] = q[d];
      weights_[r * panels_ * 64 + h] = p_.weights.at(row, h);
    }
  }

  void take_keys(const Sequence& s, std::int64_t first, std::int64_t) { sequence_ = s.index, first_ = s.first_key + first; }

  void score(std::int64_t r, std::int64_t count, float* scores) {
    const std::int64_t pitch = panels_ * 64;
    p_.keys.each_run(sequence_, first_, count, [&](std::int64_t j, std::int64_t n, std::int64_t offset) {
      for (std::int64_t panel = 0; panel < panels_; ++panel)
        kernels_->product(static_cast<const bf16*>(p_.keys.data) + offset, p_.keys.row_stride, int(n),
                               query_ + (r * panels_ + panel) * panel_, int(p_.dims), dots_ + j * pitch + panel * 64,
                               pitch, false);
    });
    const float* weight = weights_ + r * pitch;
    for (std::int64_t j = 0; j < count; ++j) {
      float* dot = dots_ + j * pitch;
      for (std::int64_t h = 0; h < pitch; ++h) dot[h] = dot[h] < 0 ? 0 : dot[h];
      float lane[16] = {};
      for (std::int64_t h = 0; h < p_.heads; h += 16)
        kernels_->multiply_add(dot + h, weight + h, int(std::min<std::int64_t>(16, p_.heads - h)), lane);
      scores[j] = folded(lane);
    }
  }

 private:
  const Problem& p_;
  const Kernels* kernels_;
  std::int64_t panels_, panel_;
  bf16* query_;
  float *weights_, *dots_;
  std::int64_t sequence_ = 0, first_ = 0;  // of the block
};

/// There are no fp16 dot instructions: fp16 operands keep the default numerics.
bool fast(const Problem& p) { return p.other_numerics && p.type == DType::bf16; }

}  // namespace

std::size_t workspace(const Problem& p, int threads) {
  return fast(p) ? indexer::Selection<FastScorer>::workspace(p, threads)
                 : indexer::Selection<Scorer>::workspace(p, threads);
}

void run(const Problem& p, Call& call, std::byte* memory) noexcept {
  if (fast(p)) indexer::Selection<FastScorer>::run(p, call, memory);
  else indexer::Selection<Scorer>::run(p, call, memory);
}

}  // namespace dsakit::lightning_indexer_op
