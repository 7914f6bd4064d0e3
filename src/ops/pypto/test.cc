// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "core/float16.hpp"
#include "core/random.hpp"
#include "core/view.hpp"
#include "dsakit/error.hpp"
#include "dsakit/packed_weight.hpp"
#include "kernels/test_rungs.hpp"
#include "ops/pypto/pypto.hpp"

namespace dsakit::pypto_op {
namespace {

using DType::boolean, DType::f32, DType::f64, DType::i16, DType::i32, DType::i64, DType::i8, DType::u16, DType::u32,
    DType::u64, DType::u8;

/// Elements of any dtype with a shape of their own.
struct Array {
  Tensor t;
  std::vector<std::uint64_t> memory;

  Array(DType dtype, std::initializer_list<std::int64_t> shape) : t(shaped(dtype, shape)) {
    memory.assign(std::size_t(t.elements() * size_of(dtype) / 8 + 1), 0x6363636363636363);
    t.data = memory.data();
  }
  Array(const Array& o) : t(o.t), memory(o.memory) { t.data = memory.data(); }
  std::int64_t bytes() const { return t.elements() * size_of(t.dtype); }
  bool operator==(const Array& o) const { return std::memcmp(t.data, o.t.data, std::size_t(bytes())) == 0; }
};

double at(const Tensor& t, std::int64_t offset) {
  if (t.dtype == i8) return static_cast<const std::int8_t*>(t.data)[offset];
  return t.dtype == i32 ? static_cast<const std::int32_t*>(t.data)[offset] : double(float_at(t, offset));
}

void put(const Tensor& t, std::int64_t offset, float x) {
  if (t.dtype == i8) static_cast<std::int8_t*>(t.data)[offset] = std::int8_t(x);
  else store(t, offset, x);
}

/// Small whole numbers, or any.
Array random(Random& r, DType dtype, std::initializer_list<std::int64_t> shape, bool whole) {
  Array a(dtype, shape);
  for (std::int64_t i = 0; i < a.t.elements(); ++i)
    if (dtype == i8) put(a.t, i, std::round(r.uniform(-128, 127)));
    else put(a.t, i, whole ? std::round(r.uniform(-3, 3)) : r.uniform(-1, 1));
  return a;
}

/// The same numbers with columns side by side.
struct Transposed : Array {
  explicit Transposed(const Array& a) : Array(a.t.dtype, {a.t.shape[0], a.t.shape[2], a.t.shape[1]}) {
    std::swap(t.shape[1], t.shape[2]), std::swap(t.stride[1], t.stride[2]);
    for (std::int64_t i = 0; i < t.elements(); ++i) put(t, offset_of(t, i), float(at(a.t, i)));
  }
};

Tensor slice(const Tensor& t, std::int64_t b) {
  Tensor matrix = t;
  matrix.rank = 2;
  matrix.data = static_cast<std::byte*>(t.data) + b * t.stride[0] * size_of(t.dtype);
  for (std::size_t axis : {0u, 1u}) matrix.shape[axis] = t.shape[axis + 1], matrix.stride[axis] = t.stride[axis + 1];
  return matrix;
}

Array product(const Tensor& a, const Tensor& b, DType out, Context& context, bool fma = false) {
  Array c(out, {a.shape[0], a.shape[1], b.shape[b.rank - 1]});
  matmul(a, b, c.t, fma, context);
  return c;
}

/// Sums of whole numbers: exact in double, and in what they are stored as.
Array sums(const Tensor& a, const Tensor& b, DType out) {
  Array c(out, {a.shape[0], a.shape[1], b.shape[2]});
  for (std::int64_t i = 0; i < c.t.elements(); ++i) {
    const std::int64_t n = c.t.shape[2], m = c.t.shape[1], batch = i / n / m, row = i / n % m, column = i % n;
    double sum = 0;
    for (std::int64_t k = 0; k < a.shape[2]; ++k)
      sum += at(a, batch * a.stride[0] + row * a.stride[1] + k) *
             at(b, (b.shape[0] == 1 ? 0 : batch * b.stride[0]) + k * b.stride[1] + column * b.stride[2]);
    if (out == i32) static_cast<std::int32_t*>(c.t.data)[i] = std::int32_t(sum);
    else put(c.t, i, float(sum));
  }
  return c;
}

struct Types {
  DType in, out;
};
constexpr Types kTypes[] = {{DType::bf16, f32}, {DType::bf16, DType::bf16}, {DType::f16, f32},
                            {DType::f16, DType::f16}, {f32, f32}, {i8, i32}};

class PyPtoMatmul : public EveryRung {};
INSTANTIATE_TEST_SUITE_P(Any, PyPtoMatmul, for_every_rung(), rung_name);

TEST_P(PyPtoMatmul, SumsOfWholeNumbers) {
  Random r = random_of_test();
  for (const Types& type : kTypes)
    for (const auto& [batch, m, k, n] : {std::tuple{3, 5, 17, 70}, {1, 70, 64, 64}, {2, 1, 1030, 3}, {1, 514, 516, 3},
                                         {2, 3, 0, 5}, {2, 0, 3, 5}, {0, 2, 3, 5}, {2, 3, 5, 0}, {2, 4, 5, 600}}) {
      SCOPED_TRACE(testing::Message() << name_of(type.in) << " " << batch << " " << m << " " << k << " " << n);
      const Array a = random(r, type.in, {batch, m, k}, true), b = random(r, type.in, {batch, k, n}, true);
      const Transposed across(b);
      const Array wanted = sums(a.t, b.t, type.out);
      for (int threads : {1, 2}) {
        Context context({.threads = threads, .isa = kernels().isa});
        for (bool fma : {false, true}) {
          EXPECT_EQ(product(a.t, b.t, type.out, context, fma), wanted);
          EXPECT_EQ(product(a.t, across.t, type.out, context, fma), wanted);
        }
      }
    }
}

/// Rows of any length that neither threads, nor the format of b, nor the other rows change.
TEST_P(PyPtoMatmul, SameBits) {
  Random r = random_of_test();
  for (const Types& type : kTypes)
    for (const auto& [batch, m, k, n] : {std::tuple{2, 66, 1100, 130}, {1, 3, 513, 300}, {3, 7, 40, 257}}) {
      SCOPED_TRACE(testing::Message() << name_of(type.in) << " " << batch << " " << m << " " << k << " " << n);
      const Array a = random(r, type.in, {batch, m, k}, false), b = random(r, type.in, {batch, k, n}, false);
      const Transposed across(b);
      Context one({.threads = 1, .isa = kernels().isa});
      const Array wanted = product(a.t, b.t, type.out, one);
      for (int threads : {1, 2, 8}) {
        Context context({.threads = threads, .isa = kernels().isa});
        EXPECT_EQ(product(a.t, b.t, type.out, context), wanted) << threads;
        EXPECT_EQ(product(a.t, across.t, type.out, context), wanted) << threads;
        if (type.in != DType::bf16) continue;
        EXPECT_EQ(product(a.t, PackedWeight(b.t).tensor(), type.out, context), wanted);
      }
      for (std::int64_t h = 0; h < batch; ++h) {
        Tensor row = a.t;
        row.data = static_cast<std::byte*>(a.t.data) + (h * m + m - 1) * k * size_of(type.in);
        row.shape[0] = row.shape[1] = 1;
        Array c(type.out, {1, n});
        const Tensor matrix = slice(b.t, h);
        row = slice(row, 0);
        matmul(row, matrix, c.t, false, one);
        EXPECT_EQ(0, std::memcmp(c.t.data, static_cast<std::byte*>(wanted.t.data) + (h * m + m - 1) * c.bytes(),
                                 std::size_t(c.bytes())));
        if (type.in != DType::bf16 && type.in != i8) continue;
        const PackedWeight packed(matrix);
        matmul(row, packed.tensor(), c.t, false, one);
        EXPECT_EQ(0, std::memcmp(c.t.data, static_cast<std::byte*>(wanted.t.data) + (h * m + m - 1) * c.bytes(),
                                 std::size_t(c.bytes())));
      }
    }
}

TEST_P(PyPtoMatmul, SharedOperandsAndRowsApart) {
  Random r = random_of_test();
  for (const Types& type : kTypes) {
    SCOPED_TRACE(name_of(type.in));
    const Array rows = random(r, type.in, {4, 6, 20}, true), b = random(r, type.in, {4, 20, 70}, true),
                one = random(r, type.in, {1, 20, 70}, true);
    Context context({.threads = 2, .isa = kernels().isa});
    Tensor apart = rows.t;  // every other row, of which 18 elements are taken
    apart.shape = {4, 3, 18}, apart.stride[1] = 40;
    Tensor part = b.t;
    part.shape[1] = 18;
    EXPECT_EQ(product(apart, part, type.out, context), sums(apart, part, type.out));
    Tensor same = rows.t, repeated = one.t;
    same.stride[0] = 0;
    repeated.shape[0] = 4, repeated.stride[0] = 0;
    EXPECT_EQ(product(same, b.t, type.out, context), sums(same, b.t, type.out));
    for (const Tensor& x : {rows.t, same}) {
      EXPECT_EQ(product(x, one.t, type.out, context), sums(x, one.t, type.out));
      EXPECT_EQ(product(x, repeated, type.out, context), sums(x, repeated, type.out));
      EXPECT_EQ(product(x, Transposed(one).t, type.out, context), sums(x, one.t, type.out));
      if (type.in != DType::bf16 && type.in != i8) continue;
      const PackedWeight packed(slice(one.t, 0));
      EXPECT_EQ(product(x, packed.tensor(), type.out, context), sums(x, one.t, type.out));
      if (type.in == i8) continue;  // stacks are bf16
      EXPECT_EQ(product(x, PackedWeight(one.t).tensor(), type.out, context), sums(x, one.t, type.out));
    }
    Tensor pairs = rows.t;  // rows of other matrices between
    pairs.shape = {3, 4, 20}, pairs.stride = {20, 120, 1};
    EXPECT_EQ(product(pairs, one.t, type.out, context), sums(pairs, one.t, type.out));
  }
}

TEST_P(PyPtoMatmul, FmaHasTheSameBitsEverywhere) {
  Random r = random_of_test();
  const Array a = random(r, DType::bf16, {2, 9, 1030}, false), b = random(r, DType::bf16, {2, 1030, 70}, false);
  Context plain({.isa = "generic", .same_products = true}), context({.isa = kernels().isa});
  const Array wanted = product(a.t, b.t, f32, plain);
  EXPECT_EQ(product(a.t, b.t, f32, context, true), wanted);
  EXPECT_EQ(product(a.t, PackedWeight(b.t).tensor(), f32, context, true), wanted);
  EXPECT_FALSE(context.same_products()) << "asked for one call";
  context.set_same_products(true);
  EXPECT_EQ(product(a.t, b.t, f32, context), wanted);
}

template <class F>
void expect_refusal(Status status, const char* parameter, F f) {
  try {
    f();
    ADD_FAILURE() << "accepted, wanted a refusal of " << parameter;
  } catch (const Error& e) {
    EXPECT_EQ(e.status, status) << e.what();
    EXPECT_EQ(e.parameter, parameter) << e.what();
  }
}

TEST(PyPto, RefusalsOfMatmul) {
  const auto refused = [](Status status, const char* parameter, auto change) {
    Array a(DType::bf16, {2, 3, 8}), b(DType::bf16, {2, 8, 5}), c(f32, {2, 3, 5});
    Tensor x = a.t, w = b.t, y = c.t;
    change(x, w, y);
    expect_refusal(status, parameter, [&] { matmul(x, w, y, false, default_context()); });
  };
  refused(Status::invalid_argument, "input", [](Tensor& x, Tensor&, Tensor&) { x = {}; });
  refused(Status::invalid_shape, "input", [](Tensor& x, Tensor&, Tensor&) { x.rank = 1; });
  refused(Status::invalid_shape, "mat2", [](Tensor&, Tensor& w, Tensor&) { w.shape[1] = 7; });
  refused(Status::invalid_shape, "mat2", [](Tensor& x, Tensor&, Tensor&) { x.shape[0] = 1; });
  refused(Status::invalid_dtype, "input", [](Tensor& x, Tensor&, Tensor&) { x.dtype = u16; });
  refused(Status::invalid_dtype, "mat2", [](Tensor&, Tensor& w, Tensor&) { w.dtype = DType::f16; });
  refused(Status::invalid_dtype, "out", [](Tensor&, Tensor&, Tensor& y) { y.dtype = i32; });
  refused(Status::invalid_shape, "out", [](Tensor&, Tensor&, Tensor& y) { y.shape[1] = 2; });
  refused(Status::invalid_stride, "out", [](Tensor&, Tensor&, Tensor& y) { y.stride[0] = 16; });
  refused(Status::invalid_stride, "input", [](Tensor& x, Tensor&, Tensor&) { x.stride[2] = 2; });
  refused(Status::invalid_stride, "mat2", [](Tensor&, Tensor& w, Tensor&) { w.stride[2] = 2; });
  refused(Status::invalid_device, "out", [](Tensor&, Tensor&, Tensor& y) { y.read_only = true; });
  refused(Status::aliased, "out", [](Tensor& x, Tensor&, Tensor& y) { x.data = y.data; });
  Array a(i8, {1, 1, 131072}), b(i8, {1, 131072, 1}), c(i32, {1, 1, 1});
  expect_refusal(Status::invalid_shape, "input", [&] { matmul(a.t, b.t, c.t, false, default_context()); });
}

// ---- casts, by other means: tables of all numbers of 16 bits, long double ------------------------------------------

template <class T> constexpr bool kHalf = std::is_same_v<T, f16> || std::is_same_v<T, bf16>;

template <class T>
long double value_of(T x) {
  if constexpr (kHalf<T>) return to_float(x);
  else return x;
}

/// Of magnitude i, in bits; what would be the first beyond the largest has the bits of infinity.
template <class T>
const std::vector<long double>& magnitudes() {
  static const std::vector<long double> all = [] {
    std::vector<long double> v;
    for (std::uint16_t bits = 0; std::isfinite(to_float(T{bits})); ++bits) v.push_back(to_float(T{bits}));
    v.push_back(2 * v.back() - v[v.size() - 2]);
    return v;
  }();
  return all;
}

/// Which of two neighbours x, between them, becomes; `odd`: the lower one's last bit.
bool goes_up(long double x, long double low, long double high, bool odd, bool negative, CastMode mode) {
  switch (mode) {
    case CastMode::rint: return x - low > high - x || (x - low == high - x && odd);
    case CastMode::round: return x - low >= high - x;
    case CastMode::floor: return negative;
    case CastMode::ceil: return !negative;
    case CastMode::odd: return !odd;
    default: return false;
  }
}

bool is_infinite_beyond(bool negative, CastMode mode) {
  if (mode == CastMode::floor || mode == CastMode::ceil) return negative == (mode == CastMode::floor);
  return mode == CastMode::rint || mode == CastMode::round;
}

template <class T>
std::uint16_t half_of(long double x, CastMode mode) {
  const auto& all = magnitudes<T>();
  const bool negative = std::signbit(x);
  const std::size_t infinity = all.size() - 1;
  const long double m = std::fabs(x);
  std::size_t i = std::size_t(std::upper_bound(all.begin(), all.end(), m) - all.begin()) - 1;
  if (!std::isinf(x)) {
    if (i < infinity && m > all[i]) i += goes_up(m, all[i], all[i + 1], i & 1, negative, mode);
    if (i >= infinity) i = is_infinite_beyond(negative, mode) ? infinity : infinity - 1;
  }
  return std::uint16_t(i | (negative ? 0x8000u : 0u));
}

float float_of(long double x, CastMode mode) {
  const auto nearest = float(x);
  if (nearest == x || mode == CastMode::rint) return nearest;
  const bool negative = std::signbit(x);
  const auto m = std::fabs(x);
  const float size = std::fabs(nearest), low = size < m ? size : std::nextafter(size, 0.0f),
              high = std::nextafter(low, std::numeric_limits<float>::infinity());
  const float result = goes_up(m, low, high, std::bit_cast<std::uint32_t>(low) & 1, negative, mode) ? high : low;
  return negative ? -result : result;
}

long double integral_of(long double x, CastMode mode) {
  switch (mode) {
    case CastMode::rint: return std::nearbyint(x);
    case CastMode::round: return std::round(x);
    case CastMode::floor: return std::floor(x);
    case CastMode::ceil: return std::ceil(x);
    default: return std::trunc(x);
  }
}

template <class T>
T integer_of(long double x, CastMode mode, bool saturate) {
  if (std::isnan(x) || (std::isinf(x) && !saturate)) return 0;
  const long double whole = std::isinf(x) ? x : integral_of(x, mode), least = std::numeric_limits<T>::min(),
                    most = std::numeric_limits<T>::max();
  if (saturate && whole < least) return std::numeric_limits<T>::min();
  if (saturate && whole > most) return std::numeric_limits<T>::max();
  const long double low = std::fmod(std::fabs(whole), 0x1p64L);
  return T(whole < 0 ? -std::uint64_t(low) : std::uint64_t(low));
}

/// Bits of the result, but of NaN: then all ones.
template <class From, class To>
std::uint64_t wanted(From x, CastMode mode, bool saturate, bool to_bool) {
  const long double v = value_of(x);
  if (to_bool) return v != 0;
  if constexpr (std::is_integral_v<To>) {
    return std::make_unsigned_t<To>(integer_of<To>(v, mode, saturate));
  } else {
    if (std::isnan(v)) return ~std::uint64_t(0);
    if constexpr (std::is_same_v<From, To> && kHalf<To>) return x.bits;
    else if constexpr (kHalf<To>) return half_of<To>(v, mode);
    else if constexpr (std::is_same_v<From, float>) return std::bit_cast<std::uint32_t>(float(integral_of(v, mode)));
    else return std::bit_cast<std::uint32_t>(float_of(v, mode));
  }
}

template <class From, class To>
void expect_cast(DType from, const std::vector<From>& x, DType to) {
  Context context({.threads = 1});
  std::vector<To> y(x.size() + 1);
  Tensor in = shaped(from, {std::int64_t(x.size())}), out = shaped(to, {std::int64_t(x.size())});
  in.data = const_cast<From*>(x.data()), out.data = y.data();
  for (int number = 1; number <= 6; ++number)
    for (const bool saturate : {false, true}) {
      const auto mode = CastMode(number);
      if (mode == CastMode::odd && (from != f32 || to != DType::f16)) continue;
      cast(in, out, mode, saturate, context);
      for (std::size_t i = 0; i < x.size(); ++i) {
        const std::uint64_t bits = wanted<From, To>(x[i], mode, saturate, to == boolean);
        std::uint64_t got = 0;
        std::memcpy(&got, &y[i], sizeof(To));
        if (~bits == 0 && !std::is_integral_v<To>) {
          ASSERT_TRUE(std::isnan(float_at(out, std::int64_t(i))));
          continue;
        }
        ASSERT_EQ(got, bits) << name_of(from) << " " << double(value_of(x[i])) << " to " << name_of(to) << " mode "
                             << int(mode) << " saturate " << saturate;
      }
    }
}

template <class From>
void expect_casts(DType from, const std::vector<From>& x) {
  expect_cast<From, float>(from, x, f32);
  expect_cast<From, f16>(from, x, DType::f16);
  expect_cast<From, bf16>(from, x, DType::bf16);
  expect_cast<From, std::int8_t>(from, x, i8);
  expect_cast<From, std::int16_t>(from, x, i16);
  expect_cast<From, std::int32_t>(from, x, i32);
  expect_cast<From, std::int64_t>(from, x, i64);
  expect_cast<From, std::uint8_t>(from, x, u8);
  expect_cast<From, std::uint16_t>(from, x, u16);
  expect_cast<From, std::uint32_t>(from, x, u32);
  expect_cast<From, std::uint64_t>(from, x, u64);
  expect_cast<From, std::uint8_t>(from, x, boolean);
}

template <class T>
std::vector<T> all_halves() {
  std::vector<T> all;
  for (unsigned bits = 0; bits < 65536; ++bits) all.push_back({std::uint16_t(bits)});
  return all;
}

TEST(PyPtoCast, EveryFloat16) { expect_casts(DType::f16, all_halves<f16>()); }
TEST(PyPtoCast, EveryBfloat16) { expect_casts(DType::bf16, all_halves<bf16>()); }

/// Around everything where something changes, and any bits; in two orders, so that parts of a block with and without
/// what does not fit 32 bits occur.
TEST(PyPtoCast, Float32) {
  std::vector<float> x;
  const auto around = [&x](double v) {
    for (const double sign : {1.0, -1.0}) {
      const float f = float(sign * v);
      x.insert(x.end(), {std::nextafter(f, -INFINITY), f, std::nextafter(f, INFINITY)});
    }
  };
  for (int e = -150; e < 128; ++e)
    for (double m : {1.0, 1 + 0x1p-11, 1 + 0x1p-10, 1 + 3 * 0x1p-11, 1 + 0x1p-8, 1 + 3 * 0x1p-8, 1.5, 1.25, 2 - 0x1p-12,
                     2 - 0x1p-9})
      around(std::ldexp(m, e));
  for (double v : {0.0, 65504.0, 65519.0, 65520.0, 65535.0, 70000.0, 3.4e38, 3e9, 127.5, 128.5, 255.5, 32767.5,
                   65535.5})
    around(v);
  for (int i = 0; i < 600; ++i) around(i / 2.0);
  std::sort(x.begin(), x.end());
  Random r = random_of_test();
  for (int i = 0; i < 20000; ++i) x.push_back(std::bit_cast<float>(std::uint32_t(r.next())));
  for (int i = 0; i < 20000; ++i) x.push_back(float(r.uniform(-300, 300)));
  x.insert(x.end(), {INFINITY, -INFINITY, NAN});
  expect_casts(f32, x);
}

template <class T>
std::vector<T> integers(Random& r) {
  std::vector<T> x;
  for (int bit = 0; bit < int(8 * sizeof(T)); ++bit)
    for (int other = 0; other <= bit; ++other)
      for (int more : {-1, 0, 1}) {
        const std::uint64_t v = (std::uint64_t(1) << bit) + (std::uint64_t(1) << other) + std::uint64_t(more);
        x.push_back(T(v)), x.push_back(T(-v));
      }
  for (int i = 0; i < 3000; ++i) x.push_back(T(r.next() >> (i % 64)));
  return x;
}

TEST(PyPtoCast, Integers) {
  Random r = random_of_test();
  expect_casts(i8, integers<std::int8_t>(r));
  expect_casts(i16, integers<std::int16_t>(r));
  expect_casts(i32, integers<std::int32_t>(r));
  expect_casts(i64, integers<std::int64_t>(r));
  expect_casts(u8, integers<std::uint8_t>(r));
  expect_casts(u16, integers<std::uint16_t>(r));
  expect_casts(u32, integers<std::uint32_t>(r));
  expect_casts(u64, integers<std::uint64_t>(r));
}

TEST(PyPtoCast, BoolsAreOnes) {
  const std::vector<std::uint8_t> x{0, 1, 0, 1};
  expect_casts(boolean, x);
  const std::uint8_t odd[] = {2, 0, 255};
  float y[3];
  Tensor in = tensor(odd, {3});
  in.dtype = boolean;
  cast(in, tensor(y, {3}), CastMode::rint, false, default_context());
  EXPECT_EQ(y[0] + 2 * y[1] + 4 * y[2], 5);
}

TEST(PyPtoCast, ManyOnAnyNumberOfThreadsAndInPlace) {
  Random r = random_of_test();
  std::vector<float> x(100001);
  for (float& v : x) v = float(r.uniform(-200, 200));
  const auto n = std::int64_t(x.size());
  std::vector<std::int32_t> one(x.size()), many(x.size());
  Context single({.threads = 1}), context({.threads = 8});
  cast(tensor(x.data(), {n}), tensor(one.data(), {n}), CastMode::round, true, single);
  cast(tensor(x.data(), {n}), tensor(many.data(), {n}), CastMode::round, true, context);
  EXPECT_EQ(one, many);
  Tensor same = tensor(x.data(), {n});
  same.dtype = i32;
  cast(tensor(x.data(), {n}), same, CastMode::round, true, context);
  EXPECT_EQ(0, std::memcmp(x.data(), one.data(), x.size() * 4));
}

TEST(PyPtoCast, Refusals) {
  Array x(f32, {4, 2}), y(i8, {4, 2});
  const auto refused = [](Status status, const char* parameter, const Tensor& in, const Tensor& out, int mode) {
    expect_refusal(status, parameter, [&] { cast(in, out, CastMode(mode), false, default_context()); });
  };
  refused(Status::invalid_argument, "mode", x.t, y.t, 0);
  refused(Status::invalid_argument, "mode", x.t, y.t, 6);
  refused(Status::invalid_argument, "mode", x.t, y.t, 7);
  refused(Status::invalid_argument, "input", {}, y.t, 1);
  refused(Status::invalid_argument, "out", x.t, {}, 1);
  Tensor other = y.t;
  other.shape[0] = 3;
  refused(Status::invalid_shape, "out", x.t, other, 1);
  other = y.t, other.read_only = true;
  refused(Status::invalid_device, "out", x.t, other, 1);
  other = y.t, other.data = static_cast<std::byte*>(x.t.data) + 1;
  refused(Status::aliased, "out", x.t, other, 1);
  other = x.t, other.dtype = f64;
  refused(Status::invalid_dtype, "input", other, y.t, 1);
  other = x.t, other.stride[0] = 3;
  refused(Status::invalid_stride, "input", other, y.t, 1);
}

// ---- rows ----------------------------------------------------------------------------------------------------------

class PyPtoRows : public EveryRung {};
INSTANTIATE_TEST_SUITE_P(Any, PyPtoRows, for_every_rung(), rung_name);

TEST_P(PyPtoRows, CanonicalSums) {
  Random r = random_of_test();
  for (const auto& [rows, n] : {std::pair{3, 18}, {1, 1}, {70, 1000}, {5, 0}, {0, 7}}) {
    std::vector<float> x(std::size_t(rows * n) + 1), y(std::size_t(rows) + 1, 99);
    for (float& v : x) v = float(r.uniform(-1, 1));
    Context context({.threads = 2, .isa = kernels().isa});
    row_sum(tensor(x.data(), {rows, n}), tensor(y.data(), {rows}), context);
    for (int row = 0; row < rows; ++row) {
      float lane[16] = {};
      for (int i = 0; i < n; ++i) lane[i % 16] = lane[i % 16] + x[std::size_t(row * n + i)];
      for (int half = 8; half > 0; half /= 2)
        for (int i = 0; i < half; ++i) lane[i] = lane[i] + lane[i + half];
      EXPECT_EQ(y[std::size_t(row)], lane[0]) << rows << " " << n << " " << row;
    }
  }
  Array x(f32, {3, 2}), y(f32, {4});
  expect_refusal(Status::invalid_shape, "input", [&] { row_sum(x.t, y.t, default_context()); });
}

TEST(PyPto, ExpWithinAnUlp) {
  std::vector<float> x;
  for (std::uint64_t bits = 0; bits <= 0xffffffffu; bits += 1009)
    x.push_back(std::bit_cast<float>(std::uint32_t(bits)));
  for (float f : {88.72283f, 88.72284f, -87.33655f, -103.97208f, -103.97209f, -104.0f, 0.0f, -0.0f, 1e-45f})
    x.push_back(f);
  x.insert(x.end(), {INFINITY, -INFINITY, NAN});
  std::vector<float> y(x.size());
  const auto n = std::int64_t(x.size());
  exp(tensor(x.data(), {n}), tensor(y.data(), {n}), default_context());
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (std::isnan(x[i])) {
      ASSERT_TRUE(std::isnan(y[i]));
      continue;
    }
    const double exact = std::exp(double(x[i]));
    const float nearest = float(exact);
    if (!std::isfinite(nearest) || nearest == 0) {
      ASSERT_EQ(y[i], nearest) << x[i];
      continue;
    }
    const double ulp = std::ldexp(1.0, std::max(std::ilogb(nearest) - 23, -149));
    ASSERT_LE(std::fabs(double(y[i]) - exact), 0.51 * ulp) << x[i];
  }
  exp(tensor(x.data(), {n}), tensor(x.data(), {n}), default_context());
  EXPECT_EQ(0, std::memcmp(x.data(), y.data(), x.size() * 4));
}

TEST_P(PyPtoRows, Statistics) {
  Context context({.threads = 2, .isa = kernels().isa});
  std::vector<float> x = {3, -7, 0, -0.0f, INFINITY, -INFINITY, NAN, 1e-45f};
  x.resize(1500, 2.5f);
  const Statistics s = statistics(tensor(x.data(), {1500}), context);
  EXPECT_EQ(s.min, -7);
  EXPECT_EQ(s.max, 3);
  EXPECT_EQ((std::tuple{s.nan, s.inf, s.zero}), (std::tuple{1, 2, 2}));
  std::vector<bf16> narrow(x.size());
  kernels().round(x.data(), 1500, narrow.data());
  const Statistics b = statistics(tensor(narrow.data(), {1500}), context);
  EXPECT_EQ((std::tuple{b.min, b.max, b.nan, b.inf, b.zero}), (std::tuple{-7.0, 3.0, 1, 2, 3}));
  std::vector<std::int8_t> codes = {5, -128, 0, 127};
  const Statistics c = statistics(tensor(codes.data(), {4}), context);
  EXPECT_EQ((std::tuple{c.min, c.max, c.nan, c.inf, c.zero}), (std::tuple{-128.0, 127.0, 0, 0, 1}));
  EXPECT_EQ(c.checksum, 0x7da46644u);  // on every machine
  for (std::size_t i = 0; i < x.size(); i += 97) {  // every byte counts
    std::vector<float> other = x;
    reinterpret_cast<unsigned char*>(other.data())[4 * i + i % 4] ^= 1;
    EXPECT_NE(statistics(tensor(other.data(), {1500}), context).checksum, s.checksum) << i;
  }
  const Statistics none = statistics(tensor(x.data(), {0}), context);
  EXPECT_EQ((std::tuple{none.min, none.max, none.zero}), (std::tuple{double(INFINITY), -double(INFINITY), 0}));
}

}  // namespace
}  // namespace dsakit::pypto_op
