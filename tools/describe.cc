// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "commands.hpp"
#include "core/text.hpp"
#include "dsakit/error.hpp"
#include "ops/describe_text.hpp"
#include "ops/taps.hpp"

namespace dsakit::tools {
namespace {

using nlohmann::ordered_json;

ordered_json json_of(const Parameter& p) {
  ordered_json j = {{"name", p.field.name},          {"role", name_of(p.field.role)},
                    {"kind", name_of(p.field.kind)}, {"dtypes", p.field.dtypes},
                    {"shape", p.field.shape},        {"meaning", p.field.meaning},
                    {"required", p.required},        {"default", nullptr}};
  std::visit(
      [&]<class T>(const T& value) {
        if constexpr (std::is_same_v<T, Axes>)
          j["default"] = std::vector<std::int64_t>(value.axis.begin(), value.axis.begin() + value.count);
        else if constexpr (!std::is_same_v<T, std::monostate>) j["default"] = value;
      },
      p.default_value);
  return j;
}

ordered_json json_of(const Operator& op) {
  const Description& d = op.description;
  ordered_json j = {{"name", op.name},
                    {"summary", d.summary},
                    {"formula", d.formula},
                    {"errors", fmt::format("{}\n{}", d.errors, kCommonErrors)},
                    {"source", d.source},
                    {"page", d.page},
                    {"family", name_of(d.family)},
                    {"positional", d.positional},
                    {"results", op.results()}};
  for (const Parameter& p : op.parameters) j["fields"].push_back(json_of(p));
  j["taps"] = ordered_json::array();
  for (const Tap& tap : taps_of(op.name))
    j["taps"].push_back({{"step", tap.step}, {"dtype", tap.dtype}, {"shape", tap.shape}, {"meaning", tap.meaning}});
  return j;
}

const Operator& known(const std::string& name) {
  if (const Operator* op = find_operator(name)) return *op;
  std::string names;
  for (const Operator& op : operators()) names += fmt::format("{}{}", names.empty() ? "" : ", ", op.name);
  throw Error(Status::invalid_argument, "describe", "OPERATOR", "", "is '" + printable(name) + "'", names);
}

/// Every page of the folder, with the tables in it made anew; says which ones changed.
void update_pages(const std::string& folder) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.path().extension() != ".md") continue;
    std::stringstream text;
    text << std::ifstream(entry.path()).rdbuf();
    const std::string made = with_tables(text.str());
    if (made == text.str()) continue;
    if (!(std::ofstream(entry.path()) << made).flush())
      throw Error(Status::io_error, "describe", "--pages", "", "cannot be written: " + entry.path().string(), "a file");
    fmt::print("{}\n", entry.path().string());
  }
  if (error) throw Error(Status::invalid_path, "describe", "--pages", "", "is '" + folder + "'", "a folder of pages");
}

}  // namespace

int describe(const DescribeOptions& options) {
  if (!options.pages.empty()) {
    update_pages(options.pages);
    return 0;
  }
  std::vector<const Operator*> chosen;
  for (const std::string& name : options.operators) chosen.push_back(&known(name));
  if (options.json) {
    ordered_json all = ordered_json::array();
    if (chosen.empty())
      for (const Operator& op : operators()) all.push_back(json_of(op));
    for (const Operator* op : chosen) all.push_back(json_of(*op));
    fmt::print("{}\n", all.dump(2));
    return 0;
  }
  if (chosen.empty())
    for (const Operator& op : operators()) fmt::print("{:32} {}\n", op.name, op.description.summary);
  for (std::size_t i = 0; i < chosen.size(); ++i)
    fmt::print("{}{}", i > 0 ? "\n" : "", options.markdown ? to_markdown(*chosen[i]) : to_text(*chosen[i]));
  return 0;
}

}  // namespace dsakit::tools
