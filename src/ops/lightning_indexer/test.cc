// SPDX-License-Identifier: Apache-2.0
#include "ops/lightning_indexer/cases.hpp"

#include <gtest/gtest.h>

#include "kernels/kernels.hpp"

namespace dsakit {
namespace {

using namespace lightning_indexer_cases;

using indexer::AtPageEnd;

void expect_reference(Case& c, const std::string& what) {
  const Lists wanted = c.reference();
  for (const Kernels* k : supported_kernels())
    for (int threads : {1, 2, 3}) {
      Context context({.threads = threads, .isa = k->isa});
      ASSERT_TRUE(c.fast(context) == wanted) << what << ", " << k->isa << ", threads " << threads;
    }
}

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
  Lists lists = c.reference();
  const auto wanted = c.batch.gather(lists.indices, c.count);
  const auto values = c.batch.gather(lists.values, c.count);
  for (auto [query, key] : {std::pair{"BSND", "BSND"}, {"TND", "TND"}, {"BSND", "PA_BSND"}, {"TND", "PA_BSND"}})
    for (std::int64_t block : {1, 16, 128, 1024}) {
      const Batch old = c.batch;
      c.batch = Batch();
      c.batch.layout_query = query, c.batch.layout_key = key, c.batch.queries = old.queries, c.batch.keys = old.keys;
      c.batch.block_size = block, c.batch.page_seed = std::uint64_t(block);
      c.batch.place(block % 3);
      Context context({.threads = 2});
      lists = c.fast(context);
      ASSERT_EQ(c.batch.gather(lists.indices, c.count), wanted) << query << " " << key << " " << block;
      ASSERT_EQ(c.batch.gather(lists.values, c.count), values);
    }
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

TEST(LightningIndexer, ReadsNothingOutside) {
  for (std::int64_t dims = 1; dims <= 70; ++dims)
    for (const char* numerics : {"fp32", "fast"}) {
      Random r{std::uint64_t(dims)};
      Case c;
      c.batch.layout_key = "TND";
      c.batch.queries = {2}, c.batch.keys = {9};
      c.batch.place(0);
      c.heads = dims % 7 + 1, c.dims = dims, c.numerics = numerics;
      fill(c, r, 1);  // small integers: exact in any order
      const Lists wanted = c.reference();
      auto a = c.args();
      const AtPageEnd query(a.query.data, c.query_memory.brain.size() * 2),
          key(a.key.data, c.key_memory.brain.size() * 2);
      a.query = query.moved(a.query), a.key = key.moved(a.key);
      for (const Kernels* k : supported_kernels()) {
        Context context({.isa = k->isa});
        lightning_indexer(a, c.outs(), context);
        EXPECT_TRUE(c.lists() == wanted) << dims << " " << numerics << " " << k->isa;
      }
    }
}

TEST(LightningIndexer, BigAddresses) {
  const std::int64_t block = 128, dims = 128, pages = (std::int64_t{5} << 30) / (block * dims);
  auto* memory = static_cast<bf16*>(mmap(nullptr, std::size_t(pages * block * dims) * 2, PROT_READ | PROT_WRITE,
                                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  ASSERT_NE(memory, MAP_FAILED);
  Random r(3);
  Case c;
  c.batch.queries = {2}, c.batch.keys = {5 * 128 - 3}, c.batch.block_size = block;
  c.batch.place();
  c.dims = dims, c.count = 50;
  fill(c, r, 0);
  const auto wanted = c.batch.gather(c.reference().indices, c.count);
  auto a = c.args();
  std::vector<std::int32_t> table{std::int32_t(pages - 1), 29077, 131072, 262144 + 7, 0};
  for (std::int64_t j = 0; j < c.batch.keys[0]; ++j)
    for (std::int64_t d = 0; d < dims; ++d)
      memory[(table[std::size_t(j / block)] * block + j % block) * dims + d] =
          to_bf16(c.key[std::size_t(j * dims + d)]);
  a.key = tensor(memory, {pages, block, 1, dims});
  a.block_table = tensor(table.data(), {1, 5});
  lightning_indexer(a, c.outs());
  EXPECT_EQ(c.batch.gather(c.out, c.count), wanted);
  munmap(memory, std::size_t(pages * block * dims) * 2);
}

TEST(LightningIndexer, WorkedExamples) {
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
