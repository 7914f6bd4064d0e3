// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <bit>
#include <vector>

#include "core/float16.hpp"
#include "ops/prolog/rows.hpp"

// The worked examples of the documents, on every rung.
namespace dsakit::prolog {
namespace {

std::uint32_t bits(float x) { return std::bit_cast<std::uint32_t>(x); }

class PrologRows : public testing::TestWithParam<const Kernels*> {
 protected:
  const Kernels& kernels = *GetParam();
};

TEST_P(PrologRows, RowQuantisation) {
  const float z[] = {0.8125f, -0.40625f, 0.10009765625f, 0.796875f, 0};
  std::int8_t codes[5];
  EXPECT_EQ(bits(quantise(kernels, kPyPto, z, 5, codes)), 0x3bd1a346u);
  EXPECT_EQ(std::vector<std::int8_t>(codes, codes + 5), (std::vector<std::int8_t>{127, -64, 16, 125, 0}));
  EXPECT_EQ(bits(quantise(kernels, kTorchNpu, z, 5, codes)), 0x3bd1a347u);
  EXPECT_EQ(std::vector<std::int8_t>(codes, codes + 5), (std::vector<std::int8_t>{127, -64, 16, 125, 0}));

  const float halves[] = {0.5f, -1, 0.25f, 2};
  const float scale = quantise(kernels, kPyPto, halves, 4, codes);
  EXPECT_EQ(std::vector<std::int8_t>(codes, codes + 4), (std::vector<std::int8_t>{32, -64, 16, 127}));
  EXPECT_EQ(scale, 0.015748031f);
  EXPECT_EQ(to_float(to_f16(scale)), 0.01574707f);
}

TEST_P(PrologRows, GroupsTooSmallToQuantise) {
  for (float a : {0.0f, 1e-38f, 3.7e-37f}) {
    const float z[] = {a, -a / 2, 0};
    std::int8_t codes[] = {9, 9, 9};
    EXPECT_EQ(quantise(kernels, kPyPto, z, 3, codes), 0);
    EXPECT_EQ(std::vector<std::int8_t>(codes, codes + 3), (std::vector<std::int8_t>{0, 0, 0}));
  }
  const float z[] = {4e-37f, -2e-37f};
  std::int8_t codes[2];
  EXPECT_GT(quantise(kernels, kPyPto, z, 2, codes), 0);
  EXPECT_EQ(codes[0], 127);
}

TEST_P(PrologRows, RmsNorm) {
  const float x[] = {1, -2, 2, 4}, g[] = {1, 0.5f, 1, 2};
  for (const Numerics& numerics : {kPyPto, kTorchNpu}) {
    float y[4];
    rms_norm(kernels, numerics.norm, x, 4, g, 1e-5f, y);
    EXPECT_EQ(bits(y[0]), 0x3eccccc3u);
    EXPECT_EQ(bits(y[1]), 0xbeccccc3u);
    EXPECT_EQ(bits(y[2]), 0x3f4cccc3u);
    EXPECT_EQ(bits(y[3]), 0x404cccc3u);
  }
}

TEST_P(PrologRows, Rope) {
  const float v[] = {1, 2, 3, 4};
  float y[4];
  {
    const float cos[] = {0.5f, 0.25f, 1, 2}, sin[] = {1, 0.5f, 0.125f, 0.75f};
    rotate(RopeLayout::interleaved_to_half, v, cos, sin, 2, y);
    EXPECT_EQ(std::vector<float>(y, y + 4), (std::vector<float>{-1.5f, -1.25f, 2.125f, 10.25f}));
    rotate(RopeLayout::half, v, cos, sin, 2, y);
    EXPECT_EQ(std::vector<float>(y, y + 4), (std::vector<float>{-2.5f, -1.5f, 3.125f, 9.5f}));
  }
  const float cos[] = {0.5f, 0, 0.5f, 0}, sin[] = {0.25f, 1, 0.25f, 1};
  rotate(RopeLayout::half, v, cos, sin, 2, y);
  EXPECT_EQ(std::vector<float>(y, y + 4), (std::vector<float>{-0.25f, -4, 1.75f, 2}));
  rotate(RopeLayout::interleaved_to_half, v, cos, sin, 2, y);
  EXPECT_EQ(std::vector<float>(y, y + 4), (std::vector<float>{0, -4, 1.25f, 3}));
  rotate(RopeLayout::interleaved, v, cos, sin, 2, y);
  EXPECT_EQ(std::vector<float>(y, y + 4), (std::vector<float>{0, 1.25f, -4, 3}));
}

TEST_P(PrologRows, DequantisationOrder) {
  const std::int32_t acc = -181602;
  const float channel = 0.549f;
  float y;
  kernels.dequantize(&acc, 1, 0.643f, &channel, &y);
  EXPECT_EQ(bits(y), 0xc77a6ac8u);
}

TEST_P(PrologRows, RoundingBeforeQuantising) {
  const float exact[] = {1, 0.30315f}, rounded[] = {1, to_float(to_bf16(0.30315f))};
  std::int8_t codes[2];
  quantise(kernels, kTorchNpu, exact, 2, codes);
  EXPECT_EQ(codes[1], 39);
  EXPECT_EQ(rounded[1], 0.302734375f);
  quantise(kernels, kPyPto, rounded, 2, codes);
  EXPECT_EQ(codes[1], 38);
}

INSTANTIATE_TEST_SUITE_P(Rungs, PrologRows, testing::ValuesIn(supported_kernels().begin(), supported_kernels().end()),
                         [](const auto& info) { return std::string(info.param->isa); });

}  // namespace
}  // namespace dsakit::prolog
