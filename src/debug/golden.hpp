// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "debug/case.hpp"

// Cases that are made up: sizes, modes and kinds of numbers become a call, which the reference computes.
namespace dsakit::debug {

/// NAME, VALUE: of an axis, an attribute, a tensor, or data, fill, pages, seed, taps. docs/debugging.md
using Settings = std::vector<std::pair<std::string, std::string>>;

/// The call that the settings describe, without results. INVALID_ARGUMENT: a name or value that is none.
Case made_call(std::string_view op, const Settings&);

/// The same with the results of the reference. Throws what the operator refuses.
Case golden(std::string_view op, const Settings&);

/// Settings for each combination of values "a,b"; commas inside brackets belong to a value.
std::vector<Settings> combinations(const Settings&);

}  // namespace dsakit::debug
