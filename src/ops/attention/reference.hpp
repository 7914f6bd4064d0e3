// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "dsakit/probability_rounding.hpp"
#include "ops/attention/sparse.hpp"

namespace dsakit::attention::sparse {

/// The formula in double for query row t, rounded once to each result; with a rounding, or that of the
/// problem, the documented device forms.
void reference(const Problem&, std::int64_t t, const Token&, dsakit::reference::ProbabilityRounding);

}  // namespace dsakit::attention::sparse
