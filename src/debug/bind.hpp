// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <deque>
#include <string_view>

#include "debug/arguments.hpp"
#include "debug/case.hpp"

namespace dsakit::debug {

/// A case as a call: names and positions are parameters, views share memory, what the operator writes is a copy, and
/// partly stored caches are pools of the pages that the call looks at, with its tables and slots renumbered.
struct Bound {
  Arguments arguments;
  ByName<Integers> pools;  // of a parameter that is one: the numbers its pages had
  std::deque<Stored> memory;
};

/// `strides`: tensors get those of their producer. Throws CASE_PAGES, and what any call with reserved parameters gets.
Bound bind(const Case&, bool strides = false);

/// Whether a call may write this argument: in place, or as the memory of the output <name>_out.
bool is_updated(const Operator&, const Parameter&);

/// The arguments of a call that says nothing: defaults.
Arguments default_arguments(const Operator&);

}  // namespace dsakit::debug
