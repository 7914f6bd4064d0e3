// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace dsakit::debug {

/// The value of an attribute as a case has it; monostate: null.
using Attribute = std::variant<std::monostate, std::int64_t, double, bool, std::string, std::vector<std::int64_t>>;

}  // namespace dsakit::debug
