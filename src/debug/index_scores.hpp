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
  /// As if nothing had been quantised: rows of these, which lie as the call's do. Absent ones are the call's.
  IndexScores(const Arguments&, const Tensor& query, const Tensor& key, const Tensor& weights);
  ~IndexScores();

  /// Of all queries, padding included.
  std::int64_t rows() const;
  /// Keys that query row `row` sees.
  std::int64_t visible(std::int64_t row) const;
  /// Of a visible key: what it is worth, and the page it lies in (-1 without pages).
  double score(std::int64_t row, std::int64_t key) const;
  std::int64_t page(std::int64_t row, std::int64_t key) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dsakit::debug
