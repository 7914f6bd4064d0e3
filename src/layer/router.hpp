// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "io/checkpoint.hpp"
#include "run/call.hpp"

namespace dsakit {

/// Memory of one choice.
struct ChoiceScratch {
  float *score, *choice, *group;
  std::int32_t *order, *groups;

  ChoiceScratch(const io::MoeConfig& m, Carver& carver)
      : score(carver.take<float>(m.n_routed_experts)),
        choice(carver.take<float>(m.n_routed_experts)),
        group(carver.take<float>(m.n_group)),
        order(carver.take<std::int32_t>(m.n_routed_experts)),
        groups(carver.take<std::int32_t>(m.n_group)) {}
};

/// Which experts a token meets: from the logits of all experts, with the bias that counts for choosing only. Scores are
/// sigmoids in float64, rounded once; of the groups with the best two scores the topk_group best are kept, then the
/// num_experts_per_tok best experts in them: larger first, then the lower number; NaN last. `expert`, ascending, and
/// `weight`: num_experts_per_tok each.
void choose_experts(const io::MoeConfig&, const float* logits, const float* bias, const ChoiceScratch&,
                    std::int32_t* expert, float* weight);

/// The experts of `rows` tokens.
struct Choices {
  float *logits, *weight;  // [rows, E], [rows, num_experts_per_tok]
  std::int32_t* expert;    // [rows, num_experts_per_tok], ascending
  std::byte* scratch;      // [threads]
  std::size_t scratch_bytes;

  Choices(const io::MoeConfig& m, std::int64_t rows, int threads, Carver& carver)
      : logits(carver.take<float>(rows * m.n_routed_experts)),
        weight(carver.take<float>(rows * m.num_experts_per_tok)),
        expert(carver.take<std::int32_t>(rows * m.num_experts_per_tok)),
        scratch_bytes(bytes_of<ChoiceScratch>(m)) {
    scratch = carver.take<std::byte>(std::int64_t(scratch_bytes) * threads);
  }
};

class Router {
 public:
  Router(const io::Checkpoint&, std::int64_t layer);

  /// Of x [rows, He], fp32.
  void choose(Call&, const float* x, std::int64_t rows, const Choices&) const;
  std::size_t bytes() const { return gate_.size() * sizeof(float) + bias_.size() * sizeof(float); }

 private:
  io::MoeConfig config_;
  std::int64_t hidden_;
  io::AlignedArray<float> gate_;  // panels of fp32
  io::AlignedArray<float> bias_;
};

}  // namespace dsakit
