// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <functional>

#include "ops/indexer/invariance.hpp"
#include "ops/quant_lightning_indexer/cases.hpp"

// The acceptance cases of the operator (their letters are those of its specification), each on every rung and with
// whatever must not show.
namespace dsakit {
namespace {

using namespace quant_lightning_indexer_cases;

using indexer::expect_invariant;
using indexer::expect_reference;

/// A normal variable in int8: -2..2 with rare exceptions, so that scores repeat by the thousand.
std::vector<std::int8_t> normal_codes(Random& r, std::int64_t n) {
  std::vector<std::int8_t> v(static_cast<std::size_t>(n));
  for (auto& x : v) x = std::int8_t(std::clamp(std::nearbyint(r.normal()), -2.f, 2.f));
  return v;
}

/// Two rows each of sequences with these many keys, in pages of 128; a row of 8 heads of 32 is as good as a wide one.
Case normal_case(std::vector<std::int32_t> keys, std::uint64_t seed) {
  Random r(seed);
  Case c;
  c.batch.keys = std::move(keys), c.batch.queries.assign(c.batch.keys.size(), 2), c.batch.block_size = 128;
  c.batch.place();
  c.heads = 8, c.dims = 32, c.count = 2048;
  const std::int64_t rows = 2 * c.batch.size();
  const auto total = std::accumulate(c.batch.keys.begin(), c.batch.keys.end(), std::int64_t{0});
  c.query = normal_codes(r, rows * c.heads * c.dims), c.key = normal_codes(r, total * c.dims);
  c.weights.assign(std::size_t(rows * c.heads), 0.5f);
  c.query_scale.assign(std::size_t(rows * c.heads), 0.25f), c.key_scale.assign(std::size_t(total), 1);
  return c;
}

TEST(QuantLightningIndexerAcceptance, A4_ThousandsOfTies) {
  Case c = normal_case({65536, 971, 32869, 16383}, 104);
  expect_reference(c, "A4", {2});
  expect_invariant(c, c.gathered(c.reference()));
}

TEST(QuantLightningIndexerAcceptance, A5_EightSequences) {
  Case c = normal_case({32767, 32656, 384, 2000, 65536, 971, 32869, 129090}, 105);
  expect_reference(c, "A5", {2});
  expect_invariant(c, c.gathered(c.reference()));
}

TEST(QuantLightningIndexerAcceptance, A6_FullRangeCodesAndSpreadWeights) {
  for (std::int64_t heads : {32, 8})
    for (std::int64_t dims : {128, 64})
      for (std::int64_t count : {1, 7, 2048, 305}) {
        Random r(106);
        Case c;
        c.batch.layout_query = c.batch.layout_key = "BSND";
        c.batch.queries = {2, 1}, c.batch.keys = {300, 129};
        c.batch.place();
        c.heads = heads, c.dims = dims, c.count = count;
        fill(c, r, 3);  // -128 everywhere; weights times scales over 2^40
        const auto full = random_i8(r, std::int64_t(c.key.size()));
        std::copy(full.begin(), full.end() - std::int64_t(full.size() / 4), c.key.begin());
        expect_reference(c, "heads " + std::to_string(heads), {1, 2});
        expect_invariant(c, c.gathered(c.reference()));
      }
}

/// 1585 positive scores among 128K keys: the rest of the list are the lowest positions of the zero plateau.
TEST(QuantLightningIndexerAcceptance, A8_CutInsideTheZeroPlateau) {
  Case c;
  c.batch.queries = {1}, c.batch.keys = {131072}, c.batch.block_size = 128;
  c.batch.place();
  c.heads = 1, c.dims = 4, c.count = 2048, c.mode = 0;
  c.query = {1, 1, 1, 1}, c.weights = {1}, c.query_scale = {1};
  c.key.assign(131072 * 4, -1);
  c.key_scale.assign(131072, 1);
  std::vector<std::int32_t> wanted, zeros;
  for (int j = 0; j < 131072; ++j)
    if (j % 82 == 80 && wanted.size() < 1585) wanted.push_back(j), c.key[std::size_t(j) * 4] = 100;
    else zeros.push_back(j);
  wanted.insert(wanted.end(), zeros.begin(), zeros.begin() + 2048 - 1585);
  expect_invariant(c, wanted);
}

/// Blocks beyond 2^31 and 2^32 elements, as a sparse mapping, select what a compact cache does.
TEST(QuantLightningIndexerAcceptance, A7_BigAddresses) {
  const std::int64_t block = 128, dims = 128, pages = (std::int64_t{9} << 30) / (block * dims);
  const std::size_t bytes = std::size_t(pages * block * dims);
  auto* memory = static_cast<std::int8_t*>(
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  ASSERT_NE(memory, MAP_FAILED);
  Random r(3);
  Case c;
  c.batch.queries = {2}, c.batch.keys = {5 * 128 - 3}, c.batch.block_size = block;
  c.batch.place();
  c.dims = dims, c.count = 50;
  fill(c, r, 0);
  std::vector<std::int32_t> table{std::int32_t(pages - 1), 29077, 131072, 262144 + 7, 0};
  std::vector<f16> scales(static_cast<std::size_t>(pages * block));
  for (std::int64_t j = 0; j < c.batch.keys[0]; ++j) {
    const std::int64_t row = table[std::size_t(j / block)] * block + j % block;
    std::copy_n(&c.key[std::size_t(j * dims)], dims, memory + row * dims);
    scales[std::size_t(row)] = to_f16(c.key_scale[std::size_t(j)]);
  }
  for (const Kernels* k : supported_kernels())
    for (const char* numerics : {"fp32", "device"}) {
      Context context({.isa = k->isa});
      c.numerics = numerics;
      const auto wanted = c.reference();
      auto a = c.args();
      a.key = tensor(memory, {pages, block, 1, dims});
      a.key_dequant_scale = tensor(scales.data(), {pages, block, 1});
      a.block_table = tensor(table.data(), {1, 5});
      quant_lightning_indexer(a, c.outs(), context);
      EXPECT_EQ(c.out, wanted) << k->isa << " " << numerics;
    }
  munmap(memory, bytes);
}

/// Random batches: threads, layouts, pages and the split of the batch do not show, in either numerics.
TEST(QuantLightningIndexerAcceptance, RandomCasesAreInvariant) {
  for (std::uint64_t seed = 1000; seed < 1020; ++seed)
    for (const Kernels* k : supported_kernels()) {
      SCOPED_TRACE(std::string(k->isa) + ", seed " + std::to_string(seed));
      Case c = random_case(seed);
      expect_invariant(c, c.gathered(c.reference()), {.isa = k->isa});
      c.numerics = "device", c.weight_type = c.scale_type = DType::f16;
      expect_invariant(c, c.gathered(c.reference()), {.isa = k->isa});
    }
}

TEST(QuantLightningIndexerAcceptance, AsManyKeysAsSlotsOrNearly) { indexer::expect_any_count<Case>(); }

/// Scores that rise, fall, rise and fall, or whose best all lie in one page: what fools a selection that stops early.
TEST(QuantLightningIndexerAcceptance, SortedScores) {
  const std::int64_t n = 20000;
  const std::vector<std::function<std::int64_t(std::int64_t)>> shapes{
      [](std::int64_t j) { return j; }, [&](std::int64_t j) { return n - j; },
      [&](std::int64_t j) { return std::min(j, n - j); },
      [](std::int64_t j) { return j / 128 == 77 ? 5000 - j % 128 : j % 1000; }};
  for (std::size_t shape = 0; shape < shapes.size(); ++shape)
    for (std::int64_t count : {128, 2048}) {
      Case c;
      c.batch.queries = {1}, c.batch.keys = {std::int32_t(n)}, c.batch.block_size = 128;
      c.batch.place();
      c.heads = c.dims = 1, c.count = count, c.scale_type = DType::f32;
      c.query = {1}, c.weights = {1}, c.query_scale = {1};
      c.key.assign(std::size_t(n), 1);
      for (std::int64_t j = 0; j < n; ++j) c.key_scale.push_back(float(shapes[shape](j)));
      expect_reference(c, "shape " + std::to_string(shape));
    }
}

/// Sequences may share blocks.
TEST(QuantLightningIndexerAcceptance, SharedBlocks) {
  Random r(108);
  Case c;
  c.batch.queries = {2, 3}, c.batch.keys = {40, 40};
  c.batch.place();
  fill(c, r, 0);
  std::copy_n(c.key.begin(), c.key.size() / 2, c.key.begin() + std::int64_t(c.key.size() / 2));
  std::copy_n(c.key_scale.begin(), 40, c.key_scale.begin() + 40);
  const auto wanted = c.reference();
  std::copy_n(c.batch.block_table.begin(), c.batch.columns, c.batch.block_table.begin() + c.batch.columns);
  Context context;
  EXPECT_EQ(c.fast(context), wanted);
}

}  // namespace
}  // namespace dsakit
