// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string_view>
#include <vector>

namespace dsakit {

/// A step inside of an operator that can be looked at (run/taps.hpp).
struct Tap {
  std::string_view step;   // "3.query_norm": its number on the page of the operator, and a name
  std::string_view dtype;  // as it is stored; codes as int8
  std::string_view shape;
  std::string_view meaning;
};

/// Those of an operator, in the order of its steps; none of operators that have only one.
const std::vector<Tap>& taps_of(std::string_view op);

}  // namespace dsakit
