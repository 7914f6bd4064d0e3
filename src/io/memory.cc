// SPDX-License-Identifier: Apache-2.0
#include "io/memory.hpp"

#include <algorithm>
#include <fstream>
#include <string>

namespace dsakit::io {
namespace {

constexpr std::uint64_t kUnknown = INT64_MAX;

std::uint64_t system_has() {
  std::ifstream file("/proc/meminfo");
  for (std::string key, rest; file >> key && std::getline(file, rest);)
    if (key == "MemAvailable:") return std::stoull(rest) * 1024;
  return kUnknown;
}

/// A control group without a limit says "max".
std::uint64_t group_has() {
  std::ifstream limit("/sys/fs/cgroup/memory.max"), taken("/sys/fs/cgroup/memory.current");
  std::uint64_t most = 0, now = 0;
  if (!(limit >> most) || !(taken >> now)) return kUnknown;
  return most > now ? most - now : 0;
}

}  // namespace

std::uint64_t available_memory() { return std::min(system_has(), group_has()); }

}  // namespace dsakit::io
