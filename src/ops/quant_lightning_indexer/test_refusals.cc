// SPDX-License-Identifier: Apache-2.0
#include "ops/quant_lightning_indexer/cases.hpp"

#include <gtest/gtest.h>

#include <functional>

namespace dsakit {
namespace {

using namespace quant_lightning_indexer_cases;

struct Refusal {
  const char* name;
  Status status;
  const char* parameter;
  const char* position;
  std::function<void(Case&, QuantLightningIndexerArgs&, QuantLightningIndexerOuts&)> change;
};

TEST(QuantLightningIndexer, Refusals) {
  std::int64_t many[] = {0, 0, 0, 0};
  std::int32_t three[] = {2, 3, 3};
  std::vector<float> floats(4096);
  using A = QuantLightningIndexerArgs;
  using O = QuantLightningIndexerOuts;
  const std::vector<Refusal> all{
      {"query missing", Status::invalid_argument, "query", "", [](Case&, A& a, O&) { a.query = {}; }},
      {"out missing", Status::invalid_argument, "sparse_indices", "", [](Case&, A&, O& o) { o.sparse_indices = {}; }},
      {"no memory", Status::invalid_argument, "key", "", [](Case&, A& a, O&) { a.key.data = nullptr; }},
      {"table missing", Status::invalid_argument, "block_table", "", [](Case&, A& a, O&) { a.block_table = {}; }},
      {"layout", Status::invalid_argument, "layout_query", "", [](Case&, A& a, O&) { a.layout_query = "BNSD"; }},
      {"layout pair", Status::invalid_argument, "layout_key", "", [](Case&, A& a, O&) { a.layout_key = "BSND"; }},
      {"table unused", Status::invalid_argument, "block_table", "", [](Case&, A& a, O&) { a.layout_key = "TND"; }},
      {"lengths missing", Status::invalid_argument, "actual_seq_lengths_query", "",
       [](Case&, A& a, O&) { a.actual_seq_lengths_query = {}; }},
      {"key lengths missing", Status::invalid_argument, "actual_seq_lengths_key", "",
       [](Case&, A& a, O&) { a.actual_seq_lengths_key = {}; }},
      {"negative dim", Status::invalid_shape, "query", "", [](Case&, A& a, O&) { a.query.shape[0] = -1; }},
      {"overflow", Status::invalid_shape, "key", "", [](Case&, A& a, O&) { a.key.shape[0] = INT64_MAX / 2; }},
      {"query rank", Status::invalid_shape, "query", "",
       [](Case&, A& a, O&) { a.query.rank = 4, a.query.shape[3] = 1; }},
      {"key width", Status::invalid_shape, "key", "", [](Case&, A& a, O&) { a.key.shape[3] = 15; }},
      {"key heads", Status::invalid_shape, "key", "", [](Case&, A& a, O&) { a.key.shape[2] = 2; }},
      {"weights rows", Status::invalid_shape, "weights", "", [](Case&, A& a, O&) { --a.weights.shape[0]; }},
      {"weights heads", Status::invalid_shape, "weights", "", [](Case&, A& a, O&) { --a.weights.shape[1]; }},
      {"scale heads", Status::invalid_shape, "query_dequant_scale", "",
       [](Case&, A& a, O&) { --a.query_dequant_scale.shape[1]; }},
      {"scale of two", Status::invalid_shape, "key_dequant_scale", "",
       [](Case&, A& a, O&) { a.key_dequant_scale.shape[2] = 2; }},
      {"table rank", Status::invalid_shape, "block_table", "", [](Case&, A& a, O&) { a.block_table.rank = 1; }},
      {"table rows", Status::invalid_shape, "block_table", "", [](Case&, A& a, O&) { ++a.block_table.shape[0]; }},
      {"out shape", Status::invalid_shape, "sparse_indices", "", [](Case&, A&, O& o) { --o.sparse_indices.shape[2]; }},
      {"block size 0", Status::invalid_shape, "key", "",
       [](Case&, A& a, O&) { a.key.shape[1] = a.key_dequant_scale.shape[1] = 0; }},
      {"width 0", Status::invalid_shape, "query", "", [](Case&, A& a, O&) { a.query.shape[2] = a.key.shape[3] = 0; }},
      {"query dtype", Status::invalid_dtype, "query", "", [](Case&, A& a, O&) { a.query.dtype = DType::u8; }},
      {"float8", Status::unsupported, "key", "", [](Case&, A& a, O&) { a.key.dtype = DType::f8_e4m3; }},
      {"weights dtype", Status::invalid_dtype, "weights", "", [](Case&, A& a, O&) { a.weights.dtype = DType::f64; }},
      {"scale dtype", Status::invalid_dtype, "key_dequant_scale", "",
       [](Case&, A& a, O&) { a.key_dequant_scale.dtype = DType::bf16; }},
      {"table dtype", Status::invalid_dtype, "block_table", "",
       [&](Case&, A& a, O&) {
         a.block_table = tensor(many, {2, 2});
       }},
      {"lengths dtype", Status::invalid_dtype, "actual_seq_lengths_key", "",
       [&](Case&, A& a, O&) { a.actual_seq_lengths_key = tensor(many, {2}); }},
      {"out dtype", Status::invalid_dtype, "sparse_indices", "",
       [](Case&, A&, O& o) { o.sparse_indices.dtype = DType::i64; }},
      {"device in fp32", Status::invalid_dtype, "weights", "",
       [&](Case&, A& a, O&) {
         a.numerics = "device", a.weights = tensor(floats.data(), {5, 4});
       }},
      {"count 0", Status::invalid_argument, "sparse_count", "", [](Case&, A& a, O&) { a.sparse_count = 0; }},
      {"count -1", Status::invalid_argument, "sparse_count", "", [](Case&, A& a, O&) { a.sparse_count = -1; }},
      {"count overflow", Status::invalid_shape, "sparse_indices", "",
       [](Case&, A& a, O&) { a.sparse_count = INT64_MAX; }},
      {"mode", Status::invalid_argument, "sparse_mode", "", [](Case&, A& a, O&) { a.sparse_mode = 1; }},
      {"window", Status::invalid_argument, "next_tokens", "", [](Case&, A& a, O&) { a.next_tokens = 0; }},
      {"window before", Status::invalid_argument, "pre_tokens", "", [](Case&, A& a, O&) { a.pre_tokens = 5; }},
      {"quant mode", Status::invalid_argument, "query_quant_mode", "", [](Case&, A& a, O&) { a.query_quant_mode = 2; }},
      {"key quant mode", Status::invalid_argument, "key_quant_mode", "", [](Case&, A& a, O&) { a.key_quant_mode = 2; }},
      {"numerics", Status::invalid_argument, "numerics", "", [](Case&, A& a, O&) { a.numerics = "fast"; }},
      {"lengths decrease", Status::invalid_seqlen, "actual_seq_lengths_query", "[1]",
       [](Case& c, A&, O&) {
         c.batch.lengths_query = {2, 1};
       }},
      {"lengths past T", Status::invalid_seqlen, "actual_seq_lengths_query", "[1]",
       [](Case& c, A&, O&) { c.batch.lengths_query[1] = 6; }},
      {"lengths negative", Status::invalid_seqlen, "actual_seq_lengths_query", "[0]",
       [](Case& c, A&, O&) { c.batch.lengths_query[0] = -1; }},
      {"key length negative", Status::invalid_seqlen, "actual_seq_lengths_key", "[1]",
       [](Case& c, A&, O&) { c.batch.lengths_key[1] = -1; }},
      {"key length past table", Status::invalid_seqlen, "actual_seq_lengths_key", "[0]",
       [](Case& c, A&, O&) { c.batch.lengths_key[0] = 81; }},
      {"too few columns", Status::invalid_seqlen, "actual_seq_lengths_key", "[0]",
       [](Case&, A& a, O&) { a.block_table.shape[1] = 2; }},
      {"too many lengths", Status::invalid_seqlen, "actual_seq_lengths_key", "",
       [&](Case&, A& a, O&) { a.actual_seq_lengths_key = tensor(three, {3}); }},
      {"too many totals", Status::invalid_seqlen, "actual_seq_lengths_key", "",
       [&](Case&, A& a, O&) { a.actual_seq_lengths_query = tensor(three, {3}); }},
      {"page -1", Status::invalid_block, "block_table", "[1][2]",
       [](Case& c, A&, O&) { c.batch.block_table[std::size_t(c.batch.columns) + 2] = -1; }},
      {"page past the end", Status::invalid_block, "block_table", "[0][1]",
       [](Case& c, A&, O&) { c.batch.block_table[1] = std::int32_t(c.batch.pages); }},
      {"innermost stride", Status::invalid_stride, "query", "", [](Case&, A& a, O&) { a.query.stride[2] = 2; }},
      {"negative stride", Status::invalid_stride, "weights", "", [](Case&, A& a, O&) { a.weights.stride[0] = -4; }},
      {"output stride 0", Status::invalid_stride, "sparse_indices", "",
       [](Case&, A&, O& o) { o.sparse_indices.stride[0] = 0; }},
      {"misaligned", Status::misaligned, "weights", "",
       [](Case&, A& a, O&) { a.weights.data = static_cast<char*>(a.weights.data) + 1; }},
      {"read-only out", Status::invalid_device, "sparse_indices", "",
       [](Case&, A&, O& o) { o.sparse_indices.read_only = true; }},
      {"aliased", Status::aliased, "sparse_indices", "",
       [](Case&, A& a, O& o) { o.sparse_indices.data = a.block_table.data; }},
      {"strict width", Status::unsupported, "query", "", [](Case&, A& a, O&) { a.level = Level::strict; }},
  };
  for (const Refusal& refusal : all) {
    Case c = small_case();
    auto a = c.args();
    auto o = c.outs();
    refusal.change(c, a, o);
    const std::vector<std::int32_t> before = c.out;
    for (bool twin : {false, true}) {
      try {
        if (twin) reference::quant_lightning_indexer(a, o);
        else quant_lightning_indexer(a, o);
        ADD_FAILURE() << refusal.name << " was accepted";
      } catch (const Error& e) {
        EXPECT_EQ(e.status, refusal.status) << refusal.name << ": " << e.what();
        EXPECT_EQ(e.op, "quant_lightning_indexer");
        EXPECT_EQ(e.parameter, refusal.parameter) << e.what();
        EXPECT_EQ(e.position, refusal.position) << e.what();
      }
    }
    EXPECT_EQ(c.out, before) << refusal.name;
  }
}

/// A limit of the chip is a refusal in strict only.
TEST(QuantLightningIndexer, StrictLimits) {
  auto make = [](std::int64_t heads, std::int64_t dims, std::int64_t block, std::int64_t count) {
    Random r(2);
    Case c;
    c.batch.queries = {2}, c.batch.keys = {20}, c.batch.block_size = block;
    c.batch.place();
    c.heads = heads, c.dims = dims, c.count = count;
    fill(c, r, 0);
    return c;
  };
  auto refused = [](Case c, const char* parameter) {
    auto a = c.args();
    quant_lightning_indexer(a, c.outs());
    a.level = Level::strict;
    try {
      quant_lightning_indexer(a, c.outs());
      ADD_FAILURE() << parameter << " was accepted";
    } catch (const Error& e) {
      EXPECT_EQ(e.status, Status::unsupported) << e.what();
      EXPECT_EQ(e.parameter, parameter);
      EXPECT_NE(std::string(e.what()).find("[strict: Atlas A2/A3]"), std::string::npos);
    }
  };
  Case good = make(64, 128, 16, 2048);
  auto a = good.args();
  a.level = Level::strict;
  quant_lightning_indexer(a, good.outs());
  EXPECT_EQ(good.out, good.reference());
  refused(make(65, 128, 16, 2048), "query");
  refused(make(64, 64, 16, 2048), "query");
  refused(make(64, 128, 8, 2048), "key");
  refused(make(64, 128, 16, 2049), "sparse_count");
  Case wide = make(64, 128, 16, 8);
  wide.weight_type = DType::f32;
  refused(wide, "weights");
  wide.weight_type = DType::f16, wide.scale_type = DType::f32;
  refused(wide, "query_dequant_scale");
}

TEST(QuantLightningIndexer, ValueChecking) {
  Context context({.check_values = true});
  auto refused = [&](std::function<void(Case&)> change, const char* parameter, const char* position) {
    Case c = small_case();
    c.numerics = "device";
    change(c);
    try {
      c.fast(context);
      ADD_FAILURE() << parameter << " was accepted";
    } catch (const Error& e) {
      EXPECT_EQ(e.status, Status::invalid_value) << e.what();
      EXPECT_EQ(e.parameter, parameter) << e.what();
      EXPECT_EQ(e.position, position) << e.what();
    }
    Context unchecked;
    EXPECT_EQ(c.fast(unchecked), c.reference());
  };
  Case good = small_case();
  EXPECT_EQ(good.fast(context), good.reference());  // NaN at unused places is nobody's business
  refused([](Case& c) { c.weights[5] = kNan; }, "weights", "[1][1]");
  refused([](Case& c) { c.query_scale[2] = -1; }, "query_dequant_scale", "[0][2]");
  refused([](Case& c) { c.weights[0] = 60000, c.query_scale[0] = 60000; }, "weights", "[0][0]");
  const Case c = small_case();
  const std::string position =
      "[" + std::to_string(c.batch.key_place[3] / 16) + "][" + std::to_string(c.batch.key_place[3] % 16) + "][0]";
  refused([](Case& c) { c.key_scale[3] = -1; }, "key_dequant_scale", position.c_str());
}

}  // namespace
}  // namespace dsakit
