// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>

#include "core/float16.hpp"
#include "layer/rope.hpp"

namespace dsakit {
namespace {

io::ModelConfig deepseek_v32() {
  io::ModelConfig c{};
  c.qk_nope_head_dim = 128;
  c.qk_rope_head_dim = 64;
  c.rope = {.theta = 10000,
            .yarn = true,
            .factor = 40,
            .mscale = 1,
            .mscale_all_dim = 1,
            .original_max_position_embeddings = 4096};
  return c;
}

TEST(Rope, YarnOfDeepSeekV32) {
  const io::ModelConfig c = deepseek_v32();
  const YarnRange range = yarn_range(c.rope, 64);
  EXPECT_EQ(range.low, 10);
  EXPECT_EQ(range.high, 23);
  const std::vector<float> f = rope_frequencies(c.rope, 64);
  for (int i = 0; i < 32; ++i) {
    const double plain = std::pow(10000.0, -i / 32.0);
    if (i <= 10) {
      EXPECT_EQ(f[i], float(plain)) << i;
    } else if (i >= 23) {
      EXPECT_EQ(f[i], float(plain / 40)) << i;
    }
  }
  EXPECT_NEAR(f[16], 5.5e-3, 1e-6);  // 0.01 * (6/13 / 40 + 7/13)
  EXPECT_EQ(rope_amplitude(c.rope), 1);
  EXPECT_NEAR(softmax_scale(c), 0.1352338, 5e-8);
}

TEST(Rope, AmplitudeIsTheRatioOfScales) {
  io::RopeConfig rope = deepseek_v32().rope;
  rope.mscale_all_dim = 0;
  EXPECT_NEAR(rope_amplitude(rope), 0.1 * std::log(40.0) + 1, 1e-12);
  rope.mscale = 0, rope.mscale_all_dim = 1;  // given without the other
  EXPECT_NEAR(rope_amplitude(rope), 0.1 * std::log(40.0) + 1, 1e-12);
  rope.mscale = 0.5;
  EXPECT_NEAR(rope_amplitude(rope), (0.05 * std::log(40.0) + 1) / (0.1 * std::log(40.0) + 1), 1e-12);
  rope.attention_factor = 1.5;
  EXPECT_EQ(rope_amplitude(rope), 1.5);
  rope = deepseek_v32().rope, rope.mscale_all_dim = 0;
  bf16 cos[64], sin[64];
  RopeTable(rope, 64).copy(0, 1, cos, sin);
  EXPECT_EQ(cos[0].bits, to_bf16_once(0.1 * std::log(40.0) + 1).bits);
}

TEST(Rope, PlainScaleOfGlm) {
  io::ModelConfig c{};
  c.qk_nope_head_dim = 192;
  c.qk_rope_head_dim = 64;
  c.rope.theta = 1e6;
  EXPECT_EQ(softmax_scale(c), 0.0625);
}

TEST(Rope, TableRoundsTheAngleToFloatAndTheResultOnce) {
  const io::ModelConfig c = deepseek_v32();
  const RopeTable table(c.rope, 64);
  const std::vector<float> f = rope_frequencies(c.rope, 64);
  int moved = 0;
  for (const std::int64_t position : {0, 1, 511, 512, 4095, 131071, 163839}) {
    bf16 cos[64], sin[64];
    table.copy(position, 1, cos, sin);
    for (int i = 0; i < 64; ++i) {
      const float angle = float(position) * f[i % 32];
      EXPECT_EQ(cos[i].bits, to_bf16_once(std::cos(double(angle))).bits) << position << " " << i;
      EXPECT_EQ(sin[i].bits, to_bf16_once(std::sin(double(angle))).bits) << position << " " << i;
      moved += sin[i].bits != to_bf16_once(std::sin(double(position) * double(f[i % 32]))).bits;
    }
  }
  EXPECT_GT(moved, 0);  // the rounded angle is not the exact one
}

TEST(Rope, CopiesAcrossBlocks) {
  const RopeTable table(deepseek_v32().rope, 64);
  std::vector<bf16> cos(700 * 64), sin(700 * 64), one_cos(64), one_sin(64);
  table.copy(400, 700, cos.data(), sin.data());
  for (int r = 0; r < 700; r += 37) {
    table.copy(400 + r, 1, one_cos.data(), one_sin.data());
    for (int i = 0; i < 64; ++i) {
      EXPECT_EQ(cos[r * 64 + i].bits, one_cos[i].bits);
      EXPECT_EQ(sin[r * 64 + i].bits, one_sin[i].bits);
    }
  }
}

TEST(Hadamard, IsSylvestersScaledMatrix) {
  const std::vector<bf16> h = hadamard(128);
  for (int i = 0; i < 128; ++i)
    for (int j = 0; j < 128; ++j) {
      EXPECT_EQ(std::fabs(to_float(h[i * 128 + j])), 0.08837890625f);
      if (i < 64 && j < 64) {  // [[H, H], [H, -H]]
        EXPECT_EQ(to_float(h[i * 128 + 64 + j]), to_float(h[i * 128 + j]));
        EXPECT_EQ(to_float(h[(i + 64) * 128 + j]), to_float(h[i * 128 + j]));
        EXPECT_EQ(to_float(h[(i + 64) * 128 + 64 + j]), -to_float(h[i * 128 + j]));
      }
    }
  const std::vector<bf16> four = hadamard(4);
  const float signs[16] = {1, 1, 1, 1, 1, -1, 1, -1, 1, 1, -1, -1, 1, -1, -1, 1};
  for (int i = 0; i < 16; ++i) EXPECT_EQ(to_float(four[i]), signs[i] / 2);
  const std::vector<bf16> twelve = hadamard(12);
  for (int i = 0; i < 12; ++i)
    for (int j = 0; j < 12; ++j)
      EXPECT_EQ(to_float(twelve[i * 12 + j]), i / 4 == j / 4 ? signs[i % 4 * 4 + j % 4] / 2 : 0) << i << " " << j;
}

}  // namespace
}  // namespace dsakit
