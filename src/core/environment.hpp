// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace dsakit {

/// The whole number of at least 1 that a variable of the environment is; at most 2^63-1. 0 where it is absent or anything
/// else, a number with a unit for instance.
long long number_from_environment(const char* name);

}  // namespace dsakit
