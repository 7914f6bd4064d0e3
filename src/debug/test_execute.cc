// SPDX-License-Identifier: Apache-2.0
#include "debug/execute.hpp"

#include <gtest/gtest.h>

#include "debug/compare.hpp"
#include "debug/test_cases.hpp"
#include "io/test_folder.hpp"

namespace dsakit::debug {
namespace {

/// The case agrees with itself: something is recorded, and all of it has the bits of a run.
void expect_agrees(const Case& c, const Execution& how = {}) {
  check_case(c);
  const Outcome outcome = execute(c, how);
  ASSERT_FALSE(outcome.refusal) << outcome.refusal->what();
  const std::vector<Pair> pairs = pairs_of(c, "out", outcome);
  EXPECT_FALSE(pairs.empty());
  for (const Pair& pair : pairs) {
    EXPECT_EQ(pair.mismatch, "") << pair.key;
    const Bits bits = compare_bits(pair, nan_fails(c));
    EXPECT_GT(bits.elements, 0) << pair.key;
    EXPECT_EQ(bits.different, 0) << pair.key << " first at " << bits.first;
  }
}

Error refusal_of(const Case& c) {
  check_case(c);
  try {
    (void)execute(c);
  } catch (const Error& e) {
    return e;
  }
  return Error(Status::ok, "case", "", "", "was accepted", "");
}

/// scatter_pa_kv_cache of three tokens into a cache of 5 pages of 4 rows.
Case scatter(std::vector<std::int64_t> slots) {
  std::vector<float> key{1, 2, 3, 4, 5, 6}, value{7, 8, 9, 10, 11, 12}, key_cache(40), value_cache(40);
  for (std::size_t i = 0; i < 40; ++i) key_cache[i] = 100 + float(i), value_cache[i] = 200 + float(i);
  Case c;
  c.call = "dsakit.scatter_pa_kv_cache";
  c.attributes = {{"cache_mode", "Norm"}};
  c.tensors = {{"in.key", stored<float>({3, 1, 2}, key)},
               {"in.value", stored<float>({3, 1, 2}, value)},
               {"in.key_cache", stored<float>({5, 4, 1, 2}, key_cache)},
               {"in.value_cache", stored<float>({5, 4, 1, 2}, value_cache)},
               {"in.slot_mapping", stored<std::int64_t>({3}, slots)}};
  for (std::size_t t = 0; t < 3; ++t)
    for (std::size_t i = 0; i < 2 && slots[t] >= 0; ++i) {
      key_cache[std::size_t(slots[t]) * 2 + i] = key[t * 2 + i];
      value_cache[std::size_t(slots[t]) * 2 + i] = value[t * 2 + i];
    }
  c.tensors["after.key_cache"] = stored<float>({5, 4, 1, 2}, key_cache);
  c.tensors["after.value_cache"] = stored<float>({5, 4, 1, 2}, value_cache);
  return c;
}

TEST(Execute, ACaseHasTheBitsOfTheCallThatItIs) {
  PagedIndexer call;
  const Case c = call.as_case();
  expect_agrees(c);
  expect_agrees(c, {.reference = true});
  for (const std::string_view isa : supported_isas()) {
    Context context({.threads = 2, .isa = std::string(isa)});
    expect_agrees(c, {.context = &context});
  }
}

TEST(Execute, ADifferenceIsFound) {
  Case c = PagedIndexer().as_case();
  reinterpret_cast<std::int32_t*>(c.tensors["out.0"].bytes->data())[13] += 1;
  const Outcome outcome = execute(c);
  const std::vector<Pair> pairs = pairs_of(c, "out", outcome);
  ASSERT_EQ(pairs.size(), 1u);
  const Bits bits = compare_bits(pairs[0], false);
  EXPECT_EQ(bits.elements, 32);
  EXPECT_EQ(bits.different, 1);
  EXPECT_EQ(bits.first, 13);
}

TEST(Execute, PagesThatAreStoredAreEnough) {
  PagedIndexer call;
  for (std::vector<std::int64_t> kept :
       {std::vector<std::int64_t>{7, 2, 5, 0, 3}, {0, 2, 3, 5, 7}, {8, 7, 5, 3, 2, 0, 1}}) {
    const Case c = call.partly_stored(kept);
    expect_agrees(c);
    const Outcome outcome = execute(c);
    EXPECT_EQ(outcome.bound.pools.at("key"), (Integers{0, 2, 3, 5, 7}));
    EXPECT_EQ(outcome.bound.arguments.tensor("key").shape[0], 5);
    EXPECT_EQ(outcome.bound.arguments.tensor("key_dequant_scale").shape[0], 5) << "stored whole, of the same pages";
  }
  Case c = call.partly_stored({7, 2, 0, 3});
  c.name = "a.safetensors";
  EXPECT_STREQ(refusal_of(c).what(),
               "case: a.safetensors: page 5 of in.1 is not stored, wanted by block_table[0][2] (record with "
               "caches=\"whole\") [CASE_PAGES]");
}

TEST(Execute, TheEntriesThatACallLeavesAloneNeedNoPage) {
  PagedIndexer call;
  call.table[5] = 8;  // behind the length of sequence 1
  call.lengths_key = {17, 23};
  expect_agrees(call.partly_stored({7, 2, 0, 3}));
}

TEST(Execute, UpdatedCachesAreCopies) {
  const Case c = scatter({5, -1, 18});
  expect_agrees(c);
  expect_agrees(c);
  expect_agrees(c, {.reference = true});
}

TEST(Execute, UpdatedPagesOfPartlyStoredCaches) {
  const Case whole = scatter({5, -1, 18});
  Case c = whole;
  for (const char* key : {"in.key_cache", "in.value_cache", "after.key_cache", "after.value_cache"}) {
    const auto* all = reinterpret_cast<const float*>(whole.tensors.at(key).bytes->data());
    std::vector<float> rows(all + 8, all + 16);  // page 1, page 4
    rows.insert(rows.end(), all + 32, all + 40);
    c.tensors[key] = stored<float>({2, 4, 1, 2}, rows);
    c.layouts[key].pages = "pages.key_cache", c.layouts[key].full = Integers{5, 4, 1, 2};
  }
  c.tensors["pages.key_cache"] = stored<std::int64_t>({2}, {1, 4});
  expect_agrees(c);
  Case lacking = c;
  lacking.tensors["in.slot_mapping"] = stored<std::int64_t>({3}, {5, -1, 11});
  EXPECT_EQ(refusal_of(lacking).reason, "CASE_PAGES");
  Case changed = c;
  reinterpret_cast<float*>(changed.tensors["after.key_cache"].bytes->data())[3] += 1;
  const Outcome outcome = execute(c);
  const auto pairs = pairs_of(changed, "out", outcome);
  EXPECT_EQ(compare_bits(pairs[0], false).different, 1);
}

TEST(Execute, RefusedCallsAreRefusedAgain) {
  PagedIndexer call;
  Case c = call.as_case(), partly = call.partly_stored({7});
  for (Case* one : {&c, &partly}) {
    one->tensors.erase("out.0");
    reinterpret_cast<std::int32_t*>(one->tensors["in.block_table"].bytes->data())[1] = 9;
  }
  const Outcome outcome = execute(c);
  ASSERT_TRUE(outcome.refusal);
  EXPECT_EQ(outcome.refusal->status, Status::invalid_block);
  // Of a partly stored cache the sentence speaks of the full one.
  partly.set_refusal(outcome.refusal->what());
  const Outcome again = execute(partly);
  ASSERT_TRUE(again.refusal);
  EXPECT_STREQ(again.refusal->what(), outcome.refusal->what());
}

TEST(Execute, ViewsShareMemoryAndStridesCanBeRebuilt) {
  std::vector<float> x(24), gamma{1, 2, 3, 4};
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = float(i) - 5;
  Case c;
  c.call = "torch_npu.npu_rms_norm";
  c.tensors["in.gamma"] = stored<float>({4}, gamma);
  c.tensors["float.self"] = stored<float>({4, 6}, x);
  c.layouts["in.self"] = {.of = "float.self", .shape = Integers{4, 4}, .stride = Integers{6, 1}, .offset = 2};
  std::vector<float> y(16), rstd(4);
  Tensor columns = tensor(x.data() + 2, {4, 4});
  columns.stride[0] = 6;
  rms_norm({.self = columns, .gamma = tensor(gamma.data(), {4})},
           {.y = tensor(y.data(), {4, 4}), .rstd = tensor(rstd.data(), {4, 1})});
  c.tensors["out.0"] = stored<float>({4, 4}, y);
  c.tensors["out.rstd"] = stored<float>({4, 1}, rstd);
  expect_agrees(c);
  c.layouts.erase("in.self");
  c.tensors["in.self"] = Stored(columns);
  c.layouts["in.self"].stride = Integers{6, 1};
  expect_agrees(c);
  expect_agrees(c, {.strides = true});
  Outcome strided = execute(c, {.strides = true});
  EXPECT_EQ(strided.bound.arguments.tensor("self").stride[0], 6);
  EXPECT_EQ(execute(c).bound.arguments.tensor("self").stride[0], 4);
}

TEST(Execute, LengthsMayBeLists) {
  PagedIndexer call;
  Case c = call.as_case();
  c.tensors.erase("in.actual_seq_lengths_key");
  c.attributes["actual_seq_lengths_key"] = Integers{40, 23};
  c.tensors["in.actual_seq_lengths_query"] = stored<std::int64_t>({2}, {2, 4});
  expect_agrees(c);
  c.attributes["actual_seq_lengths_key"] = Integers{40, std::int64_t(1) << 40};
  const Outcome outcome = execute(c);
  ASSERT_TRUE(outcome.refusal);
  EXPECT_EQ(outcome.refusal->status, Status::invalid_seqlen);
}

TEST(Execute, TheFirstVersionOfAttentionHasOtherNames) {
  Random r(7);
  constexpr std::int64_t heads = 2, keys = 6, width = 16;
  Case second;
  second.call = "torch_npu.npu_fused_infer_attention_score_v2";
  second.attributes = {{"num_query_heads", heads}, {"softmax_scale", 0.25}, {"return_softmax_lse", true}};
  second.attributes["actual_seq_kvlen"] = Integers{5};
  const auto add = [&](const char* name, std::int64_t rows) {
    second.tensors[name] = stored<bf16>({1, rows, heads * width}, random_bf16(r, rows * heads * width));
  };
  add("in.query", 1), add("in.key", keys), add("in.value", keys);
  const Outcome outcome = execute(second, {.reference = true});
  ASSERT_FALSE(outcome.refusal) << outcome.refusal->what();
  Case first = second;
  first.call = "torch_npu.npu_fused_infer_attention_score";
  first.attributes = {{"num_heads", heads}, {"scale", 0.25}, {"softmax_lse_flag", true}};
  first.attributes["actual_seq_lengths_kv"] = Integers{5};
  first.tensors["in.key.0"] = first.tensors["in.key"], first.tensors.erase("in.key");
  for (const auto& [key, result] : outcome.results) first.tensors[key] = Stored(result.tensor);
  check_case(first);
  const Outcome again = execute(first, {.reference = true});
  ASSERT_FALSE(again.refusal) << again.refusal->what();
  const auto pairs = pairs_of(first, "out", again);
  EXPECT_EQ(pairs.size(), 2u);
  for (const Pair& pair : pairs) EXPECT_TRUE(compare_bits(pair, false).equal()) << pair.key;
  first.attributes["antiquant_scale"] = 1.0;
  EXPECT_THROW(check_case(first), Error);
}

TEST(Execute, NullIsTheDefaultAndASpellingHasItsOwn) {
  Case c = PagedIndexer().as_case();
  c.attributes["sparse_mode"] = Attribute{};
  c.attributes["query_dtype"] = Attribute{};
  expect_agrees(c);
  c.attributes["query_dtype"] = std::int64_t{1};
  EXPECT_EQ(execute(c).refusal->status, Status::unsupported);
  Case sparse;
  sparse.call = "torch.ops._C_ascend.npu_sparse_flash_attention";
  EXPECT_EQ(std::get<std::int64_t>(bind(sparse).arguments.at("attention_mode")), 2);
  Case scattered = scatter({0, 1, 2});
  scattered.attributes["cache_mode"] = Attribute{};
  expect_agrees(scattered);
}

TEST(Execute, RowsThatNobodyWritesAreLeftOut) {
  // gather_pa_kv_cache leaves what lies behind the rows alone: an argument that is updated, so it is compared whole.
  Case c = PagedIndexer().as_case();
  c.metadata["undefined"] = R"([["out.0",1,3]])";
  auto* out = reinterpret_cast<std::int32_t*>(c.tensors["out.0"].bytes->data());
  std::fill(out + 8, out + 24, 77);
  expect_agrees(c);
  out[24] += 1;
  const Outcome outcome = execute(c);
  EXPECT_EQ(compare_bits(pairs_of(c, "out", outcome)[0], false).different, 1);
}

TEST(Execute, NanIsEqualToNanUnlessItFails) {
  Case c;
  c.call = "dsakit.rms_norm";
  const float nan = std::nanf("1"), other = std::nanf("2");
  c.tensors = {{"in.self", stored<float>({1, 2}, {nan, 1})},
               {"in.gamma", stored<float>({2}, {1, 1})},
               {"out.y", stored<float>({1, 2}, {other, other})},
               {"out.rstd", stored<float>({1, 1}, {other})}};
  expect_agrees(c);
  c.metadata["nan"] = "fail";
  const Outcome outcome = execute(c);
  EXPECT_EQ(compare_bits(pairs_of(c, "out", outcome)[1], nan_fails(c)).different, 2);
}

}  // namespace
}  // namespace dsakit::debug
