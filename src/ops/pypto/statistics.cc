// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <type_traits>
#include <vector>

#include "dsakit/float16.hpp"
#include "ops/pypto/elements.hpp"
#include "ops/pypto/pypto.hpp"

namespace dsakit::pypto_op {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

constexpr std::int64_t kBlock = 512, kPart = 1 << 16;  // elements: widened at a time, of a task

/// A block in which something is not finite: that is counted, and passed over otherwise.
void take_slowly(const float* x, std::int64_t n, Statistics& s) {
  for (std::int64_t i = 0; i < n; ++i) {
    s.nan += x[i] != x[i];
    s.inf += std::fabs(x[i]) == kInfinity;
    if (std::fabs(x[i]) < kInfinity) s.min = std::min(s.min, double(x[i])), s.max = std::max(s.max, double(x[i]));
  }
}

/// n <= kBlock floats, in lanes, of which the compiler makes vectors.
void take(const float* x, std::int64_t n, Statistics& s) {
  constexpr int kLanes = 16;
  float low[kLanes], high[kLanes];
  std::int32_t zero[kLanes] = {}, odd[kLanes] = {};
  std::fill_n(low, kLanes, kInfinity), std::fill_n(high, kLanes, -kInfinity);
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int l = 0; l < kLanes; ++l) {
      const float v = x[i + l];
      low[l] = v < low[l] ? v : low[l];
      high[l] = v > high[l] ? v : high[l];
      const std::int32_t size = std::bit_cast<std::int32_t>(v) & 0x7fffffff;
      zero[l] += size == 0;
      odd[l] += size >= 0x7f800000;
    }
  for (int l = 0; i < n; ++i, ++l) {
    const float v = x[i];
    low[l] = std::min(low[l], v), high[l] = std::max(high[l], v);
    zero[l] += v == 0;
    odd[l] += !(std::fabs(v) < kInfinity);
  }
  s.zero += std::accumulate(zero, zero + kLanes, 0);
  if (std::accumulate(odd, odd + kLanes, 0) > 0) return take_slowly(x, n, s);
  s.min = std::min(s.min, double(*std::min_element(low, low + kLanes)));
  s.max = std::max(s.max, double(*std::max_element(high, high + kLanes)));
}

template <class T>
void take_integers(const T* x, std::int64_t n, Statistics& s) {
  T low = std::numeric_limits<T>::max(), high = std::numeric_limits<T>::min();
  std::int64_t zero = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    low = std::min(low, x[i]), high = std::max(high, x[i]);
    zero += x[i] == 0;
  }
  if (n > 0) s.min = std::min(s.min, double(low)), s.max = std::max(s.max, double(high));
  s.zero += zero;
}

template <class T>
void take_floats(const Kernels& kernels, const T* x, std::int64_t n, Statistics& s) {
  float wide[kBlock];
  for (std::int64_t first = 0; first < n; first += kBlock) {
    const std::int64_t some = std::min(kBlock, n - first);
    if constexpr (std::is_same_v<T, float>) take(x + first, some, s);
    else kernels.widen(x + first, some, wide), take(wide, some, s);
  }
}

inline std::uint32_t mixed(std::uint32_t sum, std::uint32_t word) {
  sum += word;
  sum += sum << 10;
  return sum ^ sum >> 6;
}

/// Sixteen chains of shifts and sums (Jenkins, one at a time) over words, one behind the other at the end; what is missing of
/// the last words is 0.
std::uint32_t checksum_of(const std::byte* data, std::int64_t bytes) {
  std::uint32_t lane[16] = {}, word[16];
  std::int64_t i = 0;
  for (; i + 64 <= bytes; i += 64) {
    std::memcpy(word, data + i, 64);
    for (int l = 0; l < 16; ++l) lane[l] = mixed(lane[l], word[l]);
  }
  std::memset(word, 0, sizeof word);
  std::memcpy(word, data + i, std::size_t(bytes - i));
  std::uint32_t sum = std::uint32_t(bytes);
  for (int l = 0; l < 16; ++l) sum = mixed(sum, mixed(lane[l], word[l]));
  sum += sum << 3;
  sum ^= sum >> 11;
  return sum + (sum << 15);
}

Statistics of_part(const Kernels& kernels, const Tensor& x, std::int64_t first, std::int64_t n) {
  Statistics s{.min = kInfinity, .max = -kInfinity};
  const std::byte* const data = static_cast<const std::byte*>(x.data) + first * size_of(x.dtype);
  const auto floats = [&]<class T>(T) { take_floats(kernels, reinterpret_cast<const T*>(data), n, s); };
  const auto integers = [&]<class T>(T) { take_integers(reinterpret_cast<const T*>(data), n, s); };
  switch (x.dtype) {
    case DType::f32: floats(0.0f); break;
    case DType::f16: floats(f16{}); break;
    case DType::bf16: floats(bf16{}); break;
    case DType::i8: integers(std::int8_t{}); break;
    case DType::i16: integers(std::int16_t{}); break;
    case DType::i32: integers(std::int32_t{}); break;
    case DType::i64: integers(std::int64_t{}); break;
    case DType::u16: integers(std::uint16_t{}); break;
    case DType::u32: integers(std::uint32_t{}); break;
    case DType::u64: integers(std::uint64_t{}); break;
    default: integers(std::uint8_t{});
  }
  s.checksum = checksum_of(data, n * size_of(x.dtype));
  return s;
}

}  // namespace

Statistics statistics(const Tensor& x, Context& context) {
  const Check check("pypto.statistics", Level::portable);
  check.required(x, "input");
  check.readable(x, "input");
  Tensor plain = x;
  make_contiguous(plain);
  if (x.elements() != 0 && !same_storage(plain, x))
    check.fail(Status::invalid_stride, "input", "", "has gaps", "contiguous memory");
  const std::int64_t n = x.elements(), count = (n + kPart - 1) / kPart;
  std::vector<Statistics> parts(std::size_t(std::max<std::int64_t>(count, 1)));
  Call call(context, "pypto.statistics", 0);
  call.parallel_for(std::int64_t(parts.size()), {.elements = double(n)}, [&](std::int64_t i, int) {
    parts[std::size_t(i)] = of_part(call.kernels(), x, i * kPart, std::min(kPart, n - i * kPart));
  });
  Statistics s = parts[0];
  for (std::size_t i = 1; i < parts.size(); ++i) {
    s.min = std::min(s.min, parts[i].min), s.max = std::max(s.max, parts[i].max);
    s.nan += parts[i].nan, s.inf += parts[i].inf, s.zero += parts[i].zero;
    s.checksum = mixed(s.checksum, parts[i].checksum);
  }
  call.finish();
  return s;
}

}  // namespace dsakit::pypto_op
