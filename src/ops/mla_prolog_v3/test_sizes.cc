// SPDX-License-Identifier: Apache-2.0
#include "ops/mla_prolog_v3/runs.hpp"

// The sizes of models, and many random ones.
namespace dsakit::prolog_v3 {
namespace {

/// int8 products with x: everything is equal but what the order of the bf16 sums with weight_uk decides.
void expect_agreement(const Case& c) {
  SCOPED_TRACE(c.name());
  const Data data(c);
  const Written got = run(data), wanted = reference_of(data);
  const double share = c.full() ? 0 : 0.02;
  expect_close("query", got.query, wanted.query, 0.02);
  expect_close("query_rope", got.query_rope, wanted.query_rope, 0.02);
  expect_close("query_norm", got.query_norm, wanted.query_norm, share);
  expect_close("latent", Caches(c, got).latent, Caches(c, wanted).latent, share);
  expect_close("rope key", Caches(c, got).rope, Caches(c, wanted).rope, share);
  if (!c.full()) return;
  EXPECT_TRUE(got.query_norm == wanted.query_norm && got.dequant_scale_q_norm == wanted.dequant_scale_q_norm);
  EXPECT_TRUE(got.kv_cache == wanted.kv_cache && got.kr_cache == wanted.kr_cache);
  EXPECT_TRUE(c.row == 6 || got.query_rope == wanted.query_rope);
}

TEST(MlaPrologV3Sizes, DeepSeekV32) {
  expect_agreement({.row = 7,
                    .b = 1,
                    .s = 1,
                    .hidden = 7168,
                    .rank = 1536,
                    .heads = 128,
                    .nope = 128,
                    .rope = 64,
                    .latent = 512,
                    .tile = 128,
                    .blocks = 2,
                    .block_size = 128,
                    .alpha = 1});
}

TEST(MlaPrologV3Sizes, Glm5) {
  expect_agreement({.row = 4,
                    .b = 1,
                    .s = 1,
                    .hidden = 6144,
                    .rank = 2048,
                    .heads = 64,
                    .nope = 192,
                    .rope = 64,
                    .latent = 512,
                    .tile = 128,
                    .blocks = 2,
                    .block_size = 128,
                    .alpha = 1});
}

TEST(MlaPrologV3Sizes, CorrectedQuantisedQuery) {
  expect_agreement({.row = 6,
                    .batched = true,
                    .b = 2,
                    .s = 1,
                    .hidden = 7168,
                    .rank = 1536,
                    .heads = 32,
                    .nope = 128,
                    .rope = 64,
                    .latent = 512,
                    .tile = 128,
                    .blocks = 48,
                    .block_size = 128,
                    .qc = 10,
                    .kc = 10});
}

TEST(MlaPrologV3Sizes, PrefillByBlocks) {
  expect_agreement({.row = 2,
                    .cache_mode = "PA_BLK_BSND",
                    .b = 9,
                    .s = 16,
                    .hidden = 768,
                    .rank = 64,
                    .heads = 16,
                    .nope = 16,
                    .rope = 64,
                    .latent = 64,
                    .blocks = 12,
                    .block_size = 16,
                    .qc = 10,
                    .kc = 10});
}

/// A case whose every choice is drawn. A failure names the seed.
Case drawn(std::uint64_t seed) {
  Random r(seed);
  Case c{.row = int(1 + r.below(7)), .exact = true, .seed = seed};
  c.cache_mode = kCacheModes[r.below(cache_modes_of(c.row))];
  c.batched = c.cache_mode == "BSND" || (c.cache_mode != "TND" && r.below(2));
  const bool nz = c.cache_mode.ends_with("NZ");
  c.b = r.below(4), c.s = r.below(8) == 0 ? 140 : r.below(7);
  c.hidden = 1 + r.below(90), c.rank = 1 + r.below(80), c.heads = 1 + r.below(4), c.nope = 1 + r.below(40);
  c.tile = 1 + r.below(20), c.latent = nz ? 32 * (1 + r.below(3)) : c.tile * (1 + r.below(6));
  c.rope = nz ? 32 * (1 + r.below(2)) : 2 * (1 + r.below(20));
  c.block_size = 1 + r.below(9), c.blocks = r.below(6) == 0 ? 0 : c.b * (c.s / c.block_size + 1) + r.below(5);
  c.query_norm = r.below(4) > 0, c.smooth = c.quantised() && r.below(2);
  const double factors[] = {1, 1, 10, 0.37, -1};
  c.qc = factors[r.below(5)], c.kc = factors[r.below(5)];
  c.alpha = r.uniform(0.1f, 1.3f);
  return c;
}

TEST(MlaPrologV3Sizes, RandomCases) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    const Data data(drawn(seed));
    const Written wanted = reference_of(data);
    for (const Kernels* k : supported_kernels())
      ASSERT_EQ(run(data, {.threads = int(1 + seed % 3), .isa = k->isa}).first_difference(wanted), "")
          << "seed " << seed << ", " << data.c.name() << ", " << k->isa;
  }
}

}  // namespace
}  // namespace dsakit::prolog_v3
