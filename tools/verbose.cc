// SPDX-License-Identifier: Apache-2.0
#include "debug/verbose.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "commands.hpp"
#include "core/text.hpp"
#include "dsakit/error.hpp"
#include "io/file.hpp"

namespace dsakit::tools {
namespace {

struct Sum {
  std::int64_t calls = 0, refused = 0;
  double microseconds = 0, longest = 0, bytes = 0, operations = 0;
};

}  // namespace

int verbose(const VerboseOptions& options) {
  constexpr std::size_t kCall = 1, kTime = 7, kRate = 8, kOperations = 9, kStatus = 10;
  static_assert(debug::kVerboseFields[kCall] == "call" && debug::kVerboseFields[kTime] == "us" &&
                debug::kVerboseFields[kRate] == "gbps" && debug::kVerboseFields[kOperations] == "gops" &&
                debug::kVerboseFields[kStatus] == "status");
  std::map<std::string, Sum> sums;
  Sum all;
  const std::string text = io::text_of(options.log);
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const auto fields = debug::parse_verbose(std::string_view(text).substr(at, end - at));
    at = end + 1;
    if (!fields) continue;
    for (Sum* sum : {&sums[(*fields)[kCall]], &all}) {
      const double us = std::atof((*fields)[kTime].c_str());
      ++sum->calls, sum->refused += (*fields)[kStatus] != "OK";
      sum->microseconds += us, sum->longest = std::max(sum->longest, us);
      sum->bytes += us * std::atof((*fields)[kRate].c_str()) * 1e3;
      sum->operations += us * std::atof((*fields)[kOperations].c_str()) * 1e3;
    }
  }
  if (all.calls == 0)
    throw Error(Status::invalid_file, "verbose", printable(options.log), "", "has no line of a call",
                "what DSAKIT_VERBOSE writes");
  std::vector<std::pair<std::string, Sum>> rows(sums.begin(), sums.end());
  std::sort(rows.begin(), rows.end(),
            [](const auto& a, const auto& b) { return a.second.microseconds > b.second.microseconds; });
  if (options.json) {
    nlohmann::ordered_json calls = nlohmann::ordered_json::array();
    for (const auto& [name, s] : rows)
      calls.push_back({{"call", name},
                       {"calls", s.calls},
                       {"refused", s.refused},
                       {"microseconds", s.microseconds},
                       {"longest", s.longest},
                       {"bytes", s.bytes},
                       {"operations", s.operations}});
    fmt::print("{}\n", nlohmann::ordered_json{{"schema", "dsakit.verbose/1"}, {"calls", calls}}.dump(2));
    return 0;
  }
  fmt::print("{} calls, {:.3f} ms\n  {:<48} {:>8} {:>10} {:>6} {:>10} {:>10} {:>8} {:>8}\n", all.calls,
             all.microseconds * 1e-3, "call", "calls", "ms", "%", "us each", "longest", "GB/s", "GOP/s");
  for (const auto& [name, s] : rows)
    fmt::print("  {:<48} {:>8} {:>10.3f} {:>6.1f} {:>10.1f} {:>10.1f} {:>8.1f} {:>8.1f}{}\n", name, s.calls,
               s.microseconds * 1e-3, 100 * s.microseconds / std::max(all.microseconds, 1e-9),
               s.microseconds / double(s.calls), s.longest, s.bytes / std::max(s.microseconds, 1e-9) * 1e-3,
               s.operations / std::max(s.microseconds, 1e-9) * 1e-3,
               s.refused ? fmt::format("  {} refused", s.refused) : "");
  return 0;
}

}  // namespace dsakit::tools
