// SPDX-License-Identifier: Apache-2.0
#include "dsakit/quant_matmul.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "core/float16.hpp"
#include "core/random.hpp"
#include "core/view.hpp"
#include "dsakit/error.hpp"
#include "dsakit/packed_weight.hpp"
#include "kernels/test_rungs.hpp"

namespace dsakit {
namespace {

using Codes = std::vector<std::int8_t>;

/// y of a call, by the reference if there is no context: its bytes.
std::vector<std::byte> bytes_of(const QuantMatmulArgs& a, Context* context) {
  QuantMatmulOuts o{};
  infer(a, o);
  std::vector<std::byte> memory(std::size_t(o.y.elements() * size_of(o.y.dtype)) + 1, std::byte{99});
  o.y.data = memory.data();
  if (context) quant_matmul(a, o, *context);
  else reference::quant_matmul(a, o);
  return memory;
}

std::vector<float> values_of(const QuantMatmulArgs& a) {
  QuantMatmulOuts o{};
  infer(a, o);
  auto memory = bytes_of(a, &default_context());
  EXPECT_EQ(memory, bytes_of(a, nullptr));
  o.y.data = memory.data();
  std::vector<float> y;
  for (std::int64_t i = 0; i < o.y.elements(); ++i)
    y.push_back(o.y.dtype == DType::i8    ? float(static_cast<std::int8_t*>(o.y.data)[i])
                : o.y.dtype == DType::i32 ? float(static_cast<std::int32_t*>(o.y.data)[i])
                                          : float_at(o.y, i));
  return y;
}

class QuantMatmul : public EveryRung {
 protected:
  void expect_as_reference(const QuantMatmulArgs& a) {
    const auto wanted = bytes_of(a, nullptr);
    for (int threads : {1, 2, 3}) {
      Context context({.threads = threads, .isa = kernels().isa});
      EXPECT_EQ(bytes_of(a, &context), wanted) << threads << " threads";
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Any, QuantMatmul, for_every_rung(), rung_name);

/// Matrices and everything that an output may take.
struct Data {
  std::int64_t m, k, n;
  Codes x, w;
  std::vector<float> scale, offset, row, bias;
  std::vector<std::int32_t> ints;
  std::vector<bf16> narrow;

  Data(Random& r, std::int64_t m, std::int64_t k, std::int64_t n, std::int64_t batch = 1)
      : m(m),
        k(k),
        n(n),
        x(random_i8(r, batch * m * k)),
        w(random_i8(r, batch * k * n)),
        scale(random_f32(r, n, -0.001f, 0.002f)),
        offset(random_f32(r, n, -20, 20)),
        row(random_f32(r, m, 0.01f, 2)),
        bias(random_f32(r, n, -3, 3)) {
    for (std::int64_t j = 0; j < n; ++j)
      ints.push_back(std::int32_t(r.uniform(-9000, 9000))), narrow.push_back(to_bf16(scale[std::size_t(j)]));
  }
  QuantMatmulArgs args() {
    return {.x1 = tensor(x.data(), {m, k}), .x2 = tensor(w.data(), {k, n}), .scale = tensor(scale.data(), {n})};
  }
  /// Every output with everything it takes, and with as little as it takes.
  std::vector<QuantMatmulArgs> forms(QuantMatmulArgs a) {
    std::vector<QuantMatmulArgs> all;
    for (const char* dtype : {"", "int8", "float16", "bfloat16", "int32"})
      for (bool everything : {false, true}) {
        QuantMatmulArgs b = a;
        b.output_dtype = dtype;
        const std::string_view name = dtype;
        if (everything && name != "int32") b.bias = tensor(ints.data(), {n});
        if (everything && (name.empty() || name == "int8")) b.offset = tensor(offset.data(), {n});
        if (everything) b.scale = tensor(narrow.data(), {n});
        all.push_back(b);
        if (name != "float16" && name != "bfloat16") continue;
        b.pertoken_scale = tensor(row.data(), {m});
        if (everything) b.bias = tensor(bias.data(), {n});
        all.push_back(b);
      }
    return all;
  }
};

TEST_P(QuantMatmul, EqualsTheReference) {
  Random r = random_of_test();
  for (const auto& [m, k, n] :
       {std::tuple{1, 5, 3}, {7, 64, 64}, {3, 130, 200}, {70, 33, 65}, {2, 0, 5}, {0, 3, 4}, {3, 4, 0}}) {
    SCOPED_TRACE(testing::Message() << m << " x " << k << " x " << n);
    Data d(r, m, k, n);
    for (const auto& a : d.forms(d.args())) expect_as_reference(a);
  }
}

/// Row-major, transposed, FRACTAL_NZ and packed weights hold the same numbers.
TEST_P(QuantMatmul, AnyFormatOfTheWeight) {
  Random r = random_of_test();
  for (const auto& [m, k, n] : {std::tuple{5, 37, 100}, {1, 600, 300}, {8, 1100, 200}, {9, 530, 65}, {2, 4700, 90},
                                {13, 600, 300}, {32, 1100, 70}, {70, 2100, 90}, {66, 700, 330}}) {
    SCOPED_TRACE(testing::Message() << m << " x " << k << " x " << n);
    const std::int64_t padded = (k + 15) / 16 * 16;
    Data d(r, m, k, n);
    Codes across(std::size_t(n * (k + 3))), nz(std::size_t((n + 31) / 32 * padded * 32), 99);
    for (std::int64_t i = 0; i < k; ++i)
      for (std::int64_t j = 0; j < n; ++j) {
        across[std::size_t(j * (k + 3) + i)] = d.w[std::size_t(i * n + j)];
        nz[std::size_t(j / 32 * padded * 32 + i * 32 + j % 32)] = d.w[std::size_t(i * n + j)];
      }
    QuantMatmulArgs a = d.args();
    a.pertoken_scale = tensor(d.row.data(), {m}), a.output_dtype = "bfloat16";
    const auto wanted = bytes_of(a, nullptr);
    Tensor transposed = tensor(across.data(), {k, n});
    transposed.stride = {1, k + 3};
    Tensor fractal = tensor(nz.data(), {k, n});
    fractal.format = Format::NZ;
    const PackedWeight packed(a.x2);
    for (const Tensor& w : {transposed, fractal, packed.tensor()}) {
      a.x2 = w;
      EXPECT_EQ(bytes_of(a, nullptr), wanted);
      expect_as_reference(a);
    }
  }
}

/// Leading axes are those of both, of one, or repeat.
TEST_P(QuantMatmul, LeadingAxes) {
  Random r = random_of_test();
  const std::int64_t m = 3, k = 20, n = 70;
  Data d(r, m, k, n, 6);
  std::int8_t *x = d.x.data(), *w = d.w.data();
  const Tensor xs[] = {tensor(x, {m, k}), tensor(x, {3, m, k}), tensor(x, {2, 1, m, k}), tensor(x, {2, 3, m, k})};
  const Tensor ws[] = {tensor(w, {k, n}), tensor(w, {1, 1, k, n}), tensor(w, {3, k, n}), tensor(w, {2, 3, k, n})};
  for (const Tensor& x1 : xs)
    for (const Tensor& x2 : ws) {
      QuantMatmulArgs a = d.args();
      a.x1 = x1, a.x2 = x2;
      for (const auto& form : d.forms(a)) expect_as_reference(form);
    }
  QuantMatmulArgs a = d.args();
  a.x1 = xs[3], a.x2 = ws[2], a.output_dtype = "int32";
  const auto y = values_of(a);  // matrix [1][2] is x[1][2] times w[2]
  a.x1 = tensor(x + 5 * m * k, {m, k}), a.x2 = tensor(w + 2 * k * n, {k, n});
  EXPECT_EQ(std::vector<float>(y.begin() + 5 * m * n, y.end()), values_of(a));
  a.x1 = xs[3], a.x2 = tensor(w, {3, k, n}), a.x2.format = Format::NZ;  // each three panels of 32 rows and columns
  Codes nz = random_i8(r, 3 * 3 * 32 * 32);
  a.x2.data = nz.data();
  expect_as_reference(a);
}

/// More rows than one chunk of biased codes, and blocks that end within a matrix.
TEST_P(QuantMatmul, ManyRows) {
  Random r = random_of_test();
  Data d(r, 1100, 8, 70);
  QuantMatmulArgs a = d.args();
  a.pertoken_scale = tensor(d.row.data(), {1100}), a.output_dtype = "float16";
  expect_as_reference(a);
  Data e(r, 700, 4, 3, 13);
  a = e.args();
  a.x1 = tensor(e.x.data(), {13, 700, 4}), a.x2 = tensor(e.w.data(), {13, 4, 3}), a.output_dtype = "int32";
  expect_as_reference(a);
}

/// Sums are exact as long as int32 holds them, and rounded once, beyond 2^24 too.
TEST_P(QuantMatmul, LargestSums) {
  const std::int64_t k = 131071;
  Codes x(std::size_t(2 * k), -128), w(std::size_t(2 * k), -128);
  for (std::int64_t i = 0; i < k; ++i) x[std::size_t(k + i)] = 127;
  for (std::int64_t i = 0; i < k; ++i) w[std::size_t(2 * i + 1)] = 127;
  std::vector<float> scale{1, 1};
  QuantMatmulArgs a{.x1 = tensor(x.data(), {2, k}),
                    .x2 = tensor(w.data(), {k, 2}),
                    .scale = tensor(scale.data(), {2}),
                    .output_dtype = "int32"};
  expect_as_reference(a);
  std::vector<std::int32_t> y(4);
  Context context({.isa = kernels().isa});
  quant_matmul(a, {tensor(y.data(), {2, 2})}, context);
  EXPECT_EQ(y, (std::vector<std::int32_t>{2147467264, -2130690176, -2130690176, 2114044159}));
  std::int32_t bias[] = {INT32_MAX, INT32_MIN};  // the sum with its bias is exact too
  a.bias = tensor(bias, {2}), a.output_dtype = "bfloat16";
  expect_as_reference(a);
}

TEST(QuantMatmulCalls, DocumentedExamples) {
  const Codes x{1, 2, -3, 4}, w{5, -6, 7, 8};
  const float scale[] = {.5f, .25f}, tokens[] = {.1f, .2f}, columns[] = {.1f, .2f};
  const std::int32_t bias[] = {1, -1};
  QuantMatmulArgs a{.x1 = tensor(x.data(), {2, 2}),
                    .x2 = tensor(w.data(), {2, 2}),
                    .scale = tensor(scale, {2}),
                    .pertoken_scale = tensor(tokens, {2}),
                    .output_dtype = "bfloat16"};
  using V = std::vector<float>;
  EXPECT_EQ(values_of(a), (V{0.94921875f, 0.25f, 1.296875f, 2.5f}));
  a.scale = tensor(columns, {2}), a.pertoken_scale = {}, a.bias = tensor(bias, {2});
  EXPECT_EQ(values_of(a), (V{2, 1.796875f, 1.3984375f, 9.8125f}));
  const float offset[] = {.5f};  // 2.5, 2.3; 1.9, 10.3
  a.output_dtype = "", a.offset = tensor(offset, {1});
  EXPECT_EQ(values_of(a), (V{2, 2, 2, 10}));
  a = {.x1 = a.x1, .x2 = a.x2, .output_dtype = "int32"};  // without a scale
  EXPECT_EQ(values_of(a), (V{19, 10, 13, 50}));
}

TEST(QuantMatmulCalls, StridedTensors) {
  Random r(3);
  Data d(r, 4, 10, 6);
  QuantMatmulArgs a = d.args();
  a.output_dtype = "int32";
  const auto wanted = values_of(a);
  Codes x(4 * 13), w(10 * 9);
  for (int i = 0; i < 4; ++i) std::copy_n(&d.x[std::size_t(10 * i)], 10, &x[std::size_t(13 * i)]);
  for (int i = 0; i < 10; ++i) std::copy_n(&d.w[std::size_t(6 * i)], 6, &w[std::size_t(9 * i)]);
  a.x1 = tensor(x.data(), {4, 10}), a.x1.stride[0] = 13;
  a.x2 = tensor(w.data(), {10, 6}), a.x2.stride[0] = 9;
  EXPECT_EQ(values_of(a), wanted);
  std::vector<std::int32_t> memory(4 * 8, 99);
  Tensor y = tensor(memory.data(), {4, 6});
  y.stride[0] = 8;
  quant_matmul(a, {y});
  for (int i = 0; i < 32; ++i)
    EXPECT_EQ(float(memory[std::size_t(i)]), i % 8 < 6 ? wanted[std::size_t(i / 8 * 6 + i % 8)] : 99);
}

TEST(QuantMatmulCalls, Refusals) {
  const auto refused = [](Status status, const char* parameter, auto change) {
    Random r(4);
    Data d(r, 2, 4, 3);
    std::vector<std::int8_t> y(12, 99);
    QuantMatmulArgs a = d.args();
    QuantMatmulOuts o{tensor(y.data(), {2, 3})};
    change(a, o, d);
    for (bool fast : {true, false}) try {
        if (fast) quant_matmul(a, o);
        else reference::quant_matmul(a, o);
        ADD_FAILURE() << "accepted, wanted a refusal of " << parameter;
      } catch (const Error& e) {
        EXPECT_EQ(e.status, status) << e.what();
        EXPECT_EQ(e.parameter, parameter) << e.what();
      }
    EXPECT_EQ(y, std::vector<std::int8_t>(12, 99));
  };
  using A = QuantMatmulArgs;
  using O = QuantMatmulOuts;
  refused(Status::invalid_argument, "x1", [](A& a, O&, Data&) { a.x1 = {}; });
  refused(Status::invalid_argument, "scale", [](A& a, O&, Data&) { a.scale = {}; });
  refused(Status::invalid_argument, "output_dtype", [](A& a, O&, Data&) { a.output_dtype = "float32"; });
  refused(Status::invalid_argument, "output_dtype",
          [](A& a, O&, Data& d) { a.pertoken_scale = tensor(d.row.data(), {2}); });
  for (const char* dtype : {"float16", "bfloat16", "int32"})
    refused(Status::invalid_argument, "offset",
            [&](A& a, O&, Data& d) { a.output_dtype = dtype, a.offset = tensor(d.offset.data(), {3}); });
  refused(Status::invalid_argument, "pertoken_scale",
          [](A& a, O&, Data& d) { a.output_dtype = "int32", a.pertoken_scale = tensor(d.row.data(), {2}); });
  refused(Status::invalid_argument, "bias",
          [](A& a, O&, Data& d) { a.output_dtype = "int32", a.bias = tensor(d.ints.data(), {3}); });
  refused(Status::invalid_shape, "x1", [](A& a, O&, Data&) { a.x1.rank = 1; });
  refused(Status::invalid_shape, "x2", [](A& a, O&, Data&) { a.x2.shape[0] = 3; });
  refused(Status::invalid_shape, "x1", [](A& a, O&, Data&) { a.x1.shape[1] = a.x2.shape[0] = 131072; });
  refused(Status::invalid_shape, "x2", [](A& a, O&, Data& d) {
    a.x1 = tensor(d.x.data(), {2, 1, 4}), a.x2 = tensor(d.w.data(), {3, 4, 1});
  });
  refused(Status::invalid_shape, "scale", [](A& a, O&, Data&) { a.scale.shape[0] = 2; });
  refused(Status::invalid_shape, "offset", [](A& a, O&, Data& d) { a.offset = tensor(d.offset.data(), {2}); });
  refused(Status::invalid_shape, "bias", [](A& a, O&, Data& d) { a.bias = tensor(d.ints.data(), {1}); });
  refused(Status::invalid_shape, "pertoken_scale",
          [](A& a, O&, Data& d) { a.output_dtype = "float16", a.pertoken_scale = tensor(d.row.data(), {1}); });
  refused(Status::unsupported, "x1", [](A& a, O&, Data&) { a.x1.dtype = DType::i32; });
  refused(Status::unsupported, "x2", [](A& a, O&, Data&) { a.x2.dtype = DType::i32; });
  refused(Status::unsupported, "scale", [](A& a, O&, Data&) { a.scale.dtype = DType::i64; });
  refused(Status::invalid_dtype, "x1", [](A& a, O&, Data&) { a.x1.dtype = DType::u8; });
  refused(Status::invalid_dtype, "x2", [](A& a, O&, Data&) { a.x2.dtype = DType::bf16; });
  refused(Status::invalid_dtype, "scale", [](A& a, O&, Data&) { a.scale.dtype = DType::f16; });
  refused(Status::invalid_dtype, "offset", [](A& a, O&, Data& d) { a.offset = tensor(d.ints.data(), {3}); });
  refused(Status::invalid_dtype, "bias", [](A& a, O&, Data& d) { a.bias = tensor(d.bias.data(), {3}); });
  refused(Status::invalid_dtype, "bias", [](A& a, O&, Data& d) {
    a.output_dtype = "float16", a.pertoken_scale = tensor(d.row.data(), {2}), a.bias = tensor(d.ints.data(), {3});
  });
  refused(Status::invalid_stride, "x1", [](A& a, O&, Data&) { a.x1.stride[1] = 2; });
  refused(Status::invalid_stride, "x2", [](A& a, O&, Data&) { a.x2.stride = {2, 8}; });
  refused(Status::invalid_shape, "y", [](A&, O& o, Data&) { o.y.shape = {3, 2}; });
  refused(Status::invalid_dtype, "y", [](A& a, O&, Data&) { a.output_dtype = "bfloat16"; });
  refused(Status::invalid_device, "y", [](A&, O& o, Data&) { o.y.read_only = true; });
  refused(Status::aliased, "y", [](A& a, O& o, Data&) { a.x1.data = o.y.data; });
  refused(Status::invalid_shape, "pertoken_scale", [](A& a, O&, Data& d) {
    a.output_dtype = "float16", a.pertoken_scale = tensor(d.row.data(), {2, 1}), a.level = Level::strict;
  });
}

/// [m, 1], as dynamic quantisation of the prologs has it, is [m] in portable.
TEST(QuantMatmulCalls, TokenScalesWithAnAxisOfLength1) {
  Random r(5);
  Data d(r, 4, 10, 6);
  QuantMatmulArgs a = d.args();
  a.output_dtype = "bfloat16", a.pertoken_scale = tensor(d.row.data(), {4});
  const auto wanted = values_of(a);
  a.pertoken_scale = tensor(d.row.data(), {4, 1});
  EXPECT_EQ(values_of(a), wanted);
}

}  // namespace
}  // namespace dsakit
