// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <type_traits>

#include "dsakit/float16.hpp"
#include "ops/pypto/elements.hpp"
#include "ops/pypto/pypto.hpp"

namespace dsakit::pypto_op {
namespace {

constexpr std::int64_t kBlock = 512;

/// Integers in the order of floats, whose bits are `b`; and back.
inline std::int32_t order_of(std::int32_t b) { return b ^ (b >> 31 & 0x7fffffff); }

/// One pass over n <= kBlock floats, on their bits: the compiler makes vectors of that. What is not finite counts, and is
/// passed over otherwise.
void take(const float* x, std::int64_t n, Statistics& s) {
  constexpr std::int32_t kInf = 0x7f800000;
  std::int32_t low = kInf, high = order_of(std::int32_t(0xff800000)), nan = 0, inf = 0, zero = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    std::int32_t bits;
    std::memcpy(&bits, x + i, 4);
    const std::int32_t size = bits & 0x7fffffff, order = order_of(bits);
    const bool finite = size < kInf;
    const std::int32_t below = finite ? order : kInf, above = finite ? order : order_of(std::int32_t(0xff800000));
    low = low < below ? low : below;
    high = high > above ? high : above;
    nan += size > kInf;
    inf += size == kInf;
    zero += size == 0;
  }
  s.min = std::min(s.min, double(std::bit_cast<float>(order_of(low))));
  s.max = std::max(s.max, double(std::bit_cast<float>(order_of(high))));
  s.nan += nan, s.inf += inf, s.zero += zero;
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

/// Sixteen chains of shifts and sums (Jenkins, one at a time) over words, one behind the other at the end; what is missing of
/// the last words is 0.
std::uint32_t checksum_of(const std::byte* data, std::int64_t bytes) {
  const auto mixed = [](std::uint32_t sum, std::uint32_t word) {
    sum += word;
    sum += sum << 10;
    return sum ^ sum >> 6;
  };
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

}  // namespace

Statistics statistics(const Tensor& x, Context& context) {
  const Check check("pypto.statistics", Level::portable);
  check.required(x, "input");
  check.readable(x, "input");
  Tensor plain = x;
  make_contiguous(plain);
  if (x.elements() != 0 && !same_storage(plain, x))
    check.fail(Status::invalid_stride, "input", "", "has gaps", "contiguous memory");
  Statistics s{.min = std::numeric_limits<double>::infinity(), .max = -std::numeric_limits<double>::infinity()};
  Call call(context, "pypto.statistics", 0);
  const std::int64_t n = x.elements();
  const auto integers = [&]<class T>(T) { take_integers(static_cast<const T*>(x.data), n, s); };
  switch (x.dtype) {
    case DType::f32: take_floats(call.kernels(), static_cast<const float*>(x.data), n, s); break;
    case DType::f16: take_floats(call.kernels(), static_cast<const f16*>(x.data), n, s); break;
    case DType::bf16: take_floats(call.kernels(), static_cast<const bf16*>(x.data), n, s); break;
    case DType::i8: integers(std::int8_t{}); break;
    case DType::i16: integers(std::int16_t{}); break;
    case DType::i32: integers(std::int32_t{}); break;
    case DType::i64: integers(std::int64_t{}); break;
    case DType::u16: integers(std::uint16_t{}); break;
    case DType::u32: integers(std::uint32_t{}); break;
    case DType::u64: integers(std::uint64_t{}); break;
    default: integers(std::uint8_t{});
  }
  s.checksum = checksum_of(static_cast<const std::byte*>(x.data), n * size_of(x.dtype));
  call.finish();
  return s;
}

}  // namespace dsakit::pypto_op
