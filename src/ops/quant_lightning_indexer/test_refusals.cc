// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "ops/indexer/refusals.hpp"
#include "ops/quant_lightning_indexer/cases.hpp"

namespace dsakit {
namespace {

using namespace quant_lightning_indexer_cases;

using indexer::expect_limits;
using indexer::expect_refusals;
using indexer::Limit;
using indexer::Refusal;
using A = QuantLightningIndexerArgs;
using O = QuantLightningIndexerOuts;

void fill_full(Case& c) {
  Random r(9);
  fill(c, r, 0);
}

/// What strict accepts too, before its sizes are laid out.
Case chip_case() {
  Case c;
  c.batch.queries = {2, 1}, c.batch.keys = {40, 33};
  c.dims = 128, c.heads = 64;
  return c;
}

std::function<Case()> laid_out(const char* query, const char* key) {
  return [=] {
    Case c = chip_case();
    c.batch.layout_query = query, c.batch.layout_key = key;
    c.batch.place();
    fill_full(c);
    return c;
  };
}

TEST(QuantLightningIndexer, RefusalsWithPages) {
  expect_refusals(laid_out("TND", "PA_BSND"), indexer::paged_refusals<Case>());
}

TEST(QuantLightningIndexer, RefusalsWithoutPages) {
  expect_refusals(laid_out("BSND", "BSND"), indexer::dense_refusals<Case>());
}

/// What lightning_indexer does not have.
TEST(QuantLightningIndexer, RefusalsOfItsOwn) {
  static std::vector<float> floats(4096);
  expect_refusals<Case>(
      laid_out("TND", "PA_BSND"),
      {
          {"query scale missing", Status::invalid_argument, "query_dequant_scale", "",
           [](Case&, A& a, O&) { a.query_dequant_scale = {}; }},
          {"key scale missing", Status::invalid_argument, "key_dequant_scale", "",
           [](Case&, A& a, O&) { a.key_dequant_scale = {}; }},
          {"heads of the scale", Status::invalid_shape, "query_dequant_scale", "",
           [](Case&, A& a, O&) { --a.query_dequant_scale.shape[1]; }},
          {"rows of the scale", Status::invalid_shape, "query_dequant_scale", "",
           [](Case&, A& a, O&) { --a.query_dequant_scale.shape[0]; }},
          {"N7", Status::invalid_shape, "key_dequant_scale", "",
           [](Case&, A& a, O&) { a.key_dequant_scale.shape[2] = 2; }},
          {"pages of the scale", Status::invalid_shape, "key_dequant_scale", "",
           [](Case&, A& a, O&) { --a.key_dequant_scale.shape[0]; }},
          {"block_size 0", Status::invalid_shape, "key", "",
           [](Case&, A& a, O&) { a.key.shape[1] = a.key_dequant_scale.shape[1] = 0; }},
          {"N6 float8 query", Status::unsupported, "query", "",
           [](Case&, A& a, O&) { a.query.dtype = DType::f8_e4m3; }},
          {"N6 float8 key", Status::unsupported, "key", "", [](Case&, A& a, O&) { a.key.dtype = DType::f8_e5m2; }},
          {"bf16", Status::invalid_dtype, "query", "",
           [](Case&, A& a, O&) { a.query.dtype = a.key.dtype = DType::bf16; }},
          {"dtype of the query scale", Status::invalid_dtype, "query_dequant_scale", "",
           [](Case&, A& a, O&) { a.query_dequant_scale.dtype = DType::bf16; }},
          {"dtype of the key scale", Status::invalid_dtype, "key_dequant_scale", "",
           [](Case&, A& a, O&) { a.key_dequant_scale.dtype = DType::bf16; }},
          {"device with fp32 weights", Status::invalid_dtype, "weights", "",
           [](Case& c, A& a, O&) {
             a.numerics = "device", a.weights = tensor(floats.data(), {c.batch.query_rows, c.heads});
           }},
          {"device with fp32 query scales", Status::invalid_dtype, "query_dequant_scale", "",
           [](Case& c, A& a, O&) {
             a.numerics = "device", a.query_dequant_scale = tensor(floats.data(), {c.batch.query_rows, c.heads});
           }},
          {"device with fp32 key scales", Status::invalid_dtype, "key_dequant_scale", "",
           [](Case& c, A& a, O&) {
             a.numerics = "device", a.key_dequant_scale = tensor(floats.data(), {c.batch.pages, 16, 1});
           }},
          {"N10 query mode", Status::invalid_argument, "query_quant_mode", "",
           [](Case&, A& a, O&) { a.query_quant_mode = 2; }},
          {"N10 key mode", Status::invalid_argument, "key_quant_mode", "",
           [](Case&, A& a, O&) { a.key_quant_mode = 2; }},
          {"numerics of the other", Status::invalid_argument, "numerics", "",
           [](Case&, A& a, O&) { a.numerics = "fast"; }},
          {"out on the query scale", Status::aliased, "sparse_indices", "",
           [](Case&, A& a, O& o) { o.sparse_indices.data = a.query_dequant_scale.data; }},
          {"out on the key scale", Status::aliased, "sparse_indices", "",
           [](Case&, A& a, O& o) { o.sparse_indices.data = a.key_dequant_scale.data; }},
          {"misaligned scale", Status::misaligned, "key_dequant_scale", "",
           [](Case&, A& a, O&) { a.key_dequant_scale.data = static_cast<char*>(a.key_dequant_scale.data) + 1; }},
      });
}

/// Dots must fit int32.
TEST(QuantLightningIndexer, WidthWithoutExactDots) {
  std::vector<std::int8_t> codes(131072);
  const f16 half[1] = {};
  std::int32_t out = 7;
  const A a{.query = tensor(codes.data(), {1, 1, 1, 131072}),
            .key = tensor(codes.data(), {1, 1, 1, 131072}),
            .weights = tensor(half, {1, 1, 1}),
            .query_dequant_scale = tensor(half, {1, 1, 1}),
            .key_dequant_scale = tensor(half, {1, 1, 1}),
            .sparse_count = 1};
  indexer::expect_refused(
      [&] {
        quant_lightning_indexer(a, {.sparse_indices = tensor(&out, {1, 1, 1, 1})});
      },
      "D", Case::kName, Status::invalid_shape, "query", "", "at most 131071");
  EXPECT_EQ(out, 7);
}

TEST(QuantLightningIndexer, StrictLimits) {
  expect_limits<Case>(
      chip_case, fill_full,
      {
          {"N1 32", Status::unsupported, "query", [](Case& c) { c.heads = 32; }},
          {"scales of a prolog", Status::ok, "", [](Case&) {},
           [](Case&, A& a, O&) {
             Tensor& t = a.query_dequant_scale;
             t.shape[t.rank] = 1, t.stride[t.rank] = 1, ++t.rank;
           }},
          {"N9 3072", Status::unsupported, "sparse_count", [](Case& c) { c.count = 3072; }},
          {"bf16 weights", Status::unsupported, "weights", [](Case& c) { c.weight_type = DType::bf16; }},
          {"fp32 weights", Status::unsupported, "weights", [](Case& c) { c.weight_type = DType::f32; }},
          {"fp32 scales", Status::unsupported, "query_dequant_scale", [](Case& c) { c.scale_type = DType::f32; }},
          {"fp32 key scales", Status::unsupported, "key_dequant_scale", [](Case&) {},
           [](Case& c, A& a, O&) { a.key_dequant_scale = c.key_scale_memory.of(a.key_dequant_scale, DType::f32); }},
          {"4-D key scales", Status::invalid_shape, "key_dequant_scale", [](Case&) {},
           [](Case& c, A& a, O&) {
             a.key_dequant_scale = tensor(c.key_scale_memory.half.data(), {c.batch.pages, c.batch.block_size, 1, 1});
           }},
      });
}

TEST(QuantLightningIndexer, MessagesAsDocumented) {
  std::vector<std::int32_t> lengths{1, 2, 3}, keys{0, 0, 2304}, table(3 * 18);
  std::vector<f16> half(4);
  std::vector<std::int8_t> code(8);
  table[2 * 18 + 17] = 40211;
  Tensor key = tensor(code.data(), {29000, 128, 1, 8}), scale = tensor(half.data(), {29000, 128, 1});
  key.stride = {0, 0, 0, 1}, scale.stride = {0, 0, 1};
  std::vector<std::int32_t> out(3);
  Tensor query = tensor(code.data(), {3, 1, 8});
  query.stride[0] = 0;
  const A a{.query = query,
            .key = key,
            .weights = tensor(half.data(), {3, 1}),
            .query_dequant_scale = tensor(half.data(), {3, 1}),
            .key_dequant_scale = scale,
            .actual_seq_lengths_query = tensor(lengths.data(), {3}),
            .actual_seq_lengths_key = tensor(keys.data(), {3}),
            .block_table = tensor(table.data(), {3, 18}),
            .layout_query = "TND",
            .layout_key = "PA_BSND",
            .sparse_count = 1};
  const O o{.sparse_indices = tensor(out.data(), {3, 1, 1})};
  indexer::expect_refused([&] { quant_lightning_indexer(a, o); }, "page", Case::kName, Status::invalid_block,
                          "block_table", "[2][17]",
                          "quant_lightning_indexer: block_table[2][17] is 40211, wanted 0..28999 (pages of key; "
                          "sequence 2, positions 2176..2303)");
}

TEST(QuantLightningIndexer, N16_ValueChecking) {
  Context checking({.check_values = true}), plain;
  for (Level level : {Level::portable, Level::strict}) {
    auto refused = [&](std::function<void(Case&)> change, const char* parameter, const std::string& position) {
      Case c = laid_out("TND", "PA_BSND")();
      c.numerics = "device";
      change(c);
      auto a = c.args();
      a.level = level;
      const auto before = c.out;
      indexer::expect_refused([&] { quant_lightning_indexer(a, c.outs(), checking); }, parameter, Case::kName,
                              Status::invalid_value, parameter, position.c_str());
      EXPECT_EQ(c.out, before);
      EXPECT_EQ(c.fast(plain), c.reference());  // without checking they are computed
    };
    Case good = laid_out("TND", "PA_BSND")();
    EXPECT_EQ(good.fast(checking), good.reference());  // NaN at unused places is nobody's business
    refused([](Case& c) { c.weights[5] = kNan; }, "weights", "[0][5]");
    refused([](Case& c) { c.query_scale[2] = -1; }, "query_dequant_scale", "[0][2]");
    refused([](Case& c) { c.query_scale[2] = kInf; }, "query_dequant_scale", "[0][2]");
    refused([](Case& c) { c.weights[0] = 60000, c.query_scale[0] = 60000; }, "weights", "[0][0]");
    const std::int64_t row = good.batch.key_place[3];
    const std::string position = "[" + std::to_string(row / 16) + "][" + std::to_string(row % 16) + "][0]";
    refused([](Case& c) { c.key_scale[3] = -1; }, "key_dequant_scale", position);
    refused([](Case& c) { c.key_scale[3] = kNan; }, "key_dequant_scale", position);
    refused([](Case& c) { c.key_scale[3] = 70000; }, "key_dequant_scale", position);  // inf in fp16
  }
}

}  // namespace
}  // namespace dsakit
