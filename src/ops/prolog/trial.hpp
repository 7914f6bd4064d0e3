// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <vector>

#include "core/check.hpp"
#include "ops/prolog/indexer.hpp"

namespace dsakit::prolog {

/// Value checking refuses scales that leave the range of fp16, and it refuses before anything is written. So the
/// indexer prolog runs once on memory of its own: problem() is the given one with other places to write to.
class Trial {
 public:
  explicit Trial(const IndexerProblem& given);
  const IndexerProblem& problem() const { return mine_; }
  /// After problem() has run.
  void check_scales(const Check&, const char* q_scale, const char* k_scale_cache) const;

 private:
  const IndexerProblem& given_;
  IndexerProblem mine_;
  std::vector<std::int8_t> q_codes_, k_codes_;
  std::vector<f16> q_scales_, weights_;
  std::vector<float> k_scales_;     // room for either dtype
  std::vector<std::int64_t> rows_;  // token t is stored in row t, or not at all
};

}  // namespace dsakit::prolog
