// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <vector>

#include "dsakit/dsakit.h"

namespace dsakit::capi {

/// What dsakit_operator_at() answers, in the order of ops.inc; the texts live as long as the process.
const std::vector<const dsakit_operator*>& described();

}  // namespace dsakit::capi
