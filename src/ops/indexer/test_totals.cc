// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "dsakit/error.hpp"
#include "ops/lightning_indexer/cases.hpp"
#include "ops/quant_lightning_indexer/cases.hpp"

// Lengths in TND are running totals; the published text describes counts.
namespace dsakit {
namespace {

void call(const LightningIndexerArgs& a, const LightningIndexerOuts& o, Context& c) { lightning_indexer(a, o, c); }
void call(const QuantLightningIndexerArgs& a, const QuantLightningIndexerOuts& o, Context& c) {
  quant_lightning_indexer(a, o, c);
}

/// Two sequences of 40 keys and 2 query rows each, described by counts.
template <class Case, class F>
void by_counts(F f) {
  Case c;
  c.dims = 128, c.heads = 64;
  c.batch.layout_query = c.batch.layout_key = "TND";
  c.batch.queries = {2, 2}, c.batch.keys = {40, 40};
  c.batch.place(0);
  f(c);
}

template <class Case, class Fill>
void expect_rules(const char* op, Fill fill) {
  by_counts<Case>([&](Case& c) {
    fill(c);
    auto a = c.args();
    auto o = c.outs();
    std::int32_t totals[] = {40, 80}, counts[] = {40, 40}, rows[] = {2, 4}, rows_of_one[] = {2, 2};
    const std::string sentence = "lengths in TND are running totals; the last must be the number of rows, 80";
    const auto words = [&](std::int32_t* keys, std::int32_t* queries) {
      a.actual_seq_lengths_key = tensor(keys, {2}), a.actual_seq_lengths_query = tensor(queries, {2});
      Context context;
      for (int times = 0; times < 2; ++times) call(a, o, context);
      return context.warnings();
    };
    using V = std::vector<std::string>;
    EXPECT_EQ(words(totals, rows), V{});
    EXPECT_EQ(words(counts, rows), V{std::string(op) + ": actual_seq_lengths_key: " + sentence});
    const V query{std::string(op) +
                  ": actual_seq_lengths_query: lengths in TND are running totals; the last must be the "
                  "number of rows, 4, or the rows behind it are padding"};
    EXPECT_EQ(words(totals, rows_of_one), query);
    a.level = Level::strict;
    EXPECT_EQ(words(totals, rows_of_one), V{});  // padding is legal
    try {
      words(counts, rows);
      ADD_FAILURE();
    } catch (const Error& e) {
      EXPECT_EQ(e.status, Status::invalid_seqlen);
      EXPECT_EQ(e.parameter, "actual_seq_lengths_key");
      EXPECT_EQ(e.position, "[1]");
      EXPECT_NE(std::string(e.what()).find(sentence), std::string::npos) << e.what();
    }
  });
}

TEST(IndexerTotals, CountsInPlaceOfTotals) {
  expect_rules<lightning_indexer_cases::Case>("lightning_indexer", [](auto& c) {
    Random r(3);
    fill(c, r, 0);
  });
}
TEST(IndexerTotals, CountsInPlaceOfTotalsOfCodes) {
  expect_rules<quant_lightning_indexer_cases::Case>("quant_lightning_indexer", [](auto& c) {
    Random r(3);
    fill(c, r, 0);
  });
}

}  // namespace
}  // namespace dsakit
