// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "checkpoint/parts.hpp"
#include "layer/mode.hpp"
#include "parallel/cost.hpp"

namespace dsakit {

/// The work of a model in a mode, to which weights are added one by one.
ModelWork empty_work(const io::ModelConfig&, Mode);
/// How a weight lies in memory.
struct WeightForm {
  double bytes = 2;  // of a parameter
  bool i8 = false;   // multiplies in int8
};
/// Tensors that take no part in a step are passed over.
void add_weight(ModelWork&, const io::ModelConfig&, const ModelTensor&, const WeightForm&);

}  // namespace dsakit
