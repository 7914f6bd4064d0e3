// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "ops/indexer/refusals.hpp"
#include "ops/lightning_indexer/cases.hpp"

namespace dsakit {
namespace {

using namespace lightning_indexer_cases;

using indexer::expect_limits;
using indexer::expect_refusals;
using indexer::Limit;
using indexer::Refusal;
using A = LightningIndexerArgs;
using O = LightningIndexerOuts;

void fill_uniform(Case& c) {
  Random r(9);
  fill(c, r, 0);
}

/// What strict accepts too, before its sizes are laid out.
Case chip_case() {
  Case c;
  c.batch.queries = {2, 1}, c.batch.keys = {40, 33};
  c.dims = 128, c.values = false;
  return c;
}

std::function<Case()> laid_out(const char* query, const char* key, bool values) {
  return [=] {
    Case c = chip_case();
    c.batch.layout_query = query, c.batch.layout_key = key, c.values = values;
    c.batch.place(c.batch.layout_key == "TND" ? 0 : 2);  // strict has no key rows behind the last total
    fill_uniform(c);
    return c;
  };
}

TEST(LightningIndexer, RefusalsWithPages) {
  expect_refusals(laid_out("TND", "PA_BSND", false), indexer::paged_refusals<Case>());
  expect_refusals(laid_out("TND", "PA_BSND", true), indexer::paged_refusals<Case>(), {Level::portable});
}

TEST(LightningIndexer, RefusalsWithoutPages) {
  for (bool values : {false, true}) expect_refusals(laid_out("BSND", "BSND", values), indexer::dense_refusals<Case>());
}

/// What quant_lightning_indexer does not have.
TEST(LightningIndexer, RefusalsOfItsOwn) {
  expect_refusals<Case>(
      laid_out("TND", "TND", true),
      {
          {"N6 mixed", Status::invalid_dtype, "key", "", [](Case&, A& a, O&) { a.key.dtype = DType::f16; }},
          {"N6 int8", Status::invalid_dtype, "query", "",
           [](Case&, A& a, O&) { a.query.dtype = a.key.dtype = DType::i8; }},
          {"N6 float8", Status::invalid_dtype, "key", "", [](Case&, A& a, O&) { a.key.dtype = DType::f8_e4m3; }},
          {"other weights", Status::invalid_dtype, "weights", "",
           [](Case&, A& a, O&) { a.weights.dtype = DType::f16; }},
          {"dtype of the values", Status::invalid_dtype, "sparse_values", "",
           [](Case&, A&, O& o) { o.sparse_values.dtype = DType::f16; }},
          {"shape of the values", Status::invalid_shape, "sparse_values", "",
           [](Case&, A&, O& o) { --o.sparse_values.shape[0]; }},
          {"values not asked for", Status::invalid_shape, "sparse_values", "",
           [](Case&, A& a, O&) { a.return_value = false; }},
          {"values missing", Status::invalid_argument, "sparse_values", "",
           [](Case&, A&, O& o) { o.sparse_values = {}; }},
          {"numerics of the other", Status::invalid_argument, "numerics", "",
           [](Case&, A& a, O&) { a.numerics = "device"; }},
          {"read-only values", Status::invalid_device, "sparse_values", "",
           [](Case&, A&, O& o) { o.sparse_values.read_only = true; }},
          {"values on weights", Status::aliased, "sparse_values", "",
           [](Case&, A& a, O& o) { o.sparse_values.data = a.weights.data; }},
          {"values on indices", Status::aliased, "sparse_indices", "",
           [](Case&, A&, O& o) { o.sparse_values.data = o.sparse_indices.data; }},
      });
}

TEST(LightningIndexer, StrictLimits) {
  auto slots = [](std::int64_t n) { return [=](Case& c) { c.count = n; }; };
  expect_limits<Case>(
      chip_case, fill_uniform,
      {
          {"3072 slots", Status::ok, "", slots(3072)},
          {"8192 slots", Status::ok, "", slots(8192)},
          {"values without pages", Status::ok, "", [](Case& c) { c.values = true, c.batch.layout_key = "TND"; }, {}, 0},
          {"fp16", Status::ok, "", [](Case& c) { c.type = DType::f16; }},
          {"fp32 weights", Status::ok, "", [](Case& c) { c.wide_weights = true; }},
          {"3000 slots", Status::unsupported, "sparse_count", slots(3000)},
          {"9216 slots", Status::unsupported, "sparse_count", slots(9216)},
          {"N8", Status::unsupported, "return_value", [](Case& c) { c.values = true; }},
      });
}

TEST(LightningIndexer, MessagesAsDocumented) {
  auto message = [](std::function<void(A&)> change, std::int64_t queries) -> std::string {
    Case c;
    c.batch.queries = {std::int32_t(queries)}, c.batch.keys = {40};
    c.batch.place(0);
    c.heads = 64, c.dims = 128;
    fill_uniform(c);
    auto a = c.args();
    change(a);
    try {
      lightning_indexer(a, c.outs());
    } catch (const Error& e) {
      return e.what();
    }
    return "accepted";
  };
  EXPECT_EQ(message([](A& a) { a.weights.shape[1] = 63; }, 4),
            "lightning_indexer: weights has shape [4, 63], wanted [4, 64] (T and N1 of query)");
  Case c = chip_case();
  c.count = 3000;
  c.batch.place();
  fill_uniform(c);
  auto a = c.args();
  a.level = Level::strict;
  indexer::expect_refused([&] { lightning_indexer(a, c.outs()); }, "3000", Case::kName, Status::unsupported,
                          "sparse_count", "",
                          "lightning_indexer: sparse_count is 3000, wanted at most 2048 or a multiple of 1024 up to "
                          "8192 [strict: Atlas A2/A3]");
}

TEST(LightningIndexer, N16_ValueChecking) {
  Context checking({.check_values = true}), plain;
  for (Level level : {Level::portable, Level::strict}) {
    Case c = laid_out("TND", "PA_BSND", false)();
    auto answer = [&](std::vector<float>& numbers, std::size_t at, float x, const char* parameter,
                      const std::string& position) {
      const float old = std::exchange(numbers[at], x);
      auto a = c.args();
      a.level = level;
      const Lists before = c.lists();
      indexer::expect_refused([&] { lightning_indexer(a, c.outs(), checking); }, parameter, Case::kName,
                              Status::invalid_value, parameter, position.c_str());
      EXPECT_TRUE(c.lists() == before);
      EXPECT_TRUE(c.fast(plain) == c.reference());  // without checking they are computed
      numbers[at] = old;
    };
    EXPECT_TRUE(c.fast(checking) == c.reference());  // NaN at unused places is nobody's business
    answer(c.weights, 5, kNan, "weights", "[1][1]");
    answer(c.weights, 0, -kInf, "weights", "[0][0]");
    answer(c.query, 128 + 7, kInf, "query", "[0][1][7]");
    const std::int64_t row = c.batch.key_place[3];
    answer(c.key, 3 * 128 + 9, kNan, "key",
           "[" + std::to_string(row / 16) + "][" + std::to_string(row % 16) + "][0][9]");
  }
}

}  // namespace
}  // namespace dsakit
