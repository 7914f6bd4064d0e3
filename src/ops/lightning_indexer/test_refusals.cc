// SPDX-License-Identifier: Apache-2.0
#include "ops/lightning_indexer/cases.hpp"

#include <gtest/gtest.h>

#include <functional>

namespace dsakit {
namespace {

using namespace lightning_indexer_cases;

/// What differs from quant_lightning_indexer, whose tests walk through the shared door.
TEST(LightningIndexer, Refusals) {
  using A = LightningIndexerArgs;
  using O = LightningIndexerOuts;
  struct Refusal {
    Status status;
    const char* parameter;
    std::function<void(A&, O&)> change;
  };
  const std::vector<Refusal> all{
      {Status::invalid_dtype, "query", [](A& a, O&) { a.query.dtype = DType::i16; }},
      {Status::invalid_dtype, "key", [](A& a, O&) { a.key.dtype = DType::f16; }},
      {Status::invalid_dtype, "weights", [](A& a, O&) { a.weights.dtype = DType::f16; }},
      {Status::invalid_dtype, "sparse_values", [](A&, O& o) { o.sparse_values.dtype = DType::f16; }},
      {Status::invalid_shape, "sparse_values", [](A&, O& o) { o.sparse_values.shape[0] = 1; }},
      {Status::invalid_shape, "sparse_values", [](A& a, O&) { a.return_value = false; }},
      {Status::invalid_argument, "sparse_values", [](A&, O& o) { o.sparse_values = {}; }},
      {Status::invalid_argument, "layout_key", [](A& a, O&) { a.layout_key = "BSND"; }},
      {Status::invalid_argument, "numerics", [](A& a, O&) { a.numerics = "device"; }},
      {Status::aliased, "sparse_values", [](A& a, O& o) { o.sparse_values.data = a.weights.data; }},
      {Status::unsupported, "query", [](A& a, O&) { a.level = Level::strict; }},
  };
  for (const Refusal& refusal : all) {
    Random r(9);
    Case c;
    c.batch.queries = {2, 1}, c.batch.keys = {40, 33};
    c.batch.place();
    fill(c, r, 0);
    auto a = c.args();
    auto o = c.outs();
    refusal.change(a, o);
    try {
      lightning_indexer(a, o);
      ADD_FAILURE() << refusal.parameter << " was accepted";
    } catch (const Error& e) {
      EXPECT_EQ(e.status, refusal.status) << e.what();
      EXPECT_EQ(e.parameter, refusal.parameter) << e.what();
    }
    EXPECT_EQ(c.out, std::vector<std::int32_t>(c.out.size(), 12345));
  }
}

TEST(LightningIndexer, StrictLimits) {
  Random r(1);
  Case c;
  c.batch.queries = {1}, c.batch.keys = {40};
  c.batch.place();
  c.dims = 128, c.count = 3072;
  fill(c, r, 0);
  auto a = c.args();
  a.level = Level::strict;
  auto refused = [&](const char* parameter) {
    try {
      lightning_indexer(a, c.outs());
      ADD_FAILURE() << parameter << " was accepted";
    } catch (const Error& e) {
      EXPECT_EQ(e.status, Status::unsupported) << e.what();
      EXPECT_EQ(e.parameter, parameter);
    }
  };
  refused("return_value");
  c.count = 3000, a = c.args(), a.level = Level::strict;
  refused("sparse_count");
  c.batch.layout_key = "TND", c.batch.place(0), c.count = 3072;
  a = c.args(), a.level = Level::strict;
  lightning_indexer(a, c.outs());
  EXPECT_TRUE(c.lists() == c.reference());
}

TEST(LightningIndexer, ValueChecking) {
  Context context({.check_values = true});
  Random r(9);
  Case c;
  c.batch.queries = {2, 1}, c.batch.keys = {40, 33};
  c.batch.place();
  fill(c, r, 0);
  EXPECT_TRUE(c.fast(context) == c.reference());
  for (auto [numbers, parameter] : {std::pair{&c.query, "query"}, {&c.key, "key"}, {&c.weights, "weights"}}) {
    const float old = (*numbers)[7];
    (*numbers)[7] = kNan;
    try {
      c.fast(context);
      ADD_FAILURE() << parameter << " was accepted";
    } catch (const Error& e) {
      EXPECT_EQ(e.status, Status::invalid_value);
      EXPECT_EQ(e.parameter, parameter);
    }
    (*numbers)[7] = old;
  }
}

}  // namespace
}  // namespace dsakit
