// SPDX-License-Identifier: Apache-2.0
#include "dsakit/dynamic_quant.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <vector>

#include "core/float16.hpp"
#include "core/random.hpp"
#include "dsakit/error.hpp"
#include "kernels/kernels.hpp"

namespace dsakit {
namespace {

struct Result {
  std::vector<std::int8_t> codes;
  std::vector<std::int32_t> packed;
  std::vector<float> scale;
  bool operator==(const Result&) const = default;
};

/// The call on rows of `a.input`, by the reference if there is no context.
Result quantised(const DynamicQuantArgs& a, Context* context) {
  DynamicQuantOuts o{};
  infer(a, o);
  Result r;
  if (o.y.dtype == DType::i32) r.packed.assign(std::size_t(o.y.elements()), -1), o.y.data = r.packed.data();
  else r.codes.assign(std::size_t(o.y.elements()), 99), o.y.data = r.codes.data();
  r.scale.assign(std::size_t(o.scale.elements()), 99), o.scale.data = r.scale.data();
  if (context) dynamic_quant(a, o, *context);
  else reference::dynamic_quant(a, o);
  return r;
}

void expect_everywhere(const DynamicQuantArgs& a) {
  const Result wanted = quantised(a, nullptr);
  for (const Kernels* k : supported_kernels())
    for (int threads : {1, 2, 3}) {
      Context context({.threads = threads, .isa = k->isa});
      EXPECT_TRUE(quantised(a, &context) == wanted) << k->isa << ", threads " << threads;
    }
}

/// Rows of many magnitudes, zeros and tiny ones among them.
template <class T>
std::vector<T> values(std::int64_t rows, std::int64_t width) {
  Random r(std::uint64_t(rows * 1000 + width));
  std::vector<T> v;
  for (std::int64_t i = 0; i < rows; ++i) {
    const float size = i % 5 == 4 ? 0 : std::ldexp(1.0f, int(r.below(20)) - 10) * (i % 7 == 6 ? 1e-38f : 1.0f);
    for (std::int64_t j = 0; j < width; ++j) v.push_back(round_to<T>(r.uniform(-size, size)));
  }
  return v;
}

template <class T>
void every_form(std::int64_t rows, std::int64_t width) {
  const auto x = values<T>(rows, width + 3);
  const auto smooth = values<T>(4, width);
  const std::vector<std::int32_t> ends = {1, 1, std::int32_t(std::max<std::int64_t>(rows / 2, 1)), std::int32_t(rows)};
  Tensor input = tensor(x.data(), {rows, width});
  input.stride[0] = width + 3;
  expect_everywhere({.input = input});
  expect_everywhere({.input = input, .smooth_scales = tensor(smooth.data(), {width})});
  expect_everywhere(
      {.input = input, .smooth_scales = tensor(smooth.data(), {4, width}), .group_index = tensor(ends.data(), {4})});
  const auto rows_of = values<T>(1, rows);
  for (const char* mode : {"perchannel", "pertensor"}) {
    const Tensor factors = mode[3] == 'c' ? tensor(rows_of.data(), {rows}) : tensor(smooth.data(), {width});
    expect_everywhere({.input = input, .quant_mode = mode});
    expect_everywhere({.input = input, .smooth_scales = factors, .quant_mode = mode});
    if (width % 8 == 0) expect_everywhere({.input = input, .dst_type = "quint4x2", .quant_mode = mode});
  }
  if (width % 8 == 0) expect_everywhere({.input = input, .dst_type = "quint4x2"});
}

TEST(DynamicQuant, EqualsTheReference) {
  for (std::int64_t width : {1, 7, 8, 16, 33, 64, 257, 1024}) {
    every_form<bf16>(23, width);
    every_form<f16>(9, width);
    every_form<float>(11, width);
  }
  every_form<bf16>(3, 7168);
  every_form<f16>(4096, 7);
}

TEST(DynamicQuant, KeepsTheAxesOfItsInput) {
  const auto x = values<bf16>(12, 16);
  DynamicQuantOuts o{};
  infer({.input = tensor(x.data(), {2, 3, 2, 16}), .dst_type = "quint4x2"}, o);
  EXPECT_EQ(o.y.rank, 4);
  EXPECT_EQ(o.y.shape[3], 2);
  EXPECT_EQ(o.y.dtype, DType::i32);
  EXPECT_EQ(o.scale.rank, 3);
  Context context;
  EXPECT_TRUE(quantised({.input = tensor(x.data(), {2, 3, 2, 16})}, &context) ==
              quantised({.input = tensor(x.data(), {12, 16})}, nullptr));
  expect_everywhere({.input = tensor(x.data(), {0, 16})});
}

TEST(DynamicQuant, ScalesOfColumnsAndOfAll) {
  const auto x = values<bf16>(12, 16);
  DynamicQuantOuts o{};
  infer({.input = tensor(x.data(), {2, 3, 2, 16}), .quant_mode = "perchannel"}, o);
  EXPECT_EQ(o.scale.rank, 3);
  EXPECT_EQ(o.scale.shape[1], 3);
  EXPECT_EQ(o.scale.shape[2], 16);
  expect_everywhere({.input = tensor(x.data(), {2, 3, 2, 16}), .quant_mode = "perchannel"});
  expect_everywhere({.input = tensor(x.data(), {2, 3, 2, 16}), .quant_mode = "pertensor"});
  expect_everywhere({.input = tensor(x.data(), {0, 16}), .quant_mode = "perchannel"});
  expect_everywhere({.input = tensor(x.data(), {0, 16}), .quant_mode = "pertensor"});
  const std::vector<float> z = {127, 1, 0, -63.5f, 2, 0};
  Context context;
  const Result columns = quantised({.input = tensor(z.data(), {2, 3}), .quant_mode = "perchannel"}, &context);
  EXPECT_EQ(columns.codes, (std::vector<std::int8_t>{127, 64, 0, -64, 127, 0}));
  EXPECT_EQ(columns.scale, (std::vector<float>{1, 2.0f / 127, 0}));
  const std::vector<float> halves = {1, 4};
  const Result smooth = quantised(
      {.input = tensor(z.data(), {2, 3}), .smooth_scales = tensor(halves.data(), {2}), .quant_mode = "perchannel"},
      &context);
  EXPECT_EQ(smooth.codes, (std::vector<std::int8_t>{64, 16, 0, -127, 127, 0}));
  EXPECT_EQ(smooth.scale, (std::vector<float>{2, 8.0f / 127, 0}));
  const Result all = quantised({.input = tensor(z.data(), {2, 3}), .quant_mode = "pertensor"}, &context);
  EXPECT_EQ(all.codes, (std::vector<std::int8_t>{127, 1, 0, -64, 2, 0}));
  EXPECT_EQ(all.scale, std::vector<float>{1});
}

TEST(DynamicQuant, WorkedExamples) {
  Context context;
  const std::vector<float> z = {0.8125f, -0.40625f, 0.10009765625f, 0.796875f, 0};
  const Result r = quantised({.input = tensor(z.data(), {1, 5})}, &context);
  EXPECT_EQ(r.codes, (std::vector<std::int8_t>{127, -64, 16, 125, 0}));
  EXPECT_EQ(std::bit_cast<std::uint32_t>(r.scale[0]), 0x3bd1a347u);
  // codes 1, -1, 2, -2, 7, -7, 0, 3
  const std::vector<float> four = {1, -1, 2, -2, 7, -7, 0, 3};
  const Result p = quantised({.input = tensor(four.data(), {1, 8}), .dst_type = "quint4x2"}, &context);
  EXPECT_EQ(std::uint32_t(p.packed[0]), 0x3097e2f1u);
  EXPECT_EQ(p.scale[0], 1);
}

void expect_refused(const DynamicQuantArgs& a, Status status, const char* parameter, const char* position = "",
                    DynamicQuantOuts o = {}) {
  try {
    if (o.y) dynamic_quant(a, o);
    else infer(a, o);
    ADD_FAILURE() << "accepted, wanted a refusal of " << parameter;
  } catch (const Error& e) {
    EXPECT_EQ(e.status, status) << e.what();
    EXPECT_EQ(e.op, "dynamic_quant");
    EXPECT_EQ(e.parameter, parameter) << e.what();
    EXPECT_EQ(e.position, position) << e.what();
  }
}

TEST(DynamicQuant, Refusals) {
  std::vector<bf16> x(48), smooth(36);
  std::vector<float> wide(48);
  const Tensor input = tensor(x.data(), {4, 12}), rows = tensor(smooth.data(), {3, 12});
  auto groups = [](const std::vector<std::int32_t>& ends) { return tensor(ends.data(), {std::int64_t(ends.size())}); };
  const std::vector<std::int32_t> decreasing = {3, 2, 4}, early = {1, 2, 3}, two = {1, 4};
  expect_refused({.input = {}}, Status::invalid_argument, "input");
  expect_refused({.input = tensor(x.data(), {48})}, Status::invalid_shape, "input");
  expect_refused({.input = input, .dst_type = "quint4x2"}, Status::invalid_shape, "input");
  expect_refused({.input = tensor(reinterpret_cast<std::int8_t*>(x.data()), {4, 12})}, Status::invalid_dtype, "input");
  expect_refused({.input = tensor(wide.data(), {4, 12}), .level = Level::strict}, Status::unsupported, "input");
  expect_refused({.input = input, .smooth_scales = tensor(wide.data(), {12})}, Status::invalid_dtype, "smooth_scales");
  expect_refused({.input = input, .smooth_scales = tensor(smooth.data(), {11})}, Status::invalid_shape,
                 "smooth_scales");
  expect_refused({.input = input, .smooth_scales = rows, .group_index = groups(two)}, Status::invalid_shape,
                 "smooth_scales");
  expect_refused({.input = input, .group_index = groups(two)}, Status::invalid_argument, "group_index");
  expect_refused({.input = input, .smooth_scales = rows, .group_index = groups(decreasing)}, Status::invalid_seqlen,
                 "group_index", "[1]");
  expect_refused({.input = input, .smooth_scales = rows, .group_index = groups(early)}, Status::invalid_seqlen,
                 "group_index", "[2]");
  expect_refused({.input = input, .dst_type = "int5"}, Status::invalid_argument, "dst_type");
  for (const char* mode : {"perchannel", "pertensor"}) {
    expect_refused({.input = input, .quant_mode = mode, .level = Level::strict}, Status::unsupported, "quant_mode");
    expect_refused({.input = input, .smooth_scales = rows, .group_index = groups(two), .quant_mode = mode},
                   Status::invalid_argument, "group_index");
  }
  expect_refused({.input = input, .smooth_scales = tensor(smooth.data(), {12}), .quant_mode = "perchannel"},
                 Status::invalid_shape, "smooth_scales");
  expect_refused({.input = input, .quant_mode = "perrow"}, Status::invalid_argument, "quant_mode");
  expect_refused({.input = input, .dst_type_max = 1}, Status::unsupported, "dst_type_max");

  std::vector<std::int8_t> y(48, 99);
  std::vector<float> scale(4, 99);
  expect_refused({.input = input}, Status::invalid_shape, "scale", "",
                 {tensor(y.data(), {4, 12}), tensor(scale.data(), {4, 1})});
  expect_refused({.input = input}, Status::aliased, "y", "",
                 {tensor(reinterpret_cast<std::int8_t*>(x.data()), {4, 12}), tensor(scale.data(), {4})});
  EXPECT_EQ(y, std::vector<std::int8_t>(48, 99));
}

}  // namespace
}  // namespace dsakit
