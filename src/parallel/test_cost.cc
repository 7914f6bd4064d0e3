// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "parallel/cost.hpp"

namespace dsakit {
namespace {

constexpr std::int64_t k128K = 128 * 1024, k1M = 1024 * 1024;

ExchangeSizes v32_sizes() {
  return {.hidden = 7168, .heads = 128, .value_dim = 128, .q_lora = 1536, .latent = 512, .rope = 64, .vocab = 129280,
          .index_heads = 64, .index_dim = 128, .topk = 2048, .latent_row_bytes = 656, .index_row_bytes = 130};
}

/// A matrix that multiplies in int8, or is kept in bf16.
SharedWeight matrix(Sharing sharing, std::int64_t units, double parameters, bool i8, bool prolog = false) {
  return {.sharing = sharing, .units = units, .bytes = parameters * (i8 ? 1 : 2), .products = parameters, .i8 = i8,
          .prolog = prolog};
}

/// The attention of DeepSeek-V3.2, as published W8A8 checkpoints have it: kv_b_proj, o_proj and the indexer's matrices
/// are kept in bf16.
ModelWork v32_attention() {
  using enum Sharing;
  constexpr bool prolog = true;
  LayerWork layer{.indexer = true};
  layer.attention = {matrix(columns, 1536, 7168 * 1536, true, prolog), matrix(columns, 576, 7168 * 576, true, prolog),
                     matrix(columns, 128, 7168 * 128, false, prolog),  matrix(columns, 64, 7168 * 64, false, prolog),
                     matrix(heads, 64, 1536 * 64 * 128, false, prolog), matrix(heads, 128, 1536 * 128 * 192, true),
                     matrix(heads, 128, 512 * 128 * 256, false),       matrix(columns, 7168, 16384 * 7168, false)};
  return {.sizes = v32_sizes(), .i8_scores = true, .layers = std::vector(61, layer)};
}

struct Golden {
  const char* name;
  ParallelOptions options;
  std::int64_t messages;
  double kilobytes;        // received, a layer
  double at_128k, at_1m;   // milliseconds of a token
};

std::ostream& operator<<(std::ostream& out, const Golden& g) { return out << g.name; }

// What the pairs count, of an attention layer alone (no MLP, embedding or head), all times (P - 1) / P:
//   heads=8        E1 9216 + E2 8320 + E3 and E4 at most 22.7 KB + E7 32768 + E8 28672
//   prolog=copy    the same without E1 and E2
//   kv=8           the same with E1 and E2, and E6 2048 * 656
//   partials       E5 147456 in place of that, and E6 128 * 514 * 4, of which a rank gets as much from each of seven
//   kv=64          as kv=8; E3 and E4 at most 65.3 KB
const Golden kGolden[] = {
    {"one", {}, 0, 0, 157, 387},
    {"heads8", {.grid = {1, 8, 1}}, 6, 89, 27.0, 55.7},
    {"heads8_copy", {.grid = {1, 8, 1}, .prolog = Prolog::copy}, 4, 74, 37.1, 65.8},
    {"kv8", {.grid = {8, 1, 1}}, 7, 1265, 33.7, 62.3},
    {"kv8_partials", {.grid = {8, 1, 1}, .exchange = AttentionExchange::partials}, 8, 448, 30.6, 59.3},
    {"kv64", {.grid = {64, 1, 1}}, 7, 1464, 24.2, 27.8},
};

class CostOfV32 : public testing::TestWithParam<Golden> {};
INSTANTIATE_TEST_SUITE_P(, CostOfV32, testing::ValuesIn(kGolden), [](const auto& info) { return info.param.name; });

TEST_P(CostOfV32, IsTheGoldenOne) {
  const Golden& golden = GetParam();
  const ModelWork work = v32_attention();
  const StepCost near = cost_of(work, golden.options, {1, k128K}), far = cost_of(work, golden.options, {1, k1M});
  EXPECT_NEAR(1e3 * near.all_seconds() / golden.at_128k, 1, 0.05) << 1e3 * near.all_seconds();
  EXPECT_NEAR(1e3 * far.all_seconds() / golden.at_1m, 1, 0.05) << 1e3 * far.all_seconds();
  for (const StepCost& cost : {near, far}) {
    EXPECT_EQ(cost.all_messages(), 61 * golden.messages);
    EXPECT_EQ(std::round(cost.all_received() / 61e3), golden.kilobytes);
  }
}

TEST(Cost, TermsAddUpToTheFormula) {
  const StepCost cost = cost_of(v32_attention(), {.grid = {1, 8, 1}, .prolog = Prolog::copy}, {1, k128K});
  const double copied = 7168. * (1536 + 576) + 2 * 7168. * (128 + 64) + 2 * 1536. * 8192;
  const double parted = 1536. * 128 * 192 + 2 * 512. * 128 * 256 + 2 * 16384. * 7168;
  EXPECT_NEAR(cost.weight_bytes, 61 * (copied + parted / 8), 1);
  const double expected[] = {61 * (copied + parted / 8) / 200e9,
                             61 * k128K / 8 * 64 * 128 * 2 / 4e12,
                             61 * 2048. * 16 * 2 * (2 * 512 + 64) / 2e12,
                             61 * 2.5e-9 * (2048 + 31 + 8 * 31),
                             61 * 15e-6,
                             61 * 4 * 3 * 5e-6,
                             61 * (8 * (8 * 64 + 2048 + 31 + 8 * 31) + 32768 + 28672) * 7 / 8 / 12.5e9};
  for (std::size_t i = 0; i < kTermNames.size(); ++i)
    EXPECT_NEAR(cost.seconds[i] / expected[i], 1, 1e-9) << kTermNames[i];
}

// Known for even parts; the last of 8 ranks has two of the nine panels of kv_a_proj, and more of the like.
TEST(Cost, MemoryOfV32) {
  ModelWork work = v32_attention();
  const double mlp = 3. * 7168 * 18432;  // of the first three layers, in bf16; no experts
  for (int layer = 0; layer < 3; ++layer)
    work.layers[layer].mlp = {matrix(Sharing::columns, 18432, 2 * mlp / 3, false),
                              matrix(Sharing::columns, 7168, mlp / 3, false)};
  work.head = {matrix(Sharing::columns, 129280, 7168. * 129280, false)};
  const struct {
    Grid grid;
    double at_128k, at_1m;  // GB of a rank
  } known[] = {{{1, 1, 1}, 31.8, 75.8}, {{2, 1, 1}, 15.9, 37.9}, {{2, 2, 1}, 9.3, 29.4}, {{1, 8, 1}, 8.6, 46.2},
               {{8, 1, 1}, 4.0, 9.5}};
  for (const auto& k : known)
    for (const bool far : {false, true}) {
      const StepCost cost = cost_of(work, {.grid = k.grid}, {1, far ? k1M : k128K});
      EXPECT_NEAR((cost.weight_bytes + cost.cache_bytes) / 1e9 / (far ? k.at_1m : k.at_128k), 1, 0.03)
          << text_of(k.grid) << " " << (cost.weight_bytes + cost.cache_bytes) / 1e9;
    }
}

TEST(Cost, IndexRowsAreWhereTheOptionSays) {
  const ModelWork work = v32_attention();
  const Grid grid{2, 4, 1};
  const double latent = 61. * 656 * k1M / 2, index = 61. * 130 * k1M;
  EXPECT_EQ(cost_of(work, {.grid = grid}, {1, k1M}).cache_bytes, latent + index / 8);
  const StepCost kv = cost_of(work, {.grid = grid, .index = IndexShards::kv}, {1, k1M});
  EXPECT_EQ(kv.cache_bytes, latent + index / 2);
  EXPECT_EQ(kv.messages[std::size_t(ExchangeKind::samples) - 1], 61);
  const StepCost copy = cost_of(work, {.grid = grid, .index = IndexShards::copy}, {1, k1M});
  EXPECT_EQ(copy.cache_bytes, latent + index);
  EXPECT_EQ(copy.seconds[std::size_t(Term::merge)], 0);
  for (const ExchangeKind e : {ExchangeKind::samples, ExchangeKind::candidates}) EXPECT_EQ(copy.messages[std::size_t(e) - 1], 0);
}

// A third of the rows for each, all of the weights for each.
TEST(Cost, ReplicasPartLongPromptsOnly) {
  const ModelWork work = v32_attention();
  const StepCost one = cost_of(work, {}, {47, k128K}), three = cost_of(work, {.grid = {1, 1, 3}}, {47, k128K});
  EXPECT_EQ(one.seconds, three.seconds);
  EXPECT_EQ(three.all_messages(), 0);
  const StepCost whole = cost_of(work, {}, {4800, k128K}), third = cost_of(work, {.grid = {1, 1, 3}}, {4800, k128K});
  for (const Term term : {Term::index, Term::attention, Term::rest})
    EXPECT_NEAR(whole.seconds[std::size_t(term)] / third.seconds[std::size_t(term)], 3, 1e-9);
  EXPECT_EQ(third.weight_bytes, whole.weight_bytes);
  EXPECT_EQ(third.messages[std::size_t(ExchangeKind::cache_rows) - 1], 61);
  EXPECT_NEAR(third.all_received(), 61. * 4800 * (656 + 130) * 2 / 3, 1);
}

TEST(Cost, ExpertsThatSeveralRowsShareAreReadOnce) {
  ModelWork work{.sizes = v32_sizes()};
  const SharedWeight experts{.sharing = Sharing::columns, .units = 2048, .bytes = 256e6, .products = 256e6,
                             .routed = true, .use = 8. / 256};
  work.layers = {{.mlp = {experts}, .mlp_widths = std::vector<std::int64_t>(8, 2048)}};
  const StepCost one = cost_of(work, {}, {1, 1}), two = cost_of(work, {}, {2, 1});
  EXPECT_NEAR(one.routed_read, 8e6, 1e-3);
  EXPECT_NEAR(two.routed_read, 16e6 - 0.25e6, 1e-3);
  EXPECT_EQ(one.routed_bytes, 256e6);
  EXPECT_EQ(one.weight_bytes, 0);
  EXPECT_NEAR(cost_of(work, {.grid = {1, 3, 1}}, {1, 1}).routed_bytes, 256e6 * 11 / 32, 1e-3);  // panels of the slowest
}

}  // namespace
}  // namespace dsakit
