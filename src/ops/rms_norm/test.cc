// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "core/float16.hpp"
#include "core/random.hpp"
#include "core/view.hpp"
#include "dsakit/add_rms_norm.hpp"
#include "dsakit/error.hpp"
#include "dsakit/rms_norm.hpp"
#include "kernels/test_rungs.hpp"

namespace dsakit {
namespace {

using Axes = std::vector<std::int64_t>;

Tensor shaped_as(DType dtype, const Axes& axes) {
  Tensor t{.dtype = dtype, .rank = int(axes.size())};
  std::copy(axes.begin(), axes.end(), t.shape.begin());
  make_contiguous(t);
  return t;
}

/// Numbers of a dtype with a shape, in room enough for every dtype.
struct Numbers {
  Tensor shape;
  std::vector<float> storage;

  Numbers(DType dtype, const Axes& axes, const std::vector<float>& values)
      : shape(shaped_as(dtype, axes)), storage(values.size() + 1) {
    for (std::size_t i = 0; i < values.size(); ++i)
      if (dtype == DType::bf16) reinterpret_cast<bf16*>(storage.data())[i] = to_bf16(values[i]);
      else if (dtype == DType::f16) reinterpret_cast<f16*>(storage.data())[i] = to_f16(values[i]);
      else storage[i] = values[i];
  }
  Numbers(DType dtype, const Axes& axes, Random& r)
      : Numbers(dtype, axes, random_f32(r, shaped_as(dtype, axes).elements(), -3, 3)) {}
  operator Tensor() {
    Tensor t = shape;
    t.data = storage.data();
    return t;
  }
};

std::vector<float> values_of(const Tensor& t) {
  std::vector<float> v;
  for (std::int64_t i = 0; i < t.elements(); ++i) v.push_back(float_at(t, offset_of(t, i)));
  return v;
}

struct Result {
  std::vector<float> y, rstd, x;
  bool operator==(const Result&) const = default;
};

/// The results of a call, by the reference if there is no context.
template <class Outs, class Args>
Result normalised(const Args& a, void (*run)(const Args&, const Outs&, Context&),
                  void (*reference)(const Args&, const Outs&), Context* context) {
  Outs o{};
  infer(a, o);
  std::vector<float> y(std::size_t(o.y.elements()) + 1, 99), rstd(std::size_t(o.rstd.elements()) + 1, 99), x = y;
  o.y.data = y.data(), o.rstd.data = rstd.data();
  if constexpr (requires { o.x; }) o.x.data = x.data();
  if (context) run(a, o, *context);
  else reference(a, o);
  Result result{values_of(o.y), values_of(o.rstd), {}};
  if constexpr (requires { o.x; }) result.x = values_of(o.x);
  return result;
}
Result normalised(const RmsNormArgs& a, Context* c) {
  return normalised<RmsNormOuts, RmsNormArgs>(a, rms_norm, reference::rms_norm, c);
}
Result normalised(const AddRmsNormArgs& a, Context* c) {
  return normalised<AddRmsNormOuts, AddRmsNormArgs>(a, add_rms_norm, reference::add_rms_norm, c);
}
Result normalised(const AddRmsNormBiasArgs& a, Context* c) {
  return normalised<AddRmsNormBiasOuts, AddRmsNormBiasArgs>(a, add_rms_norm_bias, reference::add_rms_norm_bias, c);
}

class RmsNorms : public EveryRung {
 protected:
  template <class Args>
  Result expect_everywhere(const Args& a) {
    const Result wanted = normalised(a, nullptr);
    for (int threads : {1, 2, 3}) {
      Context context({.threads = threads, .isa = kernels().isa});
      EXPECT_TRUE(normalised(a, &context) == wanted) << threads << " threads";
    }
    return wanted;
  }
};
INSTANTIATE_TEST_SUITE_P(Rungs, RmsNorms, for_every_rung(), rung_name);

/// More rows than a task takes, in one piece and in several.
TEST_P(RmsNorms, LargeOnesEqualTheReference) {
  Random r = random_of_test();
  Numbers x(DType::f32, {260, 4, 1024}, r), x2(DType::f32, {260, 4, 1024}, r), gamma(DType::f32, {4, 1024}, r);
  expect_everywhere(RmsNormArgs{.self = x, .gamma = gamma});
  expect_everywhere(AddRmsNormArgs{x, x2, gamma, 1e-3});
  Numbers rows(DType::bf16, {2100, 1000}, r), weights(DType::bf16, {1000}, r);
  expect_everywhere(RmsNormArgs{.self = rows, .gamma = weights});
}

TEST_P(RmsNorms, EqualTheReference) {
  Random r = random_of_test();
  for (DType d : {DType::bf16, DType::f16, DType::f32})
    for (std::int64_t n : {1, 2, 15, 16, 17, 130, 1024})
      for (std::int64_t rows : {0, 1, 3, 70}) {
        Numbers x(d, {rows, n}, r), x2(d, {rows, n}, r), gamma(d, {n}, r), beta(d, {n}, r), wide(DType::f32, {n}, r);
        expect_everywhere(RmsNormArgs{.self = x, .gamma = gamma});
        expect_everywhere(RmsNormArgs{.self = x, .gamma = wide, .epsilon = 0.5});
        expect_everywhere(AddRmsNormArgs{x, x2, gamma, 1e-3});
        expect_everywhere(AddRmsNormBiasArgs{x, x2, gamma, beta});
        expect_everywhere(AddRmsNormBiasArgs{x, x2, gamma});
      }
}

TEST_P(RmsNorms, RowsOfSeveralAxesAndStrides) {
  Random r = random_of_test();
  for (DType d : {DType::bf16, DType::f16, DType::f32}) {
    Numbers wide(d, {4, 3, 5, 24}, r), other(d, {4, 3, 5, 24}, r), gamma(d, {5, 7}, r), beta(d, {5, 7}, r);
    Tensor x = wide, x2 = other, factors = gamma;
    for (Tensor* t : {&x, &x2})
      t->shape[3] = 7, std::swap(t->shape[0], t->shape[1]), std::swap(t->stride[0], t->stride[1]);
    const Result whole = expect_everywhere(RmsNormArgs{.self = x, .gamma = factors});
    EXPECT_EQ(whole.rstd.size(), 12u);
    expect_everywhere(AddRmsNormBiasArgs{x, x2, factors, beta});
    std::vector<float> flat = values_of(x);
    Numbers rows(d, {12, 35}, flat), weights(d, {35}, values_of(factors));
    EXPECT_TRUE(expect_everywhere(RmsNormArgs{.self = rows, .gamma = weights}) == whole);
    RmsNormOuts o{};
    infer({.self = x, .gamma = factors}, o);
    EXPECT_EQ(std::vector(o.rstd.shape.begin(), o.rstd.shape.begin() + o.rstd.rank), (Axes{3, 4, 1, 1}));
  }
}

TEST_P(RmsNorms, WorkedExamples) {
  const DType d = DType::bf16;
  Numbers x(d, {1, 4}, {1.25f, .5f, 0, -1}), zero(d, {1, 4}, {0, 0, 0, 0}), gamma(d, {4}, {1.5f, .75f, 1.25f, 3});
  const Result sum = expect_everywhere(AddRmsNormArgs{x, zero, gamma});
  EXPECT_EQ(std::bit_cast<std::uint32_t>(sum.rstd[0]), 0x3f98a618u);
  EXPECT_EQ(sum.y, (std::vector{2.234375f, 0.44921875f, 0.f, -3.59375f}));
  const Result plain = expect_everywhere(RmsNormArgs{.self = x, .gamma = gamma});
  EXPECT_EQ(std::bit_cast<std::uint32_t>(plain.rstd[0]), 0x3f98a618u);
  EXPECT_EQ(plain.y, (std::vector{2.234375f, 0.447265625f, 0.f, -3.578125f}));
  Numbers x1(d, {1, 4}, {1, -2, 2, 4}), x2(d, {1, 4}, {0.005859375f, 0, 0, 0});
  EXPECT_EQ(expect_everywhere(AddRmsNormArgs{x1, x2, gamma}).x, (std::vector{1.0078125f, -2.f, 2.f, 4.f}));
}

/// float16 rounds the product with gamma before beta is added, bfloat16 does not.
TEST_P(RmsNorms, Bias) {
  for (DType d : {DType::bf16, DType::f16}) {
    Random r = random_of_test();
    Numbers x1(d, {50, 64}, r), x2(d, {50, 64}, r), gamma(d, {64}, r), beta(d, {64}, r);
    const Result plain = expect_everywhere(AddRmsNormArgs{x1, x2, gamma});
    const Result biased = expect_everywhere(AddRmsNormBiasArgs{x1, x2, gamma, beta});
    EXPECT_TRUE(expect_everywhere(AddRmsNormBiasArgs{x1, x2, gamma}) == plain);
    EXPECT_EQ(biased.x, plain.x);
    EXPECT_EQ(biased.rstd, plain.rstd);
    std::vector<float> rounded_first;
    const std::vector<float> b = values_of(beta);
    for (std::size_t i = 0; i < plain.y.size(); ++i) {
      const float sum = plain.y[i] + b[i % 64];
      rounded_first.push_back(d == DType::bf16 ? to_float(to_bf16(sum)) : to_float(to_f16(sum)));
    }
    EXPECT_EQ(biased.y == rounded_first, d == DType::f16);
  }
}

template <class Outs, class Args>
void expect_refused(const char* op, const Args& a, Status status, const char* parameter, Outs o,
                    void (*run)(const Args&, const Outs&, Context&)) {
  Context context;
  try {
    if (o.y) run(a, o, context);
    else infer(a, o);
    ADD_FAILURE() << "accepted, wanted a refusal of " << parameter;
  } catch (const Error& e) {
    EXPECT_EQ(e.status, status) << e.what();
    EXPECT_EQ(e.op, op);
    EXPECT_EQ(e.parameter, parameter) << e.what();
  }
}

TEST(RmsNorm, Refusals) {
  Random r(1);
  const DType d = DType::bf16;
  Numbers x(d, {2, 3, 8}, r), gamma(d, {8}, r), half(DType::f16, {8}, r), wide(DType::f32, {2, 3, 8}, r),
      y(d, {2, 3, 8}, r);
  Numbers rows(d, {3}, r), none(d, {0}, std::vector<float>{}), scalar(d, {}, std::vector{1.f}),
      empty(d, {2, 0}, std::vector<float>{}), rstd(DType::f32, {2, 3, 1}, r);
  const auto refused = [&](RmsNormArgs a, Status s, const char* p, RmsNormOuts o = {}) {
    expect_refused("rms_norm", a, s, p, o, rms_norm);
  };
  const Tensor no;
  refused({no, gamma}, Status::invalid_argument, "self");
  refused({x, no}, Status::invalid_argument, "gamma");
  for (double epsilon : {0.0, -1e-6, double(INFINITY), double(NAN)})
    refused({x, gamma, epsilon}, Status::invalid_argument, "epsilon");
  refused({scalar, scalar}, Status::invalid_shape, "self");
  refused({x, scalar}, Status::invalid_shape, "gamma");
  refused({x, rows}, Status::invalid_shape, "gamma");
  refused({rows, x}, Status::invalid_shape, "gamma");
  refused({empty, none}, Status::invalid_shape, "gamma");
  refused({x, half}, Status::invalid_dtype, "gamma");
  refused({wide, gamma}, Status::invalid_dtype, "gamma");
  Tensor codes = x;
  codes.dtype = DType::i8;
  refused({codes, gamma}, Status::invalid_dtype, "self");
  Tensor apart = x;
  apart.stride[2] = 2;
  refused({apart, gamma}, Status::invalid_stride, "self");
  refused({x, gamma}, Status::invalid_shape, "y", {rows, rstd});
  refused({x, gamma}, Status::invalid_shape, "rstd", {y, rows});
  refused({x, gamma}, Status::invalid_dtype, "y", {wide, rstd});
  const std::vector<float> before = values_of(x);
  refused({x, gamma}, Status::aliased, "y", {x, rstd});
  EXPECT_EQ(values_of(x), before);
}

TEST(AddRmsNorm, Refusals) {
  Random r(1);
  const DType d = DType::bf16;
  Numbers x(d, {2, 3, 8}, r), other(d, {2, 3, 8}, r), gamma(d, {8}, r), wide(DType::f32, {8}, r), short_x(d, {2, 8}, r),
      beta(d, {3, 8}, r), y(d, {2, 3, 8}, r), rstd(DType::f32, {2, 3, 1}, r);
  const auto refused = [&](AddRmsNormArgs a, Status s, const char* p, AddRmsNormOuts o = {}) {
    expect_refused("add_rms_norm", a, s, p, o, add_rms_norm);
  };
  const auto refused_with = [&](const Tensor& b, Status s, const char* p, AddRmsNormBiasOuts o = {}) {
    expect_refused("add_rms_norm_bias", AddRmsNormBiasArgs{x, other, gamma, b}, s, p, o, add_rms_norm_bias);
  };
  const Tensor no;
  refused({no, x, gamma}, Status::invalid_argument, "x1");
  refused({x, no, gamma}, Status::invalid_argument, "x2");
  refused({x, other, no}, Status::invalid_argument, "gamma");
  refused({x, other, gamma, 0}, Status::invalid_argument, "epsilon");
  refused({x, short_x, gamma}, Status::invalid_shape, "x2");
  refused({x, other, wide}, Status::invalid_dtype, "gamma");
  Tensor halves = other;
  halves.dtype = DType::f16;
  refused({x, halves, gamma}, Status::invalid_dtype, "x2");
  refused_with(beta, Status::invalid_shape, "beta");
  refused_with(wide, Status::invalid_dtype, "beta");
  refused({x, other, gamma}, Status::aliased, "y", {y, rstd, y});
  refused({x, other, gamma}, Status::aliased, "x", {y, rstd, x});
  refused({x, other, gamma}, Status::invalid_argument, "x", {y, rstd, no});
}

}  // namespace
}  // namespace dsakit
