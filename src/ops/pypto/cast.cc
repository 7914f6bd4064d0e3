// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>

#include "kernels/kernels.hpp"
#include "ops/pypto/elements.hpp"
#include "ops/pypto/number.hpp"
#include "ops/pypto/pypto.hpp"

namespace dsakit::pypto_op {
namespace {

constexpr std::int64_t kSome = 512;  // elements that are converted by way of another dtype at a time

/// f.operator()<T>() for the element type; bool as the byte it is kept in.
template <class F>
void with_element(DType dtype, F f) {
  switch (dtype) {
    case DType::i8: return f.template operator()<std::int8_t>();
    case DType::i16: return f.template operator()<std::int16_t>();
    case DType::i32: return f.template operator()<std::int32_t>();
    case DType::i64: return f.template operator()<std::int64_t>();
    case DType::u8: case DType::boolean: return f.template operator()<std::uint8_t>();
    case DType::u16: return f.template operator()<std::uint16_t>();
    case DType::u32: return f.template operator()<std::uint32_t>();
    case DType::u64: return f.template operator()<std::uint64_t>();
    case DType::f16: return f.template operator()<f16>();
    case DType::bf16: return f.template operator()<bf16>();
    default: return f.template operator()<float>();
  }
}

/// How a cast rounds.
struct Rounding {
  CastMode mode;
  bool saturate;
};

template <class From, class To>
[[gnu::noinline]] void cast_exactly(const From* x, std::int64_t n, To* y, Rounding how) {
  for (std::int64_t i = 0; i < n; ++i)
    if constexpr (Float<To>) y[i] = from_number<To>(number_of(x[i]), how.mode);
    else y[i] = from_number<To>(number_of(x[i]), how.mode, how.saturate);
}

/// Integral values of floats below 2^31, in plain arithmetic on the truncated ones, for the vectoriser; false if one is
/// not below.
template <CastMode Mode>
bool to_integers(const float* x, std::int64_t n, std::int32_t* y) {
  std::int32_t beyond = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const bool inside = x[i] > -2147483648.0f && x[i] < 2147483648.0f;
    const float v = inside ? x[i] : 0.0f;
    beyond |= !inside;
    const std::int32_t whole = std::int32_t(v);
    const float rest = v - float(whole), size = rest < 0 ? -rest : rest;
    const std::int32_t away = v < 0 ? -1 : 1;
    if constexpr (Mode == CastMode::trunc) y[i] = whole;
    if constexpr (Mode == CastMode::floor) y[i] = whole - (rest < 0);
    if constexpr (Mode == CastMode::ceil) y[i] = whole + (rest > 0);
    if constexpr (Mode == CastMode::round) y[i] = whole + (size >= 0.5f ? away : 0);
    if constexpr (Mode == CastMode::rint) {
      const std::int32_t tie = size == 0.5f ? away * (whole & 1) : 0;
      y[i] = whole + (size > 0.5f ? away : tie);
    }
  }
  return !beyond;
}

bool to_integers(CastMode mode, const float* x, std::int64_t n, std::int32_t* y) {
  switch (mode) {
    case CastMode::rint: return to_integers<CastMode::rint>(x, n, y);
    case CastMode::round: return to_integers<CastMode::round>(x, n, y);
    case CastMode::floor: return to_integers<CastMode::floor>(x, n, y);
    case CastMode::ceil: return to_integers<CastMode::ceil>(x, n, y);
    default: return to_integers<CastMode::trunc>(x, n, y);
  }
}

template <std::integral From, std::integral To>
[[gnu::noinline]] void cast_integers(const From* x, std::int64_t n, To* y, bool saturate) {
  constexpr To least = std::numeric_limits<To>::min(), most = std::numeric_limits<To>::max();
  if (!saturate) {
    for (std::int64_t i = 0; i < n; ++i) y[i] = To(x[i]);
    return;
  }
  for (std::int64_t i = 0; i < n; ++i)
    y[i] = std::cmp_less(x[i], least) ? least : std::cmp_greater(x[i], most) ? most : To(x[i]);
}

/// f(first, some) for parts that buffers on the stack hold.
template <class F>
void each_part(std::int64_t n, F f) {
  for (std::int64_t first = 0; first < n; first += kSome) f(first, std::min(kSome, n - first));
}

const float* widened(const Kernels&, const float* x, std::int64_t, float*) { return x; }
template <class T>
const float* widened(const Kernels& kernels, const T* x, std::int64_t n, float* wide) {
  kernels.widen(x, n, wide);
  return wide;
}

/// Those rare parts that hold something beyond 32 bits go the exact way.
template <Float From, std::integral To>
void cast_block(const Kernels& kernels, const From* x, std::int64_t n, To* y, Rounding how) {
  each_part(n, [&](std::int64_t first, std::int64_t some) {
    alignas(64) float wide[kSome];
    alignas(64) std::int32_t whole[kSome];
    if (to_integers(how.mode, widened(kernels, x + first, some, wide), some, whole))
      cast_integers(whole, some, y + first, how.saturate);
    else cast_exactly(x + first, some, y + first, how);
  });
}

float integral(float x, CastMode mode) {
  switch (mode) {
    case CastMode::rint: return std::nearbyint(x);
    case CastMode::round: return std::round(x);
    case CastMode::floor: return std::floor(x);
    case CastMode::ceil: return std::ceil(x);
    default: return std::trunc(x);
  }
}

template <Float From, Float To>
void cast_block(const Kernels& kernels, const From* x, std::int64_t n, To* y, Rounding how) {
  if constexpr (std::is_same_v<To, float>) {
    if constexpr (!std::is_same_v<From, float>) kernels.widen(x, n, y);
    else
      for (std::int64_t i = 0; i < n; ++i) y[i] = integral(x[i], how.mode);
  } else if constexpr (std::is_same_v<From, To>) {
    std::copy_n(x, n, y);
  } else if (how.mode == CastMode::rint) {
    each_part(n, [&](std::int64_t first, std::int64_t some) {
      alignas(64) float wide[kSome];
      kernels.round(widened(kernels, x + first, some, wide), some, y + first);
    });
  } else {
    cast_exactly(x, n, y, how);
  }
}

/// By way of float where that rounds as once does: a float that it had to round for is an integer from 2^24 on, which
/// is infinite in f16.
template <std::integral From, Float To>
void cast_block(const Kernels& kernels, const From* x, std::int64_t n, To* y, Rounding how) {
  constexpr bool kExact = sizeof(From) <= 2;
  const bool once = (kExact && std::is_same_v<To, float>) ||
                    (how.mode == CastMode::rint && (kExact || !std::is_same_v<To, bf16>));
  if (!once) return cast_exactly(x, n, y, how);
  each_part(n, [&](std::int64_t first, std::int64_t some) {
    alignas(64) float wide[kSome];
    float* const to = std::is_same_v<To, float> ? reinterpret_cast<float*>(y + first) : wide;
    for (std::int64_t i = 0; i < some; ++i) to[i] = float(x[first + i]);
    if constexpr (!std::is_same_v<To, float>) kernels.round(wide, some, y + first);
  });
}

template <std::integral From, std::integral To>
void cast_block(const Kernels&, const From* x, std::int64_t n, To* y, Rounding how) {
  cast_integers(x, n, y, how.saturate);
}

/// Whether each is anything but zero.
template <class From>
void to_bool(const From* x, std::int64_t n, std::uint8_t* y) {
  for (std::int64_t i = 0; i < n; ++i)
    if constexpr (std::integral<From>) y[i] = x[i] != 0;
    else y[i] = typename Binary<From>::Bits(std::bit_cast<typename Binary<From>::Bits>(x[i]) << 1) != 0;
}

template <class T>
T* from(const Tensor& t, std::int64_t first) {
  return static_cast<T*>(t.data) + first;
}

void cast_block(const Kernels& kernels, const Tensor& x, const Tensor& y, std::int64_t first, std::int64_t n,
                Rounding how) {
  if (y.dtype == DType::boolean)
    return with_element(x.dtype,
                        [&]<class From>() { to_bool(from<From>(x, first), n, from<std::uint8_t>(y, first)); });
  if (x.dtype != DType::boolean)
    return with_element(x.dtype, [&]<class From>() {
      with_element(y.dtype,
                   [&]<class To>() { cast_block(kernels, from<const From>(x, first), n, from<To>(y, first), how); });
    });
  each_part(n, [&](std::int64_t part, std::int64_t some) {
    std::uint8_t ones[kSome];
    to_bool(from<const std::uint8_t>(x, first + part), some, ones);
    with_element(y.dtype, [&]<class To>() { cast_block(kernels, ones, some, from<To>(y, first + part), how); });
  });
}

}  // namespace

void cast(const Tensor& x, const Tensor& y, CastMode mode, bool saturate, Context& context) {
  using enum DType;
  const Check check("pypto.cast", Level::portable);
  const auto types = {f32, f16, bf16, i8, i16, i32, i64, u8, u16, u32, u64, boolean};
  check_elements(check, x, types, y, types);
  check_count(check, x, y);
  if (mode < CastMode::rint || mode > CastMode::odd || (mode == CastMode::odd && (x.dtype != f32 || y.dtype != f16)))
    check.fail(Status::invalid_argument, "mode", "", "is " + std::to_string(int(mode)),
               "1..5, or 6 from float32 to float16");
  check_same_or_apart(check, x, y);
  Call call(context, "pypto.cast", 0);
  each_block(call, x.elements(), 2, [&](std::int64_t first, std::int64_t n) {
    cast_block(call.kernels(), x, y, first, n, {mode, saturate});
  });
  call.finish();
}

}  // namespace dsakit::pypto_op
