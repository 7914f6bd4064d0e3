// SPDX-License-Identifier: Apache-2.0
#include "ops/fused_infer_attention_score_v2/judge.hpp"

// Rows F of the acceptance table: quantised keys and values.
namespace dsakit {
namespace {

using namespace fused_infer_attention_score_v2_op;

constexpr DType kF16 = DType::f16, kBf16 = DType::bf16, kF32 = DType::f32, kI8 = DType::i8, kInt4 = DType::i32;

void expect_strict_too(Spec s) {
  const Results wanted = bits(s, *supported_kernels().back());
  s.level = Level::strict;
  EXPECT_EQ(bits(s, *supported_kernels().back()), wanted);
}

TEST(FusedInfer, F1ScalePerChannel) {
  const Spec s{.layout = "BNSD",
               .b = 2,
               .nk = 2,
               .s2 = 70,
               .kv = kI8,
               .ks = {1, 2, 1, 128},
               .scale_type = kF16,
               .offsets = true};
  expect_all_right(s);
  expect_strict_too(s);
}
TEST(FusedInfer, F2ScalePerChannelWithoutOffset) {
  const Spec s{
      .layout = "BSND", .b = 2, .nk = 2, .s2 = 70, .type = kBf16, .kv = kI8, .ks = {1, 2, 128}, .scale_type = kBf16};
  expect_all_right(s);
  expect_strict_too(s);
}
TEST(FusedInfer, F3ScalePerChannelInOneAxis) {  // the offset enters softmax_lse
  expect_all_right(
      {.layout = "BSH", .b = 2, .nk = 2, .s2 = 70, .kv = kI8, .ks = {1, 256}, .scale_type = kF16, .offsets = true});
}
TEST(FusedInfer, F3ScalePerChannelOfOneColumn) {  // (Nk*Dv) is (1,) too
  expect_all_right({.layout = "BSH", .nq = 2, .nk = 1, .s2 = 9, .d = 8, .dv = 1, .kv = kI8, .ks = {8}, .vs = {1}});
}
TEST(FusedInfer, F4ScalePerTensor) {
  const Spec s{.layout = "BNSD", .b = 2, .nk = 2, .s2 = 70, .kv = kI8, .ks = {1}, .scale_type = kF16, .offsets = true};
  expect_all_right(s);
  expect_strict_too(s);
}
TEST(FusedInfer, F5ScalePerToken) {
  const Spec s{.layout = "BNSD", .b = 3, .nk = 2, .s2 = 300, .kv = kI8, .kl = {300, 9, 0}, .km = 1, .vm = 1};
  Spec t = s;
  t.ks = {1, 3, 308}, t.offsets = true;
  expect_all_right(t);
  expect_strict_too(t);
}
TEST(FusedInfer, F6ScalePerHead) {
  const Spec s{.layout = "BNSD",
               .b = 2,
               .nk = 2,
               .s2 = 70,
               .kv = kI8,
               .km = 2,
               .vm = 2,
               .ks = {2},
               .scale_type = kF16,
               .offsets = true};
  expect_all_right(s);
  expect_strict_too(s);
}
TEST(FusedInfer, F7ScalePerTokenAndHead) {
  const Spec s{
      .layout = "BSH", .b = 2, .nk = 2, .s2 = 300, .kv = kI8, .km = 3, .vm = 3, .ks = {2, 2, 300}, .offsets = true};
  expect_all_right(s);
  expect_strict_too(s);
}
TEST(FusedInfer, F8ScalePerTokenByPage) {
  Spec s{.layout = "BNSD", .b = 2, .nk = 2, .kv = kI8, .kl = {300, 77}, .rank = 4, .km = 4, .vm = 4};
  s.ks = {Case({.layout = "BNSD", .b = 2, .kl = {300, 77}, .rank = 4}).pages, 128};
  expect_all_right(s);
  expect_strict_too(s);
}
TEST(FusedInfer, F9ScalePerTokenAndHeadByPage) {
  Spec s{.layout = "BSH", .b = 2, .nk = 2, .kv = kI8, .kl = {300, 77}, .rank = 3, .km = 5, .vm = 5, .offsets = true};
  s.ks = {Case({.layout = "BSH", .b = 2, .kl = {300, 77}, .rank = 3}).pages, 2, 128};
  expect_all_right(s);
  expect_strict_too(s);
}
TEST(FusedInfer, F10ScalePerTokenOverPages) {
  const Spec s{
      .layout = "BSH", .b = 2, .nk = 2, .kv = kI8, .kl = {300, 77}, .rank = 3, .km = 1, .vm = 1, .ks = {1, 2, 512}};
  expect_all_right(s);
  expect_strict_too(s);
}
TEST(FusedInfer, F11KeyPerChannelValuePerToken) {
  const Spec s{.layout = "BNSD",
               .b = 2,
               .nk = 2,
               .s2 = 70,
               .kv = kI8,
               .km = 0,
               .vm = 1,
               .ks = {1, 2, 1, 128},
               .vs = {1, 2, 70},
               .scale_type = kF16,
               .value_scale_type = kF32,
               .offsets = true};
  expect_all_right(s);
  expect_strict_too(s);
}
TEST(FusedInfer, F11KeysBesideAttentionSinks) {  // the sum is theirs, their probabilities are tiny
  for (const DType type : {kF16, kBf16})
    for (const int sinks : {1, 3}) {
      Case c({.layout = "BNSD", .s1 = 8, .s2 = 256, .type = type, .kv = kI8, .ks = {1}});
      const float gap = type == kF16 ? 12 : 10;
      for (std::int64_t h = 0; h < 4; ++h) {
        for (std::int64_t q = 0; q < 8; ++q)
          c.query.put(c.query_at(128, 0, h, q, 0), gap / (c.scale() * c.ks.get(0) * 100));
        for (std::int64_t k = 0; k < 256; ++k)
          for (std::int64_t d = 0; d < 128; ++d) {
            const std::int64_t at = c.key_at(c.key, 128, 0, h, k, d);
            c.key.put(at, k < sinks && d == 0 ? float(100 + k) : 0);
            c.value.put(at, k < sinks ? 0 : std::fabs(c.value.get(at)) / 2);
          }
      }
      const Judged j(c);
      for (const Kernels* kernels : supported_kernels()) run(c, *kernels, 1), expect_right(c, j, false);
    }
}
TEST(FusedInfer, F12Int4PerChannel) {
  const Spec s{
      .layout = "BNSD", .b = 2, .nk = 2, .s2 = 70, .d = 64, .kv = kInt4, .ks = {1, 2, 1, 64}, .scale_type = kF16};
  ASSERT_EQ(Case(s).key.t.shape[3], 8);
  expect_all_right(s);
  expect_strict_too(s);
}
TEST(FusedInfer, F13Int4PerToken) {
  const Spec s{.layout = "BSH",
               .b = 2,
               .nk = 2,
               .s2 = 70,
               .d = 64,
               .kv = kInt4,
               .km = 1,
               .vm = 1,
               .ks = {1, 2, 70},
               .offsets = true};
  expect_all_right(s);
  expect_strict_too(s);
}
TEST(FusedInfer, F14Int4PerTokenAndHead) {
  const Spec s{.layout = "BSND", .b = 2, .nk = 2, .s2 = 70, .d = 64, .kv = kInt4, .km = 3, .vm = 3, .ks = {2, 2, 70}};
  expect_all_right(s);
  expect_strict_too(s);
}
TEST(FusedInfer, F15Int4KeyPerChannelValuePerToken) {
  const Spec s{.layout = "BNSD",
               .b = 2,
               .nk = 2,
               .s2 = 70,
               .d = 64,
               .kv = kInt4,
               .km = 0,
               .vm = 1,
               .ks = {1, 2, 1, 64},
               .vs = {1, 2, 70},
               .scale_type = kF16,
               .value_scale_type = kF32};
  expect_all_right(s);
  expect_strict_too(s);
}
TEST(FusedInfer, F16SeveralRows) {
  Spec s{.layout = "BSND",
         .b = 2,
         .nk = 2,
         .s1 = 8,
         .s2 = 70,
         .type = kBf16,
         .kv = kI8,
         .mode = 3,
         .stencil = true,
         .ks = {2, 128},
         .scale_type = kBf16,
         .offsets = true};
  expect_all_right(s);
  expect_strict_too(s);
}
TEST(FusedInfer, F17SixteenRows) {
  const Spec s{.layout = "BNSD",
               .b = 2,
               .nk = 2,
               .s1 = 16,
               .s2 = 270,
               .type = kBf16,
               .kv = kI8,
               .km = 1,
               .vm = 1,
               .ks = {2, 270}};
  expect_all_right(s);
  expect_strict_too(s);
}
TEST(FusedInfer, F18PagesInColumnBlocks) {
  Spec s{.layout = "BNSD",
         .b = 2,
         .nq = 10,
         .nk = 1,
         .s1 = 4,
         .type = kBf16,
         .kv = kI8,
         .kl = {300, 77},
         .rank = 5,
         .mode = 3,
         .stencil = true,
         .ks = {1, 1, 128},
         .scale_type = kBf16,
         .inner_precise = 1};
  ASSERT_EQ(Case(s).key.t.shape[4], 32);
  expect_all_right(s);
  s.lse = false;
  expect_strict_too(s);
}
TEST(FusedInfer, F19Int4OfOnes) {
  Case c({.layout = "BNSD", .s2 = 40, .d = 64, .kv = kInt4, .ks = {1, 4, 1, 64}, .scale_type = kF16});
  for (Buffer* x : {&c.key, &c.value})
    for (std::int64_t i = 0; i < x->t.elements(); ++i) static_cast<std::uint32_t*>(x->t.data)[i] = 0x11111111u;
  for (Buffer* x : {&c.ks, &c.vs})
    for (std::int64_t i = 0; i < x->t.elements(); ++i) x->put(i, 1);
  for (const Kernels* kernels : supported_kernels()) {
    run(c, *kernels, 1);
    for (std::int64_t i = 0; i < c.attention.t.elements(); ++i) ASSERT_EQ(c.attention.get(i), 1);
  }
  // The nibbles of a word, the lowest first.
  for (std::int64_t i = 0; i < c.value.t.elements(); ++i) static_cast<std::uint32_t*>(c.value.t.data)[i] = 0xFEDCBA98u;
  run(c, *supported_kernels().back(), 1);
  for (std::int64_t i = 0; i < c.attention.t.elements(); ++i) ASSERT_EQ(c.attention.get(i), float(i % 8 - 8));
}
TEST(FusedInfer, F20TwentyRows) {
  const Spec s{.layout = "BNSD", .b = 2, .nk = 2, .s1 = 20, .s2 = 270, .kv = kI8, .km = 3, .vm = 3, .ks = {2, 2, 270}};
  expect_all_right(s);
  Spec strict = s;
  strict.level = Level::strict;
  EXPECT_THROW(bits(strict, *supported_kernels().back()), Error);
}

/// portable: any mode, layout, rows, storage, codes and type of scale together.
TEST(FusedInfer, AnyDequantisationWithAnyStorage) {
  std::uint64_t seed = 100;
  for (const DType kv : {kI8, kInt4})
    for (const char* layout : {"BSH", "BNSD_NBSD", "TND", "NTD"})
      for (const int rank : {0, 3, 4, 5}) {
        if (kv == kInt4 && rank == 5) continue;
        for (std::int64_t mode = 0; mode <= (rank ? 6 : 4); ++mode) {  // the last: key per channel, value per token
          const bool pair = mode == (rank ? 6 : 4);
          Spec s{.layout = layout,
                 .b = 2,
                 .nk = 2,
                 .s1 = 3,
                 .s2 = 45,
                 .d = 32,
                 .dv = 64,
                 .kv = kv,
                 .rank = rank,
                 .bs = 10,
                 .mode = 3,
                 .seed = ++seed};
          s.type = std::vector{kF16, kBf16, kF32}[seed % 3];
          s.scale_type = s.value_scale_type = std::vector{kF32, kF16, kBf16}[seed % 3];
          s.ql = {3, 2}, s.kl = {45, 28}, s.offsets = seed % 2;
          s.km = pair ? 0 : mode, s.vm = pair ? 1 : mode;
          const std::int64_t pages = 9;  // 5 and 3 and the one nobody owns
          const std::vector<Shape> shapes{{2, 32}, {2, 50}, {2}, {2, 2, 50}, {pages, 10}, {pages, 2, 10}};
          s.ks = shapes[std::size_t(s.km)], s.vs = s.vm == 0 ? Shape{2, 64} : shapes[std::size_t(s.vm)];
          SCOPED_TRACE("seed " + std::to_string(seed));
          expect_all_right(s);
        }
      }
}

}  // namespace
}  // namespace dsakit
