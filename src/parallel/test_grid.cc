// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <limits>
#include <set>
#include <string>

#include "dsakit/error.hpp"
#include "parallel/grid.hpp"

namespace dsakit {
namespace {

TEST(Slice, SlicesFollowEachOtherAndDifferByOneAtMost) {
  for (const std::int64_t n : {0, 1, 2, 3, 7, 64, 128, 7168})
    for (int parts = 1; parts <= 64; ++parts) {
      std::int64_t at = 0;
      for (int j = 0; j < parts; ++j) {
        const Slice slice = slice_of(n, j, parts);
        ASSERT_EQ(slice.begin, at);
        ASSERT_GE(slice.size(), n / parts);
        ASSERT_LE(slice.size(), (n + parts - 1) / parts);
        at = slice.end;
      }
      ASSERT_EQ(at, n);
    }
}

TEST(Slice, ColumnsAreCutBetweenPanels) {
  for (const std::int64_t columns : {1, 48, 64, 65, 160, 192, 576, 1536})
    for (int parts = 1; parts <= 64; ++parts) {
      std::int64_t at = 0;
      for (int j = 0; j < parts; ++j) {
        const Slice slice = columns_of(columns, j, parts);
        ASSERT_EQ(slice.begin, at);
        ASSERT_GE(slice.size(), 0);
        ASSERT_TRUE(slice.begin % kPanelColumns == 0 || slice.begin == columns);
        at = slice.end;
      }
      ASSERT_EQ(at, columns);
    }
  EXPECT_EQ(columns_of(160, 1, 2), (Slice{64, 160}));  // 3 panels on 2 ranks: 1, and 2 of which the last is not full
}

TEST(Grid, RanksAreNumberedOnceInEveryGroup) {
  for (int ranks = 1; ranks <= 64; ++ranks)
    for (const Grid& grid : grids_of(ranks)) {
      ASSERT_EQ(grid.ranks(), ranks);
      std::set<std::pair<int, int>> places;
      for (int rank = 0; rank < ranks; ++rank) {
        ASSERT_EQ((grid.q(rank) * grid.kv + grid.c(rank)) * grid.heads + grid.h(rank), rank);
        ASSERT_LT(grid.replica_rank(rank), grid.replica_ranks());
        places.insert({grid.q(rank), grid.replica_rank(rank)});
      }
      ASSERT_EQ(int(places.size()), ranks);
    }
}

TEST(Grid, AllGridsOfANumberOfRanks) {
  EXPECT_EQ(grids_of(1), std::vector<Grid>{Grid{}});
  EXPECT_EQ(grids_of(4).size(), 6u);
  EXPECT_EQ(grids_of(64).size(), 28u);  // 2^6: ways to share six factors among three
  EXPECT_EQ(grids_of(7), (std::vector<Grid>{{1, 7, 1}, {7, 1, 1}, {1, 1, 7}}));
}

TEST(Grid, IsReadAndWritten) {
  for (const Grid& grid : grids_of(12)) EXPECT_EQ(grid_of(text_of(grid), 12, "run"), grid);
  EXPECT_EQ(text_of({3, 1, 2}), "kv=3,query=2");
  EXPECT_EQ(text_of({}), "kv=1");
  EXPECT_EQ(grid_of("heads=2,kv=3", 6, "run"), (Grid{3, 2, 1}));
  EXPECT_EQ(grid_of("query=5", 5, "run"), (Grid{1, 1, 5}));
}

std::string refusal(const ParallelWords& words, int ranks) {
  try {
    parallel_options_of(words, ranks, "run");
  } catch (const Error& e) {
    EXPECT_EQ(e.status, Status::invalid_argument);
    EXPECT_EQ(e.op, "run");
    return e.parameter + " " + e.got + " (" + e.why + ")";
  }
  return "";
}

TEST(Grid, RefusesWhatIsNoGridOfTheseRanks) {
  EXPECT_EQ(refusal({.parallel = "kv=2,depth=3"}, 6), "parallel is kv=2,depth=3 (not of a grid: depth)");
  EXPECT_EQ(refusal({.parallel = "kv=2,"}, 2), "parallel is kv=2, (not of a grid: )");
  EXPECT_EQ(refusal({.parallel = "kv=2,kv=2"}, 4), "parallel is kv=2,kv=2 (kv is there twice)");
  for (const char* size : {"0", "-1", "", " 2", "2x", "1.5", "99999999999"})
    EXPECT_EQ(refusal({.parallel = "heads=" + std::string(size)}, 2),
              "parallel is heads=" + std::string(size) + " (heads is a number of at least 1)");
  EXPECT_EQ(refusal({.parallel = "kv=2,heads=2"}, 8), "parallel is kv=2,heads=2 ()");
  EXPECT_EQ(refusal({.parallel = "kv=2147483647,heads=2147483647,query=2147483647"}, 1),
            "parallel is kv=2147483647,heads=2147483647,query=2147483647 ()");
  EXPECT_THROW(
      try { grid_of("kv=2", 3, "plan"); } catch (const Error& e) {
        EXPECT_STREQ(e.what(), "plan: parallel is kv=2, wanted kv=C,heads=H,query=Q with C*H*Q = 3 ranks");
        throw;
      },
      Error);
}

TEST(ParallelOptions, WordsAreRead) {
  const ParallelOptions options = parallel_options_of(
      {.parallel = "kv=2", .exchange = "partials", .index = "copy", .merge = "two", .prolog = "copy",
       .interleave = 1 << 20, .timeout = 0.5},
      2, "run");
  EXPECT_EQ(options, (ParallelOptions{{2, 1, 1}, AttentionExchange::partials, IndexShards::copy, MergeSteps::two,
                                      Prolog::copy, 1 << 20, 0.5}));
  EXPECT_EQ(parallel_options_of({}, 3, "run"), ParallelOptions{});
}

TEST(ParallelOptions, RefusesUnknownWordsAndNumbersOutOfRange) {
  EXPECT_EQ(refusal({.exchange = "row"}, 1), "exchange is row ()");
  EXPECT_EQ(refusal({.index = ""}, 1), "index is  ()");
  EXPECT_EQ(refusal({.merge = "automatic"}, 1), "merge is automatic ()");
  EXPECT_EQ(refusal({.prolog = "Split"}, 1), "prolog is Split ()");
  EXPECT_EQ(refusal({.interleave = 0}, 1), "interleave is 0 ()");
  EXPECT_EQ(refusal({.interleave = (1 << 20) + 1}, 1), "interleave is 1048577 ()");
  EXPECT_EQ(refusal({.timeout = 0}, 1), "timeout is 0.000000 ()");
  EXPECT_EQ(refusal({.timeout = std::numeric_limits<double>::quiet_NaN()}, 1), "timeout is nan ()");
  EXPECT_EQ(refusal({.timeout = std::numeric_limits<double>::infinity()}, 1), "timeout is inf ()");
}

}  // namespace
}  // namespace dsakit
