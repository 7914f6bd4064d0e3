// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "debug/case.hpp"
#include "debug/golden_plan.hpp"

namespace dsakit::debug {

/// The call of a plan, every tensor filled as its data says: the same on every machine.
Case filled(const Plan&);

/// Why the call has nothing that its data is about, or "".
std::string refusal_of_data(const Plan&);

}  // namespace dsakit::debug
