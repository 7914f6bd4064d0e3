// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <bit>
#include <limits>

#include "ops/prolog/formula.hpp"

// The worked numbers of the documents, on the formulas that the reference is made of. The same ones through the whole
// operator: test_examples.cc; on the kernels: src/ops/prolog/test.cc.
namespace dsakit::prolog::formula {
namespace {

std::uint32_t bits(float x) { return std::bit_cast<std::uint32_t>(x); }
std::vector<std::uint32_t> bits(const Row& x) {
  std::vector<std::uint32_t> b;
  for (float v : x) b.push_back(bits(v));
  return b;
}
using Codes = std::vector<std::int8_t>;

TEST(MlaPrologV3Formula, RowQuantisation) {
  const Row z = {0.8125f, -0.40625f, 0.10009765625f, 0.796875f, 0};
  Codes codes(5);
  EXPECT_EQ(bits(rowq(z.data(), 5, codes.data())), 0x3bd1a347u);
  EXPECT_EQ(codes, (Codes{127, -64, 16, 125, 0}));
  EXPECT_EQ(bits(rowq_p(z.data(), 5, codes.data())), 0x3bd1a346u);
  EXPECT_EQ(codes, (Codes{127, -64, 16, 125, 0}));
}

TEST(MlaPrologV3Formula, CodesAwayFromZero) {
  const float values[] = {2.5f, -2.5f, 2.4995f, 0.49988f, 1000, -1e6f, 126.5f, 127.49f, -128.5f, 0x1p-30f, -0.5f};
  const int wanted[] = {3, -3, 3, 1, 127, -128, 127, 127, -128, 0, -1};
  for (int i = 0; i < 11; ++i) EXPECT_EQ(i8_away(values[i]), wanted[i]) << values[i];
  EXPECT_EQ(i8(2.5f), 2);
  EXPECT_EQ(i8(-2.5f), -2);
  EXPECT_EQ(i8(2.4995f), 2);
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(i8_away(std::nanf("")), 0);
  EXPECT_EQ(i8(std::nanf("")), 0);
  EXPECT_EQ(i8_away(inf), 127);
  EXPECT_EQ(i8_away(-inf), -128);
}

TEST(MlaPrologV3Formula, ClippedTile) {
  const Row x = {4, -1.5f, 0.75f, -2};
  Codes codes(4);
  EXPECT_EQ(bits(tileq(x.data(), 4, 0.5f, codes.data())), 0x3c810204u);
  EXPECT_EQ(codes, (Codes{127, -95, 48, -127}));
  const Row three = {3, 0, -3, 1};
  EXPECT_EQ(bits(tileq(three.data(), 4, 1, codes.data())), 0x3cc18306u);
  EXPECT_EQ(codes, (Codes{127, 0, -127, 42}));
}

TEST(MlaPrologV3Formula, TinyGroups) {
  for (float a : {0.0f, 1e-38f, 3.73e-37f}) {
    const Row z = {a, -a, 0};
    Codes codes(3, 9);
    EXPECT_EQ(rowq(z.data(), 3, codes.data()), 0);
    EXPECT_EQ(codes, (Codes{0, 0, 0}));
    codes.assign(3, 9);
    EXPECT_EQ(headq(z.data(), 3, codes.data()), 0);
    EXPECT_EQ(codes, (Codes{0, 0, 0}));
  }
  // A tile has no floor but the one where the inverse of its scale overflows.
  const Row z = {1e-30f, -5e-31f};
  Codes codes(2);
  EXPECT_GT(tileq(z.data(), 2, 1, codes.data()), 0);
  EXPECT_EQ(codes, (Codes{127, -64}));
  EXPECT_EQ(tileq(z.data(), 2, 1e-9f, codes.data()), 0);
  EXPECT_EQ(codes, (Codes{0, 0}));
  const Row large = {1e30f, 1};
  EXPECT_EQ(tileq(large.data(), 2, 1e30f, codes.data()), 0);
  EXPECT_EQ(codes, (Codes{0, 0}));
}

TEST(MlaPrologV3Formula, Rope) {
  const Row y = rope_to_half({1, 2, 3, 4}, {0.5f, 0.25f, 1, 2}, {1, 0.5f, 0.125f, 0.75f});
  EXPECT_EQ(bits(bf16_of(y)), (std::vector<std::uint32_t>{0xbfc00000, 0xbfa00000, 0x40080000, 0x41240000}));
}

TEST(MlaPrologV3Formula, RmsNorm) {
  const Row y = norm({1, -2, 2, 4}, {1, 0.5f, 1, 2}, 1e-5f);
  EXPECT_EQ(bits(y), (std::vector<std::uint32_t>{0x3eccccc3, 0xbeccccc3, 0x3f4cccc3, 0x404cccc3}));
  EXPECT_EQ(bits(bf16_of(y)), (std::vector<std::uint32_t>{0x3ecd0000, 0xbecd0000, 0x3f4d0000, 0x404d0000}));
}

TEST(MlaPrologV3Formula, StaticCodes) {
  const float x[] = {1.5f, 0.5f, 40, -40}, scale[] = {3, 5, 4, 4};
  const int wanted[] = {4, 2, 127, -128};
  for (int i = 0; i < 4; ++i) EXPECT_EQ(i8(x[i] * scale[i]), wanted[i]);
}

TEST(MlaPrologV3Formula, RescaledRope) {
  const Row q = {3, -1};
  Codes codes(2);
  const float s = headq(q.data(), 2, codes.data());
  EXPECT_EQ(bits(s), 0x3cc18306u);
  EXPECT_EQ(codes, (Codes{127, -42}));
  EXPECT_EQ(bits(2.0f / s), 0x42a95555u);
  EXPECT_EQ(bits(bf16_of(0.75f * (2.0f / s))), 0x427e0000u);
}

TEST(MlaPrologV3Formula, TokenScaleFirst) { EXPECT_EQ(bits(dequantise(-181602, 0.643f, 0.549f)), 0xc77a6ac8u); }

TEST(MlaPrologV3Formula, Bf16BeforeQuantisation) {
  const Row z = {1, 0.30315f};
  Codes codes(2);
  rowq(z.data(), 2, codes.data());
  EXPECT_EQ(codes[1], 39);
  rowq_p(bf16_of(z).data(), 2, codes.data());
  EXPECT_EQ(codes[1], 38);
}

}  // namespace
}  // namespace dsakit::prolog::formula
