// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "debug/compare.hpp"
#include "debug/edit.hpp"
#include "ops/deviation.hpp"

namespace dsakit::debug {

/// What may have been recorded differently from what it means: a tensor of the target as it is read otherwise.
struct Reread {
  Pair& pair;
  std::deque<Stored>& memory;
};

/// All results at once, recorded and computed; `call` as it was run.
struct Restated {
  std::vector<Pair>& pairs;
  std::deque<Stored>& memory;
  const Arguments& call;
};

/// One common mistake, made in one of four ways. Functions return false where there is nothing to change.
struct Change {
  std::string id;                                   // "L10": the class is its first letter
  std::string text;                                 // goes on from "agrees if .."
  std::function<bool(Edit&)> edit{};                // the call is edited and run again
  std::function<bool(const Reread&)> reread{};      // a tensor of the target means something else
  std::function<bool(const Restated&)> restate{};   // so do several, or results are computed here
  std::optional<reference::Deviation> deviation{};  // the reference is run, and departs so
  double work = 0;                                  // products in float64, of what no kernel computes
};

/// Every change that may be asked of a call, in the order in which they are tried; nothing is run.
std::vector<Change> changes_of(const Arguments&);

/// Mistakes of the table in docs/debugging.md that cannot be made of a call of this operator.
std::vector<std::string> impossible_changes(const Operator&);

/// Elements of paged caches from `modulus` on are read from their beginning.
bool wrap_addresses(Edit&, std::int64_t modulus);

/// Products that the reference of a prolog or quantiser takes.
double reference_work(const Arguments&);

// The parts of the table, one a file.
using Changes = std::vector<Change>;
void add_layout_changes(const Arguments&, Changes&);        // L1 .. L10
void add_cache_changes(const Arguments&, Changes&);         // of them L6 .. L8
void add_quantisation_changes(const Arguments&, Changes&);  // Q1 .. Q3
void add_argument_changes(const Arguments&, Changes&);      // A1 .. A6
void add_numeric_changes(const Arguments&, Changes&);       // N1, N2

}  // namespace dsakit::debug
