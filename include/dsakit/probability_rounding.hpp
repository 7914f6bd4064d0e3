// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace dsakit::reference {

/// Rounding of the softmax probabilities before they meet the values in the references of sparse attention. `none` is
/// the contract. The other two are the documented device forms, for comparison, with keys and probabilities in the
/// dtype of the query: rounded after normalisation, or unnormalised in tiles of 2048 list positions.
enum class ProbabilityRounding { none, normalised, unnormalised_tile2048 };

}  // namespace dsakit::reference
