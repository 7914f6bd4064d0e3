// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "debug/case.hpp"
#include "debug/golden_plan.hpp"

namespace dsakit::debug {

/// The call of a plan, every tensor filled as its data says: the same on every machine.
Case filled(const Plan&);

/// What V1..V19 are, and whether an operator has what they are about: "" or why not.
std::string refusal_of_data(const Plan&);

}  // namespace dsakit::debug
