// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <utility>

#include "dsakit/context.hpp"
#include "kernels/kernels.hpp"
#include "ops/indexer/cases.hpp"

// What must not show in a selection.
namespace dsakit::indexer {

/// Every rung and several thread counts write what the reference does, padding rows included.
template <class C>
void expect_reference(C& c, const std::string& what, std::initializer_list<int> threads = {1, 2, 3}) {
  const auto wanted = c.reference();
  for (const Kernels* k : supported_kernels())
    for (int n : threads) {
      Context context({.threads = n, .isa = k->isa});
      ASSERT_TRUE(c.fast(context) == wanted) << what << ", " << k->isa << ", threads " << n;
    }
}

/// The lists of the tokens are `wanted` whatever the threads, the layouts, the page size, the order of the pages, and
/// whether the sequences come together or one by one.
template <class C, class L>
void expect_invariant(C c, const L& wanted, const ContextOptions& options = {}) {
  for (int threads : {1, 2, 3, 8}) {
    ContextOptions with = options;
    with.threads = threads;
    Context context(with);
    EXPECT_TRUE(c.gathered(c.fast(context)) == wanted) << "threads " << threads;
  }
  ContextOptions with = options;
  with.threads = 2;
  Context context(with);
  const Batch given = c.batch;
  for (const auto& [query, key] : {std::pair{"BSND", "BSND"}, {"TND", "TND"}, {"BSND", "PA_BSND"}, {"TND", "PA_BSND"}})
    for (std::int64_t block : {16, 128, 1024}) {
      if (block > 16 && std::string(key) != "PA_BSND") continue;
      c.batch = given.relaid(query, key, block, std::uint64_t(block + 1), block % 3);
      EXPECT_TRUE(c.gathered(c.fast(context)) == wanted) << query << " " << key << " " << block;
    }
  c.batch = given;
  L one_by_one;
  for (std::size_t i = 0; i < given.queries.size(); ++i) {
    C one = c.only(i);
    C::append(one_by_one, one.gathered(one.fast(context)));
  }
  EXPECT_TRUE(one_by_one == wanted) << "sequences one by one";
}

/// No key, one, a page and one more or less, and as many as asked for.
template <class Case>
void expect_any_count() {
  for (std::int64_t mode : {0, 3}) {
    Random r(107);
    Case c;
    c.batch.queries = {1, 1, 1, 1, 1, 1, 1, 2}, c.batch.keys = {0, 1, 15, 16, 17, 31, 33, 32};
    c.batch.place();
    c.count = 16, c.mode = mode;
    fill(c, r, 1);
    expect_reference(c, "mode " + std::to_string(mode));
    expect_invariant(c, c.gathered(c.reference()));
  }
}

}  // namespace dsakit::indexer
