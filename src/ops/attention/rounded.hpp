// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>

#include "ops/attention/sparse.hpp"

// The same attention with the intermediate roundings of the documents, for people who compare with a device or with its
// golden: keys in the query's type, and probabilities as Problem::rounding says. Slower than sparse.cc, and no nearer
// to the formula.
namespace dsakit::attention::sparse {

std::size_t workspace_rounded(const Problem&, int threads);
/// Bits depend on nothing but the row.
void run_rounded(const Problem&, const Token* token, Call&, std::byte* memory) noexcept;

}  // namespace dsakit::attention::sparse
