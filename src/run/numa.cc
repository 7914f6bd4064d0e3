// SPDX-License-Identifier: Apache-2.0
#include "run/numa.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <fstream>

namespace dsakit {
namespace {

std::string line_of(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// [begin, end) of each part of "0-3,8"; none if the list is not one.
std::vector<std::pair<int, int>> ranges_of(const std::string& list) {
  std::vector<std::pair<int, int>> ranges;
  const char *at = list.data(), *const end = at + list.size();
  while (at < end) {
    int first = 0, last = 0;
    auto [next, error] = std::from_chars(at, end, first);
    last = first;
    if (error == std::errc() && next < end && *next == '-') {
      const auto [after, wrong] = std::from_chars(next + 1, end, last);
      next = after, error = wrong;
    }
    if (error != std::errc() || first < 0 || last < first || (next < end && *next != ',')) return {};
    ranges.emplace_back(first, last + 1);
    at = next + 1;
  }
  return ranges;
}

/// Of this process, in bytes.
std::optional<double> bytes_on_huge_pages() {
  std::ifstream file("/proc/self/smaps_rollup");
  for (std::string word; file >> word;)
    if (double kilobytes; word == "AnonHugePages:" && file >> kilobytes) return kilobytes * 1024;
  return {};
}

}  // namespace

std::vector<NumaNode> numa_nodes(const std::string& root) {
  const std::string folder = root + "/devices/system/node/";
  std::vector<NumaNode> nodes;
  for (const auto& [begin, end] : ranges_of(line_of(folder + "online")))
    for (int number = begin; number < end; ++number) {
      const std::string cores = line_of(folder + "node" + std::to_string(number) + "/cpulist");
      if (count_of_cores(cores) > 0) nodes.push_back({number, cores});
    }
  return nodes;
}

int cores_here(const std::string& root) {
  const int group = count_of_cores(line_of(root + "/fs/cgroup/cpuset.cpus.effective"));
  return group > 0 ? group : count_of_cores(line_of(root + "/devices/system/cpu/online"));
}

int count_of_cores(const std::string& list) {
  int count = 0;
  for (const auto& [begin, end] : ranges_of(list)) count += end - begin;
  return count;
}

std::string rank_per_node(int nodes) {
  const std::string n = std::to_string(nodes);
  return "mpirun -n " + n + " --map-by ppr:1:numa --bind-to numa dsakit run MODEL --parallel heads=" + n;
}

std::string binding_warning(int usable, int cores, int ranks) {
  if (ranks < 1 || usable >= cores / ranks) return {};
  return "this rank may use " + std::to_string(usable) + " of " + std::to_string(cores) + " cores, its share is " +
         std::to_string(cores / ranks) + ": mpirun binds to less; --bind-to numa, or --bind-to none";
}

std::optional<double> huge_page_share() {
  constexpr std::size_t kHugePage = std::size_t{2} << 20, kBytes = 32 * kHugePage;
  const auto before = bytes_on_huge_pages();
  void* memory = std::aligned_alloc(kHugePage, kBytes);
  if (!before || !memory) {
    std::free(memory);
    return {};
  }
  ::madvise(memory, kBytes, MADV_HUGEPAGE);
  std::memset(memory, 1, kBytes);
  const auto after = bytes_on_huge_pages();
  std::free(memory);
  return std::clamp((*after - *before) / double(kBytes), 0., 1.);
}

}  // namespace dsakit
