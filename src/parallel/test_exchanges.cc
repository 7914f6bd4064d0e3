// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <vector>

#include "parallel/exchanges.hpp"

namespace dsakit {
namespace {

using Counts = std::vector<std::int64_t>;

/// Sizes that nothing divides.
ExchangeSizes uneven_sizes() {
  return {.hidden = 160, .heads = 7, .value_dim = 24, .q_lora = 72, .latent = 80, .rope = 16, .vocab = 300,
          .index_heads = 5, .index_dim = 32, .topk = 48, .latent_row_bytes = 116, .index_row_bytes = 34};
}

TEST(Shares, AreTheSlicesOfTheRanks) {
  const ExchangeSizes s = uneven_sizes();
  // 3 panels of 160 columns on 2 ranks: 64 and 96.
  EXPECT_EQ(layer_output(s, 2, 3), (Shares{3 * 4 * 64, 3 * 4 * 96}));
  // Panels of q_a (2), kv_a (2), wk (1), weights_proj (1), each parted on its own.
  EXPECT_EQ(first_products(s, 2, 1, true), (Shares{4 * (64 + 64), 4 * (8 + 32 + 32 + 5)}));
  EXPECT_EQ(first_products(s, 2, 1, false), (Shares{4 * (64 + 64), 4 * (8 + 32)}));
  EXPECT_EQ(head_values(s, 3, 2), (Shares{2 * 2 * 24 * 2, 2 * 2 * 24 * 2, 2 * 3 * 24 * 2}));
  EXPECT_EQ(index_queries(s, 2, 1), (Shares{2 * 34, 3 * 34}));
  EXPECT_EQ(logits(s, 8, 1), (Shares{0, 4 * 64, 0, 4 * 64, 4 * 64, 0, 4 * 64, 4 * 44}));
  const std::int64_t experts[] = {136, 136, 48};
  EXPECT_EQ(mlp_hidden(experts, 2, 1), (Shares{4 * 128, 4 * (2 * 72 + 48)}));
  EXPECT_EQ(embedding(s, Counts{2, 0, 1}), (Shares{2 * 320, 0, 320}));
  EXPECT_EQ(cache_rows(s, Counts{3, 4}, Counts{1, 0}), (Shares{3 * 116 + 34, 4 * 116}));
  EXPECT_EQ(selected_rows(s, Counts{40, 8}), (Shares{40 * 116, 8 * 116}));
}

TEST(Shares, WholeOnAnyNumberOfRanks) {
  const ExchangeSizes s = uneven_sizes();
  for (int ranks = 1; ranks <= 64; ++ranks) {
    EXPECT_EQ(total(first_products(s, ranks, 2, true)), 2u * 4 * (72 + 96 + 32 + 5));
    EXPECT_EQ(total(index_queries(s, ranks, 2)), 2u * 5 * 34);
    EXPECT_EQ(total(head_values(s, ranks, 2)), 2u * 7 * 24 * 2);
    EXPECT_EQ(total(layer_output(s, ranks, 2)), 2u * 4 * 160);
    EXPECT_EQ(total(logits(s, ranks, 2)), 2u * 4 * 300);
    const Shares shares = layer_output(s, ranks, 1);
    std::size_t all = 0;
    for (int rank = 0; rank < ranks; ++rank) all += received(shares, rank);
    EXPECT_EQ(all, std::size_t(ranks - 1) * total(shares));
  }
}

TEST(Shares, KvGroupsHaveAllHeadsOnce) {
  const ExchangeSizes s = uneven_sizes();
  for (int ranks = 1; ranks <= 64; ++ranks)
    for (const Grid& grid : grids_of(ranks)) {
      std::size_t asked = 0, got = 0;
      for (int h = 0; h < grid.heads; ++h) {
        asked += total(queries(s, grid, h, 1));
        for (int c = 0; c < grid.kv; ++c) {
          ASSERT_EQ(heads_of(s, grid, h, c), slice_of(7, h * grid.kv + c, grid.replica_ranks()));
          got += received(partial_results(s, grid, h, c, 1), c);
        }
      }
      ASSERT_EQ(asked, 7u * 96 * 2);
      ASSERT_EQ(got, std::size_t(grid.kv - 1) * 7 * 82 * 4);
    }
}

TEST(Merge, StepsOfSamples) {
  EXPECT_EQ(sample_step(2048), 32);
  EXPECT_EQ(sample_step(1024), 32);
  EXPECT_EQ(sample_step(4096), 64);
  EXPECT_EQ(sample_step(1), 1);
  EXPECT_EQ(sample_step(48), 4);
  EXPECT_EQ(samples(Counts{5000, 2048, 2047, 33, 32, 1, 0}, 2048), (Shares{512, 512, 512, 16, 8, 8, 0}));
}

// The table of docs/distributed.md, in KB.
TEST(Merge, BytesOfARow) {
  const struct {
    int ranks, one, two;
  } known[] = {{2, 33, 18}, {4, 66, 20}, {8, 131, 23}, {16, 262, 29}, {64, 1049, 65}};
  for (const auto& k : known) {
    MergeLoad load(k.ranks, 2048);
    load.add_row(Counts(std::size_t(k.ranks), 1 << 20));
    EXPECT_EQ((load.candidate_bytes(false) + 500) / 1000, k.one);
    EXPECT_EQ((load.sample_bytes(true) + load.candidate_bytes(true) + 500) / 1000, k.two);
    EXPECT_EQ(load.sample_bytes(false), 0);
  }
}

// Scores as they may fall, the threshold found as the ranks find it: what two steps leave holds the best K, and no more
// than was foretold.
TEST(Merge, TwoStepsKeepTheBestWithinTheBound) {
  std::mt19937 random(7);
  for (int round = 0; round < 400; ++round) {
    const int ranks = 1 + round % 64, topk = 1 + int(random() % 300), step = int(sample_step(topk));
    std::vector<std::vector<std::uint64_t>> kept{std::size_t(ranks)};
    std::vector<std::uint64_t> everything, sampled;
    Counts visible;
    const bool lopsided = round % 3 == 0;
    for (std::size_t r = 0; r < kept.size(); ++r) {
      visible.push_back(round % 5 == 1 && r % 2 ? 0 : std::int64_t(random() % 700));
      for (std::int64_t i = 0; i < visible[r]; ++i)
        kept[r].push_back((std::uint64_t(random() % (lopsided ? 9 : 1 << 30)) + (lopsided && r == 0 ? 9 : 0)) << 32 |
                          std::uint64_t(i) << 8 | r);  // score, then a position of its own
      std::sort(kept[r].begin(), kept[r].end(), std::greater());
      kept[r].resize(std::min(kept[r].size(), std::size_t(topk)));
      everything.insert(everything.end(), kept[r].begin(), kept[r].end());
    }
    if (std::int64_t(everything.size()) <= topk) continue;
    auto number = [&](std::size_t r, std::size_t sample) { return std::min((sample + 1) * step, kept[r].size()); };
    const Shares counts = samples(visible, topk);
    for (std::size_t r = 0; r < kept.size(); ++r)
      for (std::size_t i = 0; i < counts[r] / 8; ++i) sampled.push_back(kept[r][number(r, i) - 1]);
    std::sort(sampled.begin(), sampled.end(), std::greater());

    Counts reached(kept.size(), 0);
    std::int64_t sum = 0;
    for (std::size_t t = 0; t < sampled.size() && sum < topk; ++t) {
      const std::size_t r = sampled[t] & 255;
      const std::int64_t at = std::find(kept[r].begin(), kept[r].end(), sampled[t]) - kept[r].begin() + 1;
      sum += at - reached[r];
      reached[r] = at;
    }
    ASSERT_GE(sum, topk);
    const Shares sent = best_candidates(visible, reached, topk);
    std::sort(everything.begin(), everything.end(), std::greater());
    for (int i = 0; i < topk; ++i) {
      const std::vector<std::uint64_t>& own = kept[everything[i] & 255];
      ASSERT_LT(std::size_t(std::find(own.begin(), own.end(), everything[i]) - own.begin()),
                sent[everything[i] & 255] / 8);
    }
    ASSERT_LE(std::int64_t(total(sent)), 8 * most_candidates(visible, topk));
  }
}

TEST(Merge, AutoTakesTwoStepsWhereTheyPay) {
  MergeLoad few(64, 2048), many(64, 2048);
  few.add_row(Counts(64, 40));  // all of 2560 candidates are hardly more than the best 2048
  many.add_row(Counts(64, 4000));
  EXPECT_FALSE(few.in_two(MergeSteps::automatic));
  EXPECT_TRUE(many.in_two(MergeSteps::automatic));
  EXPECT_TRUE(few.in_two(MergeSteps::two));
  EXPECT_FALSE(many.in_two(MergeSteps::one));

  // One row of 3000 keys on two ranks saves 2 us, less than the 5 that an exchange takes; of ten rows it is more.
  MergeLoad row(2, 2048), rows(2, 2048);
  row.add_row(Counts{1500, 1500});
  rows.add_row(Counts{1500, 1500}, 10);
  EXPECT_FALSE(row.in_two(MergeSteps::automatic));
  EXPECT_TRUE(rows.in_two(MergeSteps::automatic));
}

/// Those that happen, in order.
std::vector<int> numbers(const std::vector<ForetoldExchange>& all) {
  std::vector<int> numbers;
  for (const ForetoldExchange& e : all) numbers.push_back(int(e.what));
  return numbers;
}

TEST(Exchanges, HappenWhereSomethingIsShared) {
  ExchangeSizes s = uneven_sizes();
  const Step decode{1, 100000}, near{1, 48};
  auto of = [&](const ParallelOptions& options, const Step& step, bool indexer = true) {
    return numbers(attention_exchanges(s, options, step, indexer));
  };
  EXPECT_EQ(of({}, decode), std::vector<int>{});
  EXPECT_EQ(of({.grid = {1, 2, 1}, .merge = MergeSteps::one}, decode), (std::vector{1, 2, 4, 7, 8}));
  EXPECT_EQ(of({.grid = {1, 2, 1}, .merge = MergeSteps::two}, decode), (std::vector{1, 2, 3, 4, 7, 8}));
  EXPECT_EQ(of({.grid = {1, 2, 1}}, near), (std::vector{1, 2, 7, 8}));  // everything visible is selected
  EXPECT_EQ(of({.grid = {1, 2, 1}}, decode, false), (std::vector{1, 7, 8}));
  EXPECT_EQ(of({.grid = {1, 2, 1}, .index = IndexShards::kv}, decode), (std::vector{1, 2, 7, 8}));
  EXPECT_EQ(of({.grid = {2, 1, 1}, .merge = MergeSteps::one, .prolog = Prolog::copy}, decode),
            (std::vector{4, 6, 7, 8}));
  EXPECT_EQ(of({.grid = {2, 2, 1}, .exchange = AttentionExchange::partials, .index = IndexShards::copy}, decode),
            (std::vector{1, 2, 5, 6, 7, 8}));
  EXPECT_EQ(of({.grid = {1, 1, 4}}, {63, 100000}), std::vector<int>{});
  EXPECT_EQ(of({.grid = {1, 1, 4}}, {64, 100000}), std::vector{13});
  s.topk = 0;  // nothing is selected: partial results travel, whatever was asked for
  EXPECT_EQ(of({.grid = {2, 1, 1}}, decode, false), (std::vector{1, 5, 6, 7, 8}));
  const std::int64_t width = 200;
  EXPECT_EQ(numbers(mlp_exchanges(s, {.grid = {1, 2, 1}}, decode, std::span(&width, 1))), (std::vector{9, 10}));
  EXPECT_EQ(numbers(model_exchanges(s, {.grid = {1, 2, 1}}, decode)), (std::vector{12, 11}));
  EXPECT_EQ(numbers(model_exchanges(s, {.grid = {1, 1, 2}}, decode)), std::vector<int>{});
}

// 409200 rows of 656 bytes are a block: 1M rows take three.
TEST(Exchanges, RowsOfAPromptTravelInBlocks) {
  ExchangeSizes s = uneven_sizes();
  s.latent_row_bytes = 656;
  EXPECT_EQ(row_blocks(s, 1), 1);
  EXPECT_EQ(row_blocks(s, 409200), 1);
  EXPECT_EQ(row_blocks(s, 409201), 2);
  const auto all = attention_exchanges(s, {.grid = {2, 1, 1}, .index = IndexShards::copy}, {65536, 1 << 20}, true);
  const auto rows = std::find_if(all.begin(), all.end(), [](auto& e) { return e.what == ExchangeKind::attention; });
  ASSERT_NE(rows, all.end());
  EXPECT_EQ(rows->messages, 3);
  EXPECT_EQ(rows->received, 656. * (1 << 19));
}

// What is foretold of an exchange is what its ranks receive, on average, where sizes follow from the shapes alone; in
// a kv group, of the columns with most heads.
TEST(Exchanges, AreForetoldAsTheyAreSent) {
  const ExchangeSizes s = uneven_sizes();
  for (int ranks = 2; ranks <= 64; ++ranks)
    for (const Grid& grid : grids_of(ranks)) {
      const ParallelOptions options{.grid = grid, .exchange = AttentionExchange::partials};
      const int replica = grid.replica_ranks(), h = grid.heads - 1, c = grid.kv - 1;
      for (const ForetoldExchange& e : attention_exchanges(s, options, {2, 100000}, true)) {
        auto mean = [](const Shares& shares) {
          return double(total(shares)) * double(shares.size() - 1) / double(shares.size());
        };
        const bool of_kv_group = e.what == ExchangeKind::queries || e.what == ExchangeKind::attention;
        ASSERT_EQ(e.ranks, of_kv_group ? grid.kv : replica);
        switch (e.what) {
          case ExchangeKind::first_products: ASSERT_EQ(e.received, mean(first_products(s, replica, 2, true))); break;
          case ExchangeKind::index_queries: ASSERT_EQ(e.received, mean(index_queries(s, replica, 2))); break;
          case ExchangeKind::queries: ASSERT_EQ(e.received, mean(queries(s, grid, h, 2))); break;
          case ExchangeKind::attention:
            ASSERT_EQ(e.received, double(received(partial_results(s, grid, h, c, 2), c)));
            break;
          case ExchangeKind::head_values: ASSERT_EQ(e.received, mean(head_values(s, replica, 2))); break;
          case ExchangeKind::layer_output: ASSERT_EQ(e.received, mean(layer_output(s, replica, 2))); break;
          default: ASSERT_TRUE(e.what == ExchangeKind::samples || e.what == ExchangeKind::candidates);
        }
      }
    }
}

}  // namespace
}  // namespace dsakit
