// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <vector>

#include "dsakit/probability_rounding.hpp"
#include "ops/attention/sparse.hpp"

namespace dsakit::attention::sparse {

using Numbers = std::vector<double>;

/// Row `row` of the keys in double; `as_on_device`: dequantised codes are rounded to the query's type.
struct Key {
  Numbers latent, rope;
};
Key key_of(const Problem&, std::int64_t row, bool as_on_device);

/// `count` elements of a row of 16-bit floats in double.
Numbers read(DType, const Rows&, std::int64_t row, int count);

/// The formula in double for query row t, rounded once to each result; with a rounding, or that of the
/// problem, the documented device forms.
void reference(const Problem&, std::int64_t t, const Token&, dsakit::reference::ProbabilityRounding);

}  // namespace dsakit::attention::sparse
