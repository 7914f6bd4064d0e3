// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "commands.hpp"
#include "core/environment.hpp"
#include "core/text.hpp"
#include "dsakit/context.hpp"
#include "dsakit/error.hpp"
#include "dsakit/version.hpp"
#include "kernels/unused.hpp"
#include "run/cores.hpp"
#include "run/numa.hpp"

namespace dsakit::tools {

namespace {

/// The variables that are set, and what became of those that are not what they should be.
std::map<std::string, std::string> environment(const Context& context) {
  std::map<std::string, std::string> all;
  for (const char* name : {"DSAKIT_ISA", "DSAKIT_CAPTURE", "DSAKIT_VERBOSE", "DSAKIT_CHECK", "DSAKIT_MEM_LIMIT",
                           "DSAKIT_NUM_THREADS", "OMP_NUM_THREADS"})
    if (const char* text = std::getenv(name); text && *text) all[name] = printable(text);
  const auto note = [&](const char* name, const std::string& what) {
    if (const auto at = all.find(name); at != all.end()) at->second += " (" + what + ")";
  };
  const char* const numbers[] = {"DSAKIT_MEM_LIMIT", "DSAKIT_NUM_THREADS", "OMP_NUM_THREADS"};
  for (const char* name : numbers)
    if (number_from_environment(name) == 0) note(name, "ignored: wanted a whole number of at least 1");
  for (const char* name : {numbers[1], numbers[2]})
    if (number_from_environment(name) > usable_cores())
      note(name, "at most the cores of this process: " + std::to_string(usable_cores()));
  if (const std::string check = all.contains("DSAKIT_CHECK") ? all["DSAKIT_CHECK"] : "0"; check != "0" && check != "1")
    note("DSAKIT_CHECK", "ignored: wanted 1 or 0");
  for (const std::string& warning : context.warnings())
    for (const char* name : {"DSAKIT_CAPTURE", "DSAKIT_VERBOSE"})
      if (warning.ends_with("[" + std::string(name) + "]")) note(name, "ignored: " + printable(warning, 400));
  return all;
}

}  // namespace

int info(bool json) {
  Context& context = default_context();
  nlohmann::ordered_json j = {{"version", DSAKIT_VERSION}, {"isa", context.isa()}, {"threads", context.threads()}};
  j["isas"] = supported_isas();
  const std::vector<NumaNode> nodes = numa_nodes();
  for (const NumaNode& node : nodes) j["numa_nodes"].push_back(node.cores);
  if (const auto share = huge_page_share()) j["huge_pages"] = std::round(100 * *share) / 100;
  for (const auto& [name, text] : environment(context)) j["environment"][name] = text;
  if (json) {
    for (const auto& [isa, lacks] : rungs_elsewhere()) j["lacking"][isa] = lacks;
    j["unused_instructions"] = unused_instructions();
    fmt::print("{}\n", j.dump(2));
    return 0;
  }
  for (auto& [key, value] : j.items())
    if (key != "environment") fmt::print("{:10} {}\n", key, value.is_string() ? value.get<std::string>() : value.dump());
  if (j.contains("environment"))
    for (auto& [name, text] : j["environment"].items()) fmt::print("{:10} {}\n", name, text.get<std::string>());
  for (const auto& [isa, lacks] : rungs_elsewhere()) fmt::print("{:10} {} needs {}\n", "", isa, lacks);
  if (nodes.size() > 1) fmt::print("One rank per NUMA node: {}\n", rank_per_node(int(nodes.size())));
  print_unused();
  return 0;
}

void print_unused() {
  const std::string_view isa = default_context().isa(), best = supported_isas().back();
  if (isa != best) fmt::print("DSAKIT_ISA asks for {}; {} would be faster.\n", isa, best);
  if (const std::string unused = unused_instructions(); !unused.empty())
    fmt::print("This machine also has {}, for which there are no kernels yet: these are not its best times.\n", unused);
}

std::string small_model() {
  namespace fs = std::filesystem;
  const fs::path program = fs::read_symlink("/proc/self/exe").parent_path();
  for (const char* way : {"../models", "../../models", "../share/dsakit/models"})
    if (const fs::path folder = program / way / "tiny-dsa"; fs::exists(folder / "config.json"))
      return folder.lexically_normal().string();
  throw Error(Status::invalid_path, "dsakit", "MODEL", "", "is missing and no model lies beside the program",
              "a checkpoint folder");
}

std::string duration_text(double seconds) {
  const long long s = static_cast<long long>(seconds + 0.5);
  if (s >= 3600) return fmt::format("{} h {} min", s / 3600, s % 3600 / 60);
  return s >= 60 ? fmt::format("{} min {} s", s / 60, s % 60) : fmt::format("{} s", s);
}

Progress::Progress(std::string what) : what_(std::move(what)), terminal_(isatty(STDERR_FILENO)) { at(0); }

Progress::~Progress() {
  if (terminal_) fmt::print(stderr, "\r\033[K");
}

void Progress::at(double share) {
  const int percent = int(100 * share);
  if (!terminal_ || percent == shown_) return;
  shown_ = percent;
  fmt::print(stderr, "\r{} {:3} %", what_, percent);
  std::fflush(stderr);
}

}  // namespace dsakit::tools
