// SPDX-License-Identifier: Apache-2.0
#include "debug/explain.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "case_files.hpp"
#include "commands.hpp"
#include "debug/compare.hpp"

namespace dsakit::tools {
namespace {

using namespace dsakit::debug;
using nlohmann::ordered_json;

constexpr std::size_t kColumns = 100, kListed = 4;

std::string named(const Tried& f) { return fmt::format("{} ({})", f.text, f.id); }

std::string unit_of(Measure m) {
  return m == Measure::keys ? "keys a row" : m == Measure::share ? "of the codes" : "roundings";
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

ordered_json moved_of(const SelectionFigures& s) {
  ordered_json all = ordered_json::array();
  for (const SelectionFigures::Moved& m : s.moved)
    all.push_back({{"position", m.position},
                   {"page", m.page},
                   {"recorded", m.recorded},
                   {"computed", m.computed},
                   {"score", number(m.score)}});
  return all;
}

ordered_json json_of(const AttentionFigures& f) {
  ordered_json worst = ordered_json::array();
  for (const AttentionFigures::Head& h : f.worst)
    worst.push_back({{"head", h.head}, {"mass", h.mass}, {"effective", h.effective}});
  return {{"row", f.row},     {"visible", f.visible}, {"listed", f.listed},
          {"mass", f.mass},   {"best", f.best},       {"best_heads", f.best_heads},
          {"first", f.first}, {"last", f.last},       {"effective", f.effective},
          {"worst", worst}};
}

ordered_json json_of(const CodeFigures& f) {
  ordered_json worst = ordered_json::array();
  for (const CodeFigures::Row& r : f.worst)
    worst.push_back({{"row", r.row}, {"sqnr", number(r.sqnr)}, {"without", number(r.without)}, {"channel", r.channel}});
  return {{"name", f.name},
          {"groups", f.groups},
          {"saturated", f.saturated},
          {"zeros", f.zeros},
          {"histogram", f.histogram},
          {"outlier", f.outlier},
          {"outlier_ratio", f.outlier_ratio},
          {"worst", worst},
          {"median", number(f.median)}};
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
  if (!e.loss.empty()) all["loss"] = e.loss;
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
                        {"recent", s->recent},
                        {"margins", s->margins},
                        {"moved", moved_of(*s)}};
  if (e.selection && e.selection->recall) {
    all["selection"]["recall"] = *e.selection->recall;
    all["selection"]["precision"] = *e.selection->precision;
  }
  if (e.attention) all["attention"] = json_of(*e.attention);
  for (const CodeFigures& f : e.codes) all["codes"].push_back(json_of(f));
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
      return fmt::format("agrees: {}, left over {}{}", op, spelled(d.figure, d.measure), side);
    }
    if (e_.verdict == "operator")
      return fmt::format("operator: no single change explains {}; {} departs first{}", op, first(), side);
    if (e_.verdict == "quantisation" && e_.findings.empty()) return fmt::format("quantisation: {}{}", e_.loss, side);
    if (e_.verdict == "inputs") return fmt::format("inputs: {}{}", e_.lints[0], side);
    if (e_.verdict == "undecided")
      return fmt::format("undecided: {} changes explain {}{}", e_.findings.size(), op, side);
    return fmt::format("{}: agrees if {}{}", e_.verdict, named(e_.findings[0]), side);
  }

  std::string body() {
    if (!e_.refusal.empty()) return "";
    for (const Distance& d : e_.outputs)
      if (d.departs) add(fmt::format("  {}: as called, left over {}", d.key, spelled(d.figure, d.measure)));
    table(e_.findings, "named");
    table(e_.nearest, "nearest");
    selection();
    attention();
    for (const CodeFigures& f : e_.codes) codes(f);
    if (!e_.loss.empty() && !verdict().starts_with("quantisation: " + e_.loss)) add("  quantisation: " + e_.loss);
    for (const std::string& lint : e_.lints) add("  inputs: " + lint);
    std::string tried =
        fmt::format("  rows {}; {} change{} tried", fmt::join(e_.rows, ", "), e_.tried, e_.tried == 1 ? "" : "s");
    if (e_.tried == 0) tried = fmt::format("  rows {}; no change tried", fmt::join(e_.rows, ", "));
    add(tried + also("blind", e_.blind));
    listed("untried", e_.untried);
    if (e_.verdict == "operator") listed("impossible here", e_.missing);
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
        "  row {}: cut {:.6g}, next {:.6g}, {} within 0.1 %, {} within 1 %, zero plateau {}; {} of {} ties kept; "
        "first 4 positions {:.1f} %, last 64 {:.1f} % of the list",
        s.row, s.cut, s.next, s.near, s.near_percent, s.zero, s.tied_kept, s.tied, 100 * s.sink, 100 * s.recent));
    std::string bands = "  keys within 2^-10";
    for (std::size_t i = 1; i + 1 < s.margins.size(); ++i) bands += fmt::format(", 2^{}", 2 * int(i) - 10);
    add(fmt::format("{} of the cut, and beyond: {}", bands, fmt::join(s.margins, ", ")));
    if (s.recall)
      add(fmt::format("  of unquantised operands: recall {:.3g}, precision {:.3g}", *s.recall, *s.precision));
    if (s.moved.empty()) return;
    add("    moved keys:   position    page  rank recorded  computed       score");
    const auto rank = [](std::int64_t r) { return r < 0 ? std::string("-") : std::to_string(r); };
    for (const SelectionFigures::Moved& m : s.moved)
      add(fmt::format("      {:>20}{:>8}{:>15}{:>10}{:>12.6g}", m.position, rank(m.page), rank(m.recorded),
                      rank(m.computed), m.score));
  }

  void attention() {
    if (!e_.attention || e_.attention->visible == 0) return;
    const AttentionFigures& f = *e_.attention;
    if (f.listed < f.visible)
      add(
          fmt::format("  mass of the list {:.1f} % (best list of {}: {:.1f} %, best per head {:.1f} %); first 4 "
                      "positions {:.1f} %, last 64 {:.1f} %",
                      100 * f.mass, f.listed, 100 * f.best, 100 * f.best_heads, 100 * f.first, 100 * f.last));
    else add(fmt::format("  first 4 positions {:.1f} %, last 64 {:.1f} % of the mass", 100 * f.first, 100 * f.last));
    std::string heads = f.worst.size() == 1 ? "  worst head" : "  worst heads";
    for (std::size_t i = 0; i < f.worst.size(); ++i)
      heads += fmt::format("{}{}: {:.1f} % (effective context {:.0f})", i ? ", " : " ", f.worst[i].head,
                           100 * f.worst[i].mass, f.worst[i].effective);
    add(fmt::format("{}; median effective context {:.0f} of {}", heads, f.effective, f.visible));
  }

  void codes(const CodeFigures& f) {
    if (f.has_loss()) {
      std::string rows;
      for (const CodeFigures::Row& r : f.worst)
        rows += fmt::format("{}row {}: SQNR {:.1f} dB, {:.1f} without channel {}", rows.empty() ? "" : "; ", r.row,
                            r.sqnr, r.without, r.channel);
      add(fmt::format("  {}: {} (median {:.1f} dB)", f.name, rows, f.median));
    }
    std::string line =
        fmt::format("  {}: {:.2g} % saturated, {:.2g} % zeros", f.name, 100 * f.saturated, 100 * f.zeros);
    if (f.outlier >= 0) line += fmt::format("; scale {} = {:.3g} x median", f.outlier, f.outlier_ratio);
    add(fmt::format("{}; by 16 codes: {}", line, fmt::join(f.histogram, " ")));
  }

  void table(const std::vector<Tried>& all, const char* what) {
    if (all.empty()) return;
    if (selects()) {
      std::string of = "keys a row";
      if (const auto& s = e_.selection)
        of = fmt::format("{} row{} x {} heads, {} keys, K {}{}", e_.rows.size(), e_.rows.size() == 1 ? "" : "s",
                         s->heads, s->visible, s->count, e_.lints.empty() ? "; inputs clean" : "");
      add(fmt::format("  {:<46}{:>8}{:>7}{:>7}{:>8}", of, "common", "tie", "near", "wrong"));
      add(keys("as called", e_.keys, ""));
    }
    for (const Tried& f : all) {
      const Measure m = f.outputs.empty() ? Measure::roundings : measure(f.outputs[0]);
      if (selects())
        add(keys(named(f), f.keys, fmt::format("{}, {} of {} rows", what, f.rows_agreeing, e_.rows.size())));
      else
        add(fmt::format("    {}", named(f)),
            fmt::format("{} -> {}  {}", figure(f.before, m), spelled(f.after, m), what));
      listed("  cannot be told apart here", f.twins);
    }
  }
  /// Without its unit, which stands behind the next one.
  static std::string figure(double x, Measure m) {
    const std::string all = spelled(x, m);
    return std::isfinite(x) ? all.substr(0, all.find(' ')) : all;
  }
  std::string keys(const std::string& text, const Left::Row& row, const std::string& what) const {
    const double n = double(std::max<std::size_t>(e_.rows.size(), 1));
    const auto mean = [&](std::int64_t x) { return fmt::format("{:.4g}", double(x) / n); };
    std::string name = text;
    if (name.size() > 43) name = name.substr(0, 41) + "..";
    const std::string line = fmt::format("    {:<44}{:>8}{:>7}{:>7}{:>8}", name, mean(row.common), mean(row.tie),
                                         mean(row.near), mean(row.wrong));
    return what.empty() ? line : line + "  " + what;
  }
  /// A list to go on with behind what stands in the line.
  static std::string also(const char* what, const std::vector<std::string>& all) {
    if (all.empty()) return "";
    std::string line = fmt::format("; {}: ", what);
    for (std::size_t i = 0; i < std::min(all.size(), kListed); ++i) line += (i ? "; " : "") + all[i];
    return all.size() > kListed ? line + fmt::format("; and {} more", all.size() - kListed) : line;
  }
  void listed(const char* what, const std::vector<std::string>& all) {
    if (!all.empty()) add("  " + also(what, all).substr(2));
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
  for (std::size_t i = 0; i < command.limits.size(); ++i)
    (i == 0 ? o.limits.sqnr : i == 1 ? o.limits.below : o.limits.recall) = command.limits[i];
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
    Case c = read_case(path);
    if (!command.ref.empty()) want_results(c, read_case(command.ref));
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
