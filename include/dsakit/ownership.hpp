// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cstdint>

namespace dsakit {

/// Which rank holds which positions of a sequence: `interleave` of them in turn. A rank numbers its own from 0 in their
/// order, so that ties between its positions stay in the order of all.
struct Ownership {
  std::int64_t ranks = 1, rank = 0, interleave = 1;

  std::int64_t owner(std::int64_t x) const { return x / interleave % ranks; }
  bool owns(std::int64_t x) const { return owner(x) == rank; }
  /// The number of x with its owner.
  std::int64_t local(std::int64_t x) const { return x / (ranks * interleave) * interleave + x % interleave; }
  /// Position of this rank's number j.
  std::int64_t global(std::int64_t j) const {
    return j / interleave * (ranks * interleave) + rank * interleave + j % interleave;
  }
  /// How many positions below x are rank r's.
  std::int64_t below(std::int64_t x, std::int64_t r) const {
    const std::int64_t round = ranks * interleave;
    return x / round * interleave + std::clamp<std::int64_t>(x % round - r * interleave, 0, interleave);
  }
  std::int64_t below(std::int64_t x) const { return below(x, rank); }
};

}  // namespace dsakit
