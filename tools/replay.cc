// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "case_files.hpp"
#include "commands.hpp"
#include "debug/compare.hpp"
#include "debug/rule.hpp"
#include "debug/steps.hpp"
#include "dsakit/version.hpp"

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

}  // namespace

int replay(const ReplayOptions& options) {
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
