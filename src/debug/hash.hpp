// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#include "core/hash.hpp"
#include "debug/case.hpp"

namespace dsakit::debug {

/// "weight-0123456789abcdef.safetensors": the type, shape and bytes in a name.
std::string sibling_name(const Stored&);

}  // namespace dsakit::debug
