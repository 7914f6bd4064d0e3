// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "dsakit/error.hpp"
#include "ops/fused_infer_attention_score_v2/cases.hpp"

namespace dsakit::fused_infer_attention_score_v2_op {

/// Refuses. What only strict refuses, portable computes; strict_alone: without being asked here, it would take long.
enum class Who { everybody, strict, strict_alone };

/// A call that one row of the validation table refuses.
struct Refusal {
  const char* row;
  Who who;
  Spec spec;
  Status status;
  const char* parameter;
  std::string position{};
  std::function<void(Case&, FusedInferAttentionScoreV2Args&, FusedInferAttentionScoreV2Outs&)> change{};
};

/// Fast path and reference refuse each of them at the levels it names, and leave the results as they are.
void expect_refused(const std::vector<Refusal>&);

/// Calls that both levels take, to be spoilt.
extern const Spec kDense, kSingle, kFolded, kPaged, kFoldedPaged, kAbsorbed, kSplit, kCodes, kFull, kMasked, kCausal;

template <class Change>
Spec but(Spec s, Change change) {
  change(s);
  return s;
}

}  // namespace dsakit::fused_infer_attention_score_v2_op
