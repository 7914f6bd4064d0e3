// SPDX-License-Identifier: Apache-2.0
#include "ops/quant_lightning_indexer/cases.hpp"

#include <gtest/gtest.h>

#include "kernels/kernels.hpp"

namespace dsakit {
namespace {

using namespace quant_lightning_indexer_cases;

using indexer::AtPageEnd;

/// Every rung and several thread counts select what the reference does.
void expect_reference(Case& c, const std::string& what) {
  const auto wanted = c.reference();
  for (const Kernels* k : supported_kernels())
    for (int threads : {1, 2, 3}) {
      Context context({.threads = threads, .isa = k->isa});
      ASSERT_EQ(c.fast(context), wanted) << what << ", " << k->isa << ", threads " << threads;
    }
}

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

/// 1585 positive scores among 128K keys: the rest of the list are the lowest positions of the zero plateau.
TEST(QuantLightningIndexer, CutInsideTheZeroPlateau) {
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
  for (int threads : {1, 2, 3}) {
    Context context({.threads = threads});
    EXPECT_EQ(c.batch.gather(c.fast(context), c.count), wanted);
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

/// Nothing is read behind the last byte, whatever the width.
TEST(QuantLightningIndexer, ReadsNothingOutside) {
  for (std::int64_t dims = 1; dims <= 70; ++dims) {
    Random r{std::uint64_t(dims)};
    Case c;
    c.batch.layout_key = "TND";
    c.batch.queries = {2}, c.batch.keys = {9};
    c.batch.place(0);
    c.heads = dims % 7 + 1, c.dims = dims;
    fill(c, r, 0);
    const auto wanted = c.reference();
    auto a = c.args();
    const AtPageEnd query(a.query.data, c.query_memory.size()), key(a.key.data, c.key_memory.size());
    const AtPageEnd weights(a.weights.data, std::size_t(2 * c.heads) * 2), scale(a.key_dequant_scale.data, 18);
    a.query = query.moved(a.query), a.key = key.moved(a.key);
    a.weights = weights.moved(a.weights), a.key_dequant_scale = scale.moved(a.key_dequant_scale);
    for (const Kernels* k : supported_kernels()) {
      Context context({.isa = k->isa});
      quant_lightning_indexer(a, c.outs(), context);
      EXPECT_EQ(c.out, wanted);
    }
  }
}

/// Pages beyond 2^31 and 2^32 elements of a sparse mapping.
TEST(QuantLightningIndexer, BigAddresses) {
  const std::int64_t block = 128, dims = 128, pages = (std::int64_t{9} << 30) / (block * dims);
  auto* memory = static_cast<std::int8_t*>(mmap(nullptr, std::size_t(pages * block * dims), PROT_READ | PROT_WRITE,
                                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  ASSERT_NE(memory, MAP_FAILED);
  Random r(3);
  Case c;
  c.batch.queries = {2}, c.batch.keys = {5 * 128 - 3}, c.batch.block_size = block;
  c.batch.place();
  c.dims = dims, c.count = 50;
  fill(c, r, 0);
  const auto wanted = c.batch.gather(c.reference(), c.count);
  auto a = c.args();
  std::vector<std::int32_t> table{std::int32_t(pages - 1), 29077, 131072, 262144 + 7, 0};
  std::vector<f16> scales(static_cast<std::size_t>(pages * block));
  for (std::size_t i = 0; i < 5; ++i)
    for (std::int64_t slot = 0; slot < block && std::int64_t(i) * block + slot < c.batch.keys[0]; ++slot) {
      const std::int64_t j = std::int64_t(i) * block + slot, row = table[i] * block + slot;
      std::copy_n(&c.key[std::size_t(j * dims)], dims, memory + row * dims);
      scales[std::size_t(row)] = to_f16(c.key_scale[std::size_t(j)]);
    }
  a.key = tensor(memory, {pages, block, 1, dims});
  a.key_dequant_scale = tensor(scales.data(), {pages, block, 1});
  a.block_table = tensor(table.data(), {1, 5});
  quant_lightning_indexer(a, c.outs());
  EXPECT_EQ(c.batch.gather(c.out, c.count), wanted);
  munmap(memory, std::size_t(pages * block * dims));
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

TEST(QuantLightningIndexer, WorkedExamples) {
  const std::vector<std::int8_t> m2{64, 0, 0, 0, 64, 1, 0, 0};
  EXPECT_EQ((Tiny{.query = {64, 1, 0, 0}, .key = m2, .key_scale = {}, .count = 1}.lists()), (Lists{{1}}));
  EXPECT_EQ((Tiny{.query = {64, 1, 0, 0}, .key = m2, .key_scale = {}, .count = 1, .numerics = "device"}.lists()),
            (Lists{{0}}));
  EXPECT_EQ((Tiny{.query = {1}, .key = {3, 6}, .key_scale = {0.5f, 0.25f}, .count = 2}.lists()), (Lists{{0, 1}}));
  EXPECT_EQ((Tiny{.query = {1}, .key = {-1, -2, -3, -1, -9}, .key_scale = {}, .count = 3}.lists()), (Lists{{0, 1, 2}}));
  EXPECT_EQ((Tiny{.query = {1}, .key = {-1, -2}, .key_scale = {}, .count = 3}.lists()), (Lists{{0, 1, -1}}));
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
