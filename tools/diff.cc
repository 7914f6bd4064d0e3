// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>

#include "case_files.hpp"
#include "commands.hpp"
#include "core/view.hpp"
#include "debug/compare.hpp"
#include "debug/rule.hpp"

namespace dsakit::tools {
namespace {

using namespace dsakit::debug;
using nlohmann::ordered_json;

constexpr double kJump = 10;  // an output this many times further apart than the inputs

/// Whether a case computes, from its own inputs, what it has recorded: equal bits, or the rule.
struct Own {
  bool holds = true;
  std::string first;  // the output that departs
};

Own own_of(const Case& c) {
  const Outcome outcome = execute(c);
  if (outcome.refusal || c.refusal())
    return {outcome.refusal && c.refusal() && outcome.refusal->what() == *c.refusal(), "status"};
  for (const Pair& pair : pairs_of(c, "out", outcome)) {
    if (pair.mismatch.empty() && compare_bits(pair, nan_fails(c)).equal()) continue;
    if (!judge("dsakit", c.op(), pair).passes) return {false, pair.key};
  }
  return {};
}

std::optional<std::int64_t> label(const Case& c, const char* name) {
  const auto at = c.metadata.find("where");
  if (at == c.metadata.end()) return {};
  const auto where = ordered_json::parse(at->second, nullptr, false);
  if (!where.is_object() || !where.contains(name) || !where[name].is_number_integer()) return {};
  return where[name].get<std::int64_t>();
}

std::string label_text(const Case& c, const char* name) {
  const auto value = label(c, name);
  return value ? std::to_string(*value) : "-";
}

/// How far two recordings of a group are apart: rms of the difference over rms, the largest of its tensors; nothing
/// where no two have one shape.
std::optional<double> distance(const Case& a, const Case& b, std::string_view group) {
  std::optional<double> most;
  for (const Pair& pair : pairs_of(a, group, b, group)) {
    if (!pair.mismatch.empty()) continue;
    double error = 0, size = 0;
    each_element(pair, [&](std::int64_t i, std::int64_t j) {
      const double x = number_at(pair.recorded, offset_of(pair.recorded, i));
      const double y = number_at(pair.computed, offset_of(pair.computed, j));
      if (std::isfinite(x) && std::isfinite(y)) error += (x - y) * (x - y), size += x * x;
    });
    most = std::max(most.value_or(0), error == 0 ? 0 : std::sqrt(error / std::max(size, 1e-300)));
  }
  return most;
}

std::string distance_text(const std::optional<double>& d) {
  return !d ? "-" : *d == 0 ? "equal" : fmt::format("{:.1e}", *d);
}

struct Row {
  std::string file;
  Case a;
  std::optional<Case> b;
  Own own_a, own_b;
  std::optional<double> inputs, outputs;
  double before = 0;  // the largest distance of all calls in front
  bool is_first = false;

  bool departs() const { return !own_a.holds || !own_b.holds; }
  double factor() const { return outputs && inputs && *inputs > 0 ? *outputs / *inputs : 0; }
  bool outputs_jump() const { return outputs && *outputs > 0 && inputs && (*inputs == 0 || factor() >= kJump); }
  /// Further apart than anything that was computed before: something between the calls wrote them.
  bool inputs_jump() const { return inputs && *inputs > 0 && !is_first && *inputs >= kJump * before; }
  bool jumps() const { return outputs_jump() || inputs_jump(); }
};

/// By operator, layer, step and how often that has come.
using Place = std::tuple<std::string, std::int64_t, std::int64_t, int>;
std::map<Place, Case> by_place(const std::string& path) {
  std::map<Place, Case> all;
  for (const std::string& file : case_files({path})) {
    Case c = read_case(file);
    Place place{std::string(c.op().name), label(c, "layer").value_or(-1), label(c, "step").value_or(-1), 0};
    while (all.contains(place)) ++std::get<3>(place);
    all.emplace(std::move(place), std::move(c));
  }
  return all;
}

std::vector<Row> rows_of(const DiffOptions& options) {
  std::map<Place, Case> others;
  if (!options.other.empty()) others = by_place(options.other);
  std::map<Place, int> seen;
  std::vector<Row> rows;
  for (const std::string& file : case_files({options.path})) {
    Row row;
    row.file = file, row.a = read_case(file);
    Place place{std::string(row.a.op().name), label(row.a, "layer").value_or(-1), label(row.a, "step").value_or(-1), 0};
    std::get<3>(place) = seen[place]++;
    if (!options.other.empty()) {
      const auto other = others.find(place);
      if (other == others.end()) continue;  // nothing to set it beside
      row.b = other->second;
      row.inputs = distance(row.a, *row.b, "in"), row.outputs = distance(row.a, *row.b, "out");
      row.own_b = own_of(*row.b);
    }
    row.own_a = own_of(row.a);
    row.is_first = rows.empty();
    if (!rows.empty())
      row.before = std::max({rows.back().before, rows.back().inputs.value_or(0), rows.back().outputs.value_or(0)});
    rows.push_back(std::move(row));
  }
  return rows;
}

std::string note_of(const Row& row, const Row* first) {
  if (!row.own_a.holds) return "first departing output: " + row.own_a.first;
  if (!row.own_b.holds) return "first departing output of B: " + row.own_b.first;
  if (row.b && &row == first && row.inputs_jump()) return "inputs written between the calls";
  if (row.b && &row == first && row.factor() > 0) return fmt::format("x {:.0f}", row.factor());
  return first && &row > first && (!row.b || row.outputs.value_or(0) > 0) ? "inherited" : "";
}

}  // namespace

int diff(const DiffOptions& options) {
  const std::vector<Row> rows = rows_of(options);
  const bool two = !options.other.empty();
  if (rows.empty())
    throw Error(Status::invalid_path, "diff", options.other.substr(0, 120), "",
                "has none of the calls of " + options.path, "the same operators, layers and steps");
  const Row* departs = nullptr;
  const Row* jumps = nullptr;
  bool equal = true;
  for (const Row& row : rows) {
    if (!departs && row.departs()) departs = &row;
    if (!jumps && row.jumps()) jumps = &row;
    equal = equal && (!two || (row.outputs && *row.outputs == 0));
  }
  const Row* first = departs ? departs : jumps;
  const std::string verdict = departs ? "operator" : !two || equal ? "agrees" : "undecided";
  std::string said = two ? "all outputs are equal" : "every result follows from its own inputs";
  const auto call = [](const Row& row) {
    return fmt::format("call {}, {}", label_text(row.a, "sequence"), row.a.op().name);
  };
  if (departs) said = fmt::format("{} does not follow from its own inputs", call(*departs));
  else if (jumps && !jumps->outputs_jump())
    said = fmt::format("inputs of {}, were written between the calls", call(*jumps));
  else if (jumps) said = fmt::format("first jump at {}", call(*jumps));
  else if (!equal) said = fmt::format("outputs differ, and none by {} times more than its inputs", kJump);

  ordered_json calls = ordered_json::array();
  std::string table = fmt::format("  {:>6}  {:<34} {:>4} {:>5}  {}\n", "call", "operator", "step", "layer",
                                  two ? "inputs   outputs  own A  own B" : "own");
  for (const Row& row : rows) {
    const auto word = [](const Own& own) { return own.holds ? "yes" : "no"; };
    const std::string note = note_of(row, first);
    table += fmt::format("  {:>6}  {:<34} {:>4} {:>5}  ", label_text(row.a, "sequence"), row.a.op().name,
                         label_text(row.a, "step"), label_text(row.a, "layer"));
    if (two)
      table += fmt::format("{:<8} {:<8} {:<6} {:<6}", distance_text(row.inputs), distance_text(row.outputs),
                           word(row.own_a), word(row.own_b));
    else table += fmt::format("{:<4}", word(row.own_a));
    table += " " + note;
    table.erase(table.find_last_not_of(' ') + 1);
    table += "\n";
    ordered_json one = {{"file", row.file}, {"operator", row.a.op().name}, {"own", row.own_a.holds}, {"note", note}};
    if (two)
      one.update({{"own_other", row.own_b.holds},
                  {"inputs", row.inputs ? ordered_json(*row.inputs) : nullptr},
                  {"outputs", row.outputs ? ordered_json(*row.outputs) : nullptr}});
    calls.push_back(std::move(one));
  }
  if (options.json)
    fmt::print(
        "{}\n",
        ordered_json{{"schema", "dsakit.diff/1"}, {"verdict", verdict}, {"said", said}, {"calls", calls}}.dump(2));
  else fmt::print("{}: {}\n{}", verdict, said, options.quiet ? "" : table);
  return verdict == "agrees" ? 0 : 1;
}

}  // namespace dsakit::tools
