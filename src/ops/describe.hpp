// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "dsakit/axes.hpp"
#include "dsakit/field.hpp"
#include "dsakit/modes.hpp"
#include "dsakit/tensor_list.hpp"

// The descriptions of all operators as values, for who prints or generates: Python, the CLI, the pages.
namespace dsakit {

/// A default, as the caller would write it; monostate: None, or no default.
using Default = std::variant<std::monostate, std::int64_t, double, bool, std::string_view, Axes>;

struct Parameter {
  Field field;
  Default default_value;
  bool required = false;  // has no default in the documented call; what is needed beyond that, its role says
  int result = -1;        // its place among the results, in the order of the members of Outs
  bool list = false;      // of tensors
};

struct Operator {
  std::string_view name;
  Description description;
  std::vector<Parameter> parameters;  // in the order of for_each_field

  std::vector<std::string_view> results() const;
};

/// In the order of ops.inc.
const std::vector<Operator>& operators();

const char* name_of(Role);
const char* name_of(Kind);
const char* name_of(Family);

template <class Value>
Default default_of(const Value& value) {
  if constexpr (std::is_same_v<Value, Level>) return std::string_view(value == Level::strict ? "strict" : "portable");
  else if constexpr (std::is_same_v<Value, std::string_view>)
    return value.empty() ? Default() : Default(value);  // "" is what the library has for an absent dtype
  else if constexpr (std::is_arithmetic_v<Value> || std::is_same_v<Value, Axes>) return value;
  else return {};
}

template <class Args, class Outs>
Operator describe_operator(std::string_view name) {
  Operator op{name, describe(Args{}), {}};
  const Args args{};
  const Outs outs{};
  std::vector<const char*> results;  // addresses
  for_each_field(args, outs, [&](const Field& field, const auto& value) {
    const bool positional = int(op.parameters.size()) < op.description.positional;
    op.parameters.push_back({field, default_of(value), field.without_default || (positional && field.is_required())});
    op.parameters.back().list = std::is_same_v<std::remove_cvref_t<decltype(value)>, TensorList>;
    const char *at = reinterpret_cast<const char*>(&value), *begin = reinterpret_cast<const char*>(&outs);
    const bool result = field.has_member() && at >= begin && at < begin + sizeof outs;
    results.push_back(result ? at : nullptr);
  });
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (!results[i]) continue;
    op.parameters[i].result = 0;
    for (const char* other : results) op.parameters[i].result += other && other < results[i];
  }
  // As the documents write it: what stands before a required positional parameter has no default either.
  for (int i = op.description.positional - 2; i >= 0; --i)
    if (op.parameters[std::size_t(i + 1)].required) op.parameters[std::size_t(i)].required = true;
  for (Parameter& p : op.parameters)
    if (p.required) p.default_value = {};
  return op;
}

}  // namespace dsakit
