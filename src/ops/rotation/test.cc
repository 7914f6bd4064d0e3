// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "core/float16.hpp"
#include "core/random.hpp"
#include "core/view.hpp"
#include "dsakit/error.hpp"
#include "dsakit/interleave_rope.hpp"
#include "dsakit/rotary_mul.hpp"
#include "kernels/kernels.hpp"

namespace dsakit {
namespace {

/// 16-bit or 32-bit numbers of one dtype with a shape.
struct Numbers {
  Tensor shape;
  std::vector<float> storage;  // room enough for every dtype

  Numbers(DType dtype, std::vector<std::int64_t> axes, const std::vector<float>& values) {
    shape.dtype = dtype, shape.rank = int(axes.size());
    std::copy(axes.begin(), axes.end(), shape.shape.begin());
    make_contiguous(shape);
    storage.resize(values.size() + 1);
    for (std::size_t i = 0; i < values.size(); ++i)
      if (dtype == DType::bf16) reinterpret_cast<bf16*>(storage.data())[i] = to_bf16(values[i]);
      else if (dtype == DType::f16) reinterpret_cast<f16*>(storage.data())[i] = to_f16(values[i]);
      else storage[i] = values[i];
  }
  Numbers(DType dtype, std::vector<std::int64_t> axes, Random& r) : Numbers(dtype, axes, random(r, axes)) {}
  static std::vector<float> random(Random& r, const std::vector<std::int64_t>& axes) {
    std::int64_t n = 1;
    for (std::int64_t a : axes) n *= a;
    return random_f32(r, n, -3, 3);
  }
  Tensor tensor() {
    Tensor t = shape;
    t.data = storage.data();
    return t;
  }
  std::vector<float> values() {
    std::vector<float> v;
    for (std::int64_t i = 0; i < shape.elements(); ++i) v.push_back(float_at(tensor(), i));
    return v;
  }
};

/// y of a call, by the reference if there is no context.
template <class Args, class Outs>
std::vector<float> rotated(const Args& a, void (*run)(const Args&, const Outs&, Context&),
                           void (*reference)(const Args&, const Outs&), Context* context) {
  Outs o{};
  infer(a, o);
  std::vector<float> memory(std::size_t(o.y.elements()) + 1, 99);
  o.y.data = memory.data();
  if (context) run(a, o, *context);
  else reference(a, o);
  std::vector<float> y;
  for (std::int64_t i = 0; i < o.y.elements(); ++i) y.push_back(float_at(o.y, i));
  return y;
}
std::vector<float> rotated(const InterleaveRopeArgs& a, Context* c) {
  return rotated<InterleaveRopeArgs, InterleaveRopeOuts>(a, interleave_rope, reference::interleave_rope, c);
}
std::vector<float> rotated(const RotaryMulArgs& a, Context* c) {
  return rotated<RotaryMulArgs, RotaryMulOuts>(a, rotary_mul, reference::rotary_mul, c);
}

template <class Args>
std::vector<float> expect_everywhere(const Args& a) {
  const auto wanted = rotated(a, nullptr);
  for (const Kernels* k : supported_kernels())
    for (int threads : {1, 2, 3}) {
      Context context({.threads = threads, .isa = k->isa});
      EXPECT_EQ(rotated(a, &context), wanted) << k->isa << ", threads " << threads;
    }
  return wanted;
}

TEST(InterleaveRope, EqualsTheReference) {
  for (DType d : {DType::bf16, DType::f16})
    for (std::int64_t width : {0, 2, 6, 64, 130})
      for (std::int64_t tokens : {1, 7}) {
        Random r{std::uint64_t(width + tokens)};
        Numbers x(d, {3, 5, 7, width}, r), cos(d, {3, 1, tokens, width}, r), sin(d, {3, 1, 7, width}, r);
        expect_everywhere(InterleaveRopeArgs{.x = x.tensor(), .cos = cos.tensor(), .sin = sin.tensor()});
      }
}

TEST(RotaryMul, EqualsTheReference) {
  const std::vector<std::vector<std::int64_t>> shapes{{3, 5, 64},    {3, 1, 64},    {1, 1, 64},   {1, 5, 64},
                                                      {2, 3, 4, 10}, {2, 1, 4, 10}, {1, 3, 1, 10}};
  for (DType d : {DType::bf16, DType::f16, DType::f32})
    for (const char* mode : {"half", "interleave"})
      for (const auto& shape : shapes) {
        Random r{std::uint64_t(shape.size() + std::size_t(shape[1]))};
        const auto whole = shape.size() == 3 ? shapes[0] : shapes[4];
        Numbers x(d, whole, r), r1(d, shape, r), r2(d, whole, r);
        expect_everywhere(RotaryMulArgs{.x = x.tensor(), .r1 = r1.tensor(), .r2 = r2.tensor(), .rotary_mode = mode});
        expect_everywhere(RotaryMulArgs{.x = x.tensor(), .r1 = r2.tensor(), .r2 = r1.tensor(), .rotary_mode = mode});
      }
}

TEST(RotaryMul, MatrixInPlaceOfTheMode) {
  for (DType d : {DType::bf16, DType::f16, DType::f32})
    for (std::int64_t n : {2, 10, 64, 130}) {
      Random r{std::uint64_t(n)};
      Numbers x(d, {3, 5, n}, r), r1(d, {3, 1, n}, r), r2(d, {1, 5, n}, r), matrix(d, {n, n}, r);
      RotaryMulArgs a{.x = x.tensor(), .r1 = r1.tensor(), .r2 = r2.tensor(), .rotate = matrix.tensor()};
      const auto y = expect_everywhere(a);
      a.rotary_mode = "interleave";
      EXPECT_EQ(expect_everywhere(a), y);

      // The matrix of a mode is the mode.
      std::vector<float> half(std::size_t(n * n)), pairs(std::size_t(n * n));
      for (std::int64_t i = 0; i < n / 2; ++i) {
        half[std::size_t((i + n / 2) * n + i)] = -1, half[std::size_t(i * n + i + n / 2)] = 1;
        pairs[std::size_t((2 * i + 1) * n + 2 * i)] = -1, pairs[std::size_t(2 * i * n + 2 * i + 1)] = 1;
      }
      for (const auto& [mode, numbers] : {std::pair{"half", &half}, {"interleave", &pairs}}) {
        Numbers of_mode(d, {n, n}, *numbers);
        const RotaryMulArgs plain{.x = x.tensor(), .r1 = r1.tensor(), .r2 = r2.tensor(), .rotary_mode = mode};
        a.rotate = of_mode.tensor();
        EXPECT_EQ(rotated(a, nullptr), rotated(plain, nullptr));
      }
    }
}

TEST(Rotation, WorkedExamples) {
  Numbers x(DType::bf16, {1, 1, 1, 4}, {1, 2, 3, 4}), cos(DType::bf16, {1, 1, 1, 4}, {.5f, .25f, 1, 2}),
      sin(DType::bf16, {1, 1, 1, 4}, {1, .5f, .125f, .75f});
  using V = std::vector<float>;
  EXPECT_EQ(expect_everywhere(InterleaveRopeArgs{.x = x.tensor(), .cos = cos.tensor(), .sin = sin.tensor()}),
            (V{-1.5f, -1.25f, 2.125f, 10.25f}));
  RotaryMulArgs a{.x = x.tensor(), .r1 = cos.tensor(), .r2 = sin.tensor()};
  EXPECT_EQ(expect_everywhere(a), (V{-2.5f, -1.5f, 3.125f, 9.5f}));
  a.rotary_mode = "interleave";
  EXPECT_EQ(expect_everywhere(a), (V{-1.5f, 1.0f, 2.5f, 10.25f}));
}

/// interleave_rope is rotary_mul half of the de-interleaved row; and a turn forth and back is the row again.
TEST(Rotation, Relations) {
  Random r(4);
  const std::int64_t n = 64, m = n / 2;
  Numbers x(DType::f32, {1, 9, n}, r);
  std::vector<float> cosines, sines, halves, back(9 * n);
  for (std::int64_t i = 0; i < n; ++i)
    cosines.push_back(std::cos(float(i % m))), sines.push_back(std::sin(float(i % m)));
  const auto given = x.values();
  for (std::int64_t row = 0; row < 9; ++row)
    for (std::int64_t i = 0; i < n; ++i)
      halves.push_back(given[std::size_t(row * n + (i < m ? 2 * i : 2 * (i - m) + 1))]);
  Numbers cos(DType::f32, {1, 1, n}, cosines), sin(DType::f32, {1, 1, n}, sines);
  Numbers h(DType::f32, {1, 9, n}, halves);
  Context context;
  Numbers turned(DType::f32, {1, 9, n},
                 rotated(RotaryMulArgs{.x = h.tensor(), .r1 = cos.tensor(), .r2 = sin.tensor()}, &context));
  Numbers minus(DType::f32, {1, 1, n}, [&] {
    auto v = sines;
    for (float& s : v) s = -s;
    return v;
  }());
  const auto again = rotated(RotaryMulArgs{.x = turned.tensor(), .r1 = cos.tensor(), .r2 = minus.tensor()}, &context);
  for (std::size_t i = 0; i < again.size(); ++i) EXPECT_NEAR(again[i], halves[i], 1e-5f);

  Numbers xb(DType::bf16, {1, 9, 1, n}, given), hb(DType::bf16, {1, 9, 1, n}, halves);
  Numbers cb(DType::bf16, {1, 1, 1, n}, cosines), sb(DType::bf16, {1, 1, 1, n}, sines);
  EXPECT_EQ(rotated(InterleaveRopeArgs{.x = xb.tensor(), .cos = cb.tensor(), .sin = sb.tensor()}, &context),
            rotated(RotaryMulArgs{.x = hb.tensor(), .r1 = cb.tensor(), .r2 = sb.tensor()}, &context));
}

TEST(Rotation, Strides) {
  Random r(6);
  Numbers wide(DType::bf16, {2, 3, 5, 40}, r), cos(DType::bf16, {2, 1, 5, 20}, r), sin(DType::bf16, {2, 1, 5, 20}, r);
  Tensor x = wide.tensor();
  x.shape[3] = 20;
  std::swap(x.shape[0], x.shape[2]), std::swap(x.stride[0], x.stride[2]);  // [5, 3, 2, 20]
  Tensor c = cos.tensor(), s = sin.tensor();
  for (Tensor* t : {&c, &s}) std::swap(t->shape[0], t->shape[2]), std::swap(t->stride[0], t->stride[2]);
  expect_everywhere(InterleaveRopeArgs{.x = x, .cos = c, .sin = s});
}

template <class Args, class Outs>
void expect_refused(const Args& a, Status status, const char* parameter, const Outs& given, const char* op) {
  Outs o = given;
  try {
    if (o.y) {
      if constexpr (std::is_same_v<Args, RotaryMulArgs>) rotary_mul(a, o);
      else interleave_rope(a, o);
    } else {
      infer(a, o);
    }
    ADD_FAILURE() << "accepted, wanted a refusal of " << parameter;
  } catch (const Error& e) {
    EXPECT_EQ(e.status, status) << e.what();
    EXPECT_EQ(e.op, op);
    EXPECT_EQ(e.parameter, parameter) << e.what();
  }
}

TEST(InterleaveRope, Refusals) {
  Random r(1);
  const auto refused = [](const InterleaveRopeArgs& a, Status s, const char* p, InterleaveRopeOuts o = {}) {
    expect_refused(a, s, p, o, "interleave_rope");
  };
  const DType d = DType::bf16;
  Numbers x(d, {2, 3, 4, 8}, r), cos(d, {2, 1, 4, 8}, r), sin(d, {2, 1, 4, 8}, r), other(DType::f16, {2, 1, 4, 8}, r);
  Numbers odd(d, {2, 3, 4, 7}, r), heads(d, {2, 3, 4, 8}, r), batch(d, {1, 1, 4, 8}, r), flat(d, {4, 8}, r);
  Numbers full(DType::f32, {2, 3, 4, 8}, r);
  const InterleaveRopeArgs good{.x = x.tensor(), .cos = cos.tensor(), .sin = sin.tensor()};
  auto with = [&](Tensor InterleaveRopeArgs::*field, Tensor t) {
    InterleaveRopeArgs a = good;
    a.*field = t;
    return a;
  };
  refused(with(&InterleaveRopeArgs::x, {}), Status::invalid_argument, "x");
  refused(with(&InterleaveRopeArgs::cos, {}), Status::invalid_argument, "cos");
  refused(with(&InterleaveRopeArgs::sin, {}), Status::invalid_argument, "sin");
  refused(with(&InterleaveRopeArgs::x, flat.tensor()), Status::invalid_shape, "x");
  refused(with(&InterleaveRopeArgs::x, odd.tensor()), Status::invalid_shape, "x");
  refused(with(&InterleaveRopeArgs::cos, heads.tensor()), Status::invalid_shape, "cos");
  refused(with(&InterleaveRopeArgs::cos, batch.tensor()), Status::invalid_shape, "cos");
  refused(with(&InterleaveRopeArgs::sin, flat.tensor()), Status::invalid_shape, "sin");
  refused(with(&InterleaveRopeArgs::x, full.tensor()), Status::invalid_dtype, "x");
  refused(with(&InterleaveRopeArgs::sin, other.tensor()), Status::invalid_dtype, "sin");
  InterleaveRopeArgs strict = good;
  strict.level = Level::strict;
  refused(strict, Status::unsupported, "x");
  Numbers y(d, {2, 3, 4, 8}, r), small(d, {2, 3, 4, 6}, r);
  refused(good, Status::invalid_shape, "y", {small.tensor()});
  refused(good, Status::invalid_dtype, "y", {full.tensor()});
  refused(good, Status::aliased, "y", {x.tensor()});
}

TEST(RotaryMul, Refusals) {
  Random r(1);
  const auto refused = [](const RotaryMulArgs& a, Status s, const char* p, RotaryMulOuts o = {}) {
    expect_refused(a, s, p, o, "rotary_mul");
  };
  const DType d = DType::bf16;
  Numbers x(d, {2, 3, 8}, r), r1(d, {2, 1, 8}, r), other(DType::f16, {2, 1, 8}, r), odd(d, {2, 3, 7}, r),
      flat(d, {3, 8}, r), two(d, {2, 2, 8}, r), narrow(d, {2, 1, 1}, r), wide(d, {1, 1, 896}, r),
      many(d, {1000, 1, 8}, r);
  const RotaryMulArgs good{.x = x.tensor(), .r1 = r1.tensor(), .r2 = r1.tensor()};
  auto with = [&](auto change) {
    RotaryMulArgs a = good;
    change(a);
    return a;
  };
  using A = RotaryMulArgs;
  refused(with([](A& a) { a.x = {}; }), Status::invalid_argument, "x");
  refused(with([](A& a) { a.r2 = {}; }), Status::invalid_argument, "r2");
  Numbers matrix(d, {8, 8}, r), wide_matrix(DType::f32, {8, 8}, r);
  refused(with([&](A& a) { a.rotate = matrix.tensor(), a.level = Level::strict; }), Status::unsupported, "rotate");
  refused(with([&](A& a) { a.rotate = r1.tensor(); }), Status::invalid_shape, "rotate");
  refused(with([&](A& a) { a.rotate = wide_matrix.tensor(); }), Status::invalid_dtype, "rotate");
  refused(with([&](A& a) { a.rotate = matrix.tensor(), a.rotary_mode = "quarter"; }), Status::invalid_argument,
          "rotary_mode");
  refused(with([](A& a) { a.rotary_mode = "quarter"; }), Status::invalid_argument, "rotary_mode");
  refused(with([&](A& a) { a.x = flat.tensor(); }), Status::invalid_shape, "x");
  refused(with([&](A& a) { a.x = odd.tensor(); }), Status::invalid_shape, "x");
  refused(with([&](A& a) { a.r1 = two.tensor(); }), Status::invalid_shape, "r1");
  refused(with([&](A& a) { a.r2 = flat.tensor(); }), Status::invalid_shape, "r2");
  refused(with([&](A& a) { a.r2 = narrow.tensor(); }), Status::invalid_shape, "r2");
  refused(with([&](A& a) { a.r2 = other.tensor(); }), Status::invalid_dtype, "r2");
  refused(with([&](A& a) { a.x.dtype = DType::i8; }), Status::invalid_dtype, "x");
  for (Numbers* big : {&wide, &many}) {
    RotaryMulArgs a{.x = big->tensor(), .r1 = big->tensor(), .r2 = big->tensor()};
    Context context;
    EXPECT_EQ(rotated(a, &context), rotated(a, nullptr));
    a.level = Level::strict;
    refused(a, Status::unsupported, "x");
  }
  Numbers y(d, {2, 3, 8}, r);
  Tensor read_only = y.tensor();
  read_only.read_only = true;
  refused(good, Status::invalid_device, "y", {read_only});
  refused(good, Status::aliased, "y", {x.tensor()});
}

}  // namespace
}  // namespace dsakit
