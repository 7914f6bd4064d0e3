// SPDX-License-Identifier: Apache-2.0
#include "layer/router.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>

#include "ops/linear.hpp"

namespace dsakit {
namespace {

/// Larger first, then the lower number; NaN last.
struct Better {
  const float* value;

  bool operator()(std::int32_t a, std::int32_t b) const {
    const float x = value[a], y = value[b];
    const bool x_is_number = x == x, y_is_number = y == y;
    if (x_is_number != y_is_number) return x_is_number;
    return x_is_number && x != y ? x > y : a < b;
  }
};

/// The places of the best `count` of n values, ascending, at the front of `order`.
void find_best(const float* value, std::int64_t n, std::int64_t count, std::int32_t* order) {
  std::iota(order, order + n, 0);
  std::partial_sort(order, order + count, order + n, Better{value});
  std::sort(order, order + count);
}

/// The best two of a group together.
float group_score(const float* value, std::int64_t n) {
  std::int32_t first = 0, second = 1;
  const Better better{value};
  if (better(second, first)) std::swap(first, second);
  for (std::int32_t i = 2; i < n; ++i) {
    if (better(i, first)) second = first, first = i;
    else if (better(i, second)) second = i;
  }
  return value[first] + value[second];
}

/// What is not in one of the best groups cannot be chosen.
void leave_best_groups(const io::MoeConfig& m, const ChoiceScratch& s) {
  const std::int64_t size = m.n_routed_experts / m.n_group;
  for (std::int64_t g = 0; g < m.n_group; ++g) s.group[g] = group_score(s.choice + g * size, size);
  find_best(s.group, m.n_group, m.topk_group, s.groups);
  for (std::int32_t g = 0; g < m.n_group; ++g)
    if (!std::binary_search(s.groups, s.groups + m.topk_group, g))
      std::fill_n(s.choice + g * size, size, -std::numeric_limits<float>::infinity());
}

}  // namespace

void choose_experts(const io::MoeConfig& m, const float* logits, const float* bias, const ChoiceScratch& s,
                    std::int32_t* expert, float* weight) {
  const std::int64_t k = m.num_experts_per_tok;
  for (std::int64_t e = 0; e < m.n_routed_experts; ++e) {
    s.score[e] = float(1 / (1 + std::exp(-double(logits[e]))));
    s.choice[e] = s.score[e] + bias[e];
  }
  if (m.n_group > 1) leave_best_groups(m, s);
  find_best(s.choice, m.n_routed_experts, k, s.order);
  float sum = 0;
  for (std::int64_t i = 0; i < k; ++i) {
    expert[i] = s.order[i];
    weight[i] = s.score[expert[i]];
    sum += weight[i];
  }
  for (std::int64_t i = 0; i < k; ++i) {
    if (m.norm_topk_prob) weight[i] = weight[i] / (sum + 1e-20f);
    weight[i] = weight[i] * float(m.routed_scaling_factor);
  }
}

Router::Router(const io::Checkpoint& checkpoint, std::int64_t layer)
    : config_(checkpoint.config().moe), hidden_(checkpoint.config().hidden_size) {
  const std::string prefix = "model.layers." + std::to_string(layer) + ".mlp.gate.";
  const std::int64_t experts = config_.n_routed_experts;
  const auto gate = checkpoint.load_matrix_f32(prefix + "weight", experts, hidden_);
  bias_ = checkpoint.load_vector_f32(prefix + "e_score_correction_bias", experts);
  gate_ = io::AlignedArray<float>(std::size_t(Panels<float>::elements(hidden_, experts)));
  std::fill(gate_.begin(), gate_.end(), 0.0f);
  for (std::int64_t e = 0; e < experts; ++e)
    for (std::int64_t j = 0; j < hidden_; ++j) gate_[Panels<float>::at(hidden_, j, e)] = gate[e * hidden_ + j];
}

void Router::choose(Call& call, const float* x, std::int64_t rows, const Choices& to) const {
  const std::int64_t experts = config_.n_routed_experts, k = config_.num_experts_per_tok;
  const std::int64_t tiles = (rows + kTileRows - 1) / kTileRows;
  const Work work = product_work(double(rows), double(experts * hidden_), false);
  call.parallel_for(panels_of(experts) * tiles, work, [&](std::int64_t i, int) {
    alignas(64) float tile[kTileRows * kPanel];
    const std::int64_t panel = i / tiles, row = i % tiles * kTileRows, some = std::min(kTileRows, rows - row);
    const std::int64_t column = panel * kPanel, columns = std::min<std::int64_t>(kPanel, experts - column);
    call.kernels().product(x + row * hidden_, hidden_, int(some), gate_.data() + Panels<float>::panel(hidden_, panel),
                           int(hidden_), tile, kPanel, false);
    for (std::int64_t r = 0; r < some; ++r)
      std::copy_n(tile + r * kPanel, columns, to.logits + (row + r) * experts + column);
  });
  call.parallel_for(rows, {.elements = 20 * double(rows * experts)}, [&](std::int64_t i, int thread) {
    Carver mine(to.scratch + std::size_t(thread) * to.scratch_bytes);
    choose_experts(config_, to.logits + i * experts, bias_.data(), ChoiceScratch(config_, mine), to.expert + i * k,
                   to.weight + i * k);
  });
}

}  // namespace dsakit
