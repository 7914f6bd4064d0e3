// SPDX-License-Identifier: Apache-2.0
#include "debug/apart.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "debug/test_cases.hpp"

namespace dsakit::debug {
namespace {

/// A step with codes, and the same with what they are worth plus `error` at (row 1, column 0).
std::pair<Case, Case> codes_and_floats(float error) {
  Case a, b;
  a.call = b.call = "dsakit.mla_prolog_v3";
  const std::vector<std::int8_t> codes{1, 2, 127, 10, 20, 127, 0, 0, 127};
  const std::vector<float> scales{0.5f, 2, 0.25f};
  std::vector<float> worth(9);
  for (std::size_t i = 0; i < 9; ++i) worth[i] = codes[i] * scales[i / 3];
  worth[3] += error;
  a.tensors["tap.3.query_norm"] = stored<std::int8_t>({3, 3}, codes);
  a.tensors["tap.3.query_norm_scale"] = stored<float>({3, 1}, scales);
  b.tensors["tap.3.query_norm"] = stored<float>({3, 3}, worth);
  for (Case* c : {&a, &b}) c->tensors["tap.1.c"] = stored<float>({3, 1}, {1, 2, 3});
  return {a, b};
}

TEST(Apart, CodesAreWhatTheyAreWorth) {
  const auto [a, b] = codes_and_floats(0);
  const std::vector<Apart> all = apart(a, b, "tap");
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].name, "1.c");
  EXPECT_EQ(all[1].name, "3.query_norm");
  EXPECT_EQ(distance(all), 0.0);
  const auto [c, d] = codes_and_floats(3);
  double size = 0;
  for (const double x : {0.5, 1.0, 63.5, 20.0, 40.0, 254.0, 0.0, 0.0, 31.75}) size += x * x;
  EXPECT_DOUBLE_EQ(*distance(apart(c, d, "tap")), std::sqrt(9 / size));
  EXPECT_FALSE(distance(apart(c, d, "out")));
}

TEST(Apart, TheRowThatLosesMostSaysWhy) {
  const auto [a, b] = codes_and_floats(3);
  for (const auto& [x, y] : {std::pair{&a, &b}, std::pair{&b, &a}}) {
    const auto loss = row_loss(*x, *y, "tap", "3.query_norm");
    ASSERT_TRUE(loss);
    EXPECT_EQ(loss->row, 1);
    EXPECT_EQ(loss->channel, 2);
    EXPECT_DOUBLE_EQ(loss->sqnr, 10 * std::log10((23.0 * 23 + 40 * 40 + 254 * 254) / 9));
    EXPECT_DOUBLE_EQ(loss->without, 10 * std::log10((23.0 * 23 + 40 * 40) / 9));
    EXPECT_TRUE(std::isinf(loss->median));
    EXPECT_EQ(loss->scale, 2);
    EXPECT_EQ(loss->times, 4);
    EXPECT_EQ(loss->zeros, 0);
    EXPECT_TRUE(loss->is_loss());
  }
  EXPECT_FALSE(row_loss(a, a, "tap", "3.query_norm"));
  EXPECT_FALSE(row_loss(a, b, "tap", "1.c"));
}

TEST(Apart, SelectionsAreSharesOfOtherEntries) {
  PagedIndexer call;
  const Case a = call.as_case();
  Case b = a;
  EXPECT_EQ(distance(apart(a, b, "out")), 0.0);
  Stored moved(b.tensors["out.0"].tensor());
  reinterpret_cast<std::int32_t*>(moved.bytes->data())[3] = 1000;  // of 32
  b.tensors["out.0"] = moved;
  EXPECT_DOUBLE_EQ(*distance(apart(a, b, "out")), 1.0 / 32);
}

}  // namespace
}  // namespace dsakit::debug
