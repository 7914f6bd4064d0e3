// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>

#include "dsakit/fused_infer_attention_score_v2.hpp"
#include "ops/attention/dense.hpp"
#include "ops/fused_infer_attention_score_v2/sizes.hpp"
#include "run/call.hpp"

namespace dsakit::fused_infer_attention_score_v2_op {

/// Of sequences without keys in single-token decode: the fp32 value nearest to -3.4e38.
inline constexpr float kNoKeysInDecode = -3.4e38f;

struct Problem {
  Sizes sizes;
  attention::dense::Problem attention;  // but for its sequences

  /// Sequence b as the kernels see it.
  attention::dense::Sequence sequence(std::int64_t b) const;
};

/// All of docs/operators/fused_infer_attention_score_v2.md, "Errors"; throws before anything is written.
Problem check(const FusedInferAttentionScoreV2Args&, const FusedInferAttentionScoreV2Outs&);
/// Arguments that were checked, as addresses and strides.
Problem resolve(const FusedInferAttentionScoreV2Args&, const FusedInferAttentionScoreV2Outs&, const Sizes&);
/// Value checking: finite numbers wherever the call looks, and a stencil that is the triangle.
void check_values(const FusedInferAttentionScoreV2Args&, const Problem&);

std::size_t workspace(const Problem&, const Call&);
void run(const Problem&, Call&, std::byte* memory) noexcept;

}  // namespace dsakit::fused_infer_attention_score_v2_op
