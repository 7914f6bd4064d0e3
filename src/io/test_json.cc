// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "io/json.hpp"

namespace dsakit::io {
namespace {

int kind_of(std::string_view text, int depth = 8) {
  const auto fault = find_json_fault(text, depth);
  return fault ? fault->kind : -1;
}

TEST(Json, Faults) {
  for (const char* good : {"{}", " [1, -2.5e+3, 0, \"\", true,false,null]\n", "\"\\u00e9\\ud83d\\ude00\\\"\"", "7",
                           "{\"a\":{\"b\":[[]]},\"b\":1}", "[1e999]"})
    EXPECT_EQ(kind_of(good), -1) << good;
  for (const char* bad : {"",
                          " ",
                          "{",
                          "[1,]",
                          "{\"a\":1,}",
                          "{\"a\"}",
                          "{a:1}",
                          "[01]",
                          "[1.]",
                          "[.5]",
                          "[+1]",
                          "[-]",
                          "[1e]",
                          "NaN",
                          "[tru]",
                          "\"\\x\"",
                          "\"\\u12g4\"",
                          "\"\\ud800\"",
                          "\"\\ud800\\u0041\"",
                          "\"\\udc00\"",
                          "\"",
                          "\"\\",
                          "\"a\nb\"",
                          "{} {}",
                          "[1]]",
                          "/**/1",
                          "\xef\xbb\xbf{}"})
    EXPECT_EQ(kind_of(bad), JsonFault::syntax) << bad;
  EXPECT_EQ(kind_of(std::string_view("{}\0", 3)), JsonFault::syntax);
  for (const char* bad :
       {"\"\xff\"", "\"\xc0\xaf\"", "\"\xed\xa0\x80\"", "\"\xf4\x90\x80\x80\"", "\"\xe2\x82\"", "\x80"})
    EXPECT_EQ(kind_of(bad), JsonFault::encoding) << bad;
  EXPECT_EQ(kind_of("[[[]]]", 2), JsonFault::depth);
  EXPECT_EQ(kind_of("[[\"[[[\"]]", 2), -1);
  EXPECT_EQ(kind_of(std::string(10'000'000, '['), 64), JsonFault::depth);
}

TEST(Json, DuplicateKeys) {
  EXPECT_EQ(kind_of(R"({"a":1,"b":2,"a":3})"), JsonFault::duplicate);
  EXPECT_EQ(kind_of(R"({"a":1,"\u0061":3})"), JsonFault::duplicate);
  EXPECT_EQ(kind_of(R"([{"x":{"a":1,"a":2}}])"), JsonFault::duplicate);
  EXPECT_EQ(kind_of(R"({"a":{"a":1},"b":{"a":1}})"), -1);
  std::string many = "{";
  for (int i = 0; i < 100000; ++i) many += "\"k" + std::to_string(i) + "\":0,";
  EXPECT_EQ(kind_of(many + "\"\":0}"), -1);
  EXPECT_EQ(kind_of(many + "\"k77777\":0}"), JsonFault::duplicate);
}

TEST(Json, Values) {
  const std::string text =
      R"( {"a" : [ 1 ,[], {"x":"y]"} ] , "b\n" : -2.5e1,"c":true, "e":{}, "d":"\ud83d\ude00\u00e9\/"} )";
  ASSERT_FALSE(find_json_fault(text, 8));
  std::map<std::string, std::string> members;
  Json(text).members([&](const std::string& key, const Json& value) { members[key] = value.text(); });
  EXPECT_EQ(members, (std::map<std::string, std::string>{{"a", R"([ 1 ,[], {"x":"y]"} ])"},
                                                         {"b\n", "-2.5e1"},
                                                         {"c", "true"},
                                                         {"e", "{}"},
                                                         {"d", R"("\ud83d\ude00\u00e9\/")"}}));
  std::vector<std::string> items;
  Json(members["a"]).items([&](const Json& value) { items.emplace_back(value.text()); });
  EXPECT_EQ(items, (std::vector<std::string>{"1", "[]", R"({"x":"y]"})"}));
  EXPECT_EQ(Json(members["d"]).string(), "\xf0\x9f\x98\x80\xc3\xa9/");
  EXPECT_EQ(Json(members["b\n"]).number(), -25.0);
  EXPECT_EQ(Json("1e999").number(), std::nullopt);
  EXPECT_EQ(Json("true").boolean(), true);
  EXPECT_EQ(Json("1").boolean(), std::nullopt);
  EXPECT_EQ(Json("9223372036854775807").plain_integer(), INT64_MAX);
  for (const char* not_plain : {"9223372036854775808", "1.0", "1e0", "-0", "-1", "true", "\"1\""})
    EXPECT_EQ(Json(not_plain).plain_integer(), std::nullopt) << not_plain;
}

TEST(Json, TextForMessages) {
  EXPECT_EQ(printable(std::string_view("a\0\n\x7f\xc2\x85\xff\xc3\xa9", 9)),
            "a\\u0000\\u000a\\u007f\\u0085\\xff\xc3\xa9");
  EXPECT_EQ(printable("\xc2\xa0\xc2\xad\xe2\x80\xa8\xe2\x80\xae\xee\x80\x80\xef\xbb\xbf\xf3\xb0\x80\x80\xf0\x9f\xbf\xbe"),
            "\\u00a0\\u00ad\\u2028\\u202e\\ue000\\ufeff\\uf0000\\u1fffe");
  for (const char* seen : {" ~", "\xc2\xa1", "\xe4\xb8\xad\xe6\x96\x87", "\xf0\x9f\x98\x80", "\xef\xbf\xbd", "\xe2\x82\xac"})
    EXPECT_EQ(printable(seen), seen);
  EXPECT_EQ(printable(std::string(120, 'x')), std::string(120, 'x'));
  EXPECT_EQ(printable(std::string(121, 'x')), std::string(120, 'x') + "...");
  EXPECT_EQ(json_quoted("a\"\\\n"), "\"a\\\"\\\\\\u000a\"");
}

// nlohmann-json accepts and refuses the same texts (it also takes duplicate keys and NULs at the end, and no number
// beyond a double: not generated).
TEST(Json, AgreesWithAnotherParser) {
  static constexpr const char* kPieces[] = {"{",
                                            "}",
                                            "[",
                                            "]",
                                            ",",
                                            ":",
                                            "\"a\"",
                                            "\"b\"",
                                            "\"\\u0041\\n\"",
                                            "\"\\ud83d\\ude00\"",
                                            "\"\\ud83d\"",
                                            "1",
                                            "-0.5e-2",
                                            "01",
                                            "1.",
                                            "true",
                                            "null",
                                            "nul",
                                            " ",
                                            "\"\xc3\xa9\"",
                                            "\"\xc3\"",
                                            "\"\\q\""};
  std::mt19937 random(3);
  int accepted = 0;
  for (int i = 0; i < 200000; ++i) {
    std::string text;
    for (unsigned n = 1 + random() % 7; n-- > 0;) text += kPieces[random() % std::size(kPieces)];
    const int kind = kind_of(text, 16);
    if (kind == JsonFault::duplicate) continue;
    ASSERT_EQ(kind == -1, nlohmann::json::accept(text)) << text;
    accepted += kind == -1;
  }
  EXPECT_GT(accepted, 5000);
}

}  // namespace
}  // namespace dsakit::io
