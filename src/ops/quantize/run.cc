// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cmath>

#include "ops/convert.hpp"
#include "ops/quantize/problem.hpp"

namespace dsakit::quantize_op {
namespace {

constexpr std::int64_t kChunk = 512;         // elements handled at once, on the stack
constexpr std::int64_t kElements = 1 << 15;  // of a task

/// codes = sat(rint(x) + zero), |zero| < 2^20, eight-bit codes: beyond 2^21 every code is cut anyway. Adding 1.5 * 2^23
/// rounds to the nearest integer, ties to even, and leaves it in the low bits.
template <class Code>
void saturate(const float* __restrict x, const std::int32_t* __restrict zero, std::int64_t n, const Range& range,
              Code* __restrict codes) {
  const auto low = std::int32_t(range.low), high = std::int32_t(range.high);
  for (std::int64_t i = 0; i < n; ++i) {
    float v = x[i];
    v = v < -2097152.0f ? -2097152.0f : v;
    v = v > 2097152.0f ? 2097152.0f : v;
    std::int32_t code = std::bit_cast<std::int32_t>(v + 12582912.0f) - 0x4b400000 + zero[i];
    code = v == v ? code : 0;
    code = code < low ? low : code;
    code = code > high ? high : code;
    codes[i] = Code(code);
  }
}

/// The same for any zero point and any range.
template <class Code>
void saturate(const float* x, const double* zero, std::int64_t n, const Range& range, Code* codes) {
  for (std::int64_t i = 0; i < n; ++i) {
    const double v = std::nearbyint(double(x[i])) + zero[i];
    codes[i] = Code(v != v ? 0 : std::clamp(v, range.low, range.high));
  }
}

/// The same columns of some rows. Zero: int32 for the first of these, double for the second.
template <class Zero>
struct Chunk {
  Chunk(const Problem& p, const Kernels& kernels) : p(p), kernels(kernels), range(range_of(p)) {}

  const Problem& p;
  const Kernels& kernels;
  const Range range;
  std::int64_t of = -1;  // channel of the first scale and zero; -1: none yet
  float x[kChunk], scale[kChunk], shift[kChunk];
  Zero zero[kChunk];
  std::int8_t four[kChunk];

  /// Scales and zero points of n elements, the first of channel `first`.
  void take_channels(std::int64_t first, std::int64_t n) {
    if (of == first) return;
    of = first;
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t channel = p.inner ? first + i : first;
      scale[i] = float_at(p.scales, channel * p.scale_step);
      const double z = zero_point(p, channel);
      if (p.divides) zero[i] = Zero(std::nearbyint(z));
      else shift[i] = float(z);
    }
  }

  void columns(std::int64_t i, std::int64_t n, std::int64_t first_row, std::int64_t rows) {
    of = -1;
    for (std::int64_t r = first_row; r < first_row + rows; ++r) {
      take_channels(p.channel(r, i), n);
      widen(kernels, p.input.tensor, p.input.offset(r) + i, n, x);
      if (p.divides) {
        for (std::int64_t j = 0; j < n; ++j) x[j] = x[j] / scale[j];
      } else {
        for (std::int64_t j = 0; j < n; ++j) x[j] = x[j] * scale[j];
        if (p.zero_points)
          for (std::int64_t j = 0; j < n; ++j) x[j] = x[j] + shift[j];
      }
      write(r, i, n);
    }
  }

  void write(std::int64_t r, std::int64_t i, std::int64_t n) {
    if (!p.divides) {
      std::int8_t* codes = p.int4 ? four : p.y.row<std::int8_t>(r) + i;
      kernels.quantize(x, n, 1.0f, codes);
      if (p.int4) pack_int4(codes, n, p.y.row<std::int32_t>(r) + i / 8);
    } else if (p.y.tensor.dtype == DType::i8) {
      saturate(x, zero, n, range, p.y.row<std::int8_t>(r) + i);
    } else if (p.y.tensor.dtype == DType::u8) {
      saturate(x, zero, n, range, p.y.row<std::uint8_t>(r) + i);
    } else {
      saturate(x, zero, n, range, p.y.row<std::int32_t>(r) + i);
    }
  }
};

/// Whether the first saturate will do.
bool small_zeros(const Problem& p) {
  if (!p.zero_points) return true;
  for (std::int64_t c = 0, n = p.zero_step != 0 ? p.channels : 1; c < n; ++c)
    if (!(std::fabs(zero_point(p, c)) < 1 << 20)) return false;
  return true;
}

template <class Zero>
void run_in(const Problem& p, Call& call) {
  const std::int64_t rows = std::max<std::int64_t>(kElements / std::max<std::int64_t>(p.width, 1), 1);
  call.parallel_for((p.rows + rows - 1) / rows, {.elements = double(p.rows * p.width)}, [&](std::int64_t task, int) {
    Chunk<Zero> chunk(p, call.kernels());
    for (std::int64_t i = 0; i < p.width; i += kChunk)
      chunk.columns(i, std::min(kChunk, p.width - i), task * rows, std::min(rows, p.rows - task * rows));
  });
}

}  // namespace

void run(const Problem& p, Call& call) {
  if (!p.divides || (p.y.tensor.dtype != DType::i32 && small_zeros(p))) run_in<std::int32_t>(p, call);
  else run_in<double>(p, call);
}

}  // namespace dsakit::quantize_op
