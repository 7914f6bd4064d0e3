// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "ops/convert.hpp"
#include "ops/dynamic_block_quant/problem.hpp"

namespace dsakit::dynamic_block_quant_op {
namespace {

constexpr std::int64_t kRows = 8;  // per task

}  // namespace

void run(const Problem& p, Call& call) {
  call.parallel_for((p.rows + kRows - 1) / kRows, {.elements = double(p.rows * p.width)}, [&](std::int64_t task, int) {
    with_float(p.x.tensor.dtype, [&]<class T>() {
      for (std::int64_t r = task * kRows, end = std::min(r + kRows, p.rows); r < end; ++r)
        call.kernels().quantize_blocks(p.x.row<const T>(r), p.width, p.block, p.min_scale, p.y.row<std::int8_t>(r),
                                       p.scale.row<float>(r));
    });
  });
}

}  // namespace dsakit::dynamic_block_quant_op
