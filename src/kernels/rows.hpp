// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "dsakit/tensor.hpp"
#include "kernels/kernels.hpp"
#include "kernels/kept.hpp"

// The row kernels: plain loops where the compiler makes vectors of them, the vocabulary where it does not. A plain
// expression has the same bits on every rung, since contraction is off.
namespace dsakit {
namespace {

/// Sixteen lanes in halves: 8, 4, 2, 1.
template <class V>
DSAKIT_INLINE float folded(const typename V::F (&sum)[V::kParts]) {
  typename V::Block lanes[4];
  __builtin_memcpy(lanes, sum, sizeof lanes);
  const typename V::Block four = (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
  return (four[0] + four[2]) + (four[1] + four[3]);
}

/// Lane l takes element i = l, l + 16, ... of what term(i, some) gives for a register, ascending; then the lanes fold in
/// halves. Beyond `some` it gives 0, which changes no sum from +0.
template <class V, class Term>
DSAKIT_INLINE float canonical_sum(std::int64_t n, Term term) {
  typename V::F sum[V::kParts] = {};
  std::int64_t i = 0;
  for (; i + 16 <= n; i += 16)
#pragma GCC unroll 4
    for (int r = 0; r < V::kParts; ++r) sum[r] += term(i + r * V::kLanes, V::kLanes);
#pragma GCC unroll 4
  for (int r = 0; r < V::kParts; ++r, i += V::kLanes)
    if (i < n) sum[r] += term(i, least(int(n - i), V::kLanes));
  return folded<V>(sum);
}

template <class V>
float sum_squares(const float* x, std::int64_t n, float each) noexcept {
  return canonical_sum<V>(n, [=](std::int64_t i, int some) __attribute__((always_inline)) {
    const typename V::F v = V::load_floats(x + i, some);
    return v * v * each;
  });
}

template <class V>
float sum(const float* x, std::int64_t n, float each) noexcept {
  return canonical_sum<V>(
      n, [=](std::int64_t i, int some) __attribute__((always_inline)) { return V::load_floats(x + i, some) * each; });
}

/// The largest of n numbers that is not NaN, or `least`; value(i, some) is a register of them. So many chains that latency
/// does not count.
template <class V, class Value>
DSAKIT_INLINE float maximum(std::int64_t n, float least, Value value) {
  using F = typename V::F;
  constexpr int kChains = V::kLanes == 16 ? 4 : 8;
  if (n < V::kLanes) {
    float few[V::kLanes];
    if (n > 0) V::store_float(few, value(0, int(n)));
    for (std::int64_t i = 0; i < n; ++i) least = few[i] > least ? few[i] : least;
    return least;
  }
  F most[kChains];
#pragma GCC unroll 8
  for (int r = 0; r < kChains; ++r) most[r] = V::set_float(least);
  std::int64_t i = 0;
  for (; i + kChains * V::kLanes <= n; i += kChains * V::kLanes)
#pragma GCC unroll 8
    for (int r = 0; r < kChains; ++r) most[r] = V::max(value(i + r * V::kLanes, V::kLanes), most[r]);
  for (; i + V::kLanes <= n; i += V::kLanes) most[0] = V::max(value(i, V::kLanes), most[0]);
  if (i < n) most[1] = V::max(value(n - V::kLanes, V::kLanes), most[1]);  // some of them twice
#pragma GCC unroll 8
  for (int half = kChains / 2; half > 0; half /= 2)
#pragma GCC unroll 8
    for (int r = 0; r < half; ++r) most[r] = V::max(most[r], most[r + half]);
  return V::max_of_lanes(most[0]);
}

/// x, or x * each.
template <class V, class T>
DSAKIT_INLINE typename V::F load_scaled(const T* x, const float* each, std::int64_t i, int some) {
  const typename V::F v = load_row<V>(x + i, some);
  return each ? v * V::load_floats(each + i, some) : v;
}

/// The largest magnitude of n numbers of 16 bits that is not NaN: as integers they have the order of what they stand for,
/// and NaN lies beyond infinity. Only where one is seen are they told apart.
template <class V, class T>
DSAKIT_INLINE float max_of_bits(const T* x, std::int64_t n) {
  using I = typename V::I;
  using U16 = typename V::U16;
  constexpr int kLanes = V::kBytes / 2, kInfinity = __is_same(T, bf16) ? 0x7f80 : 0x7c00;
  const auto larger = [](U16 a, U16 b) __attribute__((always_inline)) { return a > b ? a : b; };
  const auto largest = [=](auto numbers) __attribute__((always_inline)) {
    constexpr int kChains = 2;
    const auto magnitude = [=](std::int64_t i, int some) __attribute__((always_inline)) {
      return numbers(U16(V::load_bytes(x + i, 2 * some)) & 0x7fff);
    };
    U16 most[kChains] = {};
    std::int64_t i = 0;
    for (; i + kChains * kLanes <= n; i += kChains * kLanes)
#pragma GCC unroll 2
      for (int r = 0; r < kChains; ++r) most[r] = larger(magnitude(i + r * kLanes, kLanes), most[r]);
    for (; i < n; i += kLanes) most[0] = larger(magnitude(i, n - i < kLanes ? int(n - i) : kLanes), most[0]);
    const auto pairs = I(larger(most[0], most[1]));
    return int(V::max_of_lanes(V::to_float(V::max(pairs & 0xffff, I(typename V::U(pairs) >> 16)))));
  };
  int bits = largest([](U16 magnitude) __attribute__((always_inline)) { return magnitude; });
  if (bits > kInfinity) [[unlikely]]
    bits = largest([](U16 m) __attribute__((always_inline)) { return m & U16(m <= kInfinity); });
  return unkept<V, T>(V::set(bits))[0];
}

template <class V, class T>
float max_abs(const T* x, std::int64_t n, const float* each) noexcept {
  if constexpr (sizeof(T) == 2)
    if (!each) return max_of_bits<V>(x, n);
  const auto largest = [=](const float* factors) __attribute__((always_inline)) {
    return maximum<V>(n, 0.0f, [=](std::int64_t i, int some) __attribute__((always_inline)) {
      return typename V::F(typename V::I(load_scaled<V>(x, factors, i, some)) & 0x7fffffff);
    });
  };
  return each ? largest(each) : largest(nullptr);
}

/// Codes of value(i, some), a register of n numbers from the i-th on. As many at `next`, of the next row as a rule, are
/// asked for meanwhile.
template <class V, class T, class Value>
DSAKIT_INLINE void store_row_of_codes(std::int8_t* codes, std::int64_t n, const T* next, Value value) {
  constexpr int kAtOnce = 4 * V::kLanes, kLine = 64 / sizeof(T);
  std::int64_t i = 0;
  for (; i + kAtOnce <= n; i += kAtOnce) {
    typename V::F x[4];
#pragma GCC unroll 4
    for (int l = 0; l < kAtOnce; l += kLine) prefetch_l2(next + i + l);
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) x[r] = value(i + r * V::kLanes, V::kLanes);
    V::store_codes(codes + i, x);
  }
  each_register<V>(n - i, [=](std::int64_t rest, int some) __attribute__((always_inline)) {
    V::store_codes(codes + i + rest, value(i + rest, some), some);
  });
}

template <class V, class T>
void quantize(const T* x, std::int64_t n, float multiplier, std::int8_t* codes, const float* each) noexcept {
  const auto row = [=](const float* factors) __attribute__((always_inline)) {
    store_row_of_codes<V>(codes, n, x + n, [=](std::int64_t i, int some) __attribute__((always_inline)) {
      return load_scaled<V>(x, factors, i, some) * multiplier;
    });
  };
  if (each) row(each);
  else row(nullptr);
}

/// The largest of a block is looked for beside the codes of the one before: it is a chain that they wait for.
template <class V, class T>
void quantize_blocks(const T* x, std::int64_t n, std::int64_t block, float min_scale, std::int8_t* codes,
                     float* scales) noexcept {
  const std::int64_t width = n;
  std::int64_t some = n < block ? n : block;
  float largest = max_abs<V>(x, some, nullptr);
  while (n > 0) {
    const std::int64_t next = n - some < block ? n - some : block;
    const float inverse = 1.0f / largest, next_largest = max_abs<V>(x + some, next, nullptr);
    float multiplier = inverse * 127.0f, scale = largest * (1.0f / 127.0f);
    if (!(multiplier < __builtin_inff())) multiplier = scale = 0;
    else if (min_scale > 0) {
      multiplier = multiplier < min_scale ? min_scale : multiplier;
      scale = 1.0f / min_scale < scale ? 1.0f / min_scale : scale;
    }
    store_row_of_codes<V>(codes, some, x + width, [=](std::int64_t i, int lanes) __attribute__((always_inline)) {
      return load_row<V>(x + i, lanes) * multiplier;
    });
    *scales++ = scale;
    n -= some, x += some, codes += some, some = next, largest = next_largest;
  }
}

template <class V, class T>
void quantize_channels(const T* x, const float* scale, const float* shift, std::int64_t n,
                       std::int8_t* codes) noexcept {
  store_row_of_codes<V>(codes, n, x + n, [=](std::int64_t i, int some) __attribute__((always_inline)) {
    const typename V::F v = load_row<V>(x + i, some) * V::load_floats(scale + i, some);
    return shift ? v + V::load_floats(shift + i, some) : v;
  });
}

/// Adding 1.5 * 2^23 rounds to the nearest integer, ties to even; beyond 2^21, where it does not, every code is cut
/// anyway. Where nothing is added, codes are rounded as they are made. Unsigned ones are signed ones of 128 less.
template <class V, class T>
void divide_channels(const T* x, const float* scale, const float* zero, std::int64_t n, bool is_unsigned,
                     std::int8_t* codes) noexcept {
  using F = typename V::F;
  const auto quotient = [=](std::int64_t i, int some) __attribute__((always_inline)) {
    return load_row<V>(x + i, some) / V::load_floats(scale + i, some);
  };
  const auto code = [=](std::int64_t i, int some) __attribute__((always_inline)) {
    const F rounded = quotient(i, some) + 12582912.0f - 12582912.0f;
    return zero ? rounded + V::load_floats(zero + i, some) : rounded;
  };
  if (!is_unsigned && !zero) return store_row_of_codes<V>(codes, n, x + n, quotient);
  if (!is_unsigned) return store_row_of_codes<V>(codes, n, x + n, code);
  store_row_of_codes<V>(codes, n, x + n, [=](std::int64_t i, int some) __attribute__((always_inline)) {
    const F v = code(i, some);
    return F(V::where_number(v, typename V::I(v))) - 128.0f;  // NaN: 0
  });
  for (std::int64_t i = 0; i < n; ++i) codes[i] = std::int8_t(codes[i] ^ 128);
}

/// x[0], x[2] .. and x[1], x[3] .. of `some` pairs.
template <class V, class T>
DSAKIT_INLINE void load_adjacent(const T* x, int some, typename V::F& a, typename V::F& b) {
  using I = typename V::I;
  if constexpr (__is_same(T, float)) {
    float first[V::kLanes] = {}, second[V::kLanes] = {};
    for (int i = 0; i < some; ++i) first[i] = x[2 * i], second[i] = x[2 * i + 1];
    a = V::load_float(first), b = V::load_float(second);
  } else {
    const I pairs = V::load_bytes(x, 4 * some);
    if constexpr (__is_same(T, bf16)) a = typename V::F(V::low_bf16(pairs)), b = typename V::F(V::high_bf16(pairs));
    else a = V::low_f16(pairs & 0xffff), b = V::low_f16(I(typename V::U(pairs) >> 16));
  }
}

template <class V, class T>
DSAKIT_INLINE void store_adjacent(T* y, typename V::F a, typename V::F b, int some) {
  using I = typename V::I;
  using U = typename V::U;
  if constexpr (__is_same(T, float)) {
    for (int i = 0; i < some; ++i) y[2 * i] = a[i], y[2 * i + 1] = b[i];
  } else {
    I pairs;
    if constexpr (__is_same(T, bf16))
      pairs = V::rounded_halves(I(U(a) >> 16) | V::high_bf16(I(b)), (I(a) & 0xffff) | V::low_bf16(I(b)));
    else pairs = keep<V, T>(a) | keep<V, T>(b) << 16;
    V::store_floats(reinterpret_cast<float*>(y), typename V::F(pairs), some);
  }
}

/// Rows are read and written from front to back; if they follow each other, what comes next is asked for. cos and sin
/// that all share are widened once.
template <class V, class T, RopePairs Pairs>
DSAKIT_INLINE void rotate_rows(const RotateRows<T>& t) {
  using F = typename V::F;
  constexpr bool kIn = Pairs != RopePairs::half, kOut = Pairs == RopePairs::adjacent;
  constexpr std::int64_t kShared = 128;                                  // pairs
  constexpr std::int64_t kLine = 64 / sizeof(T), kAhead = 1024 / sizeof(T);  // elements
  const auto load = [&]<bool Adjacent>(const T* from, std::int64_t j, int some, F& a, F& b)
                        __attribute__((always_inline)) {
    if constexpr (Adjacent) load_adjacent<V>(from + 2 * j, some, a, b);
    else a = load_row<V>(from + j, some), b = load_row<V>(from + t.half + j, some);
  };
  struct Factors {
    F cos_a, cos_b, sin_a, sin_b;
  };
  const auto factors = [&](std::int64_t r, std::int64_t j, int some) __attribute__((always_inline)) {
    Factors f;
    load.template operator()<kOut>(t.cos + r * t.cos_stride, j, some, f.cos_a, f.cos_b);
    load.template operator()<kOut>(t.sin + r * t.sin_stride, j, some, f.sin_a, f.sin_b);
    return f;
  };
  const auto turn = [&](const Factors& f, const T* x, std::int64_t j, int some, F& first, F& second)
                        __attribute__((always_inline)) {
    F a, b;
    load.template operator()<kIn>(x, j, some, a, b);
    first = a * f.cos_a - b * f.sin_a, second = b * f.cos_b + a * f.sin_b;
  };
  const auto row = [&](std::int64_t r, auto factors_of) __attribute__((always_inline)) {
    const T* const x = t.x + r * t.x_stride;
    T* const y = t.y + r * t.y_stride;
    std::int64_t j = 0;
    for (; !kOut && j + 2 * V::kLanes <= t.half; j += 2 * V::kLanes) {
      F first[2], second[2];
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i) {
        const std::int64_t at = j + i * V::kLanes;
        turn(factors_of(at, V::kLanes), x, at, V::kLanes, first[i], second[i]);
      }
      store_two<V>(y + j, first[0], first[1]), store_two<V>(y + t.half + j, second[0], second[1]);
    }
    each_register<V>(t.half - j, [&](std::int64_t rest, int some) __attribute__((always_inline)) {
      F first, second;
      turn(factors_of(j + rest, some), x, j + rest, some, first, second);
      if constexpr (kOut) return store_adjacent<V>(y + 2 * (j + rest), first, second, some);
      store_kept<V>(y + j + rest, keep<V, T>(first), some);
      store_kept<V>(y + t.half + j + rest, keep<V, T>(second), some);
    });
  };
  if (t.cos_stride == 0 && t.sin_stride == 0 && t.half <= kShared) {
    const bool follow = t.x_stride == 2 * t.half && t.y_stride == 2 * t.half;
    Factors shared[kShared / V::kLanes];
    each_register<V>(t.half, [&](std::int64_t j, int some) __attribute__((always_inline)) {
      shared[j / V::kLanes] = factors(0, j, some);
    });
    for (std::int64_t r = 0; r < t.rows; ++r) {
      for (std::int64_t i = r * t.x_stride; follow && i < (r + 1) * t.x_stride; i += kLine)
        prefetch_l2(t.x + i + kAhead), prefetch_to_write(t.y + i + kAhead);
      row(r, [&](std::int64_t j, int) __attribute__((always_inline)) { return shared[j / V::kLanes]; });
    }
  } else {
    for (std::int64_t r = 0; r < t.rows; ++r)
      row(r, [&](std::int64_t j, int some) __attribute__((always_inline)) { return factors(r, j, some); });
  }
}

template <class V, class T>
void rotate(const RotateRows<T>& t) noexcept {
  if (t.pairs == RopePairs::half) rotate_rows<V, T, RopePairs::half>(t);
  else if (t.pairs == RopePairs::adjacent) rotate_rows<V, T, RopePairs::adjacent>(t);
  else rotate_rows<V, T, RopePairs::adjacent_to_half>(t);
}

template <class V, class T>
void dequantize(const std::int32_t* acc, std::int64_t n, float row_scale, const float* column_scale, T* y) noexcept {
  const typename V::F row = V::set_float(row_scale);
  store_row<V>(y, n, [=](std::int64_t i, int some) __attribute__((always_inline)) {
    return V::to_float(V::load_bytes(acc + i, 4 * some)) * row * V::load_floats(column_scale + i, some);
  });
}

/// a * b + c, with one rounding where that costs nothing: only where bits may differ from rung to rung.
DSAKIT_INLINE float multiply_add(float a, float b, float c) {
#if defined(__FMA__)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

/// a * b + c with one rounding; without fma by way of doubles, which round the sum once more: next to never another bit.
template <class V>
DSAKIT_INLINE typename V::F fma_or_doubles(typename V::F a, typename V::F b, typename V::F c) {
  if constexpr (V::kFma) {
    return V::fma(a, b, c);
  } else {
    typedef double Doubles __attribute__((vector_size(8 * V::kLanes)));
    const Doubles wide = __builtin_convertvector(a, Doubles) * __builtin_convertvector(b, Doubles);
    return __builtin_convertvector(wide + __builtin_convertvector(c, Doubles), typename V::F);
  }
}

/// To bf16: on all rungs, and NaN stays NaN.
template <class V>
struct ToBf16 {
  using To = bf16;
  DSAKIT_INLINE static void store(bf16* y, typename V::F x, int some) {
    store_kept<V>(y, keep<V, bf16>(x), some);
  }
};

template <class V>
struct ToFloat {
  using To = float;
  DSAKIT_INLINE static void store(float* y, typename V::F x, int some) { V::store_floats(y, x, some); }
};

/// 2^(x * unit) for x * unit <= 0; below -125 it may be 0. x * unit = n / 8 + u, |u| <= 1/16; 2^u minimax of degree 3 that
/// is 1 at 0, and 2^(n / 8) from a table: relative errors of 2.7e-8 and 3.2e-8 before rounding.
template <class V>
DSAKIT_INLINE typename V::F power_of_two(typename V::F x, typename V::F unit) {
  using F = typename V::F;
  const auto fma = fma_or_doubles<V>;
  const auto c = [](float v) __attribute__((always_inline)) { return V::set_float(v); };
  const F magic = c(kEighthsMagic), shifted = fma(x, unit, magic), u = fma(x, unit, magic - shifted);
  const F power = V::power_of_eighths(shifted);
  const F p = fma(u, fma(u, c(5.549621e-2f), c(2.4025768e-1f)), c(6.9314724e-1f));
  return V::unless_less(shifted, kEighthsMagic - 125, fma(power, u * p, power));
}

/// Of scores times the scale; a scale that may turn their order goes on them first.
template <class V>
DSAKIT_INLINE float largest_score(SoftmaxRow& row) {
  if (!(row.scale > 0)) {
    for (int i = 0; i < row.n; ++i) row.x[i] *= row.scale;
    row.scale = 1;
  }
  const float* const x = row.x;
  return maximum<V>(row.n, -__builtin_inff(),
                    [=](std::int64_t i, int some) __attribute__((always_inline)) { return V::load_floats(x + i, some); });
}

template <class V, class Rounding, bool Rounded>
DSAKIT_INLINE void exponentials(SoftmaxRow& row, float largest) {
  using F = typename V::F;
  float* const x = row.x;
  const int n = row.n;
  const F unit = V::set_float(row.scale * 1.44269504f), most = V::set_float(largest);
  F sum[V::kParts] = {};
  const auto step = [&](int i, int r, int some) __attribute__((always_inline)) {
    F e = power_of_two<V>(V::load_floats(x + i, some) - most, unit);
    V::store_floats(x + i, e, some);
    if constexpr (Rounded) Rounding::store(row.rounded + i, e, some);
    if (some < V::kLanes) e = V::load_floats(x + i, some);
    sum[r] += e;
  };
  int i = 0;
  for (; i + 16 <= n; i += 16)
#pragma GCC unroll 4
    for (int r = 0; r < V::kParts; ++r) step(i + r * V::kLanes, r, V::kLanes);
#pragma GCC unroll 4
  for (int r = 0; r < V::kParts; ++r, i += V::kLanes)
    if (i < n) step(i, r, least(n - i, V::kLanes));
  row.largest = largest * row.scale, row.sum = folded<V>(sum);
}

/// The largest of a row is looked for beside the exponentials of the one before: it is a chain that they wait for.
template <class V, class Rounding>
void softmax(SoftmaxRow* rows, int count) noexcept {
  float largest = count > 0 ? largest_score<V>(rows[0]) : 0;
  for (int r = 0; r < count; ++r) {
    const float next = r + 1 < count ? largest_score<V>(rows[r + 1]) : 0;
    if (rows[r].rounded) exponentials<V, Rounding, true>(rows[r], largest);
    else exponentials<V, Rounding, false>(rows[r], largest);
    largest = next;
  }
}

template <class V>
void multiply_add(const float* __restrict x, const float* __restrict scale, int n, float* __restrict y) noexcept {
  for (int i = 0; i < n; ++i) y[i] = multiply_add(x[i], scale[i], y[i]);
}

template <class V, class T>
void divide(const float* x, float divisor, std::int64_t n, T* y) noexcept {
  const typename V::F by = V::set_float(divisor);
  store_row<V>(y, n, [=](std::int64_t i, int some) __attribute__((always_inline)) {
    return V::load_floats(x + i, some) / by;
  });
}

template <class V, class Rounding>
void multiply(const float* x, const float* scale, int n, typename Rounding::To* y) noexcept {
  each_register<V>(n, [=](std::int64_t i, int some) __attribute__((always_inline)) {
    typename V::F v = V::load_floats(x + i, some);
    if (scale) v *= V::load_floats(scale + i, some);
    Rounding::store(y + i, v, some);
  });
}

template <class V>
void blend(const float* __restrict x, float unit, float factor, int n, float keep, float* __restrict y) noexcept {
  if (keep == 0)
    for (int i = 0; i < n; ++i) y[i] = x[i] * unit * factor;
  else
    for (int i = 0; i < n; ++i) y[i] = y[i] * keep + x[i] * unit * factor;
}

/// Up to 64 columns stay in registers.
template <class V, class T>
void blend(const float* x, const T* const* rows, const float* weights, int count, float unit, float factor, int n,
           float keep, float* y) noexcept {
  using F = typename V::F;
  const auto some_of = [=]<int kAtOnce>(int i, int some) __attribute__((always_inline)) {
    F sum[kAtOnce];
#pragma GCC unroll 8
    for (int r = 0; r < kAtOnce; ++r) sum[r] = V::load_floats(x + i + r * V::kLanes, some);
    for (int j = 0; j < count; ++j)
#pragma GCC unroll 8
      for (int r = 0; r < kAtOnce; ++r) {
        const T* const row = rows[j] + i + r * V::kLanes;
        if constexpr (__is_same(T, std::int8_t)) sum[r] += V::to_float(V::load_codes(row, some)) * weights[j];
        else sum[r] += load_row<V>(row, some) * weights[j];
      }
#pragma GCC unroll 8
    for (int r = 0; r < kAtOnce; ++r) {
      float* const to = y + i + r * V::kLanes;
      F z = sum[r] * unit * factor;
      if (keep != 0) z = V::load_floats(to, some) * keep + z;
      V::store_floats(to, z, some);
    }
  };
  constexpr int kMost = V::kLanes >= 8 ? 64 / V::kLanes : 8;
  int i = 0;
  for (; i + kMost * V::kLanes <= n; i += kMost * V::kLanes) some_of.template operator()<kMost>(i, V::kLanes);
  for (; i < n; i += V::kLanes) some_of.template operator()<1>(i, least(n - i, V::kLanes));
}

/// Every digit but the first is the low byte as a signed number, which what is left has to make up for.
template <int Digits>
DSAKIT_INLINE void split_codes(const float* __restrict x, int n, float per_unit,
                                               std::uint8_t* __restrict codes, std::ptrdiff_t pitch) {
  for (int i = 0; i < n; ++i) {
    std::uint32_t left = __builtin_bit_cast(std::uint32_t, x[i] * per_unit + 12582912.0f) - 0x4b400000u;
    for (int d = Digits - 1; d >= 0; --d) {
      left += 128;  // biased digit in the low byte
      codes[d * pitch + i] = static_cast<std::uint8_t>(left);
      left = static_cast<std::uint32_t>(static_cast<std::int32_t>(left) >> 8);
    }
  }
}

template <class V>
void split_codes(const float* x, int n, float per_unit, int digits, std::uint8_t* codes,
                 std::ptrdiff_t pitch) noexcept {
  if (digits == 1) split_codes<1>(x, n, per_unit, codes, pitch);
  if (digits == 2) split_codes<2>(x, n, per_unit, codes, pitch);
  if (digits == 3) split_codes<3>(x, n, per_unit, codes, pitch);
}

/// Times 256 is exact, so an fma would have the same bits.
template <class V>
void join_codes(const std::int32_t* __restrict products, std::ptrdiff_t pitch, int n, int digits, float unit,
                float* __restrict y) noexcept {
  const std::int32_t *second = products + pitch, *third = second + pitch;
  if (digits == 1)
    for (int i = 0; i < n; ++i) y[i] = static_cast<float>(products[i]) * unit;
  if (digits == 2)
    for (int i = 0; i < n; ++i)
      y[i] = (static_cast<float>(products[i]) * 256.0f + static_cast<float>(second[i])) * unit;
  if (digits == 3)
    for (int i = 0; i < n; ++i)
      y[i] = ((static_cast<float>(products[i]) * 256.0f + static_cast<float>(second[i])) * 256.0f +
              static_cast<float>(third[i])) *
             unit;
}

/// a * sigmoid(a) * b of `some` elements of each of N registers, step by step: a chain of them is longer than what a core
/// looks ahead. exp(x) = 2^(n / 8) * (1 + e); x = n / 8 ln 2 + r, |r| <= ln 2 / 16; ln 2 = 0.693359375 (9 bits: n / 8 times it
/// is exact) - 2.1219444e-4. e = r + r^2 p(r), p minimax of degree 1: relative error 2.6e-8 before rounding. Without fma: the
/// bits go into a result.
template <class V, int N, class T>
DSAKIT_INLINE void gate(const T* a, const T* b, int some, typename V::F (&y)[N]) {
  using F = typename V::F;
  using I = typename V::I;
  const F magic = V::set_float(kEighthsMagic);
  F x[N], shifted[N], r[N];
  const auto each = [](auto f) __attribute__((always_inline)) {
#pragma GCC unroll 4
    for (int i = 0; i < N; ++i) f(i);
  };
  // exp(-x) only meets 1, so that less than exp(-40) is as good as that.
  each([&](int i) __attribute__((always_inline)) {
    x[i] = V::min(V::max(-load_row<V>(a + i * V::kLanes, some), V::set_float(-40)), V::set_float(89));
  });
  each([&](int i) __attribute__((always_inline)) { shifted[i] = x[i] * 1.44269504f + magic; });
  each([&](int i) __attribute__((always_inline)) { y[i] = shifted[i] - magic; });
  each([&](int i) __attribute__((always_inline)) { r[i] = y[i] * 2.12194440e-4f + (y[i] * -0.693359375f + x[i]); });
  each([&](int i) __attribute__((always_inline)) { y[i] = r[i] * 1.6666858e-1f + 5.0006450e-1f; });
  each([&](int i) __attribute__((always_inline)) { y[i] = r[i] * r[i] * y[i] + r[i]; });
  each([&](int i) __attribute__((always_inline)) {
    const F half = F(I(V::power_of_eighths(shifted[i])) - (1 << 23));  // of the power, which may overflow
    y[i] = half * y[i] + half;
  });
  each([&](int i) __attribute__((always_inline)) { y[i] = y[i] + y[i] + 1.0f; });
  each([&](int i) __attribute__((always_inline)) {
    y[i] = load_row<V>(a + i * V::kLanes, some) / y[i] * load_row<V>(b + i * V::kLanes, some);
  });
}

template <class V, class T>
void swiglu(const T* a, const T* b, std::int64_t n, T* y) noexcept {
  constexpr int kAtOnce = 4 * V::kLanes;
  std::int64_t i = 0;
  for (; i + kAtOnce <= n; i += kAtOnce) {
    typename V::F z[4];
    gate<V>(a + i, b + i, V::kLanes, z);
    store_two<V>(y + i, z[0], z[1]), store_two<V>(y + i + 2 * V::kLanes, z[2], z[3]);
  }
  each_register<V>(n - i, [=](std::int64_t rest, int some) __attribute__((always_inline)) {
    typename V::F z[1];
    gate<V>(a + i + rest, b + i + rest, some, z);
    store_kept<V>(y + i + rest, keep<V, T>(z[0]), some);
  });
}

DSAKIT_INLINE float root_of_mean(float sum, std::int64_t n, float epsilon) {
  return __builtin_sqrtf(sum * (1.0f / static_cast<float>(n)) + epsilon);
}

/// Canonical.
template <class V, class T>
DSAKIT_INLINE float squares_of_row(const T* x, std::int64_t n) {
  return canonical_sum<V>(n, [=](std::int64_t i, int some) __attribute__((always_inline)) {
    const typename V::F v = load_row<V>(x + i, some);
    return v * v;
  });
}

template <class V, class T>
float rms_norm(const T* x, const float* gamma, std::int64_t n, float epsilon, T* y) noexcept {
  const float rstd = 1.0f / root_of_mean(squares_of_row<V>(x, n), n, epsilon);
  store_row<V>(y, n, [=](std::int64_t i, int some) __attribute__((always_inline)) {
    prefetch_l2(x + n + i);  // of the next row
    return load_row<V>(x + i, some) * rstd * V::load_floats(gamma + i, some);
  });
  return rstd;
}

template <class V, class T>
float rms_norm_divided(const T* x, const float* gamma, std::int64_t n, float epsilon, T* y) noexcept {
  const float root = root_of_mean(squares_of_row<V>(x, n), n, epsilon);
  store_row<V>(y, n, [=](std::int64_t i, int some) __attribute__((always_inline)) {
    prefetch_l2(x + n + i);  // of the next row
    return load_row<V>(x + i, some) / root * V::load_floats(gamma + i, some);
  });
  return root;
}

template <class V, class T>
float add_rms_norm(const T* a, const T* b, const float* gamma, const float* beta, std::int64_t n, float epsilon, T* x,
                   T* y) noexcept {
  using F = typename V::F;
  const float sum = canonical_sum<V>(n, [=](std::int64_t i, int some) __attribute__((always_inline)) {
    const auto kept = keep<V, T>(load_row<V>(a + i, some) + load_row<V>(b + i, some));
    store_kept<V>(x + i, kept, some);
    const F v = unkept<V, T>(kept);
    return v * v;
  });
  const float rstd = 1.0f / root_of_mean(sum, n, epsilon);
  store_row<V>(y, n, [=](std::int64_t i, int some) __attribute__((always_inline)) {
    prefetch_l2(a + n + i), prefetch_l2(b + n + i);  // of the next rows
    F v = unkept<V, T>(keep<V, T>(load_row<V>(x + i, some) * rstd)) * V::load_floats(gamma + i, some);
    if (beta) {
      if constexpr (__is_same(T, f16)) v = unkept<V, T>(keep<V, T>(v));
      v += V::load_floats(beta + i, some);
    }
    return v;
  });
  return rstd;
}

template <class V, class T>
void weighted_sum(const T* const* rows, const float* weights, int count, std::int64_t n, T* y) noexcept {
  using F = typename V::F;
  constexpr int kAtOnce = 4;  // registers
  std::int64_t i = 0;
  for (; i + kAtOnce * V::kLanes <= n; i += kAtOnce * V::kLanes) {
    F sum[kAtOnce] = {};
    for (int j = 0; j < count; ++j)
#pragma GCC unroll 4
      for (int r = 0; r < kAtOnce; ++r) sum[r] += load_row<V>(rows[j] + i + r * V::kLanes, V::kLanes) * weights[j];
#pragma GCC unroll 2
    for (int r = 0; r < kAtOnce; r += 2) store_two<V>(y + i + r * V::kLanes, sum[r], sum[r + 1]);
  }
  each_register<V>(n - i, [=](std::int64_t rest, int some) __attribute__((always_inline)) {
    F sum{};
    for (int j = 0; j < count; ++j) sum += load_row<V>(rows[j] + i + rest, some) * weights[j];
    store_kept<V>(y + i + rest, keep<V, T>(sum), some);
  });
}

}  // namespace
}  // namespace dsakit
