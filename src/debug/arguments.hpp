// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "core/level.hpp"
#include "dsakit/axes.hpp"
#include "dsakit/context.hpp"
#include "dsakit/modes.hpp"
#include "dsakit/tensor_list.hpp"
#include "ops/describe.hpp"

// The arguments of a call of any operator, as values.
namespace dsakit::debug {

using Integers = std::vector<std::int64_t>;
/// monostate: not given. A tensor that is not given is Tensor{}.
using Argument =
    std::variant<std::monostate, Tensor, std::vector<Tensor>, std::int64_t, double, bool, std::string, Integers>;

struct Arguments {
  const Operator* op = nullptr;
  std::vector<Argument> values;  // in the order of op->parameters; Level is a string

  /// By name, which the operator has.
  Argument& at(std::string_view name);
  const Argument& at(std::string_view name) const { return const_cast<Arguments*>(this)->at(name); }
  /// Not given where it is no tensor.
  const Tensor& tensor(std::string_view name) const;
};

/// The members of one parameter as a value, and back; what is monostate stays as it is.
template <class Member>
Argument argument_of(const Member& m) {
  if constexpr (std::is_same_v<Member, Tensor>) return m;
  else if constexpr (std::is_same_v<Member, TensorList>) return std::vector<Tensor>(m.begin(), m.end());
  else if constexpr (std::is_same_v<Member, std::string_view>) return std::string(m);
  else if constexpr (std::is_same_v<Member, Level>) return std::string(m == Level::strict ? "strict" : "portable");
  else if constexpr (std::is_same_v<Member, Axes>)
    return Integers(m.axis.begin(), m.axis.begin() + std::min<std::int64_t>(m.count, 8));
  else if constexpr (std::is_arithmetic_v<Member>) return m;
  else return std::monostate{};
}

/// `op`: the description of these.
template <class Args, class Outs>
Arguments arguments_of(const Operator& op, const Args& args, const Outs& outs) {
  Arguments all{&op, {}};
  all.values.reserve(op.parameters.size());
  for_each_field(args, outs, [&](const Field&, const auto& member) { all.values.push_back(argument_of(member)); });
  return all;
}

/// A level that is none is what the call refuses, as its parameter `p`.
template <class Member>
void read_one(const Argument& from, Member& to, const Operator& op, const Parameter& p) {
  if constexpr (std::is_same_v<Member, TensorList>) {
    if (const auto* list = std::get_if<std::vector<Tensor>>(&from)) to = *list;
  } else if constexpr (std::is_same_v<Member, std::string_view>) {
    if (const auto* text = std::get_if<std::string>(&from)) to = *text;
  } else if constexpr (std::is_same_v<Member, Level>) {
    if (const auto* text = std::get_if<std::string>(&from)) to = level_of(*text, std::string(op.name), p.field.name);
  } else if constexpr (std::is_same_v<Member, Axes>) {
    if (const auto* list = std::get_if<Integers>(&from)) to = Axes(list->data(), std::int64_t(list->size()));
  } else if constexpr (std::is_same_v<Member, double>) {
    if (const auto* integer = std::get_if<std::int64_t>(&from)) to = double(*integer);
    else if (const auto* number = std::get_if<double>(&from)) to = *number;
  } else if (const auto* value = std::get_if<Member>(&from)) {
    to = *value;
  }
}

/// Arguments of one type from the values, which outlive them. What is not given stays as it is.
template <class Args, class Outs>
void read_all(const Arguments& all, Args& args, Outs& outs) {
  std::size_t i = 0;
  for_each_field(args, outs, [&](const Field&, auto& member) {
    if constexpr (!std::is_const_v<std::remove_reference_t<decltype(member)>>)
      read_one(all.values[i], member, *all.op, all.op->parameters[i]);
    ++i;
  });
}

/// Fills in the outputs that are absent: dtype and shape, or the memory of an argument. Throws what the operator
/// refuses.
void infer(Arguments&);
void run(const Arguments&, Context&);
void run_reference(const Arguments&);

}  // namespace dsakit::debug
