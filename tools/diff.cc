// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>

#include "case_files.hpp"
#include "commands.hpp"
#include "core/text.hpp"
#include "debug/apart.hpp"
#include "debug/compare.hpp"
#include "debug/rule.hpp"
#include "debug/steps.hpp"
#include "ops/describe_text.hpp"

namespace dsakit::tools {
namespace {

using namespace dsakit::debug;
using nlohmann::ordered_json;

constexpr double kJump = 10;  // an output this many times further apart than the inputs

/// Whether a case computes, from its own inputs, what it has recorded: equal bits, or the rule.
struct Own {
  bool holds = true;
  std::string first;  // that departs: an output
  std::string step{};  // or, where they are recorded, a step
};

Own own_of(const Case& c) {
  const Outcome outcome = execute(c);
  if (outcome.refusal || c.refusal())
    return {outcome.refusal && c.refusal() && outcome.refusal->what() == *c.refusal(), "status"};
  for (const Pair& pair : pairs_of(c, "out", outcome)) {
    if (pair.mismatch.empty() && compare_bits(pair, nan_fails(c)).equal()) continue;
    if (!judge("dsakit", c.op(), pair).passes) return {false, pair.key, first_departing_step(c)};
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

/// Where a jump of the outputs begins: the first step, or else the first output, as far apart as they are.
struct Jump {
  std::string_view group;
  std::string name;
};
std::optional<Jump> jump_of(const Row& row) {
  for (const std::string_view group : {"tap", "out"})
    for (const Apart& one : apart(row.a, *row.b, group))
      if (one.distance > 0 && one.distance >= kJump * row.inputs.value_or(0)) return Jump{group, one.name};
  return {};
}

/// "step 3 query_norm"
std::string step_text(std::string step) {
  if (const std::size_t dot = step.find('.'); dot != step.npos) step[dot] = ' ';
  return "step " + step;
}

std::string loss_text(const RowLoss& l) {
  return fmt::format("row {}: SQNR {:.1f} dB (median {:.1f}), {:.1f} without channel {}; {:.0f} % zeros; "
                     "scale {:.3g} = {:.3g} x median",
                     l.row, l.sqnr, l.median, l.without, l.channel, 100 * l.zeros, l.scale, l.times);
}

/// By operator, layer, step and how often that has come; a quantised operator beside its twin.
using Place = std::tuple<std::string, std::int64_t, std::int64_t, int>;
Place place_of_call(const Case& c) {
  std::string_view op = c.op().name;
  for (const std::string_view prefix : {"kv_quant_", "quant_"})
    if (op.starts_with(prefix) && find_operator(op.substr(prefix.size()))) op.remove_prefix(prefix.size());
  return {std::string(op), label(c, "layer").value_or(-1), label(c, "step").value_or(-1), 0};
}
std::map<Place, Case> by_place(const std::string& path) {
  std::map<Place, Case> all;
  for (const std::string& file : case_files({path})) {
    Case c = read_case(file);
    Place place = place_of_call(c);
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
    Place place = place_of_call(row.a);
    std::get<3>(place) = seen[place]++;
    if (!options.other.empty()) {
      const auto other = others.find(place);
      if (other == others.end()) continue;  // nothing to set it beside
      row.b = other->second;
      row.inputs = distance(apart(row.a, *row.b, "in")), row.outputs = distance(apart(row.a, *row.b, "out"));
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
  const auto departs = [](const Own& own, const char* of) {
    return own.step.empty() ? fmt::format("first departing output{}: {}", of, own.first)
                            : fmt::format("departs from {}{} on", own.step, of);
  };
  if (!row.own_a.holds) return departs(row.own_a, "");
  if (!row.own_b.holds) return departs(row.own_b, " of B");
  if (row.b && &row == first && row.inputs_jump()) return "inputs written between the calls";
  if (row.b && &row == first && row.factor() > 0) return fmt::format("x {:.0f}", row.factor());
  return first && &row > first && (!row.b || row.outputs.value_or(0) > 0) ? "inherited" : "";
}

}  // namespace

int diff(const DiffOptions& options) {
  const std::vector<Row> rows = rows_of(options);
  const bool two = !options.other.empty();
  if (rows.empty())
    throw Error(Status::invalid_path, "diff", printable(options.other), "",
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
  const std::optional<Jump> jump = !departs && jumps && jumps->outputs_jump() ? jump_of(*jumps) : std::nullopt;
  const std::optional<RowLoss> loss = jump ? row_loss(jumps->a, *jumps->b, jump->group, jump->name) : std::nullopt;
  const std::string verdict = departs                   ? "operator"
                              : !two || equal           ? "agrees"
                              : loss && loss->is_loss() ? "quantisation"
                                                        : "undecided";
  std::string said = two ? "all outputs are equal" : "every result follows from its own inputs";
  const auto call = [](const Row& row) {
    return fmt::format("call {}, {}", label_text(row.a, "sequence"), row.a.op().name);
  };
  if (departs) {
    const std::string& step = departs->own_a.holds ? departs->own_b.step : departs->own_a.step;
    said = fmt::format("{} does not follow from its own inputs", call(*departs));
    if (!step.empty()) said += ", from " + step + " on";
  }
  else if (jumps && !jumps->outputs_jump())
    said = fmt::format("inputs of {}, were written between the calls", call(*jumps));
  else if (jumps) {
    said = fmt::format("first jump at {}", call(*jumps));
    if (label(jumps->a, "layer")) said += ", layer " + label_text(jumps->a, "layer");
    if (jump) said += ", " + (jump->group == "tap" ? step_text(jump->name) : jump->name);
  }
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
  if (loss) table += "  " + loss_text(*loss) + "\n";
  if (options.json)
    fmt::print(
        "{}\n",
        ordered_json{{"schema", "dsakit.diff/1"},
                     {"verdict", verdict},
                     {"said", said},
                     {"calls", calls},
                     {"jump", jump ? ordered_json(jump->name) : nullptr},
                     {"loss", loss ? ordered_json(loss_text(*loss)) : nullptr}}
            .dump(2));
  else fmt::print("{}: {}\n{}", verdict, said, options.quiet ? "" : table);
  return verdict == "agrees" ? 0 : 1;
}

}  // namespace dsakit::tools
