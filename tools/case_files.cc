// SPDX-License-Identifier: Apache-2.0
#include "case_files.hpp"

#include <algorithm>
#include <filesystem>

#include "core/text.hpp"
#include "dsakit/error.hpp"

namespace dsakit::tools {

std::vector<std::string> case_files(const std::vector<std::string>& paths) {
  std::vector<std::string> all;
  for (const std::string& path : paths) {
    std::error_code error;
    if (!std::filesystem::is_directory(path, error)) {
      all.push_back(path);
      continue;
    }
    std::vector<std::string> here;
    for (const auto& entry : std::filesystem::directory_iterator(path, error)) {
      const std::string name = entry.path().filename().string();
      if (name.ends_with(".safetensors") && name[0] != '.' && !name.starts_with("weight-"))
        here.push_back(entry.path());
    }
    if (here.empty())
      throw Error(Status::invalid_path, "case", printable(path), "", "holds no case", "a folder of *.safetensors");
    std::sort(here.begin(), here.end());
    all.insert(all.end(), here.begin(), here.end());
  }
  return all;
}

}  // namespace dsakit::tools
