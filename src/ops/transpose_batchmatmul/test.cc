// SPDX-License-Identifier: Apache-2.0
#include "dsakit/transpose_batchmatmul.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "core/float16.hpp"
#include "core/random.hpp"
#include "core/view.hpp"
#include "dsakit/error.hpp"
#include "dsakit/packed_weight.hpp"
#include "kernels/test_rungs.hpp"

namespace dsakit {
namespace {

using Args = TransposeBatchmatmulArgs;
using IntoArgs = BatchMatmulTransposeArgs;

/// Numbers of one dtype, row-major.
struct Numbers {
  Tensor shape;
  std::vector<float> storage;  // room enough for every dtype

  Numbers(DType dtype, std::initializer_list<std::int64_t> axes, const std::vector<float>& values)
      : shape(shaped(dtype, axes)), storage(values.size() + 1) {
    for (std::size_t i = 0; i < values.size(); ++i)
      if (dtype == DType::bf16) reinterpret_cast<bf16*>(storage.data())[i] = to_bf16(values[i]);
      else if (dtype == DType::f16) reinterpret_cast<f16*>(storage.data())[i] = to_f16(values[i]);
      else storage[i] = values[i];
  }
  Tensor tensor() {
    Tensor t = shape;
    t.data = storage.data();
    return t;
  }
};

std::vector<float> whole(Random& r, std::int64_t n) {
  std::vector<float> v;
  for (std::int64_t i = 0; i < n; ++i) v.push_back(std::round(r.uniform(-3, 3)));
  return v;
}

std::vector<float> values_of(const Tensor& t) {
  std::vector<float> v;
  for (std::int64_t i = 0; i < t.elements(); ++i) v.push_back(float_at(t, offset_of(t, i)));
  return v;
}

/// y of a call, by the reference if there is no context.
std::vector<float> run(const Args& a, Context* context) {
  TransposeBatchmatmulOuts o{};
  infer(a, o);
  std::vector<float> memory(std::size_t(o.y.elements()) + 1, 99);
  o.y.data = memory.data();
  if (context) transpose_batchmatmul(a, o, *context);
  else reference::transpose_batchmatmul(a, o);
  return values_of(o.y);
}

class TransposeBatchmatmul : public EveryRung {
 protected:
  /// Sums of small whole numbers are exact in fp32: equal, on any number of threads.
  void expect_as_reference(const Args& a) {
    const auto wanted = run(a, nullptr);
    for (int threads : {1, 2, 3})
      for (bool same_products : {false, true}) {
        Context context({.threads = threads, .isa = kernels().isa, .same_products = same_products});
        EXPECT_EQ(run(a, &context), wanted) << threads << " threads";
      }
  }
};
INSTANTIATE_TEST_SUITE_P(Any, TransposeBatchmatmul, for_every_rung(), rung_name);

TEST_P(TransposeBatchmatmul, EqualsTheReference) {
  Random r = random_of_test();
  for (DType d : {DType::bf16, DType::f16, DType::f32})
    for (const auto& [b, m, k, n] : {std::tuple{3, 5, 17, 70},
                                     {1, 70, 64, 64},
                                     {2, 1, 600, 3},
                                     {2, 19, 600, 130},
                                     {2, 3, 0, 5},
                                     {2, 0, 3, 5},
                                     {0, 2, 3, 5},
                                     {2, 3, 5, 0}}) {
      SCOPED_TRACE(testing::Message() << name_of(d) << " " << b << " " << m << " " << k << " " << n);
      Numbers x(d, {b, m, k}, whole(r, b * m * k)), w(d, {b, k, n}, whole(r, b * k * n));
      Args a{.input = x.tensor(), .weight = w.tensor()};
      expect_as_reference(a);
      x.shape = shaped(d, {m, b, k});
      a.input = x.tensor(), a.perm_x1 = {1, 0, 2};
      expect_as_reference(a);
      w.shape = shaped(d, {b, n, k});
      a.weight = w.tensor(), a.perm_x2 = {0, 2, 1};
      expect_as_reference(a);
    }
}

/// Row-major, a transposed view, FRACTAL_NZ and packed weights hold the same numbers.
TEST_P(TransposeBatchmatmul, AnyFormatOfTheWeight) {
  Random r = random_of_test();
  for (DType d : {DType::bf16, DType::f16, DType::f32})
    for (const auto& [b, m, k, n] : {std::tuple{3, 4, 37, 70}, {1, 66, 600, 200}}) {
      SCOPED_TRACE(testing::Message() << name_of(d) << " " << m << " x " << k << " x " << n);
      const std::int64_t padded = (k + 15) / 16 * 16;
      const auto numbers = whole(r, b * k * n);
      const std::int64_t c0 = 32 / size_of(d), panels = (n + c0 - 1) / c0;
      std::vector<float> across(numbers.size()), nz(std::size_t(b * panels * padded * c0), 99);
      for (std::int64_t h = 0; h < b; ++h)
        for (std::int64_t i = 0; i < k; ++i)
          for (std::int64_t j = 0; j < n; ++j) {
            const float v = numbers[std::size_t((h * k + i) * n + j)];
            across[std::size_t((h * n + j) * k + i)] = v;
            nz[std::size_t(((h * panels + j / c0) * padded + i) * c0 + j % c0)] = v;
          }
      Numbers x(d, {b, m, k}, whole(r, b * m * k)), w(d, {b, k, n}, numbers), t(d, {b, k, n}, across),
          f(d, {b, k, n}, nz);
      Args a{.input = x.tensor(), .weight = w.tensor()};
      const auto wanted = run(a, nullptr);
      std::vector<Tensor> weights{t.tensor(), f.tensor()};
      weights[0].stride = {n * k, 1, k};
      weights[1].format = Format::NZ;
      if (d == DType::bf16) weights.push_back(PackedWeight(w.tensor()).tensor());
      const PackedWeight packed(d == DType::bf16 ? w.tensor() : Numbers(DType::bf16, {1, 1, 1}, {0}).tensor());
      if (d == DType::bf16) weights[2] = packed.tensor();
      for (const Tensor& weight : weights) {
        a.weight = weight;
        EXPECT_EQ(run(a, nullptr), wanted);
        expect_as_reference(a);
      }
    }
}

/// Few rows meet a matrix that is not packed where it lies, with the bits of packed ones; more rows have it packed.
TEST_P(TransposeBatchmatmul, AnyFormatHasTheBitsOfPackedWeights) {
  Random r = random_of_test();
  for (const auto& [b, m, k, n] :
       {std::tuple{2, 1, 544, 200}, {1, 3, 1100, 300}, {1, 8, 513, 70}, {2, 9, 96, 65}, {1, 2, 4704, 90}, {1, 70, 1100, 90},
        {1, 66, 520, 330}}) {
    SCOPED_TRACE(testing::Message() << b << " x " << m << " x " << k << " x " << n);
    const auto numbers = random_f32(r, b * k * n);
    const std::int64_t padded = (k + 15) / 16 * 16, runs = (n + 15) / 16;
    std::vector<float> across(numbers.size()), nz(std::size_t(b * runs * padded * 16), 99);
    for (std::int64_t i = 0; i < b * k * n; ++i) {
      const std::int64_t h = i / n / k, row = i / n % k, column = i % n;
      across[std::size_t((h * n + column) * k + row)] = numbers[std::size_t(i)];
      nz[std::size_t(((h * runs + column / 16) * padded + row) * 16 + column % 16)] = numbers[std::size_t(i)];
    }
    Numbers x(DType::bf16, {b, m, k}, random_f32(r, b * m * k)), w(DType::bf16, {b, k, n}, numbers),
        t(DType::bf16, {b, k, n}, across), f(DType::bf16, {b, k, n}, nz);
    const PackedWeight packed(w.tensor());
    std::vector<Tensor> weights{w.tensor(), t.tensor(), f.tensor()};
    weights[1].stride = {n * k, 1, k};
    weights[2].format = Format::NZ;
    for (const int threads : {1, 3}) {
      Context context({.threads = threads, .isa = kernels().isa});
      const auto wanted = run({.input = x.tensor(), .weight = packed.tensor()}, &context);
      for (const Tensor& weight : weights) EXPECT_EQ(run({.input = x.tensor(), .weight = weight}, &context), wanted);
    }
  }
}

/// Slabs are columns of the flattened product, also where one ends within a matrix.
TEST_P(TransposeBatchmatmul, Slabs) {
  Random r = random_of_test();
  const std::int64_t b = 4, m = 3, k = 8, n = 90;
  Numbers x(DType::bf16, {b, m, k}, whole(r, b * m * k)), w(DType::bf16, {b, k, n}, whole(r, b * k * n));
  Args a{.input = x.tensor(), .weight = w.tensor()};
  const auto flat = run(a, nullptr);
  for (std::int64_t f : {2, 4, 8, 5}) {
    a.batch_split_factor = f;
    expect_as_reference(a);
    const auto slabs = run(a, nullptr);
    const std::int64_t width = b * n / f;
    for (std::int64_t i = 0; i < m; ++i)
      for (std::int64_t c = 0; c < b * n; ++c)
        ASSERT_EQ(slabs[std::size_t((c / width * m + i) * width + c % width)], flat[std::size_t(i * b * n + c)]);
  }
}

/// Many rows and random numbers: within the rounding of the output and of fp32 sums; a row does not know its
/// neighbours.
TEST_P(TransposeBatchmatmul, RandomNumbers) {
  Random r = random_of_test();
  const std::int64_t b = 1, m = 520, k = 600, n = 65;
  for (DType d : {DType::bf16, DType::f16, DType::f32}) {
    Numbers x(d, {b, m, k}, random_f32(r, b * m * k)), w(d, {b, k, n}, random_f32(r, b * k * n));
    Args a{.input = x.tensor(), .weight = w.tensor()};
    Context one({.threads = 1, .isa = kernels().isa}), three({.threads = 3, .isa = kernels().isa});
    const auto y = run(a, &one), wanted = run(a, nullptr);
    EXPECT_EQ(y, run(a, &three));
    const float step = d == DType::bf16 ? 0x1p-8f : d == DType::f16 ? 0x1p-11f : 0x1p-24f;
    for (std::size_t i = 0; i < y.size(); ++i)
      ASSERT_NEAR(y[i], wanted[i], std::abs(wanted[i]) * 2 * step + 600 * 0x1p-22f) << i;
    a.input.shape[1] = 1, a.input.data = reinterpret_cast<std::byte*>(a.input.data) + 519 * k * size_of(d);
    const auto last = run(a, &one);
    EXPECT_EQ(std::vector<float>(y.end() - b * n, y.end()), last);
  }
}

TEST_P(TransposeBatchmatmul, IntoMemoryOfTheCaller) {
  Random r = random_of_test();
  const std::int64_t t = 5, h = 3, k = 20, n = 70;
  for (DType d : {DType::bf16, DType::f16}) {
    Numbers x(d, {t, h, k}, whole(r, t * h * k)), w(d, {h, k, n}, whole(r, h * k * n));
    const auto wanted = run({.input = x.tensor(), .weight = w.tensor(), .perm_x1 = {1, 0, 2}}, nullptr);
    for (bool folded : {false, true})
      for (int threads : {0, 1, 2, 3}) {
        Numbers c(d, {t, h, n}, std::vector<float>(std::size_t(t * h * n), 99));
        if (folded) c.shape = shaped(d, {t, h * n});
        const IntoArgs a{.tensor_a = x.tensor(), .tensor_b = w.tensor(), .tensor_c = c.tensor()};
        Context context({.threads = std::max(threads, 1), .isa = kernels().isa});
        if (threads == 0) reference::batch_matmul_transpose(a, {});
        else batch_matmul_transpose(a, {}, context);
        EXPECT_EQ(values_of(c.tensor()), wanted);
      }
  }
}

TEST(TransposeBatchmatmulCalls, DocumentedExample) {
  Numbers x(DType::bf16, {2, 1, 1}, {2, 3}), w(DType::bf16, {2, 1, 1}, {5, 7});
  TransposeBatchmatmulOuts o{};
  const Args a{.input = x.tensor(), .weight = w.tensor(), .perm_x1 = {}, .perm_x2 = {}, .perm_y = {}};
  infer(a, o);
  EXPECT_EQ(o.y.rank, 3);
  EXPECT_EQ(o.y.shape[0], 1);
  EXPECT_EQ(o.y.shape[1], 2);
  EXPECT_EQ(run(a, &default_context()), (std::vector<float>{10, 21}));
}

TEST(TransposeBatchmatmulCalls, StridedTensors) {
  Random r(5);
  const std::int64_t b = 2, m = 3, k = 5, n = 4;
  const auto input = whole(r, b * m * k), weight = whole(r, b * k * n);
  Numbers x(DType::bf16, {b, m, k}, input), w(DType::bf16, {b, k, n}, weight);
  const auto wanted = run({.input = x.tensor(), .weight = w.tensor()}, nullptr);
  Numbers wide_x(DType::bf16, {b, m, 7}, std::vector<float>(b * m * 7, 99)),
      wide_w(DType::bf16, {b, 8, 6}, std::vector<float>(b * 8 * 6, 99));
  auto copy = [](Tensor to, const Tensor& from) {
    for (std::int64_t i = 0; i < from.elements(); ++i)
      static_cast<bf16*>(to.data)[offset_of(to, i)] = static_cast<const bf16*>(from.data)[i];
    return to;
  };
  Tensor xs = wide_x.tensor(), ws = wide_w.tensor();
  xs.shape = {b, m, k}, ws.shape = {b, k, n};
  const Args a{.input = copy(xs, x.tensor()), .weight = copy(ws, w.tensor())};
  EXPECT_EQ(run(a, &default_context()), wanted);
  Numbers y(DType::bf16, {m, 3, 6}, std::vector<float>(m * 3 * 6, 99));
  Tensor part = y.tensor();
  part.shape = {m, b, n};
  transpose_batchmatmul(a, {part});
  EXPECT_EQ(values_of(part), wanted);
  part = y.tensor();
  part.shape = {m, 1, 6}, part.data = static_cast<bf16*>(part.data) + 2 * 6;  // behind them
  EXPECT_EQ(values_of(part), std::vector<float>(m * 6, 99));
}

TEST(TransposeBatchmatmulCalls, Refusals) {
  const auto refused = [](Status status, const char* parameter, auto change) {
    Random r(4);
    Numbers x(DType::bf16, {2, 3, 16}, whole(r, 96)), w(DType::bf16, {2, 16, 32}, whole(r, 1024));
    Numbers y(DType::bf16, {3, 2, 32}, std::vector<float>(192, 99));
    Args a{.input = x.tensor(), .weight = w.tensor()};
    TransposeBatchmatmulOuts o{y.tensor()};
    change(a, o);
    for (bool fast : {true, false}) try {
        if (fast) transpose_batchmatmul(a, o);
        else reference::transpose_batchmatmul(a, o);
        ADD_FAILURE() << "accepted, wanted a refusal of " << parameter;
      } catch (const Error& e) {
        EXPECT_EQ(e.status, status) << e.what();
        EXPECT_EQ(e.parameter, parameter) << e.what();
      }
    EXPECT_EQ(values_of(y.tensor()), std::vector<float>(192, 99));
  };
  using A = Args;
  using O = TransposeBatchmatmulOuts;
  refused(Status::invalid_argument, "input", [](A& a, O&) { a.input = {}; });
  refused(Status::invalid_argument, "perm_x1", [](A& a, O&) { a.perm_x1 = {0, 2, 1}; });
  refused(Status::invalid_argument, "perm_x1", [](A& a, O&) { a.perm_x1 = {0, 1}; });
  refused(Status::invalid_argument, "perm_x2", [](A& a, O&) { a.perm_x2 = {1, 0, 2}; });
  refused(Status::invalid_argument, "perm_y", [](A& a, O&) { a.perm_y = {0, 1, 2}; });
  refused(Status::invalid_argument, "perm_y", [](A& a, O&) { a.perm_y = {1, 0, 2, 3, 4, 5, 6, 7, 8}; });
  refused(Status::invalid_argument, "batch_split_factor", [](A& a, O&) { a.batch_split_factor = 0; });
  refused(Status::invalid_argument, "batch_split_factor", [](A& a, O&) { a.batch_split_factor = 3; });
  refused(Status::invalid_shape, "input", [](A& a, O&) { a.input.rank = 2; });
  refused(Status::invalid_shape, "weight", [](A& a, O&) { a.weight.rank = 2; });
  refused(Status::invalid_shape, "weight", [](A& a, O&) { a.weight.shape[0] = 1; });
  refused(Status::invalid_shape, "weight", [](A& a, O&) { a.weight.shape[1] = 15; });
  refused(Status::invalid_shape, "weight", [](A& a, O&) { a.perm_x2 = {0, 2, 1}; });
  refused(Status::invalid_shape, "weight", [](A& a, O&) { a.perm_x1 = {1, 0, 2}; });
  refused(Status::invalid_dtype, "input", [](A& a, O&) { a.input.dtype = DType::i16; });
  refused(Status::invalid_dtype, "weight", [](A& a, O&) { a.weight.dtype = DType::f16; });
  refused(Status::invalid_stride, "input", [](A& a, O&) { a.input.stride[2] = 2; });
  refused(Status::invalid_stride, "weight", [](A& a, O&) { a.weight.stride = {512, 3, 2}; });
  refused(Status::invalid_shape, "y", [](A&, O& o) { o.y.shape = {2, 3, 32}; });
  refused(Status::invalid_shape, "y", [](A& a, O&) { a.batch_split_factor = 2; });
  refused(Status::invalid_dtype, "y", [](A&, O& o) { o.y.dtype = DType::f16; });
  refused(Status::invalid_device, "y", [](A&, O& o) { o.y.read_only = true; });
  refused(Status::aliased, "y", [](A& a, O& o) { a.weight.data = o.y.data; });
  refused(Status::unsupported, "weight", [](A& a, O& o) {
    a.level = Level::strict, a.weight.shape[2] = 24, a.weight.stride = {384, 24, 1},
    o.y = shaped(DType::bf16, {3, 2, 24});
  });
  refused(Status::unsupported, "perm_x2", [](A& a, O&) { a.level = Level::strict, a.perm_x2 = {0, 2, 1}; });
  refused(Status::invalid_argument, "weight", [](A& a, O&) {
    a.perm_x2 = {0, 2, 1}, a.weight.format = Format::NZ, a.weight.shape = {2, 32, 16};
  });
}

TEST(TransposeBatchmatmulCalls, RefusalsIntoMemoryOfTheCaller) {
  const auto refused = [](Status status, const char* parameter, auto change) {
    Random r(4);
    Numbers x(DType::bf16, {3, 2, 16}, whole(r, 96)), w(DType::bf16, {2, 16, 32}, whole(r, 1024));
    Numbers c(DType::bf16, {3, 2, 32}, std::vector<float>(192, 99));
    IntoArgs a{.tensor_a = x.tensor(), .tensor_b = w.tensor(), .tensor_c = c.tensor()};
    change(a);
    for (bool fast : {true, false}) try {
        if (fast) batch_matmul_transpose(a, {});
        else reference::batch_matmul_transpose(a, {});
        ADD_FAILURE() << "accepted, wanted a refusal of " << parameter;
      } catch (const Error& e) {
        EXPECT_EQ(e.status, status) << e.what();
        EXPECT_EQ(e.parameter, parameter) << e.what();
      }
    EXPECT_EQ(values_of(c.tensor()), std::vector<float>(192, 99));
  };
  refused(Status::invalid_argument, "tensor_c", [](IntoArgs& a) { a.tensor_c = {}; });
  refused(Status::invalid_shape, "tensor_a", [](IntoArgs& a) { a.tensor_a.rank = 2; });
  refused(Status::invalid_shape, "tensor_b", [](IntoArgs& a) { a.tensor_b.shape[0] = 1; });
  refused(Status::invalid_shape, "tensor_c", [](IntoArgs& a) { a.tensor_c.shape[1] = 1; });
  refused(Status::invalid_shape, "tensor_c", [](IntoArgs& a) {
    a.tensor_c = tensor(static_cast<bf16*>(a.tensor_c.data), {3, 32});
  });
  refused(Status::invalid_dtype, "tensor_a", [](IntoArgs& a) { a.tensor_a.dtype = DType::f32; });
  refused(Status::invalid_dtype, "tensor_b", [](IntoArgs& a) { a.tensor_b.dtype = DType::f16; });
  refused(Status::invalid_dtype, "tensor_c", [](IntoArgs& a) { a.tensor_c.dtype = DType::f16; });
  refused(Status::invalid_device, "tensor_c", [](IntoArgs& a) { a.tensor_c.read_only = true; });
  refused(Status::aliased, "tensor_c", [](IntoArgs& a) { a.tensor_b.data = a.tensor_c.data; });
}

}  // namespace
}  // namespace dsakit
