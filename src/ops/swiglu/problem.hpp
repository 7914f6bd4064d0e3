// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "core/view.hpp"
#include "dsakit/swiglu.hpp"
#include "run/call.hpp"

namespace dsakit::swiglu_op {

struct Problem {
  Rows gate, value, y;  // of one shape: the halves of self, and the result
  std::int64_t rows, width;
};

Problem check(const SwigluArgs&, const SwigluOuts&);
void run(const Problem&, Call&);

}  // namespace dsakit::swiglu_op
