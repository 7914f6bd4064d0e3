// SPDX-License-Identifier: Apache-2.0
#include "ops/fused_infer_attention_score_v2/judge.hpp"

#include <bit>

// Rows G and H of the acceptance table: fully quantised MLA, int8 output, softmax_lse.
namespace dsakit {
namespace {

using namespace fused_infer_attention_score_v2_op;

constexpr DType kF16 = DType::f16, kBf16 = DType::bf16, kI8 = DType::i8;

void expect_strict_too(Spec s) {
  s.lse = false;
  const Results wanted = bits(s, *supported_kernels().back());
  s.level = Level::strict;
  EXPECT_EQ(bits(s, *supported_kernels().back()), wanted);
}
/// Every byte of attention_out, by every rung and the reference.
void expect_bytes(const Spec& s, int wanted) {
  Case c(s);
  const auto all = [&] {
    for (std::int64_t i = 0; i < c.attention.t.elements(); ++i) ASSERT_EQ(c.attention.get(i), wanted) << i;
  };
  reference::fused_infer_attention_score_v2(c.args(), c.outs());
  all();
  for (const Kernels* kernels : supported_kernels()) run(c, *kernels, 1), all();
}

TEST(FusedInfer, G1FullyQuantisedDecode) {
  const Spec s{
      .layout = "BSND_NBSD", .b = 2, .nq = 32, .nk = 1, .d = 512, .dr = 64, .type = kI8, .kl = {300, 77}, .rank = 5};
  expect_all_right(s);
  expect_strict_too(s);
}
TEST(FusedInfer, G2FullyQuantisedFolded) {
  const Spec s{.layout = "TND_NTD",
               .nq = 32,
               .nk = 1,
               .d = 512,
               .dr = 64,
               .type = kI8,
               .ql = {2, 3},
               .kl = {150, 77},
               .rank = 5,
               .mode = 3,
               .stencil = true};
  expect_all_right(s);
  expect_strict_too(s);
}
TEST(FusedInfer, G3FullyQuantisedRows) {
  const Spec s{.layout = "BSH",
               .b = 2,
               .nq = 32,
               .nk = 1,
               .s1 = 3,
               .d = 512,
               .dr = 64,
               .type = kI8,
               .kl = {150, 77},
               .rank = 5,
               .mode = 3,
               .stencil = true};
  expect_all_right(s);
  expect_strict_too(s);
}
TEST(FusedInfer, G3FullyQuantisedAnywhere) {
  for (const char* layout : {"BNSD", "BSND", "TND", "NTD", "NSD"})
    for (const int rank : {0, 3, 4})
      expect_all_right({.layout = layout,
                        .nq = 6,
                        .nk = 2,
                        .s1 = 3,
                        .s2 = 40,
                        .d = 48,
                        .dr = 8,
                        .type = kI8,
                        .ql = {3},
                        .kl = {40},
                        .rank = rank,
                        .bs = 16,
                        .mode = 3,
                        .scale = 2});
}
TEST(FusedInfer, G3QueryScalesFoldedOrNot) {
  for (const char* layout : {"BSH", "BSND", "TND"}) {
    Case c({.layout = layout,
            .b = 2,
            .nq = 3,
            .nk = 1,
            .s1 = 2,
            .s2 = 20,
            .d = 32,
            .dr = 8,
            .type = kI8,
            .ql = {2, 2},
            .kl = {20, 9}});
    const Kernels& kernels = *supported_kernels().back();
    const Results wanted = run(c, kernels, 1);
    reference::fused_infer_attention_score_v2(c.args(), c.outs());
    const Results wanted_of_reference = results(c);
    for (const Shape& shape : {Shape{4, 3}, Shape{4, 3, 1}, Shape{2, 2, 3}, Shape{2, 2, 3, 1}, Shape{1, 4, 1, 3}}) {
      for (std::size_t i = 0; i < shape.size(); ++i) c.sq.t.shape[i] = shape[i];
      c.sq.t.rank = int(shape.size());
      make_contiguous(c.sq.t);
      EXPECT_EQ(run(c, kernels, 1), wanted) << layout << " " << shape.size();
      reference::fused_infer_attention_score_v2(c.args(), c.outs());
      EXPECT_EQ(results(c), wanted_of_reference) << layout << " " << shape.size();
    }
  }
}
TEST(FusedInfer, G4PreDividedRope) {
  Case c({.layout = "BSND", .nq = 32, .nk = 1, .d = 128, .dr = 64, .type = kI8, .kl = {200}, .rank = 3});
  std::vector<float> rope;
  for (std::int64_t h = 0; h < 32; ++h)
    for (std::int64_t d = 0; d < 64; ++d) {
      const std::int64_t i = c.query_at(64, 0, h, 0, d);
      rope.push_back(c.query_rope.get(i));
      c.query_rope.put(i, rope.back() / (c.sq.get(h) * c.ks.get(0)));
    }
  // Attention of the numbers that the codes stand for.
  std::vector<double> wanted;
  for (std::int64_t h = 0; h < 32; ++h) {
    std::vector<double> score, sum(128);
    double most = -INFINITY, total = 0;
    for (std::int64_t k = 0; k < 200; ++k) {
      double s = 0;
      for (std::int64_t d = 0; d < 128; ++d)
        s += double(c.query.get(h * 128 + d)) * c.sq.get(h) * c.key.get(c.key_at(c.key, 128, 0, 0, k, d)) * c.ks.get(0);
      for (std::int64_t d = 0; d < 64; ++d)
        s += double(rope[h * 64 + d]) * c.key_rope.get(c.key_at(c.key_rope, 64, 0, 0, k, d));
      score.push_back(s * c.scale()), most = std::fmax(most, score.back());
    }
    for (std::int64_t k = 0; k < 200; ++k) {
      const double e = std::exp(score[k] - most);
      total += e;
      for (std::int64_t d = 0; d < 128; ++d)
        sum[d] += e * c.value.get(c.key_at(c.value, 128, 0, 0, k, d)) * c.vs.get(0);
    }
    for (const double x : sum) wanted.push_back(x / total);
  }
  for (const Kernels* kernels : supported_kernels()) {
    run(c, *kernels, 1);
    for (std::int64_t i = 0; i < c.attention.t.elements(); ++i)
      ASSERT_NEAR(c.attention.get(i), wanted[i], 1e-2 + 1e-2 * std::fabs(wanted[i])) << i;
  }
}
TEST(FusedInfer, G5CodesOfTheTensor) {
  const Spec s{.layout = "BNSD", .b = 2, .nk = 2, .s1 = 5, .s2 = 70, .os = {1}};
  expect_all_right(s);
  expect_strict_too(s);
}
TEST(FusedInfer, G6CodesPerChannelWithOffset) {
  const Spec s{.layout = "BNSD",
               .b = 2,
               .nk = 2,
               .s1 = 5,
               .s2 = 70,
               .type = kBf16,
               .os = {1, 4, 1, 128},
               .os_type = kBf16,
               .out_offset = true};
  expect_all_right(s);
  expect_strict_too(s);
}
TEST(FusedInfer, G6CodesOfSmallOutputs) {  // probabilities rounded to bf16 would move 4 %
  expect_all_right({.layout = "BNSD", .nq = 8, .s1 = 16, .s2 = 130, .type = kBf16, .os = {1}, .os_scale = 600});
}
TEST(FusedInfer, G7CodesPerChannelInOneAxis) {
  const Spec s{.layout = "BSH", .b = 2, .nk = 2, .s1 = 5, .s2 = 70, .os = {1, 1, 512}};
  expect_all_right(s);
  expect_strict_too(s);
}
TEST(FusedInfer, G8CodesPerChannelOfHeads) {
  const Spec s{.layout = "BSND", .b = 2, .nk = 2, .s1 = 5, .s2 = 70, .os = {4, 128}};
  expect_all_right(s);
  expect_strict_too(s);
}
TEST(FusedInfer, G9CodesSaturate) {
  const Spec s{.layout = "BNSD", .s1 = 5, .s2 = 3, .os = {1}, .os_scale = 2e3f};
  expect_all_right(s);
  Case c(s);
  run(c, *supported_kernels().back(), 1);
  int low = 0, high = 0;
  for (std::int64_t i = 0; i < c.attention.t.elements(); ++i)
    low += c.attention.get(i) == -128, high += c.attention.get(i) == 127;
  EXPECT_GT(low, 100);
  EXPECT_GT(high, 100);
}
TEST(FusedInfer, G10OffsetOfASequenceWithoutKeys) {
  expect_bytes({.layout = "BNSD", .s1 = 1, .s2 = 8, .kl = {0}, .os = {1}, .out_offset = true}, 5);
}
TEST(FusedInfer, G11PaddingIsZeroWhateverTheOffset) {
  const Spec s{.layout = "BNSD", .s1 = 4, .s2 = 8, .ql = {0}, .os = {1}, .out_offset = true};
  expect_bytes(s, 0);
  expect_all_right({.layout = "BNSD", .b = 2, .s1 = 4, .s2 = 8, .ql = {3, 2}, .os = {1}, .out_offset = true});
}
TEST(FusedInfer, G11RowTheMaskHidesHoldsTheOffsets) {
  expect_all_right({.layout = "BNSD",
                    .s1 = 6,
                    .s2 = 10,
                    .mask = {6, 10},
                    .fill = MaskFill::row_two,
                    .os = {4, 128},
                    .out_offset = true});
}
const Spec kFewKeys{.layout = "BNSD", .s1 = 6, .s2 = 9, .kl = {3}, .mode = 3, .stencil = true, .os = {1}};
TEST(FusedInfer, G12OffsetWithRowsThatSeeNothing) {
  Spec s = kFewKeys;
  s.out_offset = true;
  Case c(s);
  const Results before = results(c);
  try {
    fused_infer_attention_score_v2(c.args(), c.outs());
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.status, Status::invalid_argument);
    EXPECT_EQ(e.parameter, "quant_offset_out");
  }
  EXPECT_EQ(results(c), before);
}
TEST(FusedInfer, G13RowsThatSeeNothingWithoutOffset) {
  expect_all_right(kFewKeys);
  EXPECT_EQ(rows_without_keys(kFewKeys), (Shape{0, 1, 2}));
}

TEST(FusedInfer, H1LogSumExp) {
  const Spec s{.layout = "BNSD", .b = 2, .nk = 2, .s1 = 5, .s2 = 300};
  EXPECT_EQ(Case(s).lse.t.rank, 4);
  expect_all_right(s);
}
TEST(FusedInfer, H2LogSumExpFolded) {
  const Spec s{.layout = "TND_NTD", .ql = {5, 2}, .kl = {20, 300}};
  EXPECT_EQ(Case(s).lse.t.rank, 3);
  expect_all_right(s);
}
/// Parts over disjoint keys, those with a sentinel left out; none left: 0 and +inf.
TEST(FusedInfer, H3KeysInTwoCalls) {
  for (const auto& [low, high] : {std::pair<std::int64_t, std::int64_t>{256, 144}, {100, 300}, {400, 0}, {0, 0}}) {
    Spec s{.layout = "BNSD", .nk = 2, .s1 = 1, .s2 = 400, .kl = {low}};
    for (const Kernels* kernels : supported_kernels()) {
      Case first(s);
      s.kl = {high}, s.first_k = low;
      Case second(s);
      s.kl = {low + high}, s.first_k = 0;
      Case whole(s);
      s.kl = {low};
      run(first, *kernels, 1), run(second, *kernels, 1), run(whole, *kernels, 1);
      for (std::int64_t h = 0; h < 4; ++h) {
        std::vector<const Case*> parts;
        for (const Case* part : {&first, &second}) {
          const auto sentinel = std::bit_cast<std::uint32_t>(part->lse.get(h));
          if (sentinel != 0xFF7FC99Eu && sentinel != 0x7F800000u) parts.push_back(part);
        }
        double most = -INFINITY, sum = 0;
        for (const Case* part : parts) most = std::fmax(most, part->lse.get(h));
        for (const Case* part : parts) sum += std::exp(part->lse.get(h) - most);
        if (parts.empty()) {
          EXPECT_EQ(std::bit_cast<std::uint32_t>(whole.lse.get(h)), 0xFF7FC99Eu);
        } else {
          EXPECT_NEAR(most + std::log(sum), whole.lse.get(h), 1e-4);
        }
        for (std::int64_t d = 0; d < 128; ++d) {
          double merged = 0;
          for (const Case* part : parts)
            merged += std::exp(part->lse.get(h) - most) / sum * part->attention.get(h * 128 + d);
          ASSERT_NEAR(merged, whole.attention.get(h * 128 + d), 1e-3 + 2e-3 * std::fabs(merged));
        }
      }
    }
  }
}
TEST(FusedInfer, H4WithoutLogSumExp) {
  Spec s{.layout = "BNSD", .s1 = 3, .s2 = 40, .lse = false};
  expect_all_right(s);
  for (const Kernels* kernels : supported_kernels()) {
    Case c(s);
    const Results wanted = run(c, *kernels, 1);
    s.lse = true;
    EXPECT_EQ(bits(s, *kernels).out, wanted.out);  // the flag does not change the rest
    s.lse = false;
    float one = 17;  // what infer answers, left alone
    Context context({.threads = 1, .isa = kernels->isa});
    fused_infer_attention_score_v2(c.args(), {c.attention.t, tensor(&one, {1})}, context);
    EXPECT_EQ(one, 17);
    FusedInferAttentionScoreV2Outs outs;
    infer(c.args(), outs);
    EXPECT_EQ(outs.softmax_lse.rank, 1);
    EXPECT_EQ(outs.softmax_lse.shape[0], 1);
  }
}
TEST(FusedInfer, H5SentinelOfSingleTokens) {
  const Spec s{.layout = "BNSD", .b = 2, .s1 = 1, .s2 = 5, .kl = {0, 5}};
  expect_all_right(s);
  Case c(s);
  run(c, *supported_kernels().back(), 1);
  EXPECT_EQ(std::bit_cast<std::uint32_t>(c.lse.get(0)), 0xFF7FC99Eu);
  for (const char* layout : {"TND", "NSD"}) {  // not single-token decode
    Spec other{.layout = layout, .b = 1, .s1 = 1, .s2 = 5, .kl = {0}};
    if (layout[0] == 'T') other.ql = {1};
    Case d(other);
    run(d, *supported_kernels().back(), 1);
    EXPECT_EQ(d.lse.get(0), INFINITY);
  }
  Case roped({.layout = "BNSD", .s1 = 1, .s2 = 5, .dr = 64, .kl = {0}});
  run(roped, *supported_kernels().back(), 1);
  EXPECT_EQ(roped.lse.get(0), INFINITY);
}
/// One more logit per head, without a value.
TEST(FusedInfer, H7LearnableSink) {
  for (const DType sinks : {DType::f32, kBf16})
    for (const float high : {2.0f, 60.0f}) {
      const auto with = [&](Spec s) {
        s.sinks = s.type == kF16 ? DType::f32 : sinks, s.sink_high = high;
        return s;
      };
      expect_all_right(with({.layout = "BNSD", .b = 2, .nk = 2, .s1 = 5, .s2 = 300}));
      expect_all_right(with({.layout = "TND", .nk = 2, .type = kBf16, .ql = {5, 2}, .kl = {20, 600}, .mode = 3}));
      expect_all_right(
          with({.layout = "BNSD", .s1 = 1, .type = kBf16, .kl = {2000}, .rank = 4}));  // split among threads
      expect_all_right(with({.layout = "BSND_NBSD",
                             .b = 2,
                             .nq = 32,
                             .nk = 1,
                             .d = 512,
                             .dr = 64,
                             .type = kBf16,
                             .kl = {300, 77},
                             .rank = 3}));
      for (const Shape& scales : {Shape{2, 128}, Shape{2, 300}})  // of channels; of tokens
        expect_all_right(with({.layout = "BNSD",
                               .b = 2,
                               .nk = 2,
                               .s1 = 1,
                               .s2 = 300,
                               .type = kBf16,
                               .kv = kI8,
                               .km = scales[1] == 300,
                               .vm = scales[1] == 300,
                               .ks = scales,
                               .vs = scales,
                               .offsets = true}));
      expect_all_right(with({.layout = "BSND_NBSD",
                             .b = 2,
                             .nq = 32,
                             .nk = 1,
                             .d = 512,
                             .dr = 64,
                             .type = kI8,
                             .kl = {300, 77},
                             .rank = 5}));
      expect_all_right(with(kFewKeys));  // rows without a key keep their sentinel
    }
  // Scores 0 and ln 3 beside a sink of ln 4: weights 1, 3 and 4.
  Case c({.layout = "BNSD", .nq = 1, .s1 = 1, .s2 = 2, .d = 1, .type = DType::f32, .scale = 1, .sinks = DType::f32});
  c.query.put(0, 1), c.key.put(0, 0), c.key.put(1, std::log(3.0f)), c.value.put(0, 8), c.value.put(1, 16);
  c.sink.put(0, std::log(4.0f));
  const auto expect = [&](float out, double lse) {
    EXPECT_NEAR(c.attention.get(0), out, 1e-5);
    EXPECT_TRUE(std::isinf(lse) ? c.lse.get(0) == lse : std::fabs(c.lse.get(0) - lse) < 1e-6) << c.lse.get(0);
  };
  for (const auto& [sink, out, lse] : {std::tuple{std::log(4.0f), 7.0f, std::log(8.0)},
                                       {-INFINITY, 14.0f, std::log(4.0)},
                                       {INFINITY, 0.0f, double(INFINITY)}}) {
    c.sink.put(0, sink);
    reference::fused_infer_attention_score_v2(c.args(), c.outs());
    expect(out, lse);
    for (const Kernels* kernels : supported_kernels()) run(c, *kernels, 1), expect(out, lse);
  }
}
/// A sink of -inf is none, to the bit.
TEST(FusedInfer, H7NoSink) {
  const Spec s{.layout = "BNSD", .b = 2, .nk = 2, .s1 = 5, .s2 = 300, .type = kBf16};
  for (const Kernels* kernels : supported_kernels()) {
    const Results wanted = bits(s, *kernels);
    Spec with = s;
    with.sinks = DType::f32;
    Case c(with);
    for (std::int64_t h = 0; h < s.nq; ++h) c.sink.put(h, -INFINITY);
    for (const int threads : {1, 2, 3}) EXPECT_EQ(run(c, *kernels, threads), wanted);
  }
}
TEST(FusedInfer, H6LargeScores) {
  for (const DType type : {kF16, kBf16, DType::f32})
    for (const double scale : {300, -300, 0}) {
      Spec s{.layout = "BNSD", .s1 = 3, .s2 = 600, .type = type, .scale = scale};
      if (type != DType::f32) {
        expect_all_right(s);
        continue;
      }
      Case c(s);  // one fp32 rounding of such a score is worth 1e-3 of a probability
      const Judged judged(c);
      for (const Kernels* kernels : supported_kernels()) {
        run(c, *kernels, 1);
        for (std::int64_t i = 0, row = 0; row < 12; ++row)
          for (std::int64_t d = 0; d < 128; ++d, ++i)
            ASSERT_NEAR(c.attention.get(c.out_at(0, row % 4, row / 4, d)), judged.out[i], 1e-2);
      }
    }
}

}  // namespace
}  // namespace dsakit
