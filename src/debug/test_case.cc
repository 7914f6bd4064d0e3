// SPDX-License-Identifier: Apache-2.0
#include "debug/case.hpp"

#include <gtest/gtest.h>

#include "debug/spelling.hpp"
#include "debug/test_cases.hpp"
#include "dsakit/error.hpp"
#include "io/test_folder.hpp"

namespace dsakit::debug {
namespace {

using Change = std::function<void(Case&)>;

/// The Error that `f` throws.
template <class F>
std::optional<Error> error_of(F f) {
  try {
    f();
  } catch (const Error& e) {
    return e;
  }
  return {};
}

void expect_refused(const char* reason, const std::string& part, const Change& change) {
  Case c = PagedIndexer().as_case();
  c.name = "a.safetensors";
  change(c);
  const auto e = error_of([&] { check_case(c); });
  ASSERT_TRUE(e) << reason << ": accepted";
  EXPECT_EQ(e->status, Status::invalid_file) << e->what();
  EXPECT_EQ(e->reason, reason) << e->what();
  EXPECT_NE(std::string(e->what()).find(part), std::string::npos) << e->what() << "\nlacks " << part;
  EXPECT_EQ(std::string(e->what()).find("case: a.safetensors: "), 0u) << e->what();
}

/// What reading a file with this metadata says.
Error refusal_of_metadata(const std::map<std::string, std::string>& metadata) {
  const io::TestFolder folder;
  io::write_safetensors(folder / "m.safetensors", {}, metadata);
  const auto e = error_of([&] { (void)read_case(folder / "m.safetensors"); });
  return e ? *e : Error(Status::ok, "case", "", "", "was accepted", "");
}

std::string twice(const Case& c) {
  const io::TestFolder folder;
  write_case(c, folder / "first.safetensors");
  write_case(read_case(folder / "first.safetensors"), folder / "second.safetensors");
  const std::string first = io::bytes_of(folder / "first.safetensors");
  EXPECT_EQ(first, io::bytes_of(folder / "second.safetensors"));
  EXPECT_EQ(first.size(), bytes_of(c));
  return first;
}

/// Every tensor that an operator takes and gives, two elements each.
Case every_tensor(const std::string& spelling, const Operator& op) {
  Case c;
  c.call = spelling;
  for (const Parameter& p : op.parameters) {
    const std::string name = std::string(p.field.name) + (p.list ? ".0" : "");
    const bool attribute = p.field.role == Role::attribute;
    if (!p.field.has_member()) continue;
    if (!attribute) c.tensors[(p.field.role == Role::out ? "out." : "in.") + name] = stored<float>({1, 2}, {1, 2});
    if (p.field.role == Role::inout || p.field.role == Role::inout_opt)
      c.tensors["after." + name] = stored<float>({1, 2}, {3, 4});
    if (!attribute) continue;
    if (p.field.kind == Kind::axes) c.attributes[name] = std::vector<std::int64_t>{1, 0, INT64_MIN};
    else if (p.field.dtypes.starts_with("int")) c.attributes[name] = INT64_MAX;
    else if (p.field.dtypes.starts_with("float")) c.attributes[name] = 0.1;
    else if (p.field.dtypes.starts_with("bool")) c.attributes[name] = true;
    else c.attributes[name] = "a \"word\"\n";
  }
  return c;
}

TEST(CaseFile, EverySpellingIsWrittenReadAndWrittenTheSame) {
  std::set<const Operator*> seen;
  for (const auto& [spelling, op] : spellings()) {
    SCOPED_TRACE(spelling);
    EXPECT_EQ(find_spelling(spelling), op);
    twice(every_tensor(spelling, *op));
    seen.insert(op);
  }
  EXPECT_EQ(seen.size(), operators().size());
  for (const char* wrong :
       {"torch_npu.npu_quantise", "quantize", "dsakit.", "torch.ops._C_ascend.npu_quant_lightning_indexer"})
    EXPECT_EQ(find_spelling(wrong), nullptr) << wrong;
}

TEST(CaseFile, EveryFieldOfALayoutIsKept) {
  Case c = PagedIndexer().partly_stored({7, 2, 5, 0, 3});
  c.layouts["in.weights"].stride = std::vector<std::int64_t>{8, 1};
  c.layouts["in.query"].npu_format = "FRACTAL_ND";
  c.layouts["in.query"].format = "ND";
  c.tensors.erase("in.query_dequant_scale");
  c.layouts["in.query_dequant_scale"] = {.format = "",
                                         .of = "in.weights",
                                         .shape = std::vector<std::int64_t>{4, 3},
                                         .stride = std::vector<std::int64_t>{4, 1},
                                         .offset = 1};
  c.layouts["in.key_dequant_scale"].npu_format = std::int64_t{29};
  c.tensors["tap.3.query_norm"] = stored<std::int8_t>({2}, {1, 2});
  c.tensors["float.query"] = stored<float>({2}, {1, 2});
  c.layouts["tap.3.query_norm"].dtype = "float8_e4m3fn";
  c.metadata["where"] = R"({"step":3,"layer":1})";
  c.set_refusal("quantize: input \"x\" is missing");
  const std::string bytes = twice(c);
  for (const char* field : {"npu_format", "stride", "offset", "pages", "full", "dtype", "where", "status"})
    EXPECT_NE(bytes.find(field), std::string::npos) << field;
}

TEST(CaseFile, AttributesAreExact) {
  const io::TestFolder folder;
  for (const Attribute& value : {Attribute(INT64_MIN), Attribute(INT64_MAX), Attribute(std::int64_t{0})}) {
    Case c = PagedIndexer().as_case();
    c.attributes["pre_tokens"] = value;
    write_case(c, folder / "c");
    EXPECT_EQ(read_case(folder / "c").attributes["pre_tokens"], value);
  }
  Case rope;
  rope.call = "dsakit.rms_norm";
  rope.tensors["in.self"] = rope.tensors["in.gamma"] = stored<float>({2}, {1, 2});
  for (const double value : {0.1, 1e-300, -0.0, 5e-324, 1e22}) {
    rope.attributes["epsilon"] = value;
    write_case(rope, folder / "c");
    const Attribute read = read_case(folder / "c").attributes["epsilon"];
    ASSERT_TRUE(std::holds_alternative<double>(read)) << value;
    EXPECT_EQ(std::get<double>(read), value);
    EXPECT_EQ(std::signbit(std::get<double>(read)), std::signbit(value));
  }
}

TEST(CaseFile, WhatTheMetadataLacksIsRefused) {
  const auto reason = [](const std::map<std::string, std::string>& m) { return refusal_of_metadata(m).reason; };
  EXPECT_EQ(reason({{"format", "pt"}}), "NO_CASE");
  EXPECT_EQ(reason({{"dsakit.case", "2"}, {"call", "dsakit.quantize"}, {"attributes", "{}"}}), "CASE_VERSION");
  EXPECT_EQ(reason({{"dsakit.case", "1"}, {"attributes", "{}"}}), "CASE_CALL");
  EXPECT_EQ(reason({{"dsakit.case", "1"}, {"call", "torch_npu.npu_quantise"}, {"attributes", "{}"}}), "CASE_CALL");
  const auto with = [&](const std::string& key, const std::string& value) {
    std::map<std::string, std::string> m{{"dsakit.case", "1"}, {"call", "dsakit.quantize"}, {"attributes", "{}"}};
    m[key] = value;
    return reason(m);
  };
  for (const char* text :
       {"", "[]", "{\"axis\":1,\"axis\":2}", "{\"axis\":NaN}", "{'axis':1}", "{\"axis\":01}", "{} {}"})
    EXPECT_EQ(with("attributes", text), "CASE_JSON") << text;
  for (const char* key : {"where", "status", "recipe", "undefined", "layouts"})
    EXPECT_EQ(with(key, "{"), "CASE_JSON") << key;
  for (const char* value : {"1.5", "\"1\"", "true", "9223372036854775808", "1e400", "[1]", "{\"a\":1}", "[1.5]"})
    EXPECT_EQ(with("attributes", std::string("{\"axis\":") + value + "}"), "CASE_VALUE") << value;
  for (const char* layout : {"[]", "{\"strides\":[1]}", "{\"stride\":[-1]}", "{\"offset\":1.5}", "{\"of\":3}",
                             "{\"shape\":[1,1,1,1,1,1,1,1,1]}"})
    EXPECT_EQ(with("layouts", std::string("{\"in.input\":") + layout + "}"), "CASE_LAYOUT") << layout;
  const std::string sentence = refusal_of_metadata({{"dsakit.case", "1"}, {"call", "torch_npu.npu_quantise"}}).what();
  EXPECT_EQ(sentence,
            "case: m.safetensors: call is \"torch_npu.npu_quantise\", wanted the name of an operator (nearest: "
            "torch_npu.npu_quantize) [CASE_CALL]");
}

TEST(CaseFile, NamesAreKnownAndComeOnce) {
  expect_refused("CASE_NAME", "in.querry is no tensor of quant_lightning_indexer, wanted query, key,",
                 [](Case& c) { c.tensors["in.querry"] = c.tensors["in.query"]; });
  for (const char* key :
       {"query", "input.query", "in.", "in.query.0", "in.99", "in.-1", "out.query", "out.1", "after.sparse_count"})
    expect_refused("CASE_NAME", key, [=](Case& c) { c.tensors[key] = c.tensors["in.query"]; });
  expect_refused("CASE_NAME", "attribute sparse_counts",
                 [](Case& c) { c.attributes["sparse_counts"] = std::int64_t{1}; });
  expect_refused("CASE_TWICE", "in.query is also in.0", [](Case& c) { c.tensors["in.0"] = c.tensors["in.query"]; });
  expect_refused("CASE_TWICE", "out.sparse_indices is also out.0",
                 [](Case& c) { c.tensors["out.sparse_indices"] = c.tensors["out.0"]; });
  expect_refused("CASE_TWICE", "actual_seq_lengths_key", [](Case& c) {
    c.attributes["actual_seq_lengths_key"] = std::vector<std::int64_t>{40, 23};
  });
  expect_refused("CASE_VALUE", "attribute sparse_count is 8.5, wanted an integer",
                 [](Case& c) { c.attributes["sparse_count"] = 8.5; });
  expect_refused("CASE_VALUE", "wanted a tensor, or null",
                 [](Case& c) { c.tensors.erase("in.block_table"), c.attributes["block_table"] = std::int64_t{3}; });
  expect_refused("CASE_MISSING", "in.query is missing", [](Case& c) { c.tensors.erase("in.query"); });
}

TEST(CaseFile, ARefusedCallMayLackWhatItWasRefusedFor) {
  Case c = PagedIndexer().as_case();
  c.tensors.erase("in.query");
  c.set_refusal("quant_lightning_indexer: query is missing, wanted a tensor");
  EXPECT_NO_THROW(check_case(c));
  EXPECT_EQ(*c.refusal(), "quant_lightning_indexer: query is missing, wanted a tensor");
}

TEST(CaseFile, ALayoutFitsItsTensor) {
  const auto refused = [](const std::string& part, const Change& change) {
    expect_refused("CASE_LAYOUT", part, change);
  };
  refused("leads to element 16", [](Case& c) {
    c.tensors.erase("in.query_dequant_scale");
    c.layouts["in.query_dequant_scale"] = {
        .format = "", .of = "in.weights", .shape = std::vector<std::int64_t>{4, 4}, .offset = 1};
  });
  refused("leads to element", [](Case& c) {
    c.tensors.erase("in.query_dequant_scale");
    c.layouts["in.query_dequant_scale"] = {
        .format = "", .of = "in.weights", .shape = std::vector<std::int64_t>{INT64_MAX, INT64_MAX}};
  });
  refused("is a view of itself", [](Case& c) {
    c.tensors.erase("in.weights"), c.tensors.erase("in.query_dequant_scale");
    c.layouts["in.weights"].of = "in.query_dequant_scale", c.layouts["in.query_dequant_scale"].of = "in.weights";
  });
  refused("is a view and stored too", [](Case& c) { c.layouts["in.weights"].of = "in.query"; });
  refused("is a view of in.key",
          [](Case& c) { c.layouts["in.block_table"].of = "in.key", c.tensors.erase("in.block_table"); });
  refused("belongs to no tensor",
          [](Case& c) { c.tensors.erase("in.weights"), c.layouts["in.weights"].npu_format = "ND"; });
  refused("FRACTAL_NZ of [33, 16]", [](Case& c) {
    c.layouts["in.query"].format = "NZ", c.layouts["in.query"].shape = std::vector<std::int64_t>{33, 16};
  });
  refused("has format NX", [](Case& c) { c.layouts["in.query"].format = "NX"; });
  refused("has stride [1]", [](Case& c) { c.layouts["in.query"].stride = std::vector<std::int64_t>{1}; });
  refused("has dtype float32", [](Case& c) { c.layouts["in.query"].dtype = "float32"; });
  refused("has its pages in pages.key", [](Case& c) {
    c.layouts["in.1"].pages = "pages.key", c.layouts["in.1"].full = std::vector<std::int64_t>{9, 16, 1, 32};
  });
  const auto paged = [](const std::string& part, std::vector<std::int64_t> kept, std::vector<std::int64_t> full) {
    Case c = PagedIndexer().partly_stored({7, 2});
    c.tensors["pages.1"] = stored<std::int64_t>({std::int64_t(kept.size())}, kept);
    c.layouts["in.1"].full = full;
    const auto e = error_of([&] { check_case(c); });
    ASSERT_TRUE(e) << part;
    EXPECT_EQ(e->reason, "CASE_LAYOUT");
    EXPECT_NE(std::string(e->what()).find(part), std::string::npos) << e->what();
  };
  paged("has page 9, wanted each page once, 0..8", {7, 9}, {9, 16, 1, 32});
  paged("has page 7", {7, 7}, {9, 16, 1, 32});
  paged("has page -1", {7, -1}, {9, 16, 1, 32});
  paged("has 3 pages", {7, 2, 1}, {9, 16, 1, 32});
  paged("has the full shape [9, 16, 1, 31]", {7, 2}, {9, 16, 1, 31});
}

TEST(CaseFile, AFileBesideIsTheOneThatWasRecorded) {
  const io::TestFolder folder;
  Case c = PagedIndexer().as_case();
  c.layouts["in.weights"].file = "weights.safetensors";
  write_case(c, folder / "c.safetensors");
  const auto reason = [&] {
    const auto e = error_of([&] { (void)read_case(folder / "c.safetensors"); });
    return e ? e->reason : "";
  };
  EXPECT_EQ(reason(), "CASE_FILE");
  const Tensor weights = c.tensors["in.weights"].tensor();
  io::write_safetensors(folder / "weights.safetensors", {{"w", weights}});
  EXPECT_EQ(reason(), "");
  io::write_safetensors(folder / "weights.safetensors", {{"w", weights}, {"v", weights}});
  EXPECT_EQ(reason(), "CASE_FILE");
  for (const char* name : {"../weights.safetensors", "/etc/passwd", "..", "a/b"}) {
    c.layouts["in.weights"].file = name;
    write_case(c, folder / "c.safetensors");
    EXPECT_EQ(reason(), "CASE_FILE") << name;
  }
}

TEST(CaseFile, DamagedFilesAreRefusedOrRead) {
  const io::TestFolder folder;
  write_case(PagedIndexer().partly_stored({7, 2, 5, 0, 3}), folder / "good");
  const std::string good = io::bytes_of(folder / "good");
  const std::size_t header =
      8 + std::size_t(static_cast<unsigned char>(good[0])) + 256 * std::size_t(static_cast<unsigned char>(good[1]));
  Random random(11);
  int refused = 0;
  for (int i = 0; i < 500; ++i) {
    std::string bad = good;
    for (std::int64_t n = 1 + random.below(3); n > 0; --n)
      bad[std::size_t(random.below(std::int64_t(header)))] = char(random.next());
    folder.write("bad", bad);
    refused += error_of([&] { (void)read_case(folder / "bad"); }).has_value();
  }
  EXPECT_GT(refused, 250);
}

}  // namespace
}  // namespace dsakit::debug
