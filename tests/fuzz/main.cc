// SPDX-License-Identifier: Apache-2.0
// A fuzz target without a fuzzer: runs the files it is given, and those in folders, once.
#include <cstdio>
#include <vector>

#include "fuzz.hpp"

int main(int count, char** paths) {
  namespace fs = std::filesystem;
  std::vector<fs::path> files;
  for (int i = 1; i < count; ++i)
    if (fs::is_directory(paths[i]))
      for (const auto& entry : fs::directory_iterator(paths[i])) files.push_back(entry.path());
    else files.emplace_back(paths[i]);
  std::sort(files.begin(), files.end());
  for (const fs::path& path : files) {
    std::ifstream file(path, std::ios::binary);
    dsakit::fuzz::require(file.is_open(), "cannot read " + path.string());
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    std::printf("%s\n", path.c_str());
    std::fflush(stdout);  // so that the last line names what ended the process
    LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
  }
  std::printf("%zu inputs, no finding\n", files.size());
  return files.empty();
}
