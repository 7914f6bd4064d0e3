// SPDX-License-Identifier: Apache-2.0
#include "debug/golden.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "commands.hpp"
#include "core/text.hpp"
#include "dsakit/error.hpp"

namespace dsakit::tools {

int golden(const GoldenOptions& options) {
  debug::Settings settings;
  for (const std::string& setting : options.settings) {
    const std::size_t equals = setting.find('=');
    if (equals == setting.npos || equals == 0)
      throw Error(Status::invalid_argument, "golden", "--set", "", "is '" + printable(setting) + "'", "NAME=VALUE");
    settings.emplace_back(setting.substr(0, equals), setting.substr(equals + 1));
  }
  const std::vector<debug::Settings> all = debug::combinations(settings);
  std::vector<std::string> files;
  if (all.size() > 1) std::filesystem::create_directories(options.out);
  for (std::size_t i = 0; i < all.size(); ++i) {
    debug::Case c = debug::golden(options.op, all[i]);
    if (all.size() > 1) c.metadata["where"] = fmt::format("{{\"sequence\": {}}}", i + 1);
    files.push_back(all.size() == 1 ? options.out
                                    : fmt::format("{}/{:06}-{}.safetensors", options.out, i + 1, options.op));
    debug::write_case(c, files.back());
  }
  if (options.json) fmt::print("{}\n", nlohmann::ordered_json{{"schema", "dsakit.golden/1"}, {"files", files}}.dump(2));
  else if (!options.quiet)
    for (const std::string& file : files) fmt::print("{}\n", file);
  return 0;
}

}  // namespace dsakit::tools
