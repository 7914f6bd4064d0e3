// SPDX-License-Identifier: Apache-2.0
#include "dsakit/quantize.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "core/float16.hpp"
#include "core/random.hpp"
#include "dsakit/error.hpp"
#include "kernels/kernels.hpp"

namespace dsakit {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();

/// The codes of a call, as int32 (packed words for int4); by the reference if there is no context.
std::vector<std::int32_t> quantised(const QuantizeArgs& a, Context* context) {
  QuantizeOuts o{};
  infer(a, o);
  std::vector<std::int32_t> memory(std::size_t(o.y.elements()), -1);
  o.y.data = memory.data();
  if (context) quantize(a, o, *context);
  else reference::quantize(a, o);
  std::vector<std::int32_t> codes(memory.size());
  for (std::size_t i = 0; i < codes.size(); ++i)
    codes[i] = o.y.dtype == DType::i8   ? static_cast<std::int8_t*>(o.y.data)[i]
               : o.y.dtype == DType::u8 ? static_cast<std::uint8_t*>(o.y.data)[i]
                                        : memory[i];
  return codes;
}

void expect_everywhere(const QuantizeArgs& a) {
  const auto wanted = quantised(a, nullptr);
  for (const Kernels* k : supported_kernels())
    for (int threads : {1, 2, 3}) {
      Context context({.threads = threads, .isa = k->isa});
      ASSERT_EQ(quantised(a, &context), wanted) << k->isa << ", threads " << threads;
    }
}

template <class T>
std::vector<T> values(Random& r, std::int64_t n, float size) {
  std::vector<T> v;
  for (std::int64_t i = 0; i < n; ++i)
    v.push_back(round_to<T>(r.below(3) ? r.uniform(-size, size) : r.below(9) * 0.5f));
  return v;
}

template <class T>
void every_form(std::vector<std::int64_t> shape) {
  Random r(std::uint64_t(shape.back() * 7 + shape[0]));
  Tensor input{.dtype = dtype_of<T>, .rank = int(shape.size())};
  std::copy(shape.begin(), shape.end(), input.shape.begin());
  make_contiguous(input);
  for (int a = 0; a + 1 < input.rank; ++a) input.stride[a] += input.stride[a] / input.shape[input.rank - 1] * 3;
  std::int64_t room = 1;
  for (int a = 0; a < input.rank; ++a) room += (shape[std::size_t(a)] - 1) * input.stride[a];
  const auto x = values<T>(r, room, 300);
  input.data = const_cast<T*>(x.data());
  for (int axis = -input.rank; axis < input.rank; ++axis)
    for (const bool whole : {true, false}) {
      const std::int64_t n = whole ? 1 : shape[std::size_t(axis < 0 ? axis + input.rank : axis)];
      const auto scales = random_f32(r, n, 0.25f, 4);
      std::vector<std::int32_t> zero;
      for (std::int64_t i = 0; i < n; ++i) zero.push_back(std::int32_t(r.below(300) - 150));
      for (const char* dtype : {"qint8", "quint8", "int32"}) {
        expect_everywhere({.input = input, .scales = tensor(scales.data(), {n}), .dtype = dtype, .axis = axis});
        expect_everywhere({.input = input,
                           .scales = tensor(scales.data(), {n}),
                           .zero_points = tensor(zero.data(), {n}),
                           .dtype = dtype,
                           .axis = axis});
      }
    }
  for (int axis : {-2, -1}) {
    if (axis == -2 && input.rank < 2) continue;
    const int place = input.rank + axis;
    const std::int64_t n = shape[std::size_t(place)];
    const auto scales = values<T>(r, n, 2), offsets = values<T>(r, n, 9);
    Tensor s = tensor(scales.data(), {n}), z = tensor(offsets.data(), {n});
    for (const bool unfolded : {false, true}) {
      if (unfolded)
        for (Tensor* t : {&s, &z}) {
          t->rank = input.rank, t->shape.fill(1), t->shape[std::size_t(place)] = n;
          make_contiguous(*t);
        }
      for (const char* dtype : {"qint8", "quint4x2"}) {
        if (std::string_view(dtype) == "quint4x2" && shape.back() % 8 != 0) continue;
        expect_everywhere({.input = input, .scales = s, .dtype = dtype, .axis = axis, .div_mode = false});
        expect_everywhere(
            {.input = input, .scales = s, .zero_points = z, .dtype = dtype, .axis = axis, .div_mode = false});
      }
    }
  }
}

TEST(Quantize, EqualsTheReference) {
  for (const auto& shape :
       std::vector<std::vector<std::int64_t>>{{17}, {8}, {3, 16}, {5, 513}, {2, 3, 40}, {2, 3, 2, 9}}) {
    every_form<bf16>(shape);
    every_form<f16>(shape);
    every_form<float>(shape);
  }
}

/// int8 codes of fp32 numbers.
std::vector<std::int32_t> codes(const std::vector<float>& x, float scale, const char* dtype, bool div_mode,
                                const std::vector<std::int32_t>& zero = {}) {
  Context context;
  const float shift = zero.empty() ? 0 : float(zero[0]);
  QuantizeArgs a{.input = tensor(x.data(), {1, std::int64_t(x.size())}),
                 .scales = tensor(&scale, {1}),
                 .dtype = dtype,
                 .div_mode = div_mode};
  if (!zero.empty()) a.zero_points = div_mode ? tensor(zero.data(), {1}) : tensor(&shift, {1});
  const auto result = quantised(a, &context);
  EXPECT_EQ(result, quantised(a, nullptr));
  return result;
}

TEST(Quantize, WorkedExamples) {
  using V = std::vector<std::int32_t>;
  EXPECT_EQ(codes({0.25f}, 0.1f, "qint8", true), (V{2}));  // 2.5, half to even
  EXPECT_EQ(codes({0.5f, 1.5f, -0.5f, -1.5f, 2.5f}, 1, "int8", true), (V{0, 2, 0, -2, 2}));
  EXPECT_EQ(codes({0.5f, 1.5f, 2.5f}, 1, "int8", true, {1}), (V{1, 3, 3}));    // rounded, then shifted
  EXPECT_EQ(codes({0.5f, 1.5f, 2.5f}, 1, "qint8", false, {1}), (V{2, 2, 4}));  // shifted, then rounded
  EXPECT_EQ(codes({200, -200, 127.4f, -128.6f}, 1, "int8", true), (V{127, -128, 127, -128}));
  EXPECT_EQ(codes({200, -1, 255.5f, 254.5f}, 1, "quint8", true), (V{200, 0, 255, 254}));
  EXPECT_EQ(codes({3e9f, -3e9f, 16777216, kInf}, 1, "qint32", true), (V{INT32_MAX, INT32_MIN, 16777216, INT32_MAX}));
  EXPECT_EQ(codes({3e9f, 2147483520}, 1, "int32", true, {-1000000000}), (V{2000000000, 1147483520}));
  EXPECT_EQ(codes({-1e6f, 1e9f, 3}, 1, "quint8", true, {2000000000}), (V{255, 255, 255}));
  EXPECT_EQ(codes({-2e9f, 1e9f, 3}, 1, "quint8", true, {2000000000}), (V{0, 255, 255}));
  // scale 0: infinite, or NaN and hence 0
  EXPECT_EQ(codes({1, -1, 0, kNan, kInf}, 0, "int8", true, {5}), (V{127, -128, 0, 0, 127}));
  EXPECT_EQ(codes({1, kNan, kInf}, 0, "qint8", false, {5}), (V{5, 0, 0}));
  const auto packed = codes({1, -1, 2, -2, 7, -8, 0, 3}, 1, "quint4x2", false);
  ASSERT_EQ(packed.size(), 1u);
  EXPECT_EQ(std::uint32_t(packed[0]), 0x3087e2f1u);
  EXPECT_EQ(std::uint32_t(codes({99, -99, 0, 0, 0, 0, 0, 0.5f}, 1, "quint4x2", false)[0]), 0x00000087u);
}

TEST(Quantize, Bf16ScalesAndZeroPoints) {
  const std::vector<bf16> x{to_bf16(3), to_bf16(5)}, scale{to_bf16(2)}, zero{to_bf16(2.5f)};
  const QuantizeArgs a{.input = tensor(x.data(), {1, 2}),
                       .scales = tensor(scale.data(), {1}),
                       .zero_points = tensor(zero.data(), {1}),
                       .dtype = "int8"};
  Context context;
  EXPECT_EQ(quantised(a, &context), (std::vector<std::int32_t>{4, 4}));  // 1.5 -> 2 and 2.5 -> 2, plus 2
  expect_everywhere(a);
}

TEST(Quantize, NarrowScalesOfFp32Input) {
  Random r(3);
  const std::vector<float> x = random_f32(r, 5 * 40, -9, 9);
  std::vector<f16> halves;
  std::vector<bf16> brains;
  std::vector<float> wide_halves, wide_brains;
  for (int i = 0; i < 40; ++i) {
    halves.push_back(to_f16(r.uniform(0.01f, 0.2f))), wide_halves.push_back(to_float(halves.back()));
    brains.push_back(to_bf16(r.uniform(0.01f, 0.2f))), wide_brains.push_back(to_float(brains.back()));
  }
  QuantizeArgs a{.input = tensor(x.data(), {5, 40}), .scales = {}, .dtype = "int8"};
  for (const auto& [narrow, wide] : {std::pair{tensor(halves.data(), {40}), tensor(wide_halves.data(), {40})},
                                     {tensor(brains.data(), {40}), tensor(wide_brains.data(), {40})}}) {
    a.scales = wide;
    const auto wanted = quantised(a, nullptr);
    a.scales = narrow;
    EXPECT_EQ(quantised(a, nullptr), wanted);
    expect_everywhere(a);
  }
}

TEST(Quantize, EmptyInputs) {
  const float one = 1;
  for (const Tensor& x : {shaped(DType::f32, {0, 8}), shaped(DType::f32, {3, 0}), shaped(DType::f32, {0})}) {
    expect_everywhere({.input = x, .scales = tensor(&one, {1}), .dtype = "int8", .axis = -1});
    expect_everywhere({.input = x, .scales = tensor(&one, {1}), .dtype = "quint4x2", .axis = -1, .div_mode = false});
  }
}

void expect_refused(const QuantizeArgs& a, Status status, const char* parameter, const char* position = "",
                    QuantizeOuts o = {}, Context* context = nullptr) {
  try {
    if (o.y) quantize(a, o, context ? *context : default_context());
    else infer(a, o);
    ADD_FAILURE() << "accepted, wanted a refusal of " << parameter;
  } catch (const Error& e) {
    EXPECT_EQ(e.status, status) << e.what();
    EXPECT_EQ(e.op, "quantize");
    EXPECT_EQ(e.parameter, parameter) << e.what();
    EXPECT_EQ(e.position, position) << e.what();
  }
}

TEST(Quantize, Refusals) {
  std::vector<float> x(48, 1), s(48, 1);
  std::vector<bf16> half(48);
  std::vector<std::int32_t> i(48);
  std::vector<std::int64_t> wide(48);
  const QuantizeArgs good{.input = tensor(x.data(), {4, 12}), .scales = tensor(s.data(), {12}), .dtype = "int8"};
  auto with = [&](auto change) {
    QuantizeArgs a = good;
    change(a);
    return a;
  };
  using A = QuantizeArgs;
  expect_refused(with([](A& a) { a.input = {}; }), Status::invalid_argument, "input");
  expect_refused(with([](A& a) { a.scales = {}; }), Status::invalid_argument, "scales");
  expect_refused(with([](A& a) { a.dtype = ""; }), Status::invalid_argument, "dtype");
  for (const char* dtype : {"int16", "quint4x2", "float32"})
    expect_refused(with([&](A& a) { a.dtype = dtype; }), Status::invalid_argument, "dtype");
  for (const char* dtype : {"int8", "quint8", "qint32"})
    expect_refused(with([&](A& a) { a.dtype = dtype, a.div_mode = false; }), Status::invalid_argument, "dtype");
  for (const char* dtype : {"float8_e4m3fn", "float8_e5m2", "hifloat8"})
    expect_refused(with([&](A& a) { a.dtype = dtype; }), Status::unsupported, "dtype");
  expect_refused(with([](A& a) { a.input.rank = 0; }), Status::invalid_shape, "input");
  expect_refused(with([&](A& a) { a.input = tensor(x.data(), {12}); }), Status::invalid_argument, "axis");
  expect_refused(with([](A& a) { a.axis = 2; }), Status::invalid_argument, "axis");
  expect_refused(with([](A& a) { a.axis = -3; }), Status::invalid_argument, "axis");
  expect_refused(with([](A& a) { a.div_mode = false, a.dtype = "quint4x2"; }), Status::invalid_shape, "input");
  expect_refused(with([](A& a) { a.axis = 0; }), Status::invalid_shape, "scales");
  expect_refused(with([&](A& a) { a.scales = tensor(s.data(), {1, 12}); }), Status::invalid_shape, "scales");
  expect_refused(with([&](A& a) {
                   a.scales = tensor(s.data(), {1, 12, 1}), a.div_mode = false, a.dtype = "qint8";
                 }),
                 Status::invalid_shape, "scales");
  expect_refused(with([&](A& a) {
                   a.scales = tensor(s.data(), {4, 1}), a.div_mode = false, a.dtype = "qint8";
                 }),
                 Status::invalid_shape, "scales");
  expect_refused(with([&](A& a) { a.zero_points = tensor(i.data(), {11}); }), Status::invalid_shape, "zero_points");
  expect_refused(with([&](A& a) { a.zero_points = tensor(i.data(), {1}); }), Status::invalid_shape, "zero_points");
  expect_refused(with([&](A& a) { a.input = tensor(i.data(), {4, 12}); }), Status::invalid_dtype, "input");
  expect_refused(with([&](A& a) { a.scales = tensor(half.data(), {12}), a.level = Level::strict; }),
                 Status::invalid_dtype, "scales");
  expect_refused(with([&](A& a) {
                   a.input = tensor(half.data(), {4, 12}), a.div_mode = false, a.dtype = "qint8";
                 }),
                 Status::invalid_dtype, "scales");
  expect_refused(with([&](A& a) { a.zero_points = tensor(wide.data(), {12}); }), Status::invalid_dtype, "zero_points");
  expect_refused(with([&](A& a) { a.zero_points = tensor(i.data(), {12}), a.div_mode = false, a.dtype = "qint8"; }),
                 Status::invalid_dtype, "zero_points");
  expect_refused(with([&](A& a) { a.zero_points = tensor(half.data(), {12}), a.level = Level::strict; }),
                 Status::unsupported, "zero_points");
  expect_refused(with([](A& a) { a.input.stride[1] = 2; }), Status::invalid_stride, "input");
  expect_refused(with([](A& a) { a.input.stride[0] = 24, a.level = Level::strict; }), Status::invalid_stride, "input");

  std::vector<std::int8_t> y(48, 99);
  const QuantizeOuts out{tensor(y.data(), {4, 12})};
  expect_refused(good, Status::invalid_shape, "y", "", {tensor(y.data(), {48})});
  expect_refused(good, Status::invalid_dtype, "y", "", {tensor(reinterpret_cast<std::uint8_t*>(y.data()), {4, 12})});
  expect_refused(good, Status::aliased, "y", "", {tensor(reinterpret_cast<std::int8_t*>(s.data()), {4, 12})});
  Context context({.check_values = true});
  x[14] = kNan;
  expect_refused(good, Status::invalid_value, "input", "[1][2]", out, &context);
  for (const float scale : {0.0f, -0.0f, -1.0f, kNan}) {
    x[14] = 1, s[3] = scale;
    expect_refused(good, Status::invalid_value, "scales", "[3]", out, &context);
  }
  EXPECT_EQ(y, std::vector<std::int8_t>(48, 99));
}

}  // namespace
}  // namespace dsakit
