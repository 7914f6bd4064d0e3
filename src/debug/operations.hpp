// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "debug/arguments.hpp"

namespace dsakit::debug {

/// Multiplications and additions of the products of an accepted call: of visible pairs of a query row and a key, of
/// rows and weights. 0 for operators that multiply nothing but elements.
double operations_of(const Arguments&);

}  // namespace dsakit::debug
