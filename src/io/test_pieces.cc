// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <filesystem>

#include "io/checkpoint.hpp"
#include "io/file.hpp"
#include "io/test_folder.hpp"
#include "io/test_model.hpp"

namespace dsakit::io {
namespace {

/// "abcdefghij" of which bytes 2 and 3 have not been fetched.
class Pieces : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directory(folder / "x.parts");
    folder.write("x.parts/0-2", "ab");
    folder.write("x.parts/4-7", "efg");
    folder.write("x.parts/5-10", "fghij");
    folder.write("x.parts/7-9.incomplete", "h");
    folder.write("x.parts/notes", "");
  }
  TestFolder folder;
};

TEST_F(Pieces, AreReadAsOneFile) {
  const File file(folder / "x");
  EXPECT_TRUE(file.is_in_pieces());
  EXPECT_EQ(file.size(), 10u);
  EXPECT_EQ(file.name(), "x");
  std::string text(6, '?');
  file.read(4, text.data(), 6);
  EXPECT_EQ(text, "efghij");
  EXPECT_TRUE(file.has(0, 2) && file.has(4, 6) && file.has(3, 0));
  EXPECT_FALSE(file.has(0, 3) || file.has(3, 1) || file.has(2, 8) || file.has(9, 2));
}

TEST_F(Pieces, WhatIsLackingIsNamed) {
  const File file(folder / "x");
  char bytes[10];
  expect_refusal(Status::io_error, {"x lacks byte 2, wanted a piece that has it"}, [&] { file.read(0, bytes, 10); });
}

TEST_F(Pieces, AreAsLongAsTheyAreNamed) {
  folder.write("x.parts/10-13", "kl");
  expect_refusal(Status::invalid_file, {"x.parts/10-13 has 2 bytes, wanted 3 (its name)"}, [&] { File(folder / "x"); });
}

TEST_F(Pieces, AFileWinsOverItsPieces) {
  folder.write("x", "whole");
  EXPECT_FALSE(File(folder / "x").is_in_pieces());
  EXPECT_EQ(File(folder / "x").size(), 5u);
  EXPECT_TRUE(file_exists(folder / "x") && !file_exists(folder / "y"));
}

/// Two shards, the second of which may be elsewhere.
class HalfACheckpoint : public testing::Test {
 protected:
  void SetUp() override {
    folder.write("config.json", config_text({}));
    write_safetensors(folder / "one.safetensors", {{"a", tensor(data, {2})}, {"b", tensor(data, {3})}});
    folder.write("model.safetensors.index.json",
                 R"({"weight_map":{"a":"one.safetensors","b":"one.safetensors","c":"two.safetensors"}})");
  }
  TestFolder folder;
  const float data[3] = {1, 2, 3};
};

TEST_F(HalfACheckpoint, IsReadWhereThatIsAskedFor) {
  expect_refusal(Status::io_error, {"two.safetensors cannot be opened"}, [&] { Checkpoint{folder.path()}; });
  const Checkpoint checkpoint(folder.path(), {.shards_may_be_absent = true});
  EXPECT_EQ(checkpoint.load_vector_f32("b", 3)[2], 3);
  EXPECT_FALSE(checkpoint.has("c"));
  expect_refusal(Status::missing_tensor, {"c is missing", "[5]", "in two.safetensors, which is not here"},
                 [&] { checkpoint.load_vector_f32("c", 5); });
}

TEST_F(HalfACheckpoint, TheOnlyFileMayBeAbsentToo) {
  std::filesystem::remove(folder / "model.safetensors.index.json");
  const Checkpoint checkpoint(folder.path(), {.shards_may_be_absent = true});
  EXPECT_FALSE(checkpoint.has("b"));
  expect_refusal(Status::missing_tensor, {"b is missing", "[3]", "in model.safetensors, which is not here"},
                 [&] { checkpoint.load_vector_f32("b", 3); });
}

TEST_F(HalfACheckpoint, ReadsShardsInPieces) {
  const std::string whole = bytes_of(folder / "one.safetensors");
  const SafetensorsFile file(folder / "one.safetensors");
  const std::size_t begin = file.data_start(), cut = begin + file.find("b")->begin;
  std::filesystem::remove(folder / "one.safetensors");
  std::filesystem::create_directory(folder / "one.safetensors.parts");
  const auto piece = [&](std::size_t from, std::size_t to) {
    folder.write("one.safetensors.parts/" + std::to_string(from) + "-" + std::to_string(to),
                 whole.substr(from, to - from));
  };
  piece(0, 8);
  const auto open = [&] { return Checkpoint(folder.path(), {.shards_may_be_absent = true}); };
  expect_refusal(Status::io_error, {"one.safetensors lacks byte 8"}, [&] { open(); });
  piece(8, begin);
  piece(cut, whole.size());
  const Checkpoint checkpoint = open();
  EXPECT_EQ(checkpoint.load_vector_f32("b", 3)[0], 1);
  const std::string lacks = "lacks byte " + std::to_string(begin);
  expect_refusal(Status::io_error, {lacks.c_str()}, [&] { checkpoint.load_vector_f32("a", 2); });
}

TEST_F(HalfACheckpoint, BytesBehindTheLastTensorAreRefusedInPiecesToo) {
  const std::string whole = bytes_of(folder / "one.safetensors");
  std::filesystem::remove(folder / "one.safetensors");
  std::filesystem::create_directory(folder / "one.safetensors.parts");
  folder.write("one.safetensors.parts/0-" + std::to_string(whole.size() + 1), whole + "x");
  expect_refusal(Status::invalid_file, {"one.safetensors", "[TAIL]"},
                 [&] { Checkpoint(folder.path(), {.shards_may_be_absent = true}); });
}

}  // namespace
}  // namespace dsakit::io
