// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>

#include "debug/case.hpp"

namespace dsakit::debug {

/// A number by which bytes are told apart; not against people who mean harm.
std::uint64_t hash_of(const void* bytes, std::size_t count, std::uint64_t seed = 0);

/// "weight-0123456789abcdef.safetensors": the type, shape and bytes in a name.
std::string sibling_name(const Stored&);

}  // namespace dsakit::debug
