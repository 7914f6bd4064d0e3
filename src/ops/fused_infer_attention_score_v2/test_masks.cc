// SPDX-License-Identifier: Apache-2.0
#include "ops/fused_infer_attention_score_v2/judge.hpp"

// Rows B and C of the acceptance table: masks, bands and biases.
namespace dsakit {
namespace {

using namespace fused_infer_attention_score_v2_op;

constexpr DType kBf16 = DType::bf16;

void expect_same_bits(const Spec& a, const Spec& b) {
  for (const Kernels* kernels : supported_kernels()) EXPECT_EQ(bits(a, *kernels), bits(b, *kernels)) << kernels->isa;
}
template <class Change>
Spec changed(Spec s, Change change) {
  change(s);
  return s;
}

TEST(FusedInfer, B1MaskOfAllSequences) {
  expect_all_right({.layout = "BNSD", .b = 2, .s1 = 6, .s2 = 10, .mask = {6, 10}});
}
TEST(FusedInfer, B2MaskPerSequence) {
  expect_all_right({.layout = "BSND", .b = 2, .nk = 2, .s1 = 6, .s2 = 10, .mask = {2, 6, 10}});
}
TEST(FusedInfer, B3MaskOfFourAxes) {
  expect_all_right({.layout = "BSH", .b = 2, .s1 = 6, .s2 = 10, .mask = {2, 1, 6, 10}, .mask_type = DType::u8});
}
TEST(FusedInfer, B4WiderMask) {
  expect_all_right({.layout = "BNSD", .b = 2, .s1 = 6, .s2 = 10, .mask = {1, 1, 16, 32}, .mask_type = DType::i8});
}
TEST(FusedInfer, B5BandAndMask) {
  expect_all_right({.layout = "BNSD", .s1 = 6, .s2 = 10, .pre = 2, .next = 1, .mask = {6, 10}});
}
TEST(FusedInfer, B6NoBandWithoutAMask) {
  const Spec s{.layout = "BNSD", .s1 = 6, .s2 = 10, .pre = 2, .next = 1};
  expect_all_right(s);
  expect_same_bits(s, {.layout = "BNSD", .s1 = 6, .s2 = 10});
}
TEST(FusedInfer, B7BandBelowTheDiagonal) {
  const Spec s{.layout = "BNSD", .s1 = 6, .s2 = 10, .next = -3, .mask = {6, 10}, .fill = MaskFill::zero};
  expect_all_right(s);
  EXPECT_EQ(rows_without_keys(s), (Shape{0, 1, 2}));
}
TEST(FusedInfer, B8BandAboveTheDiagonal) {
  const Spec s{.layout = "BNSD", .s1 = 10, .s2 = 6, .pre = -2, .mask = {10, 6}, .fill = MaskFill::zero};
  expect_all_right(s);
  EXPECT_EQ(rows_without_keys(s), (Shape{4, 5, 6, 7, 8, 9}));
}
TEST(FusedInfer, B9NoBandInModeOne) {
  const Spec s{.layout = "BNSD", .s1 = 6, .s2 = 10, .mode = 1, .pre = 0, .next = 0, .mask = {6, 10}};
  expect_all_right(s);
  expect_same_bits(s, changed(s, [](Spec& x) { x.pre = x.next = 2147483647; }));
}
TEST(FusedInfer, B10CausalFromTheTopLeft) {
  expect_all_right(
      {.layout = "BNSD", .b = 2, .s1 = 7, .s2 = 5, .ql = {7, 4}, .kl = {5, 2}, .mode = 2, .stencil = true});
}
TEST(FusedInfer, B11CausalFromTheBottomRight) {
  expect_all_right({.layout = "BNSD", .s1 = 4, .s2 = 12, .mode = 3, .stencil = true});
}
TEST(FusedInfer, B12CausalWithMoreRowsThanKeys) {
  const Spec s{.layout = "BSND", .b = 2, .s1 = 6, .s2 = 9, .ql = {6, 6}, .kl = {3, 9}, .mode = 3, .stencil = true};
  expect_all_right(s);
  EXPECT_EQ(rows_without_keys(s), (Shape{0, 1, 2}));
}
TEST(FusedInfer, B13Window) {
  expect_all_right({.layout = "BNSD", .s1 = 8, .s2 = 8, .mode = 4, .pre = 2, .next = 0, .stencil = true});
}
TEST(FusedInfer, B14WindowInTheFrameOfTheLengths) {
  expect_all_right(
      {.layout = "BNSD", .s1 = 4, .s2 = 16, .ql = {3}, .kl = {11}, .mode = 4, .pre = 5, .next = 1, .stencil = true});
}
TEST(FusedInfer, B15WindowAheadOfTheDiagonal) {
  const Spec s{.layout = "BNSD", .s1 = 8, .s2 = 8, .mode = 4, .pre = -1, .next = 3, .stencil = true};
  expect_all_right(s);
  EXPECT_EQ(rows_without_keys(s), Shape{7});
}
TEST(FusedInfer, B16WindowBehindTheDiagonal) {
  const Spec s{.layout = "BNSD", .s1 = 8, .s2 = 8, .mode = 4, .pre = 3, .next = -1, .stencil = true};
  expect_all_right(s);
  EXPECT_EQ(rows_without_keys(s), Shape{0});
}
TEST(FusedInfer, B17CausalBeyondTheStencil) {
  expect_right_once({.layout = "BNSD", .nq = 1, .s1 = 3000, .s2 = 3000, .d = 16, .mode = 3, .stencil = true});
}
TEST(FusedInfer, B18FoldedCausalAlsoInStrict) {
  const Spec s{
      .layout = "TND", .type = kBf16, .ql = {5, 9}, .kl = {12, 9}, .mode = 3, .stencil = true, .stencil_rank = 4};
  expect_all_right(s);
  expect_same_bits(s, changed(s, [](Spec& x) { x.level = Level::strict; }));
}
TEST(FusedInfer, B19FoldedSlidingWindow) {
  expect_all_right({.layout = "TND", .ql = {5}, .kl = {40}, .mode = 4, .pre = 8, .next = 0, .stencil = true});
}

const Spec kRowTwoHidden{
    .layout = "BNSD", .s1 = 6, .s2 = 10, .mask = {6, 10}, .fill = MaskFill::row_two, .inner_precise = 2};

TEST(FusedInfer, B20RowTheMaskHides) {
  expect_all_right(kRowTwoHidden);
  EXPECT_EQ(rows_without_keys(kRowTwoHidden), Shape{2});
}
TEST(FusedInfer, B21RowTheMaskHidesUnrepaired) {
  expect_same_bits(kRowTwoHidden, changed(kRowTwoHidden, [](Spec& s) { s.inner_precise = 0; }));
}
TEST(FusedInfer, B22RowTheMaskHidesInModeOne) {
  expect_same_bits(kRowTwoHidden, changed(kRowTwoHidden, [](Spec& s) { s.mode = 1, s.inner_precise = 3; }));
}
TEST(FusedInfer, B23MaskOfSingleTokens) {
  expect_all_right({.layout = "BNSD", .b = 2, .s1 = 1, .s2 = 37, .mask = {2, 37}});
}
TEST(FusedInfer, B24MaskPastColumn512) {
  expect_all_right({.layout = "BNSD", .nq = 12, .s1 = 1, .d = 64, .kl = {4096}, .rank = 4, .mask = {1, 1, 1, 4096}});
}
TEST(FusedInfer, B25ModesOfSingleTokensMeanNothing) {
  const Spec s{.layout = "BSND", .b = 2, .s1 = 1, .s2 = 50, .mode = 3, .stencil = true};
  expect_all_right(s);
  for (const std::int64_t mode : {0, 2, 3, 4}) {
    const Spec other = changed(s, [&](Spec& x) { x.mode = mode, x.stencil = false, x.pre = 3, x.next = 0; });
    expect_same_bits(s, other);
  }
  expect_all_right(changed(s, [](Spec& x) { x.stencil = false, x.mask = {2, 50}; }));  // a full mask for all that
}
TEST(FusedInfer, B26SingleTokensFolded) {
  const Spec s{.layout = "TND", .ql = {1, 1}, .kl = {7, 100}, .rank = 3, .mode = 3, .stencil = true};
  expect_all_right(s);
  expect_same_bits(s, changed(s, [](Spec& x) { x.mode = 0, x.stencil = false; }));
}
TEST(FusedInfer, B27MaskThatHidesNothing) {
  const Spec s{.layout = "BNSD", .s1 = 6, .s2 = 10, .mask = {6, 10}, .fill = MaskFill::zero};
  expect_all_right(s);
  expect_same_bits(s, changed(s, [](Spec& x) { x.mask = {}; }));
}
TEST(FusedInfer, B28HiddenRowsHoldAnything) {
  for (const DType type : {DType::f16, DType::bf16, DType::f32}) {
    const Spec s{.layout = "BNSD", .s1 = 6, .s2 = 530, .type = type, .mask = {6, 530}, .fill = MaskFill::columns};
    expect_all_right(s);
    expect_same_bits(s, changed(s, [](Spec& x) { x.poison = false; }));
  }
}

TEST(FusedInfer, C1BiasAfterScaling) {
  expect_all_right({.layout = "BNSD", .b = 2, .s1 = 6, .s2 = 40, .pse = {2, 4, 6, 40}, .scale = 0.5});
}
TEST(FusedInfer, C2BiasOfAllSequencesWithItsOwnStrides) {
  expect_all_right({.layout = "BSND", .b = 2, .s1 = 6, .s2 = 40, .type = kBf16, .pse = {1, 4, 9, 53}});
}
TEST(FusedInfer, C3BiasOfSingleTokens) {
  expect_all_right({.layout = "BNSD", .b = 2, .s1 = 1, .s2 = 40, .pse = {2, 4, 1, 40}});
}
TEST(FusedInfer, C4TheMaskWins) {
  const Spec s{.layout = "BNSD", .b = 2, .s1 = 6, .s2 = 40, .mode = 1, .mask = {6, 40}, .pse = {2, 4, 6, 40}};
  Case c(s);
  for (std::int64_t i = 0; i < c.pse.t.elements(); ++i)
    if (c.hidden_by_mask(0, i / 40 % 6, i % 40)) c.pse.put(i, 1e4f);
  const Judged judged(c);
  for (const Kernels* kernels : supported_kernels()) {
    run(c, *kernels, 1);
    expect_right(c, judged, false);
  }
}
TEST(FusedInfer, C5BiasOverPages) {
  expect_all_right({.layout = "BNSD", .b = 2, .s1 = 1, .kl = {40, 100}, .rank = 4, .bs = 16, .pse = {2, 4, 1, 128}});
  expect_all_right({.layout = "BNSD", .b = 2, .s1 = 3, .kl = {40, 100}, .rank = 4, .bs = 16, .pse = {1, 4, 3, 128}});
}
TEST(FusedInfer, C6BiasDownToTheEndOfFp16) {
  expect_all_right(
      {.layout = "BNSD", .b = 2, .s1 = 6, .s2 = 300, .pse = {2, 4, 6, 300}, .pse_low = -65504, .pse_high = 0});
}
TEST(FusedInfer, C7BiasOfOneHeadForSeveral) {
  Case c({.layout = "BNSD", .s1 = 1, .s2 = 40, .pse = {1, 4, 1, 40}});
  FusedInferAttentionScoreV2Args a = c.args();
  a.pse_shift.shape[1] = 1;
  try {
    fused_infer_attention_score_v2(a, c.outs());
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.status, Status::invalid_shape);
    EXPECT_EQ(e.parameter, "pse_shift");
  }
}

}  // namespace
}  // namespace dsakit
