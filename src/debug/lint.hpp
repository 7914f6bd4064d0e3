// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <vector>

#include "debug/bind.hpp"

namespace dsakit::debug {

/// Signs of a mistake that the inputs show by themselves, one sentence each; nothing is run.
std::vector<std::string> lints_of(const Bound&);

}  // namespace dsakit::debug
