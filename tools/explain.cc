// SPDX-License-Identifier: Apache-2.0
#include "debug/explain.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "case_files.hpp"
#include "commands.hpp"

namespace dsakit::tools {
namespace {

using namespace dsakit::debug;
using nlohmann::ordered_json;

constexpr std::size_t kColumns = 100, kListed = 4;

std::string named(const Tried& f) { return fmt::format("{} ({})", f.text, f.id); }

std::string unit_of(Measure m) {
  return m == Measure::keys ? "keys a row" : m == Measure::share ? "of the codes" : "roundings";
}

/// A figure in its measure; infinite where shapes or numbers cannot be compared.
std::string spelled(double figure, Measure m) {
  if (!std::isfinite(figure)) return "not comparable";
  if (m == Measure::share) return fmt::format("{:.3g} %", 100 * figure);
  return figure < 1000 ? fmt::format("{:.3g}", figure) : fmt::format("{:.0f}", figure);
}

ordered_json number(double x) { return std::isfinite(x) ? ordered_json(x) : ordered_json(); }

ordered_json json_of(const Tried& f) {
  return {{"id", f.id},
          {"change", f.text},
          {"outputs", f.outputs},
          {"before", number(f.before)},
          {"after", number(f.after)},
          {"twins", f.twins}};
}

ordered_json json_of(const std::string& path, const Case& c, const Explanation& e) {
  ordered_json outputs = ordered_json::array(), findings = ordered_json::array(), nearest = ordered_json::array();
  for (const Distance& d : e.outputs)
    outputs.push_back(
        {{"name", d.key}, {"figure", number(d.figure)}, {"unit", unit_of(d.measure)}, {"departs", d.departs}});
  for (const Tried& f : e.findings) findings.push_back(json_of(f));
  for (const Tried& f : e.nearest) nearest.push_back(json_of(f));
  ordered_json all = {{"schema", "dsakit.explain/1"},
                      {"verdict", e.verdict},
                      {"side", e.side},
                      {"findings", findings},
                      {"file", path},
                      {"operator", c.op().name},
                      {"target", e.target},
                      {"outputs", outputs},
                      {"rows", e.rows},
                      {"nearest", nearest},
                      {"tried", e.tried},
                      {"blind", e.blind},
                      {"untried", e.untried},
                      {"not_offered", e.missing}};
  if (!e.lints.empty()) all["lints"] = e.lints;
  if (const auto& s = e.selection)
    all["selection"] = {{"row", s->row},
                        {"visible", s->visible},
                        {"selected", s->selected},
                        {"cut", number(s->cut)},
                        {"next", number(s->next)},
                        {"tied", s->tied},
                        {"tied_kept", s->tied_kept},
                        {"zero", s->zero},
                        {"near", s->near},
                        {"near_percent", s->near_percent},
                        {"sink", s->sink},
                        {"recent", s->recent}};
  if (!e.refusal.empty()) all["refusal"] = e.refusal;
  return all;
}

class Text {
 public:
  Text(const Case& c, const Explanation& e) : case_(c), e_(e) {}

  std::string verdict() const {
    const std::string side = e_.side.empty() ? "" : "; side: " + e_.side;
    const std::string op(case_.op().name);
    if (!e_.refusal.empty()) return fmt::format("{}: {}{}", e_.verdict, e_.refusal, side);
    if (e_.verdict == "agrees") {
      if (e_.outputs.empty())
        return fmt::format("agrees: {} is computed; no result is recorded to compare with{}", op, side);
      const Distance& d = worst();
      return fmt::format("agrees: {}, left over {} {}{}", op, spelled(d.figure, d.measure), unit_of(d.measure), side);
    }
    if (e_.verdict == "operator")
      return fmt::format("operator: no single change explains {}; {} departs first{}", op, first(), side);
    if (e_.verdict == "inputs") return fmt::format("inputs: {}{}", e_.lints[0], side);
    if (e_.verdict == "undecided")
      return fmt::format("undecided: {} changes explain {}{}", e_.findings.size(), op, side);
    return fmt::format("{}: agrees if {}{}", e_.verdict, named(e_.findings[0]), side);
  }

  std::string body() {
    if (!e_.refusal.empty()) return "";
    for (const Distance& d : e_.outputs)
      if (d.departs)
        add(fmt::format("  {}: as called, left over {} {}", d.key, spelled(d.figure, d.measure), unit_of(d.measure)));
    table(e_.findings, "named");
    table(e_.nearest, "nearest");
    std::string tried =
        fmt::format("  rows {}; {} change{} tried", fmt::join(e_.rows, ", "), e_.tried, e_.tried == 1 ? "" : "s");
    if (e_.tried == 0) tried = fmt::format("  rows {}; no change tried", fmt::join(e_.rows, ", "));
    add(tried);
    selection();
    for (const std::string& lint : e_.lints) add("  inputs: " + lint);
    listed("blind here", e_.blind);
    listed("untried for want of --tries", e_.untried);
    if (e_.verdict == "operator") listed("not offered", e_.missing);
    return lines_;
  }

 private:
  bool selects() const {
    return std::any_of(e_.outputs.begin(), e_.outputs.end(),
                       [](const Distance& d) { return d.measure == Measure::keys; });
  }
  const Distance& worst() const {
    return *std::max_element(e_.outputs.begin(), e_.outputs.end(),
                             [](const Distance& a, const Distance& b) { return a.figure < b.figure; });
  }
  std::string first() const {
    const auto at = std::find_if(e_.outputs.begin(), e_.outputs.end(), [](const Distance& d) { return d.departs; });
    return at == e_.outputs.end() ? "nothing" : at->key;
  }
  Measure measure(const std::string& key) const {
    for (const Distance& d : e_.outputs)
      if (d.key == key) return d.measure;
    return Measure::roundings;
  }

  void selection() {
    if (!e_.selection) return;
    const SelectionFigures& s = *e_.selection;
    add(fmt::format(
        "  row {}: {} of {} keys, cut {:.6g}, next {:.6g}, {} within 0.1 %, {} within 1 %; {} of {} ties kept, zero "
        "plateau {}; first 4 positions {:.1f} %, last 64 {:.1f} % of the list",
        s.row, s.selected, s.visible, s.cut, s.next, s.near, s.near_percent, s.tied_kept, s.tied, s.zero, 100 * s.sink,
        100 * s.recent));
  }

  void table(const std::vector<Tried>& all, const char* what) {
    if (all.empty()) return;
    if (selects()) {
      add(fmt::format("    {:<56}{:>8}{:>7}{:>7}{:>8}", "keys a row", "common", "tie", "near", "wrong"));
      add(keys("as called", e_.keys, ""));
    }
    for (const Tried& f : all) {
      const Measure m = f.outputs.empty() ? Measure::roundings : measure(f.outputs[0]);
      if (selects()) add(keys(named(f), f.keys, what));
      else
        add(fmt::format("    {}", named(f)),
            fmt::format("{} -> {} {}  {}", spelled(f.before, m), spelled(f.after, m), unit_of(m), what));
      listed("  cannot be told apart here", f.twins);
    }
  }
  std::string keys(const std::string& text, const Left::Row& row, const char* what) const {
    const double n = double(std::max<std::size_t>(e_.rows.size(), 1));
    const auto mean = [&](std::int64_t x) { return fmt::format("{:.4g}", double(x) / n); };
    std::string name = text;
    if (name.size() > 55) name = name.substr(0, 53) + "..";
    std::string line = fmt::format("    {:<56}{:>8}{:>7}{:>7}{:>8}", name, mean(row.common), mean(row.tie),
                                   mean(row.near), mean(row.wrong));
    return *what ? line + "  " + what : line;
  }
  void listed(const char* what, const std::vector<std::string>& all) {
    if (all.empty()) return;
    std::string line = fmt::format("  {}: ", what);
    for (std::size_t i = 0; i < std::min(all.size(), kListed); ++i) line += (i ? "; " : "") + all[i];
    if (all.size() > kListed) line += fmt::format("; and {} more", all.size() - kListed);
    add(line);
  }
  /// Lines of at most 100 columns: words that do not fit go on below; `right` stands at the end.
  void add(std::string line, const std::string& right = "") {
    if (!right.empty()) line += "  " + right;
    while (line.size() > kColumns) {
      const std::size_t at = line.rfind(' ', kColumns);
      if (at == std::string::npos || at < 10) break;
      lines_ += line.substr(0, at) + "\n";
      line = "      " + line.substr(at + 1);
    }
    lines_ += line + "\n";
  }

  const Case& case_;
  const Explanation& e_;
  std::string lines_;
};

ExplainOptions options_of(const ExplainCommand& command) {
  ExplainOptions o{.tries = command.tries, .pairs = command.pairs, .row = command.row};
  if (command.classes.empty()) return o;
  o.always = true, o.classes.clear();
  for (const std::string& one : command.classes) o.classes += one == "all" ? "LQAN" : one == "none" ? "" : one;
  return o;
}

}  // namespace

int explain(const ExplainCommand& command) {
  const ExplainOptions options = options_of(command);
  const std::vector<std::string> paths = case_files(command.paths);
  ordered_json all = ordered_json::array();
  bool agree = true;
  for (const std::string& path : paths) {
    const Case c = read_case(path);
    const Explanation e = debug::explain(c, options);
    agree = agree && e.verdict == "agrees";
    if (command.json) {
      all.push_back(json_of(path, c, e));
      continue;
    }
    Text text(c, e);
    if (paths.size() > 1) fmt::print("{}\n  ", path);
    fmt::print("{}\n{}", text.verdict(), command.quiet ? "" : text.body());
  }
  // One file is one object; several are a list of such.
  if (command.json) fmt::print("{}\n", (paths.size() == 1 ? all[0] : all).dump(2));
  return agree ? 0 : 1;
}

}  // namespace dsakit::tools
