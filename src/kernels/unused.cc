// SPDX-License-Identifier: Apache-2.0
#include "kernels/unused.hpp"

#include <algorithm>
#include <fstream>
#include <sstream>

#include "kernels/kernels.hpp"

namespace dsakit {
namespace {

constexpr std::string_view kUnused[] = {
    "amx_fp16", "avx10",   "avx_vnni_int8",          // x86-64
    "svei8mm",  "svebf16", "sve", "sve2",    "sme",  // AArch64
};

}  // namespace

std::string unused_instructions(std::string_view cpuinfo) {
  std::istringstream lines{std::string(cpuinfo)};
  std::string line, word, found;
  while (std::getline(lines, line) && !line.starts_with("flags") && !line.starts_with("Features")) {}
  std::istringstream words(line);
  while (words >> word)
    if (std::ranges::find(kUnused, word) != std::end(kUnused)) found += (found.empty() ? "" : ", ") + word;
  return found;
}

std::string unused_instructions() {
  std::ifstream file("/proc/cpuinfo");
  std::ostringstream text;
  text << file.rdbuf();
  return unused_instructions(text.str());
}

std::vector<std::pair<std::string, std::string>> rungs_elsewhere() {
  std::vector<std::pair<std::string, std::string>> rungs;
  for (const Rung& rung : known_rungs())
    if (!rung.kernels) rungs.emplace_back(rung.isa, rung.why);
  return rungs;
}

}  // namespace dsakit
