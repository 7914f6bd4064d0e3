// SPDX-License-Identifier: Apache-2.0
#include "ops/quant_lightning_indexer/cases.hpp"

#include <gtest/gtest.h>

#include "ops/indexer/fence.hpp"
#include "ops/indexer/invariance.hpp"

namespace dsakit {
namespace {

using namespace quant_lightning_indexer_cases;

using indexer::expect_reference;

TEST(QuantLightningIndexer, RandomCases) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    Case c = random_case(seed);
    expect_reference(c, "seed " + std::to_string(seed));
  }
}

TEST(QuantLightningIndexer, DeviceNumerics) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    Case c = random_case(seed);
    c.numerics = "device", c.weight_type = c.scale_type = DType::f16;
    expect_reference(c, "seed " + std::to_string(seed));
  }
}

/// Thousands of ties, cuts inside plateaus, lists longer than the buffers, pieces of one row joined.
TEST(QuantLightningIndexer, LongSequences) {
  for (std::int64_t count : {1, 7, 2048, 9000, 70000, 100000})
    for (int data : {0, 1, 2}) {
      Case c;
      c.batch.queries = {1, 3, 2}, c.batch.keys = {count > 9000 ? 90000 : 30000, 971, 16383}, c.batch.block_size = 128;
      c.batch.place();
      c.heads = 2, c.dims = 4, c.count = count;
      Random r{std::uint64_t(count * 4 + data)};
      fill(c, r, data);
      expect_reference(c, "count " + std::to_string(count) + ", data " + std::to_string(data));
    }
}

/// The same batch in every layout, page size and page order gives the same lists.
TEST(QuantLightningIndexer, LayoutsAndPagesDoNotShow) {
  Random r(5);
  Case c;
  c.batch.queries = {3, 0, 20}, c.batch.keys = {300, 40, 1000};
  c.batch.place();
  c.heads = 64, c.dims = 128, c.count = 100;
  fill(c, r, 0);
  const auto wanted = c.batch.gather(c.reference(), c.count);
  for (auto [query, key] : {std::pair{"BSND", "BSND"}, {"TND", "TND"}, {"BSND", "PA_BSND"}, {"TND", "PA_BSND"}})
    for (std::int64_t block : {1, 16, 128, 1024})
      for (std::int64_t padding : {0, 5}) {
        const Batch old = c.batch;
        c.batch = Batch();
        c.batch.layout_query = query, c.batch.layout_key = key, c.batch.queries = old.queries, c.batch.keys = old.keys;
        c.batch.block_size = block, c.batch.page_seed = std::uint64_t(block);
        c.batch.place(padding);
        Context context({.threads = 2});
        const auto lists = c.fast(context);
        ASSERT_EQ(c.batch.gather(lists, c.count), wanted) << query << " " << key << " " << block;
        for (std::int64_t row = 0; row < c.batch.query_rows; ++row)
          if (!std::count(c.batch.query_place.begin(), c.batch.query_place.end(), row)) {
            EXPECT_EQ(std::count(&lists[row * c.count], &lists[row * c.count] + c.count, -1), c.count);
          }
      }
}

/// Nothing is read or written beside a tensor, whatever the width.
TEST(QuantLightningIndexer, TouchesNothingOutside) {
  for (std::int64_t dims = 1; dims <= 257; ++dims)
    for (const char* numerics : {"fp32", "device"}) {
      Random r{std::uint64_t(dims)};
      Case c;
      c.batch.layout_key = "TND";
      c.batch.queries = {2}, c.batch.keys = {9};
      c.batch.place(0);
      c.heads = dims % 19 + 1, c.dims = dims, c.numerics = numerics, c.count = dims % 11 + 1;
      fill(c, r, 0);
      const auto wanted = c.reference();
      for (bool front : {false, true}) {
        const auto a = c.args();
        const indexer::Fence fence(a, c.outs(), front);
        for (const Kernels* k : supported_kernels()) {
          Context context({.isa = k->isa});
          quant_lightning_indexer(fence.args, fence.outs, context);
          const auto* got = static_cast<const std::int32_t*>(fence.outs.sparse_indices.data);
          EXPECT_TRUE(std::equal(wanted.begin(), wanted.end(), got)) << dims << numerics << k->isa;
        }
      }
    }
}

/// One head of one query against keys, as the worked examples write it.
struct Tiny {
  std::vector<std::int8_t> query, key;
  std::vector<float> key_scale;
  float weight = 1;
  std::int64_t count, queries = 1, mode = 0;
  std::string_view numerics = "fp32";

  std::vector<std::vector<std::int32_t>> lists() {
    const auto dims = std::int64_t(query.size()) / queries, keys = std::int64_t(key.size()) / dims;
    const bool device = numerics == "device";
    if (key_scale.empty()) key_scale.assign(std::size_t(keys), 1);
    std::vector<float> w(std::size_t(queries), weight), one(std::size_t(queries), 1);
    std::vector<f16> w16(std::size_t(queries), to_f16(weight)), one16(std::size_t(queries), to_f16(1)),
        ks16(std::size_t(keys), to_f16(1));
    std::vector<std::int32_t> out(static_cast<std::size_t>(queries * count));
    const QuantLightningIndexerArgs a{
        .query = tensor(query.data(), {1, queries, 1, dims}),
        .key = tensor(key.data(), {1, keys, 1, dims}),
        .weights = device ? tensor(w16.data(), {1, queries, 1}) : tensor(w.data(), {1, queries, 1}),
        .query_dequant_scale = device ? tensor(one16.data(), {1, queries, 1}) : tensor(one.data(), {1, queries, 1}),
        .key_dequant_scale = device ? tensor(ks16.data(), {1, keys, 1}) : tensor(key_scale.data(), {1, keys, 1}),
        .sparse_count = count,
        .sparse_mode = mode,
        .numerics = numerics};
    const QuantLightningIndexerOuts o{.sparse_indices = tensor(out.data(), {1, queries, 1, count})};
    reference::quant_lightning_indexer(a, o);
    const auto wanted = out;
    for (const Kernels* k : supported_kernels()) {
      Context context({.isa = k->isa});
      quant_lightning_indexer(a, o, context);
      EXPECT_EQ(out, wanted) << k->isa;
    }
    std::vector<std::vector<std::int32_t>> lists;
    for (std::int64_t i = 0; i < queries; ++i)
      lists.emplace_back(out.begin() + i * count, out.begin() + (i + 1) * count);
    return lists;
  }
};
using Lists = std::vector<std::vector<std::int32_t>>;

/// Dots 4096 and 4097: fp16 intermediates make them equal.
TEST(QuantLightningIndexer, M2_DeviceNumericsMergeDots) {
  const std::vector<std::int8_t> keys{64, 0, 0, 0, 64, 1, 0, 0};
  EXPECT_EQ((Tiny{.query = {64, 1, 0, 0}, .key = keys, .key_scale = {}, .count = 1}.lists()), (Lists{{1}}));
  EXPECT_EQ((Tiny{.query = {64, 1, 0, 0}, .key = keys, .key_scale = {}, .count = 1, .numerics = "device"}.lists()),
            (Lists{{0}}));
}

TEST(QuantLightningIndexer, M3_KeyScaleMakesATie) {
  EXPECT_EQ((Tiny{.query = {1}, .key = {3, 6}, .key_scale = {0.5f, 0.25f}, .count = 2}.lists()), (Lists{{0, 1}}));
}

TEST(QuantLightningIndexer, M4_ZeroPlateau) {
  EXPECT_EQ((Tiny{.query = {1}, .key = {-1, -2, -3, -1, -9}, .key_scale = {}, .count = 3}.lists()), (Lists{{0, 1, 2}}));
  EXPECT_EQ((Tiny{.query = {1}, .key = {-1, -2}, .key_scale = {}, .count = 3}.lists()), (Lists{{0, 1, -1}}));
}

TEST(QuantLightningIndexer, M5_MoreRowsThanKeys) {
  EXPECT_EQ((Tiny{.query = {1, 1, 1}, .key = {1, 2}, .key_scale = {}, .count = 3, .queries = 3, .mode = 3}.lists()),
            (Lists{{-1, -1, -1}, {0, -1, -1}, {1, 0, -1}}));
}

TEST(QuantLightningIndexer, SpecialScores) {
  const std::vector<std::int8_t> key{3, 2, 1, 4, 0};
  EXPECT_EQ((Tiny{.query = {1}, .key = key, .key_scale = {kNan, -kInf, 1, kInf, -1}, .count = 6}.lists()),
            (Lists{{3, 2, 4, 1, 0, -1}}));
  EXPECT_EQ((Tiny{.query = {1}, .key = key, .key_scale = {}, .weight = -1, .count = 6}.lists()),
            (Lists{{4, 2, 1, 0, 3, -1}}));
  EXPECT_EQ((Tiny{.query = {1}, .key = key, .key_scale = {0, 0, 0, 0, 0}, .count = 6}.lists()),
            (Lists{{0, 1, 2, 3, 4, -1}}));
  EXPECT_EQ((Tiny{.query = {1}, .key = key, .key_scale = {}, .weight = kNan, .count = 6}.lists()),
            (Lists{{0, 1, 2, 3, 4, -1}}));
  std::vector<std::int8_t> low(128, -128), two(256, -128);
  two[0] = -127;
  EXPECT_EQ((Tiny{.query = low, .key = two, .key_scale = {}, .count = 1}.lists()), (Lists{{1}}));
}

TEST(QuantLightningIndexer, ShapesThatFit) {
  Random r(4);
  Case c;
  c.batch.queries = {3, 2}, c.batch.keys = {30, 17};
  c.batch.place();
  fill(c, r, 0);
  const auto wanted = c.reference();
  auto a = c.args();
  auto expect = [&](const char* what) {
    quant_lightning_indexer(a, c.outs());
    EXPECT_EQ(c.out, wanted) << what;
  };
  a.query_dequant_scale = tensor(static_cast<f16*>(a.query_dequant_scale.data), {c.batch.query_rows, c.heads, 1});
  expect("query scale [t, N1, 1]");
  a.weights = tensor(static_cast<f16*>(a.weights.data), {1, c.batch.query_rows, c.heads});
  expect("weights [1, t, N1]");
  auto* scale = static_cast<f16*>(a.key_dequant_scale.data);
  for (const Tensor& t : {tensor(scale, {c.batch.pages, 16, 1, 1}), tensor(scale, {c.batch.pages, 16}),
                          tensor(scale, {c.batch.pages * 16, 1})}) {
    a.key_dequant_scale = t;
    expect("key scale");
  }
  // Keys and scales with room between rows and pages.
  std::vector<std::int8_t> wide(static_cast<std::size_t>(c.batch.pages * 16 * 24 + 8));
  for (std::int64_t row = 0; row < c.batch.pages * 16; ++row)
    std::copy_n(&c.key_memory[std::size_t(row * 16)], 16, &wide[std::size_t(row * 24)]);
  a.key.data = wide.data();
  a.key.stride = {16 * 24, 24, 24, 1};
  std::vector<f16> apart(static_cast<std::size_t>(c.batch.pages * 48));
  for (std::int64_t row = 0; row < c.batch.pages * 16; ++row) apart[std::size_t(row * 3)] = scale[row];
  a.key_dequant_scale = tensor(apart.data(), {c.batch.pages, 16, 1});
  a.key_dequant_scale.stride = {48, 3, 1};
  expect("strided cache");
}

TEST(QuantLightningIndexer, EmptyInputs) {
  std::vector<std::int8_t> codes(64);
  std::vector<f16> half(64);
  std::vector<std::int32_t> out(12, 7), zero{0};
  // No keys at all, and no memory for them.
  quant_lightning_indexer({.query = tensor(codes.data(), {1, 2, 4, 8}),
                           .key = shaped(DType::i8, {1, 0, 1, 8}),
                           .weights = tensor(half.data(), {1, 2, 4}),
                           .query_dequant_scale = tensor(half.data(), {1, 2, 4}),
                           .key_dequant_scale = shaped(DType::f16, {1, 0, 1}),
                           .sparse_count = 6},
                          {.sparse_indices = tensor(out.data(), {1, 2, 1, 6})});
  EXPECT_EQ(out, std::vector<std::int32_t>(12, -1));
  // No queries, no pages.
  quant_lightning_indexer({.query = shaped(DType::i8, {0, 4, 8}),
                           .key = shaped(DType::i8, {0, 16, 1, 8}),
                           .weights = shaped(DType::f16, {0, 4}),
                           .query_dequant_scale = shaped(DType::f16, {0, 4}),
                           .key_dequant_scale = shaped(DType::f16, {0, 16, 1}),
                           .actual_seq_lengths_query = tensor(zero.data(), {1}),
                           .actual_seq_lengths_key = tensor(zero.data(), {1}),
                           .block_table = shaped(DType::i32, {1, 0}),
                           .layout_query = "TND",
                           .layout_key = "PA_BSND",
                           .sparse_count = 6},
                          {.sparse_indices = shaped(DType::i32, {0, 1, 6})});
  // More sequences than anybody could walk through, none with a row.
  const std::int64_t many = std::int64_t{1} << 50;
  quant_lightning_indexer({.query = shaped(DType::i8, {many, 0, 4, 8}),
                           .key = shaped(DType::i8, {many, 0, 1, 8}),
                           .weights = shaped(DType::f16, {many, 0, 4}),
                           .query_dequant_scale = shaped(DType::f16, {many, 0, 4}),
                           .key_dequant_scale = shaped(DType::f16, {many, 0, 1}),
                           .sparse_count = 6},
                          {.sparse_indices = shaped(DType::i32, {many, 0, 1, 6})});
}

/// A page longer than memory, of which there is none: its size does not overflow.
TEST(QuantLightningIndexer, NoPageOfAnySize) {
  Case c = small_case();
  auto a = c.args();
  a.key.shape[0] = a.key_dequant_scale.shape[0] = 0, a.key.shape[1] = a.key_dequant_scale.shape[1] = INT64_MAX;
  const auto before = c.out;
  try {
    quant_lightning_indexer(a, c.outs());
    ADD_FAILURE() << "accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.status, Status::invalid_block) << e.what();
    EXPECT_EQ(e.parameter + e.position, "block_table[0][0]") << e.what();
    EXPECT_NE(std::string(e.what()).find("positions 0..39"), std::string::npos) << e.what();
  }
  EXPECT_EQ(c.out, before);
}

TEST(QuantLightningIndexer, Infer) {
  Case c = small_case();
  auto a = c.args();
  QuantLightningIndexerOuts o;
  infer(a, o);
  EXPECT_EQ(o.sparse_indices.dtype, DType::i32);
  EXPECT_EQ(o.sparse_indices.rank, 3);
  EXPECT_EQ(o.sparse_indices.shape[0], c.batch.query_rows);
  EXPECT_EQ(o.sparse_indices.shape[1], 1);
  EXPECT_EQ(o.sparse_indices.shape[2], c.count);
  a.sparse_mode = 2;
  EXPECT_THROW(infer(a, o), Error);
}

/// The workspace does not grow with the context.
TEST(QuantLightningIndexer, BoundedWorkspace) {
  std::vector<std::int8_t> query(64 * 128);
  std::vector<f16> half(64), scale(1);
  std::vector<std::int32_t> out(4 * 2048);
  const std::int64_t keys = 1 << 20;
  std::int8_t key[128] = {};
  Tensor keys_tensor = tensor(key, {1, keys, 1, 128}), scales = tensor(scale.data(), {1, keys, 1});
  keys_tensor.stride[1] = 0, scales.stride[1] = 0;  // broadcast
  Context context({.threads = 3});
  quant_lightning_indexer({.query = tensor(query.data(), {1, 1, 64, 128}),
                           .key = keys_tensor,
                           .weights = tensor(half.data(), {1, 1, 64}),
                           .query_dequant_scale = tensor(half.data(), {1, 1, 64}),
                           .key_dequant_scale = scales},
                          {.sparse_indices = tensor(out.data(), {1, 1, 1, 2048})}, context);
  EXPECT_LE(context.workspace_bytes(), std::size_t{64} << 20);
  for (int i = 0; i < 2048; ++i) ASSERT_EQ(out[std::size_t(i)], i);
}

}  // namespace
}  // namespace dsakit
