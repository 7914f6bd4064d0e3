// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>

#include "case_files.hpp"
#include "commands.hpp"
#include "debug/compare.hpp"
#include "debug/golden.hpp"
#include "debug/rule.hpp"
#include "debug/steps.hpp"
#include "debug/verbose.hpp"
#include "dsakit/version.hpp"
#include "io/file.hpp"

namespace dsakit::tools {
namespace {

using namespace dsakit::debug;
using nlohmann::ordered_json;

/// One case on one rung with one number of threads, beside what it has recorded.
class Run {
 public:
  Run(const Case& c, const ReplayOptions& options, const std::string& isa, int threads)
      : context_({.threads = threads, .isa = isa}), reference_(options.reference) {
    json_ = {{"isa", context_.isa()}, {"threads", context_.threads()}, {"reference", reference_}};
    const Execution how{.reference = reference_, .strides = options.strides, .context = &context_};
    const Outcome outcome = execute(c, how);
    json_["milliseconds"] = outcome.seconds * 1e3;
    if (outcome.refusal || c.refusal()) refused(c, outcome);
    else outputs(c, outcome);
    json_["agrees"] = agrees_;
  }

  bool agrees() const { return agrees_; }
  const ordered_json& json() const { return json_; }
  std::string text() const {
    const double ms = json_["milliseconds"];
    const std::string where = reference_ ? "reference" : fmt::format("{} x {}", context_.isa(), context_.threads());
    return fmt::format("{:<14} {:>10.3f} ms  {}", where, ms, text_) + below_;
  }

 private:
  void refused(const Case& c, const Outcome& outcome) {
    const std::string now = outcome.refusal ? outcome.refusal->what() : "computed",
                      then = c.refusal().value_or("computed");
    agrees_ = now == then;
    text_ = agrees_ ? "refused as recorded: " + now : fmt::format("was {}, now {}", then, now);
    json_["status"] = now;
    json_["recorded_status"] = then;
  }

  /// Equal bits are owed to what dsakit recorded on this rung with these numerics, the rule to everybody.
  void outputs(const Case& c, const Outcome& outcome) {
    const std::vector<Pair> pairs = pairs_of(c, "out", outcome);
    json_["outputs"] = ordered_json::array();
    if (pairs.empty()) text_ = "computed; no result is recorded to compare with";
    for (const Pair& pair : pairs) {
      const Bits bits = pair.mismatch.empty() ? compare_bits(pair, nan_fails(c)) : Bits{1, 1, -1};
      ordered_json one = {{"name", pair.key}, {"elements", bits.elements}, {"different", bits.different}};
      if (bits.equal()) text_ += fmt::format("{}{} equal ({})", text_.empty() ? "" : "; ", pair.key, bits.elements);
      else below_ += "\n      " + different(c, pair, one);
      json_["outputs"].push_back(std::move(one));
    }
    if (agrees_) return;
    const std::string step = first_departing_step(c);
    if (step.empty()) return;
    below_ += "\n      the recorded steps depart from " + step + " on";
    json_["step"] = step;
  }

  std::string different(const Case& c, const Pair& pair, ordered_json& one) {
    const Finding finding = judge("dsakit", c.op(), pair);
    const bool passes = finding.passes && !owes_bits(c);
    agrees_ = agrees_ && passes;
    one["passes"] = passes;
    one["rule"] = finding.sentence;
    return fmt::format("{} {}: {}", pair.key, passes ? "within the rule" : "differs", finding.sentence);
  }

  bool owes_bits(const Case& c) const {
    const auto versions = c.metadata.find("versions");
    return !reference_ && versions != c.metadata.end() && versions->second == recorded_on(context_);
  }

  Context context_;
  bool reference_, agrees_ = true;
  std::string text_, below_;
  ordered_json json_;
};

std::vector<std::string> isas_of(const ReplayOptions& options) {
  if (options.isa != "all") return {options.isa};
  std::vector<std::string> all;
  for (const std::string_view isa : supported_isas()) all.emplace_back(isa);
  return all;
}

/// The columns of the calls of a line, or of a file of lines; none of anything else.
std::vector<std::vector<std::string>> lines_in(const std::string& path) {
  if (auto line = parse_verbose(path)) return {std::move(*line)};
  std::vector<std::vector<std::string>> lines;
  if (std::error_code none; std::filesystem::is_directory(path, none) || path.ends_with(".safetensors")) return lines;
  const std::string text = io::text_of(path);
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    if (auto line = parse_verbose(std::string_view(text).substr(at, end - at))) lines.push_back(std::move(*line));
    at = end + 1;
  }
  return lines;
}

/// Median of five, the first left out: numbers are others than those of the call, sizes and modes the same.
double seconds_of(const Case& c, const Execution& how) {
  std::vector<double> times;
  for (int i = 0; i < 6; ++i) {
    const Outcome outcome = execute(c, how);
    if (outcome.refusal) throw *outcome.refusal;
    if (i > 0) times.push_back(outcome.seconds);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

/// Calls that are refused are passed over.
int replay_lines(const ReplayOptions& options, const std::vector<std::vector<std::string>>& lines) {
  constexpr std::size_t kTime = 7, kStatus = 10;
  static_assert(kVerboseFields[kTime] == "us" && kVerboseFields[kStatus] == "status");
  ordered_json calls = ordered_json::array();
  std::string table;
  double then = 0, now = 0;
  for (const auto& line : lines) {
    if (line[kStatus] != "OK") continue;
    const CallOfLine call = call_of(line);
    const Case c = made_call(call.op, call.settings);
    ordered_json runs = ordered_json::array();
    const double before = std::atof(line[kTime].c_str());
    then += before;
    table += fmt::format("  {:>5}  {:<34} {:>12.1f} us then", line[0], call.op, before);
    for (const std::string& isa : isas_of(options))
      for (const int threads : options.threads.empty() ? std::vector<int>{0} : options.threads) {
        Context context({.threads = threads, .isa = isa});
        const double us = 1e6 * seconds_of(c, {.reference = options.reference, .context = &context});
        if (runs.empty()) now += us;
        table += fmt::format(", {:.1f} {} x {}", us, context.isa(), context.threads());
        runs.push_back({{"isa", context.isa()}, {"threads", context.threads()}, {"microseconds", us}});
      }
    table += "\n";
    calls.push_back({{"sequence", line[0]}, {"operator", call.op}, {"microseconds", before}, {"runs", runs}});
  }
  if (options.json) fmt::print("{}\n", ordered_json{{"schema", "dsakit.replay.lines/1"}, {"calls", calls}}.dump(2));
  else
    fmt::print("{} of {} calls: {:.1f} us then, {:.1f} now\n{}", calls.size(), lines.size(), then, now,
               options.quiet ? "" : table);
  return 0;
}

}  // namespace

int replay(const ReplayOptions& options) {
  std::vector<std::vector<std::string>> calls;  // of lines
  for (const std::string& path : options.paths) {
    auto more = lines_in(path);
    calls.insert(calls.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
  }
  if (!calls.empty()) return replay_lines(options, calls);
  ordered_json cases = ordered_json::array();
  std::string lines;
  int agreeing = 0, files = 0;
  for (const std::string& path : case_files(options.paths)) {
    const Case c = read_case(path);
    ordered_json runs = ordered_json::array();
    bool agrees = true;
    lines += fmt::format("  {}  {}\n", c.name, c.call);
    for (const std::string& isa : isas_of(options))
      for (const int threads : options.threads.empty() ? std::vector<int>{0} : options.threads) {
        const Run run(c, options, isa, threads);
        agrees = agrees && run.agrees();
        lines += "    " + run.text() + "\n";
        runs.push_back(run.json());
      }
    cases.push_back({{"file", path}, {"operator", c.op().name}, {"agrees", agrees}, {"runs", runs}});
    ++files, agreeing += agrees;
  }
  const bool all = agreeing == files;
  const char* verdict = all ? "agrees" : "operator";
  if (options.json)
    fmt::print("{}\n", ordered_json{{"schema", "dsakit.replay/1"}, {"verdict", verdict}, {"cases", cases}}.dump(2));
  else
    fmt::print("{}: {} of {} {}\n{}", verdict, agreeing, files, files == 1 ? "case" : "cases",
               options.quiet ? "" : lines);
  return all ? 0 : 1;
}

}  // namespace dsakit::tools
