// SPDX-License-Identifier: Apache-2.0
#include "debug/rule.hpp"

#include <gtest/gtest.h>

#include <numeric>

#include "debug/scores.hpp"
#include "debug/test_cases.hpp"
#include "dsakit/error.hpp"

namespace dsakit::debug {
namespace {

TEST(Rule, ScoresOrderKeysAsTheSelectionDoes) {
  PagedIndexer call;
  const Case c = call.partly_stored({7, 2, 5, 0, 3});
  const auto scores = index_scores(c);
  const std::vector<std::int32_t> selected = call.selected();
  ASSERT_EQ(scores.size(), 4u);
  EXPECT_EQ(scores[1].size(), 40u);  // the last query of sequence 0 sees all of its keys
  EXPECT_EQ(scores[0].size(), 39u);
  for (std::size_t row = 0; row < 4; ++row) {
    std::vector<std::int32_t> order(scores[row].size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](auto i, auto j) { return scores[row][std::size_t(i)] > scores[row][std::size_t(j)]; });
    for (std::size_t k = 0; k < 8; ++k) EXPECT_EQ(selected[row * 8 + k], order[k]) << row << " " << k;
  }
  Case norm;
  norm.call = "dsakit.rms_norm";
  EXPECT_TRUE(index_scores(norm).empty());
}

TEST(Rule, AnotherIndexIsGoodWhereItsScoreIsThatOfTheCut) {
  PagedIndexer call;
  std::copy_n(call.key.begin() + 7 * 512, 512, call.key.begin() + 2 * 512);  // keys 16..31 of sequence 0 are 0..15
  std::copy_n(call.key_scale.begin() + 7 * 16, 16, call.key_scale.begin() + 2 * 16);
  const Case golden = call.as_case();
  const auto scores = index_scores(golden);
  Case other = golden;
  other.tensors["out.0"] = stored<std::int32_t>({4, 1, 8}, call.selected());
  auto* row = reinterpret_cast<std::int32_t*>(other.tensors["out.0"].bytes->data());
  const auto judged = [&] {
    const auto pairs = pairs_of(other, "out", golden, "out");
    return judge("cann-li", golden.op(), pairs.at(0), nullptr, &scores).passes;
  };
  std::swap(row[0], row[5]);
  EXPECT_TRUE(judged()) << "any order";
  std::swap(row[0], row[5]);
  const auto best = std::max_element(scores[0].begin(), scores[0].begin() + 16) - scores[0].begin();
  const auto worst = std::min_element(scores[0].begin(), scores[0].end()) - scores[0].begin();
  const std::int32_t last = row[7];
  row[7] = std::int32_t(worst);
  EXPECT_FALSE(judged());
  row[7] = -1;
  EXPECT_FALSE(judged());
  row[7] = last;
  EXPECT_TRUE(judged());
  EXPECT_EQ(scores[0][std::size_t(best)], scores[0][std::size_t(best) + 16]) << "twins";
  EXPECT_THROW(judge("cann-li", golden.op(), pairs_of(other, "out", golden, "out").at(0)), Error);
}

/// One result of a call beside a golden one, both as given.
template <class T>
Finding judged(const char* op, const char* parameter, std::vector<std::int64_t> shape, const std::vector<T>& a,
               const std::vector<T>& g) {
  const Stored x = stored<T>(shape, a), y = stored<T>(shape, g);
  Case c;
  c.call = std::string("dsakit.") + op;
  return judge("dsakit", c.op(),
               {.key = "out",
                .parameter = parameter,
                .recorded = x.tensor(),
                .computed = y.tensor(),
                .rows = {},
                .undefined = {},
                .mismatch = ""});
}

TEST(Rule, OurOwnRuleIsThatOfTheOutput) {
  // Codes of given rows are equal; those behind hidden roundings may be a step off, one of a hundred.
  std::vector<std::int8_t> codes(1000, 5), other = codes;
  other[7] = 6;
  EXPECT_FALSE(judged("dynamic_quant", "y", {10, 100}, other, codes).passes);
  EXPECT_TRUE(judged("mla_prolog_quant", "q_norm_out", {10, 100}, other, codes).passes);
  other[7] = 7;
  EXPECT_FALSE(judged("mla_prolog_quant", "q_norm_out", {10, 100}, other, codes).passes) << "two steps";
  for (std::size_t i = 0; i < 8; ++i) other[i] = 6;
  EXPECT_TRUE(judged("fused_infer_attention_score_v2", "attention_out", {10, 100}, other, codes).passes);
  EXPECT_FALSE(judged("scatter_pa_kv_cache", "key_cache", {10, 100}, other, codes).passes);
  // Rows without a key are 0, sentinels what they are.
  std::vector<float> golden{1, 1, 0, 0}, got{1, 1.00001f, 0, 0};
  EXPECT_TRUE(judged("fused_infer_attention_score_v2", "attention_out", {2, 2}, got, golden).passes);
  got[2] = 1e-6f;
  EXPECT_FALSE(judged("fused_infer_attention_score_v2", "attention_out", {2, 2}, got, golden).passes);
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(
      judged<float>("fused_infer_attention_score_v2", "softmax_lse", {2}, {infinity, -3.4e38f}, {infinity, -3.4e38f})
          .passes);
  EXPECT_FALSE(judged<float>("fused_infer_attention_score_v2", "softmax_lse", {2}, {infinity, -3.39999e38f},
                             {infinity, -3.4e38f})
                   .passes);
  // Prologs: 2^-6 of the largest of the row, not of all.
  EXPECT_TRUE(judged<float>("mla_prolog_v3", "query", {2, 2}, {100, 1, 1, 0.51f}, {100, 0, 1, 0.5f}).passes);
  EXPECT_FALSE(judged<float>("mla_prolog_v3", "query", {2, 2}, {100, 0, 1, 0.6f}, {100, 0, 1, 0.5f}).passes);
  // Selections: the same keys, then -1.
  EXPECT_TRUE(
      judged<std::int32_t>("lightning_indexer", "sparse_indices", {1, 4}, {2, 7, -1, -1}, {7, 2, -1, -1}).passes);
  EXPECT_FALSE(
      judged<std::int32_t>("lightning_indexer", "sparse_indices", {1, 4}, {2, -1, 7, -1}, {7, 2, -1, -1}).passes);
}

TEST(Rule, NamesAndThirdResults) {
  const Case c = PagedIndexer().as_case();
  const auto pairs = pairs_of(c, "out", c, "out");
  EXPECT_THROW(judge("cann-sffa", c.op(), pairs.at(0)), Error);
  EXPECT_THROW(judge("ascend-L0", c.op(), pairs.at(0)), Error);
  EXPECT_TRUE(judge("ascend-L0", c.op(), pairs.at(0), &pairs.at(0)).passes);
  Pair other = pairs.at(0);
  other.computed.shape[0] = 0, other.mismatch = "has another shape";
  const Finding found = judge("ascend-L0", c.op(), pairs.at(0), &other);
  EXPECT_FALSE(found.passes);
  EXPECT_EQ(found.sentence, "the third result has another shape");
  EXPECT_EQ(rules().size(), 20u);
}

}  // namespace
}  // namespace dsakit::debug
