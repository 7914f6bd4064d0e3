// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "debug/compare.hpp"
#include "debug/edit.hpp"

namespace dsakit::debug {

/// What may have been recorded differently from what it means: a tensor of the target as it is read otherwise.
struct Reread {
  Pair& pair;
  std::deque<Stored>& memory;
};

/// One common mistake. Either the call is edited and run again, or (O) the target is read otherwise; both return false
/// where there is nothing to change.
struct Change {
  std::string id;    // "L10": the class is its first letter
  std::string text;  // goes on from "agrees if .."
  std::function<bool(Edit&)> edit{};
  std::function<bool(const Reread&)> reread{};
};

/// Every change that may be asked of a call, in the order in which they are tried; nothing is run.
std::vector<Change> changes_of(const Arguments&);

/// Mistakes of the table in docs/debugging.md that no change stands for yet.
const std::vector<std::string>& untried_changes();

// The parts of the table, one a file.
using Changes = std::vector<Change>;
void add_layout_changes(const Arguments&, Changes&);        // L1 .. L10
void add_quantisation_changes(const Arguments&, Changes&);  // Q1 .. Q3
void add_argument_changes(const Arguments&, Changes&);      // A1 .. A6, N1

}  // namespace dsakit::debug
