// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "debug/case.hpp"
#include "debug/figures.hpp"
#include "debug/left_over.hpp"
#include "dsakit/context.hpp"

// `dsakit explain`: why a recorded call has the result it has. docs/debugging.md
namespace dsakit::debug {

struct ExplainOptions {
  std::string classes = "LQAN";  // of changes that may be tried
  bool always = false;           // also where the call agrees
  std::int64_t tries = 200;      // runs
  bool pairs = false;            // where no change is named: pairs of the nearest ten
  std::int64_t row = -1;         // the row to look at, in place of the worst and some between
  Context* context = nullptr;    // null: the default one
  struct Limits {                // beyond which codes have lost too much
    double sqnr = 20;            // dB of a row
    double below = 10;           // dB below the median of the rows
    double recall = 0.95;        // of the keys that unquantised operands select
  } limits{};
};

/// A figure with its unit, "1.2 roundings"; infinite where shapes or numbers cannot be compared.
std::string spelled(double figure, Measure);

/// How far one result of the target is, in the words of its measure (left_over.hpp).
struct Distance {
  std::string key;
  Measure measure;
  double figure;
  bool departs;
};

/// A change beside what it leaves over.
struct Tried {
  std::string id, text;
  std::vector<std::string> twins;  // other changes with the same results: "text (id)"
  std::vector<std::string> outputs;
  double before = 0, after = 0;  // of the output that is furthest after the change
  std::int64_t rows_agreeing = 0;
  Left::Row keys;  // of selections, summed over the rows looked at
};

struct Explanation {
  std::string verdict, side, target;          // target: the group that was judged, "out" or "ref"
  std::string refusal;                        // of the call, now
  std::vector<Distance> outputs;              // as called
  std::vector<std::int64_t> rows;             // looked at first
  Left::Row keys;                             // as called
  std::vector<std::string> lints;             // what the inputs show by themselves
  std::optional<SelectionFigures> selection;  // of the target's list in the first row looked at
  std::optional<AttentionFigures> attention;  // of the first row looked at; not of caches that are partly stored
  std::vector<CodeFigures> codes;             // of arguments and results with scales
  std::string loss;                           // what is beyond the limits, or ""
  std::vector<Tried> findings;                // named, least left over first
  std::vector<Tried> nearest;                 // if none is: the best three
  std::vector<std::string> blind;             // changes that do not show in this call
  std::vector<std::string> untried;           // for want of tries
  std::vector<std::string> missing;           // mistakes that no change stands for
  std::int64_t tried = 0;
};

/// The same text for the same case, options and machine. Throws what is wrong with the case.
Explanation explain(const Case&, const ExplainOptions& = {});

}  // namespace dsakit::debug
