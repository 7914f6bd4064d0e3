// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "dsakit/ownership.hpp"
#include "ops/attention/sparse.hpp"
#include "parallel/channel.hpp"

// Attention over latent rows that lie on several ranks. Either the selected rows travel to all ranks, each of which attends to
// them for its own heads in the order of the lists (the bits of one process), or each rank attends to its own positions for all
// heads, and what comes out is merged in the order of the ranks.
namespace dsakit::shards {

namespace sparse = attention::sparse;

struct Attention {
  Conversation& talk;
  Group& group;                      // of those that have the rows
  Ownership owner;                   // of positions
  sparse::Problem problem;           // of this rank's heads; keys are this rank's rows
  std::vector<sparse::Token> tokens;  // of positions of whole sequences; the same on all ranks

  /// Cached bytes of a token.
  std::size_t row_bytes() const;
  /// How many tokens at a time, so that the rows that travel take 256 MiB at most.
  std::int64_t step() const;
};

/// The rows that tokens from .. to - 1 attend to, on all ranks: exchange "attention".
class FetchedRows {
 public:
  FetchedRows(const Attention&, std::int64_t from, std::int64_t to);
  std::int64_t count() const { return count_; }
  /// Attention of those tokens, of this rank's heads.
  void attend(const char* op, Context&) const;

 private:
  const Attention& all_;
  std::int64_t from_, to_, count_ = 0;
  std::vector<std::int32_t> places_;      // of every list position of the tokens; count_: it is masked
  std::vector<std::byte> memory_[3];      // latents, ropes, scales
};

/// What attention to some of the positions gives, of rows and heads: [rows * heads], likewise, [rows * heads, Dv].
struct PartialResults {
  float *max, *sum, *values;
};
/// Of those that this rank has.
void attend_own(const char* op, const sparse::Problem&, std::span<const sparse::Token>, const Ownership&,
                const PartialResults&, Context&);

/// One rank's part of a row and head.
struct Part {
  float max, sum;
  const float* values;
};
/// The parts of all ranks, ascending, as one row and head; parts without positions (sum 0) weigh nothing, `sink` as one more
/// logit without a value. scratch: Dv floats, where the values are afterwards.
Part merged(std::span<const Part>, float sink, std::int64_t latent, float* scratch);

/// Parts of attention that ranks exchange. heads: how many each rank has, in their order.
class SharedParts {
 public:
  /// Exchange "queries".
  SharedParts(const Attention&, std::vector<std::int64_t> heads);
  /// This rank's positions, all heads.
  void attend(const char* op, Context&);
  /// Exchange "attention", and the results of this rank's heads.
  void merge();

 private:
  std::int64_t tokens() const { return std::int64_t(all_.tokens.size()); }

  const Attention& all_;
  const std::vector<std::int64_t> heads_;
  const std::int64_t heads_of_all_, latent_ = all_.problem.latent;
  std::vector<std::byte> queries_;  // [rows, heads of all, latent + rope]
  std::vector<float> max_, sum_, values_;  // PartialResults
};

}  // namespace dsakit::shards
