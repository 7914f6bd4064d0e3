// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "core/float16.hpp"
#include "layer/test_source.hpp"
#include "layer/weights.hpp"

namespace dsakit {
namespace {

io::ModelConfig small() {
  io::ModelConfig c{};
  c.hidden_size = 72;
  c.num_hidden_layers = 1;
  c.num_attention_heads = 3;
  c.q_lora_rank = 40;
  c.kv_lora_rank = 96;
  c.qk_nope_head_dim = 24;
  c.qk_rope_head_dim = 8;
  c.v_head_dim = 20;
  c.index_n_heads = 5;
  c.index_head_dim = 16;
  c.index_topk = 8;
  c.rope_interleave = true;
  return c;
}

TEST(LayerWeights, Int8RuleOfEachColumn) {
  const float rows[3][4] = {{1.25f, -0.625f, 0.0048828125f, 0}, {0, 0, 0, 0}, {-127, 2.5f, 3.5f, 127}};
  bf16 weight[12];
  for (int i = 0; i < 12; ++i) weight[i] = to_bf16(rows[i / 4][i % 4]);
  std::int8_t codes[12];
  float scale[3];
  quantise_rows(weight, 3, 4, codes, scale);
  EXPECT_EQ(scale[0], 1.25f / 127);
  EXPECT_EQ(scale[1], 0);
  EXPECT_EQ(scale[2], 1);
  const std::int8_t wanted[12] = {127, -64, 0, 0, 0, 0, 0, 0, -127, 2, 4, 127};  // halves go to even
  for (int i = 0; i < 12; ++i) EXPECT_EQ(codes[i], wanted[i]) << i;
}

TEST(LayerWeights, TransposesAndSplits) {
  const io::ModelConfig c = small();
  const auto source = synthetic_source(7);
  LayerWeights w(c, true, synthetic_source(7));
  w.prepare(Mode::dense_bf16);
  const auto q_a = source->matrix("q_a_proj.weight", 40, 72);
  const auto kv_b = source->matrix("kv_b_proj.weight", 3 * 44, 96);
  for (int i = 0; i < 72; ++i)
    for (int o = 0; o < 40; ++o) ASSERT_EQ(w.w_dq.view().at(0, i, o), to_float(q_a[o * 72 + i]));
  for (int h = 0; h < 3; ++h)
    for (int l = 0; l < 96; ++l) {
      for (int d = 0; d < 24; ++d) ASSERT_EQ(w.w_uk.view().at(h, d, l), to_float(kv_b[(h * 44 + d) * 96 + l]));
      for (int v = 0; v < 20; ++v) ASSERT_EQ(w.w_uv.view().at(h, l, v), to_float(kv_b[(h * 44 + 24 + v) * 96 + l]));
    }
}

TEST(LayerWeights, HalvesBecomePairs) {
  io::ModelConfig c = small();
  c.rope_interleave = false;
  LayerWeights w(c, true, synthetic_source(7));
  w.prepare(Mode::dense_bf16);
  const auto source = synthetic_source(7);
  const auto q_b = source->matrix("q_b_proj.weight", 3 * 32, 40),
             kv_a = source->matrix("kv_a_proj_with_mqa.weight", 104, 72);
  for (int h = 0; h < 3; ++h)
    for (int j = 0; j < 4; ++j)  // elements j and j + 4 of a head's rope part become 2j and 2j + 1
      for (int i = 0; i < 40; ++i) {
        ASSERT_EQ(w.w_uq_qr.view().at(0, i, h * 32 + 24 + 2 * j), to_float(q_b[(h * 32 + 24 + j) * 40 + i]));
        ASSERT_EQ(w.w_uq_qr.view().at(0, i, h * 32 + 24 + 2 * j + 1), to_float(q_b[(h * 32 + 24 + j + 4) * 40 + i]));
        ASSERT_EQ(w.w_uq_qr.view().at(0, i, h * 32 + j), to_float(q_b[(h * 32 + j) * 40 + i]));
      }
  for (int j = 0; j < 4; ++j)
    for (int i = 0; i < 72; ++i) {
      ASSERT_EQ(w.w_dkv_kr.view().at(0, i, 96 + 2 * j), to_float(kv_a[(96 + j) * 72 + i]));
      ASSERT_EQ(w.w_dkv_kr.view().at(0, i, 96 + 2 * j + 1), to_float(kv_a[(96 + j + 4) * 72 + i]));
    }
}

TEST(PackedWeight, PartsThatBeginBetweenTwoScales) {
  const std::int64_t n = 320, k = 200;
  std::vector<std::uint8_t> codes(n * k);
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = std::uint8_t(i * 37 % 127);
  std::vector<float> scales(3 * 2);
  for (std::size_t i = 0; i < scales.size(); ++i) scales[i] = 0.25f * float(i + 1);
  const auto rows = [&](std::int64_t begin, std::int64_t end, std::int64_t first_row) {
    Tensor part = tensor(codes.data() + begin * k, {end - begin, k});
    part.dtype = DType::f8_e4m3;
    const std::int64_t block = begin / 128;
    return Matrix(PackedWeight(part, tensor(scales.data() + block * 2, {(end + 127) / 128 - block, 2}), first_row));
  };
  const Matrix whole = rows(0, n, 0), part = rows(192, 320, 64);
  for (std::int64_t i = 0; i < k; ++i)
    for (std::int64_t j = 0; j < 128; ++j) ASSERT_EQ(part.view().at(0, i, j), whole.view().at(0, i, 192 + j));
  EXPECT_THROW(rows(32, 128, 32), Error);
  EXPECT_THROW(rows(0, 128, 64), Error);  // touches two blocks, has scales of one
}

TEST(LayerWeights, AModeMakesOnlyWhatItNeeds) {
  LayerWeights w(small(), true, synthetic_source(1));
  const std::size_t common = w.bytes();
  w.prepare(Mode::dense_bf16);
  const std::size_t dense = w.bytes();
  EXPECT_GT(dense, common);
  EXPECT_FALSE(w.wk);
  w.prepare(Mode::sparse_bf16);
  const std::size_t sparse = w.bytes();
  EXPECT_GT(sparse, dense);
  EXPECT_FALSE(w.w_uq_qr_i8.codes);
  w.prepare(Mode::sparse_w8a8);
  EXPECT_TRUE(w.w_qb_i8.codes);
  EXPECT_FALSE(w.w_dq_i8.codes);
  w.prepare(Mode::sparse_w8a8_packed);
  EXPECT_TRUE(w.w_dq_i8.codes);
  const std::size_t all = w.bytes();
  EXPECT_GT(all, sparse);
  w.prepare(Mode::sparse_bf16);
  EXPECT_EQ(w.bytes(), all);
}

TEST(Modes, AreRefusedByName) {
  io::ModelConfig c = small();
  const auto status = [&](std::string_view name) {
    try {
      mode_of(name, c);
    } catch (const Error& e) {
      EXPECT_EQ(e.parameter, "mode");
      return e.status;
    }
    return Status::ok;
  };
  EXPECT_EQ(status("sparse_w8a8"), Status::ok);
  EXPECT_EQ(status("sparse"), Status::invalid_argument);
  c.index_topk = 0;
  EXPECT_EQ(status("sparse_bf16"), Status::unsupported);
  EXPECT_EQ(status("dense_bf16"), Status::ok);
}

}  // namespace
}  // namespace dsakit
