// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "debug/arguments.hpp"

namespace dsakit::debug {

/// What an indexer's keys are worth, in float64.
class IndexScores {
 public:
  explicit IndexScores(const Arguments&);  // of an accepted call
  ~IndexScores();

  /// Keys that query row `row` sees.
  std::int64_t visible(std::int64_t row) const;
  /// Of a visible key.
  double score(std::int64_t row, std::int64_t key) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dsakit::debug
