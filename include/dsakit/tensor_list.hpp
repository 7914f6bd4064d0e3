// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <span>

#include "dsakit/tensor.hpp"

namespace dsakit {

/// Several tensors in somebody else's array, for a parameter that is a list. An empty one is "not given".
using TensorList = std::span<const Tensor>;

}  // namespace dsakit
