// SPDX-License-Identifier: Apache-2.0
#include "ops/fused_infer_attention_score_v2/refusals.hpp"

#include "ops/fused_infer_attention_score_v2/judge.hpp"

namespace dsakit::fused_infer_attention_score_v2_op {

const Spec kDense{.layout = "BNSD", .b = 2, .nk = 2, .s1 = 5, .s2 = 40};
const Spec kSingle{.layout = "BNSD", .b = 2, .nk = 2, .s1 = 1, .s2 = 40};
const Spec kFolded{.layout = "TND", .nk = 2, .type = DType::bf16, .ql = {3, 4}, .kl = {9, 12}};
const Spec kPaged{.layout = "BNSD", .b = 2, .nk = 2, .s1 = 1, .kl = {40, 100}, .rank = 4, .bs = 16};
const Spec kFoldedPaged{.layout = "TND", .nk = 2, .type = DType::bf16, .ql = {3, 4}, .kl = {9, 140}, .rank = 4};
const Spec kAbsorbed{.layout = "BSND_NBSD",
                     .b = 2,
                     .nq = 32,
                     .nk = 1,
                     .d = 512,
                     .dr = 64,
                     .type = DType::bf16,
                     .kl = {40, 100},
                     .rank = 3,
                     .lse = false};
const Spec kSplit{.layout = "TND", .dr = 64, .type = DType::bf16, .ql = {3, 4}, .kl = {9, 12}};
const Spec kCodes{.layout = "BNSD",
                  .b = 2,
                  .nk = 2,
                  .s1 = 1,
                  .s2 = 40,
                  .kv = DType::i8,
                  .ks = {2, 128},
                  .scale_type = DType::f16,
                  .offsets = true};
const Spec kFull{.layout = "BSND_NBSD",
                 .b = 2,
                 .nq = 32,
                 .nk = 1,
                 .d = 512,
                 .dr = 64,
                 .type = DType::i8,
                 .kl = {40, 100},
                 .rank = 5,
                 .lse = false};
const Spec kMasked{.layout = "BNSD", .b = 2, .nk = 2, .s1 = 5, .s2 = 40, .mask = {2, 1, 5, 40}};
const Spec kCausal{.layout = "BNSD", .b = 2, .nk = 2, .s1 = 5, .s2 = 40, .mode = 3, .stencil = true};

void expect_refused(const std::vector<Refusal>& refusals) {
  for (const Refusal& r : refusals)
    for (const Level level : {Level::portable, Level::strict}) {
      const std::string trace = std::string(r.row) + (level == Level::strict ? " strict" : " portable");
      SCOPED_TRACE(trace);
      if (level == Level::portable && r.who == Who::strict_alone) continue;
      Case c(r.spec);
      FusedInferAttentionScoreV2Args args = c.args();
      FusedInferAttentionScoreV2Outs outs = c.outs();
      args.level = level;
      if (r.change) r.change(c, args, outs);
      const Results before = results(c);
      const auto call = [&](bool reference) {
        try {
          if (reference) reference::fused_infer_attention_score_v2(args, outs);
          else fused_infer_attention_score_v2(args, outs);
          EXPECT_TRUE(level == Level::portable && r.who == Who::strict) << "accepted";
        } catch (const Error& e) {
          EXPECT_TRUE(level == Level::strict || r.who == Who::everybody) << e.what();
          EXPECT_EQ(e.status, r.status) << e.what();
          EXPECT_EQ(e.parameter, r.parameter) << e.what();
          EXPECT_EQ(e.position, r.position) << e.what();
          EXPECT_EQ(e.op, "fused_infer_attention_score_v2");
          if (r.who != Who::everybody) {
            EXPECT_NE(std::string(e.what()).find("[strict: Atlas A2/A3]"), std::string::npos) << e.what();
          }
          EXPECT_EQ(results(c), before);
        }
      };
      call(false);
      call(true);
    }
}

namespace {

TEST(FusedInferRefusals, BothLevelsTakeTheCallsThatAreSpoilt) {
  for (const Spec* s :
       {&kDense, &kSingle, &kFolded, &kPaged, &kFoldedPaged, &kAbsorbed, &kSplit, &kCodes, &kFull, &kMasked, &kCausal})
    for (const Level level : {Level::portable, Level::strict}) {
      Case c(*s);
      FusedInferAttentionScoreV2Args args = c.args();
      args.level = level;
      EXPECT_NO_THROW(fused_infer_attention_score_v2(args, c.outs())) << s->layout;
    }
}

}  // namespace
}  // namespace dsakit::fused_infer_attention_score_v2_op
