// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <map>
#include <memory>
#include <string>

#include "dsakit/tensor.hpp"
#include "layer/weights.hpp"

namespace dsakit {

/// bf16, f16 or f32, of any strides.
using NamedTensors = std::map<std::string, Tensor>;

/// Tensors in memory. They have to last as long as they are in the map.
std::unique_ptr<WeightSource> tensor_source(std::shared_ptr<const NamedTensors> tensors);

}  // namespace dsakit
