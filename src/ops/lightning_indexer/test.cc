// SPDX-License-Identifier: Apache-2.0
#include "ops/lightning_indexer/cases.hpp"

#include <gtest/gtest.h>

#include "ops/indexer/fence.hpp"
#include "ops/indexer/invariance.hpp"

namespace dsakit {
namespace {

using namespace lightning_indexer_cases;

using indexer::expect_reference;

TEST(LightningIndexer, RandomCases) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    Case c = random_case(seed);
    expect_reference(c, "seed " + std::to_string(seed));
  }
}

TEST(LightningIndexer, LongSequences) {
  for (std::int64_t count : {1, 2048, 9000})
    for (int data : {0, 1}) {
      Case c;
      c.batch.queries = {1, 3}, c.batch.keys = {30000, 16383}, c.batch.block_size = 128;
      c.batch.place();
      c.heads = 2, c.dims = 4, c.count = count;
      Random r{std::uint64_t(count * 2 + data)};
      fill(c, r, data);
      expect_reference(c, "count " + std::to_string(count) + ", data " + std::to_string(data));
    }
}

TEST(LightningIndexer, LayoutsAndPagesDoNotShow) {
  Random r(5);
  Case c;
  c.batch.queries = {3, 0, 20}, c.batch.keys = {300, 40, 1000};
  c.batch.place();
  c.heads = 16, c.dims = 64, c.count = 100;
  fill(c, r, 0);
  indexer::expect_invariant(c, c.gathered(c.reference()));
}

/// Hardware dot products may choose other keys, but only among those within the error bound of the cut; the same ones
/// for every thread count and page layout.
TEST(LightningIndexer, FastNumericsStayWithinTheErrorBound) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    Case c = random_case(seed);
    Random r(seed);
    c.type = DType::bf16, c.numerics = "fast";
    fill(c, r, 0);
    for (const Kernels* k : supported_kernels()) {
      Context one({.threads = 1, .isa = k->isa}), three({.threads = 3, .isa = k->isa});
      const Lists lists = c.fast(one);
      ASSERT_TRUE(c.fast(three) == lists);
      std::size_t token = 0, first_key = 0;
      for (std::size_t b = 0; b < c.batch.queries.size(); first_key += std::size_t(c.batch.keys[b++]))
        for (int i = 0; i < c.batch.queries[b]; ++i, ++token) {
          const int n = c.mode == 0 ? c.batch.keys[b]
                                    : std::clamp(c.batch.keys[b] - c.batch.queries[b] + i + 1, 0, c.batch.keys[b]);
          const auto chosen = std::min<std::int64_t>(n, c.count);
          const std::int32_t* list = &lists.indices[std::size_t(c.batch.query_place[token] * c.count)];
          std::vector<char> in(static_cast<std::size_t>(n));
          for (std::int64_t s = 0; s < c.count; ++s) {
            if (s >= chosen) {
              ASSERT_EQ(list[s], -1);
              continue;
            }
            ASSERT_TRUE(list[s] >= 0 && list[s] < n && !in[std::size_t(list[s])]);
            in[std::size_t(list[s])] = 1;
          }
          double lowest_in = kInf, highest_out = -kInf;
          for (int j = 0; j < n; ++j) {
            double score = 0, error = 0;
            for (std::int64_t h = 0; h < c.heads; ++h) {
              double dot = 0, peak = 0, total = 0;
              for (std::int64_t d = 0; d < c.dims; ++d) {
                const double q = to_float(to_bf16(
                    c.query[(token * std::size_t(c.heads) + std::size_t(h)) * std::size_t(c.dims) + std::size_t(d)]));
                const double term =
                    q * to_float(to_bf16(c.key[(first_key + std::size_t(j)) * std::size_t(c.dims) + std::size_t(d)]));
                dot += term, total += std::fabs(term), peak = std::max(peak, std::fabs(dot));
              }
              const float given = c.weights[token * std::size_t(c.heads) + std::size_t(h)];
              const double weight = c.wide_weights ? given : to_float(to_bf16(given));
              score += weight * std::max(dot, 0.);
              error += std::fabs(weight) *
                       (0x1p-23 * (std::sqrt(double(c.dims)) * peak + total) + 0x1p-21 * std::max(dot, 0.));
            }
            if (in[std::size_t(j)]) lowest_in = std::min(lowest_in, score + error);
            else highest_out = std::max(highest_out, score - error);
          }
          ASSERT_GE(lowest_in, highest_out) << "seed " << seed << ", " << k->isa;
        }
    }
  }
}

/// Nothing is read or written beside a tensor, whatever the width.
TEST(LightningIndexer, TouchesNothingOutside) {
  for (std::int64_t dims = 1; dims <= 257; ++dims)
    for (const char* numerics : {"fp32", "fast"}) {
      Random r{std::uint64_t(dims)};
      Case c;
      c.batch.layout_key = "TND";
      c.batch.queries = {2}, c.batch.keys = {9};
      c.batch.place(0);
      c.heads = dims % 19 + 1, c.dims = dims, c.numerics = numerics, c.count = dims % 11 + 1;
      c.wide_weights = dims % 2 == 0;
      fill(c, r, 1);  // small integers: exact in any order
      const Lists wanted = c.reference();
      for (bool front : {false, true}) {
        const auto a = c.args();
        const indexer::Fence fence(a, c.outs(), front);
        for (const Kernels* k : supported_kernels()) {
          Context context({.isa = k->isa});
          lightning_indexer(fence.args, fence.outs, context);
          const auto* got = static_cast<const std::int32_t*>(fence.outs.sparse_indices.data);
          EXPECT_TRUE(std::equal(wanted.indices.begin(), wanted.indices.end(), got)) << dims << numerics << k->isa;
        }
      }
    }
}

TEST(LightningIndexer, M1_FourKeysTwoHeads) {
  const Halves query({1, 2, 0, -1, 0, 1, 1, 2, 1, 2, 0, -1, 0, 1, 1, 2}), weights({1, -0.5f, 1, -0.5f});
  const Halves key({2, 1, 0, 0, 3, 1, 2, 0, 0, 2, 0, 2, 3, 0, -1, -1});
  auto run = [&](std::int64_t queries, std::int64_t mode, std::int64_t count) {
    std::vector<std::int32_t> out(static_cast<std::size_t>(queries * count));
    std::vector<bf16> values(out.size());
    const LightningIndexerArgs a{.query = tensor(query.brain.data(), {1, queries, 2, 4}),
                                 .key = tensor(key.brain.data(), {1, 4, 1, 4}),
                                 .weights = tensor(weights.brain.data(), {1, queries, 2}),
                                 .sparse_count = count,
                                 .sparse_mode = mode,
                                 .return_value = true};
    const LightningIndexerOuts o{.sparse_indices = tensor(out.data(), {1, queries, 1, count}),
                                 .sparse_values = tensor(values.data(), {1, queries, 1, count})};
    reference::lightning_indexer(a, o);
    const auto wanted = out;
    lightning_indexer(a, o);
    EXPECT_EQ(out, wanted);
    out.resize(std::size_t(count));  // of the first row
    std::vector<float> numbers;
    for (std::int64_t i = 0; i < count; ++i) numbers.push_back(to_float(values[std::size_t(i)]));
    return std::pair{out, numbers};
  };
  using V = std::vector<std::int32_t>;
  EXPECT_EQ(run(1, 0, 2).first, (V{3, 0}));
  EXPECT_EQ(run(1, 0, 4).first, (V{3, 0, 1, 2}));
  EXPECT_EQ(run(1, 0, 6).first, (V{3, 0, 1, 2, -1, -1}));
  EXPECT_EQ(run(1, 0, 6).second, (std::vector<float>{4, 3.5f, 3.5f, -1, -kInf, -kInf}));
  EXPECT_EQ(run(2, 3, 2).first, (V{0, 1}));
  EXPECT_EQ(run(2, 3, 4).first, (V{0, 1, 2, -1}));
}

/// All dots negative: the lowest positions.
TEST(LightningIndexer, M4_ZeroPlateau) {
  for (const auto& [keys, wanted] : {std::pair{5, std::vector<std::int32_t>{0, 1, 2}}, {2, {0, 1, -1}}}) {
    Case c;
    c.batch.layout_query = c.batch.layout_key = "BSND", c.batch.queries = {1}, c.batch.keys = {keys};
    c.batch.place(0);
    c.heads = c.dims = 1, c.count = 3, c.query = {1}, c.weights = {1};
    for (int j = 0; j < keys; ++j) c.key.push_back(-1 - float(j * 3 % 5));
    expect_reference(c, "M4");
    EXPECT_EQ(c.out, wanted);
  }
}

/// Three rows, two keys: the rows see none, one, and both.
TEST(LightningIndexer, M5_MoreRowsThanKeys) {
  Case c;
  c.batch.layout_query = c.batch.layout_key = "BSND", c.batch.queries = {3}, c.batch.keys = {2};
  c.batch.place(0);
  c.heads = c.dims = 1, c.count = 3, c.query = {1, 1, 1}, c.weights = {1, 1, 1}, c.key = {1, 2};
  expect_reference(c, "M5");
  EXPECT_EQ(c.out, (std::vector<std::int32_t>{-1, -1, -1, 0, -1, -1, 1, 0, -1}));
}

TEST(LightningIndexer, SpecialScores) {
  const f16 one[] = {to_f16(1)}, weight[] = {to_f16(2)};
  const Halves key({kNan, 60000, -kInf, kInf, 0});
  for (const Kernels* k : supported_kernels()) {
    Context context({.isa = k->isa});
    std::vector<std::int32_t> out(6);
    std::vector<f16> values(6);
    lightning_indexer(
        {.query = tensor(one, {1, 1, 1, 1}),
         .key = tensor(key.half.data(), {1, 5, 1, 1}),
         .weights = tensor(weight, {1, 1, 1}),
         .sparse_count = 6,
         .sparse_mode = 0,
         .return_value = true},
        {.sparse_indices = tensor(out.data(), {1, 1, 1, 6}), .sparse_values = tensor(values.data(), {1, 1, 1, 6})},
        context);
    EXPECT_EQ(out, (std::vector<std::int32_t>{3, 1, 2, 4, 0, -1}));
    EXPECT_EQ(to_float(values[1]), kInf);  // 120000 overflows fp16
    EXPECT_EQ(to_float(values[3]), 0);
    EXPECT_TRUE(std::isnan(to_float(values[4])));
    EXPECT_EQ(to_float(values[5]), -kInf);
  }
}

/// 2^-125 + 2^-149 (1 + 2^-7): rounded before the sum the product would be half of an ulp, a tie, and lost.
TEST(LightningIndexer, TinyProductsAreExact) {
  const Halves query({0x1p-60f, 0x1.02p-60f}), key({0x1p-65f, 0, 0x1p-65f, 0x1p-89f}), weight({1});
  const LightningIndexerArgs a{.query = tensor(query.brain.data(), {1, 1, 1, 2}),
                               .key = tensor(key.brain.data(), {1, 2, 1, 2}),
                               .weights = tensor(weight.brain.data(), {1, 1, 1}),
                               .sparse_count = 1,
                               .sparse_mode = 0};
  std::int32_t out = -1;
  const LightningIndexerOuts o{.sparse_indices = tensor(&out, {1, 1, 1, 1}), .sparse_values = {}};
  reference::lightning_indexer(a, o);
  EXPECT_EQ(out, 1);
  for (const Kernels* k : supported_kernels()) {
    Context context({.isa = k->isa});
    lightning_indexer(a, o, context);
    EXPECT_EQ(out, 1) << k->isa;
    out = -1;
  }
}

TEST(LightningIndexer, InferAndNoValues) {
  Random r(9);
  Case c;
  c.batch.queries = {2, 1}, c.batch.keys = {40, 33};
  c.batch.place();
  fill(c, r, 0);
  auto a = c.args();
  LightningIndexerOuts o;
  infer(a, o);
  EXPECT_EQ(o.sparse_values.dtype, DType::bf16);
  EXPECT_EQ(o.sparse_values.elements(), c.batch.query_rows * c.count);
  a.return_value = false;
  o = {};
  infer(a, o);
  EXPECT_EQ(o.sparse_values.rank, 1);
  EXPECT_EQ(o.sparse_values.elements(), 0);
  const auto wanted = c.reference().indices;
  a = c.args();
  a.return_value = false;
  lightning_indexer(a, {.sparse_indices = c.outs().sparse_indices, .sparse_values = o.sparse_values});
  EXPECT_EQ(c.out, wanted);
}

}  // namespace
}  // namespace dsakit
