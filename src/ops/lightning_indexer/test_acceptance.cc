// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "ops/indexer/invariance.hpp"
#include "ops/lightning_indexer/cases.hpp"

// The acceptance cases of the operator (their letters are those of its specification), each on every rung and with
// whatever must not show.
namespace dsakit {
namespace {

using namespace lightning_indexer_cases;

using indexer::expect_invariant;
using indexer::expect_reference;

std::vector<float> uniform(Random& r, std::int64_t n, float range) { return random_f32(r, n, -range, range); }

TEST(LightningIndexerAcceptance, A1_BatchWithThreeRowsEach) {
  Random r(101);
  Case c;
  std::int64_t keys = 0;
  for (int b = 0; b < 18; ++b) {
    c.batch.queries.push_back(3), c.batch.keys.push_back(std::int32_t(3016 + r.below(57)));
    keys += c.batch.keys.back();
  }
  c.batch.block_size = 128;
  c.batch.place();
  c.heads = 16, c.dims = 128, c.count = 2048;
  c.query = uniform(r, 18 * 3 * 16 * 128, 1), c.key = uniform(r, keys * 128, 1), c.weights = uniform(r, 54 * 16, 130);
  expect_reference(c, "A1", {2});
  Context context;
  expect_invariant(c, c.gathered(c.fast(context)));
}

TEST(LightningIndexerAcceptance, A2_OneRowLongContext) {
  for (DType type : {DType::bf16, DType::f16}) {
    Random r(102);
    Case c;
    c.batch.queries = {1}, c.batch.keys = {8192}, c.batch.block_size = 256;
    c.batch.place();
    c.heads = 64, c.dims = 128, c.count = 2048, c.type = type, c.wide_weights = true;
    c.query = uniform(r, 64 * 128, 10), c.key = uniform(r, 8192 * 128, 10), c.weights = uniform(r, 64, 10);
    expect_reference(c, name_of(type), {2});
    Context context;
    expect_invariant(c, c.gathered(c.fast(context)));
  }
}

TEST(LightningIndexerAcceptance, A3_FiveTokensOfThreeSequences) {
  for (const std::vector<std::int32_t>& queries : {std::vector<std::int32_t>{2, 0, 3}, {0, 1, 4}, {5, 0, 0}})
    for (const std::vector<std::int32_t>& keys : {std::vector<std::int32_t>{9, 4, 0}, {0, 5, 3}, {7, 0, 11}})
      for (DType type : {DType::bf16, DType::f16})
        for (int data : {0, 1}) {
          Random r(103);
          Case c;
          c.batch.layout_key = "TND", c.batch.queries = queries, c.batch.keys = keys;
          c.batch.place(0);
          c.heads = 8, c.dims = 128, c.count = 6, c.type = type;
          fill(c, r, data);
          ASSERT_EQ(c.batch.query_rows, 5);
          expect_reference(c, "A3", {1, 3});
          expect_invariant(c, c.gathered(c.reference()));
        }
}

/// 1585 positive scores among 128K keys: the rest of the list are the lowest positions of the zero plateau.
TEST(LightningIndexerAcceptance, A8_CutInsideTheZeroPlateau) {
  Case c;
  c.batch.queries = {1}, c.batch.keys = {131072}, c.batch.block_size = 128;
  c.batch.place();
  c.heads = 1, c.dims = 4, c.count = 2048, c.mode = 0;
  c.query = {1, 1, 1, 1}, c.weights = {1};
  c.key.assign(131072 * 4, -1);
  Lists wanted;
  std::vector<std::int32_t> zeros;
  for (int j = 0; j < 131072; ++j)
    if (j % 82 == 80 && wanted.indices.size() < 1585) wanted.indices.push_back(j), c.key[std::size_t(j) * 4] = 100;
    else zeros.push_back(j);
  wanted.indices.insert(wanted.indices.end(), zeros.begin(), zeros.begin() + 2048 - 1585);
  wanted.values.assign(2048, 0);
  std::fill_n(wanted.values.begin(), 1585, 97.f);
  expect_invariant(c, wanted);
}

/// Blocks beyond 2^31 elements, as a sparse mapping, select what a compact cache does.
TEST(LightningIndexerAcceptance, A7_BigAddresses) {
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
  std::vector<std::int32_t> table{std::int32_t(pages - 1), 29077, 131072, 262144 + 7, 0};
  for (std::int64_t j = 0; j < c.batch.keys[0]; ++j)
    for (std::int64_t d = 0; d < dims; ++d)
      memory[(table[std::size_t(j / block)] * block + j % block) * dims + d] =
          to_bf16(c.key[std::size_t(j * dims + d)]);
  for (const Kernels* k : supported_kernels())
    for (const char* numerics : {"fp32", "fast"}) {
      Context context({.isa = k->isa});
      c.numerics = numerics;
      const Lists wanted = c.fast(context);
      auto a = c.args();
      a.key = tensor(memory, {pages, block, 1, dims});
      a.block_table = tensor(table.data(), {1, 5});
      lightning_indexer(a, c.outs(), context);
      EXPECT_TRUE(c.lists() == wanted) << k->isa << " " << numerics;
      if (c.numerics == "fp32") {
        EXPECT_TRUE(c.reference() == wanted);
      }
    }
  munmap(memory, std::size_t(pages * block * dims) * 2);
}

/// Random batches: threads, layouts, pages and the split of the batch do not show, on any rung, in either numerics.
TEST(LightningIndexerAcceptance, RandomCasesAreInvariant) {
  for (std::uint64_t seed = 1000; seed < 1020; ++seed) {
    SCOPED_TRACE(seed);
    Case c = random_case(seed);
    expect_invariant(c, c.gathered(c.reference()));
    c.numerics = "fast";
    for (const Kernels* k : supported_kernels()) {
      Context context({.threads = 1, .isa = k->isa});
      expect_invariant(c, c.gathered(c.fast(context)), {.isa = k->isa});
    }
  }
}

TEST(LightningIndexerAcceptance, AsManyKeysAsSlotsOrNearly) { indexer::expect_any_count<Case>(); }

/// Sequences may share blocks.
TEST(LightningIndexerAcceptance, SharedBlocks) {
  Random r(108);
  Case c;
  c.batch.queries = {2, 3}, c.batch.keys = {40, 40};
  c.batch.place();
  fill(c, r, 0);
  std::copy_n(c.key.begin(), c.key.size() / 2, c.key.begin() + std::int64_t(c.key.size() / 2));
  const Lists wanted = c.reference();
  std::copy_n(c.batch.block_table.begin(), c.batch.columns, c.batch.block_table.begin() + c.batch.columns);
  Context context;
  EXPECT_TRUE(c.fast(context) == wanted);
}

}  // namespace
}  // namespace dsakit
