// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>

#include "dsakit/error.hpp"

// What fuzz targets share. A target is one file with LLVMFuzzerTestOneInput: libFuzzer calls it with what it makes up,
// main.cc with files.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace dsakit::fuzz {

/// What does not hold is a finding: the process ends, and its input is kept by whoever gave it.
inline void require(bool holds, const std::string& what) {
  if (holds) return;
  std::fprintf(stderr, "finding: %s\n", what.c_str());
  std::abort();
}

/// An input, taken from its front; zeros behind its end.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : rest_(reinterpret_cast<const char*>(data), size) {}

  bool empty() const { return rest_.empty(); }
  std::string_view rest() const { return rest_; }
  std::uint8_t byte() {
    if (rest_.empty()) return 0;
    const auto first = std::uint8_t(rest_.front());
    rest_.remove_prefix(1);
    return first;
  }
  /// 0 .. count - 1, count at least 1.
  std::size_t below(std::size_t count) { return (count > 256 ? byte() * 256u + byte() : byte()) % count; }
  template <class List>
  const auto& one_of(const List& list) {
    return std::begin(list)[below(std::size(list))];
  }
  /// All before the next `end`, which is taken too.
  std::string_view until(char end) {
    const std::size_t at = std::min(rest_.find(end), rest_.size());
    const std::string_view part = rest_.substr(0, at);
    rest_.remove_prefix(std::min(at + 1, rest_.size()));
    return part;
  }

 private:
  std::string_view rest_;
};

/// One line "<what>, wanted <what>": what every refusal owes, whatever was in the file or in the call.
inline void require_sentence(std::string_view text) {
  const bool control = std::any_of(text.begin(), text.end(), [](char c) { return (c >= 0 && c < 32) || c == 127; });
  require(!control && text.size() < 2000 && text.find(", wanted ") != text.npos, "no sentence: " + std::string(text));
}

/// What `f` refuses, or nothing. Other exceptions are findings, and so are bugs that it reports.
template <class F>
std::optional<Error> refusal(F&& f) {
  try {
    f();
    return {};
  } catch (const Error& e) {
    require_sentence(e.what());
    require(e.status != Status::internal, e.what());
    return e;
  }
}

/// The sentence, or "".
template <class F>
std::string answer(F&& f) {
  const auto refused = refusal(f);
  return refused ? refused->what() : "";
}

/// A folder of this process, gone at its end.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "dsakit-fuzz-XXXXXX").string();
    require(::mkdtemp(name.data()) != nullptr, "no folder " + name);
    path_ = name;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  std::string write(const std::string& name, std::string_view bytes) const {
    std::ofstream(*this / name, std::ios::binary).write(bytes.data(), std::streamsize(bytes.size()));
    return *this / name;
  }
  std::string read(const std::string& name) const {
    std::ifstream file(*this / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

 private:
  std::string path_;
};

/// The bytes of a safetensors file. What begins with '{' is a header without its length word and, behind a NUL, the
/// data: so an input can grow in both. Anything else is the file itself.
inline std::string safetensors_of(Input input) {
  if (!input.rest().starts_with('{')) return std::string(input.rest());
  const std::string_view header = input.until('\0');
  const std::uint64_t length = header.size();
  std::string file(sizeof length, '\0');
  std::memcpy(file.data(), &length, sizeof length);  // little endian, as the machines we fuzz on
  return file.append(header).append(input.rest());
}

}  // namespace dsakit::fuzz
