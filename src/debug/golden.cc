// SPDX-License-Identifier: Apache-2.0
#include "debug/golden.hpp"

#include "core/nearest.hpp"
#include "debug/execute.hpp"
#include "debug/golden_data.hpp"
#include "debug/golden_plan.hpp"
#include "debug/steps.hpp"
#include "dsakit/error.hpp"
#include "dsakit/version.hpp"
#include "io/json.hpp"
#include "ops/describe_text.hpp"

namespace dsakit::debug {
namespace {

std::string line_of(std::string_view op, const Settings& settings) {
  std::string line = "dsakit golden " + std::string(op);
  for (const auto& [name, value] : settings) line += " --set " + name + "=" + value;
  return line;
}

/// Results of the reference as those of the case.
void take(Case& c, const Outcome& outcome) {
  std::string undefined;
  for (const auto& [key, result] : outcome.results) {
    c.tensors[key] = Stored(result.tensor);
    for (const RowRange& rows : result.undefined)
      undefined += (undefined.empty() ? "" : ",") + ("[" + io::json_quoted(key)) + "," + std::to_string(rows.first) +
                   "," + std::to_string(rows.end) + "]";
    if (result.pages.empty()) continue;
    Layout& layout = c.layouts[key];  // the pages of the pool are those that the case stores
    const Layout& before = c.layouts["in." + key.substr(key.find('.') + 1)];
    layout.pages = before.pages, layout.full = before.full;
  }
  if (!undefined.empty()) c.metadata["undefined"] = "[" + undefined + "]";
}

Plan plan_of(std::string_view op, const Settings& settings) {
  const Operator* found = find_operator(op);
  if (!found) {
    std::vector<std::string_view> names;
    for (const Operator& other : operators()) names.push_back(other.name);
    throw Error(Status::invalid_argument, "golden", "OPERATOR", "", "is \"" + io::printable(op) + "\"",
                "the name of an operator", "nearest: " + std::string(nearest(op, names)));
  }
  Plan plan(*found, settings);
  if (const std::string why = refusal_of_data(plan); !why.empty())
    throw Error(Status::invalid_argument, "golden", "data", "", "is V" + std::to_string(plan.data()),
                "another of V1..V19 for " + std::string(op), why);
  return plan;
}

Case case_of(const Plan& plan, const Settings& settings) {
  Case c = filled(plan);
  c.metadata["producer"] = std::string("dsakit ") + DSAKIT_VERSION + " golden";
  c.metadata["recipe"] = io::json_quoted(line_of(plan.op().name, settings));
  check_case(c);
  return c;
}

}  // namespace

Case made_call(std::string_view op, const Settings& settings) { return case_of(plan_of(op, settings), settings); }

Case golden(std::string_view op, const Settings& settings) {
  const Plan plan = plan_of(op, settings);
  Case c = case_of(plan, settings);
  Steps steps(op, plan.steps());
  const Outcome outcome = execute(c, {.reference = true, .taps = plan.steps().empty() ? nullptr : &steps});
  if (outcome.refusal) throw *outcome.refusal;
  take(c, outcome);
  c.tensors.merge(steps.tensors());
  return c;
}

std::vector<Settings> combinations(const Settings& settings) {
  std::vector<Settings> all{{}};
  for (const auto& [name, text] : settings) {
    std::vector<std::string> values(1);
    int depth = 0;
    for (const char c : text) {
      depth += (c == '[') - (c == ']');
      if (c == ',' && depth == 0) values.emplace_back();
      else values.back() += c;
    }
    std::vector<Settings> more;
    for (const Settings& before : all)
      for (const std::string& value : values) {
        more.push_back(before);
        more.back().emplace_back(name, value);
      }
    all = std::move(more);
  }
  return all;
}

}  // namespace dsakit::debug
