// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "ops/convert.hpp"
#include "ops/quantize/problem.hpp"

namespace dsakit::quantize_op {
namespace {

constexpr std::int64_t kChunk = 512;         // elements handled at once, on the stack
constexpr std::int64_t kElements = 1 << 15;  // of a task

/// Scales, and zero points as they are added, of all channels.
struct Channels {
  float *scale, *shift;

  Channels(const Problem& p, Carver& memory)
      : scale(memory.take<float>(p.channels)), shift(memory.take<float>(p.channels)) {}

  void fill(const Problem& p, const Kernels& kernels) const {
    const std::int64_t n = p.channels;
    if (p.scale_step == 1) widen(kernels, p.scales, 0, n, scale);
    else
      for (std::int64_t c = 0; c < n; ++c) scale[c] = float_at(p.scales, c * p.scale_step);
    if (!p.zero_points) return std::fill_n(shift, n, 0.0f), void();
    for (std::int64_t c = 0; c < n; ++c) {
      const double zero = zero_point(p, c);
      shift[c] = float(p.divides ? std::nearbyint(zero) : zero);
    }
  }
};

/// Rows in pieces that have a scale and a zero point for each of their elements.
struct Pieces {
  const Problem& p;
  const Channels& channels;
  float scale[kChunk], shift[kChunk];
  std::int64_t of = -1;  // which channel they hold

  Pieces(const Problem& p, const Channels& channels) : p(p), channels(channels) {}

  /// f(i, n, scales, shifts) for elements i .. i + n of row r.
  template <class F>
  void each(std::int64_t r, F f) {
    if (p.inner) return f(std::int64_t(0), p.width, channels.scale, channels.shift);
    if (const std::int64_t channel = p.channel(r, 0); channel != of) {
      std::fill_n(scale, kChunk, channels.scale[channel]), std::fill_n(shift, kChunk, channels.shift[channel]);
      of = channel;
    }
    for (std::int64_t i = 0, n; i < p.width; i += n) n = std::min(kChunk, p.width - i), f(i, n, scale, shift);
  }
};

/// Codes of eight bits, or of four.
template <class T>
void narrow_row(const Problem& p, const Kernels& kernels, std::int64_t r, Pieces& pieces) {
  const T* x = p.input.row<const T>(r);
  pieces.each(r, [&](std::int64_t i, std::int64_t n, const float* scale, const float* shift) {
    if (!p.zero_points) shift = nullptr;
    if (p.divides)
      return kernels.divide_channels(x + i, scale, shift, n, p.y.tensor.dtype == DType::u8, p.y.row<std::int8_t>(r) + i);
    if (!p.int4) return kernels.quantize_channels(x + i, scale, shift, n, p.y.row<std::int8_t>(r) + i);
    for (std::int64_t j = 0, some; j < n; j += some) {
      some = std::min(kChunk, n - j);
      std::int8_t codes[kChunk];
      kernels.quantize_channels(x + i + j, scale + j, shift ? shift + j : nullptr, some, codes);
      pack_int4(codes, some, p.y.row<std::int32_t>(r) + (i + j) / 8);
    }
  });
}

/// Any zero point and any range.
template <class Code>
void wide_row(const Problem& p, const Kernels& kernels, std::int64_t r, Pieces& pieces) {
  const Range range = range_of(p);
  const std::int64_t channel = p.inner ? 0 : p.channel(r, 0);
  pieces.each(r, [&](std::int64_t i, std::int64_t n, const float* scale, const float*) {
    float x[kChunk];
    for (std::int64_t j = 0, some; j < n; j += some) {
      some = std::min(kChunk, n - j);
      widen(kernels, p.input.tensor, p.input.offset(r) + i + j, some, x);
      Code* codes = p.y.row<Code>(r) + i + j;
      for (std::int64_t l = 0; l < some; ++l) {
        const double zero = zero_point(p, p.inner ? i + j + l : channel);
        const double v = std::nearbyint(double(x[l] / scale[j + l])) + std::nearbyint(zero);
        codes[l] = Code(v != v ? 0 : std::clamp(v, range.low, range.high));
      }
    }
  });
}

/// Whether the zero points are such that sums with them are exact in fp32.
bool small_zeros(const Problem& p, const Channels& channels) {
  return !p.zero_points || std::all_of(channels.shift, channels.shift + p.channels,
                                       [](float zero) { return std::fabs(zero) < 1 << 20; });
}

}  // namespace

std::size_t workspace(const Problem& p) { return p.rows == 0 ? 0 : bytes_of<Channels>(p); }

void run(const Problem& p, Call& call) {
  if (p.rows == 0) return;
  const Kernels& kernels = call.kernels();
  Carver memory(call.memory());
  const Channels channels(p, memory);
  channels.fill(p, kernels);
  const DType dtype = p.y.tensor.dtype;
  const bool narrow = !p.divides || (dtype != DType::i32 && small_zeros(p, channels));
  const std::int64_t rows = std::max<std::int64_t>(kElements / std::max<std::int64_t>(p.width, 1), 1);
  call.parallel_for((p.rows + rows - 1) / rows, {.elements = double(p.rows * p.width)}, [&](std::int64_t task, int) {
    Pieces pieces(p, channels);
    for (std::int64_t r = task * rows, end = std::min(r + rows, p.rows); r < end; ++r) {
      if (narrow) with_float(p.input.tensor.dtype, [&]<class T>() { narrow_row<T>(p, kernels, r, pieces); });
      else if (dtype == DType::i8) wide_row<std::int8_t>(p, kernels, r, pieces);
      else if (dtype == DType::u8) wide_row<std::uint8_t>(p, kernels, r, pieces);
      else wide_row<std::int32_t>(p, kernels, r, pieces);
    }
  });
}

}  // namespace dsakit::quantize_op
