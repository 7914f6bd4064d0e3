// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <sstream>
#include <string>

#include "dsakit/error.hpp"

namespace dsakit::io {

/// A folder of its own for one test, gone afterwards.
class TestFolder {
 public:
  TestFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "dsakit-XXXXXX").string();
    if (!::mkdtemp(name.data())) std::abort();
    path_ = name;
  }
  ~TestFolder() { std::filesystem::remove_all(path_); }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  std::string write(const std::string& name, const std::string& bytes) const {
    std::ofstream(*this / name, std::ios::binary) << bytes;
    return *this / name;
  }

 private:
  std::string path_;
};

inline std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Runs f, which must throw an Error of this status whose sentence holds each of the parts.
template <class F>
void expect_refusal(Status status, std::initializer_list<const char*> parts, F&& f) {
  try {
    f();
    ADD_FAILURE() << "accepted, wanted " << name_of(status);
  } catch (const Error& e) {
    const std::string sentence = e.what();
    EXPECT_EQ(e.op, "load");
    EXPECT_STREQ(name_of(e.status), name_of(status)) << sentence;
    for (const char* part : parts) EXPECT_NE(sentence.find(part), std::string::npos) << sentence << "\nlacks " << part;
  }
}

}  // namespace dsakit::io
