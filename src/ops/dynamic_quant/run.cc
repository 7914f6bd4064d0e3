// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstring>

#include "ops/dynamic_quant/problem.hpp"
#include "ops/row_operator.hpp"

namespace dsakit::dynamic_quant_op {
namespace {

constexpr std::int64_t kRows = 8;  // per task

struct Scratch {  // of one thread
  float *x, *smooth;
  std::int8_t* codes;

  Scratch(const Problem& p, Carver& memory)
      : x(memory.take<float>(p.width)),
        smooth(memory.take<float>(p.smooth ? p.width : 0)),
        codes(memory.take<std::int8_t>(p.int4 ? p.width : 0)) {}
};

}  // namespace

std::size_t workspace(const Problem& p, int threads) {
  Carver one;
  Scratch(p, one);
  return std::size_t(threads) * one.bytes();
}

void run(const Problem& p, Call& call) {
  const Kernels& kernels = call.kernels();
  const std::size_t each = workspace(p, 1);
  call.parallel_for((p.rows + kRows - 1) / kRows, {.elements = double(p.rows * p.width)}, [&](std::int64_t task, int thread) {
    Carver memory(call.memory() + std::size_t(thread) * each);
    const auto [x, smooth, packed_codes] = Scratch(p, memory);
    for (std::int64_t r = task * kRows, end = std::min(r + kRows, p.rows); r < end; ++r) {
      widen(kernels, p.input.tensor, p.input.offset(r), p.width, x);
      if (p.smooth) {
        widen(kernels, p.smooth, p.smooth_offset(r), p.width, smooth);
        for (std::int64_t i = 0; i < p.width; ++i) x[i] = x[i] * smooth[i];
      }
      const float largest = kernels.max_abs(x, p.width), multiplier = p.largest_code() / largest;
      const bool tiny = !std::isfinite(multiplier);
      std::int8_t* codes = p.int4 ? packed_codes : p.y.row<std::int8_t>(r);
      if (tiny) std::memset(codes, 0, std::size_t(p.width));
      else kernels.quantize(x, p.width, multiplier, codes);
      if (p.int4) pack_int4(codes, p.width, p.y.row<std::int32_t>(r));
      *p.scale.row<float>(r) = tiny ? 0 : largest / p.largest_code();
    }
  });
}

}  // namespace dsakit::dynamic_quant_op
