// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "core/random.hpp"
#include "dsakit/error.hpp"
#include "dsakit/float16.hpp"
#include "layer/tensor_experts.hpp"

namespace dsakit {
namespace {

constexpr std::int64_t kExperts = 5, kHidden = 96, kWide = 72, kRows = 40, kChoices = 3;

float rounded(float x) { return to_float(to_bf16(x)); }

/// Weights of any size, and tokens of which every expert but the last gets some.
struct Case {
  std::vector<float> gate_up = std::vector<float>(kExperts * 2 * kWide * kHidden),
                     down = std::vector<float>(kExperts * kHidden * kWide), x = std::vector<float>(kRows * kHidden),
                     weight = std::vector<float>(kRows * kChoices);
  std::vector<std::int32_t> expert = std::vector<std::int32_t>(kRows * kChoices);

  Case() {
    Random random(5);
    for (std::vector<float>* v : {&gate_up, &down, &x, &weight})
      for (float& value : *v) value = random.uniform(-0.3f, 0.3f);
    for (std::int64_t t = 0; t < kRows; ++t)
      for (std::int64_t j = 0; j < kChoices; ++j) expert[t * kChoices + j] = std::int32_t((t + j) % (kExperts - 1));
    expert[7] = kExperts;  // nobody
  }

  /// Gate and up lie one behind the other, expert by expert.
  Tensor half(std::int64_t first) const {
    Tensor t = tensor(gate_up.data() + first * kHidden, {kExperts, kWide, kHidden});
    t.stride[0] = 2 * kWide * kHidden;
    return t;
  }
  TensorExperts experts() const { return {half(0), half(kWide), tensor(down.data(), {kExperts, kHidden, kWide})}; }
  std::vector<float> run(std::int64_t first, std::int64_t rows, Context& context = default_context()) const {
    std::vector<float> out(rows * kHidden, 7);
    experts().forward(tensor(x.data() + first * kHidden, {rows, kHidden}),
                      tensor(expert.data() + first * kChoices, {rows, kChoices}),
                      tensor(weight.data() + first * kChoices, {rows, kChoices}),
                      tensor(out.data(), {rows, kHidden}), context);
    return out;
  }

  /// In double, with the roundings to bf16 that are promised.
  std::vector<double> formula(std::int64_t t) const {
    std::vector<double> sum(kHidden);
    for (std::int64_t j = 0; j < kChoices; ++j) {
      const std::int64_t e = expert[t * kChoices + j];
      if (e >= kExperts) continue;
      std::vector<float> inner(kWide);
      for (std::int64_t i = 0; i < kWide; ++i) {
        double gate = 0, up = 0;
        for (std::int64_t h = 0; h < kHidden; ++h) {
          const double value = rounded(x[t * kHidden + h]);
          gate += value * rounded(gate_up[(e * 2 * kWide + i) * kHidden + h]);
          up += value * rounded(gate_up[(e * 2 * kWide + kWide + i) * kHidden + h]);
        }
        inner[i] = rounded(float(gate / (1 + std::exp(-gate)) * up));
      }
      for (std::int64_t h = 0; h < kHidden; ++h) {
        double product = 0;
        for (std::int64_t i = 0; i < kWide; ++i)
          product += double(inner[i]) * rounded(down[(e * kHidden + h) * kWide + i]);
        sum[h] += weight[t * kChoices + j] * product;
      }
    }
    return sum;
  }
};

TEST(TensorExperts, FollowTheFormula) {
  const Case c;
  const std::vector<float> out = c.run(0, kRows);
  double error = 0, size = 0;
  for (std::int64_t t = 0; t < kRows; ++t) {
    const std::vector<double> wanted = c.formula(t);
    for (std::int64_t h = 0; h < kHidden; ++h) {
      const double e = out[t * kHidden + h] - wanted[h];
      error += e * e, size += wanted[h] * wanted[h];
    }
  }
  EXPECT_LT(std::sqrt(error / size), 1e-3);
}

TEST(TensorExperts, BitsDoNotDependOnCompanyOrThreads) {
  const Case c;
  const std::vector<float> whole = c.run(0, kRows);
  for (const int threads : {1, 3}) {
    Context context({.threads = threads});
    EXPECT_EQ(c.run(0, kRows, context), whole);
    for (const std::int64_t t : {0, 2, 39})
      EXPECT_TRUE(std::ranges::equal(c.run(t, 1, context), std::span(whole).subspan(t * kHidden, kHidden))) << t;
  }
  EXPECT_TRUE(c.run(0, 0).empty());
}

TEST(TensorExperts, RefuseByName) {
  const Case c;
  const TensorExperts experts = c.experts();
  std::vector<float> out(kRows * kHidden, 7);
  std::vector<std::int32_t> chosen = c.expert;
  const auto refusal = [&](std::int64_t rows, std::int64_t width) {
    try {
      experts.forward(tensor(c.x.data(), {rows, width}), tensor(chosen.data(), {kRows, kChoices}),
                      tensor(c.weight.data(), {kRows, kChoices}), tensor(out.data(), {kRows, kHidden}),
                      default_context());
    } catch (const Error& e) {
      return std::string(name_of(e.status)) + " " + e.parameter + e.position;
    }
    return std::string("accepted");
  };
  EXPECT_EQ(refusal(kRows, kHidden - 1), "INVALID_SHAPE hidden_states");
  EXPECT_EQ(refusal(kRows - 1, kHidden), "INVALID_SHAPE hidden_states");
  chosen[4] = -1;
  EXPECT_EQ(refusal(kRows, kHidden), "INVALID_INDEX top_k_index[1][1]");
  EXPECT_EQ(out, std::vector<float>(kRows * kHidden, 7));
  const Tensor down = tensor(c.down.data(), {kExperts, kHidden, kWide});
  EXPECT_THROW(TensorExperts(c.half(0), c.half(kWide), tensor(c.down.data(), {kExperts, kWide, kHidden})), Error);
  EXPECT_THROW(TensorExperts(c.half(0), down, down), Error);
  EXPECT_THROW(TensorExperts(tensor(c.gate_up.data(), {kWide, kHidden}), c.half(kWide), down), Error);
}

}  // namespace
}  // namespace dsakit
