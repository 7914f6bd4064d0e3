// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <vector>

#include "debug/case.hpp"

namespace dsakit::debug {

/// For each query row, padding included, the float64 score of each key that it sees, of a case of either indexer; empty
/// for other operators.
std::vector<std::vector<double>> index_scores(const Case&);

}  // namespace dsakit::debug
