// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstring>

#include "ops/convert.hpp"
#include "ops/dynamic_quant/problem.hpp"

namespace dsakit::dynamic_quant_op {
namespace {

constexpr std::int64_t kRows = 8;       // per task
constexpr std::int64_t kColumns = 256;  // per task of channels; whole words of int4

struct Scratch {  // of one thread
  float *smooth, *largest;
  std::int8_t* codes;

  Scratch(const Problem& p, Carver& memory)
      : smooth(memory.take<float>(p.smooth && p.mode != Mode::channel ? p.width : 0)),
        largest(memory.take<float>(1)),
        codes(memory.take<std::int8_t>(p.int4 ? p.width : 0)) {}
};

struct Run {
  const Problem& p;
  Call& call;
  const Kernels& kernels = call.kernels();
  const std::size_t each = workspace(p, 1);

  Scratch scratch(int thread) const {
    Carver memory(call.memory() + std::size_t(thread) * each);
    return Scratch(p, memory);
  }

  /// What row r is multiplied by, element-wise; null: nothing.
  const float* smooth(std::int64_t r, const Scratch& s) const {
    if (!p.smooth) return nullptr;
    widen(kernels, p.smooth, p.smooth_offset(r), p.width, s.smooth);
    return s.smooth;
  }

  template <class T>
  float largest_of(std::int64_t r, const float* smooth) const {
    return kernels.max_abs(p.input.row<const T>(r), p.width, smooth);
  }

  /// Row r, with the scale of `largest`. Returns that.
  template <class T>
  float write(std::int64_t r, float largest, const float* smooth, const Scratch& s) const {
    const float multiplier = p.largest_code() / largest;
    const bool tiny = !std::isfinite(multiplier);
    std::int8_t* codes = p.int4 ? s.codes : p.y.row<std::int8_t>(r);
    if (tiny) std::memset(codes, 0, std::size_t(p.width));
    else kernels.quantize(p.input.row<const T>(r), p.width, multiplier, codes, smooth);
    if (p.int4) pack_int4(codes, p.width, p.y.row<std::int32_t>(r));
    return tiny ? 0 : largest / p.largest_code();
  }

  template <class F>
  void each_row(F f) const {
    call.parallel_for((p.rows + kRows - 1) / kRows, {.elements = double(p.rows * p.width)},
                      [&](std::int64_t task, int thread) {
                        const Scratch s = scratch(thread);
                        for (std::int64_t r = task * kRows, end = std::min(r + kRows, p.rows); r < end; ++r) f(r, s);
                      });
  }

  template <class T>
  void tokens() const {
    each_row([&](std::int64_t r, const Scratch& s) {
      const float* const factors = smooth(r, s);
      *p.scale.row<float>(r) = write<T>(r, largest_of<T>(r, factors), factors, s);
    });
  }

  template <class T>
  void whole() const {
    for (int t = 0; t < call.threads(); ++t) *scratch(t).largest = 0;
    each_row([&](std::int64_t r, const Scratch& s) {
      *s.largest = std::max(*s.largest, largest_of<T>(r, smooth(r, s)));
    });
    float largest = 0;
    for (int t = 0; t < call.threads(); ++t) largest = std::max(largest, *scratch(t).largest);
    const float multiplier = p.largest_code() / largest;
    *p.scale.row<float>(0) = std::isfinite(multiplier) ? largest / p.largest_code() : 0;
    each_row([&](std::int64_t r, const Scratch& s) { write<T>(r, largest, smooth(r, s), s); });
  }

  /// Columns first .. first + n - 1 of a batch of `length` rows.
  void columns(std::int64_t batch, std::int64_t first, std::int64_t n) const {
    float x[kColumns], multiplier[kColumns] = {};  // the largest, until it is known
    std::int8_t packed_codes[kColumns];
    const auto read_row = [&](std::int64_t r) {
      widen(kernels, p.input.tensor, p.input.offset(r) + first, n, x);
      if (!p.smooth) return;
      const float factor = float_at(p.smooth, r % p.length * p.smooth.stride[0]);
      for (std::int64_t i = 0; i < n; ++i) x[i] = x[i] * factor;
    };
    const std::int64_t begin = batch * p.length, end = begin + p.length;
    for (std::int64_t r = begin; r < end; ++r) {
      read_row(r);
      for (std::int64_t i = 0; i < n; ++i)
        multiplier[i] = std::fabs(x[i]) > multiplier[i] ? std::fabs(x[i]) : multiplier[i];
    }
    for (std::int64_t i = 0; i < n; ++i) {
      const float largest = multiplier[i];
      multiplier[i] = p.largest_code() / largest;
      const bool tiny = !std::isfinite(multiplier[i]);
      *p.scale.row<float>(batch * p.width + first + i) = tiny ? 0 : largest / p.largest_code();
      if (tiny) multiplier[i] = 0;  // of zeros and what is as small: codes 0
    }
    for (std::int64_t r = begin; r < end; ++r) {
      read_row(r);
      for (std::int64_t i = 0; i < n; ++i) x[i] = x[i] * multiplier[i];
      std::int8_t* codes = p.int4 ? packed_codes : p.y.row<std::int8_t>(r) + first;
      kernels.quantize(x, n, 1.0f, codes);
      if (p.int4) pack_int4(codes, n, p.y.row<std::int32_t>(r) + first / 8);
    }
  }

  void channels() const {
    const std::int64_t blocks = (p.width + kColumns - 1) / kColumns, batches = p.scale.tensor.elements() / p.width;
    call.parallel_for(batches * blocks, {.elements = double(p.rows * p.width)}, [&](std::int64_t task, int) {
      const std::int64_t first = task % blocks * kColumns;
      columns(task / blocks, first, std::min(kColumns, p.width - first));
    });
  }
};

}  // namespace

std::size_t workspace(const Problem& p, int threads) {
  Carver one;
  Scratch(p, one);
  return std::size_t(threads) * one.bytes();
}

void run(const Problem& p, Call& call) {
  const Run run{p, call};
  if (p.mode == Mode::channel) return run.channels();
  with_float(p.input.tensor.dtype, [&]<class T>() {
    if (p.mode == Mode::token) run.tokens<T>();
    else run.whole<T>();
  });
}

}  // namespace dsakit::dynamic_quant_op
