// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <optional>
#include <string>

#include "debug/attribute.hpp"
#include "io/json.hpp"

// Values of a case as its metadata spells them.
namespace dsakit::debug {

std::string json_of(const Attribute& value);
/// Nothing for what no attribute is: an object, a fraction in a list, a number that no double holds.
std::optional<Attribute> attribute_of(const io::Json& value);

}  // namespace dsakit::debug
