// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <random>

#include "io/json.hpp"
#include "io/safetensors.hpp"
#include "io/test_folder.hpp"

namespace dsakit::io {
namespace {

/// "OK:<tensors>" or the reason, as expected.tsv says it; anything but INVALID_FILE is spelled out.
std::string answer(const std::string& path) {
  try {
    return "OK:" + std::to_string(SafetensorsFile(path).tensors().size());
  } catch (const Error& e) {
    if (e.status != Status::invalid_file) return e.what();
    const std::string sentence = e.what();
    EXPECT_EQ(sentence.substr(0, 6), "load: ");
    EXPECT_EQ(sentence.substr(sentence.size() - e.reason.size() - 2), "[" + e.reason + "]");
    EXPECT_EQ(
        std::count_if(sentence.begin(), sentence.end(), [](char c) { return static_cast<unsigned char>(c) < 32; }), 0);
    return e.reason;
  }
}

std::string file_of(const std::string& header, const std::string& data) {
  std::string file(8, '\0');
  for (int i = 0; i < 8; ++i) file[i] = static_cast<char>(header.size() >> 8 * i);
  return file + header + data;
}

/// How often each byte of a header may be looked at: three times to find faults, the keys once more to compare them;
/// then once for each of the levels around it, and once to be read.
constexpr std::uint64_t kMostVisits = 8;

TEST(Safetensors, CorpusIsAnsweredAsStated) {
  const TestFolder folder;
  const std::string generate =
      std::string(DSAKIT_PYTHON " " DSAKIT_SOURCE_DIR "/tests/corpus/make_bad_safetensors.py ") + folder.path() +
      " > /dev/null";
  ASSERT_EQ(std::system(generate.c_str()), 0);
  std::istringstream table(bytes_of(folder / "expected.tsv"));
  std::string line, name, bytes, expected;
  std::getline(table, line);
  int files = 0, refused = 0;
  for (; std::getline(table, name, '\t') && std::getline(table, bytes, '\t') && std::getline(table, expected);
       ++files) {
    const std::string path = folder / (name + ".safetensors");
    ASSERT_EQ(std::filesystem::file_size(path), std::stoull(bytes)) << name;
    const std::uint64_t before = json_bytes_visited();
    EXPECT_EQ(answer(path), expected) << name;
    EXPECT_LE(json_bytes_visited() - before, kMostVisits * std::stoull(bytes)) << name << " takes too much work";
    refused += expected.compare(0, 3, "OK:") != 0;
  }
  EXPECT_EQ(files, 87);
  EXPECT_EQ(refused, 79);
}

TEST(Safetensors, WorkGrowsWithTheHeader) {
  const TestFolder folder;
  double most = 0, least = 1e9;  // visits of a byte
  for (const int tensors : {10, 100, 1000, 10000}) {
    std::string header = "{";
    for (int i = tensors; i-- > 0;)
      header += "\"t" + std::to_string(100000 + i) + R"(":{"dtype":"U8","shape":[1,1],"data_offsets":[)" +
                std::to_string(i) + "," + std::to_string(i + 1) + "]}" + (i > 0 ? "," : "}");
    const std::string path = folder.write("many", file_of(header, std::string(std::size_t(tensors), 'x')));
    const std::uint64_t before = json_bytes_visited();
    EXPECT_EQ(answer(path), "OK:" + std::to_string(tensors));
    const double visits = double(json_bytes_visited() - before) / double(header.size());
    most = std::max(most, visits), least = std::min(least, visits);
  }
  EXPECT_LE(most, kMostVisits);
  EXPECT_LE(most, 1.05 * least);
}

TEST(Safetensors, SentenceNamesFileTensorGotAndWanted) {
  const TestFolder folder;
  const std::string header = R"({"w":{"dtype":"F8_E4M3","shape":[3, 4],"data_offsets":[0,11]}})";
  try {
    const SafetensorsFile file(folder.write("model-00003.safetensors", file_of(header, std::string(11, '\0'))));
    FAIL();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(),
                 "load: model-00003.safetensors: w spans 11 bytes, wanted 12 (F8_E4M3 [3, 4]) [SIZE_MISMATCH]");
  }
  const std::string name(500, 'n');
  try {
    const SafetensorsFile file(folder.write("x", file_of("{\"" + name + "\":1}", "")));
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.parameter, "x: " + name.substr(0, 120) + "...");
  }
}

TEST(Safetensors, WrittenIsRead) {
  const TestFolder folder;
  std::vector<float> a{1, 2, 3, 4, 5, 6};
  std::vector<std::int8_t> b{-1, 0, 1};
  bf16 scalar{0x3f80};
  Tensor point = tensor(&scalar, {});
  write_safetensors(folder / "x",
                    {{"a", tensor(a.data(), {2, 3})},
                     {"quote\" \\", tensor(b.data(), {3, 1})},
                     {"s", point},
                     {"none", tensor(a.data(), {0, 7})}},
                    {{"format", "pt"}, {"line", "one\ntwo"}});
  const SafetensorsFile file(folder / "x");
  ASSERT_EQ(file.tensors().size(), 4u);
  EXPECT_EQ(file.metadata(), (std::map<std::string, std::string>{{"format", "pt"}, {"line", "one\ntwo"}}));
  const FileTensor* t = file.find("a");
  ASSERT_TRUE(t);
  EXPECT_EQ(std::string(t->type->name) + shape_text(t->shape.data(), t->rank), "F32[2, 3]");
  const auto bytes = file.read(*t);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(bytes.data()) % 64, 0u);
  EXPECT_EQ(std::memcmp(bytes.data(), a.data(), bytes.size()), 0);
  ASSERT_TRUE(file.find("quote\" \\"));
  EXPECT_EQ(std::to_integer<int>(file.read(*file.find("quote\" \\"))[0]), 255);
  EXPECT_EQ(file.find("s")->rank, 0);
  EXPECT_EQ(file.read(*file.find("none")).size(), 0u);
  EXPECT_FALSE(file.find("b"));
}

TEST(Safetensors, WhatCannotBeWritten) {
  const TestFolder folder;
  std::vector<float> a(6);
  Tensor transposed = tensor(a.data(), {2, 3});
  transposed.stride = {1, 2};
  EXPECT_THROW(write_safetensors(folder / "x", {{"a", transposed}}), Error);
  EXPECT_THROW(write_safetensors(folder / "x", {{"a", Tensor{}}}), Error);
  EXPECT_FALSE(std::filesystem::exists(folder / "x"));
  EXPECT_THROW(write_safetensors(folder / "missing/x", {{"a", tensor(a.data(), {6})}}), Error);
}

TEST(Safetensors, UnusualDtypesAreBytes) {
  const TestFolder folder;
  const SafetensorsFile file(
      folder.write("x", file_of(R"({"a":{"dtype":"F4","shape":[4],"data_offsets":[0,2]}})", "ab")));
  EXPECT_EQ(file.find("a")->type->dtype, DType::other);
  EXPECT_EQ(std::to_integer<char>(file.read(*file.find("a"))[1]), 'b');
}

TEST(Safetensors, NotAFile) {
  const TestFolder folder;
  ASSERT_EQ(::mkfifo((folder / "fifo").c_str(), 0600), 0);
  for (const std::string& path :
       {folder / "fifo", folder.path(), folder / "missing", std::string("/dev/zero"), std::string()})
    expect_refusal(Status::io_error, {}, [&] { SafetensorsFile{path}; });
  expect_refusal(Status::invalid_path, {"NUL"}, [&] { SafetensorsFile{std::string("a\0b", 3)}; });
}

TEST(Safetensors, FileThatChangesIsAnError) {
  const TestFolder folder;
  std::vector<float> a(5000);
  for (const int change : {-1, -20000, -20072, +1}) {
    write_safetensors(folder / "x", {{"a", tensor(a.data(), {5000})}});
    const auto size = std::filesystem::file_size(folder / "x");
    const SafetensorsFile file(folder / "x");
    std::filesystem::resize_file(folder / "x", size + change);
    expect_refusal(Status::io_error, {"when opened"}, [&] { file.read(file.tensors()[0]); });
  }
}

TEST(Safetensors, MemoryLimitIsAskedFirst) {
  const TestFolder folder;
  std::vector<float> a(100);
  write_safetensors(folder / "x", {{"a", tensor(a.data(), {50})}, {"b", tensor(a.data(), {50})}});
  const SafetensorsFile file(folder / "x");
  ::setenv("DSAKIT_MEM_LIMIT", "300", 1);
  EXPECT_EQ(file.read(*file.find("a")).size(), 200u);
  expect_refusal(Status::out_of_memory, {"400", "at most 300"}, [&] { file.require_memory_for_all(); });
  ::setenv("DSAKIT_MEM_LIMIT", "100", 1);
  expect_refusal(Status::out_of_memory, {"200", "at most 100"}, [&] { file.read(*file.find("a")); });
  ::setenv("DSAKIT_MEM_LIMIT", "nonsense", 1);
  EXPECT_NO_THROW(file.require_memory_for_all());
  ::unsetenv("DSAKIT_MEM_LIMIT");
}

// Files with a few bytes changed: the answer is that of the corpus generator, an independent reader, and what is
// accepted can be read to its last byte.
TEST(Safetensors, DamagedFilesAreAnsweredLikeTheGeneratorDoes) {
  const TestFolder folder;
  std::vector<float> a(12);
  write_safetensors(folder / "whole",
                    {{"layer.weight", tensor(a.data(), {3, 4})},
                     {"b\xc3\xa9", tensor(a.data(), {0})},
                     {"layer.weights", tensor(a.data(), {2, 3})}},
                    {{"format", "pt"}});
  const std::string whole = bytes_of(folder / "whole");
  const std::size_t header = whole.size() - 72;
  std::vector<std::string> damaged;
  for (std::size_t n = 0; n <= whole.size(); ++n) damaged.push_back(whole.substr(0, n));
  static constexpr char kGrammar[] = "{}[]\",:\\u0123456789-+eE.tfn \x00\xff\xed\xc0";
  std::mt19937 random(20);
  for (int i = 0; i < 1500; ++i) {
    std::string bytes = whole;
    for (unsigned changes = 1 + random() % 3; changes-- > 0;) {
      const std::size_t at = random() % header;
      const char c =
          random() % 2 ? kGrammar[random() % (sizeof kGrammar - 1)] : static_cast<char>(bytes[at] ^ 1 << random() % 8);
      if (at < 8 || random() % 2) bytes[at] = c;
      else bytes.insert(at, 1, c), ++bytes[0];  // the length word grows with it
    }
    damaged.push_back(std::move(bytes));
  }
  static constexpr const char* kPieces[] = {"\"a\":{\"dtype\":\"I8\",\"shape\":",
                                            "[2]",
                                            "[0]",
                                            "[1,2]",
                                            ",\"data_offsets\":",
                                            "[0,2]",
                                            "[2,0]",
                                            "[2,2]",
                                            "}",
                                            "},",
                                            "\"b\":{\"data_offsets\":[0,0],\"shape\":[0],\"dtype\":\"BF16\"}",
                                            ",",
                                            "null",
                                            "\"__metadata__\":{}",
                                            "\"\\ud83d\\ude00\":",
                                            "\"\\ud800\":"};
  for (int i = 0; i < 1500; ++i) {
    std::string text = "{";
    for (unsigned n = random() % 3; n-- > 0;) text += kPieces[random() % std::size(kPieces)];
    if (random() % 4)
      text += kPieces[0], text += kPieces[1 + random() % 3], text += kPieces[4], text += kPieces[5 + random() % 3];
    for (unsigned n = random() % 3; n-- > 0;) text += kPieces[8 + random() % (std::size(kPieces) - 8)];
    damaged.push_back(file_of(text + "}", std::string(random() % 4, '\0')));
  }
  std::string command = "cd " + folder.path() +
                        " && " DSAKIT_PYTHON " " DSAKIT_SOURCE_DIR "/tests/corpus/make_bad_safetensors.py --check";
  for (std::size_t i = 0; i < damaged.size(); ++i) {
    folder.write(std::to_string(i), damaged[i]);
    command += " " + std::to_string(i);
  }
  ASSERT_EQ(std::system((command + " > answers").c_str()), 0);
  std::istringstream answers(bytes_of(folder / "answers"));
  std::string name, expected;
  std::map<std::string, int> seen;
  while (std::getline(answers, name, '\t') && std::getline(answers, expected)) {
    EXPECT_EQ(answer(folder / name), expected) << damaged[std::stoul(name)];
    ++seen[expected];
    if (expected.compare(0, 3, "OK:") != 0) continue;
    const SafetensorsFile file(folder / name);
    for (const FileTensor& t : file.tensors()) EXPECT_EQ(file.read(t).size(), t.bytes());
  }
  EXPECT_GE(seen.size(), 15u) << "the damage is not varied enough";
}

}  // namespace
}  // namespace dsakit::io
