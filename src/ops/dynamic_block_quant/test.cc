// SPDX-License-Identifier: Apache-2.0
#include "dsakit/dynamic_block_quant.hpp"

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
  std::vector<float> scale;
  bool operator==(const Result&) const = default;
};

Result quantised(const DynamicBlockQuantArgs& a, Context* context) {
  DynamicBlockQuantOuts o{};
  infer(a, o);
  Result r{std::vector<std::int8_t>(std::size_t(o.y.elements()), 99),
           std::vector<float>(std::size_t(o.scale.elements()), 99)};
  o.y.data = r.codes.data(), o.scale.data = r.scale.data();
  if (context) dynamic_block_quant(a, o, *context);
  else reference::dynamic_block_quant(a, o);
  return r;
}

void expect_everywhere(const DynamicBlockQuantArgs& a) {
  const Result wanted = quantised(a, nullptr);
  for (const Kernels* k : supported_kernels())
    for (int threads : {1, 2, 3}) {
      Context context({.threads = threads, .isa = k->isa});
      EXPECT_TRUE(quantised(a, &context) == wanted) << k->isa << ", threads " << threads;
    }
}

template <class T>
void every_form(std::int64_t rows, std::int64_t width, std::int64_t block) {
  Random r(std::uint64_t(rows * 1000 + width));
  std::vector<T> x;
  for (std::int64_t i = 0; i < rows * (width + 3); ++i)
    x.push_back(round_to<T>(r.uniform(-1, 1) * std::ldexp(1.0f, int(r.below(30)) - 15)));
  for (std::int64_t i = 0; i < width; ++i) x[std::size_t(i)] = round_to<T>(0);
  Tensor input = tensor(x.data(), {rows, width});
  input.stride[0] = width + 3;
  for (double least : {0.0, 20.0, 1e4}) expect_everywhere({.x = input, .min_scale = least, .col_block_size = block});
}

TEST(DynamicBlockQuant, EqualsTheReference) {
  for (std::int64_t width : {0, 1, 7, 127, 128, 129, 512, 700}) {
    every_form<bf16>(11, width, 128);
    every_form<f16>(9, width, 128);
    every_form<bf16>(3, width, 5);
  }
  expect_everywhere({.x = shaped(DType::bf16, {0, 4, 512})});
}

TEST(DynamicBlockQuant, KeepsTheAxesOfItsInput) {
  const std::vector<bf16> x(1800);
  DynamicBlockQuantOuts o{};
  infer({.x = tensor(x.data(), {2, 3, 300})}, o);
  EXPECT_EQ(o.y.rank, 3);
  EXPECT_EQ(o.scale.rank, 3);
  EXPECT_EQ(o.scale.shape[2], 3);
  EXPECT_EQ(o.y.dtype, DType::i8);
  EXPECT_EQ(o.scale.dtype, DType::f32);
}

TEST(DynamicBlockQuant, WorkedExamples) {
  Context context;
  const std::vector<bf16> x{to_bf16(0.5f), to_bf16(-1), to_bf16(0.25f), to_bf16(2), to_bf16(0), to_bf16(0)};
  const DynamicBlockQuantArgs a{.x = tensor(x.data(), {1, 6}), .col_block_size = 4};
  Result r = quantised(a, &context);
  EXPECT_EQ(r.codes, (std::vector<std::int8_t>{32, -64, 16, 127, 0, 0}));  // times 63.5, half to even
  EXPECT_EQ(r.scale, (std::vector<float>{2 * (1.0f / 127), 0}));
  auto floored = a;
  floored.min_scale = 100;  // products 50, -100, 25, 200; scale at most 1/100; the zero block stays zero
  r = quantised(floored, &context);
  EXPECT_EQ(r.codes, (std::vector<std::int8_t>{50, -100, 25, 127, 0, 0}));
  EXPECT_EQ(r.scale, (std::vector<float>{0.01f, 0}));
  const std::vector<bf16> tiny{to_bf16(1e-38f), to_bf16(-1e-38f)};  // 127/a overflows
  r = quantised({.x = tensor(tiny.data(), {1, 2}), .min_scale = 1}, &context);
  EXPECT_EQ(r.codes, (std::vector<std::int8_t>{0, 0}));
  EXPECT_EQ(r.scale, (std::vector<float>{0}));
}

void expect_refused(const DynamicBlockQuantArgs& a, Status status, const char* parameter,
                    DynamicBlockQuantOuts o = {}) {
  try {
    if (o.y) dynamic_block_quant(a, o);
    else infer(a, o);
    ADD_FAILURE() << "accepted, wanted a refusal of " << parameter;
  } catch (const Error& e) {
    EXPECT_EQ(e.status, status) << e.what();
    EXPECT_EQ(e.op, "dynamic_block_quant");
    EXPECT_EQ(e.parameter, parameter) << e.what();
  }
}

TEST(DynamicBlockQuant, Refusals) {
  std::vector<bf16> x(512);
  std::vector<float> wide(512);
  const Tensor input = tensor(x.data(), {2, 256});
  expect_refused({.x = {}}, Status::invalid_argument, "x");
  for (double bad : {-1.0, double(NAN), double(INFINITY), 1e39})
    expect_refused({.x = input, .min_scale = bad}, Status::invalid_argument, "min_scale");
  expect_refused({.x = input, .round_mode = "floor"}, Status::invalid_argument, "round_mode");
  expect_refused({.x = input, .dst_type = 291}, Status::unsupported, "dst_type");
  expect_refused({.x = input, .row_block_size = 0}, Status::invalid_argument, "row_block_size");
  expect_refused({.x = input, .row_block_size = 128}, Status::unsupported, "row_block_size");
  expect_refused({.x = input, .col_block_size = 0}, Status::invalid_argument, "col_block_size");
  expect_refused({.x = input, .col_block_size = 64, .level = Level::strict}, Status::unsupported, "col_block_size");
  expect_refused({.x = input, .dst_type_max = 1}, Status::unsupported, "dst_type_max");
  expect_refused({.x = tensor(x.data(), {512})}, Status::invalid_shape, "x");
  expect_refused({.x = tensor(x.data(), {2, 2, 2, 64})}, Status::invalid_shape, "x");
  expect_refused({.x = tensor(wide.data(), {2, 256})}, Status::invalid_dtype, "x");

  std::vector<std::int8_t> y(512, 99);
  std::vector<float> scale(4, 99);
  expect_refused({.x = input}, Status::invalid_shape, "scale", {tensor(y.data(), {2, 256}), tensor(scale.data(), {4})});
  expect_refused({.x = input}, Status::aliased, "y",
                 {tensor(reinterpret_cast<std::int8_t*>(x.data()), {2, 256}), tensor(scale.data(), {2, 2})});
  Context context({.check_values = true});
  x[300] = to_bf16(NAN);
  try {
    dynamic_block_quant({.x = input}, {tensor(y.data(), {2, 256}), tensor(scale.data(), {2, 2})}, context);
    ADD_FAILURE() << "a NaN was accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.status, Status::invalid_value);
    EXPECT_EQ(e.position, "[1][44]");
  }
  EXPECT_EQ(y, std::vector<std::int8_t>(512, 99));
  EXPECT_EQ(scale, std::vector<float>(4, 99));
}

}  // namespace
}  // namespace dsakit
