// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "debug/attended.hpp"
#include "debug/index_scores.hpp"

// What a call's numbers look like, beside whether they are right.
namespace dsakit::debug {

/// How a row's selection stands among the scores of all keys that it sees.
struct SelectionFigures {
  std::int64_t row = 0, visible = 0, selected = 0;
  std::int64_t heads = 0, count = 0;        // of the query; entries of a list
  double cut = 0, next = 0;                 // the worst score selected, the best that is not
  std::int64_t tied = 0, tied_kept = 0;     // keys worth the cut
  std::int64_t zero = 0;                    // keys worth exactly 0
  std::int64_t near = 0, near_percent = 0;  // within 2^-10, 1 % of the cut
  double sink = 0, recent = 0;              // share of the list: first 4 positions, last 64
  /// Keys by their distance from the cut, over the cut: below 2^-10, 2^-8, .. 1, and beyond.
  std::array<std::int64_t, 7> margins{};
  struct Moved {
    std::int64_t position = 0, page = -1, recorded = -1, computed = -1;  // ranks; -1: in the other list only
    double score = 0;
  };
  std::vector<Moved> moved{};      // at most ten, the furthest from the cut first
  std::optional<double> recall{};  // of the keys that operands before quantisation select, by `float`
  std::optional<double> precision{};
};

/// `list`: positions of the row, -1 where there is none. `computed`: as the call has them now.
SelectionFigures selection_figures(const IndexScores&, std::int64_t row, const Integers& list,
                                   const Integers& computed);

/// Positions of the `count` best scores of a row.
Integers best_of(const IndexScores&, std::int64_t row, std::int64_t count);

/// How the mass of a dense softmax lies, of one row.
struct AttentionFigures {
  std::int64_t row = 0, visible = 0, listed = 0;
  double mass = 0;                  // of the list, mean of the heads
  double best = 0, best_heads = 0;  // of the best list as long: one for all heads, one for each
  double first = 0, last = 0;       // of the first 4 positions, the last 64
  struct Head {
    std::int64_t head = 0;
    double mass = 0, effective = 0;  // exp(entropy): keys that count
  };
  std::vector<Head> worst{};  // at most three, the least mass first
  double effective = 0;       // median of the heads
};
AttentionFigures attention_figures(const Attended&, std::int64_t row);

/// Codes with a scale for each group of neighbours, beside what they were, if that is known.
struct CodeFigures {
  std::string name;
  std::int64_t groups = 0;
  double saturated = 0, zeros = 0;           // share of the codes
  std::array<std::int64_t, 16> histogram{};  // of -128 .. 127, 16 codes each
  std::int64_t outlier = -1;                 // group of the largest scale, if that is above 8 x the median
  double outlier_ratio = 0;
  struct Row {
    std::int64_t row = 0;
    double sqnr = 0, without = 0;  // dB; without its largest channel
    std::int64_t channel = 0;
  };
  std::vector<Row> worst{};  // at most five
  double median = 0;         // dB
  bool has_loss() const { return !worst.empty(); }
};
/// `before`: numbers of the shape of the codes, or nothing; `smooth`: factors of their columns, or nothing.
CodeFigures code_figures(const std::string& name, const Tensor& codes, const Tensor& scales, const Tensor& before,
                         const Tensor& smooth);

}  // namespace dsakit::debug
