// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "core/view.hpp"
#include "dsakit/dynamic_block_quant.hpp"
#include "run/call.hpp"

namespace dsakit::dynamic_block_quant_op {

struct Problem {
  Rows x, y, scale;
  std::int64_t rows, width, block;
  float min_scale;
};

Problem check(const DynamicBlockQuantArgs&, const DynamicBlockQuantOuts&);
void run(const Problem&, Call&);

}  // namespace dsakit::dynamic_block_quant_op
