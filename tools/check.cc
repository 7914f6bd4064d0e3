// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "case_files.hpp"
#include "commands.hpp"
#include "core/check.hpp"
#include "debug/compare.hpp"
#include "debug/rule.hpp"
#include "debug/scores.hpp"

namespace dsakit::tools {
namespace {

using namespace dsakit::debug;
using nlohmann::ordered_json;

/// "[2][17] is 3.1, golden 3", or "none".
std::string element_text(const Finding& f, std::int64_t at, double a, double g) {
  if (at < 0) return "none";
  return fmt::format("{} is {:.9g}, golden {:.9g}", f.shape.rank > 0 ? subscript(f.shape, at) : "it", a, g);
}

std::string text_of(const Finding& f) {
  const Figures& n = f.figures;
  std::string text =
      fmt::format("    {} ({}) {}: {}\n", f.key, f.parameter, f.passes ? "passes" : "departs", f.sentence);
  if (n.elements == 0) return text;
  text += fmt::format("      {} elements, {:.4f} % equal; MERE {:.3g}, MARE {:.3g}, rms {:.3g}, cosine {:.9g}\n",
                      n.elements, 100 * double(n.equal) / double(n.elements), n.mere, n.mare, n.rms, n.cosine);
  if (n.worst >= 0) text += "      worst of all: " + element_text(f, n.worst, n.worst_a, n.worst_g) + "\n";
  if (n.worst_departing >= 0)
    text += "      worst beyond the rule: " + element_text(f, n.worst_departing, n.departing_a, n.departing_g) + "\n";
  return text;
}

ordered_json json_of(const Finding& f) {
  const Figures& n = f.figures;
  return {{"name", f.key},
          {"parameter", f.parameter},
          {"passes", f.passes},
          {"sentence", f.sentence},
          {"count", n.elements},
          {"equal", n.equal},
          {"nonfinite", n.nonfinite},
          {"max_abs", n.max_abs},
          {"mere", n.mere},
          {"mare", n.mare},
          {"rms", n.rms},
          {"cosine", n.cosine},
          {"worst", n.worst},
          {"departing", n.departing},
          {"worst_departing", n.worst_departing}};
}

/// The results of a case beside what is golden for it.
std::vector<Finding> judge_case(const Case& c, const CheckOptions& options, bool third) {
  const bool has_ref = !c.names("ref").empty();
  const std::string against = !options.against.empty() ? options.against : has_ref && !third ? "ref" : "reference";
  if (against == "ref" && !has_ref)
    refuse_case(c, "group ref", "is empty", "golden results", "CASE_MISSING", "--against reference computes them");
  std::vector<Finding> findings;
  const auto scores = needs_scores(options.rule) ? index_scores(c) : std::vector<std::vector<double>>();
  if (against == "ref" && !third) {
    for (const Pair& pair : pairs_of(c, "out", c, "ref"))
      findings.push_back(judge(options.rule, c.op(), pair, nullptr, &scores));
    return findings;
  }
  const Outcome golden = execute(c, {.reference = against != "fast"});
  if (golden.refusal) throw *golden.refusal;
  const std::vector<Pair> others = third ? pairs_of(c, "ref", golden) : std::vector<Pair>();
  for (const Pair& pair : pairs_of(c, "out", golden)) {
    const Pair* other = nullptr;
    for (const Pair& one : others)
      if (one.parameter == pair.parameter) other = &one;
    findings.push_back(judge(options.rule, c.op(), pair, other, &scores));
  }
  return findings;
}

bool needs_third(const std::string& rule) {
  for (const RuleInfo& r : rules())
    if (r.name == rule) return r.third;
  return false;
}

}  // namespace

int check(const CheckOptions& options) {
  ordered_json cases = ordered_json::array();
  std::string lines;
  std::size_t passing = 0, files = 0;
  for (const std::string& path : case_files(options.paths)) {
    const Case c = read_case(path);
    const std::vector<Finding> findings = judge_case(c, options, needs_third(options.rule));
    bool passes = !findings.empty();
    ordered_json outputs = ordered_json::array();
    lines += fmt::format("  {}  {}{}\n", c.name, c.call, findings.empty() ? ": no result is recorded" : "");
    for (const Finding& f : findings) {
      passes = passes && f.passes;
      lines += text_of(f);
      outputs.push_back(json_of(f));
    }
    cases.push_back({{"file", path}, {"passes", passes}, {"outputs", outputs}});
    ++files, passing += passes;
  }
  const char* verdict = passing == files ? "agrees" : "undecided";
  if (options.json)
    fmt::print(
        "{}\n",
        ordered_json{{"schema", "dsakit.check/1"}, {"verdict", verdict}, {"rule", options.rule}, {"cases", cases}}.dump(
            2));
  else
    fmt::print("{}: {} of {} {} by {}\n{}", verdict, passing, files, files == 1 ? "passes" : "pass", options.rule,
               options.quiet ? "" : lines);
  return passing == files ? 0 : 1;
}

}  // namespace dsakit::tools
