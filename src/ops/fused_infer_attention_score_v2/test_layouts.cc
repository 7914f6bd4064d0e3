// SPDX-License-Identifier: Apache-2.0
#include "ops/fused_infer_attention_score_v2/judge.hpp"

// Rows A of the acceptance table: layouts and lengths.
namespace dsakit {
namespace {

using namespace fused_infer_attention_score_v2_op;

constexpr DType kF16 = DType::f16, kBf16 = DType::bf16;

TEST(FusedInfer, A1TheDocumentedExample) {
  const Spec s{
      .layout = "BNSD", .nq = 8, .s1 = 164, .s2 = 1024, .ql = {164}, .kl = {1024}, .pre = 65535, .next = 65535};
  expect_right_once(s);
  Spec without = s;
  without.pre = without.next = 2147483647;
  EXPECT_EQ(bits(s, *supported_kernels().back()), bits(without, *supported_kernels().back()));
}
TEST(FusedInfer, A2LengthsDefaultToTheShape) {
  expect_all_right({.layout = "BSND", .b = 2, .nq = 8, .s1 = 33, .s2 = 77, .type = kBf16});
}
TEST(FusedInfer, A3PaddingAndASequenceWithoutKeys) {
  expect_all_right({.layout = "BSH", .b = 2, .s1 = 5, .s2 = 19, .d = 80, .ql = {5, 3}, .kl = {19, 0}});
}
TEST(FusedInfer, A4DefaultIsBSH) {
  EXPECT_EQ(FusedInferAttentionScoreV2Args{}.input_layout, "BSH");
  expect_all_right({.s1 = 7, .s2 = 9});
}
TEST(FusedInfer, A5OneLengthForAll) {
  expect_all_right({.layout = "BNSD_BSND", .b = 2, .nq = 8, .nk = 4, .s1 = 17, .s2 = 64, .ql = {17}, .kl = {64}});
}
TEST(FusedInfer, A6HeadsFirst) {
  expect_all_right({.layout = "BSND_NBSD", .b = 3, .nq = 8, .s1 = 4, .s2 = 50, .type = kBf16});
}
TEST(FusedInfer, A7HeadsFirstSingleToken) {
  const Spec s{.layout = "BNSD_NBSD", .b = 3, .nq = 8, .s1 = 1, .s2 = 50, .type = kBf16};
  expect_all_right(s);
  Spec strict = s;
  strict.level = Level::strict;
  EXPECT_THROW(bits(strict, *supported_kernels().back()), Error);
}
TEST(FusedInfer, A8FourHeadsShareAKey) { expect_all_right({.layout = "BSH_NBSD", .b = 2, .nk = 1, .s1 = 6, .s2 = 40}); }
TEST(FusedInfer, A9FoldedWithEmptySequences) {
  expect_all_right({.layout = "TND", .nk = 2, .type = kBf16, .ql = {3, 0, 7, 5}, .kl = {9, 4, 0, 16}});
}
TEST(FusedInfer, A10FoldedHeadsFirstOut) { expect_all_right({.layout = "TND_NTD", .ql = {4, 4}, .kl = {8, 12}}); }
TEST(FusedInfer, A11FoldedHeadsFirstInNarrowValues) {
  expect_all_right({.layout = "NTD_TND", .d = 192, .dv = 128, .type = kBf16, .ql = {10, 12}, .kl = {32, 8}});
}
TEST(FusedInfer, A12FirstSequenceEmpty) {  // totals [0, 5, 9] and [0, 8, 20]
  expect_all_right({.layout = "TND", .type = kBf16, .ql = {0, 5, 4}, .kl = {0, 8, 12}});
}
TEST(FusedInfer, A13MoreLengthsThanSequences) {
  expect_all_right({.layout = "BNSD", .b = 2, .s1 = 8, .s2 = 9, .ql = {4, 5, 99}, .kl = {7, 9, 99}});
}
TEST(FusedInfer, A14WideHeads) {
  expect_all_right({.layout = "BNSD", .nk = 2, .s1 = 8, .s2 = 300, .d = 256, .type = kBf16});
}
TEST(FusedInfer, A15FoldedPagedWideHeadsCausal) {
  expect_all_right({.layout = "TND",
                    .nk = 1,
                    .d = 256,
                    .type = kBf16,
                    .ql = {8},
                    .kl = {300},
                    .rank = 3,
                    .mode = 3,
                    .stencil = true});
}
TEST(FusedInfer, A16Float32) {
  const Spec s{.layout = "BNSD", .nq = 2, .s1 = 8, .s2 = 8, .type = DType::f32};
  expect_all_right(s);
  Spec strict = s;
  strict.level = Level::strict;
  EXPECT_THROW(bits(strict, *supported_kernels().back()), Error);
}
TEST(FusedInfer, A17NoQueries) { expect_all_right({.layout = "BSND", .b = 2, .s1 = 0, .s2 = 8}); }
TEST(FusedInfer, A18NoKeys) {
  const Spec s{.layout = "BNSD", .s1 = 5, .s2 = 0};
  expect_all_right(s);
  for (const Kernels* kernels : supported_kernels()) {
    Case c(s);
    FusedInferAttentionScoreV2Args a = c.args();
    a.value.shape[3] = 0;  // the output has the width of the query
    Context context({.threads = 1, .isa = kernels->isa});
    fused_infer_attention_score_v2(a, c.outs(), context);
    expect_right(c, Judged(c), false);
    FusedInferAttentionScoreV2Outs inferred;
    infer(a, inferred);
    EXPECT_EQ(inferred.attention_out.shape[3], 128);
  }
}

TEST(FusedInfer, EveryLayoutGivesTheSameNumbers) {
  for (const char* layout : {"BSH", "BSND", "BNSD", "BNSD_BSND", "BSH_NBSD", "BSND_NBSD", "BNSD_NBSD", "BSH_BNSD",
                             "BSND_BNSD", "NSD", "TND", "TND_NTD", "NTD_TND", "NTD"}) {
    SCOPED_TRACE(layout);
    const bool folded = std::string(layout).find('T') != std::string::npos;
    for (const std::int64_t dr : {-1, 24}) {
      Spec s{.layout = layout,
             .b = layout[0] == 'N' && layout[1] == 'S' ? 1 : 2,
             .nk = 2,
             .s1 = 9,
             .s2 = 21,
             .d = 48,
             .dv = 40,
             .dr = dr,
             .type = kF16,
             .mode = 3};
      if (folded) s.ql = {9, 6}, s.kl = {21, 17};
      else s.ql = s.b == 1 ? Shape{7} : Shape{9, 6}, s.kl = s.b == 1 ? Shape{20} : Shape{21, 17};
      expect_all_right(s);
      s.narrow = true;
      if (folded) s.pad = 3;
      expect_all_right(s);
    }
  }
}

}  // namespace
}  // namespace dsakit
