// SPDX-License-Identifier: Apache-2.0
#include "dsakit/swiglu.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "core/float16.hpp"
#include "core/random.hpp"
#include "core/view.hpp"
#include "dsakit/error.hpp"
#include "kernels/test_rungs.hpp"

namespace dsakit {
namespace {

template <class T>
std::vector<T> numbers(Random& r, std::int64_t n, float largest = 20) {
  std::vector<T> v;
  for (std::int64_t i = 0; i < n; ++i) v.push_back(round_to<T>(r.uniform(-largest, largest)));
  return v;
}

/// y of a call, by the reference if there is no context.
std::vector<float> gated(const SwigluArgs& a, Context* context) {
  SwigluOuts o{};
  infer(a, o);
  std::vector<float> memory(std::size_t(o.y.elements()) + 1, 99), y;
  o.y.data = memory.data();
  if (context) swiglu(a, o, *context);
  else reference::swiglu(a, o);
  for (std::int64_t i = 0; i < o.y.elements(); ++i) y.push_back(float_at(o.y, i));
  return y;
}

class SwigluOnRung : public EveryRung {
 protected:
  /// Within the ulps of exp and, in 16 bits, of one rounding; the same bits for every rung and number of threads.
  std::vector<float> expect_everywhere(const SwigluArgs& a) {
    const std::vector<float> wanted = gated(a, nullptr);
    Context plain({.threads = 1, .isa = "generic"});
    const std::vector<float> first = gated(a, &plain);
    const float unit = a.self.dtype == DType::bf16 ? 0x1p-7f : a.self.dtype == DType::f16 ? 0x1p-10f : 0x1p-21f;
    for (std::size_t i = 0; i < wanted.size(); ++i)
      EXPECT_LE(std::abs(first[i] - wanted[i]), unit * std::abs(wanted[i]) + (unit == 0x1p-10f ? 0x1p-24f : 0)) << i;
    for (int threads : {1, 2, 3}) {
      Context context({.threads = threads, .isa = kernels().isa});
      EXPECT_EQ(gated(a, &context), first) << threads << " threads";
    }
    return first;
  }
};
INSTANTIATE_TEST_SUITE_P(Rungs, SwigluOnRung, for_every_rung(), rung_name);

template <class T, class Expect>
void every_shape(Random& r, Expect expect) {
  for (std::int64_t m : {0, 1, 3, 16, 33, 2048, 2050}) {
    const auto x = numbers<T>(r, 6 * 2 * m);
    expect({.self = tensor(x.data(), {2, 3, 2 * m})});
    expect({.self = tensor(x.data(), {2, 2 * m, 3}), .dim = 1});
    expect({.self = tensor(x.data(), {2 * m, 2, 3}), .dim = -3});
    Tensor swapped = tensor(x.data(), {2, 3, 2 * m});
    std::swap(swapped.shape[0], swapped.shape[1]), std::swap(swapped.stride[0], swapped.stride[1]);
    expect({.self = swapped});
  }
  const auto wide = numbers<T>(r, 2 * 40000);
  expect({.self = tensor(wide.data(), {1, 2 * 40000})});
}

TEST_P(SwigluOnRung, MeetsTheReference) {
  Random r = random_of_test();
  const auto expect = [&](const SwigluArgs& a) { expect_everywhere(a); };
  every_shape<bf16>(r, expect);
  every_shape<f16>(r, expect);
  every_shape<float>(r, expect);
}

TEST_P(SwigluOnRung, WorkedExample) {
  const std::vector<bf16> x{to_bf16(1), to_bf16(2), to_bf16(3), to_bf16(4)};
  EXPECT_EQ(expect_everywhere({.self = tensor(x.data(), {4})}), (std::vector{2.1875f, 7.03125f}));
  EXPECT_EQ(gated({.self = tensor(x.data(), {4})}, nullptr), (std::vector{2.1875f, 7.03125f}));
  EXPECT_EQ(expect_everywhere({.self = tensor(x.data(), {4, 1}), .dim = 0}), (std::vector{2.1875f, 7.03125f}));
}

TEST_P(SwigluOnRung, FarGates) {
  const std::vector<float> x{1e30f, -1e30f, -88.5f, -90, 0, -0.0f, 2, 2, 1e9f, 2, 2, 2};
  const std::vector<float> y = expect_everywhere({.self = tensor(x.data(), {12})});
  EXPECT_EQ(y[0], 2e30f);
  EXPECT_EQ(y[1], 0);
  EXPECT_NEAR(y[2], -88.5e9 * std::exp(-88.5), 1e-33);
  EXPECT_EQ(y[3], 0);
  EXPECT_EQ(y[4], 0);
}

void expect_refused(const SwigluArgs& a, Status status, const char* parameter, SwigluOuts o = {}) {
  try {
    if (o.y) swiglu(a, o);
    else infer(a, o);
    ADD_FAILURE() << "accepted, wanted a refusal of " << parameter;
  } catch (const Error& e) {
    EXPECT_EQ(e.status, status) << e.what();
    EXPECT_EQ(e.op, "swiglu");
    EXPECT_EQ(e.parameter, parameter) << e.what();
  }
}

TEST(Swiglu, Refusals) {
  std::vector<float> x(24, 1);
  const Tensor good = tensor(x.data(), {4, 6});
  expect_refused({}, Status::invalid_argument, "self");
  expect_refused({.self = tensor(x.data(), {})}, Status::invalid_shape, "self");
  expect_refused({.self = good, .dim = 2}, Status::invalid_argument, "dim");
  expect_refused({.self = good, .dim = -3}, Status::invalid_argument, "dim");
  expect_refused({.self = tensor(x.data(), {8, 3})}, Status::invalid_shape, "self");
  expect_refused({.self = tensor(x.data(), {3, 8}), .dim = 0}, Status::invalid_shape, "self");
  Tensor codes = good;
  codes.dtype = DType::i32;
  expect_refused({.self = codes}, Status::invalid_dtype, "self");
  Tensor apart = good;
  apart.shape[1] = 2, apart.stride[1] = 3;
  expect_refused({.self = apart}, Status::invalid_stride, "self");
  std::vector<float> y(12, 99);
  expect_refused({.self = good}, Status::invalid_shape, "y", {tensor(y.data(), {2, 6})});
  expect_refused({.self = good}, Status::aliased, "y", {tensor(x.data() + 3, {4, 3})});
  EXPECT_EQ(x, std::vector<float>(24, 1));
}

}  // namespace
}  // namespace dsakit
