// SPDX-License-Identifier: Apache-2.0
#include "dsakit/lightning_indexer.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/panel.hpp"
#include "ops/direct.hpp"
#include "ops/indexer/run.hpp"
#include "ops/lightning_indexer/problem.hpp"

namespace dsakit {
namespace lightning_indexer_op {
namespace {

using indexer::Plan;

/// The lanes of the canonical head sum in halves: 8, 4, 2, 1.
float folded(float* lane) {
  for (int half = kHeadBlock / 2; half > 0; half /= 2)
    for (int l = 0; l < half; ++l) lane[l] += lane[l + half];
  return lane[0];
}

/// fp32 keys, widened once per block for all rows of the group.
class Scorer {
 public:
  static std::int64_t block(const Problem& p) { return std::clamp<std::int64_t>((1 << 15) / p.dims, 16, 512); }

  Scorer(const Problem& p, const Kernels& kernels, const Plan& plan, Carver& carver)
      : p_(p),
        kernels_(kernels),
        values_(carver.take<float>(plan.group * Layout::elements(p.heads, p.dims))),
        weights_(carver.take<float>(plan.group * Layout::heads(p.heads))),
        head_(carver.take<float>(p.dims)),
        keys_(carver.take<float>(plan.block * p.dims)) {}

  void take_query(std::int64_t r, std::int64_t row) {
    float* values = values_ + r * Layout::elements(p_.heads, p_.dims);
    for (std::int64_t h = 0; h < Layout::heads(p_.heads); ++h) {
      const bool real = h < p_.heads;
      weights_[r * Layout::heads(p_.heads) + h] = real ? p_.weights.at(row, h) : 0;
      if (real) widen(p_.query.offset(row) + h * p_.head_stride, p_.query.tensor.data, p_.dims, head_);
      else std::fill_n(head_, p_.dims, 0.f);
      float* to = values + Layout::at(p_.dims, h, 0);
      for (std::int64_t d = 0; d < p_.dims; ++d) to[Layout::at(p_.dims, 0, d)] = head_[d];
    }
  }

  void take_keys(const SequenceRows& s, std::int64_t first, std::int64_t count) {
    const std::int64_t dims = p_.dims, stride = p_.keys.row_stride;
    p_.keys.each_run(s.index, s.first_key + first, count, [&](std::int64_t j, std::int64_t n, std::int64_t offset) {
      if (stride == dims) return widen(offset, p_.keys.data, n * dims, keys_ + j * dims);
      for (std::int64_t i = 0; i < n; ++i) widen(offset + i * stride, p_.keys.data, dims, keys_ + (j + i) * dims);
    });
    infinite_ = Layout::heads(p_.heads) != p_.heads && std::isinf(kernels_.max_abs(keys_, count * dims));
  }

  void score(std::int64_t r, std::int64_t count, float* scores) {
    const IndexQueryF32 query{values_ + r * Layout::elements(p_.heads, p_.dims), weights_ + r * Layout::heads(p_.heads),
                              int(Layout::blocks(p_.heads)), int(p_.dims)};
    if (infinite_) score_real_heads(query, count, scores);
    else kernels_.index_scores(query, keys_, p_.dims, int(count), scores);
  }

 private:
  void widen(std::int64_t offset, const void* data, std::int64_t n, float* to) const {
    if (p_.type == DType::bf16) kernels_.widen(static_cast<const bf16*>(data) + offset, n, to);
    else kernels_.widen(static_cast<const f16*>(data) + offset, n, to);
  }

  /// A missing head would turn an infinite key into 0 * inf = NaN, so this leaves them out.
  void score_real_heads(const IndexQueryF32& query, std::int64_t count, float* scores) const {
    const float* key = keys_;
    for (std::int64_t j = 0; j < count; ++j, key += p_.dims) {
      float lane[kHeadBlock] = {};
      for (std::int64_t h = 0; h < p_.heads; ++h) {
        const float* q = query.values + Layout::at(p_.dims, h, 0);
        float dot = 0;
        for (std::int64_t d = 0; d < p_.dims; ++d) dot = std::fma(q[Layout::at(p_.dims, 0, d)], key[d], dot);
        float& sum = lane[h % kHeadBlock];
        sum = std::fma(query.weight[h], dot < 0 ? 0 : dot, sum);
      }
      scores[j] = folded(lane);
    }
  }

  using Layout = IndexQueryLayout<float>;
  const Problem& p_;
  const Kernels& kernels_;
  float *values_, *weights_, *head_, *keys_;
  bool infinite_ = false;  // the block holds an infinite key, and there are missing heads
};

/// "fast": the keys are the rows of a bf16 matrix product with the heads as columns. The head sum stays canonical.
class FastScorer {
 public:
  static std::int64_t block(const Problem&) { return 256; }

  FastScorer(const Problem& p, const Kernels& kernels, const Plan& plan, Carver& carver)
      : p_(p),
        kernels_(kernels),
        columns_(Layout::columns(p.heads)),
        elements_(Layout::elements(p.dims, p.heads)),
        query_(carver.take<bf16>(plan.group * elements_)),
        weights_(carver.take<float>(plan.group * columns_)),
        dots_(carver.take<float>(plan.block * columns_)) {}

  void take_query(std::int64_t r, std::int64_t row) {
    bf16* panels = query_ + r * elements_;
    std::fill_n(panels, elements_, bf16{0});
    for (std::int64_t h = 0; h < p_.heads; ++h) {
      const bf16* q = p_.head<bf16>(row, h);
      bf16* to = panels + Layout::at(p_.dims, 0, h);
      for (std::int64_t d = 0; d < p_.dims; ++d) to[Panel<bf16>::at(d, 0)] = q[d];
      weights_[r * columns_ + h] = p_.weights.at(row, h);
    }
  }

  void take_keys(const SequenceRows& s, std::int64_t first, std::int64_t) {
    sequence_ = s.index, first_ = s.first_key + first;
  }

  void score(std::int64_t r, std::int64_t count, float* scores) {
    p_.keys.each_run(sequence_, first_, count, [&](std::int64_t j, std::int64_t n, std::int64_t offset) {
      for (std::int64_t panel = 0; panel < Layout::count(p_.heads); ++panel)
        kernels_.product(static_cast<const bf16*>(p_.keys.data) + offset, p_.keys.row_stride, int(n),
                              query_ + r * elements_ + Layout::panel(p_.dims, panel), int(p_.dims),
                              dots_ + j * columns_ + panel * kPanel, columns_, false);
    });
    const float* weight = weights_ + r * columns_;
    for (std::int64_t j = 0; j < count; ++j) {
      float* dot = dots_ + j * columns_;
      for (std::int64_t h = 0; h < columns_; ++h) dot[h] = dot[h] < 0 ? 0 : dot[h];
      float lane[kHeadBlock] = {};
      for (std::int64_t h = 0; h < p_.heads; h += kHeadBlock)
        kernels_.multiply_add(dot + h, weight + h, int(std::min<std::int64_t>(kHeadBlock, p_.heads - h)), lane);
      scores[j] = folded(lane);
    }
  }

 private:
  using Layout = Panels<bf16>;
  const Problem& p_;
  const Kernels& kernels_;
  std::int64_t columns_, elements_;
  bf16* query_;
  float *weights_, *dots_;
  std::int64_t sequence_ = 0, first_ = 0;  // of the block
};

/// There are no fp16 dot instructions: fp16 operands keep the default numerics.
bool fast(const Problem& p) { return p.other_numerics && p.type == DType::bf16; }

}  // namespace

void run(const LightningIndexerArgs& args, const LightningIndexerOuts& outs, std::uint64_t* candidates,
         Context& context) {
  LightningIndexerOuts given = outs;
  Problem p = check(args, given, false, context.check_values());
  p.candidates = candidates;
  run(p, context);
}

void run(const Problem& p, Context& context) {
  indexer::warn("lightning_indexer", p, context);
  if (fast(p)) indexer::Selection<FastScorer>::run("lightning_indexer", p, context);
  else indexer::Selection<Scorer>::run("lightning_indexer", p, context);
}

}  // namespace lightning_indexer_op

void direct::lightning_indexer(const LightningIndexerArgs& args, const LightningIndexerOuts& outs, Context& context) {
  lightning_indexer_op::run(args, outs, nullptr, context);
}

}  // namespace dsakit
